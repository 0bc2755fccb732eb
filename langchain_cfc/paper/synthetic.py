"""`SyntheticWorld`: a generator whose tables agree with those of the paper's synthetic experiment.

The paper says that difficulty T lies in [0, 1], that correctness becomes rarer with it, and that scores come
"from a known difficulty-dependent distribution". It does not print the distributions. These were fitted:

    T ~ U(0, 1)
    correct_j | T ~ Bernoulli(p(T)),  p(T) = rate + slope (1 - T)
    V_j | wrong ~ U(0, 1)
    V_j | correct, T ~ U^(1 / k(T)),  k(T) = shape + growth T,  so that P(V_j <= v) = v^k(T)

Its four numbers, 0.034, 0.276, 0.686 and 0.237, were fitted to the rows of TopK and ICP in the main table,
and to nothing else. The rows of Learnt CP, CFC and CFC-PAC, and the whole ablation over calibration sizes and
numbers of candidates, are predictions.

It is not the paper's generator, and it is not unique: sets and success scores only depend on the order of
scores, so that any increasing map applied to all of them gives the same ECR, GSC and APSS for every rule by
order statistics. Only Learnt CP, a regression on the scores as they are, would notice. So the shapes of the
two score distributions are fixed relative to each other, and a figure of thresholds against difficulty shows
them up to that map.

Source: the paper's Section "Synthetic Data" and the appendix of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws, LabelledDraws
from langchain_cfc.errors import InputError

DIFFICULTY = "difficulty"  # the key of T in the metadata

# Gauss-Legendre nodes for means over T: the integrands are smooth, and 64 leave errors far below 1e-12 for a
# few hundred candidates.
_NODES = 64


@dataclass(frozen=True)
class SyntheticWorld:
    """Prompts of known difficulty, with candidates whose correctness and scores depend on it.

    Attributes:
        rate: Chance that a candidate of the hardest prompt, T = 1, is correct; in [0, 1].
        slope: What is added to it for the easiest, T = 0; `rate + slope` in [0, 1].
        shape: k of scores of correct candidates at T = 0, above 0. With k < 1 they tend to be smaller than
            those of wrong ones.
        growth: What is added to it at T = 1; `shape + growth` above 0.

    Raises:
        InputError: If a chance is not in [0, 1], or a shape is not above 0.
    """

    rate: float = 0.034
    slope: float = 0.276
    shape: float = 0.686
    growth: float = 0.237

    def __post_init__(self) -> None:
        """Refuse what is no chance or no shape; both are linear in T, so that the ends decide."""
        chances = {"rate": self.rate, "rate + slope": self.rate + self.slope}
        shapes = {"shape": self.shape, "shape + growth": self.shape + self.growth}
        for name, chance in chances.items():
            if not 0.0 <= chance <= 1.0:
                msg = f"{name} is {chance}; expected a chance in [0, 1]"
                raise InputError(msg)
        for name, shape in shapes.items():
            if not 0.0 < shape < np.inf:
                msg = f"{name} is {shape}; expected a finite number above 0"
                raise InputError(msg)

    def draw(self, prompts: int, n: int, rng: np.random.Generator) -> LabelledDraws:
        """Draw labelled prompts.

        Args:
            prompts: Number of prompts N >= 1.
            n: Number of candidates n >= 1 of each (the paper's M).
            rng: Source of randomness, used the same way for equal numbers: T, then correctness, then scores.

        Returns:
            N prompts with ids "0" to "N-1", metadata `{"difficulty": T}` and no answers.

        Raises:
            InputError: If a number is below 1.
        """
        if prompts < 1 or n < 1:
            msg = f"expected at least one prompt and one candidate, got {prompts} prompts and n = {n}"
            raise InputError(msg)
        difficulty = rng.random(prompts)
        correct = rng.random((prompts, n)) < self.chance(difficulty)[:, None]
        scores = rng.random((prompts, n))
        # Powers take most of the time, and five candidates in six are wrong.
        rows, slots = np.nonzero(correct)
        scores[rows, slots] **= (1.0 / self.exponent(difficulty))[rows]
        metadata = tuple({DIFFICULTY: one} for one in difficulty.tolist())
        ids = tuple(map(str, range(prompts)))
        draws = Draws(scores, None, None, metadata, {f"meta({DIFFICULTY})": difficulty})
        return LabelledDraws(draws, correct, ids, (None,) * prompts, n)

    def chance(self, difficulty: FloatArray) -> FloatArray:
        """p(T): how likely a candidate is correct; T in [0, 1], any shape."""
        return self.rate + self.slope * (1.0 - difficulty)

    def exponent(self, difficulty: FloatArray) -> FloatArray:
        """k(T): the exponent of the distribution function of correct scores; T in [0, 1], any shape."""
        return self.shape + self.growth * difficulty

    def coverage_given(self, threshold: FloatArray, difficulty: FloatArray, n: int) -> FloatArray:
        """The distribution function of the success score given T: 1 - (1 - p(T) v^k(T))^n.

        One of n candidates is both correct and scored at most v with chance p v^k, independently.

        Args:
            threshold: v, of a shape that broadcasts with `difficulty`. Thresholds above 1 accept everything
                and those below 0 nothing.
            difficulty: T in [0, 1].
            n: Number of candidates n >= 1.

        Returns:
            The chance that a correct candidate is accepted at v; at 1, that there is one at all.
        """
        accepted = np.clip(threshold, 0.0, 1.0) ** self.exponent(difficulty)
        return 1.0 - (1.0 - self.chance(difficulty) * accepted) ** n

    def coverage(self, threshold: FloatArray, n: int) -> FloatArray:
        """The same over all difficulties: what one threshold for all prompts covers.

        Args:
            threshold: v, any shape.
            n: Number of candidates n >= 1.

        Returns:
            The integral of `coverage_given` over T, of the shape of `threshold`.
        """
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        given = self.coverage_given(np.asarray(threshold)[..., None], (nodes + 1.0) / 2.0, n)
        return np.asarray(given @ (weights / 2.0))

    def attainable(self, n: int) -> float:
        """Attainable coverage: the share of prompts with a correct candidate among n.

        No set rule covers more. It is the integral of 1 - (1 - p(T))^n, a polynomial in T.

        Args:
            n: Number of candidates n >= 1.

        Returns:
            A number in [0, 1].

        >>> round(SyntheticWorld().attainable(50), 4)
        0.9878
        """
        return float(self.coverage(np.array(1.0), n))
