"""Convert served results to the form that calibration and evaluation take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc_monitor.observed import Label, ObservedResult, is_number

# Seconds from 1970 to the year 9999.
_LATEST_TIME = 253_370_764_800.0


@dataclass(frozen=True)
class Traffic:
    """Results that one artifact served, and their labels."""

    artifact: CalibrationArtifact
    results: tuple[ObservedResult, ...]
    labels: Mapping[str, Label]  # by the id of the result

    def __len__(self) -> int:
        """The number of results N."""
        return len(self.results)

    def select_labelled(self, *, leave_out_incomplete: bool = False) -> Traffic:
        """Select the results with complete labels; raise an InputError for others, or leave them out."""
        known = [one for one in self.results if one.id in self.labels]
        whole = [one for one in known if self.labels[one.id].is_complete]
        if len(whole) < len(known) and not leave_out_incomplete:
            msg = (
                f"{len(known) - len(whole)} of {len(known)} labels do not say for every candidate whether "
                "it is correct. Label all candidates; or leave these results out, if which labels are "
                "complete was chosen at random"
            )
            raise InputError(msg)
        return replace(self, results=tuple(whole))

    def select_sampled(self, least: float) -> Traffic:
        """Select a fair sample of labelled results, see `Label.is_sampled`."""
        return replace(
            self, results=tuple(one for one in self.results if self.labels[one.id].is_sampled(one, least))
        )

    def to_batch(self) -> LabelledBatch:
        """Return all results as a batch with their labels; unlabelled candidates count as wrong."""
        n = self.artifact.n
        kinds = self.artifact.calibration.prompt_kinds
        drawn = np.array([len(one.scores) for one in self.results], dtype=np.int64)

        def pad(rows: Iterable[Sequence[Any]], kind: type[np.generic]) -> Any:
            # Prompts with fewer candidates than n are padded with zeros, which `keep_drawn` overwrites.
            return np.array([[*row, *[0] * (n - len(row))] for row in rows], dtype=kind).reshape(-1, n)

        batch = LabelledBatch(
            draws=CandidateBatch(
                pad((one.scores for one in self.results), np.float64),
                pad((one.codes for one in self.results), np.int64),
                pad((one.lengths for one in self.results), np.int64),
                tuple(one.metadata for one in self.results),
            ),
            correct=pad(
                (_list_truths(self.labels.get(one.id), len(one.scores)) for one in self.results), np.bool_
            ),
            ids=tuple(one.id for one in self.results),
            clusters=(None,) * len(self.results),
            recorded=n,
            # Unless the artifact needs answers, nothing has checked how serving tells them apart.
            extracted=self.artifact.calibration.extracted_answers if self.artifact.needs_answers else None,
            # Serving refuses other kinds of prompts.
            prompt_kinds=None if kinds is None else frozenset(kinds),
        )
        return batch.keep_drawn(drawn)

    @property
    def models(self) -> tuple[str, ...]:
        """Distinct names that the models reported in their responses."""
        return tuple(dict.fromkeys(model for one in self.results for model in one.models))


def check_time(since: float) -> None:
    """Raise an InputError for a number that cannot be seconds since 1970."""
    if not is_number(since) or not 0.0 <= since < _LATEST_TIME:
        msg = f"since: expected seconds since 1970, got {since!r}"
        raise InputError(msg)


def _list_truths(label: Label | None, n: int) -> list[bool]:
    if label is None or label.correct is None or isinstance(label.correct, bool):
        return [False] * n
    return [bool(one) for one in label.correct]
