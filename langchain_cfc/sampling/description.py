"""The answers and the metadata of a prompt, found alike offline and online."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.candidates import Scalar
from langchain_cfc.errors import DescriptionError
from langchain_cfc.execution import Call, Steps, Target, add_tags, map_distinct
from langchain_cfc.sampling.candidates import DrawnCandidate


class Description:
    """Calls the answer extractor and the metadata function, offline and online alike.

    Args:
        answer: Text to extracted answer; None where the text itself is the answer.
        metadata: Prompt to metadata; None where there is none.
    """

    def __init__(self, answer: Target | None, metadata: Target | None) -> None:
        self._extract = None if answer is None else Call("answer extractor", answer, DescriptionError)
        self._describe = None if metadata is None else Call("metadata function", metadata, DescriptionError)

    @property
    def has_extractor(self) -> bool:
        """Whether there is an answer extractor."""
        return self._extract is not None

    def extract_answers(self, draws: Sequence[DrawnCandidate], config: RunnableConfig) -> Steps[list[str]]:
        """Return the answer of each candidate; equal texts are extracted once.

        Raises:
            DescriptionError: If the extractor fails, or returns anything but text.
        """
        texts = [one.text for one in draws]
        extract = self._extract
        if extract is None:
            return texts

        def extract_from(distinct: list[str]) -> Steps[list[str]]:
            answers = yield from extract.invoke_cheaply(distinct, add_tags(config, "cfc:answer"))
            return [
                _check_answer(texts.index(text), answer)
                for text, answer in zip(distinct, answers, strict=True)
            ]

        return (yield from map_distinct(texts, extract_from))

    def describe_prompt(self, prompt: Any, config: RunnableConfig) -> Steps[Mapping[str, Scalar]]:
        """Return texts, numbers and booleans of a prompt by name; none without a metadata function.

        Raises:
            DescriptionError: If the function fails, or returns anything else.
        """
        if self._describe is None:
            return {}
        metadata = yield from self._describe.invoke_one(prompt, add_tags(config, "cfc:metadata"))
        if isinstance(metadata, Mapping) and all(
            isinstance(key, str) and _is_scalar(value) for key, value in metadata.items()
        ):
            return metadata
        msg = (
            f"the metadata function returned {metadata!r:.80}; expected a mapping to text, finite numbers or "
            "booleans"
        )
        raise DescriptionError(msg)


def _check_answer(slot: int, answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    msg = (
        f"the answer extractor returned a {type(answer).__name__} for candidate {slot}; expected text, an "
        "empty one where there is no answer"
    )
    raise DescriptionError(msg)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
