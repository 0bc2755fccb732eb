"""What every runnable that draws n candidates and answers or abstains must do, whichever model draws for it.

LangChain has such suites for models and tools, and none for Runnables. Subclasses say what is examined, by a
fixture `subject`. A behaviour takes nothing else, so that it can also be examined without pytest: that is how
broken runnables are shown to fail.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langgraph.checkpoint.memory import InMemorySaver

from langchain_cfc import CFCError, CFCResult
from langchain_cfc.errors import (
    DescriptionError,
    DrawError,
    InputError,
    ServingTimeoutError,
    VerifierError,
)
from tests.concurrency import wait_until_async
from tests.conformance.surroundings import shown_events
from tests.fakes import CountingRetriever, N
from tests.serving.openai_server import FAULTS, ODDITIES, Fault

from .ledger import Ledger
from .subject import BOTH, STREAMS, WAYS, Subject
from .surroundings import MODES, RUNS, conversation, events_of, graph_of, pipeline, tokens

# Long enough for the slowest machine; it only passes where something would otherwise hang.
PATIENCE = 30.0
# For threads to end that have nothing to do any more.
GRACE = 2.0


def assert_complete(result: Any) -> None:
    """A result of exactly n candidates in the order of their slots."""
    assert isinstance(result, CFCResult)
    assert [one.slot for one in result.candidates] == list(range(N))
    assert all((one.text is not None) == one.accepted for one in result.candidates)
    assert result.abstained == (not result.answers)


def assert_plain_data(data: Any) -> None:
    """Plain data: containers of text, numbers, booleans and nothing, all the way down."""
    assert not isinstance(data, BaseMessage)
    if isinstance(data, dict):
        for key, value in data.items():
            assert isinstance(key, str)
            assert_plain_data(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            assert_plain_data(value)
    else:
        assert data is None or isinstance(data, (str, int, float, bool))


def find_rejected(subject: Subject, ledger: Ledger) -> set[str]:
    """The rejected answers, of which there are some: else nothing could leak."""
    found = ledger.rejected(subject.provider.read)
    assert found, "nothing was drawn and rejected that anyone heard of"
    # A real model may repeat the prompt, or reject a part of what it accepts: both are seen anyhow.
    seen = [str(subject.provider.prompt), *(text for result in ledger.results for text in result.answers)]
    return {answer for answer in found if not any(answer in text for text in seen)}


def assert_none_shown(answers: set[str], shown: Any) -> None:
    """None of the answers is in what was shown."""
    text = shown if isinstance(shown, str) else repr(shown)
    assert [answer for answer in answers if answer in text] == []


def assert_typed_error(
    chain: Runnable[Any, Any], prompt: Any, expected: type[CFCError], *ways: Callable[..., Any]
) -> None:
    """Each way ends in an error of the package that says what it came from."""
    for way in ways:
        with pytest.raises(expected) as failure:
            way(chain, prompt, None)
        assert isinstance(failure.value, CFCError)
        assert isinstance(failure.value.__cause__, Exception), way


class Behaviours:
    """Of runnables over any provider."""

    # --- n candidates or a typed error ---

    def test_every_way_of_calling_returns_exactly_n_candidates(self, subject: Subject) -> None:
        chain = subject.chain()
        for way in WAYS.values():
            assert_complete(way(chain, subject.provider.prompt, None))
        assert subject.provider.requests == len(WAYS) * subject.requests_per_prompt

    def test_candidates_are_in_the_order_of_their_slots(self, subject: Subject) -> None:
        chain = subject.chain(show_rejected=True)
        for way in BOTH:
            ledger = Ledger()
            result = way(chain, subject.provider.prompt, {"callbacks": [ledger]})
            assert [one.text for one in result.candidates] == ledger.by_slot(N)

    def test_failed_request_is_repeated(self, subject: Subject) -> None:
        # The one request for all of them leaves nothing to go on from, but retries of its own may save it.
        alone = subject.requests_per_prompt == 1
        model = subject.provider.model()
        chain = subject.chain(generator=model.with_retry(wait_exponential_jitter=False) if alone else model)
        for way in BOTH:
            subject.provider.reset()
            subject.provider.fail({subject.requests_per_prompt - 1})
            assert_complete(way(chain, subject.provider.prompt, None))
            assert subject.provider.requests == subject.requests_per_prompt + 1

    def test_failure_of_every_request_raises_draw_error(self, subject: Subject) -> None:
        chain = subject.chain()
        subject.provider.fail()
        assert_typed_error(chain, subject.provider.prompt, DrawError, *WAYS.values())
        # What fails always is no chance, and is not paid for again.
        assert subject.provider.requests == len(WAYS) * subject.requests_per_prompt
        subject.provider.reset()
        assert_complete(chain.invoke(subject.provider.prompt))

    def test_failure_of_any_part_raises_a_typed_error_with_its_cause(self, subject: Subject) -> None:
        def broken(_: Any) -> Any:
            msg = "out of order"
            raise LookupError(msg)

        prompt = subject.provider.prompt
        assert_typed_error(
            subject.chain(verifier=RunnableLambda(broken)), prompt, VerifierError, *BOTH, *STREAMS
        )
        assert_typed_error(
            subject.chain(answer=RunnableLambda(broken)), prompt, DescriptionError, *BOTH, *STREAMS
        )
        assert_typed_error(subject.chain(metadata=broken), prompt, DescriptionError, *BOTH, *STREAMS)
        with pytest.raises(InputError, match="alpha"):
            subject.chain().invoke(prompt, alpha=0.3)

    def test_batch_returns_the_error_of_a_failing_prompt_in_its_place(self, subject: Subject) -> None:
        failing = RunnableLambda(_fail_on("bad"))
        chain = subject.chain(metadata=failing)
        prompts = [subject.provider.prompt, "bad", subject.provider.prompt]
        for found in (
            chain.batch(prompts, return_exceptions=True),
            asyncio.run(chain.abatch(prompts, return_exceptions=True)),
        ):
            assert_complete(found[0])
            assert isinstance(found[1], DescriptionError)
            assert_complete(found[2])

    # --- results ---

    def test_results_are_plain_data(self, subject: Subject) -> None:
        for way in BOTH:
            result = way(subject.chain(), subject.provider.prompt, None)
            assert_plain_data(result.model_dump())
            assert CFCResult.model_validate_json(result.model_dump_json()) == result
            assert CFCResult.model_validate(json.loads(json.dumps(result.model_dump(mode="json")))) == result

    def test_schemas_are_valid_and_results_conform_to_them(self, subject: Subject) -> None:
        prompt = subject.provider.prompt
        for chain in (subject.chain(), subject.chain(artifact=subject.artifacts.hopeless)):
            asked, told = chain.get_input_jsonschema(), chain.get_output_jsonschema()
            Draft202012Validator.check_schema(asked)
            Draft202012Validator.check_schema(told)
            Draft202012Validator(asked).validate(prompt)
            result = chain.invoke(prompt)
            Draft202012Validator(told).validate(result.model_dump(mode="json"))
            without = {**result.model_dump(mode="json"), "candidates": None}
            assert not Draft202012Validator(told).is_valid(without)

    # --- config, callbacks, usage ---

    def test_config_reaches_every_child_run(self, subject: Subject) -> None:
        for way in BOTH:
            ledger = Ledger()
            config = RunnableConfig(
                callbacks=[ledger], tags=["mine"], metadata={"tenant": "t-1"}, run_name="ask"
            )
            way(subject.chain(), subject.provider.prompt, config)
            runs = ledger.of(lambda _: True)
            assert [run.name for run in runs if run.parent is None] == ["ask"]
            assert len(ledger.of(lambda run: run.draws)) == subject.requests_per_prompt
            assert all("mine" in run.tags for run in runs)
            assert all(run.metadata.get("tenant") == "t-1" for run in runs)

    def test_child_runs_have_names_and_tags(self, subject: Subject) -> None:
        for way in BOTH:
            ledger = Ledger()
            way(subject.chain(), subject.provider.prompt, {"callbacks": [ledger]})
            draws = ledger.of(lambda run: run.draws)
            slots = [None] if subject.requests_per_prompt == 1 else list(range(N))
            assert sorted(str(run.slot) for run in draws) == sorted(map(str, slots))
            assert all("nostream" in run.tags for run in draws)
            (judged,) = ledger.of(lambda run: run.name == "judge")
            assert {"cfc:verifier", "nostream"} <= set(judged.tags)
            extractions = ledger.of(lambda run: run.name == "extract")
            assert 1 <= len(extractions) <= N
            assert all({"cfc:answer", "nostream"} <= set(run.tags) for run in extractions)
            # Nothing hangs below anything but the one run of the prompt, or below what does.
            assert len(ledger.of(lambda run: run.parent is None)) == 1
            assert all(run.parent in ledger.runs for run in ledger.of(lambda run: run.parent is not None))

    def test_usage_equals_the_tokens_of_the_provider(self, subject: Subject) -> None:
        for way in BOTH:
            subject.provider.reset()
            with get_usage_metadata_callback() as callback:
                result = way(subject.chain(), subject.provider.prompt, None)
            (counted,) = callback.usage_metadata.values()
            assert subject.provider.usage[0] > 0
            assert _tokens(result.usage) == _tokens(counted) == subject.provider.usage

    # --- nothing leaks ---

    def test_stream_yields_one_result_without_rejected_texts(self, subject: Subject) -> None:
        for way in STREAMS:
            for chain in (subject.chain(), subject.chain().as_answer(), _pass_through() | subject.chain()):
                ledger = Ledger()
                shown = way(chain, subject.provider.prompt, {"callbacks": [ledger]})
                assert_none_shown(find_rejected(subject, ledger), shown)

    def test_astream_events_holds_no_token_and_no_rejected_text(self, subject: Subject) -> None:
        for chain in (subject.chain(), subject.chain().as_answer()):
            ledger = Ledger()
            events = asyncio.run(events_of(chain, subject.provider.prompt, {"callbacks": [ledger]}))
            assert tokens(events) == []
            assert_none_shown(find_rejected(subject, ledger), shown_events(events))
            (result,) = ledger.results
            assert_complete(result)

    def test_graph_streams_and_state_hold_no_rejected_text(self, subject: Subject) -> None:
        graph = graph_of(subject.chain(), InMemorySaver())
        for number, ran in enumerate(RUNS):
            for modes in (*MODES, list(MODES)):
                ledger = Ledger()
                config = RunnableConfig(callbacks=[ledger], configurable={"thread_id": f"{number}/{modes}"})
                shown = ran(graph, subject.provider.prompt, modes, config)
                assert_none_shown(find_rejected(subject, ledger), shown)
                # A result holds no message, so that there is none to stream.
                assert shown == [] or modes not in ("messages", "custom")
                remembered = graph.get_state(config).values
                assert_none_shown(find_rejected(subject, ledger), remembered)
                assert_complete(CFCResult.model_validate(remembered["result"]))

    def test_graph_of_messages_streams_only_the_answer(self, subject: Subject) -> None:
        graph = conversation(subject.chain().as_answer(), InMemorySaver())
        for ran in RUNS:
            ledger = Ledger()
            config = RunnableConfig(callbacks=[ledger], configurable={"thread_id": ran.__name__})
            shown = ran(graph, subject.provider.prompt, "messages", config)
            (result,) = ledger.results
            assert [str(message.text) for message, _ in shown] == [result.best]
            assert_none_shown(find_rejected(subject, ledger), shown)
            assert_none_shown(find_rejected(subject, ledger), graph.get_state(config).values)

    def test_pipeline_with_a_retriever_shows_only_the_answer(self, subject: Subject) -> None:
        for way in (*BOTH, *STREAMS):
            ledger, library = Ledger(), CountingRetriever()
            chain = pipeline(library, subject.chain().as_answer(text=True))
            answer = way(chain, subject.provider.prompt, {"callbacks": [ledger]})
            (result,) = ledger.results
            assert answer == result.best
            assert_none_shown(find_rejected(subject, ledger), answer)
            assert library.asked == [subject.provider.prompt]
        ledger = Ledger()
        events = asyncio.run(events_of(chain, subject.provider.prompt, {"callbacks": [ledger]}))
        assert tokens(events) == []
        assert_none_shown(find_rejected(subject, ledger), shown_events(events))

    def test_pipeline_with_or_else_shows_only_the_last_answer(self, subject: Subject) -> None:
        hopeless = subject.chain(artifact=subject.artifacts.hopeless)
        for way in (*BOTH, *STREAMS):
            ledger = Ledger()
            spare = subject.chain(artifact=subject.artifacts.spare)
            chain = pipeline(CountingRetriever(), hopeless.or_else(spare).as_answer())
            message = way(chain, subject.provider.prompt, {"callbacks": [ledger]})
            assert len(ledger.results) == 2
            said = message.response_metadata["cfc"]
            assert said["guarantee"]["artifact_digest"] == subject.artifacts.spare.digest
            assert_none_shown(find_rejected(subject, ledger), message)

    # --- bounds, cancellation ---

    def test_max_concurrency_bounds_the_requests_in_flight(self, subject: Subject) -> None:
        prompts = [subject.provider.prompt] * 6

        def most(chain: Any, config: RunnableConfig | None, *, asynchronous: bool) -> int:
            subject.provider.reset()
            subject.provider.slow(0.05)
            if asynchronous:
                asyncio.run(chain.abatch(prompts, config))
            else:
                chain.batch(prompts, config)
            assert subject.provider.requests == len(prompts) * subject.requests_per_prompt
            return subject.provider.most_at_once

        for asynchronous in (False, True):
            assert most(subject.chain(), {"max_concurrency": 2}, asynchronous=asynchronous) <= 2
            assert most(subject.chain(max_concurrency=2), None, asynchronous=asynchronous) <= 2
            # The negative control: there is something to hold back.
            assert most(subject.chain(), None, asynchronous=asynchronous) > 2

    def test_cancellation_leaves_no_task_and_no_thread(self, subject: Subject) -> None:
        provider = subject.provider

        async def cancelled() -> None:
            chain = subject.chain()

            async def pieces() -> list[Any]:
                return [piece async for piece in chain.astream(provider.prompt)]

            for start in (
                lambda: chain.ainvoke(provider.prompt),
                lambda: chain.abatch([provider.prompt] * 2),
                pieces,
                lambda: events_of(chain, provider.prompt, {}),
            ):
                provider.slow(PATIENCE)
                task = asyncio.ensure_future(start())
                await wait_until_async(lambda: provider.requests > 0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert asyncio.all_tasks() == {asyncio.current_task()}
                provider.reset()
            assert_complete(await chain.ainvoke(provider.prompt))

        before = set(threading.enumerate())
        started = time.monotonic()
        asyncio.run(cancelled())
        assert time.monotonic() - started < PATIENCE
        assert _have_threads_ended(before)

    def test_no_thread_outlives_a_prompt(self, subject: Subject) -> None:
        before = set(threading.enumerate())
        for name, way in WAYS.items():
            assert_complete(way(subject.chain(), subject.provider.prompt, None))
            assert _have_threads_ended(before), name

    def test_timeout_raises_serving_timeout_error(self, subject: Subject) -> None:
        chain = subject.chain(timeout=0.05)
        subject.provider.slow(0.2)
        for way in (*BOTH, *STREAMS):
            with pytest.raises(ServingTimeoutError):
                way(chain, subject.provider.prompt, None)
        time.sleep(0.3)  # what threads were at goes on to its end
        subject.provider.reset()
        assert_complete(subject.chain(timeout=PATIENCE).invoke(subject.provider.prompt))

    # --- what LangChain does with Runnables ---

    def test_with_retry_draws_all_candidates_again(self, subject: Subject) -> None:
        chain = subject.chain().with_retry(
            retry_if_exception_type=(DrawError,), stop_after_attempt=2, wait_exponential_jitter=False
        )
        # LangChain retries neither streams nor batches that are told as they complete.
        for name in ("invoke", "ainvoke", "batch", "abatch"):
            way = WAYS[name]
            subject.provider.reset()
            subject.provider.fail(set(range(subject.requests_per_prompt)))
            assert_complete(way(chain, subject.provider.prompt, None))
            assert subject.provider.requests == 2 * subject.requests_per_prompt
        subject.provider.fail()
        assert_typed_error(chain, subject.provider.prompt, DrawError, *BOTH)

    def test_with_fallbacks_answers_with_the_artifact_of_the_fallback(self, subject: Subject) -> None:
        spare = subject.chain(artifact=subject.artifacts.spare)
        chain = subject.chain().with_fallbacks([spare])
        for way in WAYS.values():
            subject.provider.reset()
            subject.provider.fail(set(range(subject.requests_per_prompt)))
            result = way(chain, subject.provider.prompt, None)
            assert_complete(result)
            assert result.guarantee.artifact_digest == subject.artifacts.spare.digest
            # The first one answers where it can.
            answered = way(chain, subject.provider.prompt, None)
            assert answered.guarantee.artifact_digest == subject.artifacts.served.digest

    def test_alpha_and_max_concurrency_can_be_configured(self, subject: Subject) -> None:
        chain = subject.chain().configurable_fields(
            alpha=ConfigurableField(id="alpha"), max_concurrency=ConfigurableField(id="at_once")
        )
        chosen = chain.with_config(configurable={"alpha": "0.5", "at_once": 1})
        for way in WAYS.values():
            subject.provider.reset()
            subject.provider.slow(0.01)
            assert way(chosen, subject.provider.prompt, None).guarantee.alpha == "0.5"
            assert subject.provider.most_at_once == 1
        assert chain.invoke(subject.provider.prompt).guarantee.alpha == "0.25"

    def test_alpha_can_be_bound(self, subject: Subject) -> None:
        chain = subject.chain()
        for way in WAYS.values():
            result = way(chain.bind(alpha="0.5"), subject.provider.prompt, None)
            assert (result.guarantee.alpha, result.threshold) == ("0.5", 0.5)
        assert chain.invoke(subject.provider.prompt).guarantee.alpha == "0.25"

    def test_with_config_sets_name_tags_and_callbacks_of_runs(self, subject: Subject) -> None:
        for way in BOTH:
            ledger = Ledger()
            chain = subject.chain().with_config(run_name="bot", tags=["mine"], callbacks=[ledger])
            assert_complete(way(chain, subject.provider.prompt, {"tags": ["yours"]}))
            runs = ledger.of(lambda _: True)
            assert [run.name for run in runs if run.parent is None] == ["bot"]
            assert all({"mine", "yours"} <= set(run.tags) for run in runs)

    def test_runnable_works_in_sequences_and_maps(self, subject: Subject) -> None:
        def best(result: CFCResult) -> str:
            return str(result.best)

        chain = _pass_through() | RunnableParallel(answer=subject.chain() | best, asked=RunnablePassthrough())
        for way in BOTH:
            ledger = Ledger()
            found = way(chain, subject.provider.prompt, {"callbacks": [ledger]})
            (result,) = ledger.results
            assert found == {"answer": result.best, "asked": subject.provider.prompt}

    def test_as_answer_returns_a_message_that_states_the_guarantee(self, subject: Subject) -> None:
        for way in WAYS.values():
            ledger = Ledger()
            message = way(subject.chain().as_answer(), subject.provider.prompt, {"callbacks": [ledger]})
            (result,) = ledger.results
            assert isinstance(message, AIMessage)
            assert message.text == result.best
            stated = message.response_metadata["cfc"]["guarantee"]
            assert stated.items() <= result.guarantee.model_dump(mode="json").items()
            assert_none_shown(find_rejected(subject, ledger), message)
        hopeless = subject.chain(artifact=subject.artifacts.hopeless).as_answer(abstain_message="Pass.")
        assert hopeless.invoke(subject.provider.prompt).text == "Pass."

    def test_or_else_passes_the_prompt_on_after_an_abstention(self, subject: Subject) -> None:
        prompt = subject.provider.prompt
        hopeless = subject.chain(artifact=subject.artifacts.hopeless)
        chain = hopeless.or_else(subject.chain(artifact=subject.artifacts.spare))
        for way in WAYS.values():
            result = way(chain, prompt, None)
            assert_complete(result)
            assert result.guarantee.artifact_digest == subject.artifacts.spare.digest
        asked: list[Any] = []
        assert isinstance(subject.chain().or_else(asked.append).invoke(prompt), CFCResult)
        assert asked == []
        subject.provider.fail()
        assert_typed_error(chain, prompt, DrawError, *BOTH)

    def test_get_graph_draws_the_runnable(self, subject: Subject) -> None:
        chain = _pass_through() | subject.chain()
        for one in (subject.chain(), chain, subject.chain().or_else(subject.chain())):
            drawn = one.get_graph().draw_mermaid()
            assert drawn.startswith("---\n")
            assert type(subject.chain()).__name__ in drawn

    def test_copied_runnables_serve_alike(self, subject: Subject) -> None:
        chain = subject.chain()
        copies = [copy.copy(chain), chain.model_copy()]
        # `ChatOpenAI` holds locks, and cannot be copied deeply itself.
        if not subject.provider.over_http:
            copies.append(copy.deepcopy(chain))
        for one in copies:
            assert one is not chain
            result = one.invoke(subject.provider.prompt)
            assert_complete(result)
            assert result.guarantee == chain.guarantee


class ScriptedBehaviours(Behaviours):
    """Of runnables over providers whose answers are known."""

    def test_every_way_of_calling_returns_the_same_result(self, subject: Subject) -> None:
        chain = subject.chain(show_rejected=True)
        # One after the other, for requests at the same time get the scripted answers in any order.
        results = {
            name: way(chain, subject.provider.prompt, {"max_concurrency": 1}) for name, way in WAYS.items()
        }
        assert [one.text for one in results["invoke"].candidates] == [
            "lima|0.3",
            "quito|0.9",
            "lima|0.1",
            "bogota|0.8",
        ]
        assert results["invoke"].answers == ("lima",)
        for name, result in results.items():
            assert result == results["invoke"], name
        at_once = {name: way(chain, subject.provider.prompt, None) for name, way in WAYS.items()}
        for name, result in at_once.items():
            assert result.answers == ("lima",), name
            assert sorted(str(one.text) for one in result.candidates) == sorted(
                str(one.text) for one in results["invoke"].candidates
            )

    @pytest.mark.parametrize("kind", [*FAULTS, *ODDITIES])
    def test_every_fault_gives_n_candidates_or_a_typed_error(self, subject: Subject, kind: str) -> None:
        provider: Any = subject.provider
        chain = subject.chain(verifier=lambda _, candidates: [0.1] * len(candidates))
        several = subject.requests_per_prompt > 1
        for way in (*BOTH, *STREAMS):
            provider.reset()
            provider.strike(Fault(kind, on={0}))
            # Of several requests any one may fail; what a single one does not bring is asked for separately.
            if several or kind in {"no choices", *ODDITIES}:
                assert_complete(way(chain, provider.prompt, None))
            else:
                assert_typed_error(chain, provider.prompt, DrawError, way)
            provider.reset()
            provider.strike(Fault(kind))
            if kind in {"no content", "more choices", "one choice"}:
                assert_complete(way(chain, provider.prompt, None))
            else:
                assert_typed_error(chain, provider.prompt, DrawError, way)

    @pytest.mark.parametrize("kind", ["one choice", "more choices", "no content", "status 500", "dropped"])
    def test_usage_equals_the_tokens_of_the_provider_after_faults(self, subject: Subject, kind: str) -> None:
        provider: Any = subject.provider
        model = provider.model().with_retry(wait_exponential_jitter=False)
        chain = subject.chain(generator=model, verifier=lambda _, candidates: [0.1] * len(candidates))
        for way in BOTH:
            provider.reset()
            provider.strike(Fault(kind, on={0}))
            with get_usage_metadata_callback() as callback:
                result = way(chain, provider.prompt, None)
            assert _tokens(result.usage) == provider.usage
            if (kind, subject.requests_per_prompt) != ("more choices", N):
                # Where one choice is asked for and several come, LangChain's callback does not see them.
                (counted,) = callback.usage_metadata.values()
                assert _tokens(counted) == provider.usage


class HTTPBehaviours(ScriptedBehaviours):
    """Of runnables over a client with a network before it."""

    def test_client_waits_for_the_retry_after_of_the_server(self, subject: Subject) -> None:
        provider: Any = subject.provider
        chain = subject.chain(generator=provider.model(max_retries=2))
        for way in BOTH:
            provider.reset()
            provider.strike(Fault("status 429", on={0}, seconds=0.3))
            started = time.monotonic()
            assert_complete(way(chain, provider.prompt, None))
            assert time.monotonic() - started >= 0.3
            assert provider.requests == subject.requests_per_prompt + 1

    def test_request_that_times_out_in_the_client_is_repeated(self, subject: Subject) -> None:
        provider: Any = subject.provider
        chain = subject.chain(generator=provider.model(timeout=1.0))
        for way in BOTH:
            provider.reset()
            provider.strike(Fault("slow", on={0}, seconds=PATIENCE))
            if subject.requests_per_prompt > 1:
                assert_complete(way(chain, provider.prompt, None))
            else:
                assert_typed_error(chain, provider.prompt, DrawError, way)


def _tokens(usage: Any) -> tuple[int, int]:
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return usage["input_tokens"], usage["output_tokens"]


def _pass_through() -> Runnable[Any, Any]:
    return RunnableLambda(lambda prompt: prompt)


def _fail_on(bad: str) -> Callable[[Any], dict[str, str]]:
    def describe(prompt: Any) -> dict[str, str]:
        if prompt == bad:
            msg = "no such prompt"
            raise LookupError(msg)
        return {}

    return describe


def _have_threads_ended(before: set[threading.Thread]) -> bool:
    """Whether no thread is left but those before; what is idle may take a moment to end."""
    end = time.monotonic() + GRACE
    while not set(threading.enumerate()) <= before:
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
