"""A chat model, a judge and artifacts in memory, so that only LangChain and this library take time."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from pydantic import PrivateAttr

from langchain_cfc import CalibrationArtifact, PromptRecord, calibrate
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import AttainabilityWarning

N = 20
FEW = 4  # different answers, where most of the n repeat one another
ALPHA = "0.2"
TEST_FRACTION = 0.3
FEATURES = "hat(mean_score, 5)"


class InMemoryModel(BaseChatModel):
    """Answers at once, with one of `distinct` answers in turn."""

    distinct: int = N

    _numbers: Iterator[int] = PrivateAttr(default_factory=itertools.count)

    @property
    def _llm_type(self) -> str:
        return "in-memory"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del messages, stop, run_manager, kwargs
        message = AIMessage(f"answer {next(self._numbers) % self.distinct}")
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # The inherited method would start a thread.
        del run_manager
        return self._generate(messages, stop, None, **kwargs)


def make_judge() -> Runnable[Any, float]:
    """Make a judge whose score depends on the numbers of prompt and candidate, plain and async."""

    def score(pair: dict[str, str]) -> float:
        prompt, candidate = (int(pair[key].split()[-1]) for key in ("prompt", "candidate"))
        return (17 * candidate + 7 * prompt) % 101 / 100

    async def ascore(pair: dict[str, str]) -> float:
        return score(pair)

    return RunnableLambda(score, ascore)


def serve_by_hand(
    model: Runnable[Any, Any],
    judge: Runnable[Any, float],
    prompt: str,
    config: RunnableConfig | None = None,
) -> list[float]:
    """Draw n candidates and score them, as a user would who wants no promise."""
    candidates = model.batch([prompt] * N, config)
    return judge.batch([{"prompt": prompt, "candidate": str(one.text)} for one in candidates], config)


async def serve_by_hand_async(
    model: Runnable[Any, Any],
    judge: Runnable[Any, float],
    prompt: str,
    config: RunnableConfig | None = None,
) -> list[float]:
    """Do the same asynchronously."""
    candidates = await model.abatch([prompt] * N, config)
    return await judge.abatch([{"prompt": prompt, "candidate": str(one.text)} for one in candidates], config)


def read_doubled_recording() -> list[PromptRecord]:
    """Return the recording that ships, each prompt's ten candidates taken twice to make n = 20.

    An artifact calibrated on it promises nothing, but costs what an artifact costs.
    """
    return [
        record.model_copy(update={"candidates": [*record.candidates, *record.candidates]})
        for record in load_recording()
    ]


def calibrate_artifact(records: list[PromptRecord], features: str) -> CalibrationArtifact:
    """Calibrate an artifact for n = 20 candidates that is bound to no generator or verifier."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)  # some topics were too hard for the model
        return calibrate(records, alpha=ALPHA, features=features, set_rule="all", test_fraction=TEST_FRACTION)
