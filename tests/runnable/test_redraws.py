"""One outermost call draws once for a prompt: retries, fallbacks and loops get the first result again."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.stores import InMemoryByteStore
from pydantic import PrivateAttr

from langchain_cfc import CFCChatModel, CFCResult, CFCRunnable
from langchain_cfc.errors import AbstentionError, InputError, ServingError, VerifierError
from langchain_cfc.runnable import DecisionStore
from langchain_cfc.runnable.redraws import DrawRegister, digest_prompt
from tests.calls import Invoke
from tests.factories import make_artifact, make_chain
from tests.fakes import TEXTS, N, ScriptedModel, verify

RETRY: dict[str, Any] = {"wait_exponential_jitter": False, "stop_after_attempt": 3}
GIVE_UP = [" "] * N


class ChangingModel(ScriptedModel):
    """Draws candidates that are all rejected for the first n requests, and good ones after that."""

    _asked: int = PrivateAttr(default=0)
    _count: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def _message(self, messages: Any, run_manager: Any) -> AIMessage:
        del run_manager
        with self._count:
            self._asked += 1
            texts = GIVE_UP if self._asked <= N else TEXTS
        self.drawn.append(str(messages[-1].text))
        return AIMessage(texts[(self._asked - 1) % N])


def make_changing(**fields: Any) -> CFCRunnable:
    return make_chain(generator=ChangingModel(), **fields)


def raising() -> CFCRunnable:
    return make_changing(on_abstain="raise")


def pass_on(chain: Any) -> Any:
    return RunnablePassthrough() | chain


def raise_abstention(result: CFCResult) -> CFCResult:
    if result.abstained:
        raise AbstentionError(result)
    return result


def twice(chain: CFCRunnable) -> CFCRunnable:
    """A fallback: the same chain, with a setting that changes nothing."""
    return chain.model_copy(update={"max_concurrency": 3})


def fall_back(chain: Any, change: Callable[[Any], Any] = lambda chain: chain) -> Any:
    """A chain that asks itself, or a copy, where it raises or returns an abstention."""
    if getattr(chain, "on_abstain", "raise") == "raise":
        return chain.with_fallbacks([change(chain)])
    return chain.or_else(pass_on(change(chain)))


REDRAWS: dict[str, Callable[[], Runnable[Any, Any]]] = {
    "retry": lambda: raising().with_retry(**RETRY),
    "retry_of_sequence": lambda: pass_on(raising()).with_retry(**RETRY),
    "retry_of_two_sequences": lambda: pass_on(pass_on(raising())).with_retry(**RETRY),
    "retry_after_function": lambda: (make_changing() | RunnableLambda(raise_abstention)).with_retry(**RETRY),
    "retry_of_answer": lambda: raising().as_answer().with_retry(**RETRY),
    "retry_of_chat_model": lambda: CFCChatModel(chain=raising()).with_retry(**RETRY),
    "retry_around_chat_model": lambda: pass_on(CFCChatModel(chain=raising())).with_retry(**RETRY),
    "fallback": lambda: fall_back(raising()),
    "fallback_of_copy": lambda: fall_back(raising(), twice),
    "fallback_in_sequence": lambda: fall_back(pass_on(raising())),
    "or_else": lambda: fall_back(make_changing()),
    "or_else_of_copy": lambda: fall_back(make_changing(), twice),
}


@pytest.mark.parametrize("kind", REDRAWS)
def test_second_draw_in_one_call_returns_the_first_abstention(kind: str, invoke: Invoke) -> None:
    chain = REDRAWS[kind]()
    try:
        found = invoke(chain, "x")
    except AbstentionError:
        return
    assert found.abstained


def ask_thrice(ask: Callable[[str], Any], question: str) -> Any:
    for _ in range(3):
        found = ask(question)
        if not found.abstained:
            break
    return found


@pytest.mark.parametrize("question", ["x", [HumanMessage("x")]])
def test_loop_inside_a_step_sees_one_result_for_each_prompt(question: Any) -> None:
    chain = make_changing()
    looping: Any = RunnableLambda(lambda given: ask_thrice(chain.invoke, given))
    assert looping.invoke(question).abstained
    # Its control: the same loop outside of LangChain, which no chain can see, draws again.
    assert not ask_thrice(chain.invoke, "other").abstained


def test_calls_of_their_own_draw_for_themselves() -> None:
    chain = pass_on(make_changing())
    assert [result.abstained for result in chain.batch(["x", "x"], {"max_concurrency": 1})] == [True, False]
    assert not chain.invoke("x").abstained


def test_concurrent_requests_for_a_prompt_share_one_draw(invoke: Invoke) -> None:
    model = ScriptedModel(texts=TEXTS)
    chain = make_chain(generator=model)
    found = invoke(RunnableParallel(one=chain, two=chain, three=pass_on(chain)), "x")
    assert len(model.drawn) == N
    assert found["one"].best == found["two"].best == found["three"].best == "lima|0.1"


def test_failed_draw_is_drawn_again(invoke: Invoke) -> None:
    calls: list[str] = []

    def failing_once(prompt: Any, candidates: Any) -> list[float]:
        calls.append(prompt)
        if len(calls) == 1:
            raise ConnectionError
        return verify(prompt, candidates)

    retried = pass_on(make_chain(verifier=failing_once)).with_retry(
        retry_if_exception_type=(VerifierError,), **RETRY
    )
    assert invoke(retried, "x").best == "lima|0.1"
    assert len(calls) == 2


def test_repeated_result_states_no_usage_of_its_own() -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    chain = make_chain(generator=ScriptedModel(texts=TEXTS, usage=usage))  # type: ignore[arg-type]
    both: Any = RunnableLambda(lambda given: [chain.invoke(given), chain.invoke(given)])
    first, second = both.invoke("x")
    assert first.usage["total_tokens"] == 2 * N
    assert second.usage is None
    assert second == first.model_copy(update={"usage": None})


def test_other_prompts_and_artifacts_of_a_call_are_drawn() -> None:
    model = ScriptedModel(texts=TEXTS)
    one, other = make_chain(generator=model), make_chain(make_artifact(alpha=0.5), generator=model)
    asked: Any = RunnableLambda(lambda _: [one.invoke("x"), one.invoke("y"), other.invoke("x")])
    asked.invoke("")
    assert len(model.drawn) == 3 * N


def make_constant(city: str) -> CFCRunnable:
    return make_chain(generator=RunnableLambda(lambda _: f"{city}|0.1"))


def test_generators_that_cannot_say_what_they_are_draw_for_themselves() -> None:
    asked: Any = RunnableLambda(lambda given: [make_constant(city).invoke(given).best for city in given])
    assert asked.invoke("abcde") == [f"{city}|0.1" for city in "abcde"]
    drawn: list[str] = []

    def draw(prompt: str) -> str:
        drawn.append(prompt)
        return GIVE_UP[0]

    # The same function again is no other generator.
    again: Any = make_chain(generator=RunnableLambda(draw)).or_else(
        make_chain(generator=RunnableLambda(draw))
    )
    again.invoke("x")
    assert drawn == ["x"] * N


def test_call_refuses_to_ask_again_under_another_level() -> None:
    chain = make_changing(artifact=make_artifact(alpha=[0.25, 0.5]), alpha=0.25)
    raised: Any = RunnableLambda(lambda given: chain.invoke(given) or chain.invoke(given, alpha=0.5))
    with pytest.raises(InputError, match="asked before in this call"):
        raised.invoke("x")


def test_chain_that_draws_from_a_chain_gets_separate_draws() -> None:
    model = ScriptedModel()
    inner = make_chain(generator=model, artifact=make_artifact()).as_answer(text=True)
    outer = pass_on(make_chain(generator=inner))
    outer.invoke("x")
    assert len(model.drawn) == N * N


class AskingModel(ScriptedModel):
    """Answers by asking a chain again until it answers, but at most three times."""

    chain: Any

    def _message(self, messages: Any, run_manager: Any) -> AIMessage:
        del run_manager
        asking: Any = RunnableLambda(lambda question: ask_thrice(self.chain.invoke, question))
        asking.invoke(str(messages[-1].text))
        return AIMessage("lima|0.1")


def test_each_draw_of_a_model_that_asks_a_chain_is_a_call(invoke: Invoke) -> None:
    model = ScriptedModel(texts=GIVE_UP)
    outer = make_chain(generator=AskingModel(chain=make_chain(generator=model)))
    assert not invoke(outer, "x").abstained
    assert len(model.drawn) == N * N


def test_graph_node_with_retry_policy_gets_the_first_abstention() -> None:
    graph = pytest.importorskip("langgraph.graph")
    types = pytest.importorskip("langgraph.types")
    chain = raising()
    state = TypedDict("state", {"q": str, "result": Any})  # noqa: UP013 - a local class has no resolvable hints

    builder = graph.StateGraph(state)
    policy = types.RetryPolicy(initial_interval=0.01, jitter=False, max_attempts=3, retry_on=AbstentionError)
    builder.add_node("ask", lambda given: {"result": chain.invoke(given["q"])}, retry_policy=policy)
    builder.add_edge(graph.START, "ask")
    with pytest.raises(AbstentionError):
        builder.compile().invoke({"q": "x"})


def test_register_is_freed_with_its_call_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langchain_cfc.runnable.redraws._MAX_PROMPTS", 5)
    chain, seen = make_chain(), []

    def ask(_: Any, config: Any) -> None:
        register = next(one for one in config["callbacks"].handlers if isinstance(one, DrawRegister))
        for number in range(20):
            chain.invoke(f"question {number}")
        seen.append((weakref.ref(register), len(register._draws)))

    runnable: Any = RunnableLambda(ask)
    runnable.invoke("")
    gc.collect()
    reference, size = seen[0]
    assert size == 5
    assert reference() is None


def test_prompt_digest_ignores_message_ids_only() -> None:
    assert digest_prompt([HumanMessage("x", id="1")]) == digest_prompt([HumanMessage("x", id="2")])
    assert digest_prompt([HumanMessage("x")]) != digest_prompt([AIMessage("x")])
    assert digest_prompt("x") != digest_prompt("y")


class Photo:
    def __init__(self, pixel: object) -> None:
        self.pixel = pixel


def test_prompt_digest_tells_objects_with_one_repr_apart() -> None:
    many = np.arange(5000)
    others = [np.where(many == 2500, 0, many), many]
    assert len({digest_prompt({"image": one}) for one in others}) == 2
    # Python gives the address of an object that is gone to the next one.
    assert len({digest_prompt({"image": Photo(number)}) for number in range(20)}) == 20
    with pytest.raises(InputError, match="cannot be compared with others"):
        digest_prompt({"image": Photo(lambda: 0)})


def test_stored_decision_is_returned_however_often_the_question_is_asked(invoke: Invoke) -> None:
    store, chain = InMemoryByteStore(), make_changing()
    kept = chain.with_config(callbacks=[DecisionStore(store)])
    first = invoke(kept, "q")
    again = [invoke(kept, "q") for _ in range(3)]
    # Another process has another object around the same store.
    again.append(invoke(chain.with_config(callbacks=[DecisionStore(store)]), "q"))
    assert {one.abstained for one in again} == {first.abstained} == {True}
    assert again[-1] == first.model_copy(update={"usage": None})
    # Control: without the store, asking again finds an answer.
    assert not invoke(chain, "q").abstained
    assert chain.generator.drawn == ["q"] * (2 * N)  # type: ignore[attr-defined]


def test_stored_decision_belongs_to_conversation_question_and_settings(invoke: Invoke) -> None:
    chain = make_changing(artifact=make_artifact(alpha=[0.25, 0.3]), alpha="0.25")
    store = InMemoryByteStore()
    by_thread = chain.with_config(callbacks=[DecisionStore(store)])
    ana, ben = ({"configurable": {"thread_id": name}} for name in ("ana", "ben"))
    assert [invoke(by_thread, "q", one).abstained for one in (ana, ana, ben)] == [True, True, False]
    named = chain.with_config(callbacks=[DecisionStore(store, "ana")])
    assert invoke(named, "q").abstained
    assert not invoke(named, "another").abstained
    stricter = make_changing(artifact=chain.artifact, alpha="0.3")
    with pytest.raises(InputError, match="asked before"):
        invoke(stricter.with_config(callbacks=[DecisionStore(store, "ana")]), "q")


class BrokenStore(InMemoryByteStore):
    def mget(self, keys: Any) -> Any:
        del keys
        raise OSError


@pytest.mark.parametrize("how", ["broken", "flipped", "moved", "text"])
def test_damaged_store_raises_and_draws_nothing(how: str, invoke: Invoke) -> None:
    store, chain = InMemoryByteStore(), make_changing()
    invoke(chain.with_config(callbacks=[DecisionStore(store)]), "q")
    invoke(chain.with_config(callbacks=[DecisionStore(store)]), "other")
    name, other = store.yield_keys()
    (kept, another) = store.mget([name, other])
    assert kept is not None
    assert another is not None
    changed = {"flipped": kept.replace(b"true", b"True", 1), "moved": another, "text": b"yes"}
    store.mset([(name, changed.get(how, kept))])
    drawn = len(chain.generator.drawn)  # type: ignore[attr-defined]
    read = BrokenStore() if how == "broken" else store
    with pytest.raises(ServingError, match="store"):
        invoke(chain.with_config(callbacks=[DecisionStore(read)]), "q")
    assert len(chain.generator.drawn) == drawn  # type: ignore[attr-defined]


def test_failed_call_is_not_stored(invoke: Invoke) -> None:
    store = InMemoryByteStore()

    def fail(prompt: Any, candidates: Any) -> Any:
        raise ValueError(prompt, candidates)

    kept = [DecisionStore(store)]
    with pytest.raises(VerifierError):
        invoke(make_chain(verifier=fail).with_config(callbacks=kept), "q")
    assert not list(store.yield_keys())
    assert not invoke(make_chain().with_config(callbacks=kept), "q").abstained
