"""Convert every failure to the error object that OpenAI's clients read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from langchain_cfc.errors import (
    DescriptionError,
    DrawError,
    FeatureError,
    InputError,
    PromptKindError,
    ServingTimeoutError,
    VerifierError,
)

# OpenAI's names where they exist; clients choose their exceptions by the status only.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "upstream_error",
    503: "server_error",
    504: "timeout_error",
}


def encode_json(data: Any) -> bytes:
    """Return data as strict JSON in ASCII, on a single line.

    By the escapes, a lone surrogate in an answer is not invalid UTF-8, and a line break in a log does not
    start a new line.

    Raises:
        ValueError: If the data contains NaN or an infinite number.
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")


class RefusedError(Exception):
    """A request is refused or failed, with the reason for its client.

    Args:
        status: HTTP status, 400 or above.
        code: The reason in one word, for programs.
        message: The reason for people; contains nothing that the client did not send, and no prompt.
        param: The field of the request that is the problem, if any.
        headers: Additional headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def to_response(self) -> Response:
        """Return the HTTP response that states the reason."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return Response(
            encode_json({"error": error}), self.status, headers=self.headers, media_type="application/json"
        )


class DisconnectedError(Exception):
    """The client has disconnected, so that no response can be sent."""


# The first matching type counts. Clients get these messages because the errors' own may quote the prompt, a
# candidate or a provider's response.
_SERVING_REFUSALS: dict[type[Exception], tuple[int, str, str]] = {
    FeatureError: (400, "prompt_not_servable", "the prompt is of a kind that did not occur in calibration"),
    PromptKindError: (
        400,
        "prompt_not_servable",
        "the model takes prompts of another kind; if it was calibrated on texts, send one user message",
    ),
    InputError: (400, "prompt_not_servable", "the model cannot serve this request"),
    ServingTimeoutError: (504, "timeout", "the prompt was not decided in time; nothing was answered"),
    DrawError: (502, "draw_failed", "the model did not return as many candidates as it was calibrated with"),
    VerifierError: (
        502,
        "verifier_failed",
        ("the verifier of the model's candidates returned no usable scores"),
    ),
    DescriptionError: (
        502,
        "description_failed",
        ("answers or metadata of the prompt could not be determined"),
    ),
}
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def to_refused_error(error: Exception) -> RefusedError:
    """Return the refusal that a client gets for an error.

    Args:
        error: The exception that was raised while a request was served.

    Returns:
        The error itself if it was meant for the client; otherwise one that reveals no details.
    """
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, HTTPException):
        code = _HTTP_CODES.get(error.status_code, "bad_request")
        message = "there is nothing at this path" if error.status_code == 404 else str(error.detail)  # noqa: PLR2004 - HTTP's own number
        return RefusedError(error.status_code, code, message, headers=error.headers)
    for kind, refusal in _SERVING_REFUSALS.items():
        if isinstance(error, kind):
            return RefusedError(*refusal)
    return RefusedError(500, "internal_error", "internal error; the server's log holds the request's id")
