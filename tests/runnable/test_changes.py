"""A changed generator is never served as the calibrated one: it is refused, or its guarantees say unverified.

Every change is tried in both directions: calibrated without it and served with it, and the other way round.
The control is the unchanged chain, whose guarantees say matched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import openai
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.embeddings import FakeEmbeddings
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, FewShotChatMessagePromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr, create_model, field_validator

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCRunnable
from langchain_cfc.errors import FingerprintError, FingerprintWarning
from langchain_cfc.records import Provenance
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import BaseVerifier, ModelJudge, SelfConsistency
from langchain_cfc.verifiers.base import combine_fingerprints
from tests.factories import make_artifact
from tests.fakes import N, verify

AnyRunnable: TypeAlias = Runnable[Any, Any]

CALIBRATED: dict[str, Any] = {
    "model": "gpt-4o-mini",
    "temperature": 0.7,
    "max_tokens": 5,
    "logprobs": True,
    "api_key": SecretStr("none"),
}
OTHER_TOOL = {"type": "function", "function": {"name": "find", "parameters": {}}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}


def make_model(**settings: Any) -> ChatOpenAI:
    return ChatOpenAI(**{**CALIBRATED, **settings})


def make_templated_model(*messages: tuple[str, str]) -> AnyRunnable:
    return ChatPromptTemplate.from_messages([*messages, ("human", "{q}")]) | make_model()


def rewrite(prompt: str) -> str:
    return f"Always lie. {prompt}"


def call_cached_model(prompt: Any) -> Any:
    return make_model(cache=InMemoryCache()).invoke(prompt)


TEMPLATE: Any = ChatPromptTemplate.from_messages([("human", "{q}")])
MUSTACHE: Any = ChatPromptTemplate.from_messages([("human", "{{q}}")], template_format="mustache")


class LyingModel(ChatOpenAI):
    """A subclass that may change every request."""


class OtherModel(FakeListChatModel):
    """Another class with the same settings."""

    responses: list[str] = ["x"]  # noqa: RUF012 - pydantic copies it
    model: str = "gpt-4o-mini"
    temperature: float = 0.7
    max_tokens: int = 5


class OwnTemplate(ChatPromptTemplate):
    """A template whose code nothing describes."""


class OwnParser(StrOutputParser):
    """A parser whose code nothing describes."""


class OwnClient(openai.OpenAI):
    """A client that may change any request."""


class Answer(BaseModel):
    """An answer."""

    text: str


class CheckedAnswer(Answer):
    """An answer with code of its own."""

    @field_validator("text")
    @classmethod
    def _change(cls, text: str) -> str:
        return text[::-1]


def call_shadowed_model() -> AnyRunnable:
    model = make_model()
    object.__setattr__(model, "_generate", lambda *_, **__: None)
    return model


def make_fetched(step: Any) -> AnyRunnable:
    return {"q": step} | make_templated_model()


def make_fetching() -> AnyRunnable:
    return make_fetched(InMemoryVectorStore(FakeEmbeddings(size=3)).as_retriever())


Make: TypeAlias = Callable[[], AnyRunnable]
# The rows of the table in docs/operations.md, and the changes that each stands for: of the model above, or
# from the first to the second of two generators.
CHANGES: dict[str, dict[str, Make | tuple[Make, Make]]] = {
    "model name, `temperature`, `max_tokens`, `stop`, `seed` and other sampling parameters": {
        "model": lambda: make_model(model="gpt-4o"),
        "bound model": lambda: make_model().bind(model="gpt-4o"),
        "temperature": lambda: make_model(temperature=0.1),
        "temperature unset": lambda: make_model(temperature=None),
        "max_tokens": lambda: make_model(max_tokens=500),
        "max_tokens unset": lambda: make_model(max_tokens=None),
        "bound max_completion_tokens": lambda: make_model().bind(max_completion_tokens=1),
        "top_p": lambda: make_model(top_p=0.1),
        "bound top_p": lambda: make_model().bind(top_p=0.1),
        "frequency_penalty": lambda: make_model(frequency_penalty=2.0),
        "presence_penalty": lambda: make_model(presence_penalty=2.0),
        "logit_bias": lambda: make_model(logit_bias={1: 100}),
        "reasoning_effort": lambda: make_model(reasoning_effort="high"),
        "reasoning": lambda: make_model(reasoning={"effort": "high"}),
        "verbosity": lambda: make_model(verbosity="low"),
        "stop": lambda: make_model(stop_sequences=["a"]),
        "bound stop": lambda: make_model().bind(stop=["a"]),
        "seed": lambda: make_model(seed=7),
        "extra_body top_k": lambda: make_model(extra_body={"top_k": 1}),
        "extra_body min_p": lambda: make_model(extra_body={"min_p": 0.5}),
    },
    "any other setting of the model, or argument bound to it, `service_tier` included": {
        "extra_body": lambda: make_model(extra_body={"guided": {"thinking": False}}),
        "bound extra_body": lambda: make_model().bind(extra_body={"mirostat": 1}),
        "model_kwargs": lambda: make_model(model_kwargs={"mirostat": 2}),
        "bound argument": lambda: make_model().bind(guided_regex="a*"),
        "bound messages": lambda: make_model().bind(messages=[{"role": "system", "content": "Lie."}]),
        "truncation": lambda: make_model(truncation="auto"),
        "service_tier": lambda: make_model(service_tier="flex"),
        "bound service_tier": lambda: make_model().bind(service_tier="flex"),
        "interface": lambda: make_model(use_responses_api=True),
        "output_version": lambda: make_model(output_version="responses/v1"),
        "disabled_params": lambda: make_model(disabled_params={"stop": None}),
    },
    "headers and query parameters, except keys, request ids and the like": {
        "default_headers": lambda: make_model(default_headers={"x-model": "other"}),
        "bound headers": lambda: make_model().bind(extra_headers={"x-model": "other"}),
        "default_query": lambda: make_model(default_query={"model": "other"}),
        "bound query": lambda: make_model().bind(extra_query={"model": "other"}),
        "value of a header": (
            lambda: make_model(default_headers={"x-model": "one"}),
            lambda: make_model(default_headers={"X-Model": "other"}),
        ),
    },
    "the class of the model, or of a step": {
        "subclass of the model": lambda: LyingModel(**CALIBRATED),
        "another class": OtherModel,
        "subclass of the template": (
            lambda: make_templated_model(("system", "Be right.")),
            lambda: OwnTemplate.from_messages([("system", "Be right."), ("human", "{q}")]) | make_model(),
        ),
    },
    "prompt templates": {
        "template": lambda: make_templated_model(("system", "Always lie.")),
        "no system prompt": make_templated_model,
        "other text": (
            lambda: make_templated_model(("system", "Be right.")),
            lambda: make_templated_model(("system", "Always lie.")),
        ),
        "partial variable": (make_templated_model, lambda: TEMPLATE.partial(q="x") | make_model()),
        "format": (make_templated_model, lambda: MUSTACHE | make_model()),
        "example": (lambda: make_few_shots("2") | make_model(), lambda: make_few_shots("3") | make_model()),
    },
    "maps, branches, parsers and other steps of LangChain's, with their settings": {
        "parser": lambda: make_model() | JsonOutputParser(),
        "list parser": lambda: make_model() | CommaSeparatedListOutputParser(),
        "schema of the parser": (
            lambda: make_model() | JsonOutputParser(),
            lambda: make_model() | JsonOutputParser(pydantic_object=Answer),
        ),
        "map": (make_templated_model, lambda: make_fetched(RunnablePassthrough())),
        "key": (lambda: make_fetched(itemgetter("a")), lambda: make_fetched(itemgetter("b"))),
        "function of Python": (
            lambda: make_fetched(RunnableLambda(str.strip)),
            lambda: make_fetched(RunnableLambda(str.lower)),
        ),
        "order of steps": (
            lambda: RunnableParallel(q=RunnablePassthrough()) | TEMPLATE | make_model(),
            lambda: TEMPLATE | RunnableParallel(q=RunnablePassthrough()) | make_model(),
        ),
        "model before the model": lambda: make_model(temperature=0.1) | StrOutputParser() | make_model(),
        "branch": lambda: RunnableBranch((itemgetter("a"), make_model(temperature=0.1)), make_model()),
    },
    "tools, tool choice, response format, structured output": {
        "tool_choice": (
            lambda: make_model().bind_tools([TOOL]),
            lambda: make_model().bind_tools([TOOL], tool_choice="any"),
        ),
        "other tool": (
            lambda: make_model().bind_tools([TOOL]),
            lambda: make_model().bind_tools([OTHER_TOOL]),
        ),
        "structured": lambda: make_model().with_structured_output(Answer),
        "schema": (
            lambda: make_model().with_structured_output(Answer),
            lambda: make_model().with_structured_output(create_model("Answer", text=(int, ...))),
        ),
        "method": (
            lambda: make_model().with_structured_output(Answer),
            lambda: make_model().with_structured_output(Answer, method="function_calling"),
        ),
        "raw": (
            lambda: make_model().with_structured_output(Answer),
            lambda: make_model().with_structured_output(Answer, include_raw=True),
        ),
    },
    "tools or a response format, added to a generator that had none": {
        "tools": lambda: make_model().bind_tools([TOOL]),
        "response_format": lambda: make_model().bind(response_format={"type": "json_object"}),
    },
    "fallbacks added or taken away": {
        "fallback": lambda: make_model().with_fallbacks([make_model(model="gpt-4o")]),
        "same fallback": lambda: make_model().with_fallbacks([make_model()]),
    },
    "the address of the server, a region or a proxy": {
        "base_url": lambda: make_model(base_url="http://other/v1"),
        "host": (
            lambda: make_model(base_url="https://one/v1"),
            lambda: make_model(base_url="https://other/v1"),
        ),
        "port": (
            lambda: make_model(base_url="http://127.0.0.1:8000/v1"),
            lambda: make_model(base_url="http://127.0.0.1:8001/v1"),
        ),
        "path": (
            lambda: make_model(base_url="http://host/one/v1"),
            lambda: make_model(base_url="http://host/other/v1"),
        ),
        "proxy": lambda: make_model(openai_proxy="http://proxy:3128"),
    },
    "functions, steps and clients of your own, whether changed or not": {
        "function before": lambda: RunnableLambda(rewrite) | make_model(),
        "function after": lambda: make_model() | RunnableLambda(lambda message: message.text[::-1]),
        "passthrough": lambda: RunnablePassthrough(lambda _: None) | make_model(),
        "client": lambda: make_model(http_client=httpx.Client()),
        "root client": lambda: make_model(client=OwnClient(api_key="none").chat.completions),
        "method": call_shadowed_model,
    },
    "key, organisation, time limits, retries, `streaming`, `n`, log-probabilities, cache, tags": {
        "key": lambda: make_model(api_key=SecretStr("other"), organization="other"),
        "limits": lambda: make_model(timeout=3.0, max_retries=5, logprobs=None, n=2),
        "delivery": lambda: make_model(streaming=True, cache=True, stream_usage=False),
        "bound": lambda: make_model().bind(user="me", timeout=4.0, metadata={"team": "blue"}),
        "retry": lambda: make_model().with_retry(),
        "tags": lambda: make_model().with_config(tags=["mine"]),
        "headers": lambda: make_model(default_headers={"X-Request-Id": "7", "Authorization": "Bearer x"}),
        "identity": lambda: RunnablePassthrough() | make_model() | StrOutputParser(),
        "default address": lambda: make_model(base_url="https://API.openai.com:443/v1/"),
    },
    "retrievers and steps configured per call, whether changed or not": {
        "setting": lambda: make_model().configurable_fields(temperature=ConfigurableField(id="t")),
        "choice": lambda: make_model().configurable_alternatives(
            ConfigurableField(id="m"), other=make_model(model="gpt-4o")
        ),
        "retriever": (make_fetching, make_fetching),
        "function that calls a model": lambda: RunnableLambda(call_cached_model),
    },
}


def make_few_shots(answer: str) -> AnyRunnable:
    pair = ChatPromptTemplate.from_messages([("human", "{i}"), ("ai", "{o}")])
    return FewShotChatMessagePromptTemplate(examples=[{"i": "1", "o": answer}], example_prompt=pair)


PAIRS = [(row, name) for row, named in CHANGES.items() for name in named]
# Rows whose generators are not matched even with themselves.
NEVER_MATCHED = ("whether changed or not", "the class of", "fallbacks")


def make_pair(row: str, name: str) -> tuple[AnyRunnable, AnyRunnable]:
    change = CHANGES[row][name]
    return (change[0](), change[1]()) if isinstance(change, tuple) else (make_model(), change())


def read_table() -> dict[str, list[str]]:
    """Return the outcomes in the documentation by row: of a change, and of the change back."""
    page = Path("docs/operations.md").read_text(encoding="utf-8")
    table = page.partition("| change | then |\n| --- | --- |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    return {row: re.findall("matched|unverified|refused", outcome) for row, outcome in rows}


def compare(part: str, calibrated: Mapping[str, Any], serving: Mapping[str, Any]) -> str:
    try:
        doubt = compare_fingerprints(part, json.loads(json.dumps(calibrated)), serving)
    except FingerprintError:
        return "refused"
    return "matched" if doubt is None else "unverified"


def test_documentation_lists_the_tested_changes_and_no_others() -> None:
    assert set(read_table()) == set(CHANGES)
    assert len(PAIRS) >= 60


@pytest.mark.parametrize(("row", "name"), PAIRS)
def test_changed_generator_has_the_documented_outcome(row: str, name: str) -> None:
    one, other = map(compute_fingerprint, make_pair(row, name))
    outcomes = read_table()[row]
    assert compare("generator", one, other) == outcomes[0]
    assert compare("generator", other, one) == outcomes[-1]


@pytest.mark.parametrize(("row", "name"), PAIRS)
def test_changed_model_in_a_verifier_has_the_documented_outcome(row: str, name: str) -> None:
    """Of verifiers and extractors that are made of a model or a chain, the same is stated."""
    one, other = (combine_fingerprints("judge", {}, {"model": part}) for part in make_pair(row, name))
    # Tools cannot come with each call of a verifier, so that taking them away is refused as well.
    outcome = read_table()[row][0]
    assert {compare("verifier", one, other), compare("verifier", other, one)} == {outcome}


@pytest.mark.parametrize(("row", "name"), PAIRS)
def test_unchanged_generator_is_matched_unless_it_has_own_code(row: str, name: str) -> None:
    """The control: whatever can be described is recognised."""
    one, other = (compute_fingerprint(make_pair(row, name)[1]) for _ in range(2))
    # LangChain makes a client of its own for a proxy, which looks like one of the user's.
    has_own_code = any(part in row for part in NEVER_MATCHED) or name == "proxy"
    expected = "unverified" if has_own_code else "matched"
    assert compare("generator", one, other) == expected
    vouched = {**one, "id": "mine"}, compute_fingerprint(make_pair(row, name)[1], "mine")
    assert (
        compare("generator", {k: v for k, v in vouched[0].items() if k != "unnamed"}, vouched[1]) == "matched"
    )


class LaxJudge(ModelJudge):
    """A judge that accepts everything."""

    def _read_score(self, reply: Any) -> float:
        del reply
        return 0.0


class LaxConsistency(SelfConsistency):
    """One that runs code of its own before the base class's."""

    def __init__(self) -> None:
        super().__init__()


class OwnJudge(BaseVerifier):
    """A verifier of the user's own, which names itself."""

    def __init__(self) -> None:
        self.fingerprint = {"id": "mine"}

    def flow(self, given: Any, config: Any) -> Any:
        del config
        yield from ()
        return [0.5] * len(given["candidates"])


class LaxOwnJudge(OwnJudge):
    """A subclass of it."""


def make_judge(kind: type[ModelJudge] = ModelJudge, **settings: Any) -> ModelJudge:
    return kind(make_model(temperature=0), **settings)


VERIFIERS: dict[str, tuple[Any, Any, str]] = {
    "subclass": (make_judge(), make_judge(LaxJudge), "refused"),
    "subclass of another verifier": (SelfConsistency(), LaxConsistency(), "refused"),
    "subclass of an own verifier": (OwnJudge(), LaxOwnJudge(), "refused"),
    "own verifier": (OwnJudge(), OwnJudge(), "matched"),
    "same subclass": (make_judge(LaxJudge), make_judge(LaxJudge), "unverified"),
    "criterion": (make_judge(), make_judge(criterion="Every answer is right."), "refused"),
    "question": (make_judge(), make_judge(question=lambda _: "x"), "refused"),
    "own question": (make_judge(question=rewrite), make_judge(question=rewrite), "unverified"),
    "another verifier": (make_judge(), SelfConsistency(), "refused"),
    "answer": (SelfConsistency(str.strip), SelfConsistency(str.lower), "refused"),
    "same answer": (SelfConsistency(str.strip), SelfConsistency(str.strip), "matched"),
    "own answer": (SelfConsistency(rewrite), SelfConsistency(rewrite), "unverified"),
    "same": (make_judge(), make_judge(), "matched"),
    "function": (verify, verify, "unverified"),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_changed_verifier_is_matched_only_if_it_is_the_same(name: str) -> None:
    one, other, expected = VERIFIERS[name]
    stated = compute_fingerprint(one), compute_fingerprint(other)
    assert compare("verifier", *stated) == compare("verifier", *reversed(stated)) == expected


def test_id_vouches_for_address_and_own_code_but_hides_no_difference() -> None:
    def compare_named(one: AnyRunnable, other: AnyRunnable) -> str:
        return compare("generator", *(compute_fingerprint(part, "mine") for part in (one, other)))

    assert compare_named(make_model(), make_model(base_url="http://other")) == "matched"
    assert (
        compare_named(RunnableLambda(rewrite) | make_model(), RunnableLambda(rewrite) | make_model())
        == "matched"
    )
    judges = [make_judge(), ModelJudge(make_model(temperature=0, base_url="http://other"))]
    assert compare("verifier", *map(compute_fingerprint, judges)) == "unverified"
    assert compare("verifier", *(compute_fingerprint(judge, "mine") for judge in judges)) == "matched"
    assert compare_named(make_model(), make_model(default_headers={"x-model": "other"})) == "refused"
    assert compare_named(make_model(), LyingModel(**CALIBRATED)) == "refused"


def test_fingerprint_holds_no_secret_in_plain_text() -> None:
    secret = "s3cr3t"  # noqa: S105 - what must not appear
    model = make_model(
        base_url=f"https://me:{secret}@host/{secret}/v1?sig={secret}",
        api_key=SecretStr(secret),
        default_headers={"x-custom": secret, "Authorization": secret},
        default_query={"x": secret},
    )
    assert secret not in json.dumps(compute_fingerprint(model))
    rotated = make_model(base_url="https://me:other@host/v1?sig=other")
    same = make_model(base_url="https://you@host:443/v1/")
    assert compare("generator", compute_fingerprint(rotated), compute_fingerprint(same)) == "matched"


def make_artifact_for(generator: AnyRunnable) -> CalibrationArtifact:
    """An artifact whose records state what `collect` states of a generator, as a file gives it back."""
    return make_artifact_stating(json.dumps(compute_fingerprint(generator)))


@cache
def make_artifact_stating(fingerprint: str) -> CalibrationArtifact:
    stated = json.loads(fingerprint)
    return make_artifact(provenance=Provenance(n=N, generator=stated, verifier={"id": "v"}))


def serve(artifact: CalibrationArtifact, generator: AnyRunnable) -> CFCRunnable:
    return CFCRunnable(generator=generator, verifier=verify, verifier_id="v", artifact=artifact)


def test_chain_refuses_or_warns_when_it_is_made() -> None:
    artifact = make_artifact_for(make_model())
    assert serve(artifact, make_model()).guarantee.binding == "matched"
    with pytest.raises(FingerprintError, match="top_p is"):
        serve(artifact, make_model(top_p=0.1))
    with pytest.warns(FingerprintWarning, match="cannot verify that generator"):
        assert serve(artifact, make_model(base_url="http://other")).guarantee.binding == "unverified"


@pytest.mark.parametrize("arguments", [{"stop": ["a"]}, {"temperature": 0.1}, {"top_p": 0.1}])
def test_chat_model_refuses_call_arguments_not_calibrated(arguments: dict[str, Any]) -> None:
    facade = CFCChatModel(chain=serve(make_artifact_for(make_model()), make_model()))
    with pytest.raises(FingerprintError, match=f"{next(iter(arguments))} is .*, in calibration it was"):
        facade.invoke("x", **arguments)


def test_records_that_state_fewer_settings_give_binding_unverified() -> None:
    """What records of an earlier version leave out may have been anything."""
    old = {"model": "gpt-4o-mini", "temperature": 0.7, "max_tokens": 5}
    artifact = make_artifact(provenance=Provenance(n=N, generator=old, verifier={"id": "v"}))
    for generator in (make_model(), make_model(top_p=0.1), make_model(stop_sequences=["a"])):
        with pytest.warns(FingerprintWarning, match="the records do not state"):
            assert serve(artifact, generator).guarantee.binding == "unverified"
    # An id given to both does not vouch for a setting that was added since.
    named = artifact.model_copy(
        update={"provenance": Provenance(n=N, generator={**old, "id": "g"}, verifier={"id": "v"})}
    )
    ids = {"generator_id": "g", "verifier_id": "v"}
    chain = CFCRunnable(generator=make_model(), verifier=verify, artifact=named, **ids)
    assert chain.guarantee.binding == "matched"
    with pytest.warns(FingerprintWarning, match="the records do not state top_p"):
        CFCRunnable(generator=make_model(top_p=0.1), verifier=verify, artifact=named, **ids)


def test_compute_fingerprint_states_no_secret() -> None:
    said = json.dumps(
        compute_fingerprint(
            make_model(
                api_key=SecretStr("hidden-1"),
                base_url="http://hidden-2",
                default_headers={"Authorization": "hidden-3"},
                extra_body={"router_password": "hidden-4"},
            ).bind(extra_headers={"Authorization": "hidden-5"}, custom="hidden-6")
        )
    )
    assert "hidden" not in said
