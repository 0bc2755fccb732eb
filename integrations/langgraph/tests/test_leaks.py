"""Streams, events and checkpoints of a graph hold no rejected candidate and nothing of a failed decision."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_langgraph import CFCState, make_guarded_graph
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, RetryPolicy
from typing_extensions import TypedDict

from integrations.langgraph.tests.parts import (
    EASY,
    GOOD,
    HARD,
    MARK,
    QUESTIONS,
    UNSURE,
    N,
    Naive,
    Talk,
    make_chain,
    naive_graph,
    read_last_text,
)
from integrations.tests.graphs import (
    MODES,
    Watch,
    both_ways,
    every_generator,
    every_watch,
    list_streams,
    list_tokens,
    make_one_node_graph,
    read_stored,
    run_invoke,
    thread,
)
from langchain_cfc import CFCRunnable
from langchain_cfc.errors import DescriptionError, DrawError, ServingError, ServingTimeoutError, VerifierError
from tests.lengths import mostly_long
from tests.serving.openai_server import Fault, Script

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")


def place_graph(make: Any, state: Any, *, nested: bool) -> Any:
    """A graph of its own, or in another one."""
    return make_one_node_graph(make(None), state, InMemorySaver()) if nested else make(InMemorySaver())


@every_watch
@mostly_long(("outcome", "nested"), itertools.product(QUESTIONS, [False, True]), quick=3)
def test_streams_show_no_rejected_candidate(
    chain: CFCRunnable, served: Script, watch: Watch, outcome: str, nested: bool
) -> None:
    graph = place_graph(lambda saver: make_guarded_graph(chain, checkpointer=saver), CFCState, nested=nested)
    shown = repr(watch(graph, {"question": QUESTIONS[outcome]}, thread()))
    assert len(served.requests) == N
    assert MARK not in shown
    # Otherwise the test would show less than it says.
    assert (outcome in shown) == (watch is not list_tokens)


@every_watch
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_streams_show_every_draw_of_a_naive_node(chain: CFCRunnable, watch: Watch, nested: bool) -> None:
    # The negative control, to the same watchers.
    graph = place_graph(lambda saver: naive_graph(chain.generator, saver), Naive, nested=nested)  # type: ignore[arg-type]
    shown = watch(graph, {"question": UNSURE}, thread())
    assert MARK in repr(shown)
    if watch is list_streams:
        assert {mode for _, mode, piece in shown if MARK in repr(piece)} == set(MODES)


@every_watch
@every_generator
def test_generators_of_any_kind_show_no_rejected_candidate(
    artifact_path: Path, url: str, chain: CFCRunnable, watch: Watch, make: Any
) -> None:
    model: Any = chain.generator
    quiet = model.model_copy(update={"streaming": False, "disable_streaming": True, "cache": False})
    bot = make_chain(artifact_path, url, generator=make(quiet, "decide"))
    graph = make_guarded_graph(bot, checkpointer=InMemorySaver(), question=lambda state: [state["question"]])
    assert MARK not in repr(watch(graph, {"question": EASY}, thread()))


@every_watch
def test_streams_of_a_conversation_show_only_the_answer(chain: CFCRunnable, watch: Watch) -> None:
    graph = make_guarded_graph(chain, checkpointer=InMemorySaver(), state=Talk, question=read_last_text)
    shown = repr(watch(graph, {"messages": [("human", EASY)]}, thread()))
    assert MARK not in shown
    assert (GOOD in shown) == (watch is not list_tokens)


def test_messages_stream_holds_each_answer_once(chain: CFCRunnable) -> None:
    graph = make_guarded_graph(chain, state=Talk, question=read_last_text, checkpointer=InMemorySaver())

    def list_said(given: Any) -> list[Any]:
        return [message for message, _ in graph.stream(given, thread(), stream_mode="messages")]

    assert [message.text for message in list_said({"messages": [("human", EASY)]})] == [GOOD]
    assert list_said({"messages": [("human", UNSURE)]}) == []
    (said,) = list_said(Command(resume="Santiago"))
    assert said.text == "Santiago"
    assert said.response_metadata == {"cfc": {"by": "person", "name": None, "guarantee": None}}


def run(ask: Any, folder: Path, make: Any, steps: Sequence[Any]) -> list[Any]:
    """Return what a graph on a database returns or raises at each step, and its final state as read again."""

    async def find_outcome(graph: Any, step: Any) -> Any:
        try:
            if ask is run_invoke:
                return await asyncio.to_thread(graph.invoke, step, thread())
            return await graph.ainvoke(step, thread())
        except ServingError as error:
            return error

    async def list_outcomes() -> list[Any]:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.db")) as saver:
            # It restores no objects of unknown classes.
            saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
            graph = make(saver)
            found = [await find_outcome(graph, step) for step in steps]
            return [*found, await make(saver).aget_state(thread())]

    folder.mkdir()
    return asyncio.run(list_outcomes())


def make_guarded(chain: Any, **options: Any) -> Any:
    return lambda saver: make_guarded_graph(chain, checkpointer=saver, **options)


def make_unguarded(chain: CFCRunnable) -> Any:
    """A broken twin: a node that hands on what it gets, results as objects and errors in all their words."""

    class State(TypedDict, total=False):
        question: str
        decision: Any

    def decide(state: State, config: RunnableConfig) -> State:
        return {"decision": chain.invoke(state["question"], config)}

    return lambda saver: make_one_node_graph(decide, State, saver)


ASKED = [{"question": question} for question in QUESTIONS.values()]


@both_ways
def test_checkpointer_stores_no_rejected_candidate(
    chain: CFCRunnable, served: Script, tmp_path: Path, ask: Any
) -> None:
    run(ask, tmp_path / "guarded", make_guarded(chain), [*ASKED, Command(resume="no one knows")])
    assert len(served.requests) == 3 * N
    written = read_stored(tmp_path / "guarded")
    assert GOOD in written
    assert "no one knows" in written
    assert MARK not in written
    run(ask, tmp_path / "open", make_guarded(chain.model_copy(update={"show_rejected": True})), ASKED)
    assert MARK in read_stored(tmp_path / "open"), "they were asked for"
    model: Any = chain.generator
    run(ask, tmp_path / "naive", lambda saver: naive_graph(model, saver), ASKED)
    assert MARK in read_stored(tmp_path / "naive"), "the negative control"


def fail_with_quote(_: Any, candidates: Any) -> list[float]:
    """A verifier that fails on a candidate and says on which."""
    msg = f"cannot judge {candidates[0].text}"
    raise ValueError(msg)


def fail_with_typed_quote(_: Any, candidates: Any) -> list[float]:
    """A verifier that does so by the package's own type of error."""
    raise VerifierError(candidates[0].text)


def fail_extraction(text: str) -> str:
    """An extractor that fails as extractors do."""
    return str(int(text))


# For each kind of failure the fields of the chain, the faults of the server, and the type of the error.
FAILING: dict[str, tuple[dict[str, Any], list[Fault], type[ServingError]]] = {
    "verifier": ({"verifier": fail_with_quote, "verifier_id": "sequence-probability"}, [], VerifierError),
    "typed": ({"verifier": fail_with_typed_quote, "verifier_id": "sequence-probability"}, [], VerifierError),
    "extractor": ({"answer": fail_extraction}, [], DescriptionError),
    "draws": ({}, [Fault("status 500")], DrawError),
    "time": ({"timeout": 0.05}, [Fault("slow", seconds=0.5)], ServingTimeoutError),
}


@both_ways
@pytest.mark.parametrize("what", FAILING)
@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.FingerprintWarning")
def test_failure_is_typed_quotes_no_candidate_and_leaves_only_the_question(
    chain: CFCRunnable, served: Script, tmp_path: Path, what: str, ask: Any
) -> None:
    fields, served.faults, expected = FAILING[what]
    # A chain that shows rejected texts quotes them in its errors as well.
    for shown in (False, True):
        broken = chain.model_copy(update={**fields, "show_rejected": shown})
        folder = tmp_path / f"guarded, {shown}"
        error, snapshot = run(ask, folder, make_guarded(broken), [{"question": HARD}])
        assert type(error) is expected
        values = snapshot.values
        assert values["question"] == HARD
        assert (values["asked"], values["decision"], values["answer"]) == (None, None, None)
        assert snapshot.next == ("decide",)
        assert MARK not in str(error)
        assert MARK not in read_stored(folder)
    if what in {"verifier", "extractor"}:
        assert MARK in str(error.__cause__)
        assert "ValueError: (withheld" in str(error)
        # The negative control.
        error, _ = run(ask, tmp_path / "unguarded", make_unguarded(broken), [{"question": HARD}])
        assert MARK in str(error)
        assert MARK in read_stored(tmp_path / "unguarded")


@both_ways
def test_failed_question_clears_the_earlier_answer(
    chain: CFCRunnable, served: Script, tmp_path: Path, ask: Any
) -> None:
    served.faults = [Fault("status 500", on=set(range(N, 1000)))]
    state, error, snapshot = run(
        ask, tmp_path / "db", make_guarded(chain), [{"question": EASY}, {"question": UNSURE}]
    )
    assert state["answer"]["text"] == GOOD
    assert isinstance(error, DrawError)
    assert (snapshot.values["question"], snapshot.values["answer"]) == (UNSURE, None)


@both_ways
def test_retry_policy_repeats_a_failed_decision(
    chain: CFCRunnable, served: Script, tmp_path: Path, ask: Any
) -> None:
    # Of every prompt all draws fail twice over, which the sampler by itself does not repeat.
    served.faults = [Fault("status 500", on=set(range(2 * N)))]
    policy = RetryPolicy(retry_on=ServingError, initial_interval=0.01, jitter=False)
    state, _ = run(ask, tmp_path / "again", make_guarded(chain, retry=policy), [{"question": EASY}])
    assert state["answer"]["text"] == GOOD
    assert len(served.requests) == 3 * N
    served.faults = FAILING["draws"][1]
    error, _ = run(ask, tmp_path / "once", make_guarded(chain), [{"question": EASY}])
    assert isinstance(error, DrawError)
    assert len(served.requests) == 4 * N, "the model is not asked again unless requested"
