"""`create_app`: make an ASGI application that serves models."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.runnables import Runnable
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from langchain_cfc_server.answers import HEADERS
from langchain_cfc_server.chain_thread import ChainThread
from langchain_cfc_server.completions import Completions, find_model
from langchain_cfc_server.cooldown import Cooldown
from langchain_cfc_server.errors import encode_json, to_refused_error
from langchain_cfc_server.limits import METRICS, Authentication, Limits
from langchain_cfc_server.metrics import CONTENT_TYPE, Metrics
from langchain_cfc_server.models import make_served_models
from langchain_cfc_server.observing import RequestObserver
from langchain_cfc_server.openapi import COMPLETIONS, RESPONSES, make_document
from langchain_cfc_server.settings import Settings
from langchain_cfc_server.tokens import ClientTokens
from langchain_cfc_server.traffic import Traffic


def create_app(models: Mapping[str, Runnable[Any, Any]], settings: Settings) -> Starlette:
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
    served = make_served_models(models, settings.abstain_message, settings.ignore)
    traffic = Traffic(settings.concurrency, settings.connections)
    tokens = ClientTokens(settings.tokens, settings.token_file)
    by_upstream: dict[object, Cooldown] = {}
    cooldowns = {
        name: by_upstream.setdefault(
            model.upstream, Cooldown(name, settings.cooldown_after, settings.cooldown)
        )
        for name, model in served.items()
    }
    metrics = Metrics(traffic, tokens, cooldowns)
    chains = ChainThread()
    completions = Completions(served, cooldowns, settings, chains)
    described = make_document(served, authentication=settings.authentication)
    created = int(time.time())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        traffic.draining = True
        chains.stop()

    async def live(_: Request) -> Response:
        is_stalled = completions.is_stalled
        return _make_response({"status": "stalled" if is_stalled else "live"}, 503 if is_stalled else 200)

    async def ready(_: Request) -> Response:
        return _make_response({"status": traffic.status}, 200 if traffic.status == "ready" else 503)

    async def report_metrics(_: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def describe(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        return _make_response({**described, **({"servers": [{"url": root}]} if root else {})})

    async def list_models(_: Request) -> Response:
        return _make_response({"object": "list", "data": [one.describe(created) for one in served.values()]})

    async def describe_model(request: Request) -> Response:
        return _make_response(find_model(served, request.path_params["model"]).describe(created))

    routes = [
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route(METRICS, report_metrics),
        Route("/openapi.json", describe),
        Route("/v1/models", list_models),
        Route("/v1/models/{model:path}", describe_model),
        Route(COMPLETIONS, completions.complete, methods=["POST"]),
        Route(RESPONSES, completions.respond, methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _raise_refused})
    app.router.redirect_slashes = False
    app.state.traffic, app.state.tokens, app.state.metrics = traffic, tokens, metrics
    # A request passes through the last added middleware first.
    paths = (COMPLETIONS, RESPONSES)
    app.add_middleware(Limits, paths=paths, settings=settings, traffic=traffic, tokens=tokens)
    if settings.authentication:
        app.add_middleware(Authentication, tokens=tokens)
    app.add_middleware(
        RequestObserver,
        routes=[route.path.partition("{")[0] for route in routes],
        traffic=traffic,
        metrics=metrics,
        log_content=settings.log_content,
    )
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", *HEADERS],
        )
    return app


def _make_response(data: Any, status: int = 200) -> Response:
    return Response(encode_json(data), status, media_type="application/json")


async def _raise_refused(_: Request, error: Exception) -> Response:
    """Re-raise a routing error, so that the middleware that answers all errors handles it."""
    raise to_refused_error(error)
