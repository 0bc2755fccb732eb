"""Labels that people gave, from a file."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig

from langchain_cfc.calls import Steps
from langchain_cfc.errors import InputError, LabelerError, RecordError
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.labelers.strict import unique_keys
from langchain_cfc.verifiers.parts import together

_WORDS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
_Key = tuple[str, str]
By = Literal["id", "prompt"]
_NAMES: tuple[By, By] = ("id", "prompt")


class HumanLabels(BaseLabeler):
    """Looks up what people said of each candidate.

    The file is JSON Lines (`.jsonl`) or CSV with a header (`.csv`), in UTF-8. Each line has

    - `id`, that of the record, or `prompt`, its input; one of the two, the same throughout the file. In CSV
      an input that is no text is written as JSON with sorted keys and without spaces;
    - `text`, the candidate exactly as it was drawn;
    - `correct`: true or false; in CSV also yes, no, 1 or 0, in any case.

    Further fields are ignored. A line may be repeated with the same label; where several people disagree,
    settle it first; `compare_labels` says how often they do.

    Args:
        path: The file, read at once.

    Raises:
        InputError: If it is neither kind of file or cannot be read.
        RecordError: If a line lacks a field, holds something else in it, or contradicts an earlier one.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = "human-labels"
        source = Path(path)
        if source.suffix not in {".csv", ".jsonl"}:
            msg = f"{source} is neither .csv nor .jsonl, so how labels are written in it is not settled"
            raise InputError(msg)
        try:
            content = source.read_bytes()
            text = content.decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"{source} cannot be read as text in UTF-8: {error}"
            raise InputError(msg) from error
        rows = _csv_rows(source.name, text) if source.suffix == ".csv" else _json_rows(source.name, text)
        self._source = source.name
        self._by, self._labels = _table(source.name, rows)
        digest = hashlib.sha256(content).hexdigest()
        self.fingerprint = together(self.name, {"labels": f"sha256:{digest}"}, {})

    def __repr__(self) -> str:
        """How many labels there are, and by what they are found."""
        return f"HumanLabels({self._source}: {len(self._labels)} by {self._by} and text)"

    def labelled(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """One look into the table per candidate."""
        del config
        key = self._key(given)
        labels = {text: self._labels.get((key, text)) for text in (one.text for one in given["candidates"])}
        for text, label in labels.items():
            if label is None:
                msg = f"no label for {self._by} {key!r:.80}, text {text!r:.80} in {self._source}: add a line"
                raise LabelerError(msg)
        yield from ()  # nothing is called
        return [bool(labels[one.text]) for one in given["candidates"]]

    def _key(self, given: LabelerInput) -> str:
        if self._by == "prompt":
            return _written(given["prompt"])
        if "id" in given:
            return given["id"]
        msg = f"{self._source} goes by id, and the prompt came without one: pass id=, or label by prompt"
        raise LabelerError(msg)


def _table(source: str, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> tuple[By, dict[_Key, bool]]:
    """Labels by id or prompt, and text."""
    by: By | None = None
    labels: dict[_Key, bool] = {}
    for line, row in rows:
        own = _named_by(source, line, row)
        by = by or own
        if own != by:
            raise RecordError(source, line, own, f"found it; expected {by}, as in the lines above")
        key = (_name(source, line, own, row[own]), _text(source, line, row))
        label = _label(source, line, row.get("correct"))
        if labels.setdefault(key, label) != label:
            problem = f"found {_word(label)}, and the other label for the same candidate in an earlier line"
            raise RecordError(source, line, "correct", problem)
    if by is None:
        raise RecordError(source, 0, "", "it holds no labels")
    return by, labels


def _named_by(source: str, line: int, row: Mapping[str, Any]) -> By:
    given: list[By] = [one for one in _NAMES if row.get(one) is not None]
    if len(given) == 1:
        return given[0]
    raise RecordError(
        source, line, "", f"found {'both' if given else 'neither'} of id and prompt; expected one"
    )


def _name(source: str, line: int, by: By, value: Any) -> str:
    if by == "id" and not isinstance(value, str):
        raise RecordError(source, line, "id", f"found a {type(value).__name__}; expected text")
    return _written(value) if by == "prompt" else value


def _text(source: str, line: int, row: Mapping[str, Any]) -> str:
    text = row.get("text")
    if isinstance(text, str):
        return text
    raise RecordError(source, line, "text", f"found a {type(text).__name__}; expected text, empty if need be")


def _label(source: str, line: int, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    problem = f"found {value!r:.60}; expected true or false"
    raise RecordError(source, line, "correct", problem)


def _word(label: bool) -> str:
    return "true" if label else "false"


def _written(prompt: Any) -> str:
    """A prompt as the file has it: text as it is, anything else as canonical JSON."""
    if isinstance(prompt, str):
        return prompt
    try:
        return json.dumps(prompt, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        msg = f"the prompt is a {type(prompt).__name__} that is no JSON: label by id"
        raise LabelerError(msg) from error


def _csv_rows(source: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            # A line that is too short holds None, one that is too long a list under None.
            if None in row or None in row.values():
                problem = (
                    f"found another number of fields than the {len(reader.fieldnames or [])} of the header"
                )
                raise RecordError(source, reader.line_num, "", problem)
            word = row.get("correct", "")
            yield reader.line_num, {**row, "correct": _WORDS.get(word.strip().lower(), word)}
    except csv.Error as error:
        # The reader of the rows has not counted the one that it could not read.
        raise RecordError(source, reader.reader.line_num, "", f"not CSV: {error}") from error


def _json_rows(source: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, written in enumerate(text.split("\n"), start=1):
        if not written.strip():
            continue
        try:
            row = json.loads(written, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise RecordError(source, line, "", f"not JSON: {error}") from error
        if not isinstance(row, dict):
            raise RecordError(source, line, "", f"found a {type(row).__name__}; expected an object")
        yield line, row
