"""`AnswerTable`: answers that another tool drew, with scores and labels where it has some.

What is read is recognised by the columns of the first row, in this order:

- `samples_*.jsonl` of lm-evaluation-harness: the question is a column of `doc`, or else the whole prompt; the
  answers are `resps`, the reference is `target`, and the label is the metric if each row has one answer.
- Results of uqlm, the table that `to_df` makes: `prompt` and `sampled_responses`.
- Results of promptfoo (`--output results.json`): the question is a variable, or else the whole prompt; the
  answer is `response.output`, the reference a variable, or what a test compares with; the label is `success`
  unless a test limits time or cost.
- Any table with a row for each answer or each question, by usual names of columns.

A list in the column of answers holds several answers, and rows of one question belong together.

Only answers that were drawn alike can calibrate. So uqlm's first response, which has a temperature of its
own, is left out, and a file with answers of several models is refused. Scores of promptfoo and metrics are
grades that know the reference, so they are no scores.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage
from pydantic import ValidationError

from langchain_cfc.errors import DrawError, InputError, RecordError
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.candidates import make_candidate
from langchain_cfc.sampling.classification import classify_ending
from langchain_cfc.support.json_text import (
    check_regular_file,
    parse_object,
    read_lines,
    short_repr,
)
from langchain_cfc.support.text import join_names, pluralize
from langchain_cfc_collect.human import read_label
from langchain_cfc_collect.sources.columns import Columns, parse_cell
from langchain_cfc_collect.sources.detection import (
    QUESTION_NAMES,
    REFERENCE_NAMES,
    find_usual_name,
    read_sample,
)
from langchain_cfc_collect.sources.files import BadRow, Row, Rows, open_rows, to_plain

# Usual column names, the likeliest first; case does not matter. Those of lists come last.
_ANSWER_NAMES = (
    *("response", "completion", "prediction", "generation", "generated_text", "model_answer"),
    *("model_output", "output", "answer", "text", "candidate", "sample", "sampled_responses", "responses"),
    *("completions", "predictions", "generations", "outputs", "samples", "candidates"),
)
_USUAL_NAMES = {
    "answer": _ANSWER_NAMES,
    "score": ("score", "scores", "uncertainty", "confidence", "confidences"),
    "label": ("correct", "is_correct", "label", "labels", "passed", "pass", "success"),
}
_CONFIDENCES = ("confidence", "confidences")
# Assertions of promptfoo whose value is the right answer.
_ASSERTIONS = (
    *("equals", "contains", "icontains", "contains-any", "icontains-any"),
    *("similar", "factuality", "model-graded-factuality"),
)
# Those that say nothing about the answer.
_LIMITS = ("latency", "cost")
_MOST_LISTED = 5


class Sample(NamedTuple):
    """One answer, with its score and its label if they are known."""

    draw: DrawnCandidate
    score: float | None
    label: bool | None


@dataclass(frozen=True)
class AnswerTable:
    """A table of answers that another tool drew, with what its columns mean.

    Attributes:
        rows: Its rows.
        format: What wrote it.
        parts: The columns of answer (or lists of answers), score and label, None or empty for none. Scores
            are in [0, 1], smaller is better unless their column is named `confidence`.
        columns: The columns of question, reference and metadata.
        has_lists: Whether each cell of the answers is text that holds a list of them, as in CSV.
    """

    rows: Rows
    format: str
    parts: Mapping[str, str | None]
    columns: Columns
    has_lists: bool

    @property
    def file(self) -> str:
        """The name of the file."""
        return Path(self.rows.name).name

    def describe(self) -> str:
        """Return in one line what was recognised."""
        answer, score, known = self.parts["answer"], self.parts["score"], self.columns
        parts = {
            "question": known.input or known.prompt or known.inputs,
            "answer": f"{answer} (lists)" if self.has_lists else answer,
            "reference": known.reference,
            "score": score and f"{score} ({'larger' if _is_confidence(score) else 'smaller'} is better)",
            "label": self.parts["label"],
        }
        read = ", ".join(f"{part} from {one}" for part, one in parts.items() if one)
        return f"{self.file}: {self.format}: {read}"

    def read_answers(self, row: Mapping[str, Any], number: int) -> list[Sample]:
        """Return the answers of a row, with their scores and labels; raise `RecordError` if it has none."""
        source = self.rows.name
        made: list[list[Any]] = []
        for part in ("answer", "score", "label"):
            column = self.parts[part]
            if not column:
                made.append([None] * len(made[0]))
                continue
            value = self.columns.read_value(row, column, source, number)
            try:
                if _is_written_list(value) and (self.has_lists or column.endswith("s")):
                    value = parse_cell(value, "json")  # a list in a cell of text
                made.append([_read_cell(part, slot, one) for slot, one in enumerate(_unpack(value))])
            except (ValueError, DrawError) as error:
                raise RecordError(source, number, column, str(error)) from error
            if len(made[-1]) != len(made[0]):
                answers = pluralize(len(made[0]), "answer")
                problem = f"found {len(made[-1])} values for {answers}; expected one for each"
                raise RecordError(source, number, column, problem)
        if _is_confidence(self.parts["score"]):
            made[1] = [None if one is None else 1.0 - one for one in made[1]]
        return list(map(Sample, *made))


def holds_records(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as one of records does; raise a `RecordError` if there is none."""
    path = Path(path)
    check_regular_file(path)
    line = next(iter(read_lines(path)), (1, b""))[1]
    try:
        names = set(parse_object(line, str(path), 1))
    except RecordError:
        return False
    return {"format", "version", "n"} <= names or (
        {"id", "input"} <= names and bool({"candidates", "claims"} & names)
    )


def gather_answers(tables: Sequence[AnswerTable], n: int | None) -> list[tuple[Example, list[Sample]]]:
    """Return the first n answers of each question, whose rows may stand in several tables.

    `n` is the most frequent number of answers by default. Raises `RecordError` if a row cannot be read, and
    `InputError` if a question has fewer answers.
    """
    found: dict[str, tuple[Example, list[Sample]]] = {}
    for table in tables:
        for number, row in table.rows:  # type: ignore[misc]  # none is bad
            example = table.columns.create_example(row, table.rows.name, number)
            first, gathered = found.setdefault(example.id, (example, []))
            if first != example:
                problem = (
                    f"the question {example.id!r} stands in an earlier row with another input or metadata"
                )
                raise RecordError(table.rows.name, number, "", problem)
            gathered += table.read_answers(row, number)
    prompts = list(found.values())
    counts = Counter(len(samples) for _, samples in prompts)
    wanted = max(counts, key=lambda size: (counts[size], size)) if n is None else n
    if wanted < 1:
        msg = f"n is {wanted}; expected at least 1 answer of each question"
        raise InputError(msg)
    few = [(example, len(samples)) for example, samples in prompts if len(samples) < wanted]
    if few:
        listed = ", ".join(f"{short_repr(one.input)} has {size}" for one, size in few[:_MOST_LISTED])
        more = f" and {len(few) - _MOST_LISTED} more" if len(few) > _MOST_LISTED else ""
        least = min(counts)
        fewer = f", or use {least} of each: n={least} (on the command line --set n={least})" if least else ""
        msg = (
            f"{len(few)} of {pluralize(len(prompts), 'question')} have fewer than {wanted} answers: {listed}"
            f"{more}. Each needs the same number: leave these out, draw what is missing{fewer}"
        )
        raise InputError(msg)
    return [(example, samples[:wanted]) for example, samples in prompts]


# Tables

# Rows with their format, and the names of columns that are not to be guessed, empty for none, by part.
_Table: TypeAlias = tuple[Rows, str, Mapping[str, str | None]]


def _open_table(source: Any) -> _Table:
    """Open a file, rows or a DataFrame, with the columns of the tool that wrote it."""
    rows = open_rows(list(source) if isinstance(source, Iterator) else source)  # they are read more than once
    sample = read_sample(rows)
    names = set(sample[0])
    if {"doc", "target"} <= names and names & {"resps", "filtered_resps"}:
        return _open_harness(rows, sample)
    if {"vars", "response", "testCase"} <= names or {"vars", "promptIdx"} <= names:
        return _open_promptfoo(rows, sample)
    rows = _prepare_rows(rows, lambda row, _: row)
    if "sampled_responses" in names:
        # Its scores and the user's labels are of the first response. `to_dict` of uqlm 0.6 loses the prompts.
        what = "results of uqlm, without its first responses"
        asked = next((one for one in ("prompt", "prompts") if one in names), "")
        columns = {"question": asked, "answer": "sampled_responses", "score": "", "label": ""}
        return rows, what, columns
    return rows, "a table of answers", {}


def _prepare_rows(rows: Rows, prepare: Callable[[Mapping[str, Any], int], Mapping[str, Any] | None]) -> Rows:
    """Return rows that a function prepares, given each with its number, without those that it leaves out.

    Reading ends with a `RecordError` at a bad row, or at one that the function refuses.
    """

    def read() -> Iterator[Row | BadRow]:
        for row in rows:
            if isinstance(row, BadRow):
                raise RecordError(rows.name, row.number, row.field, row.problem)
            prepared = prepare(to_plain(row[1]), row[0])
            if prepared is not None:
                yield row[0], prepared

    return Rows(rows.name, rows.unit, read)


def _open_harness(rows: Rows, sample: Sequence[Mapping[str, Any]]) -> _Table:
    docs = [row["doc"] for row in sample if isinstance(row.get("doc"), Mapping)]
    question = find_usual_name(docs, QUESTION_NAMES, "target") if docs else None
    answer = "resps" if "resps" in sample[0] else "filtered_resps"
    chosen = sample[0].get("filter")
    metrics = sample[0].get("metrics") or []
    has_one = all(len(_unpack(row.get(answer))) == 1 for row in sample)
    label = str(metrics[0]) if has_one and isinstance(metrics, list) and len(metrics) == 1 else ""
    if not all(_is_label(row.get(label)) for row in sample):
        label = ""
    score = "scores" if "scores" in sample[0] else ""

    def prepare(row: Mapping[str, Any], number: int) -> Mapping[str, Any] | None:
        if row.get("filter") != chosen:  # the same answers, read by another filter
            return None
        prompt, second = _read_arguments(row.get("arguments"))
        texts = _unpack(row.get(answer))
        if isinstance(second, str) or not texts or not all(isinstance(one, str) for one in texts):
            problem = (
                f"found {short_repr(row.get(answer))}; expected texts that a model generated: likelihoods of "
                "given choices are no answers. Use a task with output_type generate_until"
            )
            raise RecordError(rows.name, number, answer, problem)
        return {**row, answer: texts, "prompt": _read_prompt(prompt)}

    asked = "prompt" if question is None else f"doc.{question}"
    columns = {"question": asked, "answer": answer, "reference": "target", "score": score, "label": label}
    return _prepare_rows(rows, prepare), "samples of lm-evaluation-harness", columns


def _unpack(value: Any) -> list[Any]:
    """Return the values of a cell, one or a list of them, which tools may put into lists of one."""
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return value if isinstance(value, list) else [value]


def _read_arguments(arguments: Any) -> tuple[Any, Any]:
    """Return the prompt of the harness's first request, and its second argument: settings, or a choice."""
    first = next(iter(arguments.values()), None) if isinstance(arguments, Mapping) else arguments
    while isinstance(first, list) and len(first) == 1:
        first = first[0]
    values = list(first.values()) if isinstance(first, Mapping) else first
    prompt, second = (*values, None, None)[:2] if isinstance(values, list) else (values, None)
    return prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt, second


def _read_prompt(prompt: Any) -> Any:
    """Return the messages that a prompt lists as JSON text, the text of a single one, or the prompt."""
    try:
        messages = parse_cell(prompt, "json") if _is_written_list(prompt) else None
    except ValueError:
        return prompt
    if not messages or not all(isinstance(one, Mapping) and "role" in one for one in messages):
        return prompt
    return messages[0].get("content") if len(messages) == 1 else messages


def _open_promptfoo(rows: Rows, sample: Sequence[Mapping[str, Any]]) -> _Table:
    variables = [row["vars"] if isinstance(row.get("vars"), Mapping) else {} for row in sample]
    found = find_usual_name(variables, REFERENCE_NAMES)
    question = find_usual_name(variables, QUESTION_NAMES, found or "")
    is_asserted = found is None and None not in map(_find_asserted, sample)
    reference = "asserted" if is_asserted else f"vars.{found}" if found else ""
    drawn_by: dict[tuple[str, str], int] = {}

    def prepare(row: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        provider = row.get("provider")
        name = provider.get("id") if isinstance(provider, Mapping) else provider
        drawn_by.setdefault((str(name), str(row.get("promptIdx"))), number)
        if len(drawn_by) > 1:
            listed = " and ".join(f"{who} by prompt {which}" for who, which in drawn_by)
            problem = f"found answers of {listed}; expected those of one model by one prompt: filter the file"
            raise RecordError(rows.name, number, "provider", problem)
        if not isinstance(row.get("response"), Mapping) or "output" not in row["response"]:
            problem = f"no answer: {short_repr(row.get('error'))}; leave this result out, or run it again"
            raise RecordError(rows.name, number, "response.output", problem)
        prompt = row.get("prompt")
        output = row["response"]["output"]  # a list is one structured answer here
        reply = AIMessage("", response_metadata={"finish_reason": row["response"].get("finishReason")})
        if classify_ending(reply) is not None or isinstance(output, list):
            output = make_candidate(0, output, reply=reply)
        asked = _read_prompt(prompt.get("raw") if isinstance(prompt, Mapping) else prompt)
        return {**row, "response": {"output": [output]}, "prompt": asked, "asserted": _find_asserted(row)}

    checks = [_list_checks(row) for row in sample]
    is_graded = all(checks) and not any(one.get("type") in _LIMITS for several in checks for one in several)
    label = "success" if is_graded else ""
    asked = "prompt" if question is None else f"vars.{question}"
    columns = {"question": asked, "answer": "response.output", "reference": reference}
    return _prepare_rows(rows, prepare), "results of promptfoo", {**columns, "score": "", "label": label}


def _find_asserted(row: Mapping[str, Any]) -> Any:
    """Return the right answer that a test of promptfoo compares with; None if there is not exactly one."""
    values = [one.get("value") for one in _list_checks(row) if one.get("type") in _ASSERTIONS]
    return values[0] if len(values) == 1 else None


def _list_checks(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    test = row.get("testCase")
    checks = test.get("assert") if isinstance(test, Mapping) else None
    return [one for one in checks if isinstance(one, Mapping)] if isinstance(checks, list) else []


# Columns


def open_answers(source: Any, given: Mapping[str, Any], parts: Mapping[str, str | None]) -> AnswerTable:
    """Open a table of answers with its columns: those given, those that its tool writes, or by usual names.

    `given` are the fields of `Columns` that are not to be guessed, `parts` the columns of answer, score and
    label; for these, and the errors, see `import_samples`.
    """
    rows, form, known = _open_table(source)
    sample = read_sample(rows)
    found = {**known, **{part: one for part, one in parts.items() if one is not None}}
    found = {**{part: _find_part(sample, part, given) for part in _USUAL_NAMES if part not in found}, **found}
    answer = found["answer"]
    left = [{name: one for name, one in row.items() if name not in found.values()} for row in sample]
    reference = given.get("reference") or known.get("reference", find_usual_name(left, REFERENCE_NAMES))
    is_asked = any(given.get(name) for name in ("input", "prompt", "inputs"))
    question = known.get("question", find_usual_name(left, QUESTION_NAMES, reference or ""))
    for part, column in (("answer", answer), ("question", is_asked or question)):
        if not column:
            listed = join_names(list(sample[0]), 20)
            hint = ", or save the table of uqlm's to_df()" if answer == "sampled_responses" else ""
            where = f"{rows.name}: which column holds the {part}? There are {listed}"
            msg = f"{where}. Name it (--{part}){hint}"
            raise InputError(msg)
    fields: dict[str, Any] = {**given, **({} if is_asked else {"input": question})}
    if reference:
        fields["reference"] = reference
        cells = [row.get(reference) for row in sample] if isinstance(reference, str) else []
        if form.endswith("harness") and cells and all(map(_is_written_list, cells)):
            fields["cells"] = {reference: "json", **(given.get("cells") or {})}
    try:
        columns = Columns(**fields)
    except ValidationError as error:
        msg = f"the columns of {rows.name} cannot be used: {error.errors()[0]['msg']}"
        raise InputError(msg) from error
    return AnswerTable(rows, form, found, columns, _hold_lists(sample, str(answer), columns.input))


def _find_part(sample: Sequence[Mapping[str, Any]], part: str, given: Mapping[str, Any]) -> str | None:
    """Return the first column with a usual name of a part that is not in use."""
    used = {one for one in given.values() if isinstance(one, str)}
    names = {name.strip().lower(): name for name in reversed(list(sample[0])) if name not in used}
    found = next((names[one] for one in _USUAL_NAMES[part] if one in names), None)
    if found and part == "label" and not all(_is_label(row.get(found)) for row in sample):
        return None
    return found


def _is_label(value: Any) -> bool:
    with suppress(ValueError):
        return value is None or value == "" or isinstance(value, list) or read_label(value) is not None
    return False


def _is_written_list(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("[")


def _hold_lists(sample: Sequence[Mapping[str, Any]], answer: str, question: str | None) -> bool:
    """Return whether all cells of the answers are text that holds a list, in one row for each question."""
    cells = [row.get(answer) for row in sample]
    questions = {str(row.get(question or "")) for row in sample}
    with suppress(ValueError):
        is_written = all(map(_is_written_list, cells)) and len(questions) == len(cells)
        return is_written and all(isinstance(parse_cell(one, "json"), list) for one in cells)
    return False


# Rows


def _read_cell(part: str, slot: int, value: Any) -> Any:
    """Return an answer as a candidate, or its score or label, None for an empty cell.

    Raises `DrawError` or `ValueError` if it is neither.
    """
    if part == "answer":
        return make_candidate(slot, value)
    if value is None or value == "":
        return None
    return _read_score(value) if part == "score" else read_label(value)


def _is_confidence(column: str | None) -> bool:
    return column is not None and column.lower() in _CONFIDENCES


def _read_score(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number <= 1.0:
        msg = f"found {short_repr(value)}; expected a number in [0, 1], or score='' to leave scores out"
        raise ValueError(msg)
    return number
