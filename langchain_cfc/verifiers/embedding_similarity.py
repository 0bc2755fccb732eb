"""Embedding similarity: score candidates by how close they are to a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError, ServingTimeoutError, VerifierError
from langchain_cfc.execution import Steps, Target, call_each, describe_error, unwrap_outcomes
from langchain_cfc.sampling.fingerprints import describe_embeddings
from langchain_cfc.sampling.models import make_optional_call
from langchain_cfc.support.text import quote
from langchain_cfc.verifiers.base import TextVerifier, combine_fingerprints
from langchain_cfc.verifiers.prompts import read_prompt

Vectors: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.float64]]

_HINT = (
    "pass context=, a function of the prompt that returns one text or Document or several, or let the "
    "prompt be a mapping with the key 'context'"
)


class EmbeddingSimilarity(TextVerifier):
    """Score = (1 - cosine) / 2, with the cosine between a candidate and the nearest passage of a context.

    The score lies in [0, 1], and smaller is better: 0 is the same direction, 0.5 a right angle, 1 the
    opposite one. Similarity shows what a text is about, not whether it is right: a denial lies close to what
    it denies. Calibration shows how much the score is worth.

    Args:
        embeddings: Any LangChain embeddings; called once for the distinct texts of a prompt's candidates and
            once for its passages, concurrently.
        context: Function or Runnable, plain or async, from a prompt to its context: a text, a `Document` or a
            sequence of either. By default, the value under `context` if the prompt is a mapping that has it,
            else the prompt's own text; a prompt that holds more than text, such as an image, is then refused
            with a `VerifierError`.

    Raises:
        InputError: If `embeddings` are not LangChain embeddings.
    """

    def __init__(self, embeddings: Embeddings, *, context: Target | None = None) -> None:
        if not isinstance(embeddings, Embeddings):
            msg = f"expected LangChain embeddings, got a {type(embeddings).__name__}"
            raise InputError(msg)
        self.name = "embedding-similarity"
        self.embeddings = embeddings
        self.fingerprint = combine_fingerprints(
            self.name,
            {"context": "of the prompt" if context is None else "own"},
            {"embeddings": _EmbeddingsFingerprint(embeddings), "context": context},
        )
        self._context = make_optional_call("context function", context, VerifierError)

    def __repr__(self) -> str:
        """Name the embedding model."""
        model = self.fingerprint.get("embeddings.model", type(self.embeddings).__name__)
        return f"EmbeddingSimilarity({model})"

    def score_texts(self, prompt: Any, config: RunnableConfig, texts: list[str]) -> Steps[list[float]]:
        """Score each text by the passage nearest to it."""
        passages = yield from self._find_passages(prompt, config)
        found = yield from self._embed([texts, passages])
        candidates, context = _make_unit_vectors(found[0], texts), _make_unit_vectors(found[1], passages)
        if candidates.shape[1] != context.shape[1]:
            msg = (
                f"embeddings of candidates have {candidates.shape[1]} dimensions and those of the context "
                f"{context.shape[1]}: they must have the same number"
            )
            raise VerifierError(msg)
        nearest = (candidates @ context.T).max(axis=1)
        # Round-off can lift the cosine of equal directions above 1.
        scores: list[float] = np.clip((1.0 - nearest) / 2.0, 0.0, 1.0).tolist()
        return scores

    def _find_passages(self, prompt: Any, config: RunnableConfig) -> Steps[list[str]]:
        """Return the distinct passages that candidates are compared with."""
        if self._context is not None:
            found = yield from self._context.invoke_one(prompt, config)
        elif isinstance(prompt, Mapping) and "context" in prompt:
            found = prompt["context"]
        else:
            content = read_prompt(prompt, _HINT, VerifierError)
            found = content.require_text("an embedding", _HINT, VerifierError)
        several = isinstance(found, Sequence) and not isinstance(found, str)
        passages = list(dict.fromkeys(_read_passage(one) for one in (found if several else [found])))
        if not passages:
            msg = "there is no context to compare candidates with: the list of passages is empty"
            raise VerifierError(msg)
        return passages

    def _embed(self, lists: Sequence[list[str]]) -> Steps[list[Any]]:
        try:
            return unwrap_outcomes(
                (yield call_each(self.embeddings.embed_documents, self.embeddings.aembed_documents, lists))
            )
        except ServingTimeoutError:
            raise
        except Exception as error:
            msg = f"the embeddings failed with {describe_error(error)}"
            raise VerifierError(msg) from error


class _EmbeddingsFingerprint:
    """A stand-in for embeddings that carries their fingerprint."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.fingerprint = describe_embeddings(embeddings)


def _read_passage(passage: Any) -> str:
    text = passage.page_content if isinstance(passage, Document) else passage
    if isinstance(text, str):
        return text
    msg = f"the context holds a {type(passage).__name__}; expected texts or Documents: {_HINT}"
    raise VerifierError(msg)


def _make_unit_vectors(found: Any, texts: Sequence[str]) -> Vectors:
    """Return unit vectors; raise a `VerifierError` unless each text has a finite, non-zero vector."""
    try:
        vectors = np.array(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"the embeddings returned something other than vectors of equal length: {error}"
        raise VerifierError(msg) from error
    if vectors.ndim != 2 or len(vectors) != len(texts) or vectors.shape[1] == 0:  # noqa: PLR2004 - rows and columns
        msg = f"the embeddings returned an array of shape {vectors.shape} for {len(texts)} texts"
        raise VerifierError(msg)
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    # Written so that NaN fails it as well.
    bad = ~((largest > 0.0) & (largest < np.inf)).ravel()
    if bad.any():
        row = int(np.argmax(bad))
        msg = (
            f"the embedding of {quote(repr(texts[row]))} is zero or not finite, so it has no direction: does "
            "the model accept such a text?"
        )
        raise VerifierError(msg)
    # Divide by the largest entry first: squares of very large or small numbers overflow or underflow.
    vectors /= largest
    scaled: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled
