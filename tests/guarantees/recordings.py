"""Real recordings, split again and again: the one that ships, and any whose paths `CFC_RECORDINGS` names.

What is random is the split alone. The recording is a fixed pool of prompts, no population is spoken of, and
splits by different seeds are independent (SHA-256 standing in for chance), although they share all prompts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from langchain_cfc import FeatureMap, PromptRecord, read_records
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.records.splits import make_split_plan

SHIPPED = str(files("langchain_cfc") / "demo" / "facts.jsonl.gz")
# Paths are separated as in PATH.
PATHS = (SHIPPED, *filter(None, os.environ.get("CFC_RECORDINGS", "").split(os.pathsep)))
NAMES = tuple(Path(path).name.split(".jsonl")[0] for path in PATHS)


@dataclass(frozen=True)
class Recording:
    """A recording, and what to ask of it.

    Attributes:
        shipped: Whether it is the one that ships: what else is known of it is asserted, too.
        records: The prompts.
        provenance: Their header.
        table: The same as arrays.
        groups: The term that tells kinds of prompts apart.
        alpha: The error level: the smallest tenth from 0.2 on that is within reach.
        fit: A fifth of the prompts, the same for every split, for feature maps that are fixed beforehand.
        pool: The others, which are split.
    """

    shipped: bool
    records: tuple[PromptRecord, ...]
    provenance: Provenance | None
    table: LabelledBatch
    groups: str
    alpha: str
    fit: LabelledBatch
    pool: LabelledBatch

    def feature_map(self, text: str) -> FeatureMap:
        """The map of this text, fitted on prompts that are in no split."""
        return FeatureMap.parse(text).fit(self.fit.draws)


@lru_cache
def load_recording(path: str) -> Recording:
    """The recording at a path."""
    source = read_records(path)
    records = tuple(source)
    table = tabulate(records, provenance=source.provenance)
    attainable = Fraction(int(table.correct.any(axis=1).sum()), len(table))
    tenths = next(tenth for tenth in range(2, 10) if 1 - Fraction(tenth, 10) <= attainable)
    rows = make_split_plan("a fixed map", fit=0.2, test=0.0).list_rows(table)
    return Recording(
        shipped=path == SHIPPED,
        records=records,
        provenance=source.provenance,
        table=table,
        groups="group(topic)" if "topic" in records[0].metadata else "group(source)",
        alpha=f"0.{tenths}",
        fit=table.take(rows["fit"]),
        pool=table.take(rows["calibration"]),
    )


def take_parts(artifact: CalibrationArtifact, pool: LabelledBatch, *names: str) -> LabelledBatch:
    """The prompts of some parts of an artifact's split, in the pool's order."""
    rows = artifact.calibration.split.list_rows(pool)
    chosen: Sequence[np.ndarray] = [found for name, found in rows.items() if name in names]
    return pool.take(np.sort(np.concatenate(chosen)))
