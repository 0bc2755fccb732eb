"""What a checkpointer writes: plain data, no rejected candidate, and nothing of a decision that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_langgraph import make_guarded_graph
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, RetryPolicy
from typing_extensions import TypedDict

from integrations.langgraph.tests.parts import EASY, GOOD, HARD, MARK, QUESTIONS, UNSURE, N, naive_graph
from integrations.tests.graphs import both_ways, make_one_node_graph, read_stored, run_invoke, thread
from langchain_cfc import CFCRunnable
from langchain_cfc.errors import DescriptionError, DrawError, ServingError, ServingTimeoutError, VerifierError
from tests.serving.openai_server import Fault, Script


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


def fail_with_quote(prompt: Any, candidates: Any) -> list[float]:
    """A verifier that fails on a candidate and says on which."""
    del prompt
    msg = f"cannot judge {candidates[0].text}"
    raise ValueError(msg)


def fail_with_typed_quote(prompt: Any, candidates: Any) -> list[float]:
    """A verifier that does so by the package's own type of error."""
    del prompt
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
