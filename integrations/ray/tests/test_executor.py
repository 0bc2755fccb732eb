"""What `RayExecutor` refuses, and how it says so."""

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
from langchain_cfc_ray import RayExecutor, acollect_on_ray, collect_on_ray

from integrations.ray.tests.working import N, noting
from langchain_cfc.collect.collecting import CallPolicy
from langchain_cfc.collect.executor import Components
from langchain_cfc.errors import CollectionError, InputError, StoreError
from langchain_cfc.records import Example
from tests.concurrency import wait_until_async

PACE = CallPolicy(concurrency=4)
NOWHERE = Path("nowhere")


def opened(factory: Any, **settings: Any) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with RayExecutor(factory, PACE, **{"actors": 2, **settings}) as executor:
            # Both have to be there before anything can differ.
            await wait_until_async(lambda: executor._refusal is not None or len(executor._ready) == 2)
            await executor._least_busy()
            return dict(executor.configuration)

    return asyncio.run(run())


def different() -> Components:
    made = noting(NOWHERE)
    return Components(made.generator, made.verifier, made.labeler, N, generator_id=str(os.getpid()))


def failing() -> Components:
    text = "no key"
    raise KeyError(text)


@pytest.mark.parametrize("actors", [0, 5, 1.5])
def test_a_number_of_actors_that_cannot_share_the_places_is_refused(actors: Any) -> None:
    with pytest.raises(InputError, match="expected a whole number from 1 to the concurrency of 4"):
        RayExecutor("integrations.ray.tests.working:noting", PACE, actors=actors)


def test_a_factory_that_cannot_travel_is_refused_before_anything_is_started() -> None:
    lock = threading.Lock()

    def factory() -> Components:
        with lock:
            return noting(NOWHERE)

    with pytest.raises(InputError, match="cannot be sent to other machines"):
        RayExecutor(factory, PACE, actors=1)


def test_nothing_is_known_of_the_parts_before_an_actor_has_made_them() -> None:
    with pytest.raises(InputError, match="no actor has started yet"):
        _ = RayExecutor("integrations.ray.tests.working:noting", PACE, actors=1).configuration


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
        (failing, InputError, "failed on a worker with KeyError: 'no key'"),
        (dict, InputError, "returned a dict; expected"),
        (different, InputError, "two actors created different components .generator: {'id'"),
    ],
)
def test_a_factory_that_cannot_be_used_is_told(factory: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        opened(factory)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_factory_by_its_import_path_is_called_on_each_actor() -> None:
    assert opened("tests.test_executor:told")["n"] == N


def told() -> Components:
    return noting(NOWHERE)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_actors_for_which_there_is_no_room_are_not_waited_for_for_ever() -> None:
    with pytest.raises(CollectionError, match="no actor became ready in 2 seconds"):
        opened(told, each={"resources": {"nowhere": 1}}, patience=2)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_code_that_workers_do_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", here)
    exec("def parts(): ...", vars(here))  # noqa: S102 - a module of one line
    with pytest.raises(
        CollectionError, match=r"(?s)an actor could not be started.*No module named 'only_here'"
    ):
        opened(here.parts)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_another_configuration_is_refused_as_it_is_in_one_process(tmp_path: Path) -> None:
    factory = partial(noting, tmp_path / "log")
    where = str(tmp_path / "store.db")
    one = [Example(id="a", input="question 1", reference="answer 1")]
    assert collect_on_ray(one, factory, where, actors=1).complete
    with pytest.raises(StoreError, match="was made with another configuration: generator"):
        asyncio.run(acollect_on_ray(one, different, where, actors=1))
