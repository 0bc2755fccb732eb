"""Endpoints `POST /v1/chat/completions` and `/v1/responses`, which answer a conversation with a decision."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from starlette.requests import Request
from starlette.responses import Response

from langchain_cfc.runnable import DecisionStore
from langchain_cfc_server import schema
from langchain_cfc_server.answers import Answer
from langchain_cfc_server.chain_thread import ChainThread
from langchain_cfc_server.cooldown import Cooldown
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.limits import get_client
from langchain_cfc_server.messages import to_langchain_messages
from langchain_cfc_server.models import ServedModel
from langchain_cfc_server.observing import get_note
from langchain_cfc_server.parameters import make_parameter_refusal
from langchain_cfc_server.reading import ReadRequest, check_type, read_request
from langchain_cfc_server.responses import ResponseWriter, list_messages
from langchain_cfc_server.schema import ChatRequest, GuardedRequest, ResponsesRequest
from langchain_cfc_server.settings import Settings


class Completions:
    """Answers conversations with the models that the requests name.

    Streams also start only when the decision is made, and contain nothing else: no candidate may be revealed
    before, and errors keep their HTTP status.

    Args:
        models: The models by name.
        cooldowns: The cooldown of each model's upstream, by the model's name.
        settings: The operator's settings.
        chains: The thread that runs the chains.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        cooldowns: Mapping[str, Cooldown],
        settings: Settings,
        chains: ChainThread,
    ) -> None:
        self._models = models
        self._cooldowns = cooldowns
        self._chains = chains
        self._ignored = {name: model.ignored for name, model in models.items()}
        self._store = settings.decisions
        self._kept_by_client: dict[str | None, DecisionStore] = {}
        self._log_content = settings.log_content
        self._time_limit = settings.time_limit

    @property
    def is_stalled(self) -> bool:
        """Whether a chain has blocked all others for longer than the time limit of a request."""
        return self._chains.measure_stall() > self._time_limit

    async def complete(self, request: Request) -> Response:
        """Answer a conversation with a chat completion, whole or as a stream of events.

        Args:
            request: The request.

        Returns:
            The completion, or its events.

        Raises:
            RefusedError: If the request is invalid or cannot be served.
            CFCError: If the chain failed.
        """
        check_type(request.headers)
        given = read_request(await request.body(), ChatRequest, self._ignored)
        asked = given.asked
        answer = await self._decide(request, given, asked.messages, "chatcmpl-")
        if not asked.stream:
            return _make_response(answer, answer.to_completion())
        options = asked.stream_options
        events = answer.to_events(with_usage=options is not None and bool(options.include_usage))
        return _make_response(answer, events, is_stream=True)

    async def respond(self, request: Request) -> Response:
        """Answer a conversation in the form of the Responses API; see `complete` for arguments and errors."""
        check_type(request.headers)
        given = read_request(await request.body(), ResponsesRequest, self._ignored)
        asked = given.asked
        writer = ResponseWriter(asked, await self._decide(request, given, list_messages(asked), "resp_"))
        content = writer.to_events() if asked.stream else writer.to_response()
        return _make_response(writer.answer, content, is_stream=bool(asked.stream))

    async def _decide(
        self,
        request: Request,
        given: ReadRequest[Any],
        messages: list[schema.Message],
        prefix: str,
    ) -> Answer:
        note = get_note(request.scope)
        asked: GuardedRequest = given.asked
        model = find_model(self._models, asked.model)
        note.model = model.name
        options = asked.cfc or schema.CFCOptions()
        promise = model.choose_promise(**options.named_promise)
        refused = {**given.unknown, **{name: name for name in model.list_changes(given.parameters)}}
        prompt = model.prepare_messages(to_langchain_messages(messages), given.ignored, refused)
        if refused:
            raise make_parameter_refusal(refused)
        if self._log_content:
            note.prompt = [one.model_dump(exclude_none=True) for one in messages]
        asking = get_client(request.scope)
        client = None if asking is None else asking.name
        config = self._make_config(client)
        with self._cooldowns[model.name].watch(client):
            message = await self._chains.run(
                lambda: model.ask(prompt, promise, config, with_claims=options.claims), (model.name, client)
            )
        answer = Answer(f"{prefix}{note.id}", int(time.time()), model.name, message, given.ignored)
        note.record_decision(answer.reason, answer.usage, answer.promise)
        if self._log_content:
            note.answer = str(message.text)
        return answer

    def _make_config(self, client: str | None) -> RunnableConfig:
        """Return the config under which a client's questions are asked, with its earlier decisions."""
        if self._store is None:
            return {}
        kept = self._kept_by_client.setdefault(client, DecisionStore(self._store, client or "anyone"))
        return {"callbacks": [kept]}


def _make_response(answer: Answer, content: bytes, *, is_stream: bool = False) -> Response:
    if not is_stream:
        return Response(content, headers=answer.headers, media_type="application/json")
    headers = {**answer.headers, "cache-control": "no-store"}
    return Response(content, headers=headers, media_type="text/event-stream")


def find_model(models: Mapping[str, ServedModel], name: str) -> ServedModel:
    """Return the model that a request names.

    Raises:
        RefusedError: If there is no model of that name.
    """
    if name not in models:
        msg = f"there is no such model here; there are: {', '.join(models)}"
        raise RefusedError(404, "model_not_found", msg, param="model")
    return models[name]
