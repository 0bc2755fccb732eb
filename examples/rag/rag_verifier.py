"""Groundedness: how well the retrieved passages support a candidate, and which of them does most."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from bm25s.stopwords import STOPWORDS_EN_PLUS  # type: ignore[import-untyped]
from langchain_core.documents import Document
from rag_retrieval import retriever

from langchain_cfc.sampling import DrawnCandidate


def supports(question: str, answer: str, passages: Sequence[Document]) -> list[float]:
    """How well each passage supports an answer.

    The product of two shares, in which rare words of the corpus weigh more. Of the answer's words that are
    not the question's, how much the passage holds; an answer that only repeats the question gets half of the
    share of all its words. And how much of the question the passage holds, of the most that any of them does.

    Args:
        question: The question.
        answer: A candidate.
        passages: The retrieved passages.

    Returns:
        One number in [0, 1] per passage, larger is better; 0 for an answer without words.
    """
    asked, said = _words(question), _words(answer)
    fresh = said - asked
    counted, weight = (fresh, 1.0) if fresh else (said, 0.5)
    read = [_words(_text(one)) for one in passages]
    most = max((_weight(asked & words) for words in read), default=0.0)
    if not counted or most == 0.0:
        return [0.0] * len(read)
    return [
        weight * _weight(counted & words) / _weight(counted) * _weight(asked & words) / most for words in read
    ]


class Groundedness:
    """The verifier: score = 1 - support of the best passage; in [0, 1], smaller is better.

    It retrieves once more what the chain has retrieved: a search takes a millisecond and finds the same.
    """

    fingerprint = {"id": "groundedness"}  # noqa: RUF012  # read, never changed

    def __call__(self, prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        """One score per candidate."""
        passages = retriever().invoke(prompt)
        return [1.0 - max(supports(prompt, one.text, passages), default=0.0) for one in candidates]


def _text(passage: Document) -> str:
    """Title and text."""
    return f"{passage.metadata['title']} {passage.page_content}"


def _words(text: str) -> set[str]:
    """Words and numbers in lower case, without stop words."""
    return set(re.findall(r"\w+", text.lower())) - set(STOPWORDS_EN_PLUS)


def _weight(words: set[str]) -> float:
    """How much some words say together: each the more, the fewer passages of the corpus hold it."""
    size, holding = _counts()
    return sum(math.log((size + 1) / (holding[word] + 0.5)) for word in sorted(words))


@cache
def _counts() -> tuple[int, Counter[str]]:
    """The number of passages, and how many of them hold each word."""
    documents = retriever().documents
    return len(documents), Counter(word for one in documents for word in _words(_text(one)))
