"""Repeated candidates: recognisable copies raise an error, a model that repeats itself a warning."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.config import ensure_config
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import PrivateAttr

from langchain_cfc.errors import DrawError, SamplingWarning, VerifierError
from langchain_cfc.execution import apply_config_limits, run_flow
from langchain_cfc.sampling import DrawnCandidate, Sampler
from langchain_cfc.verifiers.base import check_scores
from tests.sampling.drawing import PROMPT, Draw, draw_sync

N = 4


class CountingModel(BaseChatModel):
    """Numbers its answers; takes the settings that a provider's model takes."""

    model: str = "m-1"
    temperature: float | None = None
    top_k: int | None = None
    seed: int | None = None
    disable_streaming: bool = True

    _calls: list[Any] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "counting"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "seed": self.seed}

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        del messages, stop, run_manager, kwargs
        self._calls.append(None)
        text = "the same" if self.seed is not None else f"answer {len(self._calls)}"
        message = AIMessage(text, response_metadata={"model_name": self.model})
        return ChatResult(generations=[ChatGeneration(message=message)])


class Hidden:
    """Keeps a model where LangChain does not look for it."""

    def __init__(self, model: CountingModel) -> None:
        self.model = model

    def answer(self, prompt: Any) -> str:
        return str(self.model.invoke(prompt).text)


def wrap_in_function(model: CountingModel) -> Runnable[Any, Any]:
    return RunnableLambda(Hidden(model).answer)


def wrap_in_graph(model: CountingModel) -> Runnable[Any, Any]:
    def respond(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("respond", respond)
    graph.add_edge(START, "respond")
    graph.add_edge("respond", END)
    return wrap_graph(graph.compile())


def wrap_in_agent(model: CountingModel) -> Runnable[Any, Any]:
    return wrap_graph(create_agent(model))


def wrap_graph(graph: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """A graph between a text and a text."""

    def invoke(prompt: str) -> str:
        return str(graph.invoke({"messages": [("human", prompt)]})["messages"][-1].text)

    async def ainvoke(prompt: str) -> str:
        state = await graph.ainvoke({"messages": [("human", prompt)]})
        return str(state["messages"][-1].text)

    return RunnableLambda(invoke, ainvoke)


PLACES = pytest.mark.parametrize("place", [wrap_in_function, wrap_in_graph, wrap_in_agent])
Place = Callable[[CountingModel], Runnable[Any, Any]]
# One after the other, so that the cache holds the first answer when the second is asked for.
IN_TURN: Any = {"max_concurrency": 1}


@PLACES
@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.SamplingWarning")
def test_sampler_refuses_candidates_from_a_cache(place: Place, draw: Draw) -> None:
    model = CountingModel(cache=InMemoryCache())
    with pytest.raises(DrawError, match="candidate 1 repeats the message of an earlier candidate"):
        draw(place(model), N, config=IN_TURN)
    assert len(model._calls) == 1


class MemoryStore:
    """Stores candidates of one prompt."""

    def __init__(self) -> None:
        self.draws: dict[int, DrawnCandidate] = {}

    def load(self, prepared: Any) -> dict[int, DrawnCandidate]:
        del prepared
        return dict(self.draws)

    def save(self, slot: int, draw: DrawnCandidate) -> None:
        self.draws[slot] = draw

    def discard(self) -> None:
        self.draws = {}


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.SamplingWarning")
def test_refused_candidates_are_not_stored() -> None:
    store = MemoryStore()
    sampler = Sampler(wrap_in_function(CountingModel(cache=InMemoryCache())))
    for _ in range(2):
        with (
            apply_config_limits(ensure_config(IN_TURN)),
            pytest.raises(DrawError, match="as if from a cache"),
        ):
            run_flow(sampler.draw_steps(PROMPT, N, ensure_config(IN_TURN), store=store))
        assert store.draws == {}


@PLACES
@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.SamplingWarning")
def test_sampler_refuses_a_hidden_fixed_seed(place: Place, draw: Draw) -> None:
    with pytest.raises(DrawError, match="several candidates were drawn with the fixed seed 7"):
        draw(place(CountingModel(seed=7)), N)


@PLACES
@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.SamplingWarning")
def test_sampler_draws_without_cache_and_seed(place: Place, draw: Draw) -> None:
    # The negative control.
    model = CountingModel()
    assert {one.text for one in draw(place(model), N)} == {f"answer {number}" for number in range(1, N + 1)}
    assert len(model._calls) == N


def test_sampler_refuses_fewer_model_calls_than_candidates(draw: Draw) -> None:
    hidden = Hidden(CountingModel())
    remembered = RunnableLambda(lru_cache(hidden.answer))
    with pytest.raises(DrawError, match=r"no model was called for 3 of 4 candidates"):
        draw(remembered, N, config=IN_TURN)
    assert len(hidden.model._calls) == 1


def test_sampler_refuses_candidates_without_any_model_call() -> None:
    model = CountingModel(cache=False)
    kept = {PROMPT: "kept"}

    def answer(prompt: str) -> str:
        return kept.get(prompt) or str(model.invoke(prompt).text)

    with pytest.raises(DrawError, match="no model was called for 4 of 4 candidates"):
        draw_sync(RunnableLambda(answer), N)
    # A function without a model may call anything; what it returns cannot be judged.
    assert len(draw_sync(RunnableLambda(lambda _: "kept"), N)) == N


def test_sampler_refuses_one_message_for_several_candidates(draw: Draw) -> None:
    class Repeating(CountingModel):
        _message: AIMessage = PrivateAttr(default_factory=lambda: AIMessage("once"))

        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            del args, kwargs
            return ChatResult(generations=[ChatGeneration(message=self._message)])

    for generator in (Repeating(), Repeating() | StrOutputParser()):
        with pytest.raises(DrawError, match="as if from a cache"):
            draw(generator, N, config=IN_TURN)


def test_sampler_accepts_a_cached_question_with_new_answers() -> None:
    """One message may be common to all candidates as long as another one is new."""
    writer, model = CountingModel(cache=InMemoryCache()), CountingModel(cache=False)

    class Rewriting:
        def answer(self, prompt: str) -> str:
            return str(model.invoke(writer.invoke(prompt).text).text)

    found = draw_sync(RunnableLambda(Rewriting().answer), N, config=IN_TURN)
    assert len({one.text for one in found}) == N
    assert len(writer._calls) == 1


@pytest.mark.parametrize(
    ("settings", "said"), [({"temperature": 0.0}, "temperature 0"), ({"top_k": 1}, "top_k 1")]
)
def test_sampler_warns_once_of_deterministic_settings(
    settings: dict[str, Any], said: str, draw: Draw
) -> None:
    with pytest.warns(SamplingWarning, match=f"the generator has {said}: you pay for 4 requests a prompt"):
        draw(CountingModel(**settings), N)
    sampler = Sampler(CountingModel(**settings))
    sampler.draw(PROMPT, 1)  # for one candidate there is nothing to pay twice
    with pytest.warns(SamplingWarning):
        sampler.draw(PROMPT, 2)
    sampler.draw(PROMPT, 2)


def test_check_scores_refuses_masked_scores() -> None:
    masked = np.ma.masked_array([0.1, 0.2], mask=[False, True])
    for scores in (masked, [0.1, np.ma.masked], list(masked)):
        with pytest.raises(VerifierError):
            check_scores(scores, 2)
    assert check_scores(np.array([0.1, 0.2]), 2) == [0.1, 0.2]


@pytest.mark.parametrize("kind", ["the same object", "copies with one id"])
def test_stored_message_returned_for_every_draw_is_refused(kind: str, draw: Draw) -> None:
    stored = AIMessage("Lima", id="answer")

    def answer(_: Any) -> AIMessage:
        return stored if kind == "the same object" else stored.model_copy()

    with pytest.raises(DrawError, match="repeats the message of an earlier candidate"):
        draw(RunnableLambda(answer), N)
    # The control: equal texts in messages of their own may be separate draws.
    assert len(draw(RunnableLambda(lambda _: AIMessage("Lima")), N)) == N
