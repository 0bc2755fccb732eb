"""`Draws`: what calibration and serving both know about prompts, as arrays.

Set rules and feature maps read this and nothing else, which is what keeps calibration and serving
exchangeable: offline the arrays hold thousands of labelled prompts, online a single one, and the code in
between cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.errors import InputError

Scalar: TypeAlias = str | int | float | bool


@dataclass(frozen=True)
class Draws:
    """The n candidates of N prompts, ordered by request slot.

    Attributes:
        scores: (N, n) verifier scores in [0, 1], smaller is better.
        answer_codes: (N, n) slot of the first candidate of the same prompt with the same answer; None where
            unknown.
        lengths: (N, n) number of characters of each answer; None where unknown.
        metadata: N mappings of what the prompt's metadata function (or record) says.
    """

    scores: FloatArray
    answer_codes: IntArray | None
    lengths: IntArray | None
    metadata: Sequence[Mapping[str, Scalar]]

    @classmethod
    def of(
        cls,
        scores: FloatArray | Sequence[Sequence[float]],
        answers: Sequence[Sequence[str]] | None = None,
        metadata: Sequence[Mapping[str, Scalar]] | None = None,
    ) -> Draws:
        """Check and pack the candidates of N prompts.

        Args:
            scores: (N, n) verifier scores in [0, 1].
            answers: N lists of n answers (extracted answers where there are any, else the texts).
            metadata: N mappings; empty ones if left out.

        Returns:
            The packed draws.

        Raises:
            InputError: If shapes disagree, n is 0, or a score is not a finite number in [0, 1].
        """
        try:
            matrix = np.array(scores, dtype=np.float64)
        except (TypeError, ValueError) as error:
            msg = "scores must be N lists of n numbers each"
            raise InputError(msg) from error
        if matrix.ndim != 2 or matrix.shape[1] == 0:  # noqa: PLR2004 - rows and columns
            msg = f"scores must be an (N, n) array with n >= 1, got shape {matrix.shape}"
            raise InputError(msg)
        # Written so that NaN fails it as well.
        bad = ~((matrix >= 0.0) & (matrix <= 1.0))
        if bad.any():
            row, slot = (int(i) for i in np.argwhere(bad)[0])
            msg = f"score of candidate {slot} of prompt {row} is {matrix[row, slot]}; expected one in [0, 1]"
            raise InputError(msg)
        size, n = matrix.shape
        codes = lengths = None
        if answers is not None:
            if len(answers) != size or any(len(row_) != n for row_ in answers):
                msg = f"answers must be {size} lists of {n} texts, like the scores"
                raise InputError(msg)
            codes = np.array([_first_slots(row_) for row_ in answers], dtype=np.int64).reshape(size, n)
            lengths = np.array([[len(a) for a in row_] for row_ in answers], dtype=np.int64).reshape(size, n)
        if metadata is not None and len(metadata) != size:
            msg = f"metadata must hold {size} mappings, got {len(metadata)}"
            raise InputError(msg)
        return cls(matrix, codes, lengths, tuple(metadata) if metadata is not None else ({},) * size)

    def __len__(self) -> int:
        """The number of prompts N."""
        return len(self.scores)

    @property
    def n(self) -> int:
        """The number of candidates per prompt."""
        return int(self.scores.shape[1])

    def take(self, rows: IntArray) -> Draws:
        """The same draws for some of the prompts.

        Args:
            rows: (m,) row numbers.

        Returns:
            Draws of m prompts.
        """
        return Draws(
            self.scores[rows],
            None if self.answer_codes is None else self.answer_codes[rows],
            None if self.lengths is None else self.lengths[rows],
            tuple(self.metadata[int(row)] for row in rows),
        )


@dataclass(frozen=True)
class LabelledDraws:
    """Draws with what only calibration and evaluation may see.

    Attributes:
        draws: The candidates of N prompts.
        correct: (N, n) whether each candidate is correct (the paper's A(X, y)).
        ids: N record ids.
        clusters: N cluster names (conversation, set of paraphrases); None where a prompt stands alone.
        recorded: Number of candidates that were recorded; the draws hold the first n of them.
        extracted: Whether an extractor made the answers, or they are the texts themselves; None where some
            are the one and some the other.
    """

    draws: Draws
    correct: BoolArray
    ids: tuple[str, ...]
    clusters: tuple[str | None, ...]
    recorded: int | None = None
    extracted: bool | None = False

    def __post_init__(self) -> None:
        """Refuse labels that do not fit the draws."""
        same_shape = self.correct.shape == self.draws.scores.shape
        if not (same_shape and len(self.ids) == len(self.clusters) == len(self.draws)):
            msg = "labels, ids and clusters must match the draws in number"
            raise InputError(msg)

    def __len__(self) -> int:
        """The number of prompts N."""
        return len(self.draws)

    @property
    def names(self) -> tuple[str, ...]:
        """What the prompts can be recognised by later: their ids, and their clusters."""
        clusters = dict.fromkeys(f"cluster:{cluster}" for cluster in self.clusters if cluster is not None)
        return (*self.ids, *clusters)

    def take(self, rows: IntArray) -> LabelledDraws:
        """The same for some of the prompts; `rows` is (m,) row numbers."""
        return LabelledDraws(
            self.draws.take(rows),
            self.correct[rows],
            tuple(self.ids[int(row)] for row in rows),
            tuple(self.clusters[int(row)] for row in rows),
            self.recorded,
            self.extracted,
        )


def _first_slots(answers: Sequence[str]) -> list[int]:
    first: dict[str, int] = {}
    return [first.setdefault(answer, slot) for slot, answer in enumerate(answers)]
