"""`Subject`: what the suite examines, and all the ways in which LangChain calls a Runnable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.sampling import SamplingName
from langchain_cfc.verifiers import VerifierInput
from tests.factories import make_artifact, make_hopeless_records
from tests.fakes import N

from .providers import Provider

Way: TypeAlias = Callable[[Runnable[Any, Any], Any, RunnableConfig | None], Any]


def _hopeless() -> CalibrationArtifact:
    return calibrate(make_hopeless_records(), alpha=0.25, features="1", allow_unattainable=True)


@dataclass
class Artifacts:
    """Artifacts for n = 4 candidates whose threshold at alpha = 0.25 is 0.75.

    Attributes:
        served: Of two levels; at alpha = 0.5 the threshold is 0.5.
        spare: Another one, for fallbacks.
        hopeless: One that certifies nothing.
    """

    served: CalibrationArtifact = field(default_factory=lambda: make_artifact(alpha=["0.25", "0.5"]))
    spare: CalibrationArtifact = field(default_factory=make_artifact)
    hopeless: CalibrationArtifact = field(default_factory=_hopeless)


@dataclass
class Subject:
    """A kind of runnable over a provider.

    Attributes:
        provider: The model that answers.
        sampling: How it is asked.
        artifacts: What is served with.
        runnable: What makes the runnable, from the fields of `CFCRunnable`.
    """

    provider: Provider
    sampling: SamplingName
    artifacts: Artifacts
    runnable: Callable[..., Any] = CFCRunnable

    @property
    def requests_per_prompt(self) -> int:
        """How often the provider is asked for a prompt where nothing fails."""
        return N if self.sampling == "requests" else 1

    def chain(self, **fields: Any) -> Any:
        """The runnable, with other fields than the usual ones where given."""
        usual = {
            "generator": self.provider.model(),
            "verifier": RunnableLambda(self.judge, self.ajudge, name="judge"),
            "answer": RunnableLambda(self.extract, self.aextract, name="extract"),
            "artifact": self.artifacts.served,
            "sampling": self.sampling,
        }
        if "artifact" not in fields:
            usual["alpha"] = "0.25"
        return self.runnable(**{**usual, **fields})

    def judge(self, given: VerifierInput) -> list[float]:
        """The verifier."""
        return self.provider.scores([one.text for one in given["candidates"]])

    async def ajudge(self, given: VerifierInput) -> list[float]:
        """Asynchronous counterpart of the function above."""
        return self.judge(given)

    def extract(self, text: str) -> str:
        """The answer extractor."""
        return self.provider.read(text)

    async def aextract(self, text: str) -> str:
        """Asynchronous counterpart of the function above."""
        return self.extract(text)


def invoked(chain: Runnable[Any, Any], prompt: Any, config: RunnableConfig | None = None) -> Any:
    """By `invoke`."""
    return chain.invoke(prompt, config)


def ainvoked(chain: Runnable[Any, Any], prompt: Any, config: RunnableConfig | None = None) -> Any:
    """By `ainvoke`."""
    return asyncio.run(chain.ainvoke(prompt, config))


def _batched(chain: Runnable[Any, Any], prompt: Any, config: RunnableConfig | None) -> Any:
    (only,) = chain.batch([prompt], config)
    return only


def _abatched(chain: Runnable[Any, Any], prompt: Any, config: RunnableConfig | None) -> Any:
    (only,) = asyncio.run(chain.abatch([prompt], config))
    return only


def _completed(chain: Runnable[Any, Any], prompt: Any, config: RunnableConfig | None) -> Any:
    ((_, only),) = chain.batch_as_completed([prompt], config)
    return only


def _acompleted(chain: Runnable[Any, Any], prompt: Any, config: RunnableConfig | None) -> Any:
    async def collected() -> list[Any]:
        return [pair async for pair in chain.abatch_as_completed([prompt], config)]

    ((_, only),) = asyncio.run(collected())
    return only


def streamed(chain: Runnable[Any, Any], prompt: Any, config: RunnableConfig | None = None) -> Any:
    """By `stream`, which must hold one piece."""
    (only,) = chain.stream(prompt, config)
    return only


def astreamed(chain: Runnable[Any, Any], prompt: Any, config: RunnableConfig | None = None) -> Any:
    """The same by `astream`."""

    async def collected() -> list[Any]:
        return [piece async for piece in chain.astream(prompt, config)]

    (only,) = asyncio.run(collected())
    return only


WAYS: dict[str, Way] = {
    "invoke": invoked,
    "ainvoke": ainvoked,
    "batch": _batched,
    "abatch": _abatched,
    "batch_as_completed": _completed,
    "abatch_as_completed": _acompleted,
    "stream": streamed,
    "astream": astreamed,
}
BOTH: tuple[Way, ...] = (invoked, ainvoked)
STREAMS: tuple[Way, ...] = (streamed, astreamed)
