"""Float arrays in strict JSON, to the bit."""

from __future__ import annotations

import base64
import hashlib
import math

import numpy as np
from pydantic import BaseModel, ConfigDict

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import InputError


class PackedArray(BaseModel):
    """An array of finite floats.

    Attributes:
        shape: Its shape.
        float64: Its numbers, little-endian IEEE 754 doubles in C order, in base64.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    shape: list[int]
    float64: str

    @classmethod
    def pack(cls, array: FloatArray) -> PackedArray:
        """Pack an array."""
        raw = np.ascontiguousarray(array, dtype="<f8").tobytes()
        return cls(shape=list(array.shape), float64=base64.b64encode(raw).decode("ascii"))

    def unpack(self) -> FloatArray:
        """The array again, bit by bit.

        Raises:
            InputError: If text and shape do not fit, or a number is not finite.
        """
        try:
            raw = base64.b64decode(self.float64, validate=True)
        except ValueError as error:  # `binascii.Error` is one; text beyond ASCII is refused by another
            msg = "a packed array is not base64"
            raise InputError(msg) from error
        if any(size < 0 for size in self.shape) or len(raw) != 8 * math.prod(self.shape):
            msg = f"a packed array of shape {self.shape} holds {len(raw)} bytes"
            raise InputError(msg)
        array = np.frombuffer(raw, dtype="<f8").reshape(self.shape).astype(np.float64)
        if not np.isfinite(array).all():
            msg = "a packed array holds a number that is not finite"
            raise InputError(msg)
        return array

    def __repr__(self) -> str:
        """Its shape: the numbers fill pages."""
        return f"PackedArray(shape={self.shape})"

    @property
    def name(self) -> str:
        """A name made from the content, under which equal arrays are stored once."""
        return hashlib.sha256(f"{self.shape}{self.float64}".encode()).hexdigest()[:16]
