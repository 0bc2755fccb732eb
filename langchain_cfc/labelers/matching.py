"""What labelers that compare texts share: each distinct text is read once, and held against the reference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.calls import Steps
from langchain_cfc.errors import LabelerError
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput, labelling
from langchain_cfc.verifiers.base import distinct_texts
from langchain_cfc.verifiers.parts import together

Reading: TypeAlias = Runnable[Any, Any] | Callable[[str], str] | Callable[[str], Awaitable[str]]


class Matching(BaseLabeler):
    """Compares each distinct text, or what an extractor makes of it, with the reference.

    Args:
        name: What it is called in traces and in its fingerprint.
        settings: Whatever changes its labels, each as one plain value.
        parts: By role, what the user gave it; None where it was left out. `answer` is the extractor.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        self.name = name
        answer = parts.get("answer")
        self._settings = {"answer": "whole text" if answer is None else "extracted", **settings}
        given = {role: part for role, part in parts.items() if part is not None}
        self.fingerprint = together(name, self._settings, given)
        self._extract = None if answer is None else labelling("answer extractor", answer)

    def __repr__(self) -> str:
        """What makes a candidate correct."""
        said = ", ".join(f"{name}: {value}" for name, value in self._settings.items())
        return f"{type(self).__name__}({said})"

    def _matched(
        self, given: LabelerInput, config: RunnableConfig, is_correct: Callable[[str], bool]
    ) -> Steps[list[bool]]:
        """One comparison per distinct text."""
        texts = distinct_texts(given["candidates"])
        answers = texts if self._extract is None else (yield from self._extract.all(texts, config))
        by_text = {text: is_correct(_checked(one)) for text, one in zip(texts, answers, strict=True)}
        return [by_text[candidate.text] for candidate in given["candidates"]]


def _checked(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    msg = f"an answer is a {type(answer).__name__}; expected text, an empty one where there is no answer"
    raise LabelerError(msg)


def aliases(reference: Any) -> list[Any]:
    """The values of a reference, any of which makes a candidate correct.

    Args:
        reference: One value, or a list of them.

    Returns:
        At least one value.

    Raises:
        LabelerError: If there is none.
    """
    listed = list(reference) if isinstance(reference, (list, tuple)) else [reference]
    if not listed or any(one is None for one in listed):
        msg = f"the reference is {reference!r:.80}, so nothing can be called correct: give the record one"
        raise LabelerError(msg)
    return listed


def text_aliases(reference: Any) -> list[str]:
    """The texts of a reference.

    Args:
        reference: A text, or a list of texts.

    Raises:
        LabelerError: If it is anything else.
    """
    listed = aliases(reference)
    for one in listed:
        if not isinstance(one, str):
            msg = f"the reference {reference!r:.80} holds a {type(one).__name__}; expected text or texts"
            raise LabelerError(msg)
    return listed
