"""`AttemptLedger`: every attempt to certify something with the same labels, so that delta holds for all.

A certificate at level delta is false with probability at most delta. Nine attempts at level delta on the same
labels, such as one after each delivery of new labels, are up to nine chances to be wrong. So attempt k on
labels that overlap those of earlier attempts is tested at delta x w_k, with the shares w = 0.8, 0.1, 0.05,
0.025, ... (alpha spending), and within an attempt this level is divided among the rates or levels that are
tested together. A repetition with equal labels and settings is the same attempt and gives the same result.

*The theorem.* Let the prompts be independent and identically distributed, and let records and settings of
every attempt depend on their labels only through whether all earlier attempts were refused. Then the
probability that a false certificate is issued, at the first certificate or in attempts planned in any case,
is at most delta. *Proof.* As long as attempts are refused there is only one possible history, so attempt k is
one fixed test, chosen without its labels. It certifies something false with probability at most delta w_k,
since each of the R tests in it has level delta w_k / R. The same holds for attempts that are made whatever
the outcome of earlier ones. The shares sum to 1 (union bound); tests may depend on each other in any way.

*More labels are allowed*, since a fixed test on a larger sample is another fixed test, and an attempt on
entirely new labels starts again with w_1: given everything before, its labels are a fresh sample.

*Why nothing else may be seen.* Where a choice among 200 settings depends on figures from the same labels, 200
tests are made and not one. Measured: a first attempt at 0.8 delta and then the best-looking of 200 settings
at 0.1 delta certify falsely 8.5 % of the time at delta = 5 %. So a figure by setting that is computed from
labels is recorded as a *look* at their prompts. Settings that were not tried before it certify on the other
prompts only. If m settings were tried, on any labels, the look may choose among them, so that m tests are
made: attempt k counts as number k + m - 1, as m w_{k + m - 1} <= w_k. Refusals print no figures from
certification labels.

*After a certificate* its figures are known. One more attempt remains within its own share, and within delta
together with the others if it was planned anyway. For tests of one hypothesis each, what is planned may even
depend on whether earlier ones certified: w_k is at least the sum of all later shares, a certificate that
would be false ends the argument, and one that would be true has spent nothing, which pays for two futures.

Sources: alpha spending (Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials", Biometrika
70); Learn then Test (Angelopoulos, Bates, Candes, Jordan and Lei 2021); optional stopping (Armitage,
McPherson and Rowe 1969, "Repeated significance tests on accumulating data", JRSS A 132); what a choice may
depend on (Dwork et al. 2015, "The reusable holdout", Science 349).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from langchain_cfc.artifact.content import ArtifactContent
from langchain_cfc.artifact.facts import HASH_BYTES, Attempt
from langchain_cfc.candidates import LabelledBatch, list_ids_and_clusters
from langchain_cfc.errors import InputError, OverlapError, UnattainableTargetError
from langchain_cfc.guarantee.certified import compute_share

# Whatever holds the attempts that were made before.
Previous: TypeAlias = "AttemptLedger | ArtifactContent | UnattainableTargetError | None"


@dataclass(frozen=True)
class AttemptLedger:
    """The attempts on labels, in the order in which they were made.

    Attributes:
        attempts: The attempts.
        nearby: Attempts on other files, which may hold copies of these records: one counts if it shares an
            input with the prompts of an attempt. Equal ids alone may be names of other prompts.
    """

    attempts: tuple[Attempt, ...] = ()
    nearby: tuple[Attempt, ...] = ()

    @classmethod
    def collect(cls, *previous: Previous) -> AttemptLedger:
        """Join the attempts of ledgers, artifacts and refusals, each attempt once.

        Args:
            *previous: Objects with attempts; None for no attempts.

        Returns:
            The ledger, in the order of the arguments.

        Raises:
            InputError: If an argument is something else.
        """
        joined: dict[tuple[str, ...], Attempt] = {}
        nearby: tuple[Attempt, ...] = ()
        for one in previous:
            held = one.attempts if isinstance(one, UnattainableTargetError) else one
            if held is not None and not hasattr(held, "attempts"):
                msg = f"after: expected an artifact, a refusal or an AttemptLedger, got {type(one).__name__}"
                raise InputError(msg)
            for attempt in () if held is None else held.attempts:
                joined.setdefault(attempt.key, attempt)
            nearby += getattr(held, "nearby", ())
        return cls(tuple(joined.values()), nearby)

    def plan_attempt(
        self,
        labelled: LabelledBatch,
        settings: str,
        records: str,
        *,
        harmless_look: str | None = None,
    ) -> PlannedAttempt:
        """Plan an attempt, before its labels are used.

        Args:
            labelled: The prompts that are to certify.
            settings: Digest of everything but the records that determines the test.
            records: Digest of all labelled records of the attempt.
            harmless_look: Name of looks that these settings cannot depend on.

        Returns:
            The attempt, on the prompts at which no figure was looked at before its settings were known.

        Raises:
            OverlapError: If there is no such prompt.
        """
        inputs = frozenset(_hash_inputs(labelled))
        shared = AttemptLedger(tuple(one for one in self.nearby if not inputs.isdisjoint(one.names)))
        attempts = AttemptLedger.collect(self, shared).attempts
        tried = [row for row, one in enumerate(attempts) if one.settings == settings]
        fixed = attempts[: tried[0]] if tried else attempts
        shown = [one for one in attempts if one.kind == "look" and one.settings != harmless_look]
        looks = [one for one in shown if one in fixed]
        seen = frozenset().union(*(one.names for one in looks))
        if seen:
            unseen = np.flatnonzero([seen.isdisjoint(own) for own in _hash_prompts(labelled)])
            if len(unseen) == 0:
                what = ", ".join(dict.fromkeys(one.settings for one in looks))
                msg = (
                    f"figures from the labels of all {len(labelled)} certification prompts were shown "
                    f"({what}) before these settings were first tried, so these labels cannot certify them: "
                    "label new prompts, and calibrate with these as well"
                )
                raise OverlapError(msg)
            labelled = labelled.take(unseen)
        made = Attempt(
            kind="certificate",
            prompts=_pack_names(labelled),
            records=records,
            settings=settings,
            number=1,
        )
        places = [place for place, one in enumerate(attempts) if one.key == made.key]
        before = attempts[: places[0]] if places else attempts
        number = 1 + _count_linked(before, made.names)
        if not all(made.names.isdisjoint(one.names) for one in shown):
            number += len({one.settings for one in before if one.kind == "certificate"}) - 1
        if places:
            number = attempts[places[0]].number or 1
        return PlannedAttempt(before, made.model_copy(update={"number": number}), labelled)

    def with_look(self, labelled: LabelledBatch, what: str) -> AttemptLedger:
        """Return the ledger after figures by setting were computed from labels.

        Args:
            labelled: The prompts whose labels were used.
            what: What shows the figures, such as `compare`.

        Returns:
            The ledger; equal looks are recorded once.
        """
        look = Attempt(kind="look", prompts=_pack_names(labelled), records="", settings=what)
        return AttemptLedger.collect(self, AttemptLedger((look,)))


@dataclass(frozen=True)
class PlannedAttempt:
    """An attempt whose test is fixed.

    Attributes:
        before: The attempts before it.
        attempt: The attempt, without its outcome.
        labelled: The prompts that may certify.
    """

    before: tuple[Attempt, ...]
    attempt: Attempt
    labelled: LabelledBatch

    @property
    def number(self) -> int:
        """k, counted among the attempts on overlapping labels."""
        return self.attempt.number or 1

    def compute_level(self, delta: str, together: int = 1) -> float:
        """Return the level of each of several tests that are made together: delta x w_k / their number."""
        return float(Fraction(delta) * compute_share(self.number) / together)

    def end(self, *, certified: bool) -> AttemptLedger:
        """Return the ledger up to this attempt, with its outcome."""
        return AttemptLedger((*self.before, self.attempt.model_copy(update={"certified": certified})))


def _hash_names(names: Iterable[str]) -> list[bytes]:
    return [
        hashlib.sha256(f"attempt\0{name}".encode("utf-8", "surrogatepass")).digest()[:HASH_BYTES]
        for name in names
    ]


def _pack_names(labelled: LabelledBatch) -> str:
    names = frozenset().union(*_hash_prompts(labelled))
    return base64.b64encode(b"".join(sorted(names))).decode("ascii")


def _hash_inputs(labelled: LabelledBatch) -> list[bytes]:
    """Return the hash of each prompt's input; none if they are not known."""
    return [] if labelled.inputs is None else _hash_names(f"input:{one}" for one in labelled.inputs.tolist())


def _hash_prompts(labelled: LabelledBatch) -> list[set[bytes]]:
    """Return for each prompt the hashes of its id, its cluster and its input, as far as they are known.

    Ids that are digests change with a corrected reference, and an export may number its rows again: the
    prompt is then known by its input.
    """
    names = [
        set(_hash_names(list_ids_and_clusters([name], [cluster])))
        for name, cluster in zip(labelled.ids, labelled.clusters, strict=True)
    ]
    for own, given in zip(names, _hash_inputs(labelled), strict=False):
        own.add(given)
    return names


def _count_linked(attempts: Sequence[Attempt], names: frozenset[bytes]) -> int:
    """Count the attempts that share prompts with the given ones, or with an attempt that does."""
    rest = [one for one in attempts if one.kind == "certificate"]
    linked, count = set(names), 0
    while True:
        apart = [one for one in rest if linked.isdisjoint(one.names)]
        if len(apart) == len(rest):
            return count
        count += len(rest) - len(apart)
        linked.update(*(one.names for one in rest if not linked.isdisjoint(one.names)))
        rest = apart
