"""A chat model, a judge and artifacts in memory, so that only LangChain and this library take time."""

from __future__ import annotations

import asyncio
import itertools
import time
import warnings
from collections.abc import Iterator, Sequence
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
from langchain_cfc.records import Provenance

N = 20
FEW_DISTINCT = 4  # different answers, where most of the n repeat one another
A_PAGE = "The first step [1] is to count the parks of each city. " * 80  # of text before an answer
ALPHA = "0.2"
TEST_FRACTION = 0.3
FEATURES = "hat(mean_score, 5)"
PART_IDS = {"generator_id": "in-memory", "verifier_id": "judge"}


class InMemoryModel(BaseChatModel):
    """Answers with one of `distinct` answers in turn, after some text and perhaps some `seconds`."""

    distinct: int = N
    text: str = ""
    seconds: float = 0.0

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
        if self.seconds:
            time.sleep(self.seconds)
        return self._answer()

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # The inherited method would start a thread.
        del messages, stop, run_manager, kwargs
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return self._answer()

    def _answer(self) -> ChatResult:
        message = AIMessage(f"{self.text}answer {next(self._numbers) % self.distinct}")
        return ChatResult(generations=[ChatGeneration(message=message)])


def make_judge() -> Runnable[Any, float]:
    """Make a judge whose score depends on the numbers of prompt and candidate, plain and async."""

    def score(pair: dict[str, str]) -> float:
        prompt, candidate = (int(pair[key].split()[-1]) for key in ("prompt", "candidate"))
        return (1 + (17 * candidate + 7 * prompt) % 100) / 100

    async def ascore(pair: dict[str, str]) -> float:
        return score(pair)

    return RunnableLambda(score, ascore)


def serve_by_hand(
    model: Runnable[Any, Any],
    judge: Runnable[Any, float],
    prompt: str,
    config: RunnableConfig | None = None,
    waves: Sequence[int] = (N,),
) -> list[float]:
    """Draw n candidates and score them, at once or in waves, as a user would who wants no promise."""
    scores: list[float] = []
    for size in waves:
        candidates = model.batch([prompt] * size, config)
        pairs = [{"prompt": prompt, "candidate": str(one.text)} for one in candidates]
        scores += judge.batch(pairs, config)
    return scores


async def serve_by_hand_async(
    model: Runnable[Any, Any],
    judge: Runnable[Any, float],
    prompt: str,
    config: RunnableConfig | None = None,
    waves: Sequence[int] = (N,),
) -> list[float]:
    """Do the same asynchronously."""
    scores: list[float] = []
    for size in waves:
        candidates = await model.abatch([prompt] * size, config)
        pairs = [{"prompt": prompt, "candidate": str(one.text)} for one in candidates]
        scores += await judge.abatch(pairs, config)
    return scores


def read_doubled_recording() -> list[PromptRecord]:
    """Return the recording that ships, each prompt's ten candidates taken twice to make n = 20.

    An artifact calibrated on it promises nothing, but costs what an artifact costs.
    """
    return [
        record.model_copy(update={"candidates": [*record.candidates, *record.candidates]})
        for record in load_recording()
    ]


def calibrate_artifact(
    records: list[PromptRecord], features: str, draws: str | None = None
) -> CalibrationArtifact:
    """Calibrate an artifact for n = 20 candidates; it is bound to `PART_IDS` if it has a draw rule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)  # some topics were too hard for the model
        return calibrate(
            records,
            alpha=ALPHA,
            features=features,
            set_rule="all",
            test_fraction=TEST_FRACTION,
            draws=draws,
            provenance=None
            if draws is None
            else Provenance(
                n=N,
                generator={"id": PART_IDS["generator_id"]},
                verifier={"id": PART_IDS["verifier_id"]},
                separate_scores=True,
            ),
        )
