"""Prompts, splits and plain re-implementations for the tests of this folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from langchain_cfc_lab.methods import Pool, Split, get_methods
from langchain_cfc_lab.splits import Comparison, make_pool

from langchain_cfc import Candidate, PromptRecord
from langchain_cfc.candidates import LabelledBatch, Scalar
from langchain_cfc.demo import load_recording
from langchain_cfc.records import tabulate
from langchain_cfc.support.arrays import FloatArray

Item = TypeVar("Item")

TOPICS = ("art", "law", "maths")


@cache
def tabulate_facts() -> LabelledBatch:
    """The recording that ships, in the order of its file."""
    return tabulate(load_recording())


def draw_world(
    seed: int,
    size: int = 200,
    n: int = 4,
    *,
    decimals: int = 9,
    hopeless: Sequence[float] = (0.0, 0.1, 0.3),
    clusters: Sequence[str | None] | None = None,
) -> LabelledBatch:
    """Independent prompts of three topics: right candidates tend to score lower, some prompts have none.

    Args:
        seed: Of everything random.
        size: Number of prompts.
        n: Candidates per prompt.
        decimals: Of the scores; few make ties.
        hopeless: By topic, the probability that a prompt has no correct candidate; else one slot is correct.
        clusters: Names of clusters.

    Returns:
        The prompts.
    """
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, len(TOPICS), size)
    correct = rng.random((size, n)) < rng.random((size, 1))
    correct[np.arange(size), rng.integers(0, n, size)] = True
    correct &= (rng.random(size) >= np.array(hopeless)[topic])[:, np.newaxis]
    scores = np.where(correct, rng.random((size, n)) ** 2, rng.random((size, n))).round(decimals)
    answers = np.where(correct, "right", np.char.add("wrong", rng.integers(0, 3, (size, n)).astype(str)))
    metadata: list[dict[str, Scalar]] = [
        {"topic": TOPICS[one], "even": one % 2 == 0} for one in topic.tolist()
    ]
    ids = [f"{one:x}" for one in rng.integers(2**63, size=size).tolist()]
    return LabelledBatch.from_arrays(
        ids, scores, correct, answers.tolist(), metadata=metadata, clusters=clusters
    )


def make_records(labelled: LabelledBatch) -> list[PromptRecord]:
    """The same prompts as records, with texts that are told apart as the answers are."""
    codes = labelled.draws.answer_codes
    assert codes is not None
    return [
        PromptRecord(
            id=name,
            input=name,
            metadata=dict(labelled.draws.metadata[row]),
            cluster=labelled.clusters[row],
            candidates=tuple(
                Candidate(
                    text="abcdefgh"[codes[row, slot]] * 3,
                    score=float(labelled.draws.scores[row, slot]),
                    correct=bool(labelled.correct[row, slot]),
                )
                for slot in range(labelled.draws.n)
            ),
        )
        for row, name in enumerate(labelled.ids)
    ]


def shuffle(labelled: LabelledBatch, seed: int) -> LabelledBatch:
    return labelled.take(np.random.default_rng(seed).permutation(len(labelled)))


def make_comparison(labelled: LabelledBatch, methods: Sequence[str], **changes: Any) -> Comparison:
    """A comparison at one level, in halves."""
    settings: dict[str, Any] = {
        "alphas": ("0.3",),
        "features": "hat(mean_score, 5)",
        "set_rule": "all",
        "group_text": "bins(mean_score, 5)",
        "seed": "0",
        "test": 0.5,
        "fit": 0.2,
    }
    settings |= changes
    return Comparison(make_pool(labelled, settings["seed"]), get_methods(methods), **settings)


def make_split_by_hand(
    labelled: LabelledBatch,
    fit: Iterable[int],
    calibration: Iterable[int],
    test: Iterable[int],
    *,
    features: str = "1",
    set_rule: str = "all",
) -> Split:
    fit, calibration, test = (np.array(list(part), dtype=np.int64) for part in (fit, calibration, test))
    return Split(Pool(labelled), fit, calibration, test, features, set_rule)


def list_numbers(data: Any) -> list[float]:
    if isinstance(data, dict):
        return [number for value in data.values() for number in list_numbers(value)]
    if isinstance(data, (list, tuple)):
        return [number for value in data for number in list_numbers(value)]
    return [data] if isinstance(data, (int, float)) else []


def count_progress(seen: list[int]) -> Callable[[Iterable[Item], int], Iterable[Item]]:
    """A progress that writes down how many splits it was told of, once for each that passes."""

    def progress(items: Iterable[Item], total: int) -> Iterable[Item]:
        for item in items:
            seen.append(total)
            yield item

    return progress


def compute_mean(values: FloatArray | Sequence[float]) -> float:
    """A mean that is NaN where there is nothing, without a warning."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
