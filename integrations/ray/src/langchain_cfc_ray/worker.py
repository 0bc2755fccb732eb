"""What each actor runs: the executor of every other collection, with clients of its own."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from langchain_cfc_collect import CallPolicy, Components, Executor
from langchain_core.runnables import RunnableConfig
from ray import cloudpickle

from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.execution import describe_error

Factory: TypeAlias = str | Callable[[], Components]


@dataclass(frozen=True)
class WorkerSettings:
    """Settings that every actor of a pipeline gets.

    Attributes:
        factory: Creates the components on the actor.
        call_policy: Limits and retries of the calls of one actor.
        config: LangChain config that all runs inherit.
    """

    factory: Factory
    call_policy: CallPolicy
    config: RunnableConfig | None

    def check_picklable(self) -> None:
        """Raise an `InputError` if the settings cannot be sent to other machines."""
        try:
            cloudpickle.dumps(self)
        except Exception as error:
            msg = (
                f"the factory or the config cannot be sent to other machines: {error}. Give the factory's "
                "import path, and create clients, locks and files in it"
            )
            raise InputError(msg) from error

    def create_executor(self) -> Executor:
        """Create the components in this process, and the executor that runs their stages."""
        return Executor(_create_components(self.factory), self.call_policy, self.config)


def _create_components(factory: Factory) -> Components:
    try:
        create = pkgutil.resolve_name(factory) if isinstance(factory, str) else factory
        components = create()
    except CFCError:
        raise
    except Exception as error:
        msg = f"the factory {factory} failed on a worker with {describe_error(error)}"
        raise InputError(msg) from error
    if not isinstance(components, Components):
        msg = f"the factory {factory} returned a {type(components).__name__}; expected collect.Components"
        raise InputError(msg)
    return components
