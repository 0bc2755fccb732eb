"""`CFCMonitor`: stores every result off the serving path, and reports what results and labels show."""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler
from pydantic import TypeAdapter, ValidationError

from langchain_cfc._internal.plugins import is_plugin_source, load_plugin
from langchain_cfc._internal.suggestions import suggest_file, suggest_share
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import AbstentionError, CFCError, InputError
from langchain_cfc.monitor.observed import DAY, Label, ObservedResult
from langchain_cfc.monitor.status import EvidenceCurve, Limits, MonitorStatus, list_curves, make_status
from langchain_cfc.monitor.store import Evidence, Failure, MonitorStore
from langchain_cfc.monitor.traffic import Traffic, check_time
from langchain_cfc.runnable import CFCResult

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger(__name__)
# Limit of results and failures that wait to be written. If the database is unavailable for long, later ones
# are lost, and counted.
_MAX_WAITING = 100_000
# Limit of unfinished runs; of the oldest beyond it the end was never reported, as when a stream is left.
_MAX_RUNS = 100_000
# Seconds before a batch that could not be written is tried again.
_RETRY_AFTER = 1.0
_LABELS = TypeAdapter(list[Label])


class CFCMonitor(BaseCallbackHandler):
    """Watches what an artifact decides, as a callback of LangChain or by calls of `see`.

    As a callback, `chain.invoke(prompt, {"callbacks": [monitor]})`, it receives every `CFCResult` below, and
    prompts that failed. A result is stored by the id of its run, and in numbers only: scores, features,
    threshold and decision, no text of prompts or answers. Nothing on the serving path waits: results are put
    into a queue, and a background thread writes them, many in one transaction. A process that is killed loses
    those of the last `every` seconds, or the last `batch` of them if they come faster.

    Args:
        artifact: The artifact whose promise is watched; results of other artifacts are ignored.
        store: Path of an SQLite file, or the URL of a PostgreSQL database that several machines share.
        level: Probability of any false alarm, ever, for each of the two kinds: drift, and broken promises
            (there in addition to the certificate's own delta), in (0, 1).
        least_probability: The smallest probability with which any result is chosen to be labelled, in
            (0, 1]; see `label`.
        every: Seconds after which results are written at the latest, above 0.
        batch: Number of results that are written at once if they come faster, at least 1.
        keep_days: Results older than this many days are deleted once the tests have seen them; the evidence
            stays. None keeps all.
        label_days: Days after which nearly all labels of a result have come; the labelled ones among older
            results are then compared with the others. At most `keep_days`.
        metadata: Entries of the prompts' metadata to store in addition to those that the artifact reads, for
            later artifacts.
        limits: Limits that must not be exceeded, statistics aside.
        create: Whether to create the store if it does not exist.

    Raises:
        InputError: If a setting is out of range.
        StoreError: If the database cannot be used.
        MissingExtraError: If SQLAlchemy is not installed.
    """

    # Also in async chains; a thread for each event would take longer than the event.
    run_inline = True
    # Events of models, tools and retrievers are not needed, and there are many for each result.
    ignore_llm = True
    ignore_chat_model = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    def __init__(
        self,
        artifact: CalibrationArtifact,
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
            if not (0.0 < value < 1.0 or (value == 1.0 and name != "level")):
                msg = f"{name} must lie in (0, 1), got {value!r}{suggest_share(value)}"
                raise InputError(msg)
        if (
            every <= 0.0
            or batch < 1
            or not 0.0 <= label_days <= (math.inf if keep_days is None else keep_days)
        ):
            msg = "expected every > 0 seconds, batch >= 1, and 0 <= label_days <= keep_days"
            raise InputError(msg)
        if artifact.unit == "claims":
            msg = "a monitor watches answer sets, and this artifact keeps claims of one answer"
            raise InputError(msg)
        self.artifact = artifact
        self.level = level
        self.least_probability = least_probability
        self._metadata = frozenset([*artifact.metadata_keys, *metadata])
        self.limits = limits
        self._label_days = label_days
        self._keep = None if keep_days is None else keep_days * DAY
        self._store = MonitorStore(store, create=create)
        self._writer = _Writer(self._store, every, batch)
        self._runs: dict[UUID, float] = {}
        self._recent: weakref.WeakValueDictionary[int, CFCResult | CFCError] = weakref.WeakValueDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def see(self, result: CFCResult, name: str | None = None, *, seconds: float | None = None) -> str:
        """Store a result under a name.

        Args:
            result: The result.
            name: Its unique name; a random one if left out. A stored result of the same name stays.
            seconds: How long it took.

        Returns:
            Its name, for labels.

        Raises:
            InputError: If another artifact decided it, or the monitor is closed.
        """
        theirs = result.guarantee.artifact_digest
        if theirs != self.artifact.digest:
            msg = (
                f"the result was decided by the artifact {theirs[:15]}, and this monitor watches "
                f"{self.artifact.digest[:15]}: give each artifact a monitor of its own"
            )
            raise InputError(msg)
        if self._writer.is_closed:
            msg = "the monitor is closed, so this result would be lost: open one on the same store"
            raise InputError(msg)
        name = name or uuid4().hex
        self._put(result, name, seconds)
        return name

    def _put(self, result: CFCResult, name: str, seconds: float | None) -> None:
        """Queue a result of this artifact; after `close` it is counted as lost."""
        self._writer.put(
            ObservedResult.from_result(result, name, time.time(), seconds, metadata=self._metadata)
        )

    def label(self, *labels: Label, leave_out_unfit: bool = False) -> int:
        """Store which results were right, whenever that is known; see `Label`.

        Whether a result is labelled must not depend on whether it was right. If some are labelled more often
        than others, by what they look like, each label states the probability with which its result was
        chosen. Tests then use each with the probability `least_probability` divided by that, so that those
        used are like all results (rejection sampling).

        Args:
            *labels: The labels.
            leave_out_unfit: Whether to warn of labels that do not fit their result, such as one truth value
                for the answer where there was none, and to store the others.

        Returns:
            How many were new; the first label of a result counts.

        Raises:
            InputError: If one names no result, does not fit it, or its result was chosen with a smaller
                probability than `least_probability`. Then none is written.
            StoreError: If they could not be written.

        Warns:
            CFCWarning: If labels were left out, or contradict the first ones of their results.
        """
        rare = [one for one in labels if one.probability < self.least_probability]
        if rare:
            msg = (
                f"label of {rare[0].id!r}: chosen with probability {rare[0].probability}, which is below "
                f"least_probability = {self.least_probability}: make the monitor with the smallest there is"
            )
            raise InputError(msg)
        self.flush()
        return self._store.label(labels, time.time(), leave_out_unfit=leave_out_unfit)

    def status(self) -> MonitorStatus:
        """Return what all results and labels so far show, those of other processes included.

        Raises:
            StoreError: If the database cannot be used.
        """
        now = time.time()
        evidence = self._update_evidence(now)
        if self._keep is not None:
            self._store.delete_before(now - self._keep)
        counts = self._store.count_results(self.artifact.digest)
        return make_status(self.artifact, evidence, counts, level=self.level, limits=self.limits, now=now)

    def curves(self, most: int = 5) -> list[EvidenceCurve]:
        """Return the evidence over time of the tests that are closest to an alarm.

        Args:
            most: Number of tests of drift, and of certified rates.

        Returns:
            Their curves, thinned out to a few hundred points.

        Raises:
            StoreError: If the database cannot be used.
        """
        return list(list_curves(self._update_evidence(time.time()), self.level, most))

    def _update_evidence(self, now: float) -> Evidence:
        self.flush()
        return self._store.update_evidence(
            self.artifact, now, least=self.least_probability, label_days=self._label_days
        )

    def traffic(self, since: float | None = None) -> Traffic:
        """Return the stored results with their labels.

        Args:
            since: Seconds since 1970: only those from then on.

        Raises:
            InputError: If that is no time.
            StoreError: If the database cannot be used.
        """
        results, labels = self._store.read_results(self.artifact.digest, self._flush_and_check(since))
        return Traffic(self.artifact, tuple(results), labels)

    def list_unlabelled(self, since: float | None = None) -> list[str]:
        """Return the names of the results that have no label yet, in their order.

        Args:
            since: Seconds since 1970: only those from then on.

        Raises:
            InputError: If that is no time.
            StoreError: If the database cannot be used.
        """
        return self._store.list_unlabelled(self.artifact.digest, self._flush_and_check(since))

    def _flush_and_check(self, since: float | None) -> float:
        """Write everything that waits, and return the time to begin at."""
        if since is not None:
            check_time(since)
        self.flush()
        return since or 0.0

    @property
    def name(self) -> str:
        """Name of the store, without a password."""
        return self._store.name

    def flush(self) -> None:
        """Write every result so far.

        Raises:
            StoreError: If that fails.
        """
        self._writer.flush()

    def close(self) -> None:
        """Write what is left, and close the store."""
        self._writer.close()
        self._store.close()

    @property
    def lost(self) -> int:
        """How many results were dropped because the database was unavailable for too long."""
        return self._writer.lost

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        """Note the start time of a run, unless it is given a result: that one it may copy."""
        del serialized, kwargs
        if isinstance(inputs, CFCResult):
            return
        if len(self._runs) >= _MAX_RUNS:
            with suppress(RuntimeError, StopIteration):  # another thread changed it
                self._runs.pop(next(iter(self._runs)), None)
        self._runs[run_id] = time.perf_counter()

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Store a result once; enclosing chains end with the same object."""
        del kwargs
        began = self._runs.pop(run_id, None)
        if not isinstance(outputs, CFCResult) or not self._is_new(outputs) or began is None:
            return
        if outputs.guarantee.artifact_digest == self.artifact.digest:
            self._put(outputs, str(run_id), time.perf_counter() - began)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Count a prompt that could not be served, once; a raised abstention is a result."""
        if isinstance(error, AbstentionError):
            self.on_chain_end(error.result, run_id=run_id, **kwargs)
            return
        del kwargs
        began = self._runs.pop(run_id, None)
        if began is not None and isinstance(error, CFCError) and self._is_new(error):
            self._writer.put(Failure(time.time(), self.artifact.digest, type(error).__name__))

    def _is_new(self, one: CFCResult | CFCError) -> bool:
        """Return whether no run has ended with this very object before.

        Objects are compared, not runs: LangChain's `with_fallbacks` does not say which run a run belongs to.
        """
        if self._recent.get(id(one)) is one:
            return False
        self._recent[id(one)] = one
        return True


class _Writer:
    """A queue, and the thread that writes it to the store. After a fork, the child has its own."""

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
            self._due.set()

    def flush(self) -> None:
        """Write everything that waits, in this thread."""
        with self._turn:
            while self._waiting:
                self._write()

    def close(self) -> None:
        """Write everything that waits, and end the thread."""
        if self.is_closed:
            return
        self.is_closed = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _reset(self) -> None:
        # Deques can be appended to and popped from at the same time.
        self._waiting: deque[ObservedResult | Failure] = deque()
        self._turn, self._starting = threading.Lock(), threading.Lock()
        self._due = threading.Event()
        self._thread: threading.Thread | None = None

    def _reset_after_fork(self) -> None:
        self._store.reset_after_fork()
        self._reset()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="cfc-monitor", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while not self.is_closed:
            self._due.wait(self._every)
            self._due.clear()
            try:
                self.flush()
            except CFCError as error:
                _LOG.warning("results of the monitor wait to be written: %s", error)
                time.sleep(_RETRY_AFTER)

    def _write(self) -> None:
        """Write a batch; what cannot be written stays at the head of the queue."""
        batch = [self._waiting[place] for place in range(min(len(self._waiting), self._batch))]
        self._store.add(
            [one for one in batch if isinstance(one, ObservedResult)],
            [one for one in batch if isinstance(one, Failure)],
        )
        for _ in batch:
            self._waiting.popleft()


def call_after_fork(method: Callable[[], None]) -> None:
    """Call a method in children that are forked, as long as its object exists."""
    if hasattr(os, "register_at_fork"):
        method_ref = weakref.WeakMethod(method)
        os.register_at_fork(after_in_child=lambda: (known := method_ref()) and known())


def parse_labels(rows: Iterable[Mapping[str, Any]]) -> list[Label]:
    """Make labels out of plain data.

    Args:
        rows: `{"id": ..., "correct": ..., "probability": ...?}`; see `Label`.

    Returns:
        The labels.

    Raises:
        InputError: If a row is not a label.
    """
    try:
        return _LABELS.validate_python(list(rows))
    except ValidationError as error:
        first = error.errors()[0]
        row, *within = first["loc"]
        place = ".".join(map(str, within))
        msg = f"label {int(row) + 1}{f', {place}' if place else ''}: {first['msg']}"
        raise InputError(msg) from error


def read_labels(path: str | os.PathLike[str], names: Sequence[str] = ()) -> list[Label]:
    """Read labels from a JSON Lines file, one a line as `parse_labels` takes them, or from a plugin.

    Plugins are entry points of the group `langchain_cfc.labels`, each a function that takes what follows the
    colon and the names of results without a label, and returns a list of labels.

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
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except FileNotFoundError as error:
        msg = f"{os.fspath(path)}: no such file{suggest_file(path)}"
        raise InputError(msg) from error
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{os.fspath(path)}: cannot be read as JSON Lines: {error}"
        raise InputError(msg) from error
    try:
        return parse_labels(rows)
    except InputError as error:
        msg = f"{os.fspath(path)}: {error}"
        raise InputError(msg) from error
