"""Pass the arguments of a call, such as tools, to the models inside a chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable

from langchain_cfc.errors import InputError
from langchain_cfc.runnable.cfc import CFCRunnable
from langchain_cfc.runnable.policies import OrElse
from langchain_cfc.sampling.fingerprints import compute_fingerprint, is_identified
from langchain_cfc.thresholds import Level

AnyRunnable: TypeAlias = Runnable[Any, Any]
Arguments: TypeAlias = Mapping[str, Any]


def configure_chain(chain: AnyRunnable, alpha: Level | None, arguments: Arguments) -> AnyRunnable:
    """Return a copy of a chain at another level, or whose models get further arguments.

    Args:
        chain: A `CFCRunnable`, alone or in bindings, retries, sequences, fallbacks and `or_else`.
        alpha: Error level; None leaves it as it is.
        arguments: For each call of the models that answer: in a sequence the last that can be reached.

    Returns:
        The copy; generators are compared with what was calibrated once more.

    Raises:
        InputError: If nothing in the chain takes them, or the level is not the artifact's.
        FingerprintError: If they make the generator another than the calibrated one.
    """
    served = _configure(chain, alpha, arguments)
    if served is None:
        names = [*(["alpha"] if alpha is not None else []), *arguments]
        raise InputError(_unreachable("chain", "CFCRunnable", chain, names))
    return served


def changes_generator(chain: AnyRunnable, arguments: Arguments) -> bool:
    """Return whether further arguments would make the generator of a chain another one.

    Args:
        chain: A `CFCRunnable`, alone or in bindings, retries, sequences, fallbacks and `or_else`.
        arguments: For each call of the model that answers, such as `tools`; None unsets what is bound.

    Returns:
        False only if the generator is known to be called with equal arguments already.
    """
    served = find_cfc_runnable(chain)
    if served is None:
        return True
    try:
        changed = _configure(served.generator, None, arguments)
        return changed is None or compute_fingerprint(changed) != compute_fingerprint(served.generator)
    except Exception:  # noqa: BLE001 - models refuse tools that they cannot read in ways of their own
        return True


def find_cfc_runnable(chain: Any) -> CFCRunnable | None:
    """Return the `CFCRunnable` of a chain that is asked first; None where none can be seen."""
    if isinstance(chain, CFCRunnable):
        return chain
    inner: list[Any] = []
    if isinstance(chain, OrElse):
        inner = [chain.first]
    elif isinstance(chain, RunnableBindingBase):
        inner = [chain.bound]
    elif isinstance(chain, RunnableWithFallbacks):
        inner = [chain.runnable]
    elif isinstance(chain, RunnableSequence):
        inner = chain.steps
    return next((found for part in inner if (found := find_cfc_runnable(part)) is not None), None)


def _configure(part: Any, alpha: Level | None, arguments: Arguments) -> AnyRunnable | None:
    """The same part, what answers in it called with further arguments; None where nothing takes them."""
    for kind, configure in _CONFIGURE.items():
        if isinstance(part, kind):
            return configure(part, alpha, arguments)
    return _bind_model(part, arguments)


def _configure_cfc_runnable(served: CFCRunnable, alpha: Level | None, arguments: Arguments) -> AnyRunnable:
    changes: dict[str, Any] = {} if alpha is None else {"alpha": alpha}
    if arguments:
        changes["generator"] = _configure(served.generator, None, arguments)
        if changes["generator"] is None:
            raise InputError(_unreachable("generator", "chat model", served.generator, [*arguments]))
        if not _does_id_cover(served, changes["generator"]):
            changes["generator_id"] = None
    return served.model_copy(update=changes)


def _does_id_cover(served: CFCRunnable, changed: AnyRunnable) -> bool:
    """Whether the id given to a generator still vouches for it when it is called with further arguments.

    The id was given to the generator without them. It covers the changed one if the fingerprints are equal,
    or if the records state whatever differs, so that it is compared.
    """
    before, after = compute_fingerprint(served.generator), compute_fingerprint(changed)
    if not is_identified(before) or not is_identified(after):
        return False
    provenance = served.artifact.provenance
    calibrated = (provenance.generator if provenance is not None else None) or {}
    different = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return different <= calibrated.keys()


def _configure_or_else(chain: OrElse, alpha: Level | None, arguments: Arguments) -> AnyRunnable | None:
    first = _configure(chain.first, alpha, arguments)
    if first is None:
        return None
    # A level belongs to the artifact that holds it, but the fallback gets the same tools, if any.
    second = _configure(chain.fallback, None, arguments) if arguments else None
    return chain.model_copy(update={"first": first, "fallback": chain.fallback if second is None else second})


def _configure_binding(
    binding: RunnableBindingBase[Any, Any], alpha: Level | None, arguments: Arguments
) -> AnyRunnable | None:
    bound = _configure(binding.bound, alpha, arguments)
    if bound is None:
        return None
    # What is bound outside would overrule the call.
    kwargs = {name: value for name, value in binding.kwargs.items() if name not in arguments}
    return binding.model_copy(update={"bound": bound, "kwargs": kwargs})


def _configure_fallbacks(
    chain: RunnableWithFallbacks[Any, Any], alpha: Level | None, arguments: Arguments
) -> AnyRunnable | None:
    every = [_configure(one, alpha, arguments) for one in chain.runnables]
    if None in every:
        return None
    return chain.model_copy(update={"runnable": every[0], "fallbacks": every[1:]})


def _configure_sequence(
    sequence: RunnableSequence[Any, Any], alpha: Level | None, arguments: Arguments
) -> AnyRunnable | None:
    """The last step that takes them is the one that answers; a model before it writes a query."""
    steps = sequence.steps
    for position in reversed(range(len(steps))):
        changed = _configure(steps[position], alpha, arguments)
        if changed is not None:
            return RunnableSequence(*steps[:position], changed, *steps[position + 1 :], name=sequence.name)
    return None


def _bind_model(model: Any, arguments: Arguments) -> AnyRunnable | None:
    # A model that is configured per call would be bound as it is by default.
    if isinstance(model, DynamicRunnable) or not hasattr(model, "bind_tools"):
        return None
    bound: AnyRunnable = model.bind_tools(**arguments) if "tools" in arguments else model.bind(**arguments)
    return bound


_CONFIGURE: dict[Any, Callable[[Any, Level | None, Arguments], AnyRunnable | None]] = {
    CFCRunnable: _configure_cfc_runnable,
    OrElse: _configure_or_else,
    RunnableBindingBase: _configure_binding,
    RunnableWithFallbacks: _configure_fallbacks,
    RunnableSequence: _configure_sequence,
}


def _unreachable(where: str, wanted: str, part: Any, names: list[str]) -> str:
    return (
        f"{where}: there is no {wanted} in this {type(part).__name__} that {', '.join(names)} could reach; "
        "bind them inside it"
    )
