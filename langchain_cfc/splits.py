"""Splits by hash: the part that a prompt belongs to depends on its name and a seed, never on its place.

The same prompt falls into the same part wherever and whenever it is met, and a cluster (conversation,
paraphrases) is never torn apart. Digests of each part's ids, and a small sketch of the ids used, let a later
evaluation prove that it sees new prompts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, field_validator

from langchain_cfc._arrays import IntArray
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import InputError

Part = Literal["fit", "calibration", "test"]
SKETCH_SIZE = 256


class SplitPlan(BaseModel):
    """Shares of the dataset by part.

    Attributes:
        seed: Any text; another seed gives another split.
        fit: Share for fitting feature maps, 0 <= fit < 1.
        test: Share held out for evaluation, 0 <= test < 1; the rest calibrates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seed: str
    fit: float
    test: float

    @field_validator("fit", "test")
    @classmethod
    def _is_share(cls, value: float) -> float:
        if not 0.0 <= value < 1.0:
            msg = f"a split's share must lie in [0, 1), got {value}"
            raise ValueError(msg)
        return value

    def part(self, record_id: str, cluster: str | None) -> Part:
        """The part of a prompt, by the hash of its cluster, or of its id where it stands alone.

        Test prompts are chosen by a hash of their own, so that changing the share for fitting leaves the
        held-out part as it is.
        """
        name = f"id:{record_id}" if cluster is None else f"cluster:{cluster}"
        if _uniform(self.seed, "test", name) < self.test:
            return "test"
        return "fit" if _uniform(self.seed, "fit", name) < self.fit else "calibration"

    def rows(self, labelled: LabelledDraws) -> dict[Part, IntArray]:
        """Row numbers of each part, ascending."""
        parts = np.array(
            [self.part(i, c) for i, c in zip(labelled.ids, labelled.clusters, strict=True)], dtype=object
        )
        names: tuple[Part, ...] = ("fit", "calibration", "test")
        return {name: np.flatnonzero(parts == name) for name in names}

    def one_per_cluster(self, labelled: LabelledDraws) -> IntArray:
        """Rows of one hash-chosen prompt per cluster and of every prompt that stands alone, ascending."""
        chosen: dict[str, tuple[float, int]] = {}
        alone: list[int] = []
        for row, (record_id, cluster) in enumerate(zip(labelled.ids, labelled.clusters, strict=True)):
            if cluster is None:
                alone.append(row)
                continue
            ticket = (_uniform(self.seed, "pick", record_id), row)
            chosen[cluster] = min(ticket, chosen.get(cluster, (math.inf, row)))
        return np.array(sorted([*alone, *(row for _, row in chosen.values())]), dtype=np.int64)

    def sketch(self, names: Iterable[str]) -> tuple[str, ...]:
        """The 256 smallest keyed hashes of some names.

        Whoever meets a share p of the names again meets one of the sketch with probability 1 - (1 - p)^256,
        and the names themselves are not stored.
        """
        return tuple(sorted(_hash(self.seed, "sketch", name).hex()[:16] for name in names)[:SKETCH_SIZE])

    def meets(self, sketch: Sequence[str], names: Iterable[str]) -> bool:
        """Whether any of the names is in the sketch."""
        known = set(sketch)
        return any(_hash(self.seed, "sketch", name).hex()[:16] in known for name in names)


def split_plan(seed: str | int, *, fit: float, test: float) -> SplitPlan:
    """A checked plan.

    Args:
        seed: Any text or whole number.
        fit: Share of the prompts not held out that fits feature maps, in [0, 1).
        test: Share of all prompts held out, in [0, 1).

    Returns:
        The plan.

    Raises:
        InputError: If a share is out of range.
    """
    try:
        return SplitPlan(seed=str(seed), fit=float(fit), test=float(test))
    except ValueError as error:
        msg = f"fit and test must be shares in [0, 1), got fit={fit!r}, test={test!r}"
        raise InputError(msg) from error


def ids_digest(ids: Iterable[str]) -> str:
    """SHA-256 over a set of ids, whatever their order."""
    lines = sorted(_hash(record_id).hex() for record_id in ids)
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _hash(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()


def _uniform(*parts: str) -> float:
    return int.from_bytes(_hash(*parts)[:8], "big") / 2.0**64
