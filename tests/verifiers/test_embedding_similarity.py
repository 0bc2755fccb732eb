"""`EmbeddingSimilarity`: half of one minus the cosine to the nearest passage of a context."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.runnables import RunnableLambda
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from langchain_cfc.errors import FingerprintError, InputError, VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.support.serialization import compute_sha256
from langchain_cfc.verifiers.embedding_similarity import EmbeddingSimilarity
from tests.calls import Invoke, copies_of, invoke_async, invoke_sync
from tests.concurrency import ConcurrencyCounter
from tests.factories import verifier_input
from tests.serving.openai_server import Script, serving

# Directions in the plane, by their angle to "east" in degrees.
ANGLES = {"east": 0.0, "north-east": 45.0, "north": 90.0, "west": 180.0, "east by hair": 1e-9}


class Compass(Embeddings):
    """Embeds points of the compass, each with a length of its own; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.aasked: list[list[str]] = []
        self.under_way = ConcurrencyCounter()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        return [self._vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        raise AssertionError(text)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self.aasked.append(texts)
        with self.under_way.counted():
            await asyncio.sleep(0.01)
        return [self._vector(text) for text in texts]

    @staticmethod
    def _vector(text: str) -> list[float]:
        angle, length = math.radians(ANGLES[text]), float(len(text))
        return [length * math.cos(angle), length * math.sin(angle)]


class Vectors(Embeddings):
    """Returns what it is told to, whatever the texts."""

    def __init__(self, texts: Any, passages: Any = ((1.0, 0.0),)) -> None:
        self.found = {"one": texts, "context": passages}

    def embed_documents(self, texts: list[str]) -> Any:
        return self.found["context" if texts == ["context"] else "one"]

    def embed_query(self, text: str) -> list[float]:
        raise AssertionError(text)


class FailingEmbeddings(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        msg = f"no vectors for {texts}"
        raise ConnectionError(msg)

    def embed_query(self, text: str) -> list[float]:
        raise AssertionError(text)


def test_embedding_similarity_equals_values_computed_by_hand(invoke: Invoke) -> None:
    found = invoke(
        EmbeddingSimilarity(Compass()), verifier_input("east", "east", "north-east", "north", "west")
    )
    assert found == pytest.approx([0.0, (1 - math.sqrt(0.5)) / 2, 0.5, 1.0], abs=1e-15)


@pytest.mark.parametrize(
    "context",
    [
        lambda _: ["west", Document("north")],
        lambda _: (Document("north"), Document("west"), Document("north")),
        RunnableLambda(lambda prompt: [Document("north"), prompt["other"]]),
    ],
)
def test_embedding_similarity_uses_the_nearest_passage(invoke: Invoke, context: Any) -> None:
    asked = verifier_input({"other": "west"}, "east", "north", "west", "north-east")
    expected = [0.5, 0.0, 0.0, (1 - math.sqrt(0.5)) / 2]
    assert invoke(EmbeddingSimilarity(Compass(), context=context), asked) == pytest.approx(
        expected, abs=1e-15
    )


@pytest.mark.parametrize(
    "prompt",
    [
        "north",
        HumanMessage("north"),
        [HumanMessage("north")],
        [("human", "north")],
        StringPromptValue(text="north"),
        ChatPromptValue(messages=[HumanMessage("north")]),
        {"context": "north", "question": "east"},
        {"context": ["north"]},
        {"context": Document("north")},
    ],
)
def test_embedding_context_defaults_to_the_prompt(invoke: Invoke, prompt: Any) -> None:
    assert invoke(EmbeddingSimilarity(Compass()), verifier_input(prompt, "north")) == [0.0]


def test_embedding_context_of_messages_is_a_transcript(invoke: Invoke) -> None:
    class Hearing(Compass):
        @staticmethod
        def _vector(text: str) -> list[float]:
            heard.append(text)
            return [1.0]

    heard: list[str] = []
    invoke(
        EmbeddingSimilarity(Hearing()),
        verifier_input([SystemMessage("Be brief."), HumanMessage("Where?")], "lima"),
    )
    assert sorted(heard) == ["System: Be brief.\nHuman: Where?", "lima"]


@pytest.mark.parametrize("asked_by", ["invoke", "ainvoke"])
def test_embeddings_are_called_once_for_texts_and_once_for_passages(asked_by: str) -> None:
    compass = Compass()
    verifier = EmbeddingSimilarity(compass, context=lambda _: ["west", "east", "west"])
    asked = verifier_input("?", "north", "east", "north")
    found = invoke_sync(verifier, asked) if asked_by == "invoke" else invoke_async(verifier, asked)
    assert found == pytest.approx([0.5, 0.0, 0.5], abs=1e-15)
    mine, others = (compass.asked, compass.aasked)[:: 1 if asked_by == "invoke" else -1]
    assert sorted(mine) == [["north", "east"], ["west", "east"]]
    assert others == []


@pytest.mark.parametrize(("places", "most"), [(1, 1), (2, 2)])
def test_embedding_calls_keep_the_concurrency_limit(places: int, most: int) -> None:
    compass = Compass()
    with apply_limits(CallLimits(ConcurrencyLimiter(places))):
        invoke_async(EmbeddingSimilarity(compass), verifier_input("east", "north"))
    assert compass.under_way.most == most


def test_sync_embedding_calls_run_concurrently() -> None:
    both = threading.Barrier(2, timeout=30.0)

    class Waiting(Compass):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            both.wait()
            return super().embed_documents(texts)

    with apply_limits(CallLimits(ConcurrencyLimiter(2))):
        assert invoke_sync(EmbeddingSimilarity(Waiting()), verifier_input("east", "east")) == [0.0]


async def find_north(prompt: Any) -> str:
    await asyncio.sleep(0)
    return "north" if prompt == "?" else "west"


def test_async_context_function_works_only_under_ainvoke() -> None:
    verifier = EmbeddingSimilarity(Compass(), context=find_north)
    assert invoke_async(verifier, verifier_input("?", "north")) == [0.0]
    with pytest.raises(VerifierError, match="context function is async: use ainvoke"):
        invoke_sync(verifier, verifier_input("?", "north"))


@given(
    st.lists(st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3).filter(any), min_size=1, max_size=5),
    st.floats(1e-300, 1e300),
)
def test_embedding_scores_lie_in_the_unit_interval(vectors: list[list[float]], length: float) -> None:
    texts = [f"text {row}" for row in range(len(vectors))]
    near = EmbeddingSimilarity(Vectors(vectors, passages=[[0.6, 0.0, -0.8]]))
    scores = invoke_sync(near, verifier_input("context", *texts))
    assert all(0.0 <= score <= 1.0 for score in scores)
    # Lengths play no role, even where squares overflow or vanish.
    far = EmbeddingSimilarity(Vectors(vectors, passages=[[0.6 * length, 0.0, -0.8 * length]]))
    assert invoke_sync(far, verifier_input("context", *texts)) == pytest.approx(scores, abs=1e-12)


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (FailingEmbeddings(), "the embeddings failed with ConnectionError: no vectors for"),
        (Vectors([[0.0, 0.0]]), "the embedding of 'one' is zero or not finite"),
        (Vectors([[math.nan, 1.0]]), "the embedding of 'one' is zero or not finite"),
        (Vectors([[math.inf, 1.0]]), "the embedding of 'one' is zero or not finite"),
        (Vectors([[1.0, 0.0]], passages=[[0.0, -0.0]]), "the embedding of 'context' is zero or not finite"),
        (Vectors([[1.0, 0.0], [1.0, 0.0]]), r"shape \(2, 2\) for 1 texts"),
        (Vectors([]), r"shape \(0,\) for 1 texts"),
        (Vectors([[]]), r"shape \(1, 0\) for 1 texts"),
        (Vectors([1.0]), r"shape \(1,\) for 1 texts"),
        (Vectors([[1.0, 0.0], [1.0]]), "other than vectors of equal length"),
        (Vectors([["far", "near"]]), "other than vectors of equal length"),
        (Vectors(None), r"shape \(\) for 1 texts"),
        (Vectors([[1.0, 0.0, 0.0]]), "candidates have 3 dimensions and those of the context 2"),
    ],
)
def test_embedding_similarity_refuses_invalid_vectors(
    invoke: Invoke, embeddings: Embeddings, message: str
) -> None:
    with pytest.raises(VerifierError, match=message):
        invoke(EmbeddingSimilarity(embeddings), verifier_input("context", "one"))


@pytest.mark.parametrize(
    ("prompt", "context", "message"),
    [
        (
            {"question": "?"},
            None,
            "the prompt is a mapping, but an embedding reads text only: pass",
        ),
        (7, None, "the prompt is a int, which cannot be read as text or messages: pass context="),
        ([object()], None, "the prompt is a list that does not hold messages"),
        ([], None, "the prompt is a list, which cannot be read as text or messages"),
        ({"context": None}, None, "the context holds a NoneType; expected texts or Documents"),
        ("?", lambda _: [], "the list of passages is empty"),
        ("?", lambda _: ["east", 7], "the context holds a int"),
        ("?", lambda prompt: prompt["context"], "context function failed with TypeError"),
    ],
)
def test_embedding_similarity_refuses_invalid_contexts(
    invoke: Invoke, prompt: Any, context: Any, message: str
) -> None:
    with pytest.raises(VerifierError, match=message):
        invoke(EmbeddingSimilarity(Compass(), context=context), verifier_input(prompt, "east"))


def test_embedding_similarity_refuses_anything_but_embeddings() -> None:
    with pytest.raises(InputError, match="expected LangChain embeddings, got a function"):
        EmbeddingSimilarity(invoke_sync)  # type: ignore[arg-type]


@pytest.fixture
def base_url() -> Iterator[str]:
    with serving(Script({})) as url:
        yield url


def test_embedding_similarity_with_a_client_over_http(invoke: Invoke, base_url: str) -> None:
    embeddings = OpenAIEmbeddings(
        model="recorded",
        base_url=base_url,
        api_key=SecretStr("none"),
        check_embedding_ctx_length=False,
        max_retries=0,
    )
    verifier = EmbeddingSimilarity(embeddings)
    asked = verifier_input(
        "the capital of peru", "lima the capital of peru", "xylophone", "The Capital Of Peru"
    )
    near, far, same = invoke(verifier, asked)
    assert same == pytest.approx(0.0, abs=1e-6)  # vectors come in single precision
    assert same < near < far
    assert verifier.fingerprint == {
        "id": "embedding-similarity",
        "context": "of the prompt",
        "embeddings.class": "langchain_openai.OpenAIEmbeddings",
        "embeddings.model": "recorded",
        "embeddings.address": compute_sha256(f'["{base_url}?[]"]'),
        "embeddings.settings": {"check_embedding_ctx_length": False},
    }
    assert repr(verifier) == "EmbeddingSimilarity(recorded)"


def test_embedding_fingerprint_names_model_and_settings() -> None:
    large = OpenAIEmbeddings(model="text-embedding-3-large", dimensions=256, api_key=SecretStr("none"))
    said = compute_fingerprint(EmbeddingSimilarity(large))
    assert (said["embeddings.model"], said["embeddings.dimensions"]) == ("text-embedding-3-large", 256)
    # What changes the vectors is compared, and what only delivers them is not.
    for changed in ({"dimensions": None}, {"dimensions": 8}, {"model_kwargs": {"encoding_format": "base64"}}):
        other = large.model_copy(update=changed)
        with pytest.raises(FingerprintError, match=r"embeddings\.(settings|dimensions)"):
            compare_fingerprints("verifier", said, compute_fingerprint(EmbeddingSimilarity(other)))
    delivered = large.model_copy(
        update={"chunk_size": 5, "max_retries": 7, "openai_api_base": "http://there"}
    )
    same = compute_fingerprint(EmbeddingSimilarity(delivered))
    assert compare_fingerprints("verifier", said, same) == "matched"
    # What does not say which model it is gets no id, and neither does an unknown context.
    assert "id" not in compute_fingerprint(EmbeddingSimilarity(Compass()))
    unknown = compute_fingerprint(EmbeddingSimilarity(large, context=lambda _: "x"))
    assert "id" not in unknown
    assert unknown["context"] == "own"


def test_copied_embedding_similarity_scores_alike() -> None:
    verifier = EmbeddingSimilarity(DeterministicFakeEmbedding(size=8))
    asked = verifier_input("east", "north", "west")
    for copied in copies_of(verifier):
        assert invoke_sync(copied, asked) == invoke_sync(verifier, asked)
