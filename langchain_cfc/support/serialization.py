"""Write data as canonical JSON, compute digests, and leave out fields that have their default."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

_CANONICAL_ENCODER = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
)


def canonical_json(value: Any) -> str:
    """Return a value as JSON, equal for equal values; raise a TypeError or ValueError if it has none."""
    return _CANONICAL_ENCODER.encode(value)


def compute_sha256(content: str | bytes) -> str:
    """Return the SHA-256 of a text or bytes as `sha256:` and hexadecimal digits."""
    data = content.encode() if isinstance(content, str) else content
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class OmitsDefaults(BaseModel):
    """Base of models that are serialised without fields that have their default value.

    New fields can then be added to a format without changing the content and digest of existing data.
    """

    # The fields that may be left out; None for all fields with a default.
    _omitted: ClassVar[tuple[str, ...] | None] = None

    @model_serializer(mode="wrap")
    def _omit_defaults(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialised(self)
        for name, field in type(self).model_fields.items():
            may_omit = not field.is_required() if self._omitted is None else name in self._omitted
            if may_omit and getattr(self, name) == field.default:
                data.pop(name, None)
        return data
