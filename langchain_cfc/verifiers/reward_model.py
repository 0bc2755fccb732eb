"""A reward model or reranker over HTTP, with the interface of vLLM's `/score`.

Requests use the standard library: langchain-core brings an HTTP client only in its later versions. Each async
request runs in a thread of its own, which does nothing but wait.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor
from pydantic import SecretStr

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import Steps, call_each, unwrap_outcomes
from langchain_cfc.sampling.connections import normalise_address
from langchain_cfc.sampling.models import make_optional_call
from langchain_cfc.support.serialization import compute_sha256
from langchain_cfc.support.text import quote
from langchain_cfc.verifiers.base import TextVerifier, combine_fingerprints
from langchain_cfc.verifiers.prompts import read_prompt

Question: TypeAlias = Runnable[Any, Any] | Callable[[Any], str] | Callable[[Any], Awaitable[str]]

_HINT = "pass question=, a function of the prompt that returns the text to judge candidates by"
_MAX_LENGTH = 200


class RewardModel(TextVerifier):
    """Score = 1 - reward, or a logistic function of the negative reward if rewards are unbounded.

    The score lies in [0, 1], and smaller is better; rewards are larger for better texts. A prompt takes one
    request, `POST <base_url>/score`, with the prompt as `text_1` and the candidates' distinct texts as
    `text_2`. vLLM serves this for reward models with one output and for rerankers, and mostly answers with
    the sigmoid of the reward, which is in [0, 1].

    Args:
        base_url: Where the model is served, such as `http://localhost:8000`; `/v1` may follow.
        model: Name under which it is served; the fingerprint states it, and a digest of the address.
        api_key: Sent as bearer token. Neither messages nor `repr` show it.
        question: Function or Runnable, plain or async, from a prompt to the text that candidates are judged
            by. By default, the prompt's own text, or the transcript of its messages; a prompt that holds more
            than text, such as an image, is then refused with a `VerifierError`.
        scale: For rewards of any size, the reward that gives score 1 / (1 + e), above 0: the score is
            1 / (1 + exp(reward / scale)), which falls as rewards grow. None for rewards in [0, 1].
        timeout: Seconds that the server may be silent, above 0.

    Raises:
        InputError: If an argument is invalid.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: SecretStr | str | None = None,
        question: Question | None = None,
        scale: float | None = None,
        timeout: float = 30.0,
    ) -> None:
        if scale is not None and not 0.0 < scale < math.inf:
            msg = f"scale must be a number above 0, or None for rewards in [0, 1], got {scale!r}"
            raise InputError(msg)
        self.name = "reward-model"
        self.model = model
        self.scale = scale
        self._url = _make_url(base_url)
        self._key = _check_key(api_key)
        if not 0.0 < timeout < math.inf:
            msg = f"timeout must be a number of seconds above 0, got {timeout!r}"
            raise InputError(msg)
        self._timeout = timeout
        settings = {
            "reward_model": model,
            "reward_model.address": compute_sha256(normalise_address(self._url)),
            "score": "1 - reward" if scale is None else f"1 / (1 + exp(reward / {float(scale)!r}))",
            "question": "of the prompt" if question is None else "own",
        }
        self.fingerprint = combine_fingerprints(self.name, settings, {"question": question})
        self._question = make_optional_call("question function", question, VerifierError)

    def __repr__(self) -> str:
        """Name the model and its address."""
        return f"RewardModel({self.model!r} at {self._url})"

    def score_texts(self, prompt: Any, config: RunnableConfig, texts: list[str]) -> Steps[list[float]]:
        """Send one request for all texts."""
        question = yield from self._read_question(prompt, config)
        body = {"model": self.model, "text_1": question, "text_2": texts}
        [answer] = unwrap_outcomes((yield call_each(self._post, self._apost, [body])))
        return [self._score(reward) for reward in self._read_rewards(answer, len(texts))]

    def _read_question(self, prompt: Any, config: RunnableConfig) -> Steps[str]:
        if self._question is None:
            content = read_prompt(prompt, _HINT, VerifierError)
            return content.require_text("a reward model", _HINT, VerifierError)
        found = yield from self._question.invoke_one(prompt, config)
        if not isinstance(found, str):
            msg = f"question= returned a {type(found).__name__}; expected text"
            raise VerifierError(msg)
        return found

    def _score(self, reward: float) -> float:
        if self.scale is not None:
            return _logistic(-reward / self.scale)
        if 0.0 <= reward <= 1.0:
            return 1.0 - reward
        problem = f"gave a reward of {reward}, outside [0, 1]: pass scale=, the size of a typical reward"
        raise self._make_error(problem)

    def _post(self, body: Mapping[str, Any]) -> Any:
        """Return the JSON that the server answers with; raise a `VerifierError` if there is none."""
        headers = {"Content-Type": "application/json", "User-Agent": "langchain-cfc"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        request = Request(self._url, json.dumps(body).encode(), headers)  # noqa: S310 - http or https, checked
        try:
            with build_opener(_NoRedirect).open(request, timeout=self._timeout) as response:
                content = response.read()
        except HTTPError as error:
            problem = f"answered with status {error.code}: {self._quote(_read_error_body(error))}"
            raise self._make_error(problem) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            problem = f"failed ({type(reason).__name__}: {reason})"
            if isinstance(reason, TimeoutError):
                problem = (
                    f"did not answer within {self._timeout:g} seconds: is it still loading? Pass a larger "
                    "timeout= to wait longer"
                )
            raise self._make_error(problem) from error
        try:
            return json.loads(content)
        except ValueError as error:
            problem = f"did not answer with JSON: {self._quote(content)}"
            raise self._make_error(problem) from error

    def _make_error(self, problem: str) -> VerifierError:
        return VerifierError(f"the reward model at {self._url} {problem}")

    async def _apost(self, body: Mapping[str, Any]) -> Any:
        """Post in a new thread, because the loop's own pool has few more threads than there are cores."""
        executor = ContextThreadPoolExecutor(1)
        try:
            return await asyncio.wrap_future(executor.submit(self._post, body))
        finally:
            executor.shutdown(wait=False)

    def _quote(self, content: bytes) -> str:
        """Return the beginning of a body without the key, because servers may quote a key they refuse."""
        text = content.decode("utf-8", "replace")
        if self._key is not None:
            text = text.replace(self._key.get_secret_value(), "***")
        text = quote(text)
        return repr(text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "...")

    def _read_rewards(self, answer: Any, count: int) -> list[float]:
        """Return the rewards in the order of the texts; the server may send them in any order."""
        data = answer.get("data") if isinstance(answer, Mapping) else None
        entries = data if isinstance(data, Sequence) else []
        found = {one.get("index"): one.get("score") for one in entries if isinstance(one, Mapping)}
        rewards = [found.get(index) for index in range(count)]
        if len(entries) != count or not all(map(_is_reward, rewards)):
            problem = (
                f"answered for {count} texts with {quote(repr(answer))[:_MAX_LENGTH]}; expected 'data' with "
                "one 'index' and one finite 'score' per text"
            )
            raise self._make_error(problem)
        return [float(reward) for reward in rewards if reward is not None]


def _read_error_body(error: HTTPError) -> bytes:
    with error:
        try:
            return error.read()
        except (OSError, HTTPException):
            return b""


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects, which would send the key and the prompts to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Return None, which turns the redirect into an error."""
        del args, kwargs


def _make_url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        named = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        named = False
    if not named:
        # The URL is not shown, because it may hold a secret.
        msg = "base_url must start with http:// or https:// and name a host, and its port must be valid"
        raise InputError(msg)
    if "@" in parts.netloc or parts.query or parts.fragment:
        msg = "base_url must hold neither a password nor a query; pass the key as api_key="
        raise InputError(msg)
    return base_url.rstrip("/") + "/score"


def _check_key(api_key: SecretStr | str | None) -> SecretStr | None:
    if api_key is None:
        return None
    key = api_key if isinstance(api_key, SecretStr) else SecretStr(api_key)
    secret = key.get_secret_value()
    # A line break from a file would be refused later, in a message that shows the key.
    if not secret or not all("!" <= character <= "~" for character in secret):
        msg = "api_key must consist of visible ASCII characters; does it end in a line break?"
        raise InputError(msg)
    return key


def _is_reward(value: Any) -> bool:
    # Not `isfinite`, which fails on an integer of hundreds of digits; NaN fails this as well.
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def _logistic(value: float) -> float:
    """Return 1 / (1 + exp(-value)), with full precision near 0, where the best texts differ."""
    grown = math.exp(-abs(value))
    return (grown if value < 0.0 else 1.0) / (1.0 + grown)
