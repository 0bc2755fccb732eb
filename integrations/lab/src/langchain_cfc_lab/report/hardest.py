"""The hardest test prompts: those that were flagged or missed, with their candidates or claims.

With claims, a prompt is missed if more unsupported claims are left than the promise allows; prompts with no
claim left (emptied) take the place of flagged ones. For a bot that ignores sets these are the prompts that it
answered wrongly, and those on which it abstained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby, islice, zip_longest
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact, select_held_out
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.decision import Decisions, decide
from langchain_cfc.errors import InputError
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.features.statistics import MEAN_SCORE
from langchain_cfc.records import ClaimsRecord, LabelledRecord, Records
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.support.text import pluralize
from langchain_cfc.support.units import Unit
from langchain_cfc.thresholds import Level
from langchain_cfc_lab.report._text import describe_length, find_cut, truncate

MOST_PROMPTS = 10
MOST_ANSWERS = 12
PROMPT_LENGTH = 600
ANSWER_LENGTH = 200
MARKED_LENGTH = 3000

Outcome = Literal["flagged", "missed", "emptied", "wrong", "abstained"]
Mark = Literal["", "dropped", "unsupported"]
_OUTCOMES: dict[Outcome, str] = {
    "flagged": "Flagged: cannot be certified.",
    "missed": "Missed: the promise is broken.",
    "emptied": "No claim left.",
    "wrong": "Answered wrongly.",
    "abstained": "Not answered.",
}
_THINGS: dict[Unit, tuple[str, str]] = {
    "answers": ("candidate", "correct"),
    "claims": ("claim", "supported"),
}


@dataclass(frozen=True)
class MarkedText:
    """A part of an answer with claims: left as it is, dropped, or left in although unsupported."""

    text: str
    mark: Mark


@dataclass(frozen=True)
class HardAnswer:
    """A claim, or the candidates with the same answer and label; texts are None if not shown."""

    answer: str | None
    text: str | None  # text of the best of them, if it differs from the answer
    times: int  # number of these candidates
    accepted: bool  # whether the answer is in the set, or the claim left in
    correct: bool  # for a claim, whether it is supported
    score: float  # the lowest among them, in [0, 1]
    level: float | None  # their lowest entry level, for a claim its confidence; None if none can enter


@dataclass(frozen=True)
class HardPrompt:
    """A test prompt that was flagged, missed, answered wrongly or not at all, or has no claim left."""

    id: str
    outcome: Outcome  # `missed`: not flagged and the promise broken; `emptied`: no claim left
    why: str  # the outcome, and how many candidates or claims are correct, in words
    threshold: float | None  # None if none can be certified, and for bots; for claims, a confidence
    mean_score: float  # of its candidates or claims
    prompt: str | None  # None if texts are not shown
    answers: tuple[HardAnswer, ...]  # answers or claims, best first
    left_out: int  # number of further answers or claims
    right: int  # how many of its candidates or claims are correct, of `drawn`
    drawn: int
    reference: str | None  # what the labeler compared with; None if texts are not shown
    # The answer with its claims; empty if texts are not shown, or the record does not locate its claims.
    marked: tuple[MarkedText, ...] = ()


@dataclass(frozen=True)
class HardestPrompts:
    """The hardest prompts of a test set, with counts of flagged and missed ones."""

    flagged: int  # number of test prompts flagged; for claims, of answers with no claim left; or abstained on
    missed: int  # number of test prompts missed, or answered wrongly
    with_text: bool  # whether texts are shown
    prompts: tuple[HardPrompt, ...]  # the hardest of them, missed and flagged ones alternating
    unit: Unit = "answers"  # what their `answers` are
    max_wrong_rate: str | None = None  # the rate at which a bot answers; None for sets and claims
    is_of_bot: bool = False  # whether they are whole answers of a bot, and not sets or claims


def find_hardest_prompts(
    artifact: CalibrationArtifact,
    labelled: LabelledBatch,
    alpha: Level | None = None,
    *,
    texts: Iterable[LabelledRecord] | None = None,
    most: int = MOST_PROMPTS,
) -> HardestPrompts:
    """Find the hardest prompts that `evaluate` counts as flagged or missed, and explain each.

    Missed prompts are ordered by threshold (for claims, by the number of unsupported ones left), flagged or
    emptied ones by mean score, the largest first. Wrong answers of a bot, at the largest certified rate, are
    and its abstentions, are ordered by mean score, the smallest first: the surest errors, and those that were
    nearest to an answer. The two kinds alternate, up to `most` prompts.

    Args:
        artifact: The artifact.
        labelled: The records given to `evaluate`, as a table with the artifact's number of candidates.
        alpha: Error level; may be left out if the artifact holds only one.
        texts: The records that the table was made from, read once for the texts of the prompts shown; None to
            show no text.
        most: How many prompts to show, at least 0.

    Returns:
        The prompts. Long texts are cut.

    Raises:
        OverlapError: Under the conditions of `evaluate`, whose other errors the table may cause as well.
        InputError: If `most` is below 0, or a prompt of the table is not among the records.
    """
    if most < 0:
        msg = f"most must be at least 0, got {most}"
        raise InputError(msg)
    tested, _ = select_held_out(artifact, labelled)
    bot = artifact.certified_bot.certificates[-1] if not artifact.alphas else None
    cut = None if bot is None else bot.cut
    is_of_bot = artifact.unit == "answers" and (
        bot is not None or artifact.parsed_set_rule.option == "max_wrong_of_all"
    )
    with name_records_in_errors(tested.ids):
        decisions = decide(artifact, tested.draws, alpha, cut=cut)
    flagged, hardness = decisions.not_certifiable, decisions.thresholds
    missed: BoolArray = ~flagged & ~artifact.parsed_set_rule.covers(tested.correct, decisions.accepted)
    if artifact.unit == "claims":
        flagged = np.logical_not(decisions.accepted.any(axis=1))
        hardness = (decisions.accepted & ~tested.correct).sum(axis=1).astype(np.float64)
    elif is_of_bot:
        flagged = ~decisions.answered
        missed &= decisions.answered
        hardness = -MEAN_SCORE.compute_values(tested.draws)
    rows = list(islice(_order_rows(decisions, missed, flagged, hardness, is_of_bot), most))
    records = {} if texts is None else _find_records(texts, {tested.ids[row] for row in rows})
    return HardestPrompts(
        flagged=int(flagged.sum()),
        missed=int(missed.sum()),
        with_text=texts is not None,
        prompts=tuple(
            _describe_prompt(
                tested, decisions, row, records.get(tested.ids[row]), artifact.at_most, is_of_bot=is_of_bot
            )
            for row in rows
        ),
        unit=artifact.unit,
        max_wrong_rate=None if bot is None else bot.max_wrong_rate,
        is_of_bot=is_of_bot,
    )


def _order_rows(
    decisions: Decisions,
    missed: BoolArray,
    flagged: BoolArray,
    hardness: FloatArray,
    by_hardness: bool,
) -> Iterator[int]:
    """Return the rows of missed and flagged prompts alternately, the hardest of each kind first.

    Flagged prompts are sorted by score, unless `by_hardness`: without it they have no threshold.
    """
    scores = decisions.draws.scores.mean(axis=1, where=decisions.draws.is_drawn)
    order = np.lexsort((-scores, -(hardness if by_hardness else np.where(flagged, 0.0, hardness))))
    kinds = ([int(row) for row in order if kind[row]] for kind in (missed, flagged))
    return (row for row in chain.from_iterable(zip_longest(*kinds)) if row is not None)


def _find_records(texts: Iterable[LabelledRecord], wanted: set[str]) -> Mapping[str, LabelledRecord]:
    source = texts.read_all() if isinstance(texts, Records) else texts
    found = {record.id: record for record in source if record.id in wanted}
    missing = sorted(wanted - set(found))
    if missing:
        msg = f"record {missing[0]!r} is missing from the records that texts are taken from"
        raise InputError(msg)
    return found


def _describe_prompt(
    tested: LabelledBatch,
    decisions: Decisions,
    row: int,
    record: LabelledRecord | None,
    at_most: int | None,
    *,
    is_of_bot: bool,
) -> HardPrompt:
    answers = list(_group_answers(tested, decisions, row, record))
    flagged = bool(decisions.not_certifiable[row])
    outcome: Outcome = "flagged" if flagged else "missed"
    if is_of_bot:
        answers.sort(key=lambda one: (not one.accepted, one.score, not one.correct))
        outcome = "wrong" if decisions.answered[row] else "abstained"
    elif at_most is None:
        answers.sort(
            key=lambda one: (math.inf if one.level is None else one.level, one.score, not one.correct)
        )
    else:
        answers.sort(key=lambda one: one.score)
        outcome = outcome if flagged or decisions.accepted[row].any() else "emptied"
    correct = tested.correct[row, : tested.draws.counts[row]]
    right, (thing, kind) = int(correct.sum()), _THINGS[tested.unit]
    reference = None if record is None else truncate(_format_reference(record.reference), ANSWER_LENGTH)
    return HardPrompt(
        id=truncate(tested.ids[row], ANSWER_LENGTH),
        outcome=outcome,
        why=f"{_OUTCOMES[outcome]} {right} of {pluralize(len(correct), thing)} {kind}.",
        threshold=None if flagged or not len(decisions.thresholds) else float(decisions.thresholds[row]),
        mean_score=float(tested.draws.scores[row, : tested.draws.counts[row]].mean()),
        prompt=None if record is None else truncate(_format_input(record.input), PROMPT_LENGTH),
        answers=tuple(answers[:MOST_ANSWERS]),
        left_out=max(0, len(answers) - MOST_ANSWERS),
        right=right,
        drawn=len(correct),
        reference=reference,
        marked=_mark_claims(record, decisions.accepted[row]) if isinstance(record, ClaimsRecord) else (),
    )


def _group_answers(
    tested: LabelledBatch, decisions: Decisions, row: int, record: LabelledRecord | None
) -> Iterator[HardAnswer]:
    codes = tested.draws.answer_codes
    count = int(tested.draws.counts[row])
    own = range(count) if codes is None else (int(code) for code in codes[row, :count])
    slots: dict[tuple[int, bool], list[int]] = {}
    for slot, code in enumerate(own):
        slots.setdefault((code, bool(tested.correct[row, slot])), []).append(slot)
    scores, levels = tested.draws.scores[row], decisions.levels[row]
    for (_, correct), same in slots.items():
        best = min(same, key=lambda slot: float(scores[slot]))
        level = float(levels[same].min())
        answer, text = _get_texts(record, best)
        yield HardAnswer(
            answer=answer,
            text=text,
            times=len(same),
            accepted=bool(decisions.accepted[row, same].any() and decisions.answered[row]),
            correct=correct,
            score=float(scores[best]),
            level=level if math.isfinite(level) else None,
        )


def _get_texts(record: LabelledRecord | None, slot: int) -> tuple[str | None, str | None]:
    """Return the claim and None, or the answer and the candidate's text if that differs from it."""
    if record is None:
        return None, None
    if isinstance(record, ClaimsRecord):
        return truncate(record.claims[slot].text, ANSWER_LENGTH), None
    candidate = record.candidates[slot]
    said = canonical_json(candidate.message) if candidate.text is None else candidate.text
    answer = candidate.answer_key
    more = None if said.strip() == answer.strip() else truncate(said, ANSWER_LENGTH)
    return truncate(answer, ANSWER_LENGTH), more


def _format_input(prompt: str | list[Any] | dict[str, Any]) -> str:
    """Return a prompt in readable form: text as it is, a line for each message, all else as JSON."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return "\n".join(_format_message(message) for message in prompt)
    return canonical_json(prompt)


def _format_reference(reference: Any) -> str:
    """Return a reference in readable form; several right answers are joined with "or"."""
    if isinstance(reference, list) and all(isinstance(one, str) for one in reference):
        return " or ".join(reference)
    return reference if isinstance(reference, str) else canonical_json(reference)


def _format_message(message: object) -> str:
    match message:
        case {"role": str() as role, "content": str() as content, **others} if not others:
            return f"{role}: {content}"
        case _:
            return canonical_json(message)


def _mark_claims(record: ClaimsRecord, kept: BoolArray) -> tuple[MarkedText, ...]:
    """Split an answer into parts, marked where a claim was dropped or left in although unsupported.

    Text that a dropped claim shares with another one counts as dropped, as when serving.
    """
    claims = list(zip(record.claims, kept[: len(record.claims)].tolist(), strict=True))
    if record.answer is None or any(claim.start is None for claim, _ in claims):
        return ()
    end = find_cut(record.answer, MARKED_LENGTH)
    marks: list[Mark] = [""] * len(record.answer)
    for claim, is_kept in sorted(claims, key=itemgetter(1), reverse=True):
        mark: Mark = "dropped" if not is_kept else "" if claim.supported else "unsupported"
        if mark:
            marks[claim.start : claim.end] = [mark] * ((claim.end or 0) - (claim.start or 0))
    parts = [
        MarkedText("".join(character for character, _ in group), mark)
        for mark, group in groupby(zip(record.answer[:end], marks[:end], strict=True), key=itemgetter(1))
    ]
    cut = [] if end == len(record.answer) else [MarkedText(describe_length(record.answer), "")]
    return (*parts, *cut)
