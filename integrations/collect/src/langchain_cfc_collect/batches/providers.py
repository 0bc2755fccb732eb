"""The batch interfaces of OpenAI and Anthropic, through their official clients.

OpenAI (https://platform.openai.com/docs/guides/batch): a batch is created from an uploaded file of requests;
answers and errors come as two files. Anthropic
(https://docs.anthropic.com/en/docs/build-with-claude/batch-processing): a message batch holds its requests,
and has one list of results. Both answer in any order, within 24 hours or not at all.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from langchain_cfc_collect.batches.models import Client
from langchain_cfc_collect.costs import ModelCalls

HTTP_OK = 200
# Seconds by which clocks may differ: a batch may seem to have been created that long before its submission.
_CLOCK_SKEW = 3600
_PAGE_SIZE = 100
# Metadata field in which a batch at OpenAI carries our key.
_METADATA_KEY = "langchain-cfc"
# Retries of requests that cost nothing.
_MAX_RETRIES = 5

BatchEnding: TypeAlias = Literal["ended", "refused", "cancelled"]
# Body of a request as its model made it, and those of its headers that change what it means.
Body: TypeAlias = Mapping[str, Any]
Headers: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class BatchState:
    """Progress of a batch at its provider."""

    ending: BatchEnding | None  # None while the batch is processed
    done: int  # number of processed requests
    total: int  # number of all requests
    reason: str = ""  # why the batch was refused
    files: tuple[str, ...] = ()  # ids of the files with its results


@dataclass(frozen=True)
class BatchResult:
    """Result of one request of a batch."""

    key: str  # key of the batch that the request belongs to
    line: int  # number of the request in the batch
    status: int  # HTTP status; 0 if the request was not processed
    body: Mapping[str, Any] | None  # body of an answer with status 200


def _make_id(key: str, line: int) -> str:
    return f"{key}-{line}"


def _read_id(custom_id: Any) -> tuple[str, int] | None:
    key, _, line = str(custom_id).rpartition("-")
    return (key, int(line)) if key and line.isdecimal() else None


class Provider(ABC):
    """Batch interface of a provider, used through the client of its models."""

    # Limits of one batch: number of requests, and their total size.
    max_requests: ClassVar[int]
    max_bytes: ClassVar[int]
    # Endpoints that may go through batches: the end of a request's path, and the batch interface's name.
    endpoints: ClassVar[Mapping[str, str]]
    # Headers that change what a request means: all requests of a batch must agree on them.
    meaningful_headers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, client: Client) -> None:
        self.client = client
        self._retrying_client = client.official.copy(max_retries=_MAX_RETRIES)
        # No retries when creating a batch: first look whether it was created despite the failure.
        self._single_try_client = client.official.copy(max_retries=0)

    @abstractmethod
    def encode(self, key: str, number: int, body: Body, endpoint: str) -> bytes:
        """Return a request as it is sent in a batch, to measure its size."""

    @abstractmethod
    async def prepare(self, key: str, bodies: Sequence[Body], endpoint: str, headers: Headers) -> Any:
        """Upload what can be uploaded free of charge, and return what `create` needs."""

    @abstractmethod
    async def create(self, key: str, prepared: Any, endpoint: str) -> str:
        """Create a batch without any retry, and return the provider's id of it."""

    @abstractmethod
    async def find(self, key: str, created_at: int, size: int, known: Collection[str]) -> str | None:
        """Return the id of the batch created with a key, or of one that may be this batch; None if none was.

        It was submitted at `created_at`, in Unix seconds, with `size` requests; `known` are ids of others.
        """

    @abstractmethod
    async def retrieve(self, provider_id: str) -> BatchState:
        """Return the progress of a batch."""

    @abstractmethod
    def read_results(self, provider_id: str, state: BatchState) -> AsyncIterator[BatchResult]:
        """Yield the results of a batch that has ended, in any order."""

    @abstractmethod
    def read_usage(self, body: Mapping[str, Any]) -> ModelCalls:
        """Return the usage that an answer reports, counted as LangChain does."""


class OpenAIBatches(Provider):
    """Batches of OpenAI, or of a server with the same interface."""

    max_requests = 50_000
    max_bytes = 200_000_000
    endpoints: ClassVar[Mapping[str, str]] = {
        "/chat/completions": "/v1/chat/completions",
        "/responses": "/v1/responses",
    }

    def encode(self, key: str, number: int, body: Body, endpoint: str) -> bytes:
        """Return a request as a line of the uploaded file."""
        custom_id = _make_id(key, number)
        request = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
        return json.dumps(request, ensure_ascii=False).encode() + b"\n"

    async def prepare(self, key: str, bodies: Sequence[Body], endpoint: str, headers: Headers) -> Any:
        """Upload the file of requests, and return its id."""
        del headers
        content = b"".join(self.encode(key, number, body, endpoint) for number, body in enumerate(bodies))
        file = await self._retrying_client.files.create(file=(f"{key}.jsonl", content), purpose="batch")
        return file.id

    async def create(self, key: str, prepared: Any, endpoint: str) -> str:
        """Create a batch from the uploaded file, and return its id."""
        batch = await self._single_try_client.batches.create(
            completion_window="24h", endpoint=endpoint, input_file_id=prepared, metadata={_METADATA_KEY: key}
        )
        return str(batch.id)

    async def find(self, key: str, created_at: int, size: int, known: Collection[str]) -> str | None:
        """Return the id of the batch whose metadata contains the key; None if there is none."""
        del size, known
        async for batch in self._retrying_client.batches.list(limit=_PAGE_SIZE):
            if (batch.metadata or {}).get(_METADATA_KEY) == key:
                return str(batch.id)
            if batch.created_at < created_at - _CLOCK_SKEW:  # the latest come first
                return None
        return None

    async def retrieve(self, provider_id: str) -> BatchState:
        """Return the progress of a batch."""
        batch = await self._retrying_client.batches.retrieve(provider_id)
        endings: Mapping[str, BatchEnding] = {
            "completed": "ended",
            "expired": "ended",
            "failed": "refused",
            "cancelled": "cancelled",
        }
        counts = batch.request_counts
        errors = (batch.errors.data if batch.errors else None) or []
        reasons = [
            f"{one.message or one.code}" + (f" (line {one.line})" if one.line else "") for one in errors
        ]
        return BatchState(
            endings.get(batch.status),
            0 if counts is None else counts.completed + counts.failed,
            0 if counts is None else counts.total,
            "; ".join(reasons[:3]),
            tuple(one for one in (batch.output_file_id, batch.error_file_id) if one),
        )

    async def read_results(self, provider_id: str, state: BatchState) -> AsyncIterator[BatchResult]:
        """Yield the results in the files of answers and errors."""
        del provider_id
        for file in state.files:
            content = await self._retrying_client.files.content(file)
            for text in content.content.splitlines():
                result = _read_line(text)
                if result is not None:
                    yield result

    def read_usage(self, body: Mapping[str, Any]) -> ModelCalls:
        """Return the usage that an answer of either endpoint reports."""
        used = body.get("usage") or {}
        tokens_in = used.get("prompt_tokens") or used.get("input_tokens") or 0
        tokens_out = used.get("completion_tokens") or used.get("output_tokens") or 0
        return ModelCalls(str(body.get("model") or ""), False, tokens_in, tokens_out, 1)


def _read_line(text: bytes) -> BatchResult | None:
    """Return the result in a line of a file; None if the line is invalid, as if it were missing."""
    try:
        given = json.loads(text)
    except ValueError:
        return None
    found = _read_id(given.get("custom_id")) if isinstance(given, dict) else None
    if found is None:
        return None
    response = given.get("response") or {}
    if not isinstance(response, dict):
        return None
    body = response.get("body")
    try:
        status = int(response.get("status_code") or 0)
    except (TypeError, ValueError):
        status = 0
    if given.get("error") or not isinstance(body, dict):
        status = 0 if status == HTTP_OK else status
    return BatchResult(*found, status, body if status == HTTP_OK else None)


class AnthropicBatches(Provider):
    """Message batches of Anthropic, or of a server with the same interface."""

    max_requests = 100_000
    max_bytes = 256_000_000
    endpoints: ClassVar[Mapping[str, str]] = {"/v1/messages": "/v1/messages"}
    meaningful_headers = ("anthropic-beta",)

    def encode(self, key: str, number: int, body: Body, endpoint: str) -> bytes:
        """Return a request as an item of the batch's list."""
        del endpoint
        return json.dumps(self._make_item(key, number, body), ensure_ascii=False).encode() + b","

    def _make_item(self, key: str, number: int, body: Body) -> dict[str, Any]:
        return {"custom_id": _make_id(key, number), "params": body}

    async def prepare(self, key: str, bodies: Sequence[Body], endpoint: str, headers: Headers) -> Any:
        """Return the requests and their common headers, because nothing can be uploaded in advance."""
        del endpoint
        return [self._make_item(key, number, body) for number, body in enumerate(bodies)], headers

    async def create(self, key: str, prepared: Any, endpoint: str) -> str:
        """Create a message batch, and return its id."""
        del key, endpoint
        requests, headers = prepared
        batch = await self._single_try_client.messages.batches.create(
            requests=requests, extra_headers=dict(headers)
        )
        return str(batch.id)

    async def find(self, key: str, created_at: int, size: int, known: Collection[str]) -> str | None:
        """Return the id of a batch of the right time and size; its results show whether it is ours."""
        del key
        async for batch in self._retrying_client.messages.batches.list(limit=_PAGE_SIZE):
            if batch.created_at.timestamp() < created_at - _CLOCK_SKEW:  # the latest come first
                return None
            counts = batch.request_counts
            total = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
            if total == size and batch.id not in known:
                return str(batch.id)
        return None

    async def retrieve(self, provider_id: str) -> BatchState:
        """Return the progress of a batch; Anthropic gives a cancelled batch the status `ended`, too."""
        batch = await self._retrying_client.messages.batches.retrieve(provider_id)
        counts = batch.request_counts
        done = counts.succeeded + counts.errored + counts.canceled + counts.expired
        ending: BatchEnding | None = None
        if batch.processing_status == "ended":
            ending = "cancelled" if batch.cancel_initiated_at is not None else "ended"
        return BatchState(ending, done, done + counts.processing)

    async def read_results(self, provider_id: str, state: BatchState) -> AsyncIterator[BatchResult]:
        """Yield the results of a message batch."""
        del state
        async for one in await self._retrying_client.messages.batches.results(provider_id):
            found = _read_id(one.custom_id)
            if found is None:
                continue
            if one.result.type == "succeeded":
                body = one.result.message.model_dump(mode="json", exclude_unset=True)
                yield BatchResult(*found, HTTP_OK, body)
            else:
                yield BatchResult(*found, 0, None)

    def read_usage(self, body: Mapping[str, Any]) -> ModelCalls:
        """Return the usage that an answer reports, with tokens of caches."""
        used = body.get("usage") or {}
        tokens_in = sum(
            used.get(name) or 0
            for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )
        return ModelCalls(str(body.get("model") or ""), False, tokens_in, used.get("output_tokens") or 0, 1)


def open_provider(client: Client) -> Provider:
    """Return the batch interface of a client's provider."""
    return OpenAIBatches(client) if client.provider == "openai" else AnthropicBatches(client)
