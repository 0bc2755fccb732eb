"""Statistics: one number per prompt, out of its scores, its answers or its metadata.

Each depends on the candidates as a multiset: drawn in another order, they give the same number to the last
bit. And each treats a prompt alone exactly as it treats it among thousands. Serving sees one prompt,
calibration all of them; a difference in the last bit would put a prompt that sits on a fitted cut-off on the
other side of it. NumPy promises no such thing for sums along an axis (their order of additions follows memory
layout) nor for logarithms (vector and scalar code differ), so sums here run from the smallest value to the
largest, one addition at a time, and logarithms come from a table that is computed one count at a time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from langchain_cfc._internal.arrays import FloatArray, IntArray
from langchain_cfc.candidates import CandidateBatch, Scalar
from langchain_cfc.errors import FeatureError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_LISTED = 20


def written_key(key: str) -> str:
    """A metadata key as the grammar writes it: plain where it is an identifier, else a JSON string."""
    return key if _IDENTIFIER.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def written_category(value: Scalar) -> str:
    """A category as column names write it; texts that look like a number or a boolean keep their quotes."""
    plain = isinstance(value, str) and value not in ("true", "false")
    return written_key(str(value)) if plain else json.dumps(value, ensure_ascii=False)


def number(value: float) -> str:
    """A number for readers, to twelve significant digits: cut-offs that differ must read differently."""
    return f"{value:.12g}"


def listed(items: Iterable[str]) -> str:
    """Names for an error message, the first twenty of them."""
    names = list(items)
    rest = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "") if names else "none"


Measure: TypeAlias = Callable[[CandidateBatch], FloatArray]

# Metadata may hold any number; beyond this, differences and products of two of them would overflow.
LARGEST = 1e100


def mean_score(draws: CandidateBatch) -> FloatArray:
    """Mean of a prompt's n scores: (N,), in [0, 1]. The paper's statistic T."""
    return _mean(_sorted_scores(draws))


def min_score(draws: CandidateBatch) -> FloatArray:
    """Smallest score: (N,), in [0, 1]."""
    return _sorted_scores(draws)[:, 0]


def max_score(draws: CandidateBatch) -> FloatArray:
    """Largest score: (N,), in [0, 1]. The paper's maximum loss on TriviaQA."""
    return _sorted_scores(draws)[:, -1]


def std_score(draws: CandidateBatch) -> FloatArray:
    """Standard deviation of the scores, with divisor n: (N,), in [0, 1/2]; exactly 0 where all are equal."""
    return _std(_sorted_scores(draws))


def score_gap(draws: CandidateBatch) -> FloatArray:
    """Second smallest score minus the smallest: (N,), in [0, 1]; 0 where n is 1."""
    ordered = _sorted_scores(draws)
    gap: FloatArray = ordered[:, min(1, draws.n - 1)] - ordered[:, 0]
    return gap


def entropy(draws: CandidateBatch) -> FloatArray:
    """Entropy of the distribution of answers, in nats: (N,), in [0, log n]. Used by the paper on TriviaQA."""
    n = draws.n
    parts = np.array([0.0, *((count / n) * math.log(n / count) for count in range(1, n + 1))])
    return _total(parts[_sorted_counts(draws)])


def distinct_answers(draws: CandidateBatch) -> FloatArray:
    """Number of different answers: (N,), in 1..n."""
    return np.asarray(np.count_nonzero(_sorted_counts(draws), axis=1), dtype=np.float64)


def top_share(draws: CandidateBatch) -> FloatArray:
    """Share of the candidates that give the most frequent answer: (N,), in [1/n, 1]."""
    share: FloatArray = _sorted_counts(draws)[:, -1] / draws.n
    return share


def mean_length(draws: CandidateBatch) -> FloatArray:
    """Mean number of characters of the answers: (N,), at least 0."""
    return _mean(_sorted_lengths(draws))


def min_length(draws: CandidateBatch) -> FloatArray:
    """Number of characters of the shortest answer: (N,), at least 0."""
    return _sorted_lengths(draws)[:, 0]


def max_length(draws: CandidateBatch) -> FloatArray:
    """Number of characters of the longest answer: (N,), at least 0."""
    return _sorted_lengths(draws)[:, -1]


def std_length(draws: CandidateBatch) -> FloatArray:
    """Standard deviation of the answers' lengths, with divisor n: (N,), at least 0."""
    return _std(_sorted_lengths(draws))


SCORE_STATISTICS: Mapping[str, Measure] = {
    measure.__name__: measure for measure in (mean_score, min_score, max_score, std_score, score_gap)
}
_COUNT_STATISTICS: Mapping[str, Measure] = {
    measure.__name__: measure for measure in (entropy, distinct_answers, top_share)
}
_LENGTH_STATISTICS: Mapping[str, Measure] = {
    measure.__name__: measure for measure in (mean_length, min_length, max_length, std_length)
}
ANSWER_STATISTICS: Mapping[str, Measure] = {**_COUNT_STATISTICS, **_LENGTH_STATISTICS}
STATISTICS: Mapping[str, Measure] = {**SCORE_STATISTICS, **ANSWER_STATISTICS}


@dataclass(frozen=True)
class Statistic:
    """A statistic as feature text names it: one of `STATISTICS`, or a number out of the prompt's metadata.

    Attributes:
        name: A name of `STATISTICS`, or `meta`.
        key: The metadata key, where the name is `meta`.
    """

    name: str
    key: str | None = None

    @property
    def text(self) -> str:
        """The canonical feature text, such as `mean_score` or `meta(year)`."""
        return self.name if self.key is None else f"meta({written_key(self.key)})"

    @property
    def words(self) -> str:
        """The same for readers, such as `mean score` or `year`."""
        return self.name.replace("_", " ") if self.key is None else written_key(self.key)

    @property
    def needs_answers(self) -> bool:
        """Whether scores alone do not tell it."""
        return self.name in ANSWER_STATISTICS

    def values(self, draws: CandidateBatch) -> FloatArray:
        """The statistic of every prompt.

        Args:
            draws: The candidates of N prompts.

        Returns:
            (N,) finite numbers.

        Raises:
            FeatureError: If the draws hold no answers, or a prompt's metadata no such number.
        """
        if self.text in draws.measured:
            return draws.measured[self.text]
        if self.key is None:
            return STATISTICS[self.name](draws)
        numbers = [_metadata_number(row, entries, self.key) for row, entries in enumerate(draws.metadata)]
        return np.array(numbers, dtype=np.float64)


def measured(draws: CandidateBatch) -> CandidateBatch:
    """The same draws with every statistic that they tell computed once and for all.

    For whoever fits many feature maps on parts of one dataset; nothing is worth remembering for one map.

    Args:
        draws: The candidates of N prompts.

    Returns:
        Draws whose `measured` holds the statistics of scores and, where there are answers, of answers.
    """
    told = dict(SCORE_STATISTICS)
    told |= {} if draws.answer_codes is None else _COUNT_STATISTICS
    told |= {} if draws.lengths is None else _LENGTH_STATISTICS
    known = {name: measure(draws) for name, measure in told.items()}
    for values in known.values():
        values.flags.writeable = False  # shared by all who look them up
    return replace(draws, measured=known)


def metadata_value(row: int, entries: Mapping[str, Scalar], key: str) -> Scalar:
    """What a prompt's metadata holds under a key."""
    if key not in entries:
        msg = (
            f"prompt {row} has no metadata {key!r}, which is read here; its metadata keys are: "
            f"{listed(entries)}"
        )
        raise FeatureError(msg, row)
    return entries[key]


def _metadata_number(row: int, entries: Mapping[str, Scalar], key: str) -> float:
    value = metadata_value(row, entries, key)
    # Written so that NaN fails it as well.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
        msg = (
            f"metadata {key!r} of prompt {row} is {value!r}; meta({written_key(key)}) needs a finite number "
            f"of size at most {LARGEST:g}. For categories take group({written_key(key)})"
        )
        raise FeatureError(msg, row)
    return float(value)


def _sorted_scores(draws: CandidateBatch) -> FloatArray:
    return np.sort(np.ascontiguousarray(draws.scores), axis=1)


def _sorted_lengths(draws: CandidateBatch) -> FloatArray:
    if draws.lengths is None:
        raise _no_answers()
    return np.sort(np.ascontiguousarray(draws.lengths), axis=1).astype(np.float64)


def _sorted_counts(draws: CandidateBatch) -> IntArray:
    """(N, n) how many candidates give each answer, ascending; 0 for each answer fewer than n."""
    if draws.answer_codes is None:
        raise _no_answers()
    size, n = draws.answer_codes.shape
    cells = draws.answer_codes + n * np.arange(size)[:, None]
    counts = np.bincount(cells.ravel(), minlength=size * n).reshape(size, n)
    return np.sort(counts, axis=1).astype(np.int64)


def _no_answers() -> FeatureError:
    return FeatureError(
        f"{listed(ANSWER_STATISTICS)} need the candidates' answers, and these draws hold scores only; "
        f"statistics of the scores are: {listed(SCORE_STATISTICS)}"
    )


def _total(rows: FloatArray) -> FloatArray:
    # A running sum has no freedom in its order of additions; see the top of this file.
    return np.add.accumulate(rows, axis=1)[:, -1]


def _mean(ordered: FloatArray) -> FloatArray:
    # Rounding can push the quotient out of [min, max]; clipped, the mean of equal values is their value.
    mean: FloatArray = np.minimum(
        np.maximum(_total(ordered) / ordered.shape[1], ordered[:, 0]), ordered[:, -1]
    )
    return mean


def _std(ordered: FloatArray) -> FloatArray:
    distances = ordered - _mean(ordered)[:, None]
    deviation: FloatArray = np.sqrt(_total(distances * distances) / ordered.shape[1])
    return deviation
