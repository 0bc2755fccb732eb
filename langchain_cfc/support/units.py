"""What sentences speak of: answers, claims, and the runs and calls of an agent, with the words for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Unit: TypeAlias = Literal["answers", "claims"]
"""What is kept or rejected: whole candidate answers, or the claims of one answer."""
Subject: TypeAlias = Literal["answers", "claims", "runs", "calls"]
"""What sentences speak of: the unit, or for runs of an agent the runs, and the calls as their claims."""


@dataclass(frozen=True, kw_only=True)
class UnitTraits:
    """What distinguishes subjects, apart from the set rule, which says what is kept of answers and claims.

    Attributes:
        item: The noun for what gets a score.
        correct: The adjective for an item with a positive label.
        wrong: The adjective for one with a negative label.
        parts: Parts of the calibrated pipeline, as records name them.
        is_fixed_count: Whether every prompt has the same number of items, unless a draw rule stops early.
        rate: The bound on the share of wrong items that a bot shows, to be formatted with a share.
        counts: The counts behind this bound, to be formatted with numbers of prompts, answered and wrong.
        rate_of_all: The bound among all prompts, to be formatted with a share and what it is an average over.
        cut: What a cut does, to be formatted with it.
        prompt: The noun for what a bot gets.
        shown: What has become of a prompt that a bot does not hold back.
        unshown: The same of one that it holds back.
        counted: The noun for prompts that count in a test of the bound.
        single: The noun for what a bot gives.
        attainable: What prompts have that can keep a promise, to be formatted with the number drawn.
        axes: What a curve of this bot shows, horizontally and vertically.
        kept: What is left of claims, to be formatted with the shares of claims shown, of answers without one,
            and of unsupported ones before and after.
        excluded: What is not promised either.
        reasons: Sentences on results, by reason; others speak of answers and claims.
    """

    item: str
    correct: str
    wrong: str
    parts: tuple[str, ...]
    is_fixed_count: bool
    rate: str
    counts: str
    rate_of_all: str = (
        "Of all questions asked, at most {} get a wrong answer{}; the others get a right answer or none."
    )
    cut: str
    prompt: str = "question"
    shown: str = "answered"
    unshown: str = "No answer"
    counted: str = "answered questions"
    single: str = "answer"
    attainable: str = "have a right answer among the {} drawn"
    axes: tuple[str, str] = ("questions answered", "wrong, of those answered")
    kept: str = ""
    excluded: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


_OF_RUNS: Mapping[str, Any] = {
    "correct": "right",
    "wrong": "wrong",
    "rate_of_all": "Of all runs with a guarded call, at most {} go through unattended with a wrong one{}.",
    "prompt": "run",
    "counted": "runs let through",
    "shown": "let through",
    "unshown": "Not unattended",
    "attainable": "have no wrong call",
}

UNITS: Mapping[Subject, UnitTraits] = {
    "answers": UnitTraits(
        item="candidate",
        correct="correct",
        wrong="wrong",
        parts=("generator", "verifier", "answer"),
        is_fixed_count=True,
        rate="of the questions that are answered, at most {} get a wrong answer",
        counts="It answered {1:,} of {0:,} calibration questions, {2:,} wrongly.",
        cut="It answers a question if the mean score of its candidates is at most {}.",
    ),
    "claims": UnitTraits(
        item="claim",
        correct="supported",
        wrong="unsupported",
        parts=("generator", "verifier", "splitter"),
        is_fixed_count=False,
        rate="of the claims that an answer shows, at most {} are unsupported on average",
        counts="Of {:,} calibration answers {:,} show claims; of one claim of each, {:,} are unsupported.",
        cut="Shows claims with a score of at most {}.",
        counted="answers that show claims",
        axes=("claims shown", "unsupported, of those shown"),
        kept=(
            "{} of the claims are shown, and {} of the answers lose all of theirs. Unsupported are {} of all "
            "claims, and {} of those shown."
        ),
        excluded=(
            (
                "Nothing is promised about what an answer omits, about whether the remaining claims fit "
                "together, or about a claim that was not found in the answer."
            ),
        ),
    ),
    "runs": UnitTraits(
        item="run",
        parts=("generator", "verifier"),
        is_fixed_count=True,
        rate="of the runs that go through unattended, at most {} contain a wrong guarded call",
        counts="It let {1:,} of {0:,} calibration runs through unattended, {2:,} of them with a wrong call.",
        cut="A run goes through unattended if no guarded turn has a score above {}.",
        single="run",
        axes=("runs let through", "wrong, of those let through"),
        excluded=("Nothing is promised about runs without a guarded call.",),
        reasons={
            "answered": "All guarded calls of the run were let through.",
            "mean_score_too_high": "Not unattended, because a guarded turn has a score above the cut.",
            "only_blank_answers": "Not unattended, because a step failed or could not be read.",
        },
        **_OF_RUNS,
    ),
    "calls": UnitTraits(
        item="call",
        parts=("generator", "verifier", "splitter"),
        is_fixed_count=False,
        rate=(
            "of the guarded calls before a run first leaves the unattended path, at most {} are wrong on "
            "average over runs with such calls"
        ),
        counts="Of {:,} calibration runs {:,} have such calls; of one call drawn from each, {:,} are wrong.",
        cut="A call runs unattended if no guarded turn up to it has a score above {}.",
        single="call",
        axes=("calls let through", "wrong, of those let through"),
        kept=(
            "{} of the guarded calls are let through, and none in {} of the runs. Wrong are {} of all calls, "
            "and {} of those let through."
        ),
        excluded=("Nothing is promised about calls after a run leaves the unattended path.",),
        reasons={
            "answered": "{} of {} guarded calls were let through before the run left the path, if it did.",
            "no_claim_kept": "No call was let through, because the first one has a score above the cut.",
            "no_claims": "No call was let through, because a step failed or could not be read.",
        },
        **_OF_RUNS,
    ),
}
