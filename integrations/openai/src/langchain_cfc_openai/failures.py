"""Convert failures of an endpoint to `EndpointError`, with a message that says what to do.

The client's own exception stays its cause, so that code that retries requests still sees the status and the
server's `retry-after` time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from langchain_cfc.errors import ServingError
from langchain_cfc.execution import describe_error

_STATUS_HINTS = {
    400: "remove parameters that the endpoint does not know, such as logprobs or top_logprobs",
    401: "pass the endpoint's key as api_key= or OPENAI_API_KEY",
    403: "pass a key that may use this model as api_key= or OPENAI_API_KEY",
    404: "check the model's name and base_url=, whose path usually ends in /v1",
    413: "send less, or use a model with a longer context",
    422: "remove parameters that the endpoint does not know, such as logprobs or top_logprobs",
    429: "make fewer requests at once (max_concurrency), let the client wait and repeat (max_retries), or "
    "raise the quota",
}
_SERVER_ERROR = 500
_TEMPORARY_HINT = "the failure may be temporary: let the client repeat requests (max_retries)"
_ADDRESS_HINT = "check that base_url= is an OpenAI-compatible API, whose path usually ends in /v1"


class EndpointError(ServingError):
    """An endpoint refuses a request, cannot be reached, or returns an invalid response.

    It is the cause of the `DrawError` or `VerifierError` that serving raises.
    """


@contextmanager
def explain_failures() -> Iterator[None]:
    """Convert failures of a request to an `EndpointError` that says what to do.

    Other exceptions pass.
    """
    try:
        yield
    except (openai.OpenAIError, json.JSONDecodeError) as error:
        what, hint = _describe_failure(error)
        msg = f"{what} ({describe_error(error)}): {hint}"
        raise EndpointError(msg) from error


def make_unreadable_error(error: Exception) -> EndpointError:
    """Return the error for a response that is JSON but not a chat completion."""
    msg = f"the endpoint's response is not a chat completion ({describe_error(error)}): {_ADDRESS_HINT}"
    return EndpointError(msg)


def _describe_failure(error: Exception) -> tuple[str, str]:
    """Return what happened and what to do about it, as two texts."""
    if isinstance(error, openai.APIStatusError):
        return _describe_status(error)
    if isinstance(error, openai.APITimeoutError):
        return "the endpoint did not answer in time", "increase timeout=, or decrease max_tokens="
    if isinstance(error, openai.APIConnectionError):
        return (
            "the connection to the endpoint failed",
            f"check that a server listens at base_url=; if it does, {_TEMPORARY_HINT}",
        )
    return "the endpoint's response cannot be read", _ADDRESS_HINT


def _describe_status(error: openai.APIStatusError) -> tuple[str, str]:
    status = error.status_code
    asked = error.response.headers.get("retry-after")
    waiting = "" if asked is None else f" and asks to wait for {asked} seconds"
    hint = _STATUS_HINTS.get(status, _TEMPORARY_HINT if status >= _SERVER_ERROR else _ADDRESS_HINT)
    return f"the endpoint answered with status {status}{waiting}", hint
