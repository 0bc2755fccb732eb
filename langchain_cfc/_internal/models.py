"""Data whose format gets new fields while what was written before keeps its content and digest."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer


class OmitsDefaults(BaseModel):
    """Base of data that is written without fields that have their default."""

    # The fields that are left out; None for all that have a default.
    _omitted: ClassVar[tuple[str, ...] | None] = None

    @model_serializer(mode="wrap")
    def _omit_defaults(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialised(self)
        for name, field in type(self).model_fields.items():
            may_omit = not field.is_required() if self._omitted is None else name in self._omitted
            if may_omit and getattr(self, name) == field.default:
                data.pop(name, None)
        return data
