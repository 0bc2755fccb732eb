"""What is known of a prompt beside the scores of its candidates: their answers, and its metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.candidates import Scalar
from langchain_cfc.errors import DescriptionError
from langchain_cfc.execution import Call, Steps, Target, add_tags
from langchain_cfc.sampling.candidates import DrawnCandidate


class Description:
    """Answer extractor and metadata function, called alike offline and online.

    Args:
        answer: Text to extracted answer; None where the text itself is the answer.
        metadata: Prompt to metadata; None where there is none.
    """

    def __init__(self, answer: Target | None, metadata: Target | None) -> None:
        self._extract = None if answer is None else Call("answer extractor", answer, DescriptionError)
        self._describe = None if metadata is None else Call("metadata function", metadata, DescriptionError)

    @property
    def extracts(self) -> bool:
        """Whether there is an extractor."""
        return self._extract is not None

    def answers(self, draws: Sequence[DrawnCandidate], config: RunnableConfig) -> Steps[list[str]]:
        """The answer of each candidate; equal texts are extracted once.

        Args:
            draws: n candidates.
            config: Config of child runs.

        Returns:
            n texts.

        Raises:
            DescriptionError: If the extractor fails, or returns anything but text.
        """
        texts = [one.text for one in draws]
        if self._extract is None:
            return texts
        distinct = list(dict.fromkeys(texts))
        found = yield from self._extract.all(distinct, add_tags(config, "cfc:answer"))
        answers = {
            text: _checked_answer(texts.index(text), one) for text, one in zip(distinct, found, strict=True)
        }
        return [answers[text] for text in texts]

    def metadata(self, prompt: Any, config: RunnableConfig) -> Steps[Mapping[str, Scalar]]:
        """What the metadata function says of a prompt.

        Args:
            prompt: What the generator is invoked with.
            config: Config of child runs.

        Returns:
            Texts, numbers and booleans by name; empty without a function.

        Raises:
            DescriptionError: If the function fails, or returns anything else.
        """
        if self._describe is None:
            return {}
        found = yield from self._describe.one(prompt, add_tags(config, "cfc:metadata"))
        return _checked_metadata(found)


def _checked_answer(slot: int, answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    msg = (
        f"the answer extractor returned a {type(answer).__name__} for candidate {slot}; expected text, an "
        "empty one where there is no answer"
    )
    raise DescriptionError(msg)


def _checked_metadata(metadata: Any) -> Mapping[str, Scalar]:
    if isinstance(metadata, Mapping) and all(
        isinstance(key, str) and (isinstance(value, str) or _is_finite(value))
        for key, value in metadata.items()
    ):
        return metadata
    msg = (
        f"the metadata function returned {metadata!r:.80}; expected a mapping to text, finite numbers or "
        "booleans"
    )
    raise DescriptionError(msg)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
