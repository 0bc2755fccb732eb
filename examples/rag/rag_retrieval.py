"""The corpus and its retriever: BM25 over short passages about the chemical elements."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import bm25s  # type: ignore[import-untyped]
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

FOLDER = Path(__file__).parent
PASSAGES = 3


class Bm25Retriever(BaseRetriever):
    """The passages that share the rarest words with a question, best first.

    Args:
        documents: The corpus.
        k: Number of passages for a question, at least 1.
    """

    documents: list[Document]
    k: int = PASSAGES

    _index: bm25s.BM25 = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Index the corpus, titles included."""
        super().model_post_init(context)
        texts = [f"{one.metadata['title']}. {one.page_content}" for one in self.documents]
        self._index = bm25s.BM25()
        self._index.index(_tokens(texts), show_progress=False)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del run_manager
        found, _ = self._index.retrieve(_tokens([query]), k=self.k, show_progress=False)
        return [self.documents[place] for place in found[0]]


def corpus() -> list[Document]:
    """The passages of `corpus.jsonl`, each with its title."""
    lines = (FOLDER / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    passages = [json.loads(line) for line in lines]
    return [Document(one["text"], metadata={"title": one["title"]}) for one in passages]


@cache
def retriever() -> Bm25Retriever:
    """The retriever over the corpus that ships; made once."""
    return Bm25Retriever(documents=corpus())


def _tokens(texts: list[str]) -> Any:
    """Words without English stop words, as the index wants them."""
    return bm25s.tokenize(texts, stopwords="en", show_progress=False)
