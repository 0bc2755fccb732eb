"""`Batcher`: gathers the requests of all prompts in progress, and answers them from providers' batches.

The flows do not change: each prompt draws, scores and labels, and its models send their requests. Below the
official clients, a request waits here instead of being sent. Once every prompt in progress waits, all
requests so far are submitted as batches. So batches follow the stages by themselves: all draws, then all
scores, then all labels. A request that its batch does not answer is sent live.

**What is durable when.** A batch is stored with all its requests before it is submitted, under a key by which
it is found at its provider. The provider's id is stored before the run waits for the batch, and answers are
stored before they are handed on. After a kill, the next run makes the same requests, finds each by stage,
prompt and digest, and waits for its batch or takes the stored answer. So nothing is submitted twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from langchain_cfc.execution import ConcurrencyLimiter
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc_collect.batches.calls import CURRENT_CALL, BatchedCalls, OpenCall, RunningCalls
from langchain_cfc_collect.batches.models import BatchedModels, make_response
from langchain_cfc_collect.batches.providers import Provider, read_answer, read_json
from langchain_cfc_collect.batches.requests import (
    OpenRequests,
    PendingRequest,
    Route,
    estimate_usage,
    read_request,
    split_requests,
)
from langchain_cfc_collect.batches.submission import Submissions
from langchain_cfc_collect.calls import CallPolicy
from langchain_cfc_collect.costs import BudgetTracker, Stage, Usage
from langchain_cfc_collect.failures import may_be_charged
from langchain_cfc_collect.store import Writer
from langchain_cfc_collect.store.batches import HTTP_OK

_CLIENT_ERROR = 400
# Seconds without a new request after which queued requests are submitted.
_QUIET_SECONDS = 1.0


class Batcher:
    """Answers the requests of chat models from providers' batches.

    The models are found in the components that each stage calls; raises `InputError` if there is none.
    `on_batch` is called with a line of text before each batch is submitted, and when it has ended.
    """

    def __init__(
        self, parts: Mapping[Stage, Any], policy: CallPolicy, on_batch: Callable[[str], None]
    ) -> None:
        self.models = BatchedModels(parts, self._send)
        self._rate_limiter = policy.create_rate_limiter()
        self._on_batch = on_batch
        self.running_calls = RunningCalls()
        # Makes the calls of a stage, given its journal.
        self.make_calls = partial(
            BatchedCalls,
            policy,
            self._rate_limiter,
            self.running_calls,
            ConcurrencyLimiter(policy.concurrency),
        )
        self._batched_requests = 0  # number of requests so far that waited for batches
        self._end: asyncio.Future[None]
        self._live_requests: set[asyncio.Task[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def open(self, writer: Writer, costs: BudgetTracker, on_wait: Callable[[str | None], None]) -> None:
        """Prepare for a run on a store; `on_wait` is called with the batches that it waits for, or None."""
        self._writer, self._costs = writer, costs
        self._end = asyncio.get_running_loop().create_future()
        self.requests = OpenRequests(writer, costs)
        self._submissions = Submissions(
            writer,
            self.models.providers,
            self.requests,
            spawn=self._spawn,
            on_batch=self._on_batch,
            on_wait=on_wait,
        )

    # The run

    async def run(self, start: Callable[[], Awaitable[None]]) -> bool:
        """Resume the batches of earlier runs, start the work and answer its requests until it ends.

        Returns whether the work ended; False if `stop` was called or the budget allows no more requests.
        Raises `CollectionError` if a provider refuses a batch.
        """
        work: asyncio.Future[None] | None = None
        try:
            await self._submissions.resume()
            self._spawn(self._submit_when_quiet())
            work = asyncio.ensure_future(start())
            either: list[asyncio.Future[Any]] = [work, self._end]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return True
            if self._live_requests:  # wait for live requests, because they are charged
                await asyncio.wait(self._live_requests)
            self._end.result()
            return False
        finally:
            left = [*self._tasks, *self._live_requests, *([] if work is None else [work])]
            for one in left:
                one.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            if self._end.done():
                self._end.exception()

    def stop(self) -> None:
        """End the run once live calls in progress are over; batches continue at their providers."""
        if not self._end.done():
            self._end.set_result(None)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task alongside the work; if the task fails, the run ends with its error."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._handle_task_end)

    def _handle_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._end.done():
            self._end.set_exception(error)

    # Requests

    async def _send(self, provider: Provider, request: Any) -> Any:
        """Answer a model's request, from a batch if the request can be in one."""
        call = CURRENT_CALL.get()
        found = None if call is None else await read_request(provider, request)
        if call is None or found is None:
            return await provider.http.send(request)
        call.was_batched = True
        route, body = found
        text = canonical_json([route.endpoint, body, dict(route.headers)])
        digest = blake2b(text.encode(), digest_size=8).hexdigest()
        pending = self.requests.take(call.journal.position, call.journal.stage, digest)
        pending.route, pending.body = route, body
        try:
            if pending.answer is None:
                self._batched_requests += 1
                self.requests.enqueue(pending)
                async with call.wait_for_batch():
                    await pending.answered.wait()
            answer = pending.answer
            if answer is not None and answer.packed is not None:
                return make_response(request, answer.packed)
            return await self._call_live(call, pending, provider, request)
        except BaseException:
            pending.is_taken = False
            raise

    # Live calls in place of a batch

    async def _call_live(
        self, call: OpenCall, pending: PendingRequest, provider: Provider, request: Any
    ) -> Any:
        """Send a request to its server, because its batch did not answer it."""
        if not self._end.done() and not self._is_affordable(
            estimate_usage([pending], self.requests.outputs), is_batch=False
        ):
            self._stop_for_cost("a request that its batch did not answer")
        if self._end.done():
            await asyncio.Event().wait()  # never set: the end of the run cancels this
        if self._rate_limiter is not None:
            await self._rate_limiter.aacquire()
        call.journal.announce_live_request()
        await call.journal.flush()
        task = asyncio.ensure_future(self._send_live(call, pending, provider, request))
        self._live_requests.add(task)
        task.add_done_callback(self._live_requests.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not self._end.done():  # the call timed out; at the end of a run, `run` waits for the request
                task.cancel()
            raise

    async def _send_live(
        self, call: OpenCall, pending: PendingRequest, provider: Provider, request: Any
    ) -> Any:
        try:
            response = await provider.http.send(request)
        except BaseException as error:
            lost = not isinstance(error, Exception) or may_be_charged(error)
            self._writer.submit(call.journal.settle_live_request(lost=lost))
            raise
        if response.status_code != HTTP_OK:
            lost = response.status_code < _CLIENT_ERROR or response.status_code in {408, 504}
            self._writer.submit(call.journal.settle_live_request(lost=lost))
        else:
            answer = read_answer(read_json(response.content), live=True)
            settled = call.journal.settle_live_request(lost=False)
            await self.requests.write_answers([(pending, answer)], settled)
            if answer.packed is not None:
                return make_response(request, answer.packed)
        pending.is_taken = False
        return response

    def _is_affordable(self, estimate: Usage, *, is_batch: bool) -> bool:
        """Return whether the budget holds with these requests and all batches that are not fetched yet."""
        waiting = self._submissions.estimate
        return self._costs.allows_requests(waiting + estimate, waiting + estimate if is_batch else waiting)

    def _stop_for_cost(self, what: str) -> None:
        self._on_batch(
            f"the budget does not allow {what} in addition to the charges so far and the pending batches: "
            "nothing more is submitted. Raise the budget, or collect fewer prompts"
        )
        self.stop()

    # Batches

    async def _submit_when_quiet(self) -> None:
        """Submit the queued requests whenever all calls wait and no new request came for a moment."""
        seen, quiet = -1, _QUIET_SECONDS
        while True:
            started = time.monotonic()
            await asyncio.sleep(quiet)
            # If the event loop was blocked meanwhile, other tasks had no chance to make requests.
            is_quiet = seen == self._batched_requests and time.monotonic() - started < 2 * quiet
            seen = self._batched_requests
            if self.requests.queue and is_quiet and not self.running_calls.number:
                queue, self.requests.queue = self.requests.queue, []
                for route, requests in split_requests(queue):
                    if not self._end.done():
                        await self._submit(route, requests)
            self._submissions.report_waiting()

    async def _submit(self, route: Route, requests: Sequence[PendingRequest]) -> None:
        """Report the estimated price of a batch, and submit it if the budget allows."""
        estimate = estimate_usage(requests, self.requests.outputs)
        price = self._costs.budget.compute_cost(estimate, estimate)
        stated = "" if price is None else f", cost about {price:.4g} at batch prices"
        size = f"{len(requests):,} requests to {route.model}"
        if not self._is_affordable(estimate, is_batch=True):
            self._stop_for_cost(f"a batch of {size}{stated}")
            return
        (total,) = estimate.calls  # all requests of a batch are to one model
        self._on_batch(
            f"submitting {size} as a batch: about {total.input_tokens:,} tokens in, "
            f"{total.output_tokens:,} out{stated}"
        )
        await self._submissions.submit(route, requests, estimate)
