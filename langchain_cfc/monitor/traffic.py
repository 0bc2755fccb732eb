"""Served results as calibration and evaluation take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.monitor.observed import Observed
from langchain_cfc.monitor.sequential_tests import Label
from langchain_cfc.records import tabulate

# Seconds from 1970 to the year 9999.
_LATEST = 253_370_764_800.0


@dataclass(frozen=True)
class Traffic:
    """Results that one artifact served, with what is known of them.

    Attributes:
        artifact: The artifact.
        results: N results.
        labels: The labels there are, by the id of the result.
    """

    artifact: CalibrationArtifact
    results: tuple[Observed, ...]
    labels: Mapping[str, Label]

    def __len__(self) -> int:
        """The number of results N."""
        return len(self.results)

    def labelled(self, *, leave_out_incomplete: bool = False) -> Traffic:
        """The results with complete labels.

        Args:
            leave_out_incomplete: Whether to pass over labels that do not speak of every candidate.

        Raises:
            InputError: If there is such a label and it is not to be passed over.
        """
        known = [one for one in self.results if one.id in self.labels]
        whole = [one for one in known if self.labels[one.id].complete]
        if len(whole) < len(known) and not leave_out_incomplete:
            msg = (
                f"{len(known) - len(whole)} of {len(known)} labels do not say of every candidate whether it "
                "is correct, so nobody knows what a new threshold would have let in. Without them, the "
                "others would be chosen by how they turned out: label all candidates, those of empty sets "
                "included; or leave them out, if whether a label is complete depends neither on what is "
                "correct nor on what results look like"
            )
            raise InputError(msg)
        return replace(self, results=tuple(whole))

    def fair(self, least: float) -> Traffic:
        """Labelled results that speak of all alike: those that count, see `Label.fair`.

        Args:
            least: The smallest probability with which any result was chosen.
        """
        return replace(
            self, results=tuple(one for one in self.results if self.labels[one.id].fair(one, least))
        )

    def weights(self, least: float) -> FloatArray | None:
        """(N,) for how much each labelled result speaks, see `Label.weight`; None where each is one."""
        weights = np.array([self.labels[one.id].weight(least) for one in self.results], dtype=np.float64)
        return None if (weights == 1.0).all() else weights

    def take(self, ids: Sequence[str]) -> Traffic:
        """Some of the results, in the order of their ids."""
        known = {one.id: one for one in self.results}
        return replace(self, results=tuple(known[name] for name in ids))

    def at(self, alpha: str) -> Traffic:
        """The results that were asked for at one level."""
        return replace(self, results=tuple(one for one in self.results if one.alpha == alpha))

    def table(self) -> LabelledBatch:
        """All results with their labels; candidates of which nobody says anything count as wrong."""
        n = self.artifact.n
        kinds = self.artifact.calibration.prompt_kinds
        truths = [_truths(self.labels.get(one.id), n) for one in self.results]
        return LabelledBatch(
            draws=CandidateBatch(
                np.array([one.scores for one in self.results], dtype=np.float64).reshape(-1, n),
                np.array([one.codes for one in self.results], dtype=np.int64).reshape(-1, n),
                np.array([one.lengths for one in self.results], dtype=np.int64).reshape(-1, n),
                tuple(one.metadata for one in self.results),
            ),
            correct=np.array(truths, dtype=np.bool_).reshape(-1, n),
            ids=tuple(one.id for one in self.results),
            clusters=(None,) * len(self.results),
            recorded=n,
            # Where nothing looks at answers, nobody has checked how serving tells them apart.
            extracted=self.artifact.calibration.extracted_answers if self.artifact.needs_answers else None,
            raw={
                name: np.array([one.outputs[name] for one in self.results], dtype=np.float64).reshape(-1, n)
                for name in self._verifiers
            },
            # Serving takes no other prompts than these.
            prompt_kinds=None if kinds is None else frozenset(kinds),
        )

    def scored_for(self, artifact: CalibrationArtifact) -> LabelledBatch:
        """The table with the scores that another artifact would see.

        Raises:
            InputError: If it takes another number of candidates, other verifiers, or metadata that was not
                kept.
        """
        if artifact.n != self.artifact.n:
            msg = f"results hold {self.artifact.n} candidates, and the other artifact decides on {artifact.n}"
            raise InputError(msg)
        ours, theirs = (one.combination is not None for one in (self.artifact, artifact))
        if artifact.needs_answers and not self.artifact.needs_answers:
            msg = (
                "the other artifact looks at distinct answers, and the one that serves does not: nothing "
                "says that answers were told apart as it takes them"
            )
            raise InputError(msg)
        if ours and not theirs:
            msg = "results hold a combined score, and the other artifact takes that of one verifier"
            raise InputError(msg)
        missing = [
            key for key in artifact.metadata_keys if any(key not in one.metadata for one in self.results)
        ]
        if missing:
            msg = (
                f"the other artifact reads the metadata {missing[0]!r}, which was not kept: make the monitor "
                f"with metadata=[{missing[0]!r}] and wait for new results"
            )
            raise InputError(msg)
        return tabulate(self.table(), combination=artifact.combination)

    @property
    def models(self) -> tuple[str, ...]:
        """What the models that drew call themselves."""
        return tuple(dict.fromkeys(model for one in self.results for model in one.models))

    @property
    def _verifiers(self) -> tuple[str, ...]:
        return () if self.artifact.combination is None else self.artifact.combination.names


def check_time(since: float) -> None:
    """Refuse what is no time in seconds since 1970.

    Raises:
        InputError: If it is none.
    """
    if not 0.0 <= since < _LATEST:
        msg = f"since: expected seconds since 1970, got {since!r}"
        raise InputError(msg)


def time_of(seconds: float) -> str:
    """A time in ISO 8601, UTC, for people and for `--since`."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds").partition("+")[0]


def _truths(label: Label | None, n: int) -> list[bool]:
    if label is None or label.correct is None or isinstance(label.correct, bool):
        return [False] * n
    return [bool(one) for one in label.correct]
