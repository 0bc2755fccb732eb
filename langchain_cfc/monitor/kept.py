"""With labels: is the promise kept as often as it was certified, and are answers as rarely wrong?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, StrictBool

from langchain_cfc._arrays import BoolArray, FloatArray
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import InputError
from langchain_cfc.monitor.betting import RATE_EXPERTS, Capital, MeanCapital, rate_factors
from langchain_cfc.monitor.observed import ANSWERED, FLAGGED, Observed


@dataclass(frozen=True)
class Label:
    """What people, or time, said of a result.

    Attributes:
        id: Of the result.
        correct: Of each of the n candidates, whether it is correct, None where nobody knows; one truth value
            for the best answer, which says nothing of the set; or None for a set that is empty or flagged,
            where nothing need be known.
        probability: With what probability this result was chosen to be labelled, in (0, 1]: 1 where all are,
            or where the choice looked at nothing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: str
    correct: StrictBool | Sequence[StrictBool | None] | None
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            msg = f"label of {self.id!r}: a probability lies in (0, 1], got {self.probability}"
            raise InputError(msg)
        if not self.id.isprintable():
            msg = f"label of {self.id!r}: that is no name of a result"
            raise InputError(msg)
        # Arrays of NumPy hold truth values of their own.
        object.__setattr__(self, "correct", _plain(self.correct, self.id))

    @property
    def complete(self) -> bool:
        """Whether it says of every candidate whether it is correct."""
        return not (self.correct is None or isinstance(self.correct, bool) or None in self.correct)

    def weight(self, least: float) -> float:
        """For how much of a result it speaks: least / p, where it was chosen with probability p.

        Args:
            least: The smallest probability with which any result is chosen.

        Returns:
            The weight in (0, 1].

        Raises:
            InputError: If it was chosen more rarely than `least`.
        """
        if self.probability < least:
            msg = (
                f"label of {self.id!r}: its result was chosen with probability {self.probability}, which is "
                f"below least_probability = {least}: state the smallest there is (--least-probability)"
            )
            raise InputError(msg)
        return least / self.probability

    def fair(self, one: Observed, least: float) -> bool:
        """Whether it counts, where one counts with its weight as probability.

        So those that count are a fair sample of all results (rejection sampling).

        Raises:
            InputError: If it was chosen more rarely than `least`.
        """
        return bool(one.uniforms("label", 1)[0] < self.weight(least))

    def of(self, one: Observed) -> tuple[bool | None, bool | None]:
        """What it says of a result.

        It says that the promise was kept only where it would have said as well that it was not: otherwise the
        results that count would be chosen by what they show.

        Returns:
            Whether the promise was kept, and whether the answer was right; None where it does not tell, or
            there was no answer.

        Raises:
            InputError: If it does not fit the result.
        """
        truths, best = self._truths(one), one.best
        inside = [truth for truth, accepted in zip(truths, one.accepted, strict=True) if accepted]
        covered = None if None in inside else any(inside)
        kept = None if isinstance(self.correct, bool) else one.outcome == FLAGGED or covered
        return kept, None if best is None or one.withheld else truths[best]

    def _truths(self, one: Observed) -> list[bool | None]:
        """Of each candidate."""
        n, best, correct = len(one.scores), one.best, self.correct
        if correct is None and one.outcome == ANSWERED:
            msg = f"label of {self.id!r}: the set is not empty; say which candidates are correct"
            raise InputError(msg)
        if isinstance(correct, bool) and best is None:
            msg = f"label of {self.id!r}: no answer was given that could be correct; label the candidates"
            raise InputError(msg)
        if correct is None or isinstance(correct, bool):
            return [correct if slot == best else None for slot in range(n)]
        if len(correct) != n:
            msg = f"label of {self.id!r}: it speaks of {len(correct)} candidates, and there are {n}"
            raise InputError(msg)
        return list(correct)


def _plain(correct: Any, name: str) -> bool | tuple[bool | None, ...] | None:
    if correct is None or isinstance(correct, (bool, np.bool_)):
        return None if correct is None else bool(correct)
    known = list(correct) if isinstance(correct, (Sequence, np.ndarray)) else [correct]
    if isinstance(correct, str) or any(
        one is not None and not isinstance(one, (bool, np.bool_)) for one in known
    ):
        msg = f"label of {name!r}: expected true or false, a list of them, or nothing; got {correct!r:.80}"
        raise InputError(msg)
    return tuple(None if one is None else bool(one) for one in known)


@dataclass(frozen=True)
class Stated:
    """A certified rate that is watched.

    Attributes:
        what: `kept`: sets hold a correct answer or are flagged; `right`: answers are not wrong.
        group: Name of the weighting; `1` is all prompts.
        words: The same for people.
        alpha: Level of the sets.
        rate: What is certified: at least so often, in (0, 1).
        delta: Probability that the certificate is wrong, as decimal text.
    """

    what: Literal["kept", "right"]
    group: str
    words: str
    alpha: str
    rate: float
    delta: str


def stated(artifact: CalibrationArtifact) -> list[Stated]:
    """What is certified of an artifact or promised with confidence, as far as a rate can fall below it."""
    found = []
    policy, confidence = artifact.policy, artifact.confidence
    for certificate in [*artifact.certificates, *(policy.coverage if policy is not None else [])]:
        found += [
            Stated("kept", one.name, one.words, certificate.alpha, one.kept_at_least, certificate.delta)
            for one in certificate.shares
            if 0.0 < one.kept_at_least < 1.0
        ]
    if policy is not None:
        wrong = policy.certificate
        rate = 1.0 - float(wrong.max_wrong_rate)
        found += [
            Stated("right", one.name, one.words, wrong.alpha, rate, wrong.delta)
            for one in wrong.groups
            if one.certified or one is wrong.groups[0]
        ]
    if confidence is not None:
        found += [
            Stated(
                "kept",
                one.name,
                one.words,
                alpha,
                artifact.guarantee(alpha).target_coverage,
                confidence.delta,
            )
            for alpha in artifact.alphas
            for one in artifact.feature_map.guaranteed_weights()
            if one.name in confidence.names
        ]
    # Two of them may speak of the same rate; the first is what held-out prompts say.
    return list({(one.what, one.group, one.alpha): one for one in reversed(found)}.values())[::-1]


@dataclass(frozen=True)
class Kept:
    """Tests of the certified rates, one for each.

    Where a certificate is right, a bet that its rate is lower, at odds that are fair for the certified one,
    has capital of mean at most 1 given everything that came before, the outcomes of other tests included, for
    prompts are independent of each other. So the mean of the capital of all m tests is an e-process as well,
    and ever turns 1 into 1/level with probability at most level (Ville). A certificate is wrong with
    probability at most its delta: in all, a false alarm has probability at most level + delta. This assumes
    that whether a result is labelled, and when, does not depend on whether it was correct, given what its
    probability to be labelled was chosen by.

    Attributes:
        artifact: The artifact.
        capital: Of the m tests.
        mean: Of the capital of all m tests, which is what alarms.
        kept: (m,) number of outcomes that kept what is stated.
    """

    artifact: CalibrationArtifact
    capital: Capital
    mean: MeanCapital
    kept: FloatArray

    @classmethod
    def begun(cls, artifact: CalibrationArtifact, now: float) -> Kept:
        """Nothing seen yet."""
        count = len(stated(artifact))
        capital = Capital.stakes([count], RATE_EXPERTS, now)
        return cls(artifact, capital, MeanCapital.stakes(now=now), np.zeros(count))

    @cached_property
    def stated(self) -> list[Stated]:
        """The m rates."""
        return stated(self.artifact)

    @cached_property
    def _coefficients(self) -> dict[str, FloatArray]:
        weights = self.artifact.feature_map.guaranteed_weights()
        return {one.name: np.array(one.coefficients) for one in weights}

    def after(self, one: Observed, label: Label, now: float, least: float) -> Kept:
        """With one more label.

        Args:
            one: The result.
            label: What is said of it.
            now: The time.
            least: The smallest probability with which any result is labelled; see `Label.fair`.
        """
        if not self.stated:
            return self
        kept_promise, right = label.of(one)
        # A certified wrong-answer rate speaks of bot mode alone.
        outcomes = {"kept": kept_promise, "right": right if one.bot else None}
        features = np.array(one.features)
        luck, fair = one.uniforms("kept", 1)[0], label.fair(one, least)
        seen = np.array(
            [
                fair
                and outcomes[it.what] is not None
                and it.alpha == one.alpha
                and luck < self._coefficients[it.group] @ features
                for it in self.stated
            ]
        )
        kept: BoolArray = np.array([bool(outcomes[it.what]) for it in self.stated])
        rates = np.array([it.rate for it in self.stated])
        capital = self.capital.after(rate_factors(kept, rates), now, seen)
        return Kept(self.artifact, capital, self.mean.after(capital, now), self.kept + (kept & seen))

    def to_data(self) -> dict[str, Any]:
        """What has been seen, to be stored."""
        return {
            "kept": self.kept.tolist(),
            "capital": self.capital.to_data(),
            "mean": self.mean.to_data(),
        }

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Kept:
        """What `to_data` was made of."""
        capital, mean = Capital.from_data(data["capital"]), MeanCapital.from_data(data["mean"])
        return cls(artifact, capital, mean, np.array(data["kept"], dtype=np.float64))
