"""`collect.toml`: everything that a collection is made of, as data."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from langchain_cfc._internal.plugins import load_object, names_no_file
from langchain_cfc.collect.collecting import CallPolicy
from langchain_cfc.collect.costs import Budget, Price
from langchain_cfc.collect.executor import Components
from langchain_cfc.collect.sources import BadRowPolicy, Columns, Examples, Rows, open_rows, read_examples
from langchain_cfc.errors import InputError
from langchain_cfc.labelers import Reads
from langchain_cfc.sampling import SamplingName, resolved

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Arguments that say how a model is reached and not what it answers: a new key makes no other records.
_OF_THE_WAY = re.compile(r"(api_key|secret|password|token|base_url|endpoint|timeout|max_retries)$")
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _file_or_scheme(path: str | Path) -> str | Path:
    # As a path, a name such as `scheme:a//b` would lose a stroke.
    return path if names_no_file(path) else Path(path)


class SourceTable(_Table):
    """Where the prompts come from.

    Attributes:
        path: File of the dataset: .jsonl, .json, .csv or .parquet; or `SCHEME:REST`, see `open_rows`.
        columns: What its columns mean, see `Columns`.
        bad_rows: What to do about rows that cannot be used.
        limit: Only so many of the first rows that can be used; None for all.
    """

    path: Annotated[str | Path, AfterValidator(_file_or_scheme)]
    columns: Columns
    bad_rows: BadRowPolicy = "refuse"
    limit: _Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _gather_columns(cls, given: Any) -> Any:
        """Columns stand beside the path, for people."""
        if not isinstance(given, Mapping) or "columns" in given:
            return given
        columns = {name: value for name, value in given.items() if name in Columns.model_fields}
        return {**{name: value for name, value in given.items() if name not in columns}, "columns": columns}

    @cached_property
    def rows(self) -> Rows:
        """The dataset, opened once: where it has versions, all readings are of the same one."""
        return open_rows(self.path)

    def examples(self) -> Examples:
        """What its columns make of it."""
        return read_examples(self.rows, self.columns, self.bad_rows)


class PartTable(_Table):
    """A part by the import path of its factory.

    Attributes:
        factory: `MODULE:NAME` of a function or class that makes it, or of the part itself.
        arguments: What the factory is called with.
        model: Name of a chat model, such as `openai:gpt-4o`, which the factory gets as its argument `model`.
        model_arguments: What the model is made with.
        id: What the part is called in the records, if it cannot say itself.
    """

    factory: str
    arguments: dict[str, Any] = {}
    model: str | None = None
    model_arguments: dict[str, Any] = {}
    id: str | None = None

    def part(self) -> Any:
        """The part.

        Raises:
            InputError: If it cannot be made.
        """
        if self.model is None:
            return load_object(self.factory, self.arguments)
        model = resolved(self.model, self.model_arguments)
        return load_object(self.factory, {**self.arguments, "model": model})


class LabelerTable(PartTable):
    """The labeler.

    Attributes:
        reads: What it is shown where there is an answer extractor, see `Parts`.
    """

    reads: Reads = "answer"


class GeneratorTable(_Table):
    """What draws candidates: a chat model by its name, or whatever a factory makes.

    Attributes:
        model: Name such as `openai:gpt-4o-mini`, for LangChain's `init_chat_model`.
        factory: `MODULE:NAME` instead, for chains and models of your own.
        arguments: What model or factory is made with, such as `temperature`.
        sampling: How candidates are drawn: by n separate `requests`, or by a `single_request`.
        id: What it is called in the records, if it cannot say itself.
    """

    model: str | None = None
    factory: str | None = None
    arguments: dict[str, Any] = {}
    sampling: SamplingName = "requests"
    id: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> GeneratorTable:
        if (self.model is None) == (self.factory is None):
            msg = f"found {'neither' if self.model is None else 'both'} of model and factory; expected one"
            raise ValueError(msg)
        return self

    def part(self) -> Any:
        """The generator.

        Raises:
            InputError: If it cannot be made.
        """
        if self.model is not None:
            return resolved(self.model, self.arguments)
        return load_object(str(self.factory), self.arguments)


class RunTable(_Table):
    """How calls are made, and what they may take; see `CallPolicy` and `Budget`."""

    concurrency: _Count = 8
    requests_per_second: _Positive | None = None
    tokens_per_second: _Positive | None = None
    attempts: _Count = 5
    timeout: _Positive | None = 120.0
    max_tokens: _Count | None = None
    max_cost: _Positive | None = None


class CollectionConfig(_Table):
    """A collection.

    Attributes:
        store: SQLite file or database URL that holds everything.
        n: Number of candidates for each prompt.
        source: Where the prompts come from.
        generator: What draws candidates.
        verifier: What scores them; or
        verifiers: several by name, the first of which gives the `score`.
        labeler: What labels them.
        answer: Answer extractor, if there is one.
        metadata: Metadata function, if there is one.
        run: How calls are made.
        prices: By the beginning of a model's name, `*` for all others: what a million tokens cost.
    """

    store: str
    n: _Count
    source: SourceTable
    generator: GeneratorTable
    verifier: PartTable | None = None
    verifiers: Annotated[dict[str, PartTable], Field(min_length=1)] | None = None
    labeler: LabelerTable
    answer: PartTable | None = None
    metadata: PartTable | None = None
    run: RunTable = RunTable()
    prices: dict[str, Price] = {}

    @model_validator(mode="after")
    def _check_verifier(self) -> CollectionConfig:
        if (self.verifier is None) == (self.verifiers is None):
            found = "neither" if self.verifier is None else "both"
            msg = f"found {found} of verifier and verifiers; expected one"
            raise ValueError(msg)
        return self

    def parts(self) -> Components:
        """What draws, scores and labels.

        Raises:
            InputError: If one of them cannot be made.
            MissingExtraError: If a model is named and LangChain's `langchain` is not installed.
        """
        several = self.verifiers or {}
        one = self.verifier
        return Components(
            generator=self.generator.part(),
            verifier=one.part()
            if one is not None
            else {name: table.part() for name, table in several.items()},
            labeler=self.labeler.part(),
            n=self.n,
            answer=None if self.answer is None else self.answer.part(),
            metadata=None if self.metadata is None else self.metadata.part(),
            sampling=self.generator.sampling,
            reads=self.labeler.reads,
            generator_id=self.generator.id,
            verifier_id=None if one is None else one.id,
            labeler_id=self.labeler.id,
            answer_id=None if self.answer is None else self.answer.id,
        )

    def pace(self) -> CallPolicy:
        """How calls are made."""
        return CallPolicy(
            self.run.concurrency,
            self.run.requests_per_second,
            self.run.tokens_per_second,
            self.run.attempts,
            self.run.timeout,
        )

    def budget(self) -> Budget:
        """What they may take.

        Raises:
            InputError: If a highest cost is given without prices.
        """
        return Budget(self.run.max_tokens, self.run.max_cost, self.prices)

    def settings(self) -> dict[str, Any]:
        """What makes other records and is not in the parts' own fingerprints, as plain data."""
        tables: Mapping[str, Any] = {
            "generator": self.generator,
            "verifier": self.verifier,
            **{f"verifiers.{name}": table for name, table in (self.verifiers or {}).items()},
            "labeler": self.labeler,
            "answer": self.answer,
            "metadata": self.metadata,
        }
        columns = self.source.columns.model_dump(mode="json", exclude_defaults=True)
        settings = {
            "made_by": {name: _made_by(table) for name, table in tables.items() if table is not None},
            "columns": columns,
        }
        # Files move and grow; what has a scheme says by its name which version it is.
        return {**settings, "source": self.source.rows.name} if names_no_file(self.source.path) else settings


def _made_by(table: GeneratorTable | PartTable) -> dict[str, Any]:
    """What makes a part; its arguments as a digest, for there may be secrets among them."""
    model_arguments = table.model_arguments if isinstance(table, PartTable) else {}
    arguments = {
        name: value
        for name, value in {
            **table.arguments,
            **{f"model.{k}": v for k, v in model_arguments.items()},
        }.items()
        if not _OF_THE_WAY.search(name)
    }
    said = {"factory": table.factory, "model": table.model}
    if arguments:
        written = json.dumps(arguments, sort_keys=True, default=str)
        said["arguments"] = "sha256:" + hashlib.sha256(written.encode()).hexdigest()
    return {name: value for name, value in said.items() if value is not None}


def read_config(
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> CollectionConfig:
    """Read a configuration file.

    Args:
        path: The TOML file; None where everything is given otherwise. The paths in it start from its folder.
        overrides: What takes precedence, nested like the file; None values say nothing.
        settings: Further ones, each `KEY=VALUE` with dots in the key and a TOML value; text needs no quotes.

    Returns:
        The configuration.

    Raises:
        InputError: If the file cannot be read, or a setting is missing, unknown or of another kind.
    """
    given = {} if path is None else _from_folder(_parsed(Path(path)), Path(path).parent)
    try:
        for over in (overrides or {}, *map(_setting, settings)):
            given = _merged(given, over)
        return CollectionConfig.model_validate(given)
    except ValidationError as error:
        raise InputError(_explained(error, "the settings" if path is None else str(path))) from error


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise InputError(msg) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path} is not TOML: {error}"
        raise InputError(msg) from error


def _from_folder(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with its paths made from where the file is."""
    source, store = given.get("source"), given.get("store")
    path = source.get("path") if isinstance(source, dict) else None
    if isinstance(source, dict) and isinstance(path, str) and not names_no_file(path, folder):
        given = {**given, "source": {**source, "path": str(folder / path)}}
    if isinstance(store, str) and "://" not in store:
        given = {**given, "store": str(folder / store)}
    return given


def _setting(written: str) -> dict[str, Any]:
    key, equals, value = written.partition("=")
    if equals:
        # Text as it is where the value is no TOML, for a shell has taken its quotes off.
        for line in (written, f"{key}={json.dumps(value)}"):
            with suppress(tomllib.TOMLDecodeError):
                return tomllib.loads(line)
    msg = f"{written!r} is no setting; expected KEY=VALUE, such as generator.arguments.temperature=0.7"
    raise InputError(msg)


def _merged(given: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for name, value in over.items():
        if isinstance(value, Mapping):
            below = merged.get(name)
            inner = _merged(below if isinstance(below, Mapping) else {}, value)
            if inner or name in merged:
                merged[name] = inner
        elif value is not None:
            merged[name] = value
    return merged


def _explained(error: ValidationError, source: str) -> str:
    """All that is wrong, a line each."""
    lines = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(step) for step in detail["loc"] if step != "columns")
        message = detail["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {message}" if where else message)
    return f"{source}: " + (lines[0] if len(lines) == 1 else "\n  " + "\n  ".join(lines))
