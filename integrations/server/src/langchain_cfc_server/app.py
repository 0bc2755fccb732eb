"""`create_app`: make an ASGI application that serves models."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from langchain_core.runnables import Runnable
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from langchain_cfc_server import openapi
from langchain_cfc_server.chain_thread import ChainThread
from langchain_cfc_server.completions import Completions, find_model
from langchain_cfc_server.cooldown import Cooldown
from langchain_cfc_server.errors import encode_json, to_refused_error
from langchain_cfc_server.limits import METRICS, OPEN_PATHS, Authentication, Limits
from langchain_cfc_server.metrics import CONTENT_TYPE, Metrics
from langchain_cfc_server.models import ServedModel, make_served_models
from langchain_cfc_server.observing import RequestObserver
from langchain_cfc_server.schema import ChatCompletion, Health, ModelEntry, ModelList, ResponseObject
from langchain_cfc_server.settings import Settings
from langchain_cfc_server.tokens import ClientTokens
from langchain_cfc_server.traffic import Traffic

COMPLETIONS, RESPONSES = openapi.COMPLETIONS, openapi.RESPONSES
_TITLE = "langchain-cfc server"
_SUMMARY = "Chat completions that are certified or abstained from."


def create_app(models: Mapping[str, Runnable[Any, Any]], settings: Settings) -> FastAPI:
    """Return an application that serves models through OpenAI's API.

    Args:
        models: Chains by model name: a `CFCRunnable`, the result of its `or_else`, or any chain that returns
            its results. They get lists of messages.
        settings: Tokens, limits and other settings.

    Returns:
        The application, for `langchain_cfc_server.run` or any ASGI server with a single process; its
        `state.traffic` counts requests.

    Raises:
        InputError: If there are no models, a name is invalid, a model is not a chain, or `ignore` names a
            model or field that cannot be meant.
    """
    ready = make_served_models(models, settings.abstain_message, settings.ignore)
    traffic = Traffic(settings.concurrency, settings.connections)
    tokens = ClientTokens(settings.tokens, settings.token_file)
    cooldowns = {name: Cooldown(name, settings.cooldown_after, settings.cooldown) for name in ready}
    metrics = Metrics(traffic, tokens, cooldowns)
    chains = ChainThread()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        traffic.started = True
        yield
        traffic.draining = True
        chains.stop()

    app = FastAPI(
        title=_TITLE,
        summary=_SUMMARY,
        version=version("langchain-cfc-server"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.traffic, app.state.tokens, app.state.metrics = traffic, tokens, metrics

    _add_paths(app, Completions(ready, cooldowns, settings, chains), ready, traffic, metrics)
    openapi.complete_document(app, ready, authentication=settings.authentication)
    # A request passes through the last added middleware first.
    app.add_middleware(Limits, paths=(COMPLETIONS, RESPONSES), settings=settings, traffic=traffic)
    if settings.authentication:
        app.add_middleware(Authentication, tokens=tokens)
    app.add_middleware(
        RequestObserver,
        routes=[COMPLETIONS, RESPONSES, "/v1/models", "/v1/models/", METRICS, "/openapi.json", *OPEN_PATHS],
        traffic=traffic,
        metrics=metrics,
        log_content=settings.log_content,
    )
    app.add_exception_handler(HTTPException, _raise_refused)
    return app


def _add_paths(
    app: FastAPI,
    completions: Completions,
    models: Mapping[str, ServedModel],
    traffic: Traffic,
    metrics: Metrics,
) -> None:
    created = int(time.time())

    async def live() -> Response:
        """Return `live`; 503 if a chain has blocked all others for longer than the time limit."""
        return (
            _make_json_response({"status": "stalled"}, 503)
            if completions.is_stalled
            else _make_json_response({"status": "live"})
        )

    async def ready() -> Response:
        """Return whether the server accepts requests; 503 if it does not."""
        return _make_json_response({"status": traffic.status}, 200 if traffic.status == "ready" else 503)

    async def figures() -> Response:
        """Return the metrics for Prometheus."""
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def list_models() -> Response:
        """Return all models that are served."""
        return _make_json_response(
            {"object": "list", "data": [one.describe(created) for one in models.values()]}
        )

    async def one_model(model: str) -> Response:
        """Return one of the served models."""
        return _make_json_response(find_model(models, model).describe(created))

    async def complete(request: Request) -> Response:
        """Answer a conversation, or abstain."""
        return await completions.complete(request)

    async def respond(request: Request) -> Response:
        """Answer a text or a conversation, or abstain."""
        return await completions.respond(request)

    unready: openapi.Responses = {503: {"model": Health}}
    for address, endpoint, responses in (
        ("/health/live", live, openapi.describe("Yes.", Health) | unready),
        ("/health/ready", ready, openapi.describe("Yes.", Health) | unready),
        (METRICS, figures, openapi.describe("Figures.", None, 401, 403)),
        ("/v1/models", list_models, openapi.describe("The models.", ModelList, 401, 403)),
        ("/v1/models/{model:path}", one_model, openapi.describe("The model.", ModelEntry, 401, 403, 404)),
    ):
        # The endpoint builds the response itself, so FastAPI only documents it.
        app.add_api_route(
            address, endpoint, response_class=Response, response_model=None, responses=responses
        )
    decision = "The decision, whole or as a stream of events."
    failures = (400, 401, 403, 404, 408, 413, 415, 429, 500, 502, 503, 504)
    for address, answer, shape in (
        (COMPLETIONS, complete, ChatCompletion),
        (RESPONSES, respond, ResponseObject),
    ):
        app.router.add_api_route(
            address,
            answer,
            methods=["POST"],
            response_class=Response,
            response_model=None,
            responses=openapi.describe(decision, shape, *failures),
            route_class_override=_Direct,
        )


class _Direct(APIRoute):
    """A route that calls its endpoint directly, because FastAPI has no parameters to fill in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself as the request handler."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


def _make_json_response(data: Any, status: int = 200) -> Response:
    return Response(encode_json(data), status, media_type="application/json")


async def _raise_refused(_: Request, error: Exception) -> Response:
    """Re-raise a routing error, so that the middleware that answers all errors handles it."""
    raise to_refused_error(error)
