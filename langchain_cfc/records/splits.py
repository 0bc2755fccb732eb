"""Splits by hash: the part of a prompt depends on its id or cluster and a seed, never on its position.

The same prompt always falls into the same part, and a cluster (conversation, paraphrases) is never divided.
Digests of each part's ids, and a small sketch of the ids used, let a later evaluation detect reused prompts.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Annotated, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError, SamplingWarning
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.support.serialization import canonical_json, compute_sha256
from langchain_cfc.support.suggestions import suggest_share

Part = Literal["fit", "calibration", "test"]
_Share: TypeAlias = Annotated[float, Field(ge=0.0, lt=1.0)]
SKETCH_SIZE = 256
_ALL_BITS = 2**64 - 1


class SplitPlan(BaseModel):
    """The seed and the shares that divide a dataset into parts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seed: str  # Any text; another seed gives another split
    fit: _Share  # Share for fitting feature maps, of the prompts not held out; the rest calibrates
    test: _Share  # Share of all prompts held out for evaluation and certificates

    def find_part(self, record_id: str, cluster: str | None) -> Part:
        """Return the part of a prompt, by the hash of its cluster, or of its id if it has none."""
        part: Part = self._find_parts([record_id], [cluster])[0].item()
        return part

    def list_rows(self, labelled: LabelledBatch) -> dict[Part, IntArray]:
        """Return the row numbers of each part, ascending."""
        parts = self._find_parts(labelled.ids, labelled.clusters)
        return {part: np.flatnonzero(parts == part) for part in get_args(Part)}

    def _find_parts(self, ids: Sequence[str], clusters: Sequence[str | None]) -> NDArray[np.str_]:
        """Return the part of each prompt.

        Each part hashes with its own key, so that changing the share for fitting does not change which
        prompts are held out.
        """
        names = _list_hashed_names(ids, clusters)
        parts = np.full(len(names), "calibration")
        for part in ("fit", "test"):  # what is held out does not fit
            if share := getattr(self, part):
                parts[_hash_to_uniforms(self.seed, part, names) < share] = part
        return parts

    def select_one_per_cluster(self, labelled: LabelledBatch) -> IntArray:
        """Return rows of one hash-chosen prompt per cluster and of prompts without a cluster, ascending."""
        members = [row for row, cluster in enumerate(labelled.clusters) if cluster is not None]
        tickets = _hash_to_uniforms(self.seed, "pick", [labelled.ids[row] for row in members])
        # The smallest ticket of a cluster comes last, and replaces the others.
        by_ticket = [members[place] for place in np.argsort(tickets, kind="stable")[::-1]]
        chosen = {labelled.clusters[row]: row for row in by_ticket}
        alone = set(range(len(labelled))).difference(members)
        return np.array(sorted(alone.union(chosen.values())), dtype=np.int64)

    def draw_uniforms(self, purpose: str, ids: Sequence[str]) -> FloatArray:
        """Return a reproducible number in (0, 1) for each id, uniform over ids and purposes."""
        return np.clip(_hash_to_uniforms(self.seed, purpose, ids), 2.0**-53, 1.0 - 2.0**-53)

    def compute_sketch(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the 256 smallest keyed hashes of some names, which do not reveal the names.

        A dataset that shares a fraction p of the names hits the sketch with probability 1 - (1 - p)^256.
        """
        smallest = nsmallest(SKETCH_SIZE, _compute_hashes(names, self.seed, "sketch"))
        return tuple(one.hex()[:16] for one in smallest)

    def has_overlap(self, sketch: Sequence[str], names: Iterable[str]) -> bool:
        """Return whether any of the names is in the sketch."""
        known = set(sketch)
        return any(one.hex()[:16] in known for one in _compute_hashes(names, self.seed, "sketch"))


def make_split_plan(seed: str | int, *, fit: float, test: float) -> SplitPlan:
    """Build a `SplitPlan`; an InputError if a share is out of range."""
    try:
        return SplitPlan(seed=str(seed), fit=float(fit), test=float(test))
    except ValueError as error:
        meant = "".join(map(suggest_share, (fit, test)))
        msg = f"fit and test must be shares in [0, 1), got fit={fit!r}, test={test!r}{meant}"
        raise InputError(msg) from error


def digest_ids(ids: Iterable[str]) -> str:
    """Compute a SHA-256 over a set of ids that does not depend on their order."""
    hashes = b"".join(sorted(_compute_hashes(ids)))
    # One hash per line, in hexadecimal.
    return compute_sha256(hashes.hex("\n", hashlib.sha256().digest_size))


def digest_inputs(inputs: Iterable[object]) -> IntArray:
    """Compute the digest of each prompt, equal for prompts that differ at most in white space.

    The ids of chat messages are left out, because programs give every message another one.
    """
    texts = (canonical_json(_normalise_input(one)) for one in inputs)
    digests = b"".join(one[:8] for one in _compute_hashes(texts))
    return np.frombuffer(digests, dtype=">i8").astype(np.int64)


def _normalise_input(value: object) -> object:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, list):
        return list(map(_normalise_input, value))
    if isinstance(value, dict):
        is_message = "content" in value
        return {key: _normalise_input(one) for key, one in value.items() if not (is_message and key == "id")}
    return value


def cluster_repeated_inputs(labelled: LabelledBatch) -> LabelledBatch:
    """Make one cluster of the prompts that say the same under different ids.

    Their labels are not independent: ten questions with forty ids each are ten labels, not 400. A prompt that
    names a cluster stays in it, and prompts that say the same but name none join it.

    Args:
        labelled: N prompts. Without known inputs they are returned as they are.

    Returns:
        The prompts, with clusters for those that repeat.

    Warns:
        SamplingWarning: If any prompt joins a cluster; it says how many distinct prompts these are.
    """
    if labelled.inputs is None:
        return labelled
    _, groups, counts = np.unique(labelled.inputs, return_inverse=True, return_counts=True)
    clusters = list(labelled.clusters)
    repeated = np.flatnonzero(counts[groups] > 1).tolist()
    named = sorted(
        ((groups[row], clusters[row]) for row in repeated if clusters[row] is not None), reverse=True
    )
    known: dict[int, str | None] = dict(named)  # the first of several names, whatever the order of the rows
    joined = [row for row in repeated if clusters[row] is None]
    for row in joined:
        clusters[row] = known.get(groups[row]) or f"input:{int(labelled.inputs[row]) & _ALL_BITS:016x}"
    if not joined:
        return labelled
    msg = (
        f"{len(joined)} of {len(labelled)} prompts repeat the input of another under another id: they are "
        f"{len(set(groups[joined].tolist()))} distinct prompts, and each of these counts once, as a cluster"
    )
    warnings.warn(msg, SamplingWarning, stacklevel=2)
    return replace(labelled, clusters=tuple(clusters))


def _list_hashed_names(ids: Iterable[str], clusters: Iterable[str | None]) -> list[str]:
    """Return the name of each prompt that is hashed to its part: its cluster, or its id without one."""
    return [
        f"id:{record_id}" if cluster is None else f"cluster:{cluster}"
        for record_id, cluster in zip(ids, clusters, strict=True)
    ]


def _compute_hashes(names: Iterable[str], *before: str) -> list[bytes]:
    """Compute the SHA-256 of each name, prefixed with the same texts."""
    start = "".join(f"{one}\0" for one in before)
    sha256 = hashlib.sha256
    return [sha256(f"{start}{name}".encode("utf-8", "surrogatepass")).digest() for name in names]


def _hash_to_uniforms(seed: str, purpose: str, names: Iterable[str]) -> FloatArray:
    """Hash each name to a number in [0, 1], uniform over names and purposes."""
    first = b"".join([one[:8] for one in _compute_hashes(names, seed, purpose)])
    return np.frombuffer(first, dtype=">u8").astype(np.float64) / 2.0**64
