"""Texts that are not answered leave in nothing that a result, an error, a stream or a log is made of."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from pydantic_core import to_jsonable_python

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCRunnable
from langchain_cfc.errors import AbstentionError, DescriptionError, DrawError, SplitterError, VerifierError
from langchain_cfc.runnable import read_result
from tests.claims.chains import make_chain as make_claims_chain
from tests.factories import make_artifact, make_chain
from tests.fakes import ScriptedModel, answer_of
from tests.runnable.test_bot import with_bot

# Part of every text that must not leave.
MARK = "zurich-7f3a"
# Texts whose mean score is above the cut of a bot.
HARD = (f"{MARK} a|0.1", f"{MARK} b|0.9", f"{MARK} a|0.9", f"{MARK} c|0.8")
# The best answer, another accepted one, and rejected ones.
ANSWERED = ("lima|0.1", f"{MARK} b|0.3", "lima|0.9", f"{MARK} c|0.8")


def make_case(texts: tuple[str, ...], *, is_bot: bool, **fields: Any) -> CFCRunnable:
    """A bot, or answer sets."""
    artifact = make_artifact(extracted=True)
    if is_bot:
        artifact = with_bot(artifact)
        fields["max_wrong_rate"] = "0.05"
    return make_chain(artifact, generator=ScriptedModel(texts=texts), answer=answer_of, **fields)


def make_flagged(by_topics: CalibrationArtifact, **fields: Any) -> CFCRunnable:
    """A chain that flags every prompt."""
    given: dict[str, Any] = {"metadata": lambda _: {"topic": "hopeless"}, **fields}
    return make_chain(by_topics, **given)


FLAGGED: dict[str, Callable[[], dict[str, Any]]] = {
    "flagged": lambda: {"generator": ScriptedModel(texts=HARD)},
    "structured": lambda: {
        "generator": RunnableLambda(lambda _: {"city": MARK}),
        "verifier": lambda _, candidates: [0.1] * len(candidates),
    },
}


CASES: dict[str, tuple[str, Callable[..., CFCRunnable]]] = {
    "bot, abstained": ("mean_score_too_high", lambda **f: make_case(HARD, is_bot=True, **f)),
    "bot, answered": ("answered", lambda **f: make_case(ANSWERED, is_bot=True, **f)),
}


@pytest.fixture(params=[*CASES, *FLAGGED])
def case(request: Any, by_topics: CalibrationArtifact) -> tuple[str, Callable[..., CFCRunnable]]:
    if request.param in FLAGGED:
        parts = FLAGGED[request.param]()
        return "not_certifiable", lambda **fields: make_flagged(by_topics, **parts, **fields)
    return CASES[request.param]


def list_outputs(chain: CFCRunnable) -> Iterator[Any]:
    """Everything that leaves a call: results, messages, streams, events, states and errors."""
    result = chain.invoke("x")
    yield from (result, repr(result), result.model_dump_json(), result.explain(), pickle.dumps(result))
    yield read_result(json.loads(result.model_dump_json()))
    yield from chain.stream("x")
    model = CFCChatModel(chain=chain, full_result=True)
    yield from (model.invoke("x"), *model.stream("x"), chain.as_answer(full_result=True).invoke("x"))
    yield chain.or_else(lambda _: "a person").invoke("x")
    yield asyncio.run(_list_events(chain))
    raising = chain.model_copy(update={"on_abstain": "raise"})
    try:
        raising.invoke("x")
    except AbstentionError as error:
        yield from (error, str(error), error.result, pickle.dumps(error))
    yield from _run_graph(chain)


async def _list_events(chain: CFCRunnable) -> list[Any]:
    """The events of a call, without those of its draws and verifier, which are trace data."""
    events = [one async for one in chain.astream_events("x", version="v2")]
    return [one for one in events if not {"nostream", "cfc:verifier"} & {*one.get("tags", ())}]


class State(TypedDict, total=False):
    question: str
    decision: dict[str, Any]
    message: AIMessage


def _run_graph(chain: CFCRunnable) -> Iterator[Any]:
    """The streams of all modes, and the checkpoints, of a graph with the chain as a node."""

    def decide(state: State, config: RunnableConfig) -> State:
        result = chain.invoke(state["question"], config)
        return {"decision": result.model_dump(mode="json")}

    graph: Any = StateGraph(State)
    graph.add_node("decide", decide)
    graph.add_edge(START, "decide")
    graph.add_edge("decide", END)
    made = graph.compile(checkpointer=InMemorySaver())
    thread: RunnableConfig = {"configurable": {"thread_id": "1"}}
    modes = ["values", "updates", "messages", "custom", "debug", "checkpoints", "tasks"]
    yield from made.stream({"question": "x"}, thread, stream_mode=modes, subgraphs=True)
    yield from made.get_state_history(thread)


def holds_mark(output: Any) -> bool:
    if isinstance(output, bytes):
        return MARK in output.decode("latin-1")
    # The representation of a result is short, so all its fields are read, wherever it is held.
    held = to_jsonable_python(output, fallback=lambda one: getattr(one, "ops", repr(one)))
    return MARK in f"{held}{output!r}{output}{getattr(output, '_repr_html_', str)()}"


def test_withheld_texts_leave_in_no_output(
    case: tuple[str, Callable[..., CFCRunnable]], caplog: pytest.LogCaptureFixture
) -> None:
    reason, make = case
    chain = make()
    assert chain.invoke("x").reason == reason
    with caplog.at_level(logging.INFO):
        outputs = list(list_outputs(chain))
    assert len(outputs) > 15
    assert [one for one in outputs if holds_mark(one)] == []
    assert not holds_mark(caplog.text)
    # Control: the switch that shows them shows them all.
    shown = make(show_rejected=True).invoke("x")
    assert holds_mark(shown)
    assert None not in [one.text for one in shown.candidates]


def test_bot_gives_its_best_answer_alone() -> None:
    chain = make_case(ANSWERED, is_bot=True)
    result = chain.invoke("x")
    assert (result.answers, result.best) == (("lima",), "lima")
    assert [one.text for one in result.candidates] == ["lima|0.1", None, None, None]
    # The answer sets of the same artifact hold the other accepted answer too.
    assert chain.invoke("x", alpha="0.25").answers == ("lima", f"{MARK} b")


def quote_text(text: str) -> Any:
    msg = f"cannot read {text}"
    raise ValueError(msg)


def raise_typed(_: Any, candidates: Any) -> Any:
    raise VerifierError(candidates[0].text)


PARTS: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "verifier": (VerifierError, {"verifier": lambda _, candidates: quote_text(candidates[0].text)}),
    "typed": (VerifierError, {"verifier": raise_typed}),
    "scores": (VerifierError, {"verifier": lambda _, candidates: candidates}),
    "extractor": (DescriptionError, {"answer": quote_text}),
    "parser": (DrawError, {"generator": ScriptedModel(texts=HARD) | RunnableLambda(str) | quote_text}),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_errors_quote_no_candidate(name: str, timeout: float | None, invoke: Any) -> None:
    kind, parts = PARTS[name]
    chain = make_chain(**{"generator": ScriptedModel(texts=HARD), "timeout": timeout, **parts})
    with pytest.raises(kind, match="withheld") as failure:
        invoke(chain, "x")
    assert not holds_mark(failure.value)
    # Control: a chain that shows rejected texts shows what its errors quote.
    if name != "parser":
        with pytest.raises(kind) as shown:
            invoke(chain.model_copy(update={"show_rejected": True}), "x")
        assert holds_mark(shown.value)


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.FingerprintWarning")
def test_errors_of_claims_quote_no_answer() -> None:
    chain = make_claims_chain(generator=ScriptedModel(texts=HARD), splitter=quote_text)
    with pytest.raises(SplitterError, match="withheld") as failure:
        chain.invoke("x")
    assert not holds_mark(failure.value)
