"""What a run of `verifiers.py` found, as strict data, and the page of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.results import Part
from benchmarks.sheet import Sheet, span
from langchain_cfc.records import PromptRecord
from langchain_cfc.scoring import compute_auroc

HEAD = """\
# What verifiers are worth on recorded candidates

Written by `benchmarks/verifiers.py`; do not edit. {prompts} prompts with {n} candidates each, {distinct}
distinct texts, drawn by {generator}; which prompts is settled by seed {seed}. {judge}

A verifier makes the promise neither true nor false; a poor one makes answer sets larger and abstentions more
frequent. This is one model, one kind of question and few prompts: measure on records of your own, with the
same command.
"""
NOTE = (
    "AUROC: probability that a correct candidate gets a better score than a wrong one, ties counting half, "
    "pooled over all prompts, with a 95 % interval in brackets for which prompts are the independent units; "
    "0.5 tells nothing, below it the scores point the wrong way. Control: the same scores, those of each "
    "prompt handed to another at random, by one shuffle for all rows; one in twenty such intervals "
    "misses 0.5, and rows that judge alike miss it together. Within: the same probability for two candidates "
    "of one prompt, mean over the mixed prompts, which have candidates of both kinds. Scores: how many "
    "different ones there are. Time is that of one machine, which others shared, now more and now less: its "
    "order of magnitude is all that counts."
)


class Area(Part):
    """An AUROC with its interval."""

    auroc: float
    low: float
    high: float

    def __str__(self) -> str:
        """For a table."""
        return f"{self.auroc:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Row(Part):
    """One verifier.

    Attributes:
        name: What it is called.
        prompts: Prompts that it scored.
        area: How well its scores tell right from wrong; None where there is nothing to tell apart.
        control: The same with its scores handed to other prompts.
        within: Mean AUROC within the prompts that hold correct and wrong candidates; None without any.
        mixed: Number of these.
        distinct: Number of different scores.
        seconds: Wall time per prompt.
        failures: What it said where it failed.
        remark: What else the page says of it.
    """

    name: str
    prompts: int
    area: Area | None
    control: Area | None
    within: float | None
    mixed: int
    distinct: int
    seconds: float
    failures: tuple[str, ...]
    remark: str = ""


class Compared(Part):
    """All verifiers of a run.

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
    rows: tuple[Row, ...]


def row(
    name: str,
    scored: Sequence[tuple[PromptRecord, list[float]]],
    failures: Sequence[str],
    seconds: float,
    seed: int,
) -> Row:
    """What the scores of a verifier say.

    Args:
        name: The verifier.
        scored: Prompts with the scores of their candidates.
        failures: Messages of prompts that could not be scored.
        seconds: Per prompt.
        seed: Of the control.
    """
    width = len(scored[0][1]) if scored else 0
    scores = np.array([one for _, one in scored], dtype=np.float64).reshape(len(scored), width)
    correct = np.array([[c.correct for c in record.candidates] for record, _ in scored], dtype=np.bool_)
    correct = correct.reshape(scores.shape)
    # Whole prompts change places: the control keeps what binds the candidates of a prompt together.
    others = scores[np.random.default_rng(seed).permutation(len(scores))]
    pairs = zip(scores, correct, strict=True)
    each = [found for one, labels in pairs if (found := _area(one[None, :], labels[None, :])) is not None]
    return Row(
        name=name,
        prompts=len(scored),
        area=_area(scores, correct),
        control=_area(others, correct),
        within=float(np.mean([found.auroc for found in each])) if each else None,
        mixed=len(each),
        distinct=len(np.unique(scores)),
        seconds=seconds,
        failures=tuple(failures),
    )


def _area(scores: np.ndarray, correct: np.ndarray) -> Area | None:
    found = compute_auroc(scores, correct)
    return None if found is None else Area(auroc=found.auroc, low=found.low, high=found.high)


def sheet(found: Compared) -> Sheet:
    """The table."""
    headings = ("verifier", "AUROC", "control", "within", "mixed", "scores", "per prompt", "failed")
    rows = tuple(
        (
            one.name,
            str(one.area or "-"),
            str(one.control or "-"),
            "-" if one.within is None else f"{one.within:.3f}",
            str(one.mixed),
            str(one.distinct),
            span(one.seconds),
            str(len(one.failures)),
        )
        for one in found.rows
    )
    return Sheet("Right from wrong", NOTE, headings, rows)


def page(found: Compared, unmeasured: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        found: What was measured.
        unmeasured: By verifier, what it would have asked and was not there.
    """
    judge = f"Judging model: {found.judge}." if found.judge else "No model was asked."
    head = HEAD.format(**{**found.model_dump(exclude={"rows"}), "judge": judge})
    remarks = [f"{one.name}: {one.remark}" for one in found.rows if one.remark]
    remarks += [
        f"{name}: not measured, no {asked} could be had where this was run."
        for name, asked in unmeasured.items()
    ]
    failed = [one for one in found.rows if one.failures]
    failures = [f"{one.name}, {len(one.failures)} prompts: {one.failures[0]}" for one in failed]
    return "\n".join(
        [head, sheet(found).markdown(), *_listed("Remarks", remarks), *_listed("Failures", failures)]
    )


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    """A list with a title; nothing where there is nothing to list."""
    return [f"{title}:\n\n" + "".join(f"- {line}\n" for line in lines)] if lines else []
