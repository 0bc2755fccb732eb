"""Lazy loading of the names of a package (PEP 562)."""

from __future__ import annotations

# Type checkers know this name; importing it would take longer than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def make_lazy(
    package: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build `__getattr__` and `__dir__` of a package from its `globals()` and the module of each name."""

    def load(name: str) -> Any:
        if name not in homes:
            msg = f"module {package['__name__']!r} has no attribute {name!r}"
            raise AttributeError(msg)
        import importlib

        value = getattr(importlib.import_module(f".{homes[name]}", package["__package__"]), name)
        package[name] = value
        return value

    def names() -> list[str]:
        return sorted({*package, *homes})

    return load, names
