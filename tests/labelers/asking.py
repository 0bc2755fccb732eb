"""What labelers are asked in tests, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from langchain_cfc.labelers import BaseLabeler, LabelerInput
from langchain_cfc.sampling import DrawnCandidate

Ask = Callable[[BaseLabeler, LabelerInput], list[bool]]


def given(reference: Any, *texts: str, prompt: Any = "Where do llamas live?") -> LabelerInput:
    return LabelerInput(
        prompt=prompt, reference=reference, candidates=[DrawnCandidate(text) for text in texts]
    )


def invoked(labeler: BaseLabeler, asked: LabelerInput) -> list[bool]:
    return labeler.invoke(asked)


def ainvoked(labeler: BaseLabeler, asked: LabelerInput) -> list[bool]:
    return asyncio.run(labeler.ainvoke(asked))


def is_correct(labeler: BaseLabeler, reference: Any, text: str) -> bool:
    [label] = labeler.invoke(given(reference, text))
    return label


both_ways = pytest.mark.parametrize("ask", [invoked, ainvoked])
