"""Late imports of what only an extra brings, with an error that names the extra."""

from __future__ import annotations

import importlib
from typing import Any

from langchain_cfc.errors import MissingExtraError


def require(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency.

    Args:
        module: Dotted name, such as `scipy.special`.
        extra: The extra that brings it, such as `calibrate`.
        purpose: What needs it, as the subject of a sentence.

    Returns:
        The module.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        msg = (
            f"{purpose} needs {module.partition('.')[0]}, which is not installed: pip install "
            f"'langchain-cfc[{extra}]'"
        )
        raise MissingExtraError(msg) from error
