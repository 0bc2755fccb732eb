"""`CFCMonitor`: store every result off the serving path, and test results and labels."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.runnable import BatchResult, CFCResult
from langchain_cfc.support.json_text import check_regular_file, parse_object, read_lines, short_repr
from langchain_cfc.support.plugins import is_plugin_source, load_plugin
from langchain_cfc.support.suggestions import suggest_share
from langchain_cfc_monitor.callbacks import ResultCallback
from langchain_cfc_monitor.evidence import Evidence
from langchain_cfc_monitor.observed import DAY, Label, ObservedResult, is_number, parse_label
from langchain_cfc_monitor.status import EvidenceCurve, Limits, MonitorStatus, list_curves, make_status
from langchain_cfc_monitor.store import Failure, MonitorStore
from langchain_cfc_monitor.traffic import Traffic, check_time

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger(__name__)
# Most results and failures that wait for an unavailable database; more are dropped, and counted in `lost`.
_MAX_WAITING = 100_000
# Seconds to wait before retrying a batch that could not be written.
_RETRY_SECONDS = 1.0


class CFCMonitor(ResultCallback):
    """Monitors what an artifact decides, as a LangChain callback or through calls of `record`.

    As a callback, `chain.invoke(prompt, {"callbacks": [monitor]})`, it receives every `CFCResult` of the
    chain and of chains inside it, and every prompt that failed with a `CFCError`. A result is stored under
    the id of its run: scores, features, threshold, decision and some metadata, but no text of prompts or
    answers. Serving never waits for the store: results go into a queue, and a background thread writes them
    in batches. A killed process loses the results of the last `every` seconds, or the last `batch` results if
    they come faster.

    Args:
        artifact: The artifact whose guarantee is monitored, or the path of its file; the callback ignores
            results of other artifacts.
        store: Path of an SQLite file, or URL of a PostgreSQL database, which several machines can share.
        level: Probability of ever raising a false alarm, in (0, 1), for each of the two kinds: drift, and
            certified rates (there in addition to the certificate's own delta).
        least_probability: Smallest probability of any result to be chosen for labelling, in (0, 1].
        every: Seconds after which results are written at the latest, above 0.
        batch: Number of waiting results that triggers an earlier write, and the most that one transaction
            writes; at least 1.
        keep_days: Results older than this many days are deleted once the tests have seen them; the evidence
            stays. None keeps all.
        label_days: Days within which nearly all labels of a result arrive. Among results older than that, the
            labelled ones are compared with the others. In [0, `keep_days`].
        metadata: Keys of prompt metadata to store besides those that the artifact reads, for later artifacts.
        limits: Fixed limits, checked besides the statistical tests.
        create: Whether to create the store if it does not exist.

    Raises:
        InputError: If a setting is out of range.
        StoreError: If the database cannot be used.
    """

    def __init__(
        self,
        artifact: CalibrationArtifact | str | os.PathLike[str],
        store: str | os.PathLike[str] = "cfc-monitor.db",
        *,
        level: float = 0.01,
        least_probability: float = 1.0,
        every: float = 1.0,
        batch: int = 500,
        keep_days: float | None = 90.0,
        label_days: float = 14.0,
        metadata: Sequence[str] = (),
        limits: Limits = Limits(),  # noqa: B008 - frozen
        create: bool = True,
    ) -> None:
        for name, value in (("level", level), ("least_probability", least_probability)):
            if not (is_number(value) and (0.0 < value < 1.0 or (value == 1.0 and name != "level"))):
                above = "1)" if name == "level" else "1]"
                msg = f"{name} must lie in (0, {above}, got {value!r}{suggest_share(value)}"
                raise InputError(msg)
        days = math.inf if keep_days is None else keep_days
        if (
            not all(map(is_number, (every, batch, label_days, days)))
            or every <= 0.0
            or batch < 1
            or not 0.0 <= label_days <= days
        ):
            msg = "expected every > 0 seconds, batch >= 1, and 0 <= label_days <= keep_days"
            raise InputError(msg)
        if isinstance(artifact, str | os.PathLike):
            artifact = CalibrationArtifact.load(artifact)
        if not isinstance(artifact, CalibrationArtifact):
            msg = f"artifact is {short_repr(artifact)}; expected what calibrate returns, or its file"
            raise InputError(msg)
        if artifact.unit == "claims":
            msg = (
                "a monitor watches whole answers, but this artifact is for claims of one answer: label new "
                "answers now and then, and check it with `langchain-cfc evaluate`"
            )
            raise InputError(msg)
        super().__init__()
        self.artifact = artifact
        self.level = level
        self.least_probability = least_probability
        self._metadata = frozenset([*artifact.feature_map.metadata_keys, *metadata])
        self.limits = limits
        self._label_days = label_days
        self._keep = None if keep_days is None else keep_days * DAY
        self._store = MonitorStore(store, create=create)
        self._writer = _BackgroundWriter(self._store, every, batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def record(self, result: CFCResult, name: str | None = None, *, seconds: float | None = None) -> str:
        """Queue a result to be stored under a name; a decision that a `DecisionStore` gave again is not.

        Args:
            result: A result of this monitor's artifact.
            name: Its unique name; random by default. A result already stored under the name stays.
            seconds: How long it took; None if that was not measured.

        Returns:
            The name, by which labels refer to the result.

        Raises:
            InputError: If the result is of another artifact, or the monitor is closed.
        """
        if not isinstance(result, CFCResult):
            msg = (
                f"expected the result of an artifact, such as bot.invoke(question), got {short_repr(result)}"
            )
            raise InputError(msg)
        theirs = result.guarantee.artifact_digest
        if theirs != self.artifact.digest:
            msg = (
                f"the result was decided by the artifact {theirs[:15]}, and this monitor watches "
                f"{self.artifact.digest[:15]}: use one monitor per artifact"
            )
            raise InputError(msg)
        if self._writer.is_closed:
            msg = "the monitor is closed, so this result would be lost: open a new one on the same store"
            raise InputError(msg)
        name = name or uuid4().hex
        self._queue_result(result, name, seconds)
        return name

    def _queue_result(self, result: CFCResult, name: str, seconds: float | None) -> None:
        """Queue a result of this artifact, unless it is a decision given again; after `close` it is lost."""
        if result.is_repeated:
            return
        if result.reason == "failed":  # in a batch
            self.receive_failure(CFCError())
            return
        self._writer.put(
            ObservedResult.from_result(result, name, time.time(), seconds, metadata=self._metadata)
        )

    def label(self, *labels: Label | Mapping[str, Any], leave_out_unfit: bool = False) -> int:
        """Store labels of results, whenever they become known; see `Label`.

        Whether a result is labelled must not depend on whether it was right. If results are chosen for
        labelling with unequal probabilities, depending on what they look like, each label must state the
        probability p with which its result was chosen. The tests then use the label with probability
        `least_probability` / p: the labels used are then a fair sample of all results (rejection sampling).

        Args:
            *labels: The labels, or mappings of their fields.
            leave_out_unfit: Whether to leave out labels that do not fit their result, with a warning, and to
                store the others. An example is a truth value for the best answer where none was given.

        Returns:
            Number of new labels; a result keeps its first label.

        Raises:
            InputError: If a label names an unknown result, does not fit its result, or states a probability
                below `least_probability`. Then no label is written.
            StoreError: If the labels could not be written.

        Warns:
            CFCWarning: If labels were left out, or contradict the first label of their result.
        """
        given = [one if isinstance(one, Label) else parse_label(one) for one in labels]
        for one in given:
            one.compute_weight(self.least_probability)  # raises if the stated probability is too small
        self.flush()
        return self._store.label(given, time.time(), leave_out_unfit=leave_out_unfit)

    def read_status(self) -> MonitorStatus:
        """Return what the results and labels of all processes show; delete results older than `keep_days`.

        Raises:
            StoreError: If the database cannot be used.
        """
        now = time.time()
        evidence = self._update_evidence(now)
        if self._keep is not None:
            self._store.delete_before(now - self._keep)
        counts = self._store.count_results(self.artifact.digest)
        return make_status(self.artifact, evidence, counts, level=self.level, limits=self.limits, now=now)

    def read_curves(self, most: int = 5) -> list[EvidenceCurve]:
        """Return the evidence over time of the tests that are closest to an alarm.

        Args:
            most: Largest number of drift tests, and of tests of certified rates.

        Returns:
            Their curves, each with at most a few hundred points.

        Raises:
            StoreError: If the database cannot be used.
        """
        return list(list_curves(self._update_evidence(time.time()), self.level, most))

    def _update_evidence(self, now: float) -> Evidence:
        self.flush()
        return self._store.update_evidence(
            self.artifact, now, least=self.least_probability, label_days=self._label_days
        )

    def read_traffic(self, since: float | None = None) -> Traffic:
        """Return the stored results with their labels.

        Args:
            since: Use only results from this time on, in seconds since 1970; None for all.

        Raises:
            InputError: If `since` is not a valid time.
            StoreError: If the database cannot be used.
        """
        if since is not None:
            check_time(since)
        self.flush()
        results, labels = self._store.read_results(self.artifact.digest, since or 0.0)
        return Traffic(self.artifact, tuple(results), labels)

    def list_unlabelled(self) -> list[str]:
        """Return the names of the results that have no label yet, in stored order.

        Raises:
            StoreError: If the database cannot be used.
        """
        self.flush()
        return self._store.list_unlabelled(self.artifact.digest)

    @property
    def name(self) -> str:
        """Name of the store, without a password."""
        return self._store.name

    def flush(self) -> None:
        """Write all waiting results and failures.

        Raises:
            StoreError: If they cannot be written.
        """
        self._writer.flush()

    def close(self) -> None:
        """Write all waiting results and failures, and close the store."""
        self._writer.close()
        self._store.close()

    @property
    def lost(self) -> int:
        """Number of results and failures dropped because the queue was full or the monitor closed."""
        return self._writer.lost

    def receive_result(self, result: CFCResult, run_id: UUID, prompt: Any, seconds: float) -> None:
        """Queue a result of this monitor's artifact."""
        del prompt
        if result.guarantee.artifact_digest == self.artifact.digest:
            self._queue_result(result, str(run_id), seconds)

    def receive_batch(self, batch: BatchResult, run_id: UUID) -> None:
        """Queue the results of a batch of this artifact by the names `RUN-PLACE`, equal questions once."""
        if batch.guarantee.artifact_digest == self.artifact.digest:
            seen: set[int] = set()
            for place, one in enumerate(batch.results):
                if id(one.candidates) not in seen:
                    self._queue_result(one, f"{run_id}-{place}", None)
                if one.candidates:  # of a failed question there are none
                    seen.add(id(one.candidates))

    def receive_failure(self, error: CFCError) -> None:
        """Count a prompt that could not be served."""
        self._writer.put(Failure(time.time(), self.artifact.digest, type(error).__name__))


class _BackgroundWriter:
    """A queue and a thread that writes it to the store. A forked child process gets its own."""

    def __init__(self, store: MonitorStore, every: float, batch: int) -> None:
        self._store, self._every, self._batch = store, every, batch
        self.lost = 0
        self.is_closed = False
        self._reset()
        close_ref = weakref.WeakMethod(self.close)
        atexit.register(lambda: (close := close_ref()) and close())
        call_after_fork(self._reset_after_fork)

    def put(self, one: ObservedResult | Failure) -> None:
        """Queue a result or failure without waiting."""
        if self.is_closed or len(self._waiting) >= _MAX_WAITING:
            self.lost += 1
            return
        self._waiting.append(one)
        if self._thread is None:
            self._start()
        elif len(self._waiting) >= self._batch:
            self._wake_up.set()

    def flush(self) -> None:
        """Write all waiting items in the calling thread."""
        with self._write_lock:
            while self._waiting:
                self._write_batch()

    def close(self) -> None:
        """Stop the thread, and write all waiting items."""
        if self.is_closed:
            return
        self.is_closed = True
        self._wake_up.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _reset(self) -> None:
        # Several threads may append to a deque and pop from it without a lock.
        self._waiting: deque[ObservedResult | Failure] = deque()
        self._write_lock, self._start_lock = threading.Lock(), threading.Lock()
        self._wake_up = threading.Event()
        self._thread: threading.Thread | None = None

    def _reset_after_fork(self) -> None:
        self._store.reset_after_fork()
        self._reset()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cfc-monitor", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self.is_closed:
            self._wake_up.wait(self._every)
            self._wake_up.clear()
            try:
                self.flush()
            except CFCError as error:
                _LOG.warning("results of the monitor could not be written yet: %s", error)
                time.sleep(_RETRY_SECONDS)

    def _write_batch(self) -> None:
        """Write one batch; if that fails, its items stay at the head of the queue."""
        batch = [self._waiting[place] for place in range(min(len(self._waiting), self._batch))]
        self._store.add(
            [one for one in batch if isinstance(one, ObservedResult)],
            [one for one in batch if isinstance(one, Failure)],
        )
        for _ in batch:
            self._waiting.popleft()


def call_after_fork(method: Callable[[], None]) -> None:
    """Call a method in every forked child process, for as long as its object exists."""
    if hasattr(os, "register_at_fork"):
        method_ref = weakref.WeakMethod(method)
        os.register_at_fork(after_in_child=lambda: (known := method_ref()) and known())


def read_labels(path: str | os.PathLike[str], names: Sequence[str] = ()) -> list[Label]:
    """Read labels from a JSON Lines file, one `parse_label` row per line, or from a plugin.

    Plugins are entry points of the group `langchain_cfc.labels`. Each is a function that takes the text after
    the colon and the names of results without a label, and returns a list of labels.

    Args:
        path: The file, or `SCHEME:REST`, such as `langsmith:correct`.
        names: Names of the results without a label, for plugins.

    Returns:
        The labels.

    Raises:
        InputError: If the file or plugin cannot be read, or a line is not a label.
    """
    if is_plugin_source(path):
        found: list[Any] = load_plugin("langchain_cfc.labels", "labels", list, str(path), names)
        for one in found:
            if not isinstance(one, Label):
                msg = f"{path}: expected labels, got a {type(one).__name__}"
                raise InputError(msg)
        return found
    source = Path(path)
    check_regular_file(source)
    return [
        parse_label(parse_object(content, str(source), line), str(source), line)
        for line, content in read_lines(source)
        if content.strip()
    ]
