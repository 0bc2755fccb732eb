"""Splits by hash: the part that a prompt belongs to depends on its name and a seed, never on its place.

The same prompt falls into the same part wherever and whenever it is met, and a cluster (conversation,
paraphrases) is never torn apart. Digests of each part's ids, and a small sketch of the ids used, let a later
evaluation prove that it sees new prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, field_validator, model_serializer

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError

Part = Literal["fit", "calibration", "certification", "test"]
# One after the other takes its share of what is left; who is left calibrates.
_TAKEN: tuple[Part, ...] = ("test", "certification", "fit")
SKETCH_SIZE = 256


class SplitPlan(BaseModel):
    """Shares of the dataset by part.

    Attributes:
        seed: Any text; another seed gives another split.
        fit: Share for fitting feature maps of what neither of the next two takes, 0 <= fit < 1; the rest
            calibrates.
        test: Share held out for evaluation, 0 <= test < 1.
        certification: Share for certificates of what is not held out for evaluation, 0 <= certification < 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seed: str
    fit: float
    test: float
    certification: float = 0.0

    @field_validator("fit", "test", "certification")
    @classmethod
    def _is_share(cls, value: float) -> float:
        if not 0.0 <= value < 1.0:
            msg = f"a split's share must lie in [0, 1), got {value}"
            raise ValueError(msg)
        return value

    @model_serializer(mode="wrap")
    def _without_parts_of_none(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Artifacts of before there was a third split keep their content and their digest.
        data: dict[str, Any] = serialised(self)
        if not self.certification:
            data.pop("certification", None)
        return data

    def part(self, record_id: str, cluster: str | None) -> Part:
        """The part of a prompt, by the hash of its cluster, or of its id where it stands alone.

        Prompts held out are chosen by hashes of their own, so that changing the share for fitting leaves
        them as they are.
        """
        (name,) = _split_names([record_id], [cluster])
        return next((part for part in _TAKEN if self._chosen(part, [name])[0]), "calibration")

    def rows(self, labelled: LabelledBatch) -> dict[Part, IntArray]:
        """Row numbers of each part, ascending."""
        names = _split_names(labelled.ids, labelled.clusters)
        free = np.ones(len(names), dtype=np.bool_)
        parts: dict[Part, BoolArray] = {}
        for part in _TAKEN:
            parts[part] = free & self._chosen(part, names)
            free &= ~parts[part]
        parts["calibration"] = free
        return {part: np.flatnonzero(parts[part]) for part in get_args(Part)}

    def _chosen(self, part: Part, names: Sequence[str]) -> BoolArray:
        """Whether the hash of each name falls within a part's share of all hashes."""
        share: float = getattr(self, part)
        if share == 0.0:
            return np.zeros(len(names), dtype=np.bool_)
        return np.asarray(_uniforms(self.seed, part, names) < share, dtype=np.bool_)

    def one_per_cluster(self, labelled: LabelledBatch) -> IntArray:
        """Rows of one hash-chosen prompt per cluster and of every prompt that stands alone, ascending."""
        members = [row for row, cluster in enumerate(labelled.clusters) if cluster is not None]
        tickets = _uniforms(self.seed, "pick", [labelled.ids[row] for row in members]).tolist()
        chosen: dict[str | None, tuple[float, int]] = {}
        for ticket in zip(tickets, members, strict=True):
            cluster = labelled.clusters[ticket[1]]
            chosen[cluster] = min(ticket, chosen.get(cluster, ticket))
        taken = np.ones(len(labelled), dtype=np.bool_)
        taken[members] = False
        taken[[row for _, row in chosen.values()]] = True
        return np.flatnonzero(taken)

    def fair(self, labelled: LabelledBatch) -> LabelledBatch:
        """Prompts distributed as those they were chosen from, without weights.

        Of prompts with weights each stays with its weight as probability (rejection sampling, von Neumann
        1951), by hash; without weights all stay.
        """
        if labelled.weights is None:
            return labelled
        return replace(labelled.take(np.flatnonzero(self.stays(labelled))), weights=None)

    def stays(self, labelled: LabelledBatch) -> BoolArray:
        """(N,) which prompts are in the fair sample."""
        if labelled.weights is None:
            return np.ones(len(labelled), dtype=np.bool_)
        return np.asarray(self.uniforms("label", labelled.ids) < labelled.weights, dtype=np.bool_)

    def uniforms(self, purpose: str, ids: Sequence[str]) -> FloatArray:
        """A number in (0, 1) for each id, uniform over ids and purposes, the same each time."""
        return np.clip(_uniforms(self.seed, purpose, ids), 2.0**-53, 1.0 - 2.0**-53)

    def sketch(self, names: Iterable[str]) -> tuple[str, ...]:
        """The 256 smallest keyed hashes of some names.

        Whoever meets a share p of the names again meets one of the sketch with probability 1 - (1 - p)^256,
        and the names themselves are not stored.
        """
        smallest = nsmallest(SKETCH_SIZE, _hashes(names, self.seed, "sketch"))
        return tuple(one.hex()[:16] for one in smallest)

    def meets(self, sketch: Sequence[str], names: Iterable[str]) -> bool:
        """Whether any of the names is in the sketch."""
        known = set(sketch)
        return any(one.hex()[:16] in known for one in _hashes(names, self.seed, "sketch"))


def split_plan(seed: str | int, *, fit: float, test: float, certification: float = 0.0) -> SplitPlan:
    """A checked plan."""
    try:
        return SplitPlan(seed=str(seed), fit=float(fit), test=float(test), certification=float(certification))
    except ValueError as error:
        msg = (
            f"fit, test and certification must be shares in [0, 1), got fit={fit!r}, test={test!r}, "
            f"certification={certification!r}"
        )
        raise InputError(msg) from error


def ids_digest(ids: Iterable[str]) -> str:
    """SHA-256 over a set of ids, whatever their order."""
    hashes = b"".join(sorted(_hashes(ids)))
    # In hexadecimal, a hash on each line.
    return "sha256:" + hashlib.sha256(hashes.hex("\n", hashlib.sha256().digest_size).encode()).hexdigest()


def _split_names(ids: Iterable[str], clusters: Iterable[str | None]) -> list[str]:
    """What decides on the part of each prompt."""
    return [
        f"id:{record_id}" if cluster is None else f"cluster:{cluster}"
        for record_id, cluster in zip(ids, clusters, strict=True)
    ]


def _hashes(names: Iterable[str], *before: str) -> list[bytes]:
    """SHA-256 of each name with the same texts before it."""
    start = "".join(f"{one}\0" for one in before)
    sha256 = hashlib.sha256
    return [sha256(f"{start}{name}".encode("utf-8", "surrogatepass")).digest() for name in names]


def _uniforms(seed: str, purpose: str, names: Iterable[str]) -> FloatArray:
    """A number in [0, 1] for each name, uniform over names and purposes."""
    first = b"".join([one[:8] for one in _hashes(names, seed, purpose)])
    return np.frombuffer(first, dtype=">u8").astype(np.float64) / 2.0**64
