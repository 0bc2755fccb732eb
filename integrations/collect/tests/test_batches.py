"""Collections through batches, against a server that counts what it charges for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from langchain.chat_models import init_chat_model
from langchain_cfc_collect.batches.calls import CURRENT_CALL, BatchedCalls, RunningCalls
from langchain_cfc_collect.batches.models import find_models
from langchain_cfc_collect.batches.providers import AnthropicBatches, OpenAIBatches
from langchain_cfc_collect.calls import CallPolicy
from langchain_cfc_collect.collecting import acollect
from langchain_cfc_collect.costs import Budget
from langchain_cfc_collect.executor import Components
from langchain_cfc_collect.run import Run
from langchain_cfc_collect.store import Store, batches
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from openai.resources import AsyncBatches, AsyncFiles

from integrations.collect.tests.batch_server import TOKENS_IN, TOKENS_OUT, Faults, Provider, serve
from integrations.collect.tests.batching import (
    CONCURRENCY,
    KILLED_AT_START,
    PRICE,
    Kind,
    Messages,
    N,
    SimulatedKill,
    check_collection,
    check_collection_with_lost_lines,
    examples,
    kill_at,
    make_components,
    make_model,
    run,
    score_by_slot,
    shorten_waits,
)
from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc.errors import CollectionError, InputError, StoreError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter
from langchain_cfc.labelers import JudgeLabels, NormalisedMatch
from langchain_cfc.verifiers import ModelJudge
from tests.cli.running import run as command
from tests.concurrency import wait_until_async
from tests.lengths import mostly_long

SIZE = 8


@pytest.fixture(autouse=True)
def short_waits() -> Iterator[None]:
    with shorten_waits():
        yield


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_collect_through_batches_submits_all_draws_as_one_batch(tmp_path: Path, kind: Kind) -> None:
    provider, messages = Provider(seconds=0.1), Messages()
    with serve(provider) as url:
        ended = run(tmp_path / "store.db", make_components(url, kind), SIZE, messages=messages)
    check_collection(tmp_path / "store.db", provider, ended, SIZE)
    assert provider.log.submitted == [SIZE * N]
    assert provider.log.live.total() == 0
    assert messages.lines[0].startswith(
        f"submitting 24 requests to {'chat-1' if kind == 'openai' else 'claude-1'}"
    )
    assert "cost about" in messages.lines[0]
    assert any("batch_0: 0 of 24 requests" in one for one in messages.waiting)


FREQUENT_FAULTS = Faults(errors=0.1, missing=0.05, repeated=0.1, live=0.2, refused=0.2, dropped=0.3)


@mostly_long("kind", ["openai", "anthropic"], quick=1)
def test_batches_survive_failed_lines_and_failed_control_calls(tmp_path: Path, kind: Kind) -> None:
    provider, messages = Provider(0.2, FREQUENT_FAULTS), Messages()
    with serve(provider) as url:
        ended = run(tmp_path / "store.db", make_components(url, kind), 40, messages=messages)
    check_collection_with_lost_lines(tmp_path / "store.db", provider, ended, 40)
    assert provider.log.submitted == [40 * N]  # also where the answer to the submission was lost
    assert min(provider.log.struck[kind] for kind in ("errors", "missing", "repeated", "live")) > 0
    assert provider.log.struck["refused"] + provider.log.struck["dropped"] > 0
    assert "are sent live, at full price" in messages.lines[1]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_expired_batch_keeps_its_answers_and_sends_the_rest_live(tmp_path: Path, kind: Kind) -> None:
    provider = Provider(faults=Faults(expired=0.4))
    with serve(provider) as url:
        ended = run(tmp_path / "store.db", make_components(url, kind), SIZE)
    check_collection(tmp_path / "store.db", provider, ended, SIZE)
    assert provider.log.live.total() == provider.log.struck["expired"] > 0
    assert provider.log.lines.total() + provider.log.live.total() == SIZE * N


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_cancelled_batch_ends_the_run_and_the_next_run_submits_the_rest(tmp_path: Path, kind: Kind) -> None:
    provider = Provider(faults=Faults(cancelled=True))
    with serve(provider) as url:
        with pytest.raises(CollectionError, match=r"cancelled at the provider\. These answers are kept"):
            run(tmp_path / "store.db", make_components(url, kind), SIZE)
        assert provider.log.live.total() == 0
        provider.faults = Faults()
        ended = run(tmp_path / "store.db", make_components(url, kind), SIZE)
    check_collection(tmp_path / "store.db", provider, ended, SIZE)
    assert provider.log.submitted == [24, 12]


def test_refused_batch_reports_the_reason_without_secrets_and_the_remedy(tmp_path: Path) -> None:
    key = "sk-proj-0123456789abcdefghij0123456789"
    provider = Provider(faults=Faults(invalid=f"Limit of {key} reached\x1b[2J " + "x" * 5000))
    with serve(provider) as url:
        with pytest.raises(CollectionError, match=r"Limit of .*collect fewer prompts") as refused:
            run(tmp_path / "store.db", make_components(url), 5)
        provider.faults = Faults()
        for number, errors in enumerate((["no quota"], "no quota", {"data": [{"code": "no quota"}]}), 1):
            reply = {"id": f"batch_{number}", "status": "failed", "errors": errors}
            provider.replies = {f"GET batches/batch_{number}": [reply]}
            with pytest.raises(CollectionError, match=r"refuses a batch.*no quota"):
                run(tmp_path / "store.db", make_components(url), 5)
        provider.log.lines.clear()
        ended = run(tmp_path / "store.db", make_components(url), 5)
    check_collection(tmp_path / "store.db", provider, ended, 5)
    assert provider.log.live.total() == 0
    shown = str(refused.value)
    assert key not in shown
    assert "\x1b" not in shown
    assert len(shown) < 2000


def test_batch_of_another_account_is_not_submitted_again(tmp_path: Path) -> None:
    provider = Provider()
    with serve(provider) as url:
        with kill_at("create"), pytest.raises(SimulatedKill):
            run(tmp_path / "store.db", make_components(url), 5)
        lost = mock.patch.object(OpenAIBatches, "find", side_effect=PermissionError("another account"))
        with lost, pytest.raises(CollectionError, match=r"another account.*with a key of the account"):
            run(tmp_path / "store.db", make_components(url), 5)
        ended = run(tmp_path / "store.db", make_components(url), 5)
    check_collection(tmp_path / "store.db", provider, ended, 5)
    assert provider.log.submitted == [5 * N]


def test_server_without_a_batch_interface_is_reported(tmp_path: Path) -> None:
    with serve(Provider()) as url:
        model = ChatOpenAI(model="chat-1", base_url=f"{url}/other", api_key="none")  # type: ignore[arg-type]  # as above
        parts = Components(model, score_by_slot, NormalisedMatch(), N)
        with pytest.raises(CollectionError, match=r"refuses a batch.*another store"):
            run(tmp_path / "store.db", parts, 5)


def test_upload_that_keeps_failing_is_given_up(tmp_path: Path) -> None:
    failures = [*[TimeoutError("the gateway is away")] * 8, SimulatedKill]
    given_up = pytest.raises(CollectionError, match=r"refuses a batch.*gateway is away.*was not charged")
    failing = mock.patch.object(AsyncFiles, "create", side_effect=failures)
    with serve(Provider()) as url, failing, given_up:
        run(tmp_path / "store.db", make_components(url), 2)


def test_file_is_uploaded_once_although_the_submission_is_repeated(tmp_path: Path) -> None:
    provider, create = Provider(), AsyncBatches.create
    failures = [TimeoutError("away"), TimeoutError("away")]

    async def fail_twice(*given: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return await create(*given, **more)

    with serve(provider) as url, mock.patch.object(AsyncBatches, "create", fail_twice):
        run(tmp_path / "store.db", make_components(url), 2)
    assert len(provider.log.submitted) == provider.log.control["POST files"] == 1


@mostly_long(
    ("kind", "where"),
    [
        *(("openai", where) for where in ("upload", "create", "retrieve", *KILLED_AT_START)),
        *(("anthropic", where) for where in ("create", "read_results")),
    ],
    quick=4,
)
def test_kill_at_any_batch_step_submits_nothing_twice(tmp_path: Path, kind: Kind, where: str) -> None:
    # A live call in progress would be charged and lost; only a kill at "finish" can meet one.
    provider = Provider(faults=Faults(errors=0.0 if where == "finish" else 0.1))
    with serve(provider) as url:
        with kill_at(where), pytest.raises(SimulatedKill):
            run(tmp_path / "store.db", make_components(url, kind), SIZE)
        ended = run(tmp_path / "store.db", make_components(url, kind), SIZE)
    check_collection(tmp_path / "store.db", provider, ended, SIZE, in_flight=CONCURRENCY)
    assert provider.log.submitted == [SIZE * N]
    assert provider.log.lines.total() + provider.log.live.total() == SIZE * N


@mostly_long("kind", ["openai", "anthropic"], quick=1)
def test_control_batch_not_recorded_in_the_store_is_paid_for_twice(tmp_path: Path, kind: Kind) -> None:
    provider = Provider()
    with serve(provider) as url:
        forgotten = mock.patch.object(batches, "insert_batch", return_value=[])
        with forgotten, kill_at("retrieve"), pytest.raises(SimulatedKill):
            run(tmp_path / "store.db", make_components(url, kind), 8)
        run(tmp_path / "store.db", make_components(url, kind), 8)
    assert provider.log.submitted == [8 * N, 8 * N]
    assert provider.log.lines.total() == 2 * 8 * N


def test_anthropic_batch_of_another_client_is_not_adopted(tmp_path: Path) -> None:
    provider = Provider()
    with serve(provider) as url:
        killed = mock.patch.object(AnthropicBatches, "create", side_effect=SimulatedKill)
        with killed, pytest.raises(SimulatedKill):
            run(tmp_path / "store.db", make_components(url, "anthropic"), 2)
        provider.create(
            [(f"other-{line}", {"messages": [{"content": "x"}], "model": "m"}) for line in range(6)],
            {},
            is_openai=False,
        )
        provider.log.lines.clear()
        ended = run(tmp_path / "store.db", make_components(url, "anthropic"), 2)
    check_collection(tmp_path / "store.db", provider, ended, 2)
    assert provider.log.submitted == [6, 6]


def test_anthropic_batch_is_recognised_once_its_results_are_there(tmp_path: Path) -> None:
    provider, messages = Provider(seconds=0.5), Messages()
    with serve(provider) as url:
        with kill_at("create"), pytest.raises(SimulatedKill):
            run(tmp_path / "store.db", make_components(url, "anthropic"), 2)
        ended = run(tmp_path / "store.db", make_components(url, "anthropic"), 2, messages=messages)
    check_collection(tmp_path / "store.db", provider, ended, 2)
    assert provider.log.submitted == [6]
    assert any("; batch_0 may be this batch" in one for one in messages.waiting)
    assert "waiting for batch_0, submitted by an earlier run: 6 requests" in messages.lines


def test_stopped_run_leaves_its_batch_and_the_next_run_waits_for_it(tmp_path: Path) -> None:
    provider, messages = Provider(seconds=0.2), Messages()
    with serve(provider) as url:

        def stop_soon(going: Run) -> None:
            async def stop() -> None:
                await wait_until_async(lambda: any("batch_0" in one for one in messages.waiting))
                going.stop()

            tasks.append(asyncio.ensure_future(stop()))

        tasks: list[Any] = []
        ended = run(tmp_path / "store.db", make_components(url), SIZE, messages=messages, begun=stop_soon)
        assert not ended.complete
        assert ended.status.labelled == 0
        shown = command("store", "status", tmp_path / "store.db")
        assert "waiting for   batch_0, 24 requests" in shown.out
        ended = run(tmp_path / "store.db", make_components(url), SIZE, messages=messages)
    check_collection(tmp_path / "store.db", provider, ended, SIZE)
    assert provider.log.submitted == [SIZE * N]
    assert "waiting for batch_0, submitted by an earlier run: 24 requests" in messages.lines
    assert command("store", "status", tmp_path / "store.db", "--json").data["open_batches"] == []


def test_live_calls_that_a_stop_cancels_are_unanswered(tmp_path: Path) -> None:
    going: list[Run] = []

    async def judge(_: Any, candidates: list[Any]) -> list[float]:
        going[0].stop()
        await asyncio.sleep(60.0)
        return score_by_slot(None, candidates)

    with serve(Provider()) as url:
        parts = Components(make_model("openai", url), judge, NormalisedMatch(), N)
        ended = run(tmp_path / "store.db", parts, 3, begun=going.append)
    assert not ended.complete
    with Store(tmp_path / "store.db") as store:
        assert ended.status.unanswered == store.track_budget(Budget()).unanswered > 0


def test_batch_beyond_the_budget_is_not_submitted(tmp_path: Path) -> None:
    provider, messages = Provider(), Messages()
    small, large = (Budget(max_cost=limit, prices={"*": PRICE}) for limit in (0.2, 1000.0))
    with serve(provider) as url:
        ended = run(tmp_path / "store.db", make_components(url), SIZE, messages=messages, budget=small)
        assert not ended.complete
        assert provider.log.submitted == []
        assert messages.lines[-1].startswith(
            "the budget does not allow a batch of 24 requests to chat-1, cost about"
        )
        ended = run(tmp_path / "store.db", make_components(url), SIZE, messages=messages, budget=large)
    check_collection(tmp_path / "store.db", provider, ended, SIZE)


def test_store_refuses_to_mix_live_calls_and_batches(tmp_path: Path) -> None:
    live = make_silent_options()
    with serve(Provider()) as url:
        asyncio.run(acollect([], make_components(url), tmp_path / "live.db", live))
        with pytest.raises(StoreError, match="was collected live"):
            run(tmp_path / "live.db", make_components(url), 3)
        run(tmp_path / "batch.db", make_components(url), 2)
        with pytest.raises(StoreError, match="was collected through batches"):
            asyncio.run(acollect(examples(3), make_components(url), tmp_path / "batch.db", live))


def test_retried_prompt_keeps_the_candidates_of_its_batch(tmp_path: Path) -> None:
    provider = Provider(faults=Faults(errors=0.3, live=1.0))
    with serve(provider) as url:
        ended = run(tmp_path / "store.db", make_components(url), 5)
        assert ended.status.failed > 0
        first = provider.log.lines.total()
        provider.faults = Faults()
        ended = run(tmp_path / "store.db", make_components(url), 5, retry_failed=True)
    check_collection(tmp_path / "store.db", provider, ended, 5)
    assert provider.log.lines.total() == 5 * N > first


def test_requests_are_split_by_the_limits_of_a_batch(tmp_path: Path) -> None:
    provider = Provider()
    with serve(provider) as url, mock.patch.object(OpenAIBatches, "max_requests", 10):
        ended = run(tmp_path / "count.db", make_components(url), SIZE)
    check_collection(tmp_path / "count.db", provider, ended, SIZE)
    # They are uploaded at the same time, and arrive in any order.
    assert sorted(provider.log.submitted) == [4, 10, 10]
    provider = Provider()
    with serve(provider) as url, mock.patch.object(OpenAIBatches, "max_bytes", 4_000):
        ended = run(tmp_path / "bytes.db", make_components(url), SIZE)
    check_collection(tmp_path / "bytes.db", provider, ended, SIZE)
    assert len(provider.log.submitted) > 1
    assert max(len(one) for name, one in provider.files.items() if name.startswith("file-")) <= 4_000


class CallableJudge:
    """A judge that is no Runnable."""

    def __init__(self, model: FakeListChatModel) -> None:
        self.model = model

    def __call__(self, text: str) -> str:
        return str(self.model.invoke(text).content)


def test_find_models_finds_models_in_closures_chains_and_attributes() -> None:
    closed_over, judging, in_chain, attribute, argument, bound = (
        FakeListChatModel(responses=[name]) for name in "abcdef"
    )

    def function(text: str) -> str:
        return str(closed_over.invoke(text).content)

    parts = [
        function,
        {"judge": ModelJudge(judging, mode="line")},
        in_chain | StrOutputParser(),
        CallableJudge(attribute),
        partial(str, argument),
        CallableJudge(bound).__call__,
        init_chat_model(configurable_fields="any"),
    ]
    found = list(find_models(parts))
    assert {one.responses[0] for one in found if isinstance(one, FakeListChatModel)} == set("abcdef")
    assert type(found[-1]).__name__ == "_ConfigurableModel"
    assert not [*find_models([print, "text", 1.5, None, CallableJudge])]


def test_waiting_for_a_permit_after_a_batch_does_not_count_to_the_timeout() -> None:
    limit = 0.2
    limiter, running = ConcurrencyLimiter(1), RunningCalls()
    journal = mock.Mock(is_batched=True, flush=mock.AsyncMock())
    calls = BatchedCalls(CallPolicy(attempts=1, timeout=limit), None, running, limiter, journal)

    async def wait_twice() -> Any:
        answered = asyncio.get_running_loop().create_future()

        async def ask(_: Any) -> str:
            call = CURRENT_CALL.get()
            assert call is not None
            async with call.wait_for_batch():
                await answered
            return "answer"

        asked = asyncio.create_task(calls.acall(ask, None, CallLimits(limiter)))
        await asyncio.sleep(2 * limit)  # the batch takes longer than a call may
        await limiter.aacquire()  # and then another call holds the only permit as long again
        answered.set_result(None)
        await asyncio.sleep(2 * limit)
        limiter.release()
        return await asked

    assert asyncio.run(wait_twice()) == "answer"
    assert running.number == 0


def test_call_that_waits_for_a_second_batch_releases_its_permit() -> None:
    limit = 0.2
    limiter = ConcurrencyLimiter(1)
    journal = mock.Mock(is_batched=True, flush=mock.AsyncMock())
    calls = BatchedCalls(CallPolicy(attempts=1, timeout=limit), None, RunningCalls(), limiter, journal)

    async def collect_two() -> Any:
        first, second = (asyncio.get_running_loop().create_future() for _ in range(2))

        async def wait(answered: asyncio.Future[None], after: float = 0.0) -> None:
            await asyncio.sleep(after)
            call = CURRENT_CALL.get()
            assert call is not None
            async with call.wait_for_batch():
                await answered

        async def ask(_: Any) -> str:
            await asyncio.gather(wait(first), wait(second, 0.1))
            return "answer"

        asked = asyncio.create_task(calls.acall(ask, None, CallLimits(limiter)))
        await asyncio.sleep(0.05)
        await limiter.aacquire()  # another call runs while the first answer comes
        first.set_result(None)
        await asyncio.sleep(0.1)  # now the second request waits for its batch
        limiter.release()
        await asyncio.wait_for(limiter.aacquire(), 1.0)  # the permit is free meanwhile
        await asyncio.sleep(2 * limit)
        second.set_result(None)
        limiter.release()
        return await asked

    assert asyncio.run(collect_two()) == "answer"


def test_live_fallback_call_keeps_its_timeout(tmp_path: Path) -> None:
    provider = Provider(faults=Faults(errors=1.0, slow=1.0))
    with serve(provider) as url:
        ended = run(tmp_path / "store.db", make_components(url), 1, timeout=0.1, attempts=1)
    assert ended.status.failed == 1
    with Store(tmp_path / "store.db") as store:
        assert "no answer within 0.1 seconds" in store.read_failures()[0].error
        # They may have been charged.
        assert 0 < store.track_budget(Budget()).unanswered <= 3 * N


def test_each_wave_of_a_draw_rule_is_one_batch(tmp_path: Path) -> None:
    provider = Provider()
    with serve(provider) as url:
        parts = Components(
            make_model("openai", url), score_by_slot, NormalisedMatch(), draws="lead(2, at_most=4)"
        )
        ended = run(tmp_path / "store.db", parts, 5)
    assert ended.complete
    assert provider.log.submitted == [10, 10]
    assert ended.status.usage.tokens == 20 * (TOKENS_IN + TOKENS_OUT)


def test_claims_are_batched_by_stage_at_two_providers(tmp_path: Path) -> None:
    provider = Provider()
    with serve(provider) as url:
        judge = ModelJudge(make_model("anthropic", url), mode="line")
        labeler = JudgeLabels(RunnableLambda(write_judge_prompt) | make_model("openai", url) | read_verdict)
        parts = Components(make_model("openai", url), judge, labeler, 1, unit="claims")
        ended = run(tmp_path / "store.db", parts, 4)
    assert ended.complete
    assert ended.status.supported == 1.0
    assert provider.log.submitted == [4, 4, 4]
    with Store(tmp_path / "store.db") as store:
        assert (
            store.read_usage().tokens
            == store.read_usage(batched=True).tokens
            == 12 * (TOKENS_IN + TOKENS_OUT)
        )


def write_judge_prompt(given: dict[str, Any]) -> str:
    return f"<answer>\n{given['candidate']}\n</answer>"


def read_verdict(message: Any) -> bool:
    """Return whether the judge's answer means correct."""
    return str(message.content) == "Percent: 90"


def test_models_without_a_batch_interface_are_called_live_and_named(tmp_path: Path) -> None:
    provider, messages = Provider(), Messages()
    with serve(provider) as url:
        judge = FakeListChatModel(responses=["Percent: 50"])
        parts = Components(make_model("openai", url), ModelJudge(judge, mode="line"), NormalisedMatch(), N)
        run(tmp_path / "store.db", parts, 3, messages=messages)
        assert "FakeListChatModel: called live, at full price" in messages.notices[0]
        with pytest.raises(InputError, match="there is only FakeListChatModel: collect without batches"):
            run(tmp_path / "other.db", Components(judge, score_by_slot, NormalisedMatch(), 1), 3)


def test_models_get_their_own_clients_back_after_batches(tmp_path: Path) -> None:
    with serve(Provider()) as url:
        models = [make_model("openai", url), make_model("anthropic", url)]
        before = [models[0].root_async_client, models[0].async_client, models[1]._async_client]
        parts = Components(models[0], ModelJudge(models[1], mode="line"), NormalisedMatch(), N)
        run(tmp_path / "store.db", parts, 2)
    after = [models[0].root_async_client, models[0].async_client, models[1]._async_client]
    assert all(one is other for one, other in zip(before, after, strict=True))
