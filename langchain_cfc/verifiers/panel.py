"""Several verifiers, whose raw outputs an artifact's combination makes one score of."""

from __future__ import annotations

from collections.abc import Mapping

from langchain_core.runnables import RunnableConfig

from langchain_cfc.calls import Steps, acomplete, complete, each, succeeded
from langchain_cfc.verifiers.base import Verifier, VerifierInput, checked_outputs, verifier_call
from langchain_cfc.verifiers.parts import together


class Panel:
    """Asks several verifiers about the same candidates, at the same time.

    Args:
        verifiers: By the names that the records' `scores` have. Raw outputs may be any finite numbers.
    """

    def __init__(self, verifiers: Mapping[str, Verifier]) -> None:
        self._calls = {name: verifier_call(verifier) for name, verifier in verifiers.items()}
        self.fingerprint = together("+".join(verifiers), {}, verifiers)

    @property
    def names(self) -> tuple[str, ...]:
        """The verifiers' names, in the order given."""
        return tuple(self._calls)

    def outputs(self, given: VerifierInput, config: RunnableConfig) -> Steps[dict[str, list[float]]]:
        """The raw outputs of each verifier.

        Args:
            given: The prompt with its n candidates.
            config: Config for whatever is called.

        Returns:
            By name, n finite numbers.

        Raises:
            VerifierError: If one fails, or returns anything else; it is named.
        """
        names = list(self._calls)
        found = yield each(
            lambda name: complete(self._calls[name].one(given, config)),
            lambda name: acomplete(self._calls[name].one(given, config)),
            names,
            hold_places=False,
        )
        n = len(given["candidates"])
        named = dict(zip(names, succeeded(found), strict=True))
        return {name: checked_outputs(outputs, n, name) for name, outputs in named.items()}
