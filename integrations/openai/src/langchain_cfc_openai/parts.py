"""`make_generator`, `make_judge`: models configured for collections and for `CFCRunnable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import openai
from pydantic import SecretStr, ValidationError
from typing_extensions import Unpack

from langchain_cfc.errors import InputError
from langchain_cfc.extend import CRITERION, TOP_LOGPROBS, Mode, Question
from langchain_cfc.verifiers import ModelJudge
from langchain_cfc_openai.chat import ChatCompletions
from langchain_cfc_openai.connections import PerLoopClient, SelfClosingClient

# Stated here, because the client's defaults differ between versions.
_WAITING_DEFAULTS: Mapping[str, Any] = {"timeout": 120.0, "max_retries": 2}


class Endpoint(TypedDict, total=False):
    """Connection settings of a model, and request fields beyond OpenAI's API.

    Attributes:
        base_url: Address of the API, such as `http://127.0.0.1:8000/v1`. Default: OPENAI_BASE_URL, or
            OpenAI's own API.
        api_key: Default: OPENAI_API_KEY. Any text will do for a server that needs no key.
        timeout: Time limit of a request, in seconds; default 120.
        max_retries: How often the client repeats a request after an error of a busy or broken server, waiting
            as long as the server asks; default 2. Use 0 in a collection, which retries by itself.
        default_headers: Headers of every request, for example for gateways.
        extra_body: Further fields of the request body, such as `{"top_k": 20}`; part of the fingerprint.
    """

    base_url: str
    api_key: str | SecretStr
    timeout: float
    max_retries: int
    default_headers: Mapping[str, str]
    extra_body: Mapping[str, Any]


def make_generator(
    model: str,
    *,
    temperature: float | None = 1.0,
    top_p: float | None = None,
    max_tokens: int | None = None,
    stop: str | Sequence[str] | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    logit_bias: Mapping[str, int] | None = None,
    reasoning_effort: str | None = None,
    verbosity: str | None = None,
    response_format: Mapping[str, Any] | None = None,
    logprobs: bool = True,
    **endpoint: Unpack[Endpoint],
) -> ChatCompletions:
    """Return a chat model for drawing candidates.

    It neither streams nor caches, has no seed, and requests the log-probabilities that `SequenceProbability`
    needs. `sampling="single_request"`, of `CFCRunnable` or in a `collect.toml`, requests all n choices at
    once; choices that a server does not return are drawn by separate requests.

    Args:
        model: The model's name at the endpoint.
        temperature: At least 0; None leaves it to the endpoint. At 0, all candidates are (nearly) the same.
        top_p: Probability mass that tokens are sampled from, in (0, 1].
        max_tokens: Maximum number of tokens of a candidate, sent as `max_completion_tokens`. For a server
            that does not know that name, use `extra_body={"max_tokens": ...}`.
        stop: One text, or up to four, that ends a candidate.
        presence_penalty: In [-2, 2].
        frequency_penalty: In [-2, 2].
        logit_bias: Values in [-100, 100] that are added to logits, by token number.
        reasoning_effort: For reasoning models, for example `low`.
        verbosity: For models that support it, for example `low`.
        response_format: The format that the endpoint enforces for candidates, as JSON in the API's form.
        logprobs: Set to False for models that refuse log-probabilities, such as reasoning models. The
            verifier must then not need the generator's log-probabilities.
        endpoint: See `Endpoint`.

    Returns:
        The model, to use by itself, with bound tools, or after a prompt template.

    Raises:
        InputError: If a setting is invalid, or there is no key.
    """
    more = endpoint.pop("extra_body", None) or {}
    if response_format is not None:
        # Not passed by name: the client would then parse candidates, fail on those that are cut off, and draw
        # them again, so that the candidates would not be a sample of the model's output.
        more = {"response_format": dict(response_format), **more}
    return _make_model(
        model,
        endpoint,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=[stop] if isinstance(stop, str) else stop and list(stop),
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        reasoning_effort=reasoning_effort,
        verbosity=verbosity,
        extra_body=more or None,
        logprobs=logprobs or None,
        cache=False,
    )


def make_judge(
    model: str,
    *,
    criterion: str = CRITERION,
    mode: Mode | None = None,
    question: Question | None = None,
    top_logprobs: int = TOP_LOGPROBS,
    temperature: float | None = 0.0,
    max_tokens: int | None = 1024,
    reasoning_effort: str | None = None,
    **endpoint: Unpack[Endpoint],
) -> ModelJudge:
    """Return a `ModelJudge` verifier, with one request per distinct text.

    Args:
        model: The judging model's name.
        criterion: See `ModelJudge`.
        mode: See `ModelJudge`; by default `logprobs`. Choose `line` for reasoning models.
        question: See `ModelJudge`.
        top_logprobs: See `ModelJudge`. Endpoints with a lower limit refuse 20.
        temperature: 0 makes judgements repeatable; None for models that refuse the parameter.
        max_tokens: Maximum number of tokens of a judgement in the mode `line`, including reasoning.
        reasoning_effort: For reasoning models, for example `low`.
        endpoint: See `Endpoint`.

    Returns:
        The verifier; its fingerprint states the model, its parameters and a digest of the prompt's wording.

    Raises:
        InputError: If a setting is invalid, or there is no key.
    """
    judging = _make_model(
        model,
        endpoint,
        temperature=temperature,
        max_tokens=max_tokens,
        reasoning_effort=reasoning_effort,
    )
    return ModelJudge(
        judging,
        criterion=criterion,
        mode=mode,
        question=question,
        top_logprobs=top_logprobs,
    )


def _make_model(model: str, endpoint: Endpoint, **settings: Any) -> ChatCompletions:
    """Return the model with the given settings; settings that are None are left out."""
    unknown = [name for name in endpoint if name not in Endpoint.__annotations__]
    if unknown:
        # The client would only warn, and send unknown settings along.
        msg = (
            f"{', '.join(unknown)} is not a setting; pass settings that only your server knows in "
            f"extra_body, others are {', '.join(Endpoint.__annotations__)}"
        )
        raise InputError(msg)
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        chat_model = ChatCompletions.model_validate(
            {
                "model": model,
                "disable_streaming": True,
                # Given only one client, LangChain makes another that ignores proxies of the environment.
                "http_client": SelfClosingClient(),
                "http_async_client": PerLoopClient(),
                **_WAITING_DEFAULTS,
                **endpoint,
                **given,
            }
        )
        chat_model.fingerprint  # noqa: B018 - refuse settings that are not JSON here, not when serving
    except ValidationError as error:
        # Without the error's input, which contains the key.
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise InputError(_describe_refusal(wrong)) from None
    except openai.OpenAIError as error:
        msg = f"{_describe_refusal(str(error))} Pass api_key=; if the server needs none, any text works"
        raise InputError(msg) from None
    except TypeError as error:
        raise InputError(_describe_refusal(str(error))) from None
    return chat_model


def _describe_refusal(why: str) -> str:
    return f"cannot make a model from these settings: {why}"
