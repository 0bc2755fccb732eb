"""The batch interfaces of OpenAI and Anthropic, through their official clients.

OpenAI (https://platform.openai.com/docs/guides/batch): a batch is created from an uploaded file of requests;
answers and errors come as two files. Anthropic
(https://docs.anthropic.com/en/docs/build-with-claude/batch-processing): a message batch holds its requests,
and has one list of results. Both answer in any order, within 24 hours or not at all.
"""

from __future__ import annotations

import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from langchain_cfc.sampling.token_counts import read_count
from langchain_cfc_collect.batches.models import Client
from langchain_cfc_collect.costs import ModelCalls
from langchain_cfc_collect.store.batches import Answer

HTTP_OK = 200
# Seconds by which clocks may differ: a batch may seem to have been created that long before its submission.
_CLOCK_SKEW = 3600
_PAGE_SIZE = 100
# Names under which Anthropic counts processed requests.
_DONE = ("succeeded", "errored", "canceled", "expired")
# Metadata field in which a batch at OpenAI carries our key.
_METADATA_KEY = "langchain-cfc"
# Retries of requests that cost nothing.
_MAX_RETRIES = 5
_STATUS = re.compile(r"([1-5][0-9]{2})(\.0)?$")

BatchEnding: TypeAlias = Literal["ended", "refused", "cancelled"]
# Words of both providers for a batch that is processed, and for one that has ended.
_PROCESSING = {"validating", "queued", "in_progress", "finalizing", "cancelling", "canceling"}
_ENDINGS: Mapping[str, BatchEnding] = {
    **dict.fromkeys(("completed", "expired", "ended"), "ended"),
    **dict.fromkeys(("cancelled", "canceled"), "cancelled"),
    "failed": "refused",
}
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


def make_id(key: str, line: int | str) -> str:
    """Return the id of a request: the key of its batch, and its line there."""
    return f"{key}-{line}"


class _Part(BaseModel):
    """Base of the parts of an answer that the models' clients read; they fail if one has another type."""

    model_config = ConfigDict(strict=True)


class _ChatMessage(_Part):
    role: Literal["assistant"]
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None


class _Choice(_Part):
    message: _ChatMessage
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _Completion(_Part):
    choices: list[_Choice] = Field(min_length=1)
    model: str | None = None
    error: None = None


class _Block(_Part):
    type: str
    text: str | None = None


class _OutputItem(_Part):
    type: str
    content: list[_Block] | None = None


class _Response(_Part):
    output: list[_OutputItem]
    model: str | None = None
    error: None = None


class _Message(_Part):
    content: list[_Block]
    model: str | None = None
    stop_reason: str | None = None


# Parts of usage that hold numbers of tokens themselves.
_USAGE_PARTS = {
    *(f"{of}_tokens_details" for of in ("prompt", "completion", "input", "output")),
    "cache_creation",
}


def _keep_counts(used: object, *, is_part: bool = False) -> dict[str, Any]:
    """Return only the numbers of tokens in usage, because clients fail on anything else."""
    kept: dict[str, Any] = {}
    for name, value in used.items() if isinstance(used, Mapping) else ():
        if name in _USAGE_PARTS and not is_part:
            kept[name] = _keep_counts(value, is_part=True)
        elif (count := read_count(value)) is not None:
            kept[name] = count
    return kept


class Provider(ABC):
    """Batch interface of a provider, used through the client of its models."""

    # Limits of one batch: number of requests, and their total size.
    max_requests: ClassVar[int]
    max_bytes: ClassVar[int]
    # Endpoints that may go through batches: the end of a request's path, and the batch interface's name.
    endpoints: ClassVar[Mapping[str, str]]
    # Parts of an answer that the models' clients read, by a field that the answer has.
    answers: ClassVar[Mapping[str, type[BaseModel]]]
    # Usage of an answer that does not state its tokens.
    no_usage: ClassVar[Mapping[str, int] | None] = None
    # Whether `find` can only guess, so that the results show whether a batch is ours.
    guesses: ClassVar[bool] = False
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
    def read_results(self, provider_id: str, state: BatchState) -> AsyncIterator[tuple[str, Answer]]:
        """Yield the ids of the requests of a batch that has ended, with their answers, in any order."""

    @abstractmethod
    def count_tokens(self, used: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the tokens of request and answer, counted as LangChain does; None unless both are stated."""

    def read_answer(self, body: object, *, live: bool = False) -> Answer:
        """Return the answer in a body, whose usage holds numbers of tokens only.

        A body that the models' clients cannot read leaves the request to a live call, and was charged.
        """
        if not isinstance(body, dict):
            return Answer(0, live)
        used = _keep_counts(body.get("usage"))
        tokens = self.count_tokens(used)
        name = body.get("model") if isinstance(body.get("model"), str) else ""
        calls = ModelCalls(str(name), False, *(tokens or (0, 0)), 1)
        try:
            next(part for name, part in self.answers.items() if name in body).model_validate(body)
            str(name).encode()
        except (StopIteration, ValidationError, UnicodeEncodeError):
            return Answer(0, live, calls=replace(calls, model=""))
        read = json.dumps({**body, "usage": used if tokens else self.no_usage})
        return Answer(HTTP_OK, live, zlib.compress(read.encode()), calls)


def _read_id(made: Any) -> str:
    """Return the id of a new file or batch; raise a `ValueError` if the reply states none."""
    if isinstance(made.id, str) and made.id:
        return made.id
    msg = f"expected an id, got {made.id!r}"
    raise ValueError(msg)


def _read_ending(status: object, results: object) -> BatchEnding | None:
    """Return how a batch has ended; None while it is processed.

    `results` says where its results are, if there are any. Raises a `ValueError` for an unknown status.
    """
    word = str(status).lower()
    if word in _PROCESSING:
        return None
    ending = _ENDINGS.get(word)
    if results and ending != "cancelled":
        return "ended"
    if ending is None:
        msg = f"it has the unknown status {status!r}, and no results"
        raise ValueError(msg)
    return ending


def _describe_reasons(errors: Any) -> str:
    """Return why a batch was refused, from whatever its provider states."""
    listed = getattr(errors, "data", errors) or []
    reasons = []
    for one in listed if isinstance(listed, list) else [listed]:
        reason = getattr(one, "message", None) or getattr(one, "code", None) or one
        line = getattr(one, "line", None)
        reasons.append(f"{reason} (line {line})" if line else f"{reason}")
    return "; ".join(reasons[:3])


async def _list_batches(first_page: Awaitable[Any], created_at: int) -> AsyncIterator[Any]:
    """Yield the batches of an account, the latest first, down to the time at which ours was submitted.

    Raises a `ValueError` for a page that lists no batches or is there twice: a batch that seems to be missing
    would be submitted again, and paid for twice.
    """
    seen: set[object] = set()
    async for page in (await first_page).iter_pages():
        ids = {str(getattr(one, "id", None)) for one in page.data} if isinstance(page.data, list) else seen
        if ids <= seen and page.data != []:
            msg = "a page of its list of batches cannot be read"
            raise ValueError(msg)
        seen |= ids
        for batch in page.data:
            at = getattr(batch, "created_at", None)
            created = at.timestamp() if isinstance(at, datetime) else read_count(at)
            if created is not None and created < created_at - _CLOCK_SKEW:
                return
            if isinstance(getattr(batch, "id", None), str):
                yield batch


def _parse_line(text: bytes) -> tuple[str, dict[str, Any]] | None:
    """Return the id and the content of a line; None if it is invalid, as if it were missing."""
    try:
        given = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or "custom_id" not in given:
        return None
    return str(given["custom_id"]) if isinstance(given["custom_id"], str) else "", given


class OpenAIBatches(Provider):
    """Batches of OpenAI, or of a server with the same interface."""

    max_requests = 50_000
    max_bytes = 200_000_000
    endpoints: ClassVar[Mapping[str, str]] = {
        "/chat/completions": "/v1/chat/completions",
        "/responses": "/v1/responses",
    }
    answers: ClassVar[Mapping[str, type[BaseModel]]] = {"choices": _Completion, "output": _Response}

    def encode(self, key: str, number: int, body: Body, endpoint: str) -> bytes:
        """Return a request as a line of the uploaded file."""
        custom_id = make_id(key, number)
        request = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
        return json.dumps(request, ensure_ascii=False).encode() + b"\n"

    async def prepare(self, key: str, bodies: Sequence[Body], endpoint: str, headers: Headers) -> Any:
        """Upload the file of requests, and return its id."""
        del headers
        content = b"".join(self.encode(key, number, body, endpoint) for number, body in enumerate(bodies))
        file = await self._retrying_client.files.create(file=(f"{key}.jsonl", content), purpose="batch")
        return _read_id(file)

    async def create(self, key: str, prepared: Any, endpoint: str) -> str:
        """Create a batch from the uploaded file, and return its id."""
        batch = await self._single_try_client.batches.create(
            completion_window="24h", endpoint=endpoint, input_file_id=prepared, metadata={_METADATA_KEY: key}
        )
        return _read_id(batch)

    async def find(self, key: str, created_at: int, size: int, known: Collection[str]) -> str | None:
        """Return the id of the batch whose metadata contains the key; None if there is none."""
        del size, known
        listed = self._retrying_client.batches.list(limit=_PAGE_SIZE)
        async for batch in _list_batches(listed, created_at):
            if isinstance(batch.metadata, Mapping) and batch.metadata.get(_METADATA_KEY) == key:
                return _read_id(batch)
        return None

    async def retrieve(self, provider_id: str) -> BatchState:
        """Return the progress of a batch."""
        batch = await self._retrying_client.batches.retrieve(provider_id)
        return BatchState(
            _read_ending(batch.status, batch.output_file_id),
            _count(batch.request_counts, "completed", "failed"),
            _count(batch.request_counts, "total"),
            _describe_reasons(batch.errors),
            tuple(one for one in (batch.output_file_id, batch.error_file_id) if one),
        )

    async def read_results(self, provider_id: str, state: BatchState) -> AsyncIterator[tuple[str, Answer]]:
        """Yield the results in the files of answers and errors."""
        del provider_id
        for file in state.files:
            content = await self._retrying_client.files.content(file)
            for text in content.content.splitlines():
                if (found := _parse_line(text)) is not None:
                    yield found[0], self._read_result(found[1])

    def _read_result(self, given: Mapping[str, Any]) -> Answer:
        response = given.get("response")
        if not isinstance(response, dict):
            return Answer(0, live=False)
        stated = _STATUS.match(str(response.get("status_code")))
        status = int(stated[1]) if stated else 0
        if given.get("error") or status not in {0, HTTP_OK}:
            return Answer(0 if status == HTTP_OK else status, live=False)
        return self.read_answer(response.get("body"))

    def count_tokens(self, used: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the tokens that an answer of either endpoint states."""
        tokens_in = used.get("prompt_tokens", used.get("input_tokens"))
        tokens_out = used.get("completion_tokens", used.get("output_tokens"))
        return None if tokens_in is None or tokens_out is None else (tokens_in, tokens_out)


def _count(counts: object, *names: str) -> int:
    return sum(read_count(getattr(counts, name, None)) or 0 for name in names)


class AnthropicBatches(Provider):
    """Message batches of Anthropic, or of a server with the same interface."""

    max_requests = 100_000
    max_bytes = 256_000_000
    endpoints: ClassVar[Mapping[str, str]] = {"/v1/messages": "/v1/messages"}
    answers: ClassVar[Mapping[str, type[BaseModel]]] = {"content": _Message}
    no_usage: ClassVar[Mapping[str, int]] = {"input_tokens": 0, "output_tokens": 0}
    guesses = True
    meaningful_headers = ("anthropic-beta",)

    def encode(self, key: str, number: int, body: Body, endpoint: str) -> bytes:
        """Return a request as an item of the batch's list."""
        del endpoint
        return json.dumps(self._make_item(key, number, body), ensure_ascii=False).encode() + b","

    def _make_item(self, key: str, number: int, body: Body) -> dict[str, Any]:
        return {"custom_id": make_id(key, number), "params": body}

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
        return _read_id(batch)

    async def find(self, key: str, created_at: int, size: int, known: Collection[str]) -> str | None:
        """Return the id of a batch of the right time and size; its results show whether it is ours."""
        del key
        listed = self._retrying_client.messages.batches.list(limit=_PAGE_SIZE)
        async for batch in _list_batches(listed, created_at):
            if _count(batch.request_counts, "processing", *_DONE) == size and batch.id not in known:
                return _read_id(batch)
        return None

    async def retrieve(self, provider_id: str) -> BatchState:
        """Return the progress of a batch; Anthropic gives a cancelled batch the status `ended`, too."""
        batch = await self._retrying_client.messages.batches.retrieve(provider_id)
        done = _count(batch.request_counts, *_DONE)
        ending = _read_ending(batch.processing_status, batch.results_url)
        if ending == "ended" and batch.cancel_initiated_at is not None:
            ending = "cancelled"
        return BatchState(ending, done, done + _count(batch.request_counts, "processing"))

    async def read_results(self, provider_id: str, state: BatchState) -> AsyncIterator[tuple[str, Answer]]:
        """Yield the results of a message batch."""
        del state
        # The client's own decoder fails on the first line that it cannot read.
        response = await self._retrying_client.messages.batches.with_raw_response.results(provider_id)
        for text in (await response.http_response.aread()).splitlines():
            if (found := _parse_line(text)) is not None:
                result = found[1].get("result")
                given = result if isinstance(result, dict) else {}
                message = given.get("message") if given.get("type") == "succeeded" else None
                yield found[0], self.read_answer(message)

    def count_tokens(self, used: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the tokens that an answer states, with tokens of caches."""
        if not {"input_tokens", "output_tokens"} <= used.keys():
            return None
        cached = sum(used.get(f"cache_{kind}_input_tokens", 0) for kind in ("read", "creation"))
        return used["input_tokens"] + cached, used["output_tokens"]


def open_provider(client: Client) -> Provider:
    """Return the batch interface of a client's provider."""
    return OpenAIBatches(client) if client.provider == "openai" else AnthropicBatches(client)
