"""The OpenAPI document of the server, for clients and fuzzers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from langchain_cfc_server.limits import METRICS, OPEN_PATHS
from langchain_cfc_server.models import PROMISES, ServedModel
from langchain_cfc_server.parameters import (
    EMPTY_VALUES,
    HISTORY,
    MESSAGE,
    PARAMETERS,
    SYSTEM,
    list_neutral_values,
)
from langchain_cfc_server.schema import (
    ChatRequest,
    DecidedResponse,
    ErrorResponse,
    Health,
    ModelEntry,
    ModelList,
    ResponsesRequest,
)

COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/responses"
_ERROR_DESCRIPTIONS = {
    400: "The request cannot be served as it is; the error says why.",
    401: "There is no valid token.",
    403: "The token is for something else.",
    404: "There is no such path or model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests are waiting.",
    500: "Internal error of the server.",
    502: "The model or the verifier behind the server failed; nothing was answered.",
    503: "The server is shutting down, or the model behind it is cooling down after failures.",
    504: "The prompt was not decided in time; nothing was answered.",
}
_TEXT = {"schema": {"type": "string"}}
_EVENT = {"itemSchema": {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}}
_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}


def make_document(models: Mapping[str, ServedModel], *, authentication: bool) -> dict[str, Any]:
    """Return the OpenAPI document of a server.

    Args:
        models: The models by name.
        authentication: Whether tokens are checked.
    """
    token = (401, 403) if authentication else ()
    failures = (400, *token, 404, 408, 413, 415, 429, 500, 502, 503, 504)
    paths: dict[str, Any] = {
        "/health/live": {"get": _describe("Whether no chain blocks all others.", Health, 503)},
        "/health/ready": {"get": _describe("Whether the server accepts requests.", Health, 503)},
        METRICS: {"get": _describe("Figures for Prometheus.", None, *token)},
        "/v1/models": {"get": _describe("The models that are served.", ModelList, *token)},
        "/v1/models/{model}": {
            "get": _describe("One of the models.", ModelEntry, *token, 404) | {"parameters": [_MODEL]}
        },
    }
    for path, kind in ((COMPLETIONS, ChatRequest), (RESPONSES, ResponsesRequest)):
        operation = _describe("Answer a conversation, or abstain.", DecidedResponse, *failures)
        operation["responses"]["200"]["content"]["text/event-stream"] = _EVENT
        paths[path] = {"post": operation | {"requestBody": {"required": True, "content": _refer_to(kind)}}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "langchain-cfc server", "version": version("langchain-cfc-server")},
        "paths": paths,
        "components": {"schemas": _make_schemas(models)},
    }
    if authentication:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path in paths.keys() - OPEN_PATHS:
            for operation in paths[path].values():
                operation["security"] = [{"token": []}]
    return document


def _describe(summary: str, usual: type[BaseModel] | None, *failures: int) -> dict[str, Any]:
    """Return an operation, given the schema of its usual response, None for plain text."""
    failed = Health if usual is Health else ErrorResponse
    content = {"text/plain": _TEXT} if usual is None else _refer_to(usual)
    responses = {"200": {"description": summary, "content": content}} | {
        str(status): {"description": _ERROR_DESCRIPTIONS[status], "content": _refer_to(failed)}
        for status in failures
    }
    return {"summary": summary, "responses": responses}


def _refer_to(kind: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}


def _make_schemas(models: Mapping[str, ServedModel]) -> dict[str, Any]:
    """Return the schemas of all requests and responses; those of requests name what the models accept."""
    requests = (ChatRequest, ResponsesRequest)
    responses = (DecidedResponse, ModelList, ModelEntry, ErrorResponse, Health)
    _, found = models_json_schema(
        [*((one, "validation") for one in requests), *((one, "serialization") for one in responses)],
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, Any] = found["$defs"]
    for name in PROMISES:
        held = sorted({value for one in models.values() for value in one.list_choices(name)})
        schemas["CFCOptions"]["properties"][name] |= {"anyOf": [{"enum": [*held, *map(float, held), None]}]}
    has_structure = any(one.has_structure for one in models.values())
    defaults = {
        name: {
            "enum": list_neutral_values(name, has_structure=has_structure),
            "description": "As if left out.",
        }
        for name in PARAMETERS
    }
    ignored = {
        field: {"description": f"Ignored by {', '.join(by)}."}
        for field in sorted({field for one in models.values() for field in one.ignored})
        if field not in {SYSTEM, HISTORY}
        and not field.startswith(MESSAGE)
        and (by := [name for name, one in models.items() if field in one.ignored])
    }
    for kind in requests:
        body = schemas[kind.__name__]
        body["properties"]["model"]["enum"] = list(models)
        own = {n: one for n, one in body["properties"].items() if has_structure or n not in PARAMETERS}
        body["properties"] = {**defaults, **own, **ignored}
        body["additionalProperties"] = {"enum": [*EMPTY_VALUES, False]}
    return schemas
