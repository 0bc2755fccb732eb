"""A chain draws exactly n candidates, in the order of their requests, and does not stream them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import (
    RunnableConfig,
    RunnableLambda,
)
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from pydantic import Field

from langchain_cfc.errors import DrawError, SamplingWarning
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.sampler import MAX_REPEATS
from langchain_cfc.verifiers import from_evaluator
from tests.calls import Invoke
from tests.concurrency import wait_until, wait_until_async
from tests.factories import make_chain
from tests.fakes import (
    TEXTS,
    N,
    RunRecorder,
    ScriptedModel,
    StreamingModel,
    answer_of,
    score_of,
    slot_of,
)


class LastFirstModel(ScriptedModel):
    """Answers the requests of a prompt in the reverse order of their slots."""

    completed: list[int] = Field(default_factory=list)

    def _is_next(self, slot: int) -> bool:
        return len(self.completed) == N - 1 - slot

    def _result(self, slot: int) -> ChatResult:
        self.completed.append(slot)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(TEXTS[slot]))])

    def _generate(self, *args: Any, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        del args, kwargs
        slot = slot_of(run_manager.tags, N)
        wait_until(lambda: self._is_next(slot))
        return self._result(slot)

    async def _agenerate(self, *args: Any, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        del args, kwargs
        slot = slot_of(run_manager.tags, N)
        await wait_until_async(lambda: self._is_next(slot))
        return self._result(slot)


class TokenListener(RunRecorder, _StreamingCallbackHandler[Any]):
    """What a graph that streams messages does: it makes models stream and forwards the tokens of all runs
    that do not carry the tag `nostream`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._muted: set[Any] = set()
        self.forwarded: list[str] = []
        self.tokens: list[str] = []

    def on_chat_model_start(self, *args: Any, tags: list[str] | None = None, **kwargs: Any) -> None:
        super().on_chat_model_start(*args, tags=tags, **kwargs)
        if "nostream" in (tags or []):
            self._muted.add(kwargs["run_id"])

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.tokens.append(token)
        if kwargs["run_id"] not in self._muted:
            self.forwarded.append(token)

    def tap_output_iter(self, run_id: Any, output: Any) -> Any:
        del run_id
        return output

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        del run_id
        return output


@pytest.mark.parametrize("slot", [0, 2, N - 1])
def test_draw_that_keeps_failing_raises_draw_error(invoke: Invoke, slot: int) -> None:
    model = ScriptedModel(texts=TEXTS, failing=frozenset({slot}))
    expected = f"1 of {N} candidates could not be drawn, first candidate {slot}"
    with pytest.raises(DrawError, match=expected) as failure:
        invoke(make_chain(generator=model), "x")
    assert isinstance(failure.value.__cause__, RuntimeError)
    assert str(failure.value.__cause__) == f"no answer in slot {slot}"
    assert "with_retry" in str(failure.value)
    assert len(model.drawn) == N + MAX_REPEATS


def test_draw_error_of_all_draws_names_the_first_and_stops(invoke: Invoke) -> None:
    generator = ScriptedModel(failing=frozenset(range(N)))
    expected = f"{N} of {N} candidates could not be drawn, first candidate 0"
    with pytest.raises(DrawError, match=expected) as failure:
        invoke(make_chain(generator=generator), "x")
    assert str(failure.value.__cause__) == "no answer in slot 0"
    assert len(generator.drawn) == N  # not chance, and not paid for again


def test_verifier_and_extractor_are_not_called_with_missing_draws(invoke: Invoke) -> None:
    seen: list[Any] = []
    chain = make_chain(
        generator=ScriptedModel(texts=TEXTS, failing=frozenset({1})),
        verifier=lambda _, candidates: seen.append(candidates),
        answer=seen.append,
    )
    with pytest.raises(DrawError):
        invoke(chain, "x")
    assert seen == []


def test_candidates_are_ordered_by_slot_not_by_completion(invoke: Invoke) -> None:
    model = LastFirstModel()
    result = invoke(make_chain(generator=model, show_rejected=True), "x")
    assert model.completed == [3, 2, 1, 0]
    assert [one.text for one in result.candidates] == list(TEXTS)


def test_model_in_a_generator_function_streams_under_nostream_tag(invoke: Invoke) -> None:
    # No copy can be made of what a function has closed over; the tag still reaches it.
    model = StreamingModel(texts=TEXTS)
    listener = TokenListener()

    def draw(prompt: str, config: RunnableConfig) -> AIMessage:
        return model.invoke(prompt, config)

    generator = RunnableLambda(draw)
    with pytest.warns(SamplingWarning, match="cannot reconfigure models.*StreamingModel in draw") as said:
        chain = make_chain(generator=generator)
    assert len(said) == 1
    invoke(chain, "where?", config={"callbacks": [listener]})
    assert listener.tokens
    assert listener.forwarded == []


def test_judge_model_of_a_verifier_does_not_stream(invoke: Invoke) -> None:
    # A judge may repeat the candidate that it is about to reject.
    listener = TokenListener()
    judge = (
        RunnableLambda(lambda pair: pair["candidate"])
        | StreamingModel(texts=TEXTS)
        | RunnableLambda(lambda message: score_of(str(message.text)))
    )
    chain = make_chain(verifier=from_evaluator(judge, higher_is_better=False))
    invoke(chain, "where?", config={"callbacks": [listener]})
    assert [kind for kind, _, _ in listener.runs].count("model") == 2 * N
    assert listener.tokens == []


def test_model_in_a_verifier_function_streams_under_nostream_tag(invoke: Invoke) -> None:
    model = StreamingModel(texts=TEXTS)
    listener = TokenListener()

    def judge(_: Any, candidates: list[DrawnCandidate]) -> list[float]:
        # As users write it: without passing on any config.
        return [score_of(str(model.invoke(one.text).text)) for one in candidates]

    result = invoke(make_chain(verifier=judge), "where?", config={"callbacks": [listener]})
    assert len(result.candidates) == N
    assert listener.tokens
    assert listener.forwarded == []
    tags = [tags for kind, _, tags in listener.runs if kind == "model" and "cfc:candidate" not in tags]
    assert [sorted(one) for one in tags] == [["cfc:verifier", "nostream"]] * N


def test_model_in_an_async_verifier_streams_under_nostream_tag() -> None:
    model = StreamingModel(texts=TEXTS)
    listener = TokenListener()

    async def judge(_: Any, candidates: list[DrawnCandidate]) -> list[float]:
        said = await asyncio.gather(*(model.ainvoke(one.text) for one in candidates))
        return [score_of(str(one.text)) for one in said]

    asyncio.run(make_chain(verifier=judge).ainvoke("where?", {"callbacks": [listener]}))
    assert listener.tokens
    assert listener.forwarded == []


def test_child_runs_of_a_chain_have_names_and_tags(invoke: Invoke) -> None:
    runs = RunRecorder()
    chain = make_chain(
        verifier=RunnableLambda(lambda _: [0.1] * N, name="judge"),
        answer=RunnableLambda(answer_of, name="extract"),
    )
    config = {"callbacks": [runs], "run_name": "ask", "tags": ["mine"]}
    invoke(chain, "where?", config=config)
    kinds = [(kind, name) for kind, name, _ in runs.runs]
    assert kinds[0] == ("chain", "ask")
    assert [kind for kind, _ in kinds].count("model") == N
    assert kinds.count(("chain", "judge")) == 1
    assert kinds.count(("chain", "extract")) == N
    draws = sorted(sorted(tags) for kind, _, tags in runs.runs if kind == "model")
    assert draws == [["cfc:candidate", f"cfc:candidate:{slot}", "mine", "nostream"] for slot in range(N)]
    judged = [sorted(tags) for _, name, tags in runs.runs if name == "judge"]
    assert judged == [["cfc:verifier", "mine", "nostream"]]
