"""`PeopleSample`: certify a frozen artifact with people's labels of some prompts and a judge's of all.

The prompts are new, independent, and distributed like future prompts. A judge (any labeler) has labelled all
of them; the certificate does not rely on its labels being right. People label a random part: a hash of the
prompt's id selects it with a probability that grows with the judge's doubt, and another hash gives the order.
The ids, the judge's labels and the share fix both before any person sees the sheet. So the rows labelled from
the top are a valid sample whenever people stop. `judged` derives the bound.

*What is judged.* For the sets of a level: whether each set keeps its promise, that is, holds a correct answer
or is flagged; for claims, whether at most k unsupported claims are left. The sheet has every answer of a set,
and a person may stop at the first correct one. For bot mode: whether the best answer is right, among the
prompts that are answered; for claims, whether one claim, drawn by hash among those shown, is supported. A
prompt whose outcome does not depend on labels, such as a flagged one, counts without any.

*Doubt* is 1 where the judge says that the promise is broken or the answer is wrong. Otherwise it is the share
of the prompt's candidates, or of the answer's claims, that the judge calls wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from langchain_cfc.artifact import CalibrationArtifact, tabulate_held_out
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.coverage import check_origin, compute_outcomes, compute_records_digest
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.guarantee import PeopleCertificate, WrongRateCertificate
from langchain_cfc.records import LabelledRecord, Provenance, Records
from langchain_cfc.support.arrays import BoolArray
from langchain_cfc.support.suggestions import suggest_share
from langchain_cfc.thresholds import Level, compute_tau, format_alpha
from langchain_cfc_collect.human import Sheet, read_sheet
from langchain_cfc_collect.judged import (
    LARGEST_TARGET,
    LEAST_SHARE,
    JudgedEProcess,
    JudgedPrompts,
    assign_strata,
    compute_inclusion,
)
from langchain_cfc_collect.review import check_sheet_path, list_labels, write_rows


class PeopleReport(BaseModel):
    """Progress of a certificate by people's labels, with the bound so far.

    Attributes:
        about: Whether the `sets` of a level are certified, or the `answers` of bot mode.
        delta: Failure probability, as decimal text.
        target: Probability to certify: that a set keeps its promise, or that an answer is right.
        at_least: Lower bound on that probability from the labels so far; 0 is no information.
        prompts: Number of judged prompts that count; in bot mode, those that are answered.
        to_label: Number of these prompts that are on the sheet.
        labelled: Number of prompts that people have labelled, from the top of the sheet to the first gap.
        waiting: Number of prompts that are labelled below the first gap, and count once it is closed.
        agreed: Number of labelled prompts for which the judge's labels give the same outcome.
        expected_labels: Expected number of further prompts to label; 0 once certified, None if the sheet is
            not expected to suffice. Before the first label, it rests on a guess of how good the judge is.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    about: Literal["sets", "answers"]
    delta: str
    target: float
    at_least: float
    prompts: int
    to_label: int
    labelled: int
    waiting: int
    agreed: int
    expected_labels: int | None

    @property
    def is_certified(self) -> bool:
        """Whether the bound has reached the target."""
        return self.at_least >= self.target


@dataclass(frozen=True)
class PeopleSample:
    """Sample of judged prompts for people to label, from which an artifact can be certified.

    Make it with `draw`, with the same arguments each time: another share, level or file gives another sample,
    which the first sheet does not fit.
    """

    artifact: CalibrationArtifact
    alpha: str
    bot: WrongRateCertificate | None  # certificate of the bot whose answers are certified; None for sets
    target: float
    share: float
    digest: str  # of the judged records
    # The judged prompts that count, in the order in which the certificate uses them.
    ids: tuple[str, ...]  # (m,)
    prompts: JudgedPrompts  # (m,)
    by_judge: BoolArray  # (m,) whether the promise is kept by the judge's labels, or needs no label
    # The records to label, by id in this order, with the slots whose labels decide the outcome.
    sheet: Mapping[str, tuple[LabelledRecord, Sequence[int]]]

    @classmethod
    def draw(
        cls,
        artifact: CalibrationArtifact,
        records: Iterable[LabelledRecord] | LabelledBatch,
        *,
        until: float | None = None,
        max_wrong_rate: Level | None = None,
        alpha: Level | None = None,
        share: float = 0.1,
        provenance: Provenance | None = None,
    ) -> PeopleSample:
        """Draw the prompts that people are to label.

        Args:
            artifact: The artifact.
            records: Prompts with a judge's labels, independent of and distributed like future prompts. If
                these are the records that the artifact was calibrated on, only the part held out for
                certificates is used. One prompt of each cluster counts.
            until: Certify that sets keep their promise with at least this probability, in (0, 0.999].
            max_wrong_rate: Certify instead that at most this share of bot mode's answers is wrong, in
                [0.001, 1). If the artifact is certified for several rates, it must be one of these.
            alpha: Error level of the sets; may be left out if there is only one, and for bot mode.
            share: Approximate share of the prompts that people may be asked to label, in [0.01, 1]. A smaller
                share needs fewer labels but more judged prompts.
            provenance: Header of the records, if they do not carry one themselves.

        Returns:
            The sample.

        Raises:
            OverlapError: If these are calibration records and none are left for certificates.
            CalibrationError: If no prompt is left.
            InputError: If not exactly one of `until` and `max_wrong_rate` is given, a number is out of range,
                the records are a table without texts, or the artifact lacks the level or the rate.
            FingerprintError: If the records come from another generator, verifier or extractor.
        """
        if isinstance(records, LabelledBatch):
            msg = (
                "people read texts, which a table does not hold: give records, e.g. written by `store export`"
            )
            raise InputError(msg)
        if not LEAST_SHARE <= share <= 1.0:
            msg = f"share is {share!r}; expected a share in [{LEAST_SHARE}, 1]{suggest_share(share)}"
            raise InputError(msg)
        target, level, bot = _choose_target(artifact, until, max_wrong_rate, alpha)
        source = records if isinstance(records, Records) else list(records)
        if provenance is None and isinstance(source, Records):
            provenance = source.provenance
        check_origin(artifact, provenance)
        labelled, _ = tabulate_held_out(artifact, source)
        digest = compute_records_digest(labelled)
        ids, prompts, by_judge, slots = _sample_prompts(artifact, labelled, level, bot, share)
        chosen = np.flatnonzero(prompts.needs_label).tolist()
        wanted = {ids[row]: np.flatnonzero(slots[row]).tolist() for row in chosen}
        every = source.read_all() if isinstance(source, Records) else source
        texts = {record.id: record for record in every if record.id in wanted}
        sheet = {name: (texts[name], several) for name, several in wanted.items()}
        return cls(artifact, level, bot, target, share, digest, ids, prompts, by_judge, sheet)

    def write_sheet(self, path: str | os.PathLike[str]) -> None:
        """Write the sheet, in the order in which people must label it, from the top.

        Args:
            path: Where to write, ending in `.csv`; an existing file is never overwritten.

        Raises:
            InputError: If the file exists or cannot be written, no prompt is to be labelled, or a text is too
                long for a cell.
        """
        target = check_sheet_path(path)
        if not self.sheet:
            msg = (
                f"none of {len(self.ids)} prompts is to be labelled at a share of {self.share:g}: "
                "add more judged prompts, or raise share (on the command line --share)"
            )
            raise InputError(msg)
        write_rows(target, list(self.sheet.values()))

    def certify(
        self, sheet: str | os.PathLike[str], *, delta: Level = "0.05"
    ) -> tuple[CalibrationArtifact, PeopleReport]:
        """Bound the probability that the promise is kept, and certify it if the bound reaches the target.

        Args:
            sheet: The sheet, filled in from the top; rows below the first open prompt do not count yet.
            delta: Probability that the bound is wrong at any time, 0 < delta < 1. So this may be called after
                every label.

        Returns:
            The artifact, with a certificate if the target is reached, and the progress of the labels.

        Raises:
            InputError: If the sheet cannot be read, or people have certified the same of this artifact with
                other prompts, more labels or another delta.
            RecordError: If a row is not from the sample, contradicts another, or is missing.
        """
        text = format_alpha(delta, "delta")
        outcomes = self._read_outcomes(read_sheet(Path(sheet), partly=True))
        prompts, needs = self.prompts, self.prompts.needs_label
        state = JudgedEProcess.start(self.share)
        labelled = agreed = row = 0
        for row, record_id in enumerate([*self.ids, None]):
            if record_id is None or (needs[row] and outcomes[record_id] is None):
                break
            kept = bool(self.by_judge[row])
            if needs[row]:
                kept = bool(outcomes[record_id])
                labelled += 1
                agreed += kept == bool(self.by_judge[row])
            state = state.update(*prompts.get(row), np.array(kept))
        at_least = float(state.compute_bound(float(text)))
        report = PeopleReport(
            about="sets" if self.bot is None else "answers",
            delta=text,
            target=self.target,
            at_least=at_least,
            prompts=len(self.ids),
            to_label=int(needs.sum()),
            labelled=labelled,
            waiting=sum(outcome is not None for outcome in outcomes.values()) - labelled,
            agreed=agreed,
            expected_labels=state.forecast_labels(self.target, float(text), prompts.get(slice(row, None))),
        )
        return (self._certify(report, row) if report.is_certified else self.artifact), report

    def _read_outcomes(self, sheet: Sheet) -> dict[str, bool | None]:
        """Return whether the promise is kept, by id of the prompts on the sheet; None if still open."""
        texts: dict[str, list[str]] = {}
        for name, (record, slots) in self.sheet.items():
            sheet.check_input(name, record.input)
            labels_of = list_labels(record)
            texts[name] = [labels_of[slot][0] for slot in slots]
        sheet.check_rows(
            {(name, text) for name, several in texts.items() for text in several},
            "text to label",
            "not in the sample of prompts to label: only prompts drawn at random count. Was the sheet "
            "written for other records, or for another share, level or target?",
        )
        outcomes: dict[str, bool | None] = {}
        rule = self.artifact.parsed_set_rule
        for name, wanted in texts.items():
            rows = [sheet.rows.get((name, text)) for text in wanted]
            if None in rows:
                problem = f"no row has {wanted[rows.index(None)]!r:.80} of {name!r:.80}: was one deleted?"
                raise RecordError(sheet.source, 0, "id", problem)
            labels = [row.correct for row in rows if row is not None]
            kept = set()
            for guess in (False, True):  # of each label that is missing
                filled = [guess if label is None else label for label in labels]
                shown = np.ones((1, len(filled)), dtype=np.bool_)
                kept.add(all(filled) if self.bot else bool(rule.covers(np.array([filled]), shown)[0]))
            outcomes[name] = kept.pop() if len(kept) == 1 else None
        return outcomes

    def _certify(self, report: PeopleReport, prompts: int) -> CalibrationArtifact:
        """Return the artifact with a certificate by so many prompts, in place of one from no more labels."""
        artifact = self.artifact
        made = PeopleCertificate(
            alpha=self.alpha,
            delta=report.delta,
            prompts=prompts,
            records_digest=self.digest,
            artifact_digest=artifact.frozen_digest,
            about=report.about,
            set_rule=artifact.set_rule if self.bot is None else None,
            max_mean_score=None if self.bot is None else self.bot.max_mean_score,
            max_score=None if self.bot is None else self.bot.max_score,
            labelled=report.labelled,
            agreed=report.agreed,
            at_least=report.at_least,
        )
        others = [one for one in artifact.people_certificates if one.subject != made.subject]
        for one in artifact.people_certificates:
            same = (one.records_digest, one.delta) == (made.records_digest, made.delta)
            if one not in others and not (same and one.labelled <= made.labelled):
                msg = (
                    "people have certified this already with other prompts, more labels or another delta. "
                    "Certifying again until the result pleases would invalidate it: if there is a reason to, "
                    "start from the artifact without that certificate"
                )
                raise InputError(msg)
        return artifact.model_copy(update={"people_certificates": [*others, made]})


def _choose_target(
    artifact: CalibrationArtifact, until: float | None, max_wrong_rate: Level | None, alpha: Level | None
) -> tuple[float, str, WrongRateCertificate | None]:
    """Return what to certify: the target probability, the level, and the bot (None for sets)."""
    if (until is None) == (max_wrong_rate is None):
        msg = (
            "say what to certify: until=0.8, how often sets keep their promise at least, or "
            "max_wrong_rate=0.1, how often bot mode's answers are wrong at most"
        )
        raise InputError(msg)
    if until is not None:
        if not 0.0 < until <= LARGEST_TARGET:
            msg = f"until is {until!r}; expected a share in (0, {LARGEST_TARGET}]{suggest_share(until)}"
            raise InputError(msg)
        return float(until), artifact.select_level(alpha), None
    bot = artifact.certified_bot
    rate = format_alpha(max_wrong_rate or 0, "max_wrong_rate")
    target = float(compute_tau(rate))
    if target > LARGEST_TARGET:
        msg = f"max_wrong_rate is {rate}; people can certify rates from {1.0 - LARGEST_TARGET:g} on"
        raise InputError(msg)
    certificate = bot.certificates[0] if len(bot.certificates) == 1 else bot.find_certificate(rate)
    if alpha is not None:
        msg = "alpha is about sets, and max_wrong_rate about answers: leave one of them out"
        raise InputError(msg)
    return target, certificate.alpha, certificate


def _sample_prompts(
    artifact: CalibrationArtifact,
    labelled: LabelledBatch,
    alpha: str,
    bot: WrongRateCertificate | None,
    share: float,
) -> tuple[tuple[str, ...], JudgedPrompts, BoolArray, BoolArray]:
    """Apply the artifact to judged prompts; order those that count, and sample those for people to label."""
    cut = None if bot is None else bot.cut
    seen = compute_outcomes(artifact, labelled, alpha, cut=cut)
    accepted, flagged = seen.decisions.accepted, seen.decisions.not_certifiable
    if bot is None:
        rule, chosen = artifact.parsed_set_rule, np.ones(len(labelled), dtype=np.bool_)
        none, every = np.zeros_like(accepted), np.ones_like(accepted)
        known = flagged | (rule.covers(none, accepted) == rule.covers(every, accepted))
        kept, slots = seen.kept, accepted
    else:
        chosen, known = seen.decisions.answered, np.zeros(len(labelled), dtype=np.bool_)
        kept = ~seen.wrong
        slots = np.arange(accepted.shape[1]) == seen.shown[:, np.newaxis]
    called_wrong = (~labelled.correct & labelled.draws.is_drawn).sum(axis=1) / labelled.draws.counts
    doubt = np.where(kept, called_wrong, 1.0)
    split = artifact.calibration.split
    strata = assign_strata(kept, doubt, known)
    inclusion = np.where(known, 1.0, compute_inclusion(share, doubt))
    sampled = split.draw_uniforms("people label", labelled.ids) < inclusion
    order = np.argsort(split.draw_uniforms("people order", labelled.ids), kind="stable")
    order = order[chosen[order]]
    return (
        tuple(labelled.ids[row] for row in order.tolist()),
        JudgedPrompts(strata[order], inclusion[order], sampled[order]),
        np.asarray(kept[order], dtype=np.bool_),
        np.asarray(slots[order], dtype=np.bool_),
    )
