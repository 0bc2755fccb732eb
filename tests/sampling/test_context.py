"""What of a chain runs once per prompt, and what is drawn n times."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBranch,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
)
from langchain_core.runnables.base import RunnableBinding, RunnableBindingBase
from langchain_core.runnables.retry import RunnableRetry

from langchain_cfc.sampling.models import without_streaming_and_cache
from langchain_cfc.sampling.requests import find_answering_model, split_generator
from tests.fakes import CountingRetriever, NumberedModel, RunRecorder
from tests.sampling.drawing import Draw, sorted_texts

AnyRunnable = Runnable[Any, Any]
Shape = Callable[[BaseChatModel, BaseChatModel, BaseRetriever], AnyRunnable]

QUESTION: dict[str, Any] = {"input": "where?", "chat_history": [HumanMessage("hi"), AIMessage("hello")]}

STUFF: AnyRunnable = ChatPromptTemplate.from_template("{context} {input}")
REWRITE: AnyRunnable = ChatPromptTemplate.from_messages(
    [MessagesPlaceholder("chat_history"), ("human", "{input}")]
)
TEXT = StrOutputParser()


def join_documents(documents: list[Document]) -> str:
    """The documents as one text."""
    return "\n".join(one.page_content for one in documents)


class ExpandingRetriever(BaseRetriever):
    """Asks a model for another wording of the question, as multi-query retrievers do."""

    model: BaseChatModel
    library: BaseRetriever

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        said = self.model.invoke(query, {"callbacks": run_manager.get_child()})
        return self.library.invoke(str(said.text), {"callbacks": run_manager.get_child()})


def make_lookup(retriever: AnyRunnable) -> AnyRunnable:
    """A question to the text of what is found."""
    return itemgetter("input") | retriever | join_documents


def make_history_aware(helper: BaseChatModel, library: BaseRetriever) -> AnyRunnable:
    """A retriever for the last of several questions, as `create_history_aware_retriever` makes it."""
    return RunnableBranch(
        (lambda given: not given["chat_history"], itemgetter("input") | library),
        REWRITE | helper | TEXT | library,
    )


def make_stuff_chain(model: BaseChatModel) -> AnyRunnable:
    """An answer from documents, as `create_stuff_documents_chain` makes it."""
    written_out: AnyRunnable = RunnablePassthrough.assign(
        context=lambda given: join_documents(given["context"])
    )
    return (written_out.with_config(run_name="format_inputs") | STUFF | model | TEXT).with_config(
        run_name="stuff_documents_chain"
    )


def find_in_function(library: BaseRetriever) -> AnyRunnable:
    def look_up(given: dict[str, Any], config: RunnableConfig) -> str:
        return join_documents(library.invoke(given["input"], config))

    return RunnableLambda(look_up)


def answer_in_function(model: BaseChatModel) -> AnyRunnable:
    def answer(context: str, config: RunnableConfig) -> str:
        return str(model.invoke(context, config).text)

    return RunnableLambda(answer)


def rewrite_in_function(model: BaseChatModel) -> AnyRunnable:
    def say(given: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        return {**given, "input": str(model.invoke(given["input"], config).text)}

    return RunnableLambda(say)


# The first model answers, and the second helps: to find, or to shorten what was found.
SHAPES: dict[str, Shape] = {
    "map": lambda model, _, library: (
        RunnableParallel(context=make_lookup(library), input=itemgetter("input")) | STUFF | model
    ),
    "assigned": lambda model, _, library: (
        RunnablePassthrough.assign(context=make_lookup(library)) | STUFF | model | TEXT
    ),
    "configured retriever": lambda model, _, library: (
        RunnablePassthrough.assign(context=make_lookup(library.with_config(run_name="find"))) | STUFF | model
    ),
    "retried retriever": lambda model, _, library: (
        RunnablePassthrough.assign(context=make_lookup(library.with_retry())) | STUFF | model
    ),
    "retriever first": lambda model, _, library: (
        itemgetter("input") | library | join_documents | model | TEXT
    ),
    "named sequence": lambda model, _, library: (
        RunnableParallel(
            context=RunnableSequence(
                itemgetter("input"), library, RunnableLambda(join_documents), name="find"
            ),
            input=itemgetter("input"),
        )
        | STUFF
        | model
    ),
    "configured chain": lambda model, _, library: (
        RunnablePassthrough.assign(context=make_lookup(library)) | STUFF | model | TEXT
    ).with_config(run_name="ask"),
    "retried chain": lambda model, _, library: (
        (RunnablePassthrough.assign(context=make_lookup(library)) | STUFF | model | TEXT)
        .with_retry()
        .with_config(tags=["mine"])
    ),
    "retrieval chain": lambda model, _, library: (
        RunnablePassthrough.assign(
            context=(itemgetter("input") | library).with_config(run_name="retrieve_documents")
        )
        .assign(answer=make_stuff_chain(model))
        .with_config(run_name="retrieval_chain")
        .pick("answer")
    ),
    "history": lambda model, helper, library: (
        RunnablePassthrough.assign(context=make_history_aware(helper, library))
        .assign(answer=make_stuff_chain(model))
        .pick("answer")
    ),
    "history in steps": lambda model, helper, library: (
        RunnablePassthrough.assign(input=REWRITE | helper | TEXT)
        | RunnablePassthrough.assign(context=make_lookup(library))
        | STUFF
        | model
    ),
    "expanded": lambda model, helper, library: (
        RunnablePassthrough.assign(context=make_lookup(ExpandingRetriever(model=helper, library=library)))
        | STUFF
        | model
    ),
    "shortened": lambda model, helper, library: (
        RunnablePassthrough.assign(context=make_lookup(library) | helper | TEXT) | STUFF | model
    ),
    "answering sequence": lambda model, helper, library: (
        RunnablePassthrough.assign(input=REWRITE | helper | TEXT)
        | (RunnablePassthrough.assign(context=make_lookup(library)) | STUFF | model).with_config(
            run_name="answer"
        )
    ),
    "retriever in a function": lambda model, helper, library: (
        RunnablePassthrough.assign(input=REWRITE | helper | TEXT)
        | RunnablePassthrough.assign(context=find_in_function(library))
        | STUFF
        | model
    ),
    "model in a function": lambda model, _, library: make_lookup(library) | answer_in_function(model),
}


class Parts:
    """Two models and a library, and a chain of them."""

    def __init__(self, shape: Shape, **settings: Any) -> None:
        quietly: dict[str, Any] = {"cache": False, "disable_streaming": True}
        self.model = NumberedModel(**quietly, **settings)
        self.helper = NumberedModel(**quietly, echoing=True)
        self.library = CountingRetriever()
        self.chain = shape(self.model, self.helper, self.library)


@pytest.mark.parametrize("name", SHAPES)
def test_sampler_finds_context_once_and_draws_n_answers(name: str, draw: Draw) -> None:
    parts = Parts(SHAPES[name])
    found = draw(parts.chain, 3, prompt=QUESTION)
    assert sorted_texts(found) == ["answer 0", "answer 1", "answer 2"]
    assert parts.library.asked == ["where?"]
    assert len(parts.model.requests) == 3
    assert len(parts.helper.requests) <= 1


@pytest.mark.parametrize("name", SHAPES)
def test_invoking_the_chain_n_times_searches_n_times(name: str) -> None:
    # The negative control of the test above.
    parts = Parts(SHAPES[name])
    for _ in range(3):
        parts.chain.invoke(QUESTION)
    assert parts.library.asked == ["where?"] * 3


@pytest.mark.parametrize("name", SHAPES)
def test_split_generator_answers_like_the_whole_chain(name: str, draw: Draw) -> None:
    parts = Parts(SHAPES[name], echoing=True)
    whole = parts.chain.invoke(QUESTION)
    expected = whole if isinstance(whole, str) else str(whole.text)
    assert "about where?" in expected
    assert {one.text for one in draw(parts.chain, 3, prompt=QUESTION)} == {expected}


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "model in a function"])
def test_single_request_finds_context_once(name: str, draw: Draw) -> None:
    parts = Parts(SHAPES[name])
    if find_answering_model(split_generator(parts.chain).per_candidate) is None:
        # Inside a map, the model's message is not what is drawn.
        assert name in {"retrieval chain", "history"}
        return
    found = draw(parts.chain, 3, "single_request", prompt=QUESTION)
    assert sorted_texts(found) == ["answer 0", "answer 1", "answer 2"]
    assert parts.library.asked == ["where?"]
    assert [request["n"] for request in parts.model.requests] == [3]


def test_chain_without_history_does_not_call_the_helper() -> None:
    parts = Parts(SHAPES["history"])
    assert split_generator(parts.chain).per_prompt is not None
    parts.chain.invoke({**QUESTION, "chat_history": []})
    assert parts.helper.requests == []


UNSPLIT_SHAPES: dict[str, Shape] = {
    # Bound arguments would reach the first step of each part, not of the chain.
    "arguments": lambda model, _, library: (RunnablePassthrough() | make_lookup(library) | model).bind(
        kind="mine"
    ),
    "fallbacks": lambda model, helper, library: (make_lookup(library) | model).with_fallbacks([helper]),
    "branch": lambda model, helper, library: RunnableBranch((bool, make_lookup(library) | model), helper),
    # Two answers: where one context ends and the other begins, a map does not say.
    "map": lambda model, _, library: RunnableParallel(answer=make_lookup(library) | model | TEXT),
    # What is found depends on what was drawn.
    "model first": lambda model, _, library: itemgetter("input") | model | TEXT | library | join_documents,
}


@pytest.mark.parametrize("name", UNSPLIT_SHAPES)
def test_generators_that_cannot_be_split_search_for_each_answer(name: str, draw: Draw) -> None:
    parts = Parts(UNSPLIT_SHAPES[name])
    assert len(draw(parts.chain, 3, prompt=QUESTION)) == 3
    assert len(parts.library.asked) == 3
    assert len(parts.model.requests) == 3


@pytest.mark.parametrize("name", ["arguments", "fallbacks", "branch", "map"])
def test_split_generator_keeps_chains_that_cannot_be_split(name: str) -> None:
    chain = Parts(UNSPLIT_SHAPES[name]).chain
    found = split_generator(chain)
    assert found.per_prompt is None
    assert found.per_candidate is chain


class OwnBinding(RunnableBindingBase[Any, Any]):
    """A wrapper of a kind that is not LangChain's, which may do anything around what it holds."""


def test_split_generator_keeps_unknown_bindings_whole() -> None:
    parts = Parts(SHAPES["assigned"])
    assert split_generator(parts.chain).per_prompt is not None
    chain: AnyRunnable = OwnBinding(bound=parts.chain)
    assert split_generator(chain).per_prompt is None
    assert split_generator(chain).per_candidate is chain
    assert find_answering_model(OwnBinding(bound=parts.model)) is None
    assert find_answering_model(RunnableBinding(bound=parts.model)) is not None


def test_split_generator_does_not_prepare_with_models_in_functions() -> None:
    parts = Parts(lambda model, helper, _: rewrite_in_function(helper) | itemgetter("input") | model)
    assert split_generator(parts.chain).per_prompt is None
    # The negative control: a function that calls no model prepares, and runs once.
    prepared: AnyRunnable = RunnableLambda(itemgetter("input")) | parts.model
    assert split_generator(prepared).per_prompt is not None


def test_split_generator_handles_recursive_functions() -> None:
    chain: AnyRunnable = RunnableLambda(lambda given: given)

    def again(given: Any) -> Any:
        return chain.invoke(given) if given else ""

    chain = RunnableLambda(again) | RunnableLambda(lambda given: given)
    assert split_generator(chain).per_prompt is None


def test_config_of_a_split_chain_reaches_both_parts(draw: Draw) -> None:
    mine, seen = RunRecorder(), RunRecorder()
    stuff: AnyRunnable = ChatPromptTemplate.from_template("{context}").configurable_fields(
        messages=ConfigurableField(id="messages")
    )
    parts = Parts(
        lambda model, _, library: (
            RunnablePassthrough.assign(context=make_lookup(library))
            | stuff
            | model.configurable_fields(echoing=ConfigurableField(id="echoing"))
            | TEXT
        ).with_config(
            tags=["mine"],
            callbacks=[mine],
            configurable={"messages": [("human", "say {context}")], "echoing": True},
        )
    )
    found = draw(parts.chain, 2, prompt=QUESTION, config={"callbacks": [seen]})
    assert {one.text for one in found} == {"say about where?"}
    for handler in (mine, seen):
        assert [tags >= {"mine"} for _, tags in handler.of("retriever")] == [True]
        assert [tags >= {"mine", "cfc:candidate"} for _, tags in handler.of("model")] == [True] * 2
    # Preparing is no draw.
    assert not any("cfc:candidate" in tags for _, tags in seen.of("retriever"))


def test_config_of_a_split_chain_reaches_a_single_request(draw: Draw) -> None:
    mine, seen = RunRecorder(), RunRecorder()
    parts = Parts(
        lambda model, _, library: (make_lookup(library) | model | TEXT | str.upper).with_config(
            tags=["mine"], callbacks=[mine]
        )
    )
    found = draw(parts.chain, 2, "single_request", prompt=QUESTION, config={"callbacks": [seen]})
    assert sorted_texts(found) == ["ANSWER 0", "ANSWER 1"]
    for handler in (mine, seen):
        assert [tags >= {"mine"} for _, tags in handler.of("retriever")] == [True]
        assert [tags for _, tags in handler.of("model")] == [frozenset({"mine", "cfc:candidate"})]
        parsed = [tags for name, tags in handler.of("chain") if name == "StrOutputParser"]
        assert [tags >= {"mine", "cfc:candidate"} for tags in parsed] == [True] * 2


def test_find_answering_model_sees_through_wrappers() -> None:
    model = NumberedModel()
    chain = (model.bind(stop=["x"]).with_retry() | TEXT).with_config(tags=["mine"]) | str.upper
    found = find_answering_model(chain)
    assert found is not None
    assert found.model is model
    wrappers: list[Any] = [found.choices]
    while hasattr(wrappers[-1], "bound"):
        wrappers.append(wrappers[-1].bound)
    assert [isinstance(one, RunnableRetry) for one in wrappers] == [False, False, True, False]
    assert found.after is not None
    assert found.after.invoke(AIMessage("said")) == "SAID"


def test_arguments_bound_to_a_sequence_reach_only_its_model() -> None:
    model = NumberedModel()
    found = find_answering_model((model | RunnableLambda(lambda message: message.text)).bind(stop=["x"]))
    assert found is not None
    assert found.after is not None
    assert found.after.invoke(AIMessage("said")) == "said"
    assert found.choices.invoke("x").text == "answer 0"
    assert model.requests == [{"prompt": "x", "stop": ["x"]}]


@pytest.mark.parametrize(
    "sampled",
    [
        RunnableLambda(str),
        RunnableParallel(out=NumberedModel()),
        NumberedModel().with_fallbacks([NumberedModel()]),
        NumberedModel().configurable_fields(n=ConfigurableField(id="n")),
    ],
)
def test_find_answering_model_returns_none_for_other_runnables(sampled: AnyRunnable) -> None:
    assert find_answering_model(sampled) is None
    assert find_answering_model(sampled | TEXT) is None


def test_chain_without_streaming_is_split_alike() -> None:
    for name, shape in SHAPES.items():
        chain = Parts(shape).chain
        loud, quietly = split_generator(chain), split_generator(without_streaming_and_cache(chain))
        assert (quietly.per_prompt is None) == (loud.per_prompt is None), name
        assert type(quietly.per_candidate) is type(loud.per_candidate), name
