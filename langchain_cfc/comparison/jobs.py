"""Splits measured one after the other, or by several processes at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeAlias, TypeVar

from langchain_cfc.errors import CalibrationError, InputError

Found = TypeVar("Found")
Progress: TypeAlias = Callable[[Iterable[Any], int], Iterable[Any]]


def nobody_watches(items: Iterable[Any], total: int) -> Iterable[Any]:
    """No progress shown."""
    del total
    return items


def each_split(
    measured: Callable[[int], Found],
    splits: int,
    jobs: int = 1,
    progress: Progress = nobody_watches,
) -> list[Found]:
    """The figures of every split, in order, whatever the number of processes.

    Args:
        measured: What measures one split; it is sent to the processes.
        splits: Number of splits.
        jobs: Number of processes; 1 for this one.
        progress: Wraps the splits while they are measured; is told how many there are.

    Returns:
        The figures.

    Raises:
        InputError: If the number of processes is below 1.
        CalibrationError: If a process was ended from outside.
    """
    if jobs < 1:
        msg = f"jobs must be a whole number of processes, at least 1; got {jobs!r}"
        raise InputError(msg)
    if jobs == 1 or splits == 1:
        return list(progress(map(measured, range(splits)), splits))
    with _one_thread_each(), ProcessPoolExecutor(jobs, get_context("spawn"), _remember, (measured,)) as pool:
        try:
            return list(progress(pool.map(_recalled, range(splits)), splits))
        except BrokenProcessPool as error:
            msg = "a process was ended from outside, perhaps for lack of memory: take fewer jobs"
            raise CalibrationError(msg) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_MEASURED: list[Callable[[int], Any]] = []


def _remember(measured: Callable[[int], Any]) -> None:
    """Sent once to each process, not with each split."""
    _MEASURED.append(measured)


def _recalled(number: int) -> Any:
    return _MEASURED[0](number)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started meanwhile do not fight for cores with threads of their linear algebra."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
