"""What a run of `verifiers.py` finds, as strict data, and the page of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.lib.tables import Sheet, format_seconds
from benchmarks.lib.timing import Data
from langchain_cfc.records import PromptRecord
from langchain_cfc.scoring import compute_auroc

_HEAD = """\
# What verifiers are worth on recorded candidates

Written by `benchmarks/verifiers.py`; do not edit. {prompts} prompts with {n} candidates each, {distinct}
distinct texts, drawn by {generator}; which prompts is settled by seed {seed}. {judge}

A verifier makes the promise neither true nor false; a poor one makes answer sets larger and abstentions more
frequent. This is one model, one kind of question and few prompts: measure on records of your own, with the
same command.
"""
_NOTE = (
    "AUROC: probability that a correct candidate gets a better score than a wrong one, ties counting half, "
    "pooled over all prompts, with a 95 % interval in brackets for which prompts are the independent units; "
    "0.5 tells nothing, below it the scores point the wrong way. Control: the same scores, those of each "
    "prompt handed to another at random, by one shuffle for all rows; one in twenty such intervals "
    "misses 0.5, and rows that judge alike miss it together. Within: the same probability for two candidates "
    "of one prompt, mean over the mixed prompts, which have candidates of both kinds. Scores: how many "
    "different ones there are. Time is that of one machine, which others shared, now more and now less: its "
    "order of magnitude is all that counts."
)


class Auroc(Data):
    """An AUROC with the ends of its interval."""

    auroc: float
    low: float
    high: float

    def __str__(self) -> str:
        """Format for a table."""
        return f"{self.auroc:.3f} [{self.low:.3f}, {self.high:.3f}]"


class VerifierRow(Data):
    """The results of one verifier of a run.

    Attributes:
        name: Its name.
        prompts: Prompts that it scored.
        area: How well its scores tell right from wrong; None where there is nothing to tell apart.
        control: The same with its scores handed to other prompts.
        within: Mean AUROC within the prompts that hold correct and wrong candidates; None without any.
        mixed: Number of these.
        distinct: Number of different scores.
        seconds: Wall time per prompt.
        failures: Messages of its failures.
        remark: What the page adds about it.
    """

    name: str
    prompts: int
    area: Auroc | None
    control: Auroc | None
    within: float | None
    mixed: int
    distinct: int
    seconds: float
    failures: tuple[str, ...]
    remark: str = ""


class VerifierResults(Data):
    """The results of all verifiers of a run.

    Attributes:
        generator: What drew the candidates.
        judge: What judged them, where a model did.
        n: Candidates per prompt.
        prompts: Number of prompts.
        distinct: Number of distinct answers over all prompts.
        seed: Of the choice of prompts and of the control.
        rows: By verifier.
    """

    generator: str
    judge: str
    n: int
    prompts: int
    distinct: int
    seed: int
    rows: tuple[VerifierRow, ...]


def make_row(
    name: str,
    scored: Sequence[tuple[PromptRecord, list[float]]],
    failures: Sequence[str],
    seconds: float,
    seed: int,
) -> VerifierRow:
    """Make the row of a verifier from scored prompts, messages of failures, and seconds per prompt."""
    width = len(scored[0][1]) if scored else 0
    scores = np.array([one for _, one in scored], dtype=np.float64).reshape(len(scored), width)
    correct = np.array([[c.correct for c in record.candidates] for record, _ in scored], dtype=np.bool_)
    correct = correct.reshape(scores.shape)
    # Whole prompts are exchanged, so that the control keeps the dependence within a prompt.
    others = scores[np.random.default_rng(seed).permutation(len(scores))]
    pairs = zip(scores, correct, strict=True)
    each = [
        found for one, labels in pairs if (found := _compute_auroc(one[None, :], labels[None, :])) is not None
    ]
    return VerifierRow(
        name=name,
        prompts=len(scored),
        area=_compute_auroc(scores, correct),
        control=_compute_auroc(others, correct),
        within=float(np.mean([found.auroc for found in each])) if each else None,
        mixed=len(each),
        distinct=len(np.unique(scores)),
        seconds=seconds,
        failures=tuple(failures),
    )


def _compute_auroc(scores: np.ndarray, correct: np.ndarray) -> Auroc | None:
    found = compute_auroc(scores, correct)
    return None if found is None else Auroc(auroc=found.auroc, low=found.low, high=found.high)


def make_sheet(found: VerifierResults) -> Sheet:
    """Make the table of all verifiers and their figures."""
    headings = ("verifier", "AUROC", "control", "within", "mixed", "scores", "per prompt", "failed")
    rows = tuple(
        (
            one.name,
            str(one.area or "-"),
            str(one.control or "-"),
            "-" if one.within is None else f"{one.within:.3f}",
            str(one.mixed),
            str(one.distinct),
            format_seconds(one.seconds),
            str(len(one.failures)),
        )
        for one in found.rows
    )
    return Sheet("Right from wrong", _NOTE, headings, rows)


def make_page(found: VerifierResults, unmeasured: Mapping[str, str]) -> str:
    """Make the page as Markdown; `unmeasured` says what kind of model each other verifier lacked."""
    judge = f"Judging model: {found.judge}." if found.judge else "No model was asked."
    head = _HEAD.format(**{**found.model_dump(exclude={"rows"}), "judge": judge})
    remarks = [f"{one.name}: {one.remark}" for one in found.rows if one.remark]
    remarks += [
        f"{name}: not measured, no {asked} could be had where this was run."
        for name, asked in unmeasured.items()
    ]
    failed = [one for one in found.rows if one.failures]
    failures = [f"{one.name}, {len(one.failures)} prompts: {one.failures[0]}" for one in failed]
    return "\n".join(
        [
            head,
            make_sheet(found).to_markdown(),
            *_make_list("Remarks", remarks),
            *_make_list("Failures", failures),
        ]
    )


def _make_list(title: str, lines: Sequence[str]) -> list[str]:
    """Make a list with a title; nothing for an empty list."""
    return [f"{title}:\n\n" + "".join(f"- {line}\n" for line in lines)] if lines else []
