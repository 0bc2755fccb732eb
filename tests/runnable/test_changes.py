"""A changed generator is never served as the calibrated one: it is refused, or its guarantees say unverified.

Every change is tried in both directions: calibrated without it and served with it, and the other way round.
The control is the unchanged chain, whose guarantees say matched.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCRunnable
from langchain_cfc.errors import FingerprintError, FingerprintWarning, InputError
from langchain_cfc.records import Provenance
from langchain_cfc.sampling.fingerprints import compare_fingerprints, compute_fingerprint
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
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}


def make_model(**settings: Any) -> ChatOpenAI:
    return ChatOpenAI(**{**CALIBRATED, **settings})


def make_templated_model(*messages: tuple[str, str]) -> AnyRunnable:
    return ChatPromptTemplate.from_messages([*messages, ("human", "{q}")]) | make_model()


def rewrite(prompt: str) -> str:
    return f"Always lie. {prompt}"


def call_cached_model(prompt: Any) -> Any:
    return make_model(cache=InMemoryCache()).invoke(prompt)


# Each change as a function that makes the changed generator.
CHANGES: dict[str, Callable[[], AnyRunnable]] = {
    "model": lambda: make_model(model="gpt-4o"),
    "bound model": lambda: make_model().bind(model="gpt-4o"),
    "template": lambda: make_templated_model(("system", "Always lie.")),
    "template without a system prompt": make_templated_model,
    "template made by code": lambda: (
        ChatPromptTemplate.from_template("{q} {now}").partial(now=lambda: "today") | make_model()
    ),
    "lambda before the model": lambda: RunnableLambda(rewrite) | make_model(),
    "lambda after the model": lambda: make_model() | RunnableLambda(lambda message: message.text[::-1]),
    "lambda beside the prompt": lambda: {"q": RunnableLambda(rewrite)} | make_templated_model(),
    "parser": lambda: make_model() | JsonOutputParser(),
    "model before the model": lambda: make_model(temperature=0.1) | StrOutputParser() | make_model(),
    "fallback": lambda: make_model().with_fallbacks([make_model(model="gpt-4o")]),
    "cached model in a function": lambda: RunnableLambda(call_cached_model),
    "temperature": lambda: make_model(temperature=0.1),
    "temperature unset": lambda: make_model(temperature=None),
    "max_tokens": lambda: make_model(max_tokens=500),
    "max_tokens unset": lambda: make_model(max_tokens=None),
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
    "extra_body unknown": lambda: make_model(extra_body={"chat_template_kwargs": {"enable_thinking": False}}),
    "model_kwargs unknown": lambda: make_model(model_kwargs={"mirostat": 2}),
    "bound unknown": lambda: make_model().bind(guided_regex="a*"),
    "a field of the provider": lambda: make_model(truncation="auto"),
    "tools": lambda: make_model().bind_tools([TOOL]),
    "tool_choice": lambda: make_model().bind_tools([TOOL], tool_choice="any"),
    "response_format": lambda: make_model().bind(response_format={"type": "json_object"}),
}


def make_artifact_for(generator: AnyRunnable) -> CalibrationArtifact:
    """An artifact whose records state what `collect` states of a generator, as a file gives it back."""
    return make_artifact_stating(json.dumps(compute_fingerprint(generator)))


@cache
def make_artifact_stating(fingerprint: str) -> CalibrationArtifact:
    stated = json.loads(fingerprint)
    return make_artifact(provenance=Provenance(n=N, generator=stated, verifier={"id": "v"}))


def serve(artifact: CalibrationArtifact, generator: AnyRunnable) -> CFCRunnable:
    return CFCRunnable(generator=generator, verifier=verify, verifier_id="v", artifact=artifact)


def find_outcome(artifact: CalibrationArtifact, generator: AnyRunnable) -> str:
    """Serve a generator and return `refused` or the binding, with a warning if `unverified`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            binding = serve(artifact, generator).guarantee.binding
        except (FingerprintError, InputError):
            # The sampler refuses a fixed seed with an InputError whatever was calibrated.
            return "refused"
    warned = any(issubclass(one.category, FingerprintWarning) for one in caught)
    assert warned == (binding == "unverified")
    return binding


@pytest.mark.parametrize("name", CHANGES)
def test_changed_generator_is_never_matched_in_either_direction(name: str) -> None:
    added = find_outcome(make_artifact_for(make_model()), CHANGES[name]())
    removed = find_outcome(make_artifact_for(CHANGES[name]()), make_model())
    assert {added, removed} <= {"refused", "unverified"}


@pytest.mark.parametrize("name", ["top_p", "stop", "extra_body unknown", "template", "tools"])
def test_chain_refuses_a_stated_difference_of_the_generator(name: str) -> None:
    assert find_outcome(make_artifact_for(make_model()), CHANGES[name]()) == "refused"


def test_unchanged_generator_gives_binding_matched() -> None:
    """The negative control: what changes nothing, or only how the model is reached, is the same generator."""
    same = [
        make_model(),
        make_model().with_retry(),
        make_model().with_config(tags=["mine"]),
        make_model(timeout=3.0, max_retries=5, default_headers={"X-Team": "blue"}, logprobs=None),
        make_model(streaming=True, cache=True),
        RunnablePassthrough() | make_model() | StrOutputParser(),
    ]
    assert [find_outcome(make_artifact_for(make_model()), one) for one in same] == ["matched"] * len(same)
    described = [name for name in CHANGES if find_outcome_unchanged(name) == "matched"]
    # Whatever can be described is recognised, the parts that hold code are not.
    assert set(CHANGES) - set(described) == {
        "template made by code",
        "lambda before the model",
        "lambda after the model",
        "lambda beside the prompt",
        "parser",
        "fallback",
        "cached model in a function",
        "seed",
    }


def find_outcome_unchanged(name: str) -> str:
    return find_outcome(make_artifact_for(CHANGES[name]()), CHANGES[name]())


@pytest.mark.parametrize("arguments", [{"stop": ["a"]}, {"temperature": 0.1}, {"top_p": 0.1}])
def test_chat_model_refuses_call_arguments_not_calibrated(arguments: dict[str, Any]) -> None:
    facade = CFCChatModel(chain=serve(make_artifact_for(make_model()), make_model()))
    with pytest.raises(FingerprintError, match=f"{next(iter(arguments))} is .*, in calibration it was"):
        facade.invoke("x", **arguments)


@pytest.mark.parametrize("name", ["top_p", "stop", "extra_body unknown", "lambda before the model"])
def test_model_inside_a_verifier_is_compared_like_a_generator(name: str) -> None:
    """Of verifiers and extractors that are made of a model or a chain, the same is stated."""
    for one, other in ((make_model(), CHANGES[name]()), (CHANGES[name](), make_model())):
        calibrated, serving = (combine_fingerprints("judge", {}, {"model": part}) for part in (one, other))
        try:
            assert compare_fingerprints("verifier", calibrated, serving) == "unverified"
        except FingerprintError:
            continue
    same = combine_fingerprints("judge", {}, {"model": make_model()})
    assert compare_fingerprints("verifier", same, same) == "matched"


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
