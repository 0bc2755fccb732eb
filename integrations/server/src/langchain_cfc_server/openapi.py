"""Complete the OpenAPI document of the server, for clients and fuzzers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from fastapi import FastAPI
from pydantic import BaseModel

from langchain_cfc_server.limits import OPEN_PATHS
from langchain_cfc_server.models import ServedModel
from langchain_cfc_server.parameters import EMPTY_VALUES, PARAMETERS, SYSTEM, list_neutral_values
from langchain_cfc_server.schema import ChatCompletionChunk, ChatRequest, ErrorResponse, ResponsesRequest

# The type of FastAPI's argument `responses`.
Responses: TypeAlias = dict[int | str, dict[str, Any]]

COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/responses"
_REFERENCE = "#/components/schemas/{model}"
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

_COMPLETION_EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {
            "type": "string",
            "anyOf": [
                {"const": "[DONE]"},
                {
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": _REFERENCE.format(model="ChatCompletionChunk")},
                },
            ],
        }
    },
}
# An event of the Responses API; its data has a `type` that equals the event's name.
_RESPONSE_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string", "pattern": "^response\\."},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


def describe(description: str, model: type[BaseModel] | None, *failures: int) -> Responses:
    """Return the OpenAPI description of the responses of a path.

    Args:
        description: Of its usual response.
        model: Schema of its usual response; None for plain text.
        *failures: Statuses of the errors that it may return.
    """
    text = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    usual: dict[str, Any] = text if model is None else {"model": model}
    found: Responses = {200: {**usual, "description": description}}
    for status in failures:
        found[status] = {"model": ErrorResponse, "description": _ERROR_DESCRIPTIONS[status]}
    return found


def complete_document(app: FastAPI, models: Mapping[str, ServedModel], *, authentication: bool) -> None:
    """Add request bodies, streams and authentication, which FastAPI does not handle here, to the document.

    Args:
        app: The app, with all its paths.
        models: The models by name.
        authentication: Whether tokens are checked.
    """
    document = app.openapi()
    schemas = document["components"]["schemas"]
    bodies = {
        kind: kind.model_json_schema(ref_template=_REFERENCE) for kind in (ChatRequest, ResponsesRequest)
    }
    for body in bodies.values():
        schemas |= body.pop("$defs")
    for name in ("alpha", "max_wrong_rate"):
        held = sorted({value for one in models.values() for value in one.list_choices(name)})
        choices = [{"enum": [*held, *map(float, held), None]}]
        schemas["CFCOptions"]["properties"][name] |= {"anyOf": choices}
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
        for field in sorted({field for one in models.values() for field in one.ignored} - {SYSTEM})
        if (by := [name for name, one in models.items() if field in one.ignored])
    }
    for path, kind in ((COMPLETIONS, ChatRequest), (RESPONSES, ResponsesRequest)):
        body = bodies[kind]
        body["properties"]["model"]["enum"] = list(models)
        own = {n: one for n, one in body["properties"].items() if has_structure or n not in PARAMETERS}
        body["properties"] = {**defaults, **own, **ignored}
        body["additionalProperties"] = {"enum": [*EMPTY_VALUES]}
        schemas[kind.__name__] = body
        reference = {"$ref": _REFERENCE.format(model=kind.__name__)}
        operation = document["paths"][path]["post"]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    chunk = ChatCompletionChunk.model_json_schema(ref_template=_REFERENCE)
    schemas |= chunk.pop("$defs")
    schemas["ChatCompletionChunk"] = chunk
    for path, event in ((COMPLETIONS, _COMPLETION_EVENT), (RESPONSES, _RESPONSE_EVENT)):
        responses = document["paths"][path]["post"]["responses"]
        responses["200"]["content"]["text/event-stream"] = {"itemSchema": event}
    if authentication:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            if path not in OPEN_PATHS:
                for operation in operations.values():
                    operation["security"] = [{"token": []}]
