"""Small collections through batches: models at the test server, runs, simulated kills, and checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest
from langchain_cfc_collect import CallPolicy, CollectionOptions, CollectionResult, acollect
from langchain_cfc_collect.batches import batcher, providers, submission
from langchain_cfc_collect.batches.providers import PROVIDERS
from langchain_cfc_collect.batches.requests import OpenRequests
from langchain_cfc_collect.costs import Budget, Price
from langchain_cfc_collect.executor import Components
from langchain_cfc_collect.journal import BatchJournal
from langchain_cfc_collect.store import Store, batches
from langchain_openai import ChatOpenAI

from integrations.collect.tests.batch_server import TOKENS_IN, TOKENS_OUT, Provider
from integrations.collect.tests.sharing import make_numbered_examples, shorten_retry_waits, skip_trial
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.verifiers import SequenceProbability

Kind = Literal["openai", "anthropic"]
N, CONCURRENCY = 3, 4
PRICE = Price(input=1000.0, output=10_000.0)
# Of one answered request, at full price.
COST = (TOKENS_IN * PRICE.input + TOKENS_OUT * PRICE.output) / 1_000_000

examples = partial(make_numbered_examples, reference="answer {} 0")


def make_model(kind: Kind, url: str) -> Any:
    """A chat model of a provider, at the server."""
    common: dict[str, Any] = {"api_key": "none", "max_retries": 0}
    if kind == "openai":
        return ChatOpenAI(model="chat-1", base_url=f"{url}/v1", logprobs=True, **common)
    from langchain_anthropic import ChatAnthropic  # which takes seconds

    return ChatAnthropic(model_name="claude-1", base_url=url, **common)


@dataclass
class Messages:
    """Messages that a collection has shown."""

    lines: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


@contextmanager
def shorten_waits() -> Iterator[None]:
    """Wait for fractions of a second instead of seconds and minutes."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(batcher, "_QUIET_SECONDS", 0.02))
        stack.enter_context(mock.patch.multiple(submission, _FIRST_WAIT=0.01, _LONGEST_WAIT=0.05))
        # The clients' own retries wait for seconds, and those above them do the same work.
        stack.enter_context(mock.patch.object(providers, "_MAX_RETRIES", 0))
        stack.enter_context(shorten_retry_waits())
        stack.enter_context(skip_trial())
        yield


def run(
    path: str | Path,
    parts: Components,
    size: int,
    *,
    messages: Messages | None = None,
    budget: Budget | None = None,
    begun: Callable[[Any], None] | None = None,
    retry_failed: bool = False,
    **policy: Any,
) -> CollectionResult:
    messages = messages or Messages()

    def note(status: Any) -> None:
        if status.waiting is not None:
            messages.waiting.append(status.waiting)

    options = CollectionOptions(
        call_policy=CallPolicy(CONCURRENCY, batch=True, **policy),
        budget=budget or Budget(prices={"*": PRICE}),
        on_progress=note,
        on_notice=messages.notices.append,
        on_batch=messages.lines.append,
        on_start=begun,
        retry_failed=retry_failed,
    )
    return asyncio.run(acollect(examples(size), parts, path, options))


def make_components(url: str, kind: Kind = "openai") -> Components:
    """Components of which only the generator sends requests."""
    return Components(
        make_model(kind, url),
        SequenceProbability() if kind == "openai" else score_by_slot,
        NormalisedMatch(),
        N,
    )


def score_by_slot(_: Any, candidates: list[Any]) -> list[float]:
    return [slot / 8 for slot in range(len(candidates))]


def check_collection(
    path: str | Path, provider: Provider, ended: CollectionResult, size: int, in_flight: int = 0
) -> None:
    """Check that each prompt has n different candidates, and that usage equals the server's log."""
    assert ended.complete
    assert ended.status.labelled == size
    with Store(path) as store:
        store.check()
        for record in store.read_records():
            texts = {str(one.text) for one in record.candidates}
            assert len(texts) == N
            assert {one.rpartition(" ")[0] for one in texts} == {
                str(record.input).replace("question", "answer")
            }
        assert store.read_rows(batches.requests.select()) == []
        usage, batched = store.read_usage(), store.read_usage(batched=True)
        assert store.track_budget(Budget()).unanswered <= in_flight
    lines, live = provider.log.lines.total(), provider.log.live.total()
    assert usage.tokens == (lines + live) * (TOKENS_IN + TOKENS_OUT)
    assert batched.tokens == lines * (TOKENS_IN + TOKENS_OUT)
    assert ended.status.cost == pytest.approx(COST * (0.5 * lines + live))
    assert ended.status.usage.tokens == usage.tokens


def check_collection_with_lost_lines(
    path: str | Path, provider: Provider, ended: CollectionResult, size: int
) -> None:
    """The same check if the provider charges for lines that it does not deliver: they are unanswered."""
    missing = provider.log.struck["missing"]
    assert missing > 0
    provider.log.lines["lost"] -= missing
    check_collection(path, provider, ended, size, in_flight=missing)
    assert ended.status.unanswered > 0
    provider.log.lines["lost"] = 0


# The steps that cannot be left later, and whose they are.
KILLED_AT_START: dict[str, tuple[Any, ...]] = {
    "finish": (BatchJournal,),  # of a stage, whose answers are stored
    "set_id": (batches,),
    "read_results": PROVIDERS,
    "write_answers": (OpenRequests,),
    "end_batch": (batches,),
}


class SimulatedKill(BaseException):
    """Raised in place of a kill, so that no later step is done."""


@contextmanager
def kill_at(where: str) -> Iterator[None]:
    """Raise `SimulatedKill` after a step, or at the start of steps that cannot be left otherwise."""
    with ExitStack() as stack:
        for owner in KILLED_AT_START.get(where, PROVIDERS):
            step = getattr(owner, where)

            async def finish_and_die(*given: Any, step: Any = step) -> None:
                await step(*given)
                raise SimulatedKill

            killed = mock.Mock(side_effect=SimulatedKill) if where in KILLED_AT_START else finish_and_die
            stack.enter_context(mock.patch.object(owner, where, killed))
        yield
