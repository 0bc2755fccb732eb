"""Pass call arguments, such as tools, to the models inside a chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable

from langchain_cfc.errors import InputError
from langchain_cfc.runnable.answering import PROMISES, OrElse
from langchain_cfc.runnable.cfc import CFCRunnable
from langchain_cfc.sampling.fingerprints import compute_fingerprint, is_identified

AnyRunnable: TypeAlias = Runnable[Any, Any]
Arguments: TypeAlias = Mapping[str, Any]


def configure_chain(chain: AnyRunnable, promise: Arguments, arguments: Arguments) -> AnyRunnable:
    """Return a copy of a chain that serves another promise, or with further arguments for its models.

    Args:
        chain: A `CFCRunnable`, alone or in bindings, retries, sequences and `or_else`.
        promise: Such as `{"alpha": ...}`, under one of the names in `PROMISES`; empty leaves it unchanged.
        arguments: Arguments of each call to the answering models; in a sequence, of the last reachable model.

    Returns:
        The copy; its generators are again compared with the calibrated ones.

    Raises:
        InputError: If nothing in the chain takes the arguments, or the artifact does not hold the promise.
        FingerprintError: If the arguments make the generator differ from the calibrated one.
    """
    served = _configure(chain, promise, arguments)
    if served is None:
        names = [*promise, *arguments]
        raise InputError(_describe_unreachable("chain", "CFCRunnable", chain, names))
    return served


def changes_generator(chain: AnyRunnable, arguments: Arguments) -> bool:
    """Return whether further arguments would change the fingerprint of a chain's generator.

    Args:
        chain: A `CFCRunnable`, alone or in bindings, retries, sequences, fallbacks and `or_else`.
        arguments: Arguments of each call to the answering model, such as `tools`; None unsets a bound one.

    Returns:
        False only if the generator is known to be called with equal arguments already.
    """
    served = find_cfc_runnable(chain)
    if served is None:
        return True
    try:
        changed = _configure(served.generator, {}, arguments)
        return changed is None or compute_fingerprint(changed) != compute_fingerprint(served.generator)
    except Exception:  # noqa: BLE001 - models refuse tools that they cannot read in ways of their own
        return True


def find_cfc_runnable(chain: Any) -> CFCRunnable | None:
    """Return the first `CFCRunnable` that a chain invokes; None if it cannot be found from outside."""
    if isinstance(chain, CFCRunnable):
        return chain
    inner = _list_inner(chain)
    return next((found for part in inner if (found := find_cfc_runnable(part)) is not None), None)


def find_answering_model(part: Any) -> BaseChatModel | None:
    """Return the chat model that answers in a chain, of a sequence the last; None if there is none."""
    if isinstance(part, BaseChatModel):
        return part
    inner = reversed(_list_inner(part))
    return next((found for one in inner if (found := find_answering_model(one)) is not None), None)


def _list_inner(part: Any) -> list[Any]:
    if isinstance(part, CFCRunnable):
        return [part.generator]
    if isinstance(part, OrElse):
        return [part.first]
    if isinstance(part, RunnableBindingBase):
        return [part.bound]
    if isinstance(part, RunnableWithFallbacks):
        return [part.runnable]
    return part.steps if isinstance(part, RunnableSequence) else []


def _configure(part: Any, promise: Arguments, arguments: Arguments) -> AnyRunnable | None:
    """Return a copy of a part whose answering model gets further arguments; None if nothing takes them."""
    for kind, configure in _CONFIGURE.items():
        if isinstance(part, kind):
            return configure(part, promise, arguments)
    return _bind_model(part, arguments)


def _configure_cfc_runnable(served: CFCRunnable, promise: Arguments, arguments: Arguments) -> AnyRunnable:
    changes: dict[str, Any] = {**dict.fromkeys(PROMISES), **promise} if promise else {}
    if arguments:
        changes["generator"] = _configure(served.generator, {}, arguments)
        if changes["generator"] is None:
            raise InputError(_describe_unreachable("generator", "chat model", served.generator, [*arguments]))
        if not _does_id_cover(served, changes["generator"]):
            changes["generator_id"] = None
    return served.model_copy(update=changes)


def _does_id_cover(served: CFCRunnable, changed: AnyRunnable) -> bool:
    """Return whether the user's id for a generator still vouches for it with further arguments.

    The id was given to the generator without the arguments. It also covers the changed generator if the
    fingerprints are equal, or if the records state every key that differs, so that these are compared.
    """
    before, after = compute_fingerprint(served.generator), compute_fingerprint(changed)
    if not is_identified(before) or not is_identified(after):
        return False
    provenance = served.artifact.provenance
    calibrated = (provenance.generator if provenance is not None else None) or {}
    different = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return different <= calibrated.keys()


def _configure_or_else(chain: OrElse, promise: Arguments, arguments: Arguments) -> AnyRunnable | None:
    first = _configure(chain.first, promise, arguments)
    if first is None:
        return None
    # The fallback gets the same tools, but not the promise, which belongs to the first chain's artifact.
    second = _configure(chain.fallback, {}, arguments) if arguments else None
    return chain.model_copy(update={"first": first, "fallback": chain.fallback if second is None else second})


def _configure_binding(
    binding: RunnableBindingBase[Any, Any], promise: Arguments, arguments: Arguments
) -> AnyRunnable | None:
    bound = _configure(binding.bound, promise, arguments)
    if bound is None:
        return None
    # Drop outer bound arguments of the same names: they would override those of the call.
    kwargs = {name: value for name, value in binding.kwargs.items() if name not in arguments}
    return binding.model_copy(update={"bound": bound, "kwargs": kwargs})


def _configure_sequence(
    sequence: RunnableSequence[Any, Any], promise: Arguments, arguments: Arguments
) -> AnyRunnable | None:
    """Configure the last step that takes the arguments: an earlier model only prepares, e.g. a query."""
    steps = sequence.steps
    for position in reversed(range(len(steps))):
        changed = _configure(steps[position], promise, arguments)
        if changed is not None:
            return RunnableSequence(*steps[:position], changed, *steps[position + 1 :], name=sequence.name)
    return None


def _bind_model(model: Any, arguments: Arguments) -> AnyRunnable | None:
    # Binding a model that is configured per call would bind its default configuration.
    if isinstance(model, DynamicRunnable) or not hasattr(model, "bind_tools"):
        return None
    bound: AnyRunnable = model.bind_tools(**arguments) if "tools" in arguments else model.bind(**arguments)
    return bound


_CONFIGURE: dict[Any, Callable[[Any, Arguments, Arguments], AnyRunnable | None]] = {
    CFCRunnable: _configure_cfc_runnable,
    OrElse: _configure_or_else,
    RunnableBindingBase: _configure_binding,
    RunnableSequence: _configure_sequence,
}


def _describe_unreachable(where: str, wanted: str, part: Any, names: list[str]) -> str:
    return (
        f"{where}: there is no {wanted} in this {type(part).__name__} that {', '.join(names)} could reach; "
        "bind them inside it"
    )
