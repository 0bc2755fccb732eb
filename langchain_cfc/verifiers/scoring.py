"""What verifiers said of a prompt's candidates, the same offline and online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_core.runnables import RunnableConfig

from langchain_cfc.calls import Steps
from langchain_cfc.verifiers.base import Verifier, VerifierInput, checked_scores, verifier_call
from langchain_cfc.verifiers.panel import Panel


@dataclass(frozen=True)
class Scored:
    """The scores of n candidates.

    Attributes:
        scores: n verifier scores in [0, 1], smaller is better.
        outputs: For each candidate the raw outputs of several verifiers by name; None where there is one.
    """

    scores: Sequence[float]
    outputs: Sequence[Mapping[str, float]] | None = None

    @classmethod
    def by_several(cls, scores: Sequence[float], outputs: Mapping[str, Sequence[float]]) -> Scored:
        """Scores with what they were made of.

        Args:
            scores: n scores in [0, 1].
            outputs: By verifier, n raw outputs.

        Returns:
            Both, the outputs by candidate.
        """
        rows = zip(*outputs.values(), strict=True)
        return cls(scores, [dict(zip(outputs, row, strict=True)) for row in rows])


class ByOne:
    """The scores of one verifier.

    Args:
        verifier: A Runnable or a function.

    Raises:
        VerifierError: If it is neither.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._call = verifier_call(verifier)

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[Scored]:
        """The verifier's scores, checked.

        Raises:
            VerifierError: If it fails, or returns anything but n scores in [0, 1].
        """
        scores = yield from self._call.one(given, config)
        return Scored(checked_scores(scores, len(given["candidates"])))


class ByFirst:
    """The scores of the first of several verifiers, with the raw outputs of all.

    Args:
        panel: The verifiers.
    """

    def __init__(self, panel: Panel) -> None:
        self._panel = panel

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[Scored]:
        """The first one's outputs as scores, checked.

        Raises:
            VerifierError: If one fails, or the first returns anything but n scores in [0, 1].
        """
        outputs = yield from self._panel.outputs(given, config)
        scores = checked_scores(outputs[self._panel.names[0]], len(given["candidates"]))
        return Scored.by_several(scores, outputs)
