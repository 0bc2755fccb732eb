"""Propose settings for a collection, from a dataset and a few answers that the model gives.

`build_bot` uses them at once, and `langchain-cfc init` writes them to a file, so that both can go on with the
store of the other.

The proposal rests on two observations: which labelers can read all references, and how they label the
answers. Among the labelers that fit, the strictest one is chosen unless a looser one calls more answers
correct. Where the references are a closed set of answers, such as yes and no, no labeler is tried that finds
one of them anywhere in a sentence: "there is no doubt" would be labelled as no. The verifier uses
log-probabilities if the model returns them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable

from langchain_cfc.errors import CFCError, CollectionError, DrawError, InputError, LabelerError
from langchain_cfc.execution import describe_error, run_flow
from langchain_cfc.labelers import LabelerInput
from langchain_cfc.labelers.matching import list_aliases
from langchain_cfc.labelers.verdicts import Member, VerdictExtractor, write_member
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate, Sampler, UsageRecorder, resolve_generator
from langchain_cfc.sampling.token_counts import read_usage
from langchain_cfc.support.normalisation import normalise_answer
from langchain_cfc.support.plugins import is_plugin_source, load_object
from langchain_cfc.support.text import escape_controls_in_json, join_names, pluralize
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.failures import ends_run, is_transient
from langchain_cfc_collect.sources.columns import References
from langchain_cfc_collect.sources.detection import format_key
from langchain_cfc_collect.sources.files import Rows
from langchain_cfc_collect.sources.questions import Table, read_table
from langchain_cfc_collect.sources.templates import parse_template

# The variable of a prompt for the question.
QUESTION = "question"
N_TRIAL_ANSWERS = 5
# Of a closed set of answers, each member is tried, so that the labels of each can be looked at.
_TRIALS_PER_MEMBER = 3
_MAX_MEMBERS = 20
# A small set of references is taken for closed only if its members recur this often on average.
_RECURRENCE = 5
# Complete sets of two answers, of which a dataset may hold one only.
_PAIRS: tuple[tuple[Member, Member], ...] = ((True, False), ("yes", "no"), ("true", "false"))
# Limit on the tokens of the trial answers, and the smallest limit that is proposed.
_TRIAL_TOKENS = 256
# Only five answers are seen: a model that mostly gives one word may give a sentence now and then, and a right
# answer that is cut off is labelled wrong.
_MIN_TOKEN_LIMIT = 64
# The proposed limit is at least this many times the longest trial answer.
_TOKEN_LIMIT_FACTOR = 4
# Fewer than there are on average, so that the limit is rather too high.
_CHARACTERS_PER_TOKEN = 3
# Sampling settings in the order in which they are tried: models refuse settings that they do not support.
_SETTINGS: tuple[Mapping[str, Any], ...] = ({"temperature": 0.7, "logprobs": True}, {"temperature": 0.7}, {})
_LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104 - compared, never bound
_PLACEHOLDER_KEY = "none"


def spread_examples(examples: Sequence[Example], count: int) -> list[Example]:
    """Return at most `count` examples, or three of each member of a closed set, spread evenly."""
    members = find_members(examples)
    if members is None:
        return _spread(examples, count)
    read = VerdictExtractor(members)
    groups: dict[str | None, list[Example]] = {}
    for one in examples:
        groups.setdefault(read.find_member(list_aliases(one.reference)[0]), []).append(one)
    each = max(_TRIALS_PER_MEMBER, count // len(groups))
    return [one for group in groups.values() for one in _spread(group, each)]


def _spread(examples: Sequence[Example], count: int) -> list[Example]:
    return list(examples[:: max(1, len(examples) // count)][:count])


def propose_prompt(
    generator: Any, examples: Sequence[Example], choices: Sequence[LabelerChoice]
) -> str | None:
    """Return a prompt that asks for the answer alone, which labelers read most reliably.

    None for questions that are not text, answers that are JSON, and a chain, which is used as it is.
    """
    bound = getattr(generator, "bound", generator)
    is_bare = isinstance(bound, BaseChatModel) and "tools" not in getattr(generator, "kwargs", {})
    has_texts = all(isinstance(one.input, str) for one in examples)
    if (
        not choices
        or choices == [_EXACT_MATCH]
        or not has_texts
        or not (isinstance(generator, str) or is_bare)
    ):
        return None
    what = "letter of the right option" if choices == [_MULTIPLE_CHOICE] else "answer"
    return f"Give the {what} alone: {{{QUESTION}}}"


# The model


def parse_model(name: str, base_url: str | None) -> tuple[str, dict[str, Any]]:
    """Return the model that a user names as `init_chat_model` takes it, and how to reach it.

    The latter never holds a real key. Clients insist on a key: a server on this machine gets a placeholder,
    so that it never sees the key of another service; other servers get `OPENAI_API_KEY`, or the placeholder
    if that is not set.
    """
    if base_url is None:
        return name, {}
    try:
        parts = urlsplit(base_url)
    except ValueError:  # such as an open bracket
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        msg = f"{base_url!r} is not the URL of a server; expected a URL such as http://127.0.0.1:8080/v1"
        raise InputError(msg)
    if parts.username or parts.password or parts.query:
        msg = "the URL holds a user, a password or a query, which would be written to a file"
        raise InputError(msg)
    url = base_url.rstrip("/") + ("/v1" if parts.path in {"", "/"} else "")
    needs_none = parts.hostname in _LOCAL_HOSTS or not os.environ.get("OPENAI_API_KEY")
    key = {"api_key": _PLACEHOLDER_KEY} if needs_none else {}
    return name if name.startswith("openai:") else f"openai:{name}", {"base_url": url, **key}


def add_prompt(prompt: str | None, model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """Return the chain that puts a prompt around each question, which its only variable stands for."""
    return model if prompt is None else PromptTemplate.from_template(prompt) | model


@dataclass(frozen=True)
class TrialAnswer:
    """Answer of the model to one example."""

    example: Example
    candidate: DrawnCandidate

    @property
    def tokens(self) -> int:
        """Number of tokens of the answer, estimated if the model does not report it."""
        usage = read_usage(getattr(self.candidate.message, "usage_metadata", None))
        return int(usage.get("output_tokens", len(self.candidate.text) // _CHARACTERS_PER_TOKEN))

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer carries token log-probabilities."""
        metadata = getattr(self.candidate.message, "response_metadata", {})
        return bool((metadata.get("logprobs") or {}).get("content"))


def draw_answers(
    generator: Any,
    prompt: str | None,
    connection: Mapping[str, Any],
    examples: Sequence[Example],
    recorder: UsageRecorder | None = None,
) -> tuple[Mapping[str, Any], list[TrialAnswer]]:
    """Draw one answer per example, from a model given by name with the first settings that it accepts.

    Returns these settings and the answers, and records the usage. Raises `CFCError` if the model cannot be
    created or reached, or its answers cannot be read.
    """
    is_named = isinstance(generator, str)
    for settings in (attempts := _SETTINGS if is_named else ({},)):
        made = {**connection, "max_tokens": _TRIAL_TOKENS, **settings}
        try:
            model = resolve_generator(generator, made)
            sampler = Sampler(add_prompt(prompt, model), "requests")
            answers = []
            for example in examples:
                (candidate,) = run_flow(sampler.draw_steps(example.input, 1, {}, recorder))
                answers.append(TrialAnswer(example, candidate))
        except CFCError as error:
            if settings is not attempts[-1] and not (is_transient(error) or ends_run(error)):
                continue
            if not isinstance(error, DrawError):
                raise
            name = generator if is_named else model.get_name()
            where = f" at {connection['base_url']}" if connection else ""
            cause = " ".join(describe_error(error.__cause__ or error).split())
            msg = f"{name} does not answer{where}: {cause}"
            raise CollectionError(msg) from error
        else:
            return settings, answers
    raise AssertionError  # the last attempt returns or raises


# The labeler


def create_part(table: Mapping[str, Any]) -> Any:
    """Create the component that a table describes."""
    return load_object(table["factory"], table.get("arguments"))


@dataclass(frozen=True)
class LabelerChoice:
    """Labeler of this package, the references that it reads, and the extractor for longer answers."""

    table: Mapping[str, Any]  # factory and arguments
    reads: str
    extractor: Mapping[str, Any] | None = None  # its table; one without arguments has an id


_MULTIPLE_CHOICE = LabelerChoice(
    {"factory": "MultipleChoice"}, "letters", {"factory": "extract_choice", "id": "extract_choice"}
)
_NUMERIC_MATCH = LabelerChoice(
    {"factory": "NumericMatch"}, "numbers", {"factory": "extract_number", "id": "extract_number"}
)
_EXACT_MATCH, _MATCH_WITHOUT_ARTICLE, _MATCH_ANYWHERE = (
    LabelerChoice({"factory": "NormalisedMatch", **more}, "texts")
    for more in ({}, {"arguments": {"articles": "en"}}, {"arguments": {"anywhere": True}})
)
# A letter, or a zero that numbers lack and codes need.
_NO_NUMBER = re.compile(r"[^\W\d_]|(?<![\d.,])0\d")


def list_labelers(examples: Sequence[Example]) -> list[LabelerChoice]:
    """Return suitable labelers that can read every reference, strictest first; `InputError` if none can."""
    references = [one.reference for one in examples]
    if _find_problem(_MULTIPLE_CHOICE, references) is None:
        return [_MULTIPLE_CHOICE]
    members = find_members(examples)
    if members is not None:
        given = {"arguments": {"members": members}}
        reads = f"one of {join_names([write_member(one) for one in members])}"
        extractor = {"factory": "VerdictExtractor", **given}
        return [LabelerChoice({"factory": "ClosedSet", **given}, reads, extractor)]
    if _find_problem(_NUMERIC_MATCH, references) is None and not any(map(_is_more_than_number, references)):
        return [_NUMERIC_MATCH]
    if problem := _find_problem(_EXACT_MATCH, references):
        msg = (
            f"{problem}. Correct the reference, or write the file by hand with a labeler of your own "
            "(docs/labelers.md)"
        )
        raise InputError(msg)
    is_text = all(isinstance(one, str) for given in references for one in list_aliases(given))
    return [_EXACT_MATCH, _MATCH_WITHOUT_ARTICLE, _MATCH_ANYWHERE] if is_text else [_EXACT_MATCH]


def find_members(examples: Sequence[Example]) -> list[Member] | None:
    """Return the closed set of answers that the references are from; None if they are from no such set.

    A set is closed if it consists of booleans, of yes and no, of true and false or of both 0 and 1, or if it
    has at most 20 members that are not numbers and recur five times on average.
    """
    listed = [one.reference for one in examples]
    values = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in listed]
    if not all(isinstance(one, (str, int)) for one in values):
        return None
    found: dict[str, Member] = {}
    for one in values:
        found.setdefault(normalise_answer(write_member(one)), one)
    if set(found) == {"0", "1"}:
        return [found["1"], found["0"]]
    for pair in _PAIRS:
        is_of_kind = all(isinstance(one, type(pair[0])) for one in values)
        if is_of_kind and {write_member(one) for one in pair} >= set(found):
            return list(pair)
    is_small = 1 < len(found) <= _MAX_MEMBERS and len(values) >= _RECURRENCE * len(found)
    return list(found.values()) if is_small and not any(map(_is_number, found)) and "" not in found else None


def _is_number(text: str) -> bool:
    return _find_problem(_NUMERIC_MATCH, [text]) is None


def _find_problem(choice: LabelerChoice, references: Iterable[Any]) -> str | None:
    """Return why a labeler cannot read the first reference that it cannot read; None if it reads all."""
    labeler = create_part(choice.table)
    try:
        for one in references:
            labeler.read_reference(one)
    except LabelerError as error:
        return str(error)
    return None


def _is_more_than_number(reference: Any) -> bool:
    """Return whether a reference is more than a number, such as `Apollo 11`, `5 km` or the code `007`."""
    return any(isinstance(one, str) and _NO_NUMBER.search(one) for one in list_aliases(reference))


def label_answers(choice: LabelerChoice, answers: Sequence[TrialAnswer]) -> list[bool]:
    """Return for each answer whether a labeler calls it correct."""
    labeler = create_part(choice.table)
    labels: list[bool] = []
    for answer in answers:
        example = answer.example
        given = LabelerInput(prompt=example.input, reference=example.reference, candidates=[answer.candidate])
        labels += map(bool, labeler.invoke(given))
    return labels


# The proposal


@dataclass(frozen=True)
class Proposal:
    """Parts that suit a dataset and a few answers of the model, with reasons.

    Attributes:
        tables: Tables of a configuration: the prompt and the settings of the `generator`, `verifier`,
            `labeler` if there was a choice and, if an extractor is needed, `answer`.
        reasons: One sentence for each explained setting, by its name.
        answers: The answers.
        correct: The labeler's label of each answer.
        usage: What the answers took.
    """

    tables: Mapping[str, Mapping[str, Any]]
    reasons: Mapping[str, str]
    answers: Sequence[TrialAnswer]
    correct: Sequence[bool]
    usage: Usage


def propose(
    generator: Any,
    examples: Sequence[Example],
    choices: Sequence[LabelerChoice],
    *,
    prompt: str | None,
    connection: Mapping[str, Any] | None = None,
) -> Proposal:
    """Ask the model a few questions, and choose what suits its answers and the references; see the module.

    If the loosest labeler calls no answer correct, a few more questions are asked.

    Args:
        generator: The model, its name, or a chain, which is used as it is.
        examples: The dataset.
        choices: The labelers that can read all references, strictest first; none if the labeler is given.
        prompt: Prompt around each question; None for none.
        connection: How to reach a model that is given by name.

    Returns:
        The proposal.

    Raises:
        CFCError: If the model cannot be called.
    """
    recorder = UsageRecorder()
    ask = partial(draw_answers, generator, prompt, connection or {}, recorder=recorder)
    settings, answers = ask(spread_examples(examples, N_TRIAL_ANSWERS))
    if choices and not any(label_answers(choices[-1], answers)):
        asked = {one.example.id for one in answers}
        others = spread_examples(examples, 2 * N_TRIAL_ANSWERS)
        if more := [one for one in others if one.id not in asked][:N_TRIAL_ANSWERS]:
            answers += ask(more)[1]
    usage = Usage.from_recorder(recorder)
    has_logprobs = all(one.has_logprobs for one in answers)
    tables: dict[str, dict[str, Any]] = {"generator": {} if prompt is None else {"prompt": prompt}}
    reasons: dict[str, str] = {}
    if isinstance(generator, str):
        cut_off = sum(one.candidate.no_answer in {"cut_off", "reasoning_only"} for one in answers)
        longest = _TRIAL_TOKENS if cut_off else max(one.tokens for one in answers)
        wanted = max(_MIN_TOKEN_LIMIT, _TOKEN_LIMIT_FACTOR * longest)
        kept = {name: one for name, one in settings.items() if has_logprobs or name != "logprobs"}
        # The next power of two.
        tables["generator"]["arguments"] = {**kept, "max_tokens": 1 << (wanted - 1).bit_length()}
        reasons["generator.arguments"] = (
            f"{pluralize(cut_off, 'answer')} did not end within {longest} tokens"
            if cut_off
            else f"the longest answer took {pluralize(longest, 'token')}"
        )
    verifier, why = (
        ("SequenceProbability", "log-probabilities: the score of an answer costs no further call")
        if has_logprobs
        else (
            "SelfConsistency",
            "no log-probabilities: an answer is scored by how many candidates agree with it",
        )
    )
    tables["verifier"] = {"factory": verifier}
    reasons["verifier.factory"] = f"the model returns {why}"
    if not choices:
        return Proposal(tables, reasons, answers, (), usage)
    labels = [label_answers(one, answers) for one in choices]
    found = max(labels, key=sum)
    choice = choices[labels.index(found)]
    tables["labeler"] = dict(choice.table)
    rest = [
        f"{sum(one)} by {format_part(other.table)}"
        for one, other in zip(labels, choices, strict=True)
        if other is not choice
    ]
    reasons["labeler.factory"] = (
        f"all references are {choice.reads}; it labels {sum(found)} of {len(found)} trial answers correct"
    ) + (f" (others: {', '.join(rest)})" if rest else "")
    # The letter or number must be extracted from an answer of more than one word.
    if choice.extractor is not None and any(len(one.candidate.text.split()) > 1 for one in answers):
        tables["answer"] = dict(choice.extractor)
        reasons["answer.factory"] = "some answers hold more than one word"
    return Proposal(tables, reasons, answers, found, usage)


def format_part(table: Mapping[str, Any]) -> str:
    """Format the component that a table describes as it is written in Python."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in table.get("arguments", {}).items())
    return f"{table['factory'].rpartition(':')[2]}{f'({arguments})' if arguments else ''}"


def name_store(path: str) -> str:
    """Return the name of the store for a dataset, which `init` and `build_bot` share."""
    stem = re.sub(r"\W+", "-", Path(path.rpartition(":")[2]).stem).strip("-")
    return f"{stem or 'collection'}.db"


def read_questions(
    rows: Rows, question: str | None, reference: References | None, prompt: str | None
) -> tuple[Table, str | None]:
    """Read the questions for a prompt; return them, and the prompt around each question if it is one.

    A prompt that names one column is part of the bot, which is asked the bare question. One that names
    several makes each input of their values.
    """
    try:
        names = () if prompt is None else parse_template(prompt).required
    except ValueError as error:
        msg = f"the prompt {prompt!r} cannot be used: {error}"
        raise InputError(msg) from error
    if len(names) > 1:
        return read_table(rows, question, reference, prompt), None
    if prompt is None or names == (QUESTION,):
        around = prompt
    else:
        question = names[0]
        around = prompt.replace(f"{{{question}}}", f"{{{QUESTION}}}")
    return read_table(rows, question, reference), None if around == f"{{{QUESTION}}}" else around


def make_settings(
    found: Proposal,
    table: Table,
    *,
    path: str,
    model: str,
    connection: Mapping[str, Any],
    n: int,
    folder: Path,
) -> dict[str, Any]:
    """Return the content of `collect.toml` in a folder, as plain data."""
    given = path if is_plugin_source(path) else os.path.relpath(path, folder)
    source = {
        "path": given,
        **table.columns.model_dump(mode="json", exclude_defaults=True, exclude_none=True),
    }
    if table.bad_rows:
        source["bad_rows"] = "set_aside"
    generator = {"model": model, **found.tables["generator"]}
    generator["arguments"] = {**connection, **generator["arguments"]}
    return {
        "store": name_store(path),
        "n": n,
        "source": source,
        **found.tables,
        "generator": generator,
    }


def format_toml(settings: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Return settings as TOML, with the reasons as comments."""
    tables = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    lines = [f"{name} = {_to_toml(value)}" for name, value in settings.items() if name not in tables]
    for table, values in tables.items():
        lines += ["", f"[{table}]"]
        for name, value in values.items():
            reason = reasons.get(f"{table}.{name}")
            lines += [f"# {reason}"] if reason else []
            lines.append(f"{name} = {_to_toml(value)}")
    return "\n".join(lines) + "\n"


def _to_toml(value: Any) -> str:
    """Format a value as TOML, which writes texts, numbers and lists as JSON does."""
    if isinstance(value, Mapping):
        parts = (f"{format_key(name)} = {_to_toml(inner)}" for name, inner in value.items())
        return f"{{ {', '.join(parts)} }}"
    return escape_controls_in_json(json.dumps(value, ensure_ascii=False))
