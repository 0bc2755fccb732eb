"""Requests of models as lines of batches: read, group and split them, and hand on their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from langchain_cfc_collect.batches.providers import Body, Headers, Provider
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
from langchain_cfc_collect.store.schema import Write

# Bytes of a line of a batch besides the body of its request, at most.
_LINE_BYTES = 200


@dataclass(frozen=True)
class Route:
    """Properties that all requests of one batch share."""

    provider: Provider
    endpoint: str
    model: str
    headers: Headers


@dataclass(eq=False)
class PendingRequest:
    """Request of a stage of a prompt; it has body and route once it is made in this run."""

    key: RequestKey
    is_taken: bool = False  # whether a call waits for the answer or has received it
    is_queued: bool = False  # whether the request is in a batch or in the queue for the next one
    answer: Answer | None = None
    body: Body = field(init=False, repr=False)
    route: Route = field(init=False, repr=False)  # where the request goes
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # set once there is an answer


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

    def enqueue(self, pending: PendingRequest) -> None:
        """Queue a request for the next batch, unless it is in one."""
        if not pending.is_queued:
            pending.is_queued = True
            self.queue.append(pending)

    async def write_answers(
        self, answers: Sequence[tuple[PendingRequest, Answer]], others: Sequence[Write]
    ) -> None:
        """Make answers durable together with their usage and other writes, and then hand them on."""
        writes = batches.set_answers([(pending.key, answer) for pending, answer in answers])
        by_stage: dict[tuple[int, Stage], list[Answer]] = {}
        for pending, answer in answers:
            by_stage.setdefault((pending.key.prompt, pending.key.stage), []).append(answer)
        for (position, stage), found in by_stage.items():
            total = sum_usage(found)
            batched = sum_usage(answer for answer in found if not answer.live)
            lost = sum(answer.lost for answer in found)
            writes += calls.insert_calls(position, stage, total)
            writes += calls.insert_calls(position, stage, batched, batched=True)
            writes += calls.announce_requests(position, stage, total.answered + lost)
            self.outputs[stage] = self.outputs.get(stage, Usage()) + total
            self._costs.add_answers(stage, total, batched, lost)
        await self._writer.write([*writes, *others])
        for pending, answer in answers:
            pending.answer = answer
            pending.answered.set()

    def sum_stage(self, position: int, stage: Stage) -> Usage:
        """Return the usage of the answers to a stage's requests so far, which is stored and counted.

        That of one that cannot be read is not among it, because another answer takes its place.
        """
        answers = (one.answer for one in self._stages.get((position, stage), {}).values())
        return sum_usage(one for one in answers if one is not None and one.packed is not None)

    def finish_stage(self, position: int, stage: Stage) -> Usage:
        """Forget the requests of a stage, and return the same usage as `sum_stage`."""
        found = self.sum_stage(position, stage)
        self._stages.pop((position, stage), None)
        return found


def sum_usage(answers: Iterable[Answer]) -> Usage:
    """Return the usage of answers together."""
    return sum((one.usage for one in answers), Usage())


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


def split_requests(queue: Iterable[PendingRequest]) -> Iterator[tuple[Route, list[PendingRequest]]]:
    """Yield the requests of each batch with their common route, each time as many as a batch may hold."""
    parts: dict[Route, list[PendingRequest]] = {}
    sizes: dict[Route, int] = {}
    for pending in queue:
        route = pending.route
        size = len(json.dumps(pending.body, ensure_ascii=False).encode()) + _LINE_BYTES
        part, known = parts.setdefault(route, []), sizes.get(route, 0)
        if part and (len(part) == route.provider.max_requests or known + size > route.provider.max_bytes):
            yield route, part
            part, known = [], 0
        part.append(pending)
        parts[route], sizes[route] = part, known + size
    yield from parts.items()


def estimate_usage(requests: Sequence[PendingRequest], outputs: Mapping[Stage, Usage]) -> Usage:
    """Estimate the usage of requests: input from its length, output from the stage's answers so far."""
    total = Usage()
    for pending in requests:
        body, known = pending.body, outputs.get(pending.key.stage, Usage())
        if known.answered:
            output = ceil(sum(one.output_tokens for one in known.calls) / known.answered)
        else:
            output = assume_output(body)
        size = len(json.dumps(body, ensure_ascii=False)) // CHARACTERS_PER_TOKEN
        total += Usage((ModelCalls(str(body.get("model")), False, size, output),))
    return total
