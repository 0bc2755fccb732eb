"""Labels that people gave, from a file."""

from __future__ import annotations

from pathlib import Path

from langchain_core.runnables import RunnableConfig

from langchain_cfc.calls import Steps
from langchain_cfc.errors import LabelerError
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.labelers.sheets import read_sheet, written
from langchain_cfc.verifiers.parts import together


class HumanLabels(BaseLabeler):
    """Looks up what people said of each candidate.

    The file is JSON Lines (`.jsonl`) or CSV with a header (`.csv`), in UTF-8. Each line has

    - `id`, that of the record, or `prompt`, its input; one of the two, the same throughout the file. In CSV
      an input that is no text is written as JSON with sorted keys and without spaces;
    - `text`, the candidate exactly as it was drawn, but for the kind of its line ends;
    - `correct`: true or false; in CSV also yes, no, 1 or 0, in any case.

    Further fields are ignored. A line may be repeated with the same label; where several people disagree,
    settle it first; `compare_labels` says how often they do.

    CSV may be separated by commas, semicolons or tabs. An apostrophe in front of a column's name says that
    one in front of its cells is no part of them: it keeps spreadsheet programs from rewriting what they take
    for a number, a date or a formula. The sheets of `write_review` are written like that.

    Args:
        path: The file, read at once.

    Raises:
        InputError: If it is neither kind of file or cannot be read.
        RecordError: If a line lacks a field, holds something else in it, or contradicts an earlier one.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = "human-labels"
        self._sheet = read_sheet(path)
        self.fingerprint = together(self.name, {"labels": self._sheet.digest}, {})

    def __repr__(self) -> str:
        """How many labels there are, and by what they are found."""
        sheet = self._sheet
        return f"HumanLabels({sheet.source}: {len(sheet.rows)} by {sheet.by} and text)"

    def labelled(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """One look into the table per candidate."""
        del config
        key = self._key(given)
        labels = {text: self._label(key, text) for text in (one.text for one in given["candidates"])}
        yield from ()  # nothing is called
        return [labels[one.text] for one in given["candidates"]]

    def _label(self, key: str, text: str) -> bool:
        row = self._sheet.rows.get((key, written(text)))
        if row is not None and row.correct is not None:
            return row.correct
        sheet = self._sheet
        msg = f"no label for {sheet.by} {key!r:.80}, text {text!r:.80} in {sheet.source}: add a line"
        raise LabelerError(msg)

    def _key(self, given: LabelerInput) -> str:
        if self._sheet.by == "prompt":
            return written(given["prompt"])
        if "id" in given:
            return given["id"]
        msg = (
            f"{self._sheet.source} goes by id, and the prompt came without one: pass id=, or label by prompt"
        )
        raise LabelerError(msg)
