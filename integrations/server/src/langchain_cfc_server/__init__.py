"""Serve guarded models through OpenAI's API: `create_app` makes the application, `run` serves it.

Importing this package loads nothing; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_cfc_server.app import create_app
    from langchain_cfc_server.server import run
    from langchain_cfc_server.settings import Settings

__all__ = ["Settings", "create_app", "run"]

_HOMES = {"Settings": "settings", "create_app": "app", "run": "server"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
