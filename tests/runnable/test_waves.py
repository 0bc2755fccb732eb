"""Draws in waves have the same limits and errors as draws without a rule, and stream nothing either."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_cfc.errors import DescriptionError, DrawError, ServingTimeoutError, VerifierError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.sampler import MAX_REPEATS
from langchain_cfc.verifiers import from_evaluator
from tests.calls import Invoke
from tests.concurrency import PATIENCE, wait_until
from tests.fakes import (
    TOKENS_IN,
    TOKENS_OUT,
    NumberedModel,
    NumberedStreamingModel,
    ScriptedModel,
    StreamingModel,
    answer_of,
    score_of,
    slot_of,
    verify,
)

from .test_draw_rules import USAGE, N, make_artifact, make_chain
from .test_draws import TokenListener
from .test_limits import PROMPTS, Batch, Gauge, every_batch

# Waves of 3, 1 and 4 draws, until an answer leads by two.
WAVES = "lead(2, rounds=3+1+4)"
SIZES = (3, 1, 4)
# All answers differ, so that no wave is the last before all are drawn; or the second wave is.
DIFFERENT_TEXTS = tuple(f"{slot}|0.5" for slot in range(N))
TEXTS_OF_TWO_WAVES = ("a|0.3", "b|0.4", "a|0.3", "a|0.1", *["d|0.9"] * 4)

pytestmark = pytest.mark.filterwarnings(
    "ignore::langchain_cfc.errors.AttainabilityWarning",
    "ignore::langchain_cfc.errors.FingerprintWarning",
)


def make_gauge_chain(gauge: Gauge, draws: str, **fields: Any) -> Any:
    ids = {"answer": answer_of, "verifier_id": "own", "answer_id": "own"}
    return gauge.chain(make_artifact(draws), **ids, **fields)


@every_batch
@pytest.mark.parametrize("draws", [WAVES, "below(0.2, at_most=8)"])
def test_waves_of_a_batch_share_max_concurrency(batch: Batch, draws: str) -> None:
    gauge = Gauge()
    found = batch(make_gauge_chain(gauge, draws), RunnableConfig(max_concurrency=3))
    assert [len(one.candidates) for one in found] == [N] * len(PROMPTS)
    assert gauge.calls == 2 * N * len(PROMPTS)
    assert gauge.most == 3


def test_waves_keep_max_concurrency_of_the_chain(invoke: Invoke) -> None:
    gauge = Gauge()
    assert len(invoke(make_gauge_chain(gauge, WAVES, max_concurrency=2), "x").candidates) == N
    assert gauge.most == 2


def draw_by_slot(make: Callable[[int], str], *, wait: Callable[[int], object] = lambda _: None) -> Any:
    """Make a generator of a text by slot, which waits before it answers."""

    def draw(_: Any, config: RunnableConfig) -> AIMessage:
        slot = slot_of(config["tags"], N)
        wait(slot)
        return AIMessage(make(slot))

    async def adraw(prompt: Any, config: RunnableConfig) -> AIMessage:
        return await asyncio.to_thread(draw, prompt, config)

    return RunnableLambda(draw, adraw)


def test_draws_of_a_wave_run_concurrently_and_waves_in_sequence(invoke: Invoke) -> None:
    # All of a wave wait for one another: a larger wave than the rule's would not add up, a smaller one hang.
    gates = [threading.Barrier(size, timeout=PATIENCE) for size in SIZES]
    wave_of = [wave for wave, size in enumerate(SIZES) for _ in range(size)]
    begun: list[int] = []

    def wait(slot: int) -> None:
        begun.append(wave_of[slot])
        gates[wave_of[slot]].wait()

    chain = make_chain(make_artifact(WAVES), generator=draw_by_slot(DIFFERENT_TEXTS.__getitem__, wait=wait))
    assert [one.slot for one in invoke(chain, "x").candidates] == list(range(N))
    assert begun == wave_of


def test_timeout_in_a_later_wave_raises_and_starts_no_further_wave(invoke: Invoke) -> None:
    over, begun = threading.Event(), []

    def wait(slot: int) -> None:
        begun.append(slot)
        assert slot < 3 or over.wait(PATIENCE)

    generator = draw_by_slot(DIFFERENT_TEXTS.__getitem__, wait=wait)
    chain = make_chain(make_artifact(WAVES), generator=generator, timeout=0.5)
    before = set(threading.enumerate())

    def serve() -> None:
        # An event loop that ends waits for its threads.
        threading.Timer(1.0, over.set).start()
        invoke(chain, "x")

    with pytest.raises(ServingTimeoutError, match=r"not decided within 0\.5 seconds"):
        serve()
    wait_until(lambda: not set(threading.enumerate()) - before)
    assert sorted(begun) == [0, 1, 2, 3]  # the third wave never began


@pytest.mark.parametrize("failures", [1, MAX_REPEATS])
def test_failed_draws_of_later_waves_are_repeated_in_their_slots(invoke: Invoke, failures: int) -> None:
    model = ScriptedModel(texts=DIFFERENT_TEXTS, failing=frozenset({1, 4, 6}), failures=failures, usage=USAGE)
    result = invoke(make_chain(make_artifact(WAVES), generator=model, show_rejected=True), "x")
    assert [one.text for one in result.candidates] == list(DIFFERENT_TEXTS)
    assert len(model.drawn) == N + 3 * failures  # what the others returned was kept
    assert result.usage["total_tokens"] == 12 * N


@pytest.mark.parametrize("failing", [{3}, {5}, {4, 5, 6, 7}])
def test_draw_that_keeps_failing_in_a_later_wave_raises_draw_error(invoke: Invoke, failing: set[int]) -> None:
    model = ScriptedModel(texts=DIFFERENT_TEXTS, failing=frozenset(failing))
    judged: list[Any] = []
    chain = make_chain(make_artifact(WAVES), generator=model, verifier=lambda *given: judged.append(given))
    size = 1 if failing == {3} else 4
    first = min(failing)
    with pytest.raises(DrawError, match=f"{len(failing)} of {size} candidates could not.* candidate {first}"):
        invoke(chain, "x")
    # The rest of the wave was drawn to its end, and what was missing asked for as often as in a first wave.
    drawn = 4 if failing == {3} else N
    assert len(model.drawn) == drawn + MAX_REPEATS * len(failing)
    assert judged == []


def test_failed_wave_lets_its_other_draws_finish() -> None:
    failed, finished = asyncio.Event(), []

    async def draw(_: Any, config: RunnableConfig) -> AIMessage:
        slot = slot_of(config["tags"], N)
        if slot == 4:
            failed.set()
            raise ConnectionError
        if slot > 4:
            await failed.wait()
            await asyncio.sleep(0.01)
        finished.append(slot)
        return AIMessage(DIFFERENT_TEXTS[slot])

    generator = RunnableLambda(lambda _: "never", draw)
    with pytest.raises(DrawError, match="1 of 4 candidates"):
        asyncio.run(make_chain(make_artifact(WAVES), generator=generator).ainvoke("x"))
    assert sorted(finished) == [0, 1, 2, 3, 5, 6, 7]


def test_with_retry_of_the_generator_works_in_every_wave(invoke: Invoke) -> None:
    model = ScriptedModel(texts=DIFFERENT_TEXTS, failing=frozenset({0, 1, 2, 3}), failures=1, usage=USAGE)
    retried = model.with_retry(wait_exponential_jitter=False, stop_after_attempt=2)
    result = invoke(make_chain(make_artifact(WAVES), generator=retried), "x")
    assert len(model.drawn) == N + 4
    assert (len(result.candidates), result.usage["total_tokens"]) == (N, 12 * N)


def test_single_request_sampling_draws_only_the_first_wave_at_once(invoke: Invoke) -> None:
    model = NumberedModel()
    chain = make_chain(
        make_artifact(WAVES),
        generator=model,
        sampling="single_request",
        verifier=lambda _, candidates: [0.5] * len(candidates),
    )
    result = invoke(chain, "x")
    assert len(result.candidates) == N
    assert [request.get("n") for request in model.requests] == [3, *[None] * 5]
    assert result.usage["input_tokens"] == 6 * TOKENS_IN
    assert result.usage["output_tokens"] == N * TOKENS_OUT


class CachingProxy(NumberedModel):
    """Stands behind a proxy that gives one response to all requests for one choice."""

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        result = super()._generate(*args, **kwargs)
        if "n" not in kwargs:
            result.generations[0].message.id = "response 1"
        return result


def test_repeated_response_in_a_later_wave_raises_draw_error(invoke: Invoke) -> None:
    chain = make_chain(make_artifact(WAVES), generator=CachingProxy(), sampling="single_request")
    # Candidate 3 is the first that is drawn by itself.
    with pytest.raises(DrawError, match="candidate 4 repeats the message of an earlier candidate"):
        invoke(chain, "x")


@pytest.mark.parametrize("draws", [WAVES, "below(0.2, rounds=3+1+4)"])
def test_waves_stream_no_token_of_a_candidate(invoke: Invoke, draws: str) -> None:
    listener = TokenListener()
    judge = from_evaluator(
        RunnableLambda(lambda pair: pair["candidate"])
        | NumberedStreamingModel(echoing=True)
        | RunnableLambda(lambda message: score_of(str(message.text))),
        higher_is_better=False,
    )
    model = StreamingModel(texts=TEXTS_OF_TWO_WAVES)
    chain = make_chain(make_artifact(draws), generator=model, verifier=judge)
    assert len(invoke(chain, "where?", config={"callbacks": [listener]}).candidates) == 4
    assert [kind for kind, _, _ in listener.runs].count("model") >= 4 + 3  # three texts are distinct
    assert listener.tokens == []


@pytest.mark.parametrize("draws", [WAVES, "below(0.2, rounds=3+1+4)"])
def test_stream_of_a_draw_rule_shows_only_the_decision(draws: str) -> None:
    chain = make_chain(make_artifact(draws), generator=StreamingModel(texts=TEXTS_OF_TWO_WAVES))
    (streamed,) = chain.stream("where?")
    assert len(streamed.candidates) == 4

    async def events() -> list[Any]:
        return [event async for event in chain.astream_events("where?", version="v2")]

    kinds = [event["event"] for event in asyncio.run(events())]
    assert "on_chat_model_stream" not in kinds
    assert kinds.count("on_chat_model_end") == 4

    # The negative control: the same model asked itself does show its tokens in such events.
    async def open_events() -> list[Any]:
        return [
            event
            async for event in StreamingModel(texts=TEXTS_OF_TWO_WAVES).astream_events("x", version="v2")
        ]

    assert "on_chat_model_stream" in [event["event"] for event in asyncio.run(open_events())]


def raise_lookup_error(*given: Any) -> Any:
    del given
    raise LookupError


@pytest.mark.parametrize(
    ("draws", "broken", "error"),
    [
        ("below(0.2, rounds=3+1+4)", {"verifier": raise_lookup_error}, VerifierError),
        (WAVES, {"answer": raise_lookup_error}, DescriptionError),
    ],
)
def test_failing_verifier_or_extractor_between_waves_stops_drawing(
    invoke: Invoke, draws: str, broken: dict[str, Any], error: type[Exception]
) -> None:
    model = ScriptedModel(texts=DIFFERENT_TEXTS)
    with pytest.raises(error):
        invoke(make_chain(make_artifact(draws), generator=model, **broken), "x")
    assert len(model.drawn) == 3


def test_invalid_answer_in_a_later_wave_is_named_by_its_slot(invoke: Invoke) -> None:
    def extract(text: str) -> Any:
        return None if text == DIFFERENT_TEXTS[3] else answer_of(text)

    chain = make_chain(make_artifact(WAVES), generator=ScriptedModel(texts=DIFFERENT_TEXTS), answer=extract)
    with pytest.raises(DescriptionError, match="for candidate 3"):
        invoke(chain, "x")


def test_chain_with_draw_rule_can_generate_for_another_chain(invoke: Invoke) -> None:
    # Each draw of the outer chain is a whole prompt of the inner one, whose limit is the same.
    asked: list[list[str]] = []

    def judge(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        asked.append([one.text for one in candidates])
        return verify(prompt, candidates)

    artifact = make_artifact(WAVES)
    model = ScriptedModel(texts=TEXTS_OF_TWO_WAVES)
    inner = make_chain(artifact, generator=model, max_concurrency=1, verifier=judge)
    outer = make_chain(
        artifact, generator=inner.as_answer(text=True) | (lambda text: f"{text}|0.1"), max_concurrency=1
    )
    assert len(invoke(outer, "x").candidates) == 3
    assert len(asked) == 3
