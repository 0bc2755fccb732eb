"""Ordinary LangChain chains are recognised when they are made again, in another process as well."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from operator import itemgetter
from typing import Annotated, Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
    StrOutputParser,
    XMLOutputParser,
)
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import AfterValidator, BaseModel, Field, model_validator
from typing_extensions import TypedDict

from langchain_cfc.errors import FingerprintError
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint


class Answer(BaseModel):
    """An answer."""

    text: str = Field(description="the answer")
    sure: bool = True


class TypedAnswer(TypedDict):
    """An answer as a dict."""

    text: Annotated[str, ..., "the answer"]


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


def make_chains() -> dict[str, Runnable[Any, Any]]:
    model = ChatOpenAI(model="gpt-4o-mini", temperature=0.7, api_key="none")  # type: ignore[arg-type]
    template = ChatPromptTemplate.from_messages([("system", "Be right."), ("human", "{q}")])
    example = ChatPromptTemplate.from_messages([("human", "{i}"), ("ai", "{o}")])
    few_shots = FewShotChatMessagePromptTemplate(examples=[{"i": "1", "o": "2"}], example_prompt=example)
    history = MessagesPlaceholder("history", optional=True)
    ask = template | model
    strip = itemgetter("x") | RunnableLambda(str.strip)
    return {
        "map": {"q": RunnablePassthrough()} | ask | StrOutputParser(),
        "key": {"q": itemgetter("question")} | ask | StrOutputParser(),
        "pick": RunnablePick("q") | PromptTemplate.from_template("{q}") | model,
        "assign": RunnablePassthrough.assign(q=strip) | ask,
        "structured": template | model.with_structured_output(Answer),
        "structured_dict": template | model.with_structured_output(TypedAnswer),
        "structured_schema": model.with_structured_output({"title": "T", "type": "object", "properties": {}}),
        "structured_function": model.with_structured_output(Answer, method="function_calling"),
        "structured_json": model.with_structured_output(Answer, method="json_mode"),
        "structured_raw": model.with_structured_output(Answer, include_raw=True),
        "tools": template | model.bind_tools([look_up]),
        "json": ask | JsonOutputParser() | itemgetter("a"),
        "json_schema": ask | JsonOutputParser(pydantic_object=Answer),
        "pydantic": ask | PydanticOutputParser(pydantic_object=Answer),
        "list": ask | CommaSeparatedListOutputParser(),
        "xml": ask | XMLOutputParser(tags=["a"]),
        "few_shots": ChatPromptTemplate.from_messages([few_shots, history, ("human", "{q}")]) | model,
        "partial": template.partial(q="x") | model,
        "branch": RunnableBranch((itemgetter("math"), ask), template | model.bind(temperature=0)),
        "parallel": RunnableParallel(raw=model, q=RunnablePassthrough()) | itemgetter("raw"),
        "retry": (template | model.bind(stop=["x"])).with_retry().with_config(tags=["x"]),
    }


def state_chains() -> dict[str, Any]:
    return {name: compute_fingerprint(chain) for name, chain in make_chains().items()}


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, Any]:
    """The fingerprints as another process states them, with another hash seed."""
    code = f"import json; from {__name__} import state_chains; print(json.dumps(state_chains()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    stated: dict[str, Any] = json.loads(run.stdout)
    return stated


@pytest.mark.parametrize("name", make_chains())
def test_unchanged_chain_is_matched_in_another_process(name: str, elsewhere: dict[str, Any]) -> None:
    here = state_chains()
    assert compare_fingerprints("generator", elsewhere[name], here[name]) is None
    # Its control: no other of these chains is taken for it.
    assert sum(stated == here[name] for stated in here.values()) == 1


def test_chain_that_was_called_is_still_matched() -> None:
    chain: Any = make_chains()["few_shots"]
    before = compute_fingerprint(chain)
    chain.first.invoke({"q": "x", "history": []})  # LangChain caches a serialised form in the template
    assert compare_fingerprints("generator", before, compute_fingerprint(chain)) is None


MODEL = ChatOpenAI(model="gpt-4o-mini", api_key="none")  # type: ignore[arg-type]
ASK = make_chains()["pick"]
WITHOUT_PARSER: dict[str, Callable[[Any], Any]] = {
    "in a map": lambda draft: {"q": draft} | make_chains()["key"],
    "in a binding": lambda draft: draft.with_config(tags=["x"]) | RunnableLambda(str),
    "in a retry": lambda draft: draft.with_retry() | RunnableLambda(str),
    "in a sequence": lambda draft: RunnableSequence(first=draft, last=RunnableLambda(str)),
}


@pytest.mark.parametrize("name", WITHOUT_PARSER)
def test_parser_before_the_last_step_is_part_of_the_chain(name: str) -> None:
    """A later step gets the text in place of the message; at the end, both are the same candidate."""
    text, message = (compute_fingerprint(WITHOUT_PARSER[name](one)) for one in (ASK | StrOutputParser(), ASK))
    with pytest.raises(FingerprintError, match="steps_digest"):
        compare_fingerprints("generator", text, message)
    bare = compute_fingerprint(ASK)
    for same in (ASK | StrOutputParser(), (ASK | StrOutputParser()).with_retry()):
        assert compare_fingerprints("generator", compute_fingerprint(same), bare) is None


def test_parser_that_ends_a_chain_with_fallbacks_changes_no_candidate() -> None:
    text, message = (
        compute_fingerprint(one.with_fallbacks([one]), "mine") for one in (ASK | StrOutputParser(), ASK)
    )
    assert compare_fingerprints("generator", text, message) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HumanMessage("Hello.", name="Ann"), HumanMessage("Hello.", name="Bo")),
        (HumanMessage("Hello."), HumanMessage("Hello.", name="Bo")),
    ],
)
def test_names_of_messages_in_a_prompt_are_compared(one: HumanMessage, other: HumanMessage) -> None:
    first, second = (
        compute_fingerprint(ChatPromptTemplate.from_messages([shot, ("human", "{q}")]) | MODEL)
        for shot in (one, other)
    )
    with pytest.raises(FingerprintError, match="prompt_digest"):
        compare_fingerprints("generator", first, second)


def test_metadata_of_documents_in_a_prompt_are_compared() -> None:
    template = ChatPromptTemplate.from_template("{q} {page}")
    first, second = (
        compute_fingerprint(template.partial(page=Document("Lima", metadata={"year": year})) | MODEL)
        for year in (1990, 2020)
    )
    with pytest.raises(FingerprintError, match="prompt_digest"):
        compare_fingerprints("generator", first, second)


def double(text: str) -> str:
    return text + text


class Validated(Answer):
    """Has a validator."""

    @model_validator(mode="after")
    def _check(self) -> Validated:
        return self


class Annotating(BaseModel):
    """Has a validator in an annotation."""

    text: Annotated[str, AfterValidator(double)]


class Nested(BaseModel):
    """Refers to a class with a validator."""

    inner: list[Validated]


class Writing(Answer):
    """Writes itself in its own way."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return nothing."""
        return {}


@pytest.mark.parametrize("schema", [Validated, Annotating, Nested, Writing])
def test_schema_with_own_code_is_unverified(schema: type[BaseModel]) -> None:
    chain = make_chains()["map"] | PydanticOutputParser(pydantic_object=schema)
    stated = compute_fingerprint(chain)
    assert compare_fingerprints("generator", stated, stated) is not None


def test_function_that_claims_a_known_name_is_unverified() -> None:
    def disguised(text: str) -> str:
        return text

    disguised.__module__, disguised.__qualname__ = "json", "loads"
    for claimed in ("json.loads", "langchain_core.output_parsers.<locals>.f"):
        disguised.__module__, _, disguised.__qualname__ = claimed.rpartition(".")
        stated = compute_fingerprint(RunnableLambda(disguised) | make_chains()["map"])
        assert compare_fingerprints("generator", stated, stated) is not None
    known = compute_fingerprint(RunnableLambda(json.loads) | make_chains()["map"])
    assert compare_fingerprints("generator", known, known) is None
