"""What `RayExecutor` refuses, and with which errors."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langchain_cfc_collect.collecting import CallPolicy
from langchain_cfc_collect.executor import Components
from langchain_cfc_ray import RayExecutor, acollect_on_ray, collect_on_ray

from integrations.ray.tests.working import N, make_noting_parts
from langchain_cfc.errors import CollectionError, InputError, StoreError
from langchain_cfc.records import Example
from tests.concurrency import wait_until_async

PACE = CallPolicy(concurrency=4)
NOWHERE = Path("nowhere")


def open_executor(factory: Any, **settings: Any) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with RayExecutor(factory, PACE, **{"actors": 2, **settings}) as executor:
            # Both have to be there before anything can differ.
            await wait_until_async(lambda: executor._start_error is not None or len(executor._ready) == 2)
            await executor._await_actor()
            return dict(executor.configuration)

    return asyncio.run(run())


def make_different_parts() -> Components:
    made = make_noting_parts(NOWHERE)
    return Components(made.generator, made.verifier, made.labeler, N, generator_id=str(os.getpid()))


def fail_to_make_parts() -> Components:
    text = "no key"
    raise KeyError(text)


@pytest.mark.parametrize("actors", [0, 5, 1.5])
def test_ray_executor_refuses_invalid_numbers_of_actors(actors: Any) -> None:
    with pytest.raises(InputError, match="expected a whole number from 1 to the concurrency of 4"):
        RayExecutor("integrations.ray.tests.working:make_noting_parts", PACE, actors=actors)


def test_ray_executor_refuses_factories_that_cannot_be_pickled() -> None:
    lock = threading.Lock()

    def factory() -> Components:
        with lock:
            return make_noting_parts(NOWHERE)

    with pytest.raises(InputError, match="cannot be sent to other machines"):
        RayExecutor(factory, PACE, actors=1)


def test_configuration_requires_a_started_actor() -> None:
    with pytest.raises(InputError, match="no actor has started yet"):
        _ = RayExecutor("integrations.ray.tests.working:make_noting_parts", PACE, actors=1).configuration


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("factory", "error", "said"),
    [
        (
            "nowhere:parts",
            InputError,
            "the factory nowhere:parts failed on a worker with ModuleNotFoundError",
        ),
        (fail_to_make_parts, InputError, "failed on a worker with KeyError: 'no key'"),
        (dict, InputError, "returned a dict; expected"),
        (make_different_parts, InputError, "two actors created different components .generator: {'id'"),
    ],
)
def test_ray_executor_reports_failing_factories(factory: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        open_executor(factory)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_ray_executor_takes_a_factory_by_import_path() -> None:
    assert open_executor("tests.test_executor:make_parts")["n"] == N


def make_parts() -> Components:
    return make_noting_parts(NOWHERE)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_ray_executor_gives_up_waiting_for_actors() -> None:
    with pytest.raises(CollectionError, match="no actor became ready in 2 seconds"):
        open_executor(make_parts, each={"resources": {"nowhere": 1}}, patience=2)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_ray_executor_reports_modules_missing_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", here)
    exec("def parts(): ...", vars(here))  # noqa: S102 - a module of one line
    with pytest.raises(
        CollectionError, match=r"(?s)an actor could not be started.*No module named 'only_here'"
    ):
        open_executor(here.parts)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_collect_on_ray_refuses_another_configuration(tmp_path: Path) -> None:
    factory = partial(make_noting_parts, tmp_path / "log")
    where = str(tmp_path / "store.db")
    one = [Example(id="a", input="question 1", reference="answer 1")]
    assert collect_on_ray(one, factory, where, actors=1).complete
    with pytest.raises(StoreError, match="was made with another configuration: generator"):
        asyncio.run(acollect_on_ray(one, make_different_parts, where, actors=1))
