"""Requests of models as lines of batches: read, group and split them, and hand on their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from langchain_cfc_collect.batches.providers import BatchResult, Body, Headers, Provider
from langchain_cfc_collect.costs import (
    CHARACTERS_PER_TOKEN,
    BudgetTracker,
    ModelCalls,
    Stage,
    Usage,
    assume_output,
)
from langchain_cfc_collect.store import Writer, batches, calls
from langchain_cfc_collect.store.batches import Answer, RequestKey

# Number of digits of a batch's key, which is the prefix of the id of each of its requests.
KEY_DIGITS = 16


@dataclass(frozen=True)
class Route:
    """Properties that all requests of one batch share."""

    provider: Provider
    endpoint: str
    model: str
    headers: Headers


@dataclass(eq=False)
class PendingRequest:
    """Request of a stage of a prompt; the last three fields are None until it is made in this run."""

    key: RequestKey
    is_taken: bool = False  # whether a call waits for the answer or has received it
    is_queued: bool = False  # whether the request is in a batch or in the queue for the next one
    answer: Answer | None = None
    body: Body | None = None
    route: Route | None = None  # where the request goes
    ended: asyncio.Future[BatchResult] | None = None  # the result for the call that waits for it

    def set_result(self, result: BatchResult) -> None:
        """Wake up the call that waits for the result; without an answer, the call may ask again."""
        self.is_queued = False
        self.answer = result.answer
        waiting, self.ended = self.ended, None
        if waiting is not None and not waiting.done():
            waiting.set_result(result)


class OpenRequests:
    """Requests of all stages in progress, which records their answers in store and budget."""

    def __init__(self, writer: Writer, costs: BudgetTracker) -> None:
        self.queue: list[PendingRequest] = []  # requests for the next batch
        self.outputs: dict[Stage, Usage] = {}  # usage of the answers so far, by stage
        self._writer = writer
        self._costs = costs
        self._stages: dict[tuple[int, Stage], dict[RequestKey, PendingRequest]] = {}

    def find(self, key: RequestKey) -> PendingRequest:
        """Return the request with a key, adding it if it is not known yet."""
        return self._stages.setdefault((key.prompt, key.stage), {}).setdefault(key, PendingRequest(key))

    def take(self, position: int, stage: Stage, digest: str) -> PendingRequest:
        """Return the first equal request of a stage that no call has taken, adding one if need be."""
        requests = self._stages.get((position, stage), {}).values()
        equal = [one for one in requests if one.key.digest == digest]
        equal.sort(key=lambda one: one.key.occurrence)
        pending = next((one for one in equal if not one.is_taken), None)
        if pending is None:
            occurrence = equal[-1].key.occurrence + 1 if equal else 0
            pending = self.find(RequestKey(position, stage, digest, occurrence))
        pending.is_taken = True
        return pending

    def requeue(self, pending: PendingRequest) -> None:
        """Queue a request for another batch, if a call waits for it."""
        pending.is_queued = pending.ended is not None
        if pending.is_queued:
            self.queue.append(pending)

    async def write_results(
        self, results: Sequence[tuple[PendingRequest, BatchResult]], *others: Any
    ) -> None:
        """Make the results of a batch durable together with other writes, and then hand them on."""
        orphans: list[Any] = []
        paid = Usage()
        for pending, result in results:
            position, stage = pending.key.prompt, pending.key.stage
            used = result.usage
            self.outputs[stage] = self.outputs.get(stage, Usage()) + used
            paid += used
            # The stage has ended without this answer, for example after an error in another request, or the
            # answer cannot be read, and another one takes its place.
            if (position, stage) not in self._stages or result.answer is None:
                orphans += calls.insert_calls(position, stage, used)
                orphans += calls.insert_calls(position, stage, used, batched=True)
                orphans += calls.announce_requests(position, stage, used.answered)
        answers = [(pending.key, one.answer) for pending, one in results if one.answer is not None]
        left = batches.delete_requests([pending.key for pending, one in results if one.answer is None])
        await self._writer.write([*batches.set_answers(answers), *left, *orphans, *others])
        self._costs.add_batched(paid)
        for pending, result in results:
            pending.set_result(result)

    def sum_stage(self, position: int, stage: Stage) -> Usage:
        """Return the usage of a stage's answers so far."""
        requests = self._stages.get((position, stage), {}).values()
        used = [one.answer.calls for one in requests if one.answer is not None]
        return sum((Usage((one,), 1) for one in used), Usage())

    def finish_stage(self, position: int, stage: Stage) -> Usage:
        """Forget the requests of a stage, and return the usage of its answers."""
        paid = self.sum_stage(position, stage)
        self._stages.pop((position, stage), None)
        return paid


async def read_request(provider: Provider, request: Any) -> tuple[Route, Body] | None:
    """Return the route and the body of a request; None if it cannot be in a batch."""
    path = str(request.url.path)
    endpoint = next((name for end, name in provider.endpoints.items() if path.endswith(end)), None)
    if endpoint is None or request.method != "POST":
        return None
    body = json.loads(await request.aread())
    if body.get("stream"):
        return None
    names = provider.meaningful_headers
    headers = tuple(sorted((name, request.headers[name]) for name in names if name in request.headers))
    return Route(provider, endpoint, str(body.get("model")), headers), body


def group_requests(queue: Sequence[PendingRequest]) -> Iterator[tuple[Route, list[PendingRequest]]]:
    """Yield groups of requests that may be in one batch together, by their route."""
    groups: dict[Route, list[PendingRequest]] = {}
    for pending in queue:
        if pending.route is not None:
            groups.setdefault(pending.route, []).append(pending)
    yield from groups.items()


def split_requests(route: Route, requests: Sequence[PendingRequest]) -> Iterator[list[PendingRequest]]:
    """Yield parts of the requests, each as large as one batch may be."""
    part: list[PendingRequest] = []
    size, provider = 0, route.provider
    for pending in requests:
        assert pending.body is not None  # noqa: S101 - it was made in this run
        length = len(provider.encode("0" * KEY_DIGITS, provider.max_requests, pending.body, route.endpoint))
        if part and (len(part) == provider.max_requests or size + length > provider.max_bytes):
            yield part
            part, size = [], 0
        part.append(pending)
        size += length
    if part:
        yield part


def estimate_usage(requests: Sequence[PendingRequest], outputs: Mapping[Stage, Usage]) -> Usage:
    """Estimate the usage of requests: input from its length, output from the stage's answers so far."""
    total = Usage()
    for pending in requests:
        if pending.body is None or pending.route is None:
            continue
        known = outputs.get(pending.key.stage, Usage())
        if known.answered:
            output = ceil(sum(one.output_tokens for one in known.calls) / known.answered)
        else:
            output = assume_output(pending.body)
        size = len(json.dumps(pending.body, ensure_ascii=False)) // CHARACTERS_PER_TOKEN
        total += Usage((ModelCalls(pending.route.model, False, size, output),))
    return total
