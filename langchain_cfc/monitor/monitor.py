"""`CFCMonitor`: hears of every result, writes it down beside the serving path, and says what it shows."""

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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler
from pydantic import TypeAdapter, ValidationError

from langchain_cfc._internal.plugins import is_plugin_source, load_plugin
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import AbstentionError, CFCError, InputError
from langchain_cfc.monitor.observed import Observed
from langchain_cfc.monitor.sequential_tests import Label
from langchain_cfc.monitor.status import EvidenceCurve, Limits, MonitorStatus, curves_of, status_of
from langchain_cfc.monitor.store import Evidence, Failed, MonitorStore
from langchain_cfc.monitor.traffic import Traffic, check_time
from langchain_cfc.runnable import CFCResult

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger(__name__)
# Most results and failures that wait to be written; where the database is away for long, later ones are lost,
# and counted.
MOST_WAITING = 100_000
# Most runs that go on; of the oldest beyond these nobody has told the end, as where a stream was left.
MOST_RUNS = 100_000
# Seconds before a batch that could not be written is tried again.
_AGAIN = 1.0
_DAY = 86_400.0
_LABEL = TypeAdapter(Label)


class CFCMonitor(BaseCallbackHandler):
    """Watches what an artifact decides, as a callback of LangChain or fed by hand.

    As a callback, `chain.invoke(prompt, {"callbacks": [monitor]})`, it hears of every `CFCResult` below, and
    of prompts that failed. A result is remembered by the id of its run, and in numbers only: scores,
    features, threshold and decision, no text of prompts or answers. Nothing on the serving path waits:
    results are put into a queue, and a thread of its own writes them, many in one transaction. A process that
    is killed loses those of the last `every` seconds, or the last `batch` of them if they come faster.

    Args:
        artifact: The artifact whose promise is watched; results of others are left out.
        store: Path of an SQLite file, or the URL of a PostgreSQL database that several machines share.
        level: Probability of any false alarm, ever, for each of the two kinds: drift, and broken promises
            (there beside the certificate's own delta), in (0, 1).
        least_probability: The smallest probability with which any result is chosen to be labelled, in
            (0, 1]; see `label`.
        every: Seconds after which results are written at the latest, above 0.
        batch: Number of results that are written at once if they come faster, at least 1.
        keep_days: Results older than this many days are deleted once the tests have seen them; what the tests
            have learnt stays. None keeps all.
        label_days: Days after which nearly all labels have come that a result will get; older results are
            then compared, the labelled with the others. At most `keep_days`.
        metadata: Entries of the prompts' metadata to keep beside those that the artifact reads, for
            artifacts to come.
        limits: What must not be exceeded, statistics aside.
        create: Whether to make the store where it is not there.

    Raises:
        InputError: If a setting is out of range.
        StoreError: If the database cannot be used.
        MissingExtraError: If SQLAlchemy is not installed.
    """

    # In async chains as well; a thread for each event would take longer than the event.
    run_inline = True
    # Events of models, tools and retrievers are none of ours, and there are many for each result.
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
                msg = f"{name} must lie in (0, 1), got {value!r}"
                raise InputError(msg)
        if (
            every <= 0.0
            or batch < 1
            or not 0.0 <= label_days <= (math.inf if keep_days is None else keep_days)
        ):
            msg = "expected every > 0 seconds, batch >= 1, and 0 <= label_days <= keep_days"
            raise InputError(msg)
        self.artifact = artifact
        self.level = level
        self.least_probability = least_probability
        self._metadata = frozenset([*artifact.metadata_keys, *metadata])
        self.limits = limits
        self._label_days = label_days
        self._keep = None if keep_days is None else keep_days * _DAY
        self._store = MonitorStore(store, create=create)
        self._writing = _Writing(self._store, every, batch)
        self._runs: dict[UUID, float] = {}
        self._recent: weakref.WeakValueDictionary[int, CFCResult | CFCError] = weakref.WeakValueDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def see(self, result: CFCResult, name: str | None = None, *, seconds: float | None = None) -> str:
        """Remember a result.

        Args:
            result: The result.
            name: What it is called, unique; made up if left out. A result of the same name that is there
                already stays.
            seconds: How long it took.

        Returns:
            Its name, for labels.

        Raises:
            InputError: If another artifact decided it.
        """
        theirs = result.guarantee.artifact_digest
        if theirs != self.artifact.digest:
            msg = (
                f"the result was decided by the artifact {theirs[:15]}, and this monitor watches "
                f"{self.artifact.digest[:15]}: give each artifact a monitor of its own"
            )
            raise InputError(msg)
        name = name or uuid4().hex
        self._writing.put(Observed.of(result, name, time.time(), seconds, metadata=self._metadata))
        return name

    def label(self, *labels: Label, leave_out_unfit: bool = False) -> int:
        """Say which results were right, whenever that is known; see `Label`.

        Whether a result is labelled must not depend on whether it was right. Where some are labelled more
        often than others, by what they look like, each label says with what probability its result was
        chosen; tests then take each with the probability `least_probability` divided by that, so that those
        taken are like all results (rejection sampling).

        Args:
            *labels: The labels.
            leave_out_unfit: Whether to warn of labels that do not fit their result, such as one word about
                the answer where there was none, and to take the others.

        Returns:
            How many were new; the first label of a result counts.

        Raises:
            InputError: If one names no result, does not fit it, or was chosen more rarely than
                `least_probability`. Then none is written.
            StoreError: If they could not be written.

        Warns:
            CFCWarning: If labels were left out.
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
        """What all results and labels so far show, also those that other processes wrote.

        Raises:
            StoreError: If the database cannot be used.
        """
        now = time.time()
        evidence = self._evidence(now)
        if self._keep is not None:
            self._store.forget(now - self._keep)
        standing = self._store.standing(self.artifact.digest)
        return status_of(self.artifact, evidence, standing, level=self.level, limits=self.limits, now=now)

    def curves(self, most: int = 5) -> list[EvidenceCurve]:
        """How the evidence of the tests went that have come furthest.

        Args:
            most: How many of drift, and how many of certified rates.

        Returns:
            Their curves, in few points however long they are.

        Raises:
            StoreError: If the database cannot be used.
        """
        tests = self.status().tests
        return curves_of(self._evidence(time.time()), tests, most)

    def _evidence(self, now: float) -> Evidence:
        self.flush()
        return self._store.evidence(
            self.artifact, now, least=self.least_probability, label_days=self._label_days
        )

    def traffic(self, since: float | None = None) -> Traffic:
        """The results there are, with their labels.

        Args:
            since: Seconds since 1970: only those from then on.

        Raises:
            InputError: If that is no time.
            StoreError: If the database cannot be used.
        """
        begin = self._written_since(since)
        results, labels = self._store.results(self.artifact.digest, begin)
        return Traffic(self.artifact, tuple(results), labels)

    def unlabelled(self, since: float | None = None) -> list[str]:
        """Names of the results that have no label yet, in their order.

        Args:
            since: Seconds since 1970: only those from then on.

        Raises:
            InputError: If that is no time.
            StoreError: If the database cannot be used.
        """
        begin = self._written_since(since)
        return self._store.unlabelled(self.artifact.digest, begin)

    def _written_since(self, since: float | None) -> float:
        """Where to begin, once everything heard of is written."""
        if since is not None:
            check_time(since)
        self.flush()
        return since or 0.0

    @property
    def name(self) -> str:
        """Where results are kept."""
        return self._store.name

    def flush(self) -> None:
        """Wait until everything heard of so far is written.

        Raises:
            StoreError: If it cannot be.
        """
        self._writing.flush()

    def close(self) -> None:
        """Write what is left, and end."""
        self._writing.close()
        self._store.close()

    @property
    def lost(self) -> int:
        """How many results could not be kept, since the database was away for too long."""
        return self._writing.lost

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        """Note when a run began."""
        del serialized, inputs, kwargs
        if len(self._runs) >= MOST_RUNS:
            with suppress(RuntimeError, StopIteration):  # another thread was at it
                self._runs.pop(next(iter(self._runs)), None)
        self._runs[run_id] = time.perf_counter()

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Remember a result, once: chains around it end with the same."""
        del kwargs
        began = self._runs.pop(run_id, None)
        if began is None or not isinstance(outputs, CFCResult) or not self._is_new(outputs):
            return
        if outputs.guarantee.artifact_digest == self.artifact.digest:
            self.see(outputs, str(run_id), seconds=time.perf_counter() - began)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Count a prompt that could not be served, once; an abstention that is raised is a result."""
        if isinstance(error, AbstentionError):
            self.on_chain_end(error.result, run_id=run_id, **kwargs)
            return
        del kwargs
        began = self._runs.pop(run_id, None)
        if began is not None and isinstance(error, CFCError) and self._is_new(error):
            self._writing.put(Failed(time.time(), self.artifact.digest, type(error).__name__))

    def _is_new(self, one: CFCResult | CFCError) -> bool:
        """Return whether no run has ended with this very object before.

        Objects are compared, not runs: LangChain's `with_fallbacks` does not say which run a run belongs to.
        """
        if self._recent.get(id(one)) is one:
            return False
        self._recent[id(one)] = one
        return True


class _Writing:
    """A queue, and the thread that empties it into a store. After a fork, the child has its own."""

    def __init__(self, store: MonitorStore, every: float, batch: int) -> None:
        self._store, self._every, self._batch = store, every, batch
        self.lost = 0
        self._closed = False
        self._begin()
        ending = weakref.WeakMethod(self.close)
        atexit.register(lambda: (close := ending()) and close())
        if hasattr(os, "register_at_fork"):
            apart = weakref.WeakMethod(self._forked)
            os.register_at_fork(after_in_child=lambda: (begin := apart()) and begin())

    def put(self, one: Observed | Failed) -> None:
        """Add something to be written; never waits."""
        if self._closed or len(self._waiting) >= MOST_WAITING:
            self.lost += 1
            return
        self._waiting.append(one)
        if self._thread is None:
            self._start()
        elif len(self._waiting) >= self._batch:
            self._due.set()

    def flush(self) -> None:
        """Write all that waits, in this thread."""
        with self._turn:
            while self._waiting:
                self._write()

    def close(self) -> None:
        """Write all that waits, and end the thread."""
        if self._closed:
            return
        self._closed = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _begin(self) -> None:
        # Deques are safe to append to and to take from at once.
        self._waiting: deque[Observed | Failed] = deque()
        self._turn, self._starting = threading.Lock(), threading.Lock()
        self._due = threading.Event()
        self._thread: threading.Thread | None = None

    def _forked(self) -> None:
        self._store.forked()
        self._begin()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="cfc-monitor", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while not self._closed:
            self._due.wait(self._every)
            self._due.clear()
            try:
                self.flush()
            except CFCError as error:
                _LOG.warning("results of the monitor wait to be written: %s", error)
                time.sleep(_AGAIN)

    def _write(self) -> None:
        """Write a batch; what cannot be written stays at the head of the queue."""
        batch = [self._waiting[place] for place in range(min(len(self._waiting), self._batch))]
        self._store.add(
            [one for one in batch if isinstance(one, Observed)],
            [one for one in batch if isinstance(one, Failed)],
        )
        for _ in batch:
            self._waiting.popleft()


def labels_of(rows: Iterable[Mapping[str, Any]]) -> list[Label]:
    """Labels out of plain data.

    Args:
        rows: `{"id": ..., "correct": ..., "probability": ...?}`; see `Label`.

    Returns:
        The labels.

    Raises:
        InputError: If one is something else.
    """
    made = []
    for number, row in enumerate(rows, start=1):
        try:
            made.append(_LABEL.validate_python(row))
        except ValidationError as error:  # noqa: PERF203 - its number is told
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            msg = f"label {number}{f', {place}' if place else ''}: {first['msg']}"
            raise InputError(msg) from error
    return made


def read_labels(path: str | os.PathLike[str], names: Sequence[str] = ()) -> list[Label]:
    """Labels from a JSON Lines file, one a line, see `labels_of`; or from where a scheme says.

    Schemes are entry points of the group `langchain_cfc.labels`, each a function from what follows the colon
    and the names of results that have no label yet to a list of labels.

    Args:
        path: The file, or `SCHEME:REST`, such as `langsmith:correct`.
        names: Results without a label, for schemes.

    Returns:
        The labels.

    Raises:
        InputError: If the file or the scheme cannot be read, or a line is no label.
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
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{os.fspath(path)}: cannot be read as JSON Lines: {error}"
        raise InputError(msg) from error
    try:
        return labels_of(rows)
    except InputError as error:
        msg = f"{os.fspath(path)}: {error}"
        raise InputError(msg) from error
