"""`FeedbackHandler`: write the decision about a served prompt to its run, in the background."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from langchain_cfc_monitor import ResultCallback
from langsmith import Client
from langsmith.utils import LangSmithNotFoundError, get_tracer_project
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from langchain_cfc import CFCResult
from langchain_cfc.errors import CFCWarning, InputError
from langchain_cfc.execution import describe_error, run_flow
from langchain_cfc.labelers import CandidateLabeling, Labeler
from langchain_cfc_langsmith.asking import make_client, translate_errors
from langchain_cfc_langsmith.labelling import label_served
from langchain_cfc_langsmith.scores import make_scores

_LOGGER = logging.getLogger(__name__)
# A run (and a new project) only appears once the tracer has sent it, a moment later.
_RETRYING = Retrying(
    retry=retry_if_exception_type(LangSmithNotFoundError),
    stop=stop_after_attempt(5),
    wait=wait_exponential(multiplier=0.25),
    reraise=True,
)
_EXIT_SECONDS = 10.0


class _ServedPrompt(NamedTuple):
    run_id: UUID
    prompt: Any
    result: CFCResult


class FeedbackHandler(ResultCallback):
    """Writes the scores of `make_scores` as feedback on the run of every prompt that a `CFCRunnable` serves.

    Pass it as a callback to runs that are traced to LangSmith: `chain.invoke(prompt, {"callbacks":
    [handler]})`. It never delays an answer and never makes it fail: a bounded queue passes feedback to
    background threads. Feedback that does not fit into the queue, or is refused, is counted in `lost`,
    logged, and warned about by `flush`. When the process ends, flushing takes at most ten seconds.

    Args:
        client: The client; by default configured by the environment.
        project: Project that the runs are traced to; by default that of the environment.
        labeler: Labels candidates, if references are known, as in a replay or a trial.
        reference: Function from a prompt to its reference, or None if it has none; required with `labeler`.
        most_waiting: Maximum number of served prompts in the queue, at least 1.
        threads: Number of threads that write, at least 1.

    Attributes:
        written: Number of served prompts whose feedback is complete.
        lost: Number of served prompts whose feedback is incomplete and will stay so.

    Raises:
        InputError: If only one of `labeler` and `reference` is given, or a number is less than 1.
    """

    def __init__(
        self,
        *,
        client: Client | None = None,
        project: str | None = None,
        labeler: Labeler | None = None,
        reference: Callable[[Any], Any] | None = None,
        most_waiting: int = 1000,
        threads: int = 4,
    ) -> None:
        if (labeler is None) != (reference is None):
            msg = "found one of labeler and reference; expected both, or neither"
            raise InputError(msg)
        if min(most_waiting, threads) < 1:
            msg = f"most_waiting is {most_waiting} and threads is {threads}; expected at least 1"
            raise InputError(msg)
        super().__init__()
        labelling = None if labeler is None else CandidateLabeling(labeler)
        self._writer = _Writer(
            client=make_client(client),
            project=project or str(get_tracer_project()),
            labelling=labelling,
            reference=reference,
            most_waiting=most_waiting,
            threads=threads,
        )
        atexit.register(self._writer.flush, _EXIT_SECONDS)

    @property
    def written(self) -> int:
        """Number of served prompts whose feedback is complete."""
        return self._writer.written

    @property
    def lost(self) -> int:
        """Number of served prompts whose feedback is incomplete and will stay so."""
        return self._writer.lost

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all feedback is written or lost; return whether the queue is empty.

        Args:
            timeout: Maximum seconds to wait; None waits for ever.

        Returns:
            Whether the queue is empty.

        Warns:
            CFCWarning: If feedback was lost since the last call, or is still waiting.
        """
        return self._writer.flush(timeout)

    def receive_result(self, result: CFCResult, run_id: UUID, prompt: Any, seconds: float) -> None:
        """Queue the decision of a run for writing."""
        del seconds
        self._writer.put(_ServedPrompt(run_id, prompt, result))


class _Writer:
    """The queue of decisions and the threads that write them to LangSmith."""

    def __init__(
        self,
        *,
        client: Client,
        project: str,
        labelling: CandidateLabeling | None,
        reference: Callable[[Any], Any] | None,
        most_waiting: int,
        threads: int,
    ) -> None:
        self.written = 0
        self.lost = 0
        self._client = client
        self._project = project
        self._labelling = labelling
        self._reference = reference
        self._waiting: queue.Queue[_ServedPrompt] = queue.Queue(most_waiting)
        self._threads = threads
        self._lock = threading.Lock()
        self._started = False
        self._project_id: UUID | None = None
        self._warned = 0

    def put(self, served: _ServedPrompt) -> None:
        self._start()
        try:
            self._waiting.put_nowait(served)
        except queue.Full:
            self._count_lost(f"{self._waiting.maxsize} served prompts are already waiting to be written")

    def flush(self, timeout: float | None) -> bool:
        waiting = self._waiting
        with waiting.all_tasks_done:
            done = waiting.all_tasks_done.wait_for(lambda: not waiting.unfinished_tasks, timeout)
        new = self.lost - self._warned
        self._warned = self.lost
        if new or not done:
            left = waiting.unfinished_tasks
            msg = (
                f"LangSmith: the feedback of {new} served prompts was lost, and that of {left} is still "
                "waiting"
            )
            warnings.warn(msg, CFCWarning, stacklevel=3)
        return done

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            self._started = True
        for number in range(self._threads):
            # Daemons, so that a service that does not respond cannot keep the process alive.
            threading.Thread(target=self._work, name=f"cfc-feedback-{number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            served = self._waiting.get()
            try:
                self._write(served)
            except Exception as error:  # noqa: BLE001 - the thread must go on with the other prompts
                self._count_lost(describe_error(error))
            else:
                with self._lock:
                    self.written += 1
            finally:
                self._waiting.task_done()

    def _count_lost(self, why: str) -> None:
        with self._lock:
            self.lost += 1
        _LOGGER.warning("the feedback of a served prompt is lost: %s", why)

    def _write(self, served: _ServedPrompt) -> None:
        correct: list[bool] | None = None
        failure: Exception | None = None
        try:
            correct = self._label(served)
        except Exception as error:  # noqa: BLE001 - labelling failed; the decision is written all the same
            failure = error
        guarantee = served.result.guarantee
        source_info = {"artifact": guarantee.artifact_digest, "alpha": guarantee.alpha}
        with translate_errors("writing feedback"):
            project_id = self._find_project()
            for one in make_scores(served.result, correct):
                _RETRYING.copy()(
                    self._client.create_feedback,
                    run_id=served.run_id,
                    key=one.key,
                    score=one.score,
                    value=one.value,
                    comment=one.comment,
                    # Derived, so that a repeated request does not add feedback twice.
                    feedback_id=uuid5(served.run_id, one.key),
                    session_id=project_id,
                    source_info=source_info,
                    # The client also retries at a lower level; retries at this level would take minutes.
                    stop_after_attempt=1,
                )
        if failure is not None:
            raise failure

    def _label(self, served: _ServedPrompt) -> list[bool] | None:
        if self._labelling is None or self._reference is None:
            return None
        reference = self._reference(served.prompt)
        if reference is None:
            return None
        labels = label_served(self._labelling, served.prompt, reference, served.result.candidates, {})
        return run_flow(labels)

    def _find_project(self) -> UUID:
        if self._project_id is None:
            found = _RETRYING.copy()(lambda: self._client.read_project(project_name=self._project))
            self._project_id = found.id
        return self._project_id
