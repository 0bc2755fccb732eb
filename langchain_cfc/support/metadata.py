"""`JsonMetadata`: the metadata of many prompts, stored compactly as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias, overload

import numpy as np

from langchain_cfc.support.arrays import IntArray

Scalar: TypeAlias = str | int | float | bool


@dataclass(frozen=True, eq=False)
class JsonMetadata(Sequence[Mapping[str, Scalar]]):
    """The metadata of N prompts as JSON, parsed on access; equal texts are stored once.

    Even a million prompts usually have few distinct mappings.

    Examples:
        >>> JsonMetadata.of(['{"topic": "art"}', "{}", '{"topic": "art"}'])[2]["topic"]
        'art'
    """

    texts: Sequence[str]  # Distinct JSON objects whose values are texts, finite numbers or booleans
    codes: IntArray  # (N,) index into `texts` for each prompt

    @classmethod
    def of(cls, texts: Iterable[str]) -> JsonMetadata:
        """Return the metadata for N JSON objects, known to hold only texts, finite numbers and booleans."""
        known: dict[str, int] = {}
        codes = [known.setdefault(text, len(known)) for text in texts]
        return cls(tuple(known), np.array(codes, dtype=np.int64))

    @classmethod
    def concatenate(cls, parts: Iterable[JsonMetadata]) -> JsonMetadata:
        """Return the concatenated metadata of several parts of a dataset."""
        known: dict[str, int] = {}
        codes: list[IntArray] = []
        for part in parts:
            own = [known.setdefault(text, len(known)) for text in part.texts]
            codes.append(np.array(own, dtype=np.int64)[part.codes])
        return cls(tuple(known), np.concatenate(codes))

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> Mapping[str, Scalar]: ...

    @overload
    def __getitem__(self, row: slice) -> JsonMetadata: ...

    def __getitem__(self, row: int | slice) -> Mapping[str, Scalar] | JsonMetadata:
        if isinstance(row, slice):
            return JsonMetadata(self.texts, self.codes[row])
        return _parse_json(self.texts[self.codes[row]])

    def __iter__(self) -> Iterator[Mapping[str, Scalar]]:
        return (_parse_json(self.texts[code]) for code in self.codes.tolist())

    def take(self, rows: IntArray) -> JsonMetadata:
        """Return the metadata of the prompts at (m,) row numbers."""
        return JsonMetadata(self.texts, self.codes[rows])


@lru_cache(maxsize=4096)
def _parse_json(text: str) -> Mapping[str, Scalar]:
    # The cache shares the result between callers, so it must be read-only.
    entries: dict[str, Scalar] = json.loads(text)
    return MappingProxyType(entries)
