"""What verifiers made of several parts share: one fingerprint for all parts, and plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_cfc.fingerprints import fingerprint, is_identified


def together(method: str, settings: Mapping[str, Any], parts: Mapping[str, object]) -> dict[str, Any]:
    """What a verifier says of itself, its settings and its parts.

    Args:
        method: What the verifier is called.
        settings: Whatever changes its scores, each as one plain value.
        parts: By role, what the user gave it.

    Returns:
        The fingerprint. The method is its `id` only if every part says who it is, since an id vouches for all
        of them.
    """
    said = {role: fingerprint(part) for role, part in parts.items()}
    known = all(is_identified(one) for one in said.values())
    flat = {f"{role}.{key}": value for role, one in said.items() for key, value in one.items()}
    return {"id" if known else "method": method, **settings, **flat}


def plain(value: Any) -> Any:
    """A number or boolean of NumPy, Torch and the like as Python's own; anything else as it is."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):
        # More than one number, or none.
        return value
