"""`CFCChatModel` returns its chain's decision as one message, with correctly nested runs."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCChatModel
from langchain_cfc.errors import DrawError, InputError, VerifierError
from tests.calls import Invoke
from tests.chat_model.facades import (
    HOPELESS,
    RunWatcher,
    accept_all,
    every_way,
    make_client,
    make_facade,
    reject_all,
)
from tests.factories import make_artifact, make_chain, with_prompt_kind
from tests.fakes import TEXTS, N, ScriptedModel, answer_of, global_cache
from tests.runnable.test_draw_rules import USAGE
from tests.runnable.test_draw_rules import make_artifact as make_stopping_artifact
from tests.runnable.test_draw_rules import make_chain as make_stopping_chain
from tests.serving.openai_bodies import TOKENS_IN, TOKENS_OUT

from .responder import Responder


@pytest.fixture(scope="module")
def two_levels() -> CalibrationArtifact:
    """The threshold is 0.75 at alpha = 0.25 and 0.5 at alpha = 0.5."""
    return make_artifact(alpha=["0.25", "0.5"])


def read_decision(message: AIMessage) -> dict[str, Any]:
    found: dict[str, Any] = message.response_metadata["cfc"]
    return found


@every_way
def test_chat_model_returns_the_answer_with_its_decision(artifact: CalibrationArtifact, ask: Invoke) -> None:
    facade = make_facade(artifact, answer=answer_of)
    message = ask(facade, "where?")
    assert message.text == "lima"
    assert read_decision(message)["reason"] == "answered"
    assert read_decision(message)["guarantee"]["artifact_digest"] == artifact.digest
    json.dumps(read_decision(message), allow_nan=False)
    # Nothing of what was rejected is said.
    assert not re.search("quito|bogota", message.model_dump_json())


@every_way
def test_chat_model_says_abstain_message_on_abstention(artifact: CalibrationArtifact, ask: Invoke) -> None:
    chain = make_chain(artifact, generator=ScriptedModel(texts=HOPELESS))
    message = ask(CFCChatModel(chain=chain, abstain_message="No idea."), "where?")
    assert message.text == "No idea."
    assert read_decision(message)["reason"] == "only_blank_answers"


def test_chat_model_raises_errors_of_its_chain(invoke: Invoke) -> None:
    facade = make_facade(verifier=lambda _, candidates: [float("nan")] * len(candidates))
    with pytest.raises(VerifierError, match="nan"):
        invoke(facade, "where?")


def test_answer_of_an_or_else_fallback_has_no_guarantee(
    artifact: CalibrationArtifact, url: str, invoke: Invoke
) -> None:
    chain = make_chain(artifact, generator=ScriptedModel(texts=HOPELESS)).or_else(make_client(url))
    message = invoke(CFCChatModel(chain=chain), "where?")
    assert message.text == "You said: where?"
    assert read_decision(message)["guarantee"] is None
    assert read_decision(message) == {"guarantee": None}
    assert message.usage_metadata["total_tokens"] == TOKENS_IN + TOKENS_OUT
    # Where it does not abstain, the fallback has no part.
    answered = CFCChatModel(chain=make_chain(artifact).or_else(make_client(url)))
    assert read_decision(invoke(answered, "where?"))["reason"] == "answered"


@every_way
def test_usage_callback_counts_each_token_once(url: str, responder: Responder, ask: Invoke) -> None:
    judge = make_client(url, model="judge")

    def judged(given: Any) -> list[float]:
        return [0.1 for one in given["candidates"] if judge.invoke(one.text).text]

    async def ajudged(given: Any) -> list[float]:
        return [0.1 for one in given["candidates"] if (await judge.ainvoke(one.text)).text]

    facade = make_facade(generator=make_client(url), verifier=RunnableLambda(judged, ajudged))
    with get_usage_metadata_callback() as counted:
        message = ask(facade, "where?")
    assert len(responder.requests) == 2 * N
    by_model = counted.usage_metadata.values()
    assert len(by_model) == 2
    assert all(usage["input_tokens"] == N * TOKENS_IN for usage in by_model)
    assert all(usage["output_tokens"] == N * TOKENS_OUT for usage in by_model)
    # The message bears what draws and judge took, which the callback counted in their own runs.
    assert message.usage_metadata["input_tokens"] == 2 * N * TOKENS_IN
    assert message.usage_metadata["output_tokens"] == 2 * N * TOKENS_OUT
    assert message.usage_metadata["total_tokens"] == 2 * N * (TOKENS_IN + TOKENS_OUT)
    assert "usage" not in read_decision(message)
    assert message.response_metadata["model_name"] in set(counted.usage_metadata) - {"judge"}


@every_way
@pytest.mark.filterwarnings(
    "ignore::langchain_cfc.errors.AttainabilityWarning", "ignore::langchain_cfc.errors.FingerprintWarning"
)
def test_message_under_a_draw_rule_holds_the_usage_of_its_draws(ask: Invoke) -> None:
    model = ScriptedModel(texts=("a|0.3", "b|0.4", "a|0.3", "a|0.1", *["d|0.9"] * 4), usage=USAGE)
    chain = make_stopping_chain(make_stopping_artifact("lead(2, rounds=3+1+4)"), generator=model)
    with get_usage_metadata_callback() as counted:
        message = ask(CFCChatModel(chain=chain, full_result=True), "where?")
    assert message.text == "a"
    assert len(model.drawn) == len(read_decision(message)["candidates"]) == 4
    assert message.usage_metadata == read_decision(message)["usage"]
    assert message.usage_metadata["total_tokens"] == 4 * USAGE["total_tokens"]
    assert not counted.usage_metadata  # this model gives itself no name
    failing = ScriptedModel(texts=model.texts, failing=frozenset({3}))
    with pytest.raises(DrawError, match="first candidate 3"):
        ask(CFCChatModel(chain=chain.model_copy(update={"generator": failing})), "where?")


@every_way
def test_usage_callback_counts_tokens_of_a_fallback_once(
    artifact: CalibrationArtifact, url: str, responder: Responder, ask: Invoke
) -> None:
    chain = make_chain(artifact, verifier=reject_all, generator=make_client(url)).or_else(make_client(url))
    with get_usage_metadata_callback() as counted:
        ask(CFCChatModel(chain=chain), "where?")
    assert len(responder.requests) == N + 1
    (usage,) = counted.usage_metadata.values()
    assert usage["input_tokens"] == (N + 1) * TOKENS_IN


def test_usage_kept_in_a_fallback_message_is_counted_twice(artifact: CalibrationArtifact, url: str) -> None:
    # The negative control: the callback does count what a facade's message bears.
    class Careless(CFCChatModel):
        def _make_message(self, result: Any, run_manager: Any) -> AIMessage:
            kept = result.usage_metadata
            return super()._make_message(result, run_manager).model_copy(update={"usage_metadata": kept})

    chain = make_chain(artifact, verifier=reject_all, generator=make_client(url)).or_else(make_client(url))
    with get_usage_metadata_callback() as counted:
        Careless(chain=chain).invoke("where?")
    (usage,) = counted.usage_metadata.values()
    assert usage["input_tokens"] == (N + 2) * TOKENS_IN


@every_way
def test_child_runs_are_below_the_run_of_the_chat_model(ask: Invoke) -> None:
    watcher = RunWatcher()
    config = {"callbacks": [watcher], "tags": ["mine"], "metadata": {"user": "u1"}}
    message = ask(make_facade(), "where?", config)
    (top,) = [run for run, parent in watcher.parents.items() if parent is None]
    assert message.id == f"lc_run--{top}"
    assert sorted(watcher.kinds.values()) == ["chain", *["model"] * (1 + N)]
    below = set(watcher.kinds) - {top}
    for run in below:
        assert _find_root(watcher, run) == top
        assert {"mine", "nostream"} <= set(watcher.tags[run])
        assert watcher.metadata[run]["user"] == "u1"
    # The decision itself may be streamed.
    assert "nostream" not in watcher.tags[top]


def _find_root(watcher: RunWatcher, run: UUID) -> UUID:
    while (parent := watcher.parents[run]) is not None:
        run = parent
    return run


@every_way
def test_alpha_can_be_chosen_per_call(ask: Invoke) -> None:
    model = ScriptedModel(texts=("a|0.6", "b|0.9", "b|0.9", "b|0.9"))
    # 39 prompts certify nothing at 0.01.
    artifact = make_artifact(alpha=["0.01", "0.25"], allow_unattainable=True)
    chain = make_chain(artifact, generator=model, alpha="0.01")
    chains: list[Runnable[Any, Any]] = [
        chain,
        chain.or_else(ScriptedModel(texts=["someone else"] * N)),
        RunnableLambda(lambda messages: messages) | chain,
        chain.with_retry(),
    ]
    for one in chains:
        facade = CFCChatModel(chain=one)
        assert ask(facade.bind(alpha="0.25"), "where?").text == "a|0.6"
        assert ask(facade, "where?").text in {"I do not know.", "someone else"}
        assert read_decision(ask(facade, "where?", alpha=0.25))["guarantee"]["alpha"] == "0.25"


def test_chat_model_refuses_alpha_not_calibrated_before_drawing(
    two_levels: CalibrationArtifact, invoke: Invoke
) -> None:
    model = ScriptedModel(texts=TEXTS)
    facade = make_facade(two_levels, generator=model, alpha="0.5")
    with pytest.raises(InputError, match=r"0\.1"):
        invoke(facade.bind(alpha=0.1), "where?")
    assert model.drawn == []


def test_chat_model_refuses_alpha_that_reaches_no_chain(artifact: CalibrationArtifact) -> None:
    chain = make_chain(artifact)
    facade = CFCChatModel(chain=RunnableLambda(chain.invoke))
    assert facade.invoke("where?").text == "lima|0.1"
    with pytest.raises(InputError, match="no CFCRunnable in this RunnableLambda that alpha could reach"):
        facade.invoke("where?", alpha=0.25)


@global_cache()
def test_global_cache_is_used_only_with_cache_true() -> None:
    model = ScriptedModel(texts=TEXTS)
    facade = make_facade(generator=model)
    assert facade.invoke("where?").text == facade.invoke("where?").text
    assert len(model.drawn) == 2 * N
    cached = CFCChatModel(chain=facade.chain, cache=True)
    assert cached.invoke("where?").text == cached.invoke("where?").text
    assert len(model.drawn) == 3 * N


def test_chat_model_refuses_unknown_settings(artifact: CalibrationArtifact) -> None:
    for setting in ({"top_p": 0.5}, {"api_key": "x"}, {"abstain_mesage": "x"}):
        with pytest.raises(InputError, match=f"takes no argument '{next(iter(setting))}'"):
            CFCChatModel(chain=make_chain(artifact), **setting)
    with pytest.raises(InputError, match="chain is 'gpt-4o-mini'"):
        CFCChatModel(chain="gpt-4o-mini")


def test_batch_returns_messages_in_the_order_of_prompts() -> None:
    facade = make_facade(generator=ScriptedModel())
    prompts: list[Any] = [f"question {number}" for number in range(10)]
    expected = [facade.invoke(prompt).text for prompt in prompts]
    assert len(set(expected)) > 1
    assert [message.text for message in facade.batch(prompts)] == expected
    assert [message.text for message in asyncio.run(facade.abatch(prompts))] == expected


def test_verifier_gets_the_kind_of_prompt_calibrated_on(artifact: CalibrationArtifact) -> None:
    seen: list[Any] = []

    def verifier(prompt: Any, candidates: list[Any]) -> list[float]:
        seen.append(prompt)
        return accept_all(prompt, candidates)

    CFCChatModel(chain=make_chain(artifact, verifier=verifier)).invoke("where?")
    # A chain calibrated on texts is given texts.
    CFCChatModel(chain=make_chain(with_prompt_kind(artifact, "text"), verifier=verifier)).invoke("where?")
    messages, text = seen
    assert [type(one).__name__ for one in messages] == ["HumanMessage"]
    assert text == "where?"


@every_way
def test_output_version_v1_returns_content_blocks(artifact: CalibrationArtifact, ask: Invoke) -> None:
    facade = CFCChatModel(chain=make_chain(artifact), output_version="v1")
    message = ask(facade, "where?")
    assert message.response_metadata["output_version"] == "v1"
    assert isinstance(message.content, list)
    assert message.text == "lima|0.1"


def test_ls_params_name_provider_model_and_settings(artifact: CalibrationArtifact, url: str) -> None:
    facade = make_facade(artifact, generator=make_client(url, temperature=0.7))
    params = facade._get_ls_params(stop=["x"])
    assert params["ls_provider"] == "langchain-cfc"
    assert params["ls_model_name"] == "gpt-4o-mini"
    assert params["ls_temperature"] == 0.7
    assert params["ls_stop"] == ["x"]
    assert facade._identifying_params["artifact_digest"] == artifact.digest
    # What cannot be seen is not made up.
    unseen = CFCChatModel(chain=RunnableLambda(lambda _: None))
    assert "ls_model_name" not in unseen._get_ls_params()
    assert unseen._identifying_params == {}


def test_generate_and_stream_work_outside_of_a_run() -> None:
    facade = make_facade()
    messages: list[BaseMessage] = [HumanMessage("where?")]
    assert facade._generate(messages).generations[0].text == "lima|0.1"
    (chunk,) = facade._stream(messages)
    assert isinstance(chunk.message, AIMessageChunk)
    assert chunk.message.chunk_position == "last"
