"""`PeopleSample`: certify a frozen artifact with people's labels of some prompts and a judge's of all.

The prompts are new, independent, and distributed as those to come. The judge has labelled all of them, as any
labeler does; its labels promise nothing here. People label a random part, chosen by the hash of each prompt's
id with a probability that grows with the judge's doubt, in an order by hash as well. Both are fixed by the
ids, the judge's labels and the share before any person sees the sheet, so that what is labelled from its top
is a valid sample whenever people stop. `certificates.judged` derives the bound.

*What is judged.* Of the sets of a level, whether each keeps its promise: it holds a correct answer or is
flagged, or of claims, at most k unsupported ones are left. The sheet has every answer of a set, and a person
may stop at the first correct one. Of bot mode, whether the best answer is right, among the prompts that are
answered; of claims, whether one drawn by hash among those shown is supported. A prompt whose labels cannot
matter, such as a flagged one, counts without any.

*Doubt* is 1 where the judge says that the promise is broken or the answer wrong, and otherwise the share of
the prompt's candidates, or of the answer's claims, that it calls wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from langchain_cfc._internal.arrays import BoolArray
from langchain_cfc._internal.suggestions import suggest_share
from langchain_cfc.artifact import CalibrationArtifact, PackedArray, PeopleEvidence, tabulate_held_out
from langchain_cfc.candidates import LabelledBatch, Unit
from langchain_cfc.certificates.coverage import check_origin, compute_outcomes, compute_records_digest
from langchain_cfc.certificates.judged import (
    BROKE,
    KEPT,
    LARGEST_TARGET,
    LEAST_SHARE,
    UNLABELLED,
    JudgedEProcess,
    JudgedPrompts,
    assign_strata,
    compute_inclusion,
)
from langchain_cfc.collect.review import check_sheet_path, list_labels, write_rows
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.guarantee import AnswerPolicy, PeopleCertificate
from langchain_cfc.labelers.human import Sheet, read_sheet
from langchain_cfc.records import LabelledRecord, Provenance, Records
from langchain_cfc.thresholds import Level, compute_tau, format_alpha, format_delta

# How many of the next prompts to label a report names.
_NEXT = 10


class PeopleReport(BaseModel):
    """How far people's labels have come.

    Attributes:
        about: Whether the `sets` of a level are certified, or the `answers` of bot mode.
        unit: What is kept or rejected.
        alpha: Error level of the sets, as decimal text.
        delta: Failure probability, as decimal text.
        target: Probability that is to be certified: that a set keeps its promise, or that an answer is right.
        at_least: Lower bound on that probability with the labels so far; 0 says nothing.
        prompts: Number of judged prompts that count; of bot mode, those that are answered.
        to_label: How many of them are on the sheet.
        labelled: How many of these people have labelled, without a gap from the top.
        waiting: How many are labelled further down, and count once the gap is closed.
        agreed: In how many of those labelled the judge's labels come to the same.
        expected_labels: How many more are expected to be needed; 0 once it is certified, None if the sheet is
            not expected to suffice. Before people have labelled any it is a guess of how good the judge is.
        next_ids: The next prompts to label.
        bounds: The bound after each labelled prompt, as pairs (number of labelled prompts, bound).
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    about: Literal["sets", "answers"]
    unit: Unit
    alpha: str
    delta: str
    target: float
    at_least: float
    prompts: int
    to_label: int
    labelled: int
    waiting: int
    agreed: int
    expected_labels: int | None
    next_ids: tuple[str, ...]
    bounds: tuple[tuple[int, float], ...]

    @property
    def is_certified(self) -> bool:
        """Whether the bound has reached the target."""
        return self.at_least >= self.target


@dataclass(frozen=True)
class _JudgedSets:
    """Judged prompts in the order in which they certify."""

    ids: tuple[str, ...]  # (m,)
    prompts: JudgedPrompts  # (m,)
    by_judge: BoolArray  # (m,) whether the promise is kept by the judge's labels, or without any
    slots: BoolArray  # (m, n) answers or claims whose labels decide


@dataclass(frozen=True)
class PeopleSample:
    """Judged prompts in the order in which they certify, and which of them people are to label.

    Make it with `draw`, which takes the same arguments each time: another share, level or file gives another
    sample, and the sheet of the first does not fit it.
    """

    artifact: CalibrationArtifact
    alpha: str
    policy: AnswerPolicy | None  # whose answers are certified; None for sets
    target: float
    share: float
    digest: str  # of the judged records
    judged: _JudgedSets
    records: Mapping[str, LabelledRecord | None]  # by id; None for those that people need not label

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
            records: Prompts with a judge's labels, independent and identically distributed with those to
                come. Of the records that the artifact was calibrated on, the part held out for certificates
                is used. One prompt of each cluster counts.
            until: Certify that sets keep their promise with at least this probability, in (0, 0.999].
            max_wrong_rate: Certify instead that at most this share of bot mode's answers is wrong, in
                [0.001, 1).
                Where the artifact holds several policies, it is that of this rate.
            alpha: Error level of the sets; may be left out where there is only one, and for bot mode.
            share: About what share of the prompts people may be asked to label, in [0.01, 1]. The smaller,
                the fewer labels are needed and the more judged prompts.
            provenance: Header of the records where they do not carry one themselves.

        Returns:
            The sample.

        Raises:
            OverlapError: If these are calibration records and none are left for certificates.
            CalibrationError: If no prompt is left.
            InputError: If not exactly one of `until` and `max_wrong_rate` is given, a number is out of range,
                the records are a table without texts, the artifact lacks the level or the policy, or its
                promise is given a correct candidate, which judges cannot tell for sure.
            FingerprintError: If the records come from another generator, verifier or extractor.
        """
        if isinstance(records, LabelledBatch):
            msg = (
                "people read texts, which a table does not hold: give records, such as `store export` writes"
            )
            raise InputError(msg)
        if artifact.calibration.drawn_among is not None:
            msg = (
                "this artifact's promise is about prompts for which a correct candidate is drawn, and only "
                "people can say which these are: calibrate without given_drawn to certify with people"
            )
            raise InputError(msg)
        if not LEAST_SHARE <= share <= 1.0:
            msg = f"share is {share!r}; expected a share in [{LEAST_SHARE}, 1]{suggest_share(share)}"
            raise InputError(msg)
        target, level, policy = _find_subject(artifact, until, max_wrong_rate, alpha)
        source = records if isinstance(records, Records) else list(records)
        if provenance is None and isinstance(source, Records):
            provenance = source.provenance
        check_origin(artifact, provenance)
        labelled, _ = tabulate_held_out(artifact, source, "certification")
        digest = compute_records_digest(labelled)
        judged = _judge(artifact, labelled, level, policy, share)
        needed = set(np.array(judged.ids)[judged.prompts.needs_label].tolist())
        every = source.iterate() if isinstance(source, Records) else source
        texts: dict[str, LabelledRecord | None] = {
            record.id: record if record.id in needed else None for record in every
        }
        return cls(artifact, level, policy, target, share, digest, judged, texts)

    def write_sheet(self, path: str | os.PathLike[str]) -> None:
        """Write the sheet, in the order in which people are to label it from the top.

        Args:
            path: Where to write, ending in `.csv`; an existing file is never overwritten.

        Raises:
            InputError: If the file exists or cannot be written, no prompt is to be labelled, or a text is too
                long for a cell.
        """
        target = check_sheet_path(path)
        rows = [(record, slots) for _, record, slots in self._list_rows()]
        if not rows:
            msg = (
                f"none of {len(self.judged.ids)} prompts is to be labelled at a share of {self.share:g}: "
                "bring more judged prompts, or raise share (on the command line --share)"
            )
            raise InputError(msg)
        write_rows(target, rows)

    def certify(
        self, sheet: str | os.PathLike[str], *, delta: Level = "0.05"
    ) -> tuple[CalibrationArtifact, PeopleReport]:
        """Bound how often the promise is kept, with what is filled in of the sheet.

        Args:
            sheet: The sheet, filled in from the top; what is below the first prompt left open does not count
                yet.
            delta: Probability that the bound is ever wrong, 0 < delta < 1. It may be asked for after every
                label.

        Returns:
            The artifact, with a certificate if the target is reached, and how far the labels have come.

        Raises:
            InputError: If the sheet cannot be read, or the artifact has a certificate by people about the
                same from other prompts or more labels.
            RecordError: If a row is not from the sample, contradicts another, or is missing.
        """
        text = format_delta(delta)
        outcomes = self._read_outcomes(read_sheet(Path(sheet), partly=True))
        judged, prompts = self.judged, self.judged.prompts
        needs = prompts.needs_label
        state = JudgedEProcess.start(self.share)
        labelled = agreed = row = 0
        bounds = [(0, 0.0)]
        seen: list[str] = []
        for row, record_id in enumerate([*judged.ids, None]):
            if record_id is None or (needs[row] and outcomes[record_id] is None):
                break
            kept = bool(judged.by_judge[row])
            if needs[row]:
                kept = bool(outcomes[record_id])
                labelled += 1
                agreed += kept == bool(judged.by_judge[row])
            state = state.update(*prompts.get(row), np.array(kept))
            seen.append((KEPT if kept else BROKE) if prompts.sampled[row] else UNLABELLED)
            if prompts.sampled[row]:
                bounds.append((labelled, float(state.bound(float(text)))))
        at_least = float(state.bound(float(text)))
        rest = [one for one in np.array(judged.ids)[row:][needs[row:]].tolist() if outcomes[one] is None]
        report = PeopleReport(
            about="sets" if self.policy is None else "answers",
            unit=self.artifact.unit,
            alpha=self.alpha,
            delta=text,
            target=self.target,
            at_least=at_least,
            prompts=len(judged.ids),
            to_label=int(needs.sum()),
            labelled=labelled,
            waiting=int(needs.sum()) - labelled - len(rest),
            agreed=agreed,
            expected_labels=state.forecast_labels(self.target, float(text), prompts.skip(row)),
            next_ids=tuple(rest[:_NEXT]),
            bounds=tuple(dict([*bounds, (labelled, at_least)]).items()),
        )
        return (self._store(report, "".join(seen)) if report.is_certified else self.artifact), report

    def _read_outcomes(self, sheet: Sheet) -> dict[str, bool | None]:
        """Return for each prompt on the sheet whether the promise is kept; None where that is still open."""
        if sheet.by != "id":
            raise RecordError(sheet.source, 0, "prompt", "found it; expected id, as on the sheet as written")
        texts: dict[str, list[str]] = {}
        for record_id, record, slots in self._list_rows():
            labels_of = list_labels(record)
            texts[record_id] = [labels_of[slot][0] for slot in slots]
        for (name, text), row in sheet.rows.items():
            if name not in self.records:
                problem = f"{name!r:.80} is in none of the judged records: is the sheet of others?"
                raise RecordError(sheet.source, row.line, "id", problem)
            if name not in texts:
                problem = (
                    f"{name!r:.80} is not in the sample of prompts to label: only those chosen at random "
                    "count. Was the sheet written for another share, level or target?"
                )
                raise RecordError(sheet.source, row.line, "id", problem)
            if text not in texts[name]:
                problem = f"{text!r:.80} is nothing to label of {name!r:.80}: was it changed since?"
                raise RecordError(sheet.source, row.line, "text", problem)
        outcomes: dict[str, bool | None] = {}
        rule = self.artifact.parsed_set_rule
        for name, wanted in texts.items():
            rows = [sheet.rows.get((name, text)) for text in wanted]
            if None in rows:
                problem = f"no row has {wanted[rows.index(None)]!r:.80} of {name!r:.80}: was one deleted?"
                raise RecordError(sheet.source, 0, "id", problem)
            labels = [row.correct for row in rows if row is not None]
            shown = np.ones((1, len(labels)), dtype=np.bool_)
            least, most = (
                np.array([[label is True or (label is None and doubtful) for label in labels]])
                for doubtful in (False, True)
            )
            if self.policy is None:
                low, high = (bool(rule.covers(one, shown)[0]) for one in (least, most))
            else:
                low, high = bool(least.all()), bool(most.all())
            outcomes[name] = low if low == high else None
        return outcomes

    def _list_rows(self) -> Iterator[tuple[str, LabelledRecord, list[int]]]:
        """Yield each prompt to label with its record, and the slots whose labels decide."""
        for record_id, needs, slots in zip(
            self.judged.ids, self.judged.prompts.needs_label, self.judged.slots, strict=True
        ):
            record = self.records[record_id]
            if needs and record is not None:
                yield record_id, record, np.flatnonzero(slots).tolist()

    def _store(self, report: PeopleReport, outcomes: str) -> CalibrationArtifact:
        """Return the artifact with a certificate, in place of one with fewer labels of the same prompts."""
        artifact = self.artifact
        made = PeopleCertificate(
            alpha=self.alpha,
            delta=report.delta,
            prompts=len(outcomes),
            records_digest=self.digest,
            artifact_digest=artifact.frozen_digest,
            about=report.about,
            unit=artifact.unit,
            unsupported=artifact.at_most if self.policy is None else None,
            policy=self.policy,
            labelled=report.labelled,
            agreed=report.agreed,
            at_least=report.at_least,
        )
        others = [one for one in artifact.people_certificates if not one.is_about(self.alpha, self.policy)]
        for one in artifact.people_certificates:
            same = (one.records_digest, one.delta) == (made.records_digest, made.delta)
            if one not in others and not (same and one.labelled <= made.labelled):
                msg = (
                    "people have certified this already with other prompts, more labels or another delta. "
                    "Certifying again until the result pleases would void it: if there is a reason to, take "
                    "the artifact as it was before"
                )
                raise InputError(msg)
        strata, inclusion, _ = self.judged.prompts.get(slice(len(outcomes)))
        evidence = PeopleEvidence(
            alpha=self.alpha,
            policy=self.policy,
            share=self.share,
            strata="".join(map(str, strata.tolist())),
            outcomes=outcomes,
            inclusion=PackedArray.pack(inclusion),
        )
        kept = [
            one for one in artifact.people_evidence if (one.alpha, one.policy) != (self.alpha, self.policy)
        ]
        update = {"people_certificates": [*others, made], "people_evidence": [*kept, evidence]}
        return artifact.model_copy(update=update)


def _find_subject(
    artifact: CalibrationArtifact, until: float | None, max_wrong_rate: Level | None, alpha: Level | None
) -> tuple[float, str, AnswerPolicy | None]:
    """Return what is to be certified: its probability, the level, and the policy of answers."""
    if (until is None) == (max_wrong_rate is None):
        msg = (
            "say what people's labels are to certify: until=0.8 that sets keep their promise so often, or "
            "max_wrong_rate=0.1 that bot mode's answers are wrong so rarely (on the command line --until, "
            "--max-wrong-rate)"
        )
        raise InputError(msg)
    if until is not None:
        if not 0.0 < until <= LARGEST_TARGET:
            msg = f"until is {until!r}; expected a share in (0, {LARGEST_TARGET}]{suggest_share(until)}"
            raise InputError(msg)
        return float(until), artifact.level(alpha), None
    policy = artifact.certified_policy
    rate = format_alpha(max_wrong_rate or 0, "max_wrong_rate")
    target = float(compute_tau(rate))
    if target > LARGEST_TARGET:
        msg = f"max_wrong_rate is {rate}; people can certify rates from {1.0 - LARGEST_TARGET:g} on"
        raise InputError(msg)
    certificate = policy.find_certificate(rate if policy.others else None)
    if alpha is not None and format_alpha(alpha) != certificate.alpha:
        msg = f"bot mode answers from sets at alpha = {certificate.alpha}: leave alpha out"
        raise InputError(msg)
    return target, certificate.alpha, certificate.policy


def _judge(
    artifact: CalibrationArtifact,
    labelled: LabelledBatch,
    alpha: str,
    policy: AnswerPolicy | None,
    share: float,
) -> _JudgedSets:
    """Decide on judged prompts, put those that count in order, and choose those that people label."""
    seen = compute_outcomes(artifact, labelled, alpha, policy or AnswerPolicy())
    accepted, flagged = seen.decisions.accepted, seen.decisions.not_certifiable
    if policy is None:
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
    sampled = split.uniforms("people label", labelled.ids) < inclusion
    order = np.argsort(split.uniforms("people order", labelled.ids), kind="stable")
    order = order[chosen[order]]
    return _JudgedSets(
        ids=tuple(labelled.ids[row] for row in order.tolist()),
        prompts=JudgedPrompts(strata[order], inclusion[order], sampled[order]),
        by_judge=np.asarray(kept[order], dtype=np.bool_),
        slots=np.asarray(slots[order], dtype=np.bool_),
    )
