"""Late imports of optional dependencies, with an error that names the command that installs them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from langchain_cfc.errors import MissingExtraError


def require(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an extra for a purpose; a MissingExtraError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing({module: extra}, purpose) from error


def check_installed(extras: Mapping[str, str], purpose: str) -> None:
    """Check that modules, each with its extra, are installed; a MissingExtraError names those missing."""
    missing = {module: extra for module, extra in extras.items() if find_spec(module) is None}
    if missing:
        raise _missing(missing, purpose)


def _missing(extras: Mapping[str, str], purpose: str) -> MissingExtraError:
    modules = [module.partition(".")[0] for module in extras]
    listed = " and ".join(filter(None, [", ".join(modules[:-1]), modules[-1]]))
    verb = "is" if len(modules) == 1 else "are"
    named = ",".join(dict.fromkeys(extras.values()))
    return MissingExtraError(
        f"{purpose} needs {listed}, which {verb} not installed: pip install 'langchain-cfc[{named}]'"
    )
