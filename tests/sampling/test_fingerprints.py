"""Fingerprints: what identifies a part, and which parts count as equal."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.chat_models import init_chat_model
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, create_model

from langchain_cfc.errors import FingerprintError, FingerprintWarning
from langchain_cfc.sampling.comparison import compare_fingerprints, is_equal_or_named
from langchain_cfc.sampling.fingerprints import SAMPLING_PARAMETERS, compute_fingerprint
from langchain_cfc.support.serialization import compute_sha256


def make_model(**fields: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"model": "m-1", "temperature": 0.7, "api_key": "none", **fields})


def make_anthropic(**fields: Any) -> ChatAnthropic:
    return ChatAnthropic(**{"model": "m-1", "api_key": "none", **fields})


class Answer(BaseModel):
    """A format."""

    text: str


class Named:
    """Anything with a fingerprint of its own."""

    def __init__(self, own: Any) -> None:
        self.fingerprint = own

    def __call__(self, value: Any) -> Any:
        return value


class NamedModel(FakeListChatModel):
    """A chat model with a fingerprint of its own."""

    responses: list[str] = ["x"]  # noqa: RUF012 - pydantic copies it
    fingerprint: dict[str, Any]


# What every chat model states, also where it is unset.
UNSET_SETTINGS = dict.fromkeys(
    [*SAMPLING_PARAMETERS, "tools_digest", "prompt_digest", "steps_digest", "settings"]
)
BASE = {
    **UNSET_SETTINGS,
    "class": "langchain_openai.ChatOpenAI",
    "model": "m-1",
    "temperature": 0.7,
    "address": compute_sha256('["https://api.openai.com/v1?[]"]'),
}
OWN = {"id": "mine", "temperature": 0.7}


def test_fingerprint_contains_sampling_parameters_of_the_model() -> None:
    assert compute_fingerprint(make_model(top_p=0.8)) == {**BASE, "top_p": 0.8}
    assert compute_fingerprint(make_model(top_p=None)) == BASE
    assert compute_fingerprint(make_model(top_p=0.8).bind(top_p=0.1, presence_penalty=0.5)) == {
        **BASE,
        "top_p": 0.1,
        "presence_penalty": 0.5,
    }
    passed_on = make_model(top_p=None, extra_body={"top_k": 40, "cache_prompt": True})
    assert compute_fingerprint(passed_on) == {**BASE, "top_k": 40, "settings": {"cache_prompt": True}}
    # A mapping bound to calls replaces the whole of the model's own.
    assert compute_fingerprint(passed_on.bind(extra_body={"top_k": 5})) == {**BASE, "top_k": 5}
    assert compute_fingerprint(passed_on.bind(extra_body={})) == BASE
    assert compute_fingerprint(make_model(max_tokens=16).bind(max_tokens=None)) == BASE
    with pytest.raises(FingerprintError, match=r"top_p is 0\.1, in calibration it was 0\.8"):
        compare_fingerprints("generator", *(compute_fingerprint(make_model(top_p=p)) for p in (0.8, 0.1)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Ollama's options replace all other settings, and other servers do not read them.
        (make_model().bind(options={}), make_model()),
        (make_model(reasoning_effort="low").bind(options={}), make_model().bind(options={})),
        (make_model(extra_body={"options": {"top_k": 1}}), make_model(extra_body={"top_k": 1})),
        # ChatAnthropic sends its own output_config beside a bound one, and its own thinking in place of it.
        tuple(
            make_anthropic(output_config=own).with_structured_output(Answer, method="json_schema")
            for own in (None, {"effort": "low"})
        ),
        tuple(
            make_anthropic(thinking=own).bind(thinking={"type": "adaptive"})
            for own in (None, {"type": "disabled"})
        ),
    ],
)
def test_settings_that_a_client_may_merge_are_compared(one: Any, other: Any) -> None:
    with pytest.raises(FingerprintError):
        compare_fingerprints("generator", compute_fingerprint(one), compute_fingerprint(other))


def test_fingerprint_of_a_chat_model_contains_its_ls_params() -> None:
    assert compute_fingerprint(make_model()) == BASE
    assert compute_fingerprint(make_model(temperature=None)) == {**BASE, "temperature": None}


def test_fingerprint_contains_bound_arguments() -> None:
    bound = make_model().bind(temperature=0.2, stop=["\n"], max_tokens=16)
    assert compute_fingerprint(bound) == {**BASE, "temperature": 0.2, "stop": ["\n"], "max_tokens": 16}


def test_fingerprint_prefers_the_outer_of_two_bindings() -> None:
    inner = make_model().bind(temperature=0.2, stop=["\n"])
    assert compute_fingerprint(inner.bind(temperature=0.9))["temperature"] == 0.9
    # Retries in between keep the two apart; the outer one is passed on with the call.
    assert compute_fingerprint(inner.with_retry().bind(temperature=0.9))["temperature"] == 0.9
    assert compute_fingerprint(inner.with_config(tags=["mine"]).bind(temperature=0.9)) == {
        **BASE,
        "temperature": 0.9,
        "stop": ["\n"],
    }


def test_fingerprint_finds_models_in_retries_and_sequences() -> None:
    template = ChatPromptTemplate.from_template("{input}")
    model = make_model()
    for part in (model.with_retry(), template | model, template | model.bind() | StrOutputParser()):
        assert {**compute_fingerprint(part), "prompt_digest": None} == BASE


def test_fingerprint_of_a_sequence_is_that_of_its_last_model() -> None:
    sequence = make_model(temperature=0.1) | StrOutputParser() | make_model(temperature=0.9)
    assert compute_fingerprint(sequence)["temperature"] == 0.9


@pytest.mark.parametrize("own", [OWN, MappingProxyType(OWN)])
def test_fingerprint_attribute_of_a_part_is_used(own: Mapping[str, Any]) -> None:
    assert compute_fingerprint(Named(own)) == {**OWN, "class": "Named"}
    assert compute_fingerprint(NamedModel(fingerprint=OWN)) == {**OWN, "class": "NamedModel"}


def test_fingerprint_is_a_copy_of_the_attribute() -> None:
    part = Named(dict(OWN))
    found = compute_fingerprint(part)
    part.fingerprint["id"] = "other"
    assert found == {**OWN, "class": "Named"}


def test_bound_tools_add_a_digest_to_an_own_fingerprint() -> None:
    own = {"model": "m-1", "tools": None}
    bound = compute_fingerprint(NamedModel(fingerprint=own).bind(tools=[{"name": "look_up"}]))
    assert set(bound) == {"class", "model", "tools", "tools_digest"}
    assert bound["tools"] is None
    with pytest.raises(FingerprintError, match="tools_digest is"):
        compare_fingerprints("generator", own, bound)
    assert compare_fingerprints("generator", bound, bound) is None


def make_format(kind: type) -> type[BaseModel]:
    return create_model("Answer", text=(kind, ...))


def make_tool(description: str) -> Any:
    return StructuredTool.from_function(
        len, name="count", description=description, args_schema=make_format(str)
    )


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("response_format", make_format(str), make_format(int)),
        ("tools", [make_tool("Count the words.")], [make_tool("Count the letters.")]),
    ],
)
def test_tools_and_formats_are_compared_by_their_schema(name: str, one: Any, other: Any) -> None:
    made, same, changed = (
        compute_fingerprint(make_model().bind(**{name: value})) for value in (one, copy.deepcopy(one), other)
    )
    assert compare_fingerprints("generator", made, same) is None
    with pytest.raises(FingerprintError, match="tools_digest is"):
        compare_fingerprints("generator", made, changed)
    # What no schema can be made of is not compared, and never takes part by its name alone.
    unknown = compute_fingerprint(make_model().bind(tools=[object()]))
    assert compare_fingerprints("generator", unknown, unknown) is not None


def test_bound_arguments_override_an_own_fingerprint() -> None:
    model = NamedModel(fingerprint=OWN)
    known = {**OWN, "class": "NamedModel"}
    assert compute_fingerprint(model.bind(temperature=1.5)) == {
        **OWN,
        "class": "NamedModel",
        "temperature": 1.5,
    }
    # Something it does not speak of has no name to be compared under.
    assert compute_fingerprint(model.bind(user="u")) == known


@pytest.mark.parametrize(
    "part",
    [
        lambda value: value,
        RunnableLambda(lambda value: value),
        Named("a text"),
        object(),
        FakeListChatModel(responses=["x"]),
        # Who answers, and how, is settled only when it is called.
        make_model().configurable_fields(temperature=ConfigurableField(id="t")),
        NamedModel(fingerprint=OWN).configurable_alternatives(ConfigurableField(id="m"), other=make_model()),
    ],
)
def test_fingerprint_of_other_parts_is_empty(part: object) -> None:
    assert compute_fingerprint(part) == {}
    assert compute_fingerprint(part, "given") == {"id": "given"}


def test_given_id_completes_an_own_fingerprint() -> None:
    assert compute_fingerprint(Named({"model": "m"}), "given") == {
        "class": "Named",
        "model": "m",
        "id": "given",
    }
    with pytest.raises(FingerprintError, match="given the id 'given', but it states the id"):
        compute_fingerprint(Named({**OWN, "id": "own"}), "given")
    assert compute_fingerprint(Named({**OWN, "id": "own"}), "own")["id"] == "own"


def test_fingerprint_of_a_sequence_holds_a_prompt_digest() -> None:
    def of(text: str) -> dict[str, Any]:
        return compute_fingerprint(
            ChatPromptTemplate.from_messages([("system", text), ("human", "{q}")]) | make_model()
        )

    assert of("Be brief.")["prompt_digest"].startswith("sha256:")
    assert of("Be brief.") == of("Be brief.")
    assert of("Be brief.")["prompt_digest"] != of("Be long.")["prompt_digest"]
    made_by_code = ChatPromptTemplate.from_template("{q} {now}").partial(now=lambda: "today")
    assert compute_fingerprint(made_by_code | make_model())["unnamed"] == ["a function without a name"]


@pytest.mark.parametrize(
    ("calibrated", "serving", "match"),
    [
        ({"id": "a"}, {"id": "a"}, "matched"),
        ({"model": "m"}, {"model": "m"}, "matched"),
        ({"model": "m", "temperature": 0.7}, {"model": "m", "temperature": 0.7, "stop": []}, "unverified"),
        ({"model": "m"}, {"model": "m", "stop": None}, "unverified"),
        ({"id": "a"}, {"id": "a", "model": "m", "stop": ["x"]}, "matched"),
        ({"id": "a", "model": "m"}, {"id": "a", "model": "m", "stop": None}, "matched"),
        ({"id": "a", "model": "m"}, {"id": "a", "model": "m", "stop": ["x"]}, "unverified"),
        ({"id": "a"}, {"id": "a", "unnamed": ["RunnableLambda"]}, "unverified"),
        ({"id": "a", "unnamed": ["RunnableLambda"]}, {"id": "a"}, "unverified"),
        ({"id": "a", "model.unnamed": ["f"]}, {"id": "a", "model.unnamed": ["f"]}, "unverified"),
        ({"id": "a", "model": "m", "temperature": 0.7}, {"id": "a"}, "matched"),
        # What was calibrated and is not stated may be anything.
        ({"id": "a", "model": "m", "temperature": 0.7}, {"model": "m", "temperature": 0.7}, "unverified"),
        ({"model": "m", "top_p": 0.9}, {"model": "m", "temperature": 0.7}, "unverified"),
        ({"stop": ["a"], "id": "a"}, {"stop": ["a"], "id": "a"}, "matched"),
        ({"temperature": 1}, {"temperature": 1.0}, "unverified"),
        ({"id": "a"}, {"model": "m"}, "unverified"),
        ({"id": "a"}, {}, "unverified"),
        ({}, {"id": "a"}, "unverified"),
        (None, {"id": "a"}, "unverified"),
        ({}, {}, "unverified"),
    ],
)
def test_compare_fingerprints_returns_matched_or_unverified(
    calibrated: dict[str, Any] | None, serving: dict[str, Any], match: str
) -> None:
    doubt = compare_fingerprints("generator", calibrated, serving)
    assert ("matched" if doubt is None else "unverified") == match


@pytest.mark.parametrize(
    ("key", "calibrated", "serving"),
    [
        ("id", "a", "b"),
        ("model", "m", "m-large"),
        ("temperature", 0.7, 0.0),
        ("stop", ["\n"], []),
        ("prompt", "few-shot", "zero-shot"),
        ("anything", 1, "1"),
    ],
)
def test_compare_fingerprints_names_a_difference(key: str, calibrated: Any, serving: Any) -> None:
    with pytest.raises(FingerprintError) as failure:
        compare_fingerprints("verifier", {"id": "x", key: calibrated}, {"id": "x", key: serving})
    message = str(failure.value)
    assert message.startswith("the verifier is not the one that the artifact was calibrated for")
    assert f"{key} is {serving!r}, in calibration it was {calibrated!r}" in message
    assert "calibrate" in message


def test_compare_fingerprints_names_all_differences() -> None:
    with pytest.raises(FingerprintError, match=r"id is 'b'.*temperature is 0.1"):
        compare_fingerprints("generator", {"id": "a", "temperature": 0.7}, {"id": "b", "temperature": 0.1})


def test_compare_fingerprints_warns_of_another_model_version() -> None:
    calibrated = {"model": "m", "model_version": "2025-01"}
    with pytest.warns(FingerprintWarning, match="the generator's model now reports version '2025-02'"):
        found = compare_fingerprints("generator", calibrated, {"model": "m", "model_version": "2025-02"})
    assert found is None


def test_compare_fingerprints_refuses_another_model_of_another_version() -> None:
    calibrated = {"model": "m", "model_version": "1"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FingerprintWarning)
        with pytest.raises(FingerprintError, match="model is 'n'"):
            compare_fingerprints("generator", calibrated, {"model": "n", "model_version": "2"})


@given(st.dictionaries(st.sampled_from(["id", "model", "temperature", "stop"]), st.integers(0, 2)))
def test_compare_fingerprints_of_equal_parts_never_raises(stated: dict[str, int]) -> None:
    is_named = bool({"id", "model"} & set(stated))
    assert (compare_fingerprints("generator", stated, dict(stated)) is None) == is_named


@given(
    st.dictionaries(st.sampled_from(["id", "model", "temperature"]), st.integers(0, 2)),
    st.dictionaries(st.sampled_from(["id", "model", "temperature"]), st.integers(0, 2)),
)
def test_compare_fingerprints_raises_exactly_for_differing_entries(
    a: dict[str, int], b: dict[str, int]
) -> None:
    differs = any(a[key] != b[key] for key in a.keys() & b.keys())
    if differs:
        with pytest.raises(FingerprintError):
            compare_fingerprints("generator", a, b)
    else:
        if "id" in a.keys() & b.keys():
            is_same = "model" not in a or b.keys() <= a.keys()
        else:
            # An id that serving adds takes nothing from what both state.
            is_same = a.keys() == b.keys() - {"id"} and "model" in a
        assert (compare_fingerprints("generator", a, b) is None) == is_same


TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}


def test_tools_digest_distinguishes_bound_tools() -> None:
    model = make_model()
    plain, bound = compute_fingerprint(model), compute_fingerprint(model.bind(tools=[TOOL]))
    assert {key for key in bound if bound[key] != plain[key]} == {"tools_digest"}
    assert compute_fingerprint(model.bind(tools=[TOOL])) == bound
    other = compute_fingerprint(model.bind(tools=[TOOL], tool_choice="look_up"))
    assert other["tools_digest"] != bound["tools_digest"]
    assert compare_fingerprints("generator", bound, bound) is None
    for calibrated in (plain, other):
        with pytest.raises(FingerprintError, match="tools_digest is 'sha256:"):
            compare_fingerprints("generator", calibrated, bound)
    # The other way round tools may still be bound to each call.
    assert compare_fingerprints("generator", bound, plain) is not None
    # Records of earlier versions state tools where there are some, and nothing else.
    with pytest.raises(FingerprintError, match="tools_digest is 'sha256:"):
        compare_fingerprints("generator", {"model": "m-1"}, bound)


def test_id_covers_tools_unless_records_describe_the_model() -> None:
    bound = compute_fingerprint(make_model().bind(tools=[TOOL]), "mine")
    assert compare_fingerprints("generator", {"id": "mine"}, bound) is None
    assert compare_fingerprints("generator", {"id": "mine", "model": bound["model"]}, bound) is not None


def test_response_format_class_has_a_stable_fingerprint() -> None:
    class Town:
        """A format."""

    model = make_model()
    assert compute_fingerprint(model.bind(response_format=Town)) == compute_fingerprint(
        model.bind(response_format=Town)
    )
    assert "tools_digest" in compute_fingerprint(model.bind(response_format=Town))


def test_fingerprint_of_a_deferred_model_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a key it cannot be made; who it will be is not settled anyway.
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    late = init_chat_model("openai:gpt-4o-mini", configurable_fields="any")
    assert compute_fingerprint(late) == {}


GOOD, LIE = (ChatPromptTemplate.from_template(text) for text in ("Answer: {q}", "Lie: {q}"))


class OwnParser(StrOutputParser):
    """A parser whose code nothing describes, although LangChain writes it."""

    def parse(self, text: str) -> str:
        """Return something else."""
        return "Cusco" if text else text


class OwnPrompt(ChatPromptTemplate):
    """A prompt with code of its own."""


def make_cycle() -> Any:
    """Return a chain that holds itself three times, as LangChain's message histories do by their methods."""
    chain: Any = RunnableParallel(q=RunnablePassthrough())
    chain.steps__.update(dict.fromkeys("abc", chain))
    return chain


CHOICE = GOOD.configurable_alternatives(ConfigurableField(id="prompt"), default_key="good", lie=LIE)
FIELD = PromptTemplate.from_template("Answer: {q}").configurable_fields(template=ConfigurableField(id="t"))


@pytest.mark.parametrize(
    "chain",
    [
        CHOICE | make_model(),
        (CHOICE | make_model()).with_config(configurable={"prompt": "lie"}),
        FIELD | make_model(),
        RunnableParallel(q=CHOICE) | GOOD | make_model(),
        GOOD | make_model() | OwnParser(),
        OwnPrompt.from_template("Answer: {q}") | make_model(),
        RunnableParallel(q=OwnParser()) | GOOD | make_model(),
        make_cycle() | GOOD | make_model(),
    ],
)
def test_chains_with_undescribed_steps_are_unverified(chain: Any) -> None:
    found = compute_fingerprint(chain)
    assert found["model"] == "m-1"
    assert compare_fingerprints("generator", found, found) is not None
    # Its control: the same chain of steps that can be described.
    plain = compute_fingerprint(GOOD | make_model() | StrOutputParser())
    assert compare_fingerprints("generator", plain, plain) is None


def test_steps_digest_depends_on_the_order_of_steps() -> None:
    step: Any = RunnableParallel(q=RunnablePassthrough())
    one, other = (compute_fingerprint(chain | make_model()) for chain in (step | GOOD, GOOD | step))
    with pytest.raises(FingerprintError, match="steps_digest is"):
        compare_fingerprints("generator", one, other)


@pytest.mark.parametrize(
    ("known", "given", "equal"),
    [
        ("requests", "requests", True),
        ("requests", "single_request", False),
        # An id that was given since vouches for the part that drew before.
        ({"unnamed": ["a function"]}, {"id": "mine"}, True),
        ({"class": "Bot", "unnamed": ["Bot"]}, {"class": "Bot", "id": "mine"}, True),
        ({"id": "judge", "model": "a"}, {"method": "judge", "model": "a", "id": "mine"}, True),
        ({"class": "Bot"}, {"class": "Other", "id": "mine"}, False),
        ({"class": "Bot"}, {"class": "Other"}, False),
        # The id of a method of this package does not.
        ({}, {"class": "langchain_cfc.SelfConsistency", "id": "self-consistency"}, False),
    ],
)
def test_settings_are_equal_if_only_an_id_was_given_since(known: Any, given: Any, equal: bool) -> None:
    assert is_equal_or_named(known, given) is equal
