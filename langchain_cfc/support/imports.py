"""Late imports: lazy attributes of packages (PEP 562), and optional dependencies."""

from __future__ import annotations

import importlib

# Type checkers know this name; importing it from `typing` would take longer than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from langchain_cfc.errors import MissingExtraError


def make_lazy(
    package: dict[str, Any], names: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package, from its `globals()` and the names in each module."""
    homes = {name: module for module, listed in names.items() for name in listed}

    def load(name: str) -> Any:
        if name not in homes:
            msg = f"module {package['__name__']!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(importlib.import_module(f".{homes[name]}", package["__package__"]), name)
        package[name] = value
        return value

    return load, lambda: sorted({*package, *homes})


def require(module: str, extra: str, purpose: str) -> Any:
    """Return a module, imported; raise a MissingExtraError if it is not installed.

    An empty `extra` says that the module comes with none, but by itself.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _make_missing_extra_error({module: extra}, purpose) from error


def check_installed(extras: Mapping[str, str], purpose: str) -> None:
    """Raise a MissingExtraError that names the modules, given with their extras, that are not installed."""
    from importlib.util import find_spec

    missing = {module: extra for module, extra in extras.items() if find_spec(module) is None}
    if missing:
        raise _make_missing_extra_error(missing, purpose)


def _make_missing_extra_error(extras: Mapping[str, str], purpose: str) -> MissingExtraError:
    from langchain_cfc.errors import MissingExtraError
    from langchain_cfc.support.text import join_names

    modules = [module.partition(".")[0] for module in extras]
    verb = "is" if len(modules) == 1 else "are"
    named = ",".join(dict.fromkeys(filter(None, extras.values())))
    source = f"'langchain-cfc[{named}]'" if named else " ".join(modules)
    return MissingExtraError(
        f"{purpose} needs {join_names(modules)}, which {verb} not installed: pip install {source}"
    )
