"""The batch interfaces of OpenAI and Anthropic, through their official clients.

OpenAI (https://platform.openai.com/docs/guides/batch): a batch is created from an uploaded file of requests;
answers and errors come as two files. Anthropic
(https://docs.anthropic.com/en/docs/build-with-claude/batch-processing): a message batch holds its requests,
and has one list of results. Both answer in any order, within 24 hours or not at all.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from langchain_cfc.sampling.token_counts import read_count
from langchain_cfc_collect.costs import ModelCalls
from langchain_cfc_collect.store.batches import HTTP_OK, Answer

# Seconds by which clocks may differ: a batch may seem to have been created that long before its submission.
_CLOCK_SKEW = 3600
_PAGE_SIZE = 100
# Names under which Anthropic counts processed requests.
_DONE = ("succeeded", "errored", "canceled", "expired")
# Metadata field in which a batch at OpenAI carries our key.
_METADATA_KEY = "langchain-cfc"
# Retries of requests that cost nothing.
_MAX_RETRIES = 5

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
    files: Sequence[str]  # ids by which its results can be downloaded
    reason: str = ""  # why the batch was refused


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


class _Block(_Part):
    type: str
    text: str | None = None


class _OutputItem(_Part):
    type: str
    content: list[_Block] | None = None


class _Body(_Part):
    model: str | None = None
    error: None = None
    stop_reason: str | None = None


# The field of an answer that holds its text.
_TEXTS: Mapping[str, TypeAdapter[Any]] = {
    "choices": TypeAdapter(Annotated[list[_Choice], Field(min_length=1)]),
    "output": TypeAdapter(list[_OutputItem]),
    "content": TypeAdapter(list[_Block]),
}
# Usage of an answer that does not state its tokens; the client of Anthropic fails without any.
_NO_USAGE = {"input_tokens": 0, "output_tokens": 0}
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


def _count_tokens(used: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the tokens of request and answer, counted as LangChain does; None unless both are stated."""
    # Only Anthropic states the tokens of caches beside the others.
    cached = sum(used.get(f"cache_{kind}_input_tokens", 0) for kind in ("read", "creation"))
    for tokens_in, tokens_out, more in (
        ("prompt_tokens", "completion_tokens", 0),
        ("input_tokens", "output_tokens", cached),
    ):
        if tokens_in in used and tokens_out in used:
            return used[tokens_in] + more, used[tokens_out]
    return None


def read_answer(body: object, *, live: bool = False) -> Answer:
    """Return the answer in a body, whose usage holds numbers of tokens only.

    A body that the models' clients cannot read leaves the request to a live call, and was charged.
    """
    if not isinstance(body, dict):
        return Answer(live=live)
    used = _keep_counts(body.get("usage"))
    tokens = _count_tokens(used)
    name = body.get("model") if isinstance(body.get("model"), str) else ""
    calls = ModelCalls(str(name), False, *(tokens or (0, 0)), 1)
    try:
        _Body.model_validate(body)
        field = next(one for one in _TEXTS if one in body)
        _TEXTS[field].validate_python(body[field], strict=True)
        str(name).encode()
    except (StopIteration, ValidationError, UnicodeEncodeError):
        return Answer(calls=replace(calls, model=""), live=live)
    read = json.dumps({**body, "usage": used if tokens else _NO_USAGE})
    return Answer(zlib.compress(read.encode()), calls, live)


class Provider(ABC):
    """Batch interface of a provider, used through the official client of one or more chat models."""

    name: ClassVar[str]  # of the provider, and of its package
    client: ClassVar[str]  # class of its client
    # Module and class of LangChain's chat models that hold such a client, and their attribute.
    models: ClassVar[tuple[str, str, str]]
    # Limits of one batch: number of requests, and their total size.
    max_requests: ClassVar[int]
    max_bytes: ClassVar[int]
    # Endpoints that may go through batches: the end of a request's path, and the batch interface's name.
    endpoints: ClassVar[Mapping[str, str]]
    # Headers that change what a request means: all requests of a batch must agree on them.
    meaningful_headers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, official: Any, http: Any, address: str) -> None:
        """Use a client with its HTTP client; `address` is the base URL, without a slash at the end."""
        self.http, self.address = http, address
        self._retrying_client = official.copy(max_retries=_MAX_RETRIES)
        # No retries when creating a batch: first look whether it was created despite the failure.
        self._single_try_client = official.copy(max_retries=0)

    async def upload(self, key: str, bodies: Sequence[Body], endpoint: str) -> str:
        """Upload a batch's file of requests, and return its id; empty if there is nothing to upload."""
        del key, bodies, endpoint
        return ""

    @abstractmethod
    async def create(
        self, key: str, bodies: Sequence[Body], file: str, endpoint: str, headers: Headers
    ) -> str:
        """Create a batch without any retry, from requests and what `upload` returned; return its id."""

    @abstractmethod
    async def find(self, key: str, created_at: int, size: int, known: Collection[str | None]) -> str | None:
        """Return the id of the batch that was created with a key; None if none was.

        It was submitted at `created_at`, in Unix seconds, with `size` requests; `known` are ids of others.
        Raises a `TimeoutError` while this cannot be known.
        """

    @abstractmethod
    async def retrieve(self, provider_id: str) -> BatchState:
        """Return the progress of a batch."""

    @abstractmethod
    async def download(self, file: str) -> bytes:
        """Return the results of a batch, of which each is a line; `file` is one of `BatchState.files`."""

    @abstractmethod
    def find_body(self, line: Mapping[str, Any]) -> object:
        """Return the body of the answer in a line; None if it holds none."""

    async def read_results(self, state: BatchState) -> AsyncIterator[tuple[str, Answer]]:
        """Yield the ids of the requests of a batch that has ended, with their answers, in any order."""
        for file in state.files:
            for text in (await self.download(file)).splitlines():
                line = read_json(text)
                if isinstance(line, dict) and "custom_id" in line:
                    id_ = line["custom_id"]
                    yield id_ if isinstance(id_, str) else "", read_answer(self.find_body(line))


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


def read_json(text: bytes) -> object:
    """Return a line or body as a value; None if it is invalid, as if it were missing."""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


class OpenAIBatches(Provider):
    """Batches of OpenAI, or of a server with the same interface."""

    name = "openai"
    client = "AsyncOpenAI"
    models = ("langchain_openai.chat_models.base", "BaseChatOpenAI", "root_async_client")
    max_requests = 50_000
    max_bytes = 200_000_000
    endpoints: ClassVar[Mapping[str, str]] = {
        "/chat/completions": "/v1/chat/completions",
        "/responses": "/v1/responses",
    }

    async def upload(self, key: str, bodies: Sequence[Body], endpoint: str) -> str:
        """Upload the file of requests, and return its id."""
        route = {"method": "POST", "url": endpoint}
        lines = (
            {"custom_id": make_id(key, number), **route, "body": body} for number, body in enumerate(bodies)
        )
        content = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
        file = await self._retrying_client.files.create(file=(f"{key}.jsonl", content), purpose="batch")
        return _read_id(file)

    async def create(
        self, key: str, bodies: Sequence[Body], file: str, endpoint: str, headers: Headers
    ) -> str:
        """Create a batch from the uploaded file, and return its id."""
        del bodies, headers
        batch = await self._single_try_client.batches.create(
            completion_window="24h", endpoint=endpoint, input_file_id=file, metadata={_METADATA_KEY: key}
        )
        return _read_id(batch)

    async def find(self, key: str, created_at: int, size: int, known: Collection[str | None]) -> str | None:
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
            [one for one in (batch.output_file_id, batch.error_file_id) if one],
            _describe_reasons(batch.errors),
        )

    async def download(self, file: str) -> bytes:
        """Return the content of a file of answers or errors."""
        content: bytes = (await self._retrying_client.files.content(file)).content
        return content

    def find_body(self, line: Mapping[str, Any]) -> object:
        """Return the body of a response, unless it states an error."""
        response = line.get("response")
        if line.get("error") or not isinstance(response, dict):
            return None
        return response.get("body") if read_count(response.get("status_code")) in {None, HTTP_OK} else None


def _count(counts: object, *names: str) -> int:
    return sum(read_count(getattr(counts, name, None)) or 0 for name in names)


class AnthropicBatches(Provider):
    """Message batches of Anthropic, or of a server with the same interface."""

    name = "anthropic"
    client = "AsyncAnthropic"
    models = ("langchain_anthropic", "ChatAnthropic", "_async_client")  # there is no public name
    max_requests = 100_000
    max_bytes = 256_000_000
    endpoints: ClassVar[Mapping[str, str]] = {"/v1/messages": "/v1/messages"}
    meaningful_headers = ("anthropic-beta",)

    async def create(
        self, key: str, bodies: Sequence[Body], file: str, endpoint: str, headers: Headers
    ) -> str:
        """Create a message batch, and return its id."""
        del file, endpoint
        items = [{"custom_id": make_id(key, number), "params": body} for number, body in enumerate(bodies)]
        batch = await self._single_try_client.messages.batches.create(
            requests=items, extra_headers=dict(headers)
        )
        return _read_id(batch)

    async def find(self, key: str, created_at: int, size: int, known: Collection[str | None]) -> str | None:
        """Return the id of the batch of the right time and size whose results have our ids."""
        listed = self._retrying_client.messages.batches.list(limit=_PAGE_SIZE)
        waiting = None
        async for batch in _list_batches(listed, created_at):
            if batch.id in known or _count(batch.request_counts, "processing", *_DONE) != size:
                continue
            state = self._read_state(batch, batch.id)
            if state.ending is None:
                waiting = batch.id
                continue
            ids = [id_ async for id_, _ in self.read_results(state)]
            if any(id_.startswith(make_id(key, "")) for id_ in ids):
                return _read_id(batch)
            if not ids:
                msg = f"none of the results of {batch.id} can be read, which may be of this batch"
                raise ValueError(msg)
        if waiting is not None:
            msg = f"{waiting} may be this batch, which its results will show"
            raise TimeoutError(msg)
        return None

    async def retrieve(self, provider_id: str) -> BatchState:
        """Return the progress of a batch."""
        batch = await self._retrying_client.messages.batches.retrieve(provider_id)
        return self._read_state(batch, provider_id)

    @staticmethod
    def _read_state(batch: Any, provider_id: str) -> BatchState:
        """Return the progress of a batch; Anthropic gives a cancelled one the status `ended`, too."""
        ending = _read_ending(batch.processing_status, batch.results_url)
        if ending == "ended" and batch.cancel_initiated_at is not None:
            ending = "cancelled"
        return BatchState(ending, _count(batch.request_counts, *_DONE), [provider_id])

    async def download(self, file: str) -> bytes:
        """Return the results of a batch, by its id."""
        # The client's own decoder fails on the first line that it cannot read.
        response = await self._retrying_client.messages.batches.with_raw_response.results(file)
        content: bytes = await response.http_response.aread()
        return content

    def find_body(self, line: Mapping[str, Any]) -> object:
        """Return the message of a request that succeeded."""
        result = line.get("result")
        if not isinstance(result, dict) or result.get("type") != "succeeded":
            return None
        return result.get("message")


PROVIDERS: tuple[type[Provider], ...] = (OpenAIBatches, AnthropicBatches)
