"""`CollectionConfig`: the settings of a collection, read from a file such as `collect.toml`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from langchain_cfc.errors import InputError
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.sampling import SamplingName, resolve_generator
from langchain_cfc.support.plugins import complete_path, is_plugin_source, load_object
from langchain_cfc.support.serialization import compute_sha256
from langchain_cfc.support.suggestions import suggest_file
from langchain_cfc.support.text import join_names
from langchain_cfc.support.units import Unit
from langchain_cfc.verifiers import VerifierEnsemble
from langchain_cfc_collect.calls import CallPolicy
from langchain_cfc_collect.costs import Budget, Price
from langchain_cfc_collect.executor import Components
from langchain_cfc_collect.proposal import add_prompt
from langchain_cfc_collect.sources.columns import BadRowPolicy, Columns, Examples, read_examples
from langchain_cfc_collect.sources.files import Rows, open_rows

if TYPE_CHECKING:
    from typing_extensions import Self

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Arguments that say how to reach a model, not what it answers: changing one does not change records.
_CONNECTION_ARGUMENT = re.compile(r"(api_key|secret|password|token|base_url|endpoint|timeout|max_retries)$")
_Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def _check_exactly_one(self, one: str, other: str, example: str = "") -> Self:
        missing = [name for name in (one, other) if getattr(self, name) is None]
        if len(missing) != 1:
            msg = f"found {'neither' if missing else 'both'} of {one} and {other}; expected one{example}"
            raise ValueError(msg)
        return self


_Config = TypeVar("_Config", bound=_Table)


class SourceTable(Columns):
    """Dataset that the prompts of a collection come from, and what its columns mean."""

    # File of the dataset: .jsonl, .json, .csv or .parquet; or `SCHEME:REST`, see `open_rows`
    path: str
    bad_rows: BadRowPolicy = "refuse"  # how to handle rows that cannot be used
    limit: _Count | None = None  # use at most so many prompts, drawn at random; None for all

    @cached_property
    def rows(self) -> Rows:
        """The dataset, opened once so that all iterations read the same version of it."""
        return open_rows(self.path)

    def read_examples(self) -> Examples:
        """Return the examples of the dataset, made from its columns, or a random sample of them."""
        return read_examples(self.rows, self, self.bad_rows, self.limit)


class ComponentTable(_Table):
    """Component that is given by the import path of its factory."""

    # `MODULE:NAME` of a function or class that makes the component, or of the component itself; in short the
    # name of a verifier or labeler of langchain-cfc
    factory: Annotated[str, AfterValidator(complete_path)]
    arguments: dict[str, Any] = {}
    # Name of a chat model, such as `openai:gpt-4o`; the factory gets the model as its argument `model`
    model: str | None = None
    model_arguments: dict[str, Any] = {}  # arguments of the model
    id: str | None = None  # name of the component in the records, if it cannot name itself

    def create(self) -> Any:
        """Create the component; raises `InputError` if that fails."""
        if self.model is None:
            return load_object(self.factory, self.arguments)
        model = resolve_generator(self.model, self.model_arguments)
        return load_object(self.factory, {**self.arguments, "model": model})


class GeneratorTable(_Table):
    """Generator of the candidates: a chat model given by name, or an object that a factory makes."""

    model: str | None = None  # name such as `openai:gpt-4o-mini`, for LangChain's `init_chat_model`
    factory: str | None = None  # `MODULE:NAME` instead, for your own chains and models
    prompt: str | None = None  # prompt around each question, with the variable {question}; part of the bot
    arguments: dict[str, Any] = {}  # arguments of the model or factory, such as `temperature`
    # How candidates are drawn: by n separate `requests`, or by a `single_request`
    sampling: SamplingName = "requests"
    # Whether reasoning such as <think>...</think> is removed from texts (`strip`) or left there (`keep`)
    reasoning: Reasoning = "strip"
    id: str | None = None  # name of the generator in the records, if it cannot name itself

    @model_validator(mode="after")
    def _check_model_or_factory(self) -> GeneratorTable:
        return self._check_exactly_one("model", "factory")

    def create(self) -> Any:
        """Create the generator; raises `InputError` if that fails."""
        if self.model is not None:
            return add_prompt(self.prompt, resolve_generator(self.model, self.arguments))
        return add_prompt(self.prompt, resolve_generator(load_object(str(self.factory), self.arguments)))


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RunTable(CallPolicy):
    """Limits and options of a run; see `Budget` and `CollectionOptions`."""

    max_tokens: _Count | None = None
    max_cost: Annotated[float, Field(gt=0)] | None = None
    keep_payloads: bool = False


class ScoringConfig(_Table):
    """The settings of a collection that scoring alone needs, with either `verifier` or `verifiers`.

    Attributes:
        verifier: Scores candidates.
        verifiers: Several verifiers by name; their mean is the `score`.
        weights: Weights of several verifiers in the mean, by name; by default all are equal.
        run: Limits on calls, tokens and cost, and whether raw messages are kept.
        prices: Prices per million tokens, by prefix of a model's name; `*` for all others.
    """

    verifier: ComponentTable | None = None
    verifiers: Annotated[dict[str, ComponentTable], Field(min_length=1)] | None = None
    weights: dict[str, float] | None = None
    run: RunTable = RunTable()
    prices: dict[str, Price] = {}

    @model_validator(mode="after")
    def _check_verifiers(self) -> Self:
        several = self.verifiers or {}
        if len({table.id is None for table in several.values()}) > 1:
            msg = "verifiers: only some have an id; give each an id, because together they make one score"
            raise ValueError(msg)
        if self.weights is not None and self.verifier is not None:
            msg = "weights: give each verifier a name, with a table such as [verifiers.judge]"
            raise ValueError(msg)
        # Rescoring takes verifiers that have a weight, but no table, from the store.
        return self if self.weights is not None else self._check_exactly_one("verifier", "verifiers")

    @property
    def verifier_id(self) -> str | None:
        """Name of the verifier in the records, or of all of them together, if they cannot name themselves."""
        ids = [table.id for table in self.list_verifiers().values() if table.id is not None]
        return "+".join(ids) or None

    def list_verifiers(self) -> dict[str, ComponentTable]:
        """Return the tables of the verifiers by their names in the settings."""
        if self.verifier is not None:
            return {"verifier": self.verifier}
        return {f"verifiers.{name}": table for name, table in (self.verifiers or {}).items()}

    def create_verifier(self) -> Any:
        """Create the verifier, or several by name; raises `InputError` if that fails."""
        if self.verifier is not None:
            return self.verifier.create()
        return {name: table.create() for name, table in (self.verifiers or {}).items()}

    def create_budget(self) -> Budget:
        """Create the limits on tokens and cost; raises `InputError` if `max_cost` has no prices."""
        return Budget(self.run.max_tokens, self.run.max_cost, self.prices)

    def list_tables(self) -> Mapping[str, GeneratorTable | ComponentTable]:
        """Return the tables of all components by their names in the settings."""
        return self.list_verifiers()

    def record_settings(self) -> dict[str, Any]:
        """Return the settings that affect records and are not in the components' own fingerprints."""
        return {"made_by": {name: _describe_table(one) for name, one in self.list_tables().items()}}


class ImportConfig(_Table):
    """The settings of a collection that an import of answers needs.

    Attributes:
        n: Number of answers of each question; None for the most frequent number.
        source: What the columns of question, reference and metadata are called, as in a dataset.
        generator: `id` names the model and prompt that drew the answers.
    """

    n: _Count | None = None
    source: dict[str, Any] = {}
    generator: dict[str, Any] = {}


class CollectionConfig(ScoringConfig):
    """All settings of a collection, with either `n` or `draws` beside those of `ScoringConfig`.

    Attributes:
        store: SQLite file or database URL of the store.
        n: Number of candidates per prompt; left out with `draws`.
        draws: A rule that stops drawing, such as `lead(3, at_most=10)`; only it can be calibrated then.
        source: Dataset of the prompts.
        generator: Draws candidates.
        labeler: Labels candidates.
        unit: `answers`, or `claims` to score and label the claims of the first answer of each prompt.
        splitter: With claims, splits an answer into claims; by default into sentences.
        answer: Answer extractor, if there is one.
        metadata: Metadata function, if there is one.
    """

    store: str
    n: _Count | None = None
    draws: str | None = None
    source: SourceTable
    generator: GeneratorTable
    labeler: ComponentTable
    unit: Unit = "answers"
    splitter: ComponentTable | None = None
    answer: ComponentTable | None = None
    metadata: ComponentTable | None = None

    @model_validator(mode="after")
    def _check_alternatives(self) -> Self:
        self._check_exactly_one("verifier", "verifiers")
        return self._check_exactly_one("n", "draws", ", such as n = 10 (--n 10)")

    def create_components(self) -> Components:
        """Create the components that draw, score and label.

        Returns:
            The components.

        Raises:
            InputError: If a component cannot be created.
            MissingExtraError: If a model is named and LangChain's `langchain` is not installed.
        """
        verifier, others = self.create_verifier(), self._list_others()
        made: dict[str, Any] = {name: table.create() for name, table in others.items()}
        made |= {f"{name}_id": table.id for name, table in others.items() if name != "metadata"}
        return Components(
            generator=self.generator.create(),
            verifier=VerifierEnsemble(verifier, self.weights) if self.verifier is None else verifier,
            n=self.n,
            draws=self.draws,
            unit=self.unit,
            sampling=self.generator.sampling,
            reasoning=self.generator.reasoning,
            generator_id=self.generator.id,
            verifier_id=self.verifier_id,
            **made,
        )

    def _list_others(self) -> dict[str, ComponentTable]:
        given = {name: getattr(self, name) for name in ("labeler", "splitter", "answer", "metadata")}
        return {name: table for name, table in given.items() if table is not None}

    def list_tables(self) -> Mapping[str, GeneratorTable | ComponentTable]:
        """Return the tables of all components by their names in the settings."""
        return {"generator": self.generator, **super().list_tables(), **self._list_others()}

    def record_settings(self) -> dict[str, Any]:
        """Return the settings that affect records and are not in the components' own fingerprints."""
        # Others may change: the store compares references, and takes metadata and clusters as they are.
        others = {"reference", "metadata", "cluster", "cells", "path", "bad_rows", "limit"}
        columns = self.source.model_dump(mode="json", exclude_defaults=True, exclude=others)
        if self.source.input_cells:
            columns["cells"] = self.source.input_cells
        # Files may move and grow, so they are not compared; the name of a plugin source tells its version.
        source = {"source": self.source.rows.name} if is_plugin_source(self.source.path) else {}
        return {**super().record_settings(), "columns": columns, **source}


def _describe_table(table: GeneratorTable | ComponentTable) -> dict[str, Any]:
    """Describe how a component is made, with its arguments as a digest because they may hold secrets."""
    model_arguments = table.model_arguments if isinstance(table, ComponentTable) else {}
    given = {**table.arguments, **{f"model.{name}": value for name, value in model_arguments.items()}}
    arguments = {name: value for name, value in given.items() if not _CONNECTION_ARGUMENT.search(name)}
    description = {"factory": table.factory, "model": table.model}
    if arguments:
        description["arguments"] = compute_sha256(json.dumps(arguments, sort_keys=True, default=str))
    return {name: value for name, value in description.items() if value is not None}


def read_config(
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> CollectionConfig:
    """Read the TOML configuration file of a collection.

    Args:
        path: The TOML file, whose relative paths start from its folder; None if there is no file.
        overrides: Settings that take precedence, nested like the file; None values are ignored.
        settings: Further settings, each `KEY=VALUE` with dots in the key and a TOML value; text needs no
            quotes.

    Returns:
        The configuration.

    Raises:
        InputError: If the file cannot be read, or a setting is missing, unknown or of a wrong type.
    """
    return read_settings(CollectionConfig, path, overrides or {}, settings)


def read_settings(
    kind: type[_Config],
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, Any],
    settings: Sequence[str],
) -> _Config:
    """Read the settings of a collection that a kind of them has; arguments and errors as in `read_config`."""
    given = {} if path is None else _resolve_paths(_read_toml(Path(path)), Path(path).parent)
    try:
        for update in (overrides, *map(_parse_setting, settings)):
            given = _merge_settings(given, update)
        unused = CollectionConfig.model_fields.keys() - kind.model_fields.keys()
        return kind.model_validate({name: one for name, one in given.items() if name not in unused})
    except ValidationError as error:
        raise InputError(_format_errors(error, "the settings" if path is None else str(path))) from error


def read_components(path: Path) -> tuple[Callable[[str], Any], dict[str, Any]]:
    """Return a collection's function from question to prompt, and its parts as arguments of `CFCRunnable`."""
    config = read_config(path)
    return config.source.render_question, list_served_parts(config.create_components())


def list_served_parts(components: Components) -> dict[str, Any]:
    """Return the components that serving needs, as arguments of `CFCRunnable`."""
    parts = ("generator", "verifier", "answer", "splitter")
    served = (*parts, *(f"{part}_id" for part in parts), "metadata", "sampling", "reasoning")
    return {name: getattr(components, name) for name in served}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        nearest = suggest_file(path) if isinstance(error, FileNotFoundError) else ""
        msg = f"{path} cannot be read: {error.strerror}{nearest}"
        raise InputError(msg) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path} is not TOML: {error}"
        raise InputError(msg) from error


def _resolve_paths(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings with the paths of dataset and store resolved against a folder."""
    source, store = given.get("source"), given.get("store")
    path = source.get("path") if isinstance(source, dict) else None
    if isinstance(source, dict) and isinstance(path, str) and not is_plugin_source(path, folder):
        given = {**given, "source": {**source, "path": str(folder / path)}}
    if isinstance(store, str) and "://" not in store:
        given = {**given, "store": str(folder / store)}
    return given


def _parse_setting(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if equals:
        # A value that is not TOML is read as text: the shell has removed its quotes.
        for line in (text, f"{key}={json.dumps(value)}"):
            with suppress(tomllib.TOMLDecodeError):
                return tomllib.loads(line)
    msg = f"{text!r} is not a setting; expected KEY=VALUE, such as generator.arguments.temperature=0.7"
    raise InputError(msg)


def _merge_settings(given: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for name, value in update.items():
        if isinstance(value, Mapping):
            below = merged.get(name)
            inner = _merge_settings(below if isinstance(below, Mapping) else {}, value)
            if inner or name in merged:
                merged[name] = inner
        elif value is not None:
            merged[name] = value
    return merged


def _format_errors(error: ValidationError, source: str) -> str:
    lines = []
    absent = (one["loc"] for one in error.errors() if one["type"] == "missing")
    if missing := [str(place[0]) for place in absent if len(place) == 1]:
        return (
            f"{source}: missing are {join_names(missing)}; `langchain-cfc init` writes all into collect.toml"
        )
    for detail in error.errors(include_url=False):
        where = ".".join(str(step) for step in detail["loc"])
        message = "there is no such setting" if detail["type"] == "extra_forbidden" else detail["msg"]
        message = message.removeprefix("Value error, ").replace("Input should be", "must be", 1)
        lines.append(f"{where}: {message}" if where else message)
    return f"{source}: {'; '.join(lines)}"
