"""Statistics: one number per prompt, computed from its scores, its answers or its metadata.

A statistic is the same to the last bit for every order of the candidates, and for a prompt alone or among
thousands. Serving sees one prompt, calibration all of them; a difference in the last bit could put a prompt
that lies on a fitted cut-off on its other side. NumPy does not guarantee this for sums along an axis (their
order of additions follows memory layout) nor for logarithms (vector and scalar code differ). So sums here run
from the smallest value to the largest, one addition at a time, and logarithms come from a table that is
computed one count at a time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from langchain_cfc.candidates import CandidateBatch, Scalar
from langchain_cfc.errors import FeatureError
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc.support.text import join_names

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that a message lists.
MAX_LISTED = 20
# Metadata may hold any number; beyond this, differences and products of two of them would overflow.
LARGEST_NUMBER = 1e100

Measure: TypeAlias = Callable[[CandidateBatch], FloatArray]


def format_key(key: str) -> str:
    """Format a metadata key for the grammar: plain if it is an identifier, else as a JSON string."""
    return key if _IDENTIFIER.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def format_category(value: Scalar) -> str:
    """Format a category for a column name; texts that look like a number or a boolean keep their quotes."""
    plain = isinstance(value, str) and value not in ("true", "false")
    return format_key(str(value)) if plain else json.dumps(value, ensure_ascii=False)


def format_number(value: float) -> str:
    """Format a number with twelve significant digits, so that different cut-offs read differently."""
    return f"{value:.12g}"


# Statistics of scores, (N,) each, in the unit of the scores.
SCORE_STATISTICS: Mapping[str, Measure] = {
    "mean_score": lambda draws: _compute_mean(_sort_scores(draws)),  # The paper's statistic T
    "min_score": lambda draws: _sort_scores(draws)[:, 0],
    "max_score": lambda draws: _sort_scores(draws)[:, -1],  # The paper's maximum loss on TriviaQA
    "std_score": lambda draws: _compute_std(_sort_scores(draws)),  # Exactly 0 if all are equal
    "score_gap": lambda draws: _compute_score_gap(_sort_scores(draws)),
    "count": lambda draws: draws.counts.astype(np.float64),  # of the candidates drawn, or of the claims
}
# Statistics of the answers, (N,) each: of their distribution, then of their numbers of characters.
ANSWER_STATISTICS: Mapping[str, Measure] = {
    "entropy": lambda draws: _compute_entropy(count_answers(draws)),
    "distinct_answers": lambda draws: np.count_nonzero(count_answers(draws), axis=1).astype(np.float64),
    "top_share": lambda draws: count_answers(draws)[:, -1] / draws.n,  # Share of the most frequent answer
    "mean_length": lambda draws: _compute_mean(_sort_lengths(draws)),
    "min_length": lambda draws: _sort_lengths(draws)[:, 0],
    "max_length": lambda draws: _sort_lengths(draws)[:, -1],
    "std_length": lambda draws: _compute_std(_sort_lengths(draws)),
}
STATISTICS: Mapping[str, Measure] = {**SCORE_STATISTICS, **ANSWER_STATISTICS}


@dataclass(frozen=True)
class Statistic:
    """A statistic that feature text can name: one of `STATISTICS`, or a number from the prompt's metadata.

    Attributes:
        name: A name of `STATISTICS`, or `meta`.
        key: The metadata key, if the name is `meta`.
    """

    name: str
    key: str | None = None

    @property
    def text(self) -> str:
        """The canonical feature text, such as `mean_score` or `meta(year)`."""
        return self.name if self.key is None else f"meta({format_key(self.key)})"

    @property
    def words(self) -> str:
        """The name in plain English, such as `mean score` or `year`."""
        return self.name.replace("_", " ") if self.key is None else format_key(self.key)

    @property
    def needs_answers(self) -> bool:
        """Whether it is computed from the answers."""
        return self.name in ANSWER_STATISTICS

    def compute_values(self, draws: CandidateBatch) -> FloatArray:
        """Compute the statistic of every prompt.

        Args:
            draws: The candidates of N prompts.

        Returns:
            (N,) finite numbers.

        Raises:
            FeatureError: If answers are needed and missing, or a prompt's metadata has no such number.
        """
        if self.name in draws.precomputed:
            return draws.precomputed[self.name]
        if self.key is None:
            return _measure(self.name, draws)
        numbers = [_read_number(row, entries, self.key) for row, entries in enumerate(draws.metadata)]
        return np.array(numbers, dtype=np.float64)


MEAN_SCORE = Statistic("mean_score")


def precompute_statistics(draws: CandidateBatch) -> CandidateBatch:
    """Precompute all statistics, for fitting many feature maps on parts of one dataset.

    Args:
        draws: The candidates of N prompts.

    Returns:
        A batch that holds the statistics of scores and, if answers are known, of answers.
    """
    values_of = {}
    for name in STATISTICS:
        with suppress(FeatureError):  # answers or their lengths are unknown
            values_of[name] = _measure(name, draws)
            values_of[name].flags.writeable = False  # shared between all maps
    return replace(draws, precomputed=values_of)


def _measure(name: str, draws: CandidateBatch) -> FloatArray:
    """Compute a statistic of prompts; those with equally many candidates together, so that none is padded."""
    if draws.drawn is None:
        return STATISTICS[name](draws)
    values = np.empty(len(draws))
    for rows, part in draws.split_by_count():
        values[rows] = STATISTICS[name](part)
    return values


def get_metadata(row: int, entries: Mapping[str, Scalar], key: str) -> Scalar:
    """Return a prompt's metadata under a key; raise a FeatureError that names the row if it is missing."""
    if key not in entries:
        msg = (
            f"prompt {row} has no metadata {key!r}, which the features need; its metadata keys are: "
            f"{join_names([*entries], MAX_LISTED) if entries else 'none'}{suggest_name(key, entries)}"
        )
        raise FeatureError(msg, row)
    return entries[key]


def _read_number(row: int, entries: Mapping[str, Scalar], key: str) -> float:
    value = get_metadata(row, entries, key)
    # NaN fails this test as well.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_NUMBER:
        msg = (
            f"metadata {key!r} of prompt {row} is {value!r}; meta({format_key(key)}) needs a finite number "
            f"of size at most {LARGEST_NUMBER:g}. For categories use group({format_key(key)})"
        )
        raise FeatureError(msg, row)
    return float(value)


def _sort_scores(draws: CandidateBatch) -> FloatArray:
    return np.sort(np.ascontiguousarray(draws.scores), axis=1)


def _sort_lengths(draws: CandidateBatch) -> FloatArray:
    if draws.lengths is None:
        raise _make_missing_answers_error()
    return np.sort(np.ascontiguousarray(draws.lengths), axis=1).astype(np.float64)


def count_answers(draws: CandidateBatch) -> IntArray:
    """Count the candidates of each answer: (N, n), ascending, with leading zeros."""
    if draws.answer_codes is None:
        raise _make_missing_answers_error()
    size, n = draws.answer_codes.shape
    cells = draws.answer_codes + n * np.arange(size)[:, None]
    counts = np.bincount(cells.ravel(), minlength=size * n).reshape(size, n)
    return np.sort(counts, axis=1).astype(np.int64)


def _make_missing_answers_error() -> FeatureError:
    return FeatureError(
        f"{', '.join(ANSWER_STATISTICS)} need the candidates' answers, but there are only scores; "
        f"statistics of scores are: {', '.join(SCORE_STATISTICS)}"
    )


def _compute_score_gap(ordered: FloatArray) -> FloatArray:
    """Compute the second smallest score minus the smallest: in [0, 1]; 0 if n is 1."""
    gap: FloatArray = ordered[:, min(1, ordered.shape[1] - 1)] - ordered[:, 0]
    return gap


def _compute_entropy(counts: IntArray) -> FloatArray:
    """Compute the entropy of the answers in nats: in [0, log n]. Used by the paper on TriviaQA."""
    n = counts.shape[1]
    parts = np.array([0.0, *((count / n) * math.log(n / count) for count in range(1, n + 1))])
    return _compute_sum(parts[counts])


def _compute_sum(rows: FloatArray) -> FloatArray:
    # A running sum has a fixed order of additions; see the module.
    return np.add.accumulate(rows, axis=1)[:, -1]


def _compute_mean(ordered: FloatArray) -> FloatArray:
    # Rounding can move the quotient out of [min, max]; clipped, the mean of equal values is their value.
    mean: FloatArray = np.minimum(
        np.maximum(_compute_sum(ordered) / ordered.shape[1], ordered[:, 0]), ordered[:, -1]
    )
    return mean


def _compute_std(ordered: FloatArray) -> FloatArray:
    distances = ordered - _compute_mean(ordered)[:, None]
    deviation: FloatArray = np.sqrt(_compute_sum(distances * distances) / ordered.shape[1])
    return deviation
