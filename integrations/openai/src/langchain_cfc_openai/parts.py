"""`generator`, `p_true` and `judge`: models set up as a collection and a `CFCRunnable` need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import openai
from pydantic import SecretStr, ValidationError
from typing_extensions import Unpack

from langchain_cfc.errors import InputError
from langchain_cfc.extend import CRITERION, TOP_LOGPROBS, Mode, Question, Wording
from langchain_cfc.verifiers import ModelJudge, PTrue
from langchain_cfc_openai.chat import ChatCompletions, StructuredOutput
from langchain_cfc_openai.connections import LoopwiseClient, ModelwiseClient

# Stated here, since clients have other defaults in other versions.
_WAITING: Mapping[str, Any] = {"timeout": 120.0, "max_retries": 2}


class Endpoint(TypedDict, total=False):
    """How a model is reached, and what its server knows beyond OpenAI's API.

    Attributes:
        base_url: Address of the API, such as `http://127.0.0.1:8000/v1`; OPENAI_BASE_URL, or OpenAI's own,
            unless given.
        api_key: OPENAI_API_KEY unless given. Any text does for a server that wants none.
        timeout: Seconds that one request may take; 120 unless given.
        max_retries: How often the client repeats a request that a busy or broken server failed, after as
            long as it asks for; 2 unless given. 0 suits a collection, which does that itself.
        default_headers: Headers of every request, as gateways want them.
        extra_body: Further fields that go into a request, such as `{"top_k": 20}`; part of the fingerprint.
    """

    base_url: str
    api_key: str | SecretStr
    timeout: float
    max_retries: int
    default_headers: Mapping[str, str]
    extra_body: Mapping[str, Any]


def generator(
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
    """Make a model from which candidates are drawn.

    It neither streams nor caches, has no seed, and asks for the log-probabilities that `SequenceProbability`
    scores with. `sampling="single_request"`, of `CFCRunnable` or in a `collect.toml`, asks for all n choices
    at once; those that a server does not bring are drawn by separate requests.

    Args:
        model: The model's name, as the endpoint knows it.
        temperature: At least 0; None leaves it to the endpoint. At 0 all candidates are one.
        top_p: Share of probability that tokens are drawn from, in (0, 1].
        max_tokens: Most tokens of a candidate, sent as `max_completion_tokens`. A server that does not know
            that name takes `extra_body={"max_tokens": ...}`.
        stop: Text that ends a candidate, or up to four of them.
        presence_penalty: In [-2, 2].
        frequency_penalty: In [-2, 2].
        logit_bias: By number of a token, what is added to its logit, in [-100, 100].
        reasoning_effort: Of reasoning models, such as `low`.
        verbosity: Of models that know it, such as `low`.
        response_format: What the endpoint holds candidates to, as JSON in the form of the API.
        logprobs: False for models that refuse to give log-probabilities, as reasoning models do. The verifier
            must then be one that does not need the generator's.
        endpoint: See `Endpoint`.

    Returns:
        The model, to be used as it is, bound to tools, or behind a prompt.

    Raises:
        InputError: If a setting is of another kind, or there is no key.
    """
    more = endpoint.pop("extra_body", None) or {}
    if response_format is not None:
        # As the field of its name, clients would parse it, fail on a candidate that was cut off, and so have
        # it drawn again: what is left would be no sample of what the model says.
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


def p_true(
    model: str,
    *,
    ideas: bool = False,
    wording: Wording = "letters",
    question: Question | None = None,
    top_logprobs: int = TOP_LOGPROBS,
    temperature: float | None = 0.0,
    **endpoint: Unpack[Endpoint],
) -> PTrue:
    """`PTrue` with a model: one short request for each distinct text, read from its log-probabilities.

    Args:
        model: The judging model's name; mostly the one that draws.
        ideas: See `PTrue`.
        wording: See `PTrue`.
        question: See `PTrue`.
        top_logprobs: See `PTrue`. Endpoints that return fewer refuse 20.
        temperature: 0 makes judgements repeatable; None for models that refuse it.
        endpoint: See `Endpoint`.

    Returns:
        The verifier; its fingerprint states the model, its parameters and a digest of the words.

    Raises:
        InputError: If a setting is of another kind, or there is no key.
    """
    judging = _make_model(model, endpoint, temperature=temperature)
    return PTrue(judging, ideas=ideas, wording=wording, question=question, top_logprobs=top_logprobs)


def judge(
    model: str,
    *,
    criterion: str = CRITERION,
    mode: Mode = "structured",
    reasoning: bool = False,
    question: Question | None = None,
    top_logprobs: int = TOP_LOGPROBS,
    structured_output: StructuredOutput = "json_schema",
    temperature: float | None = 0.0,
    max_tokens: int | None = 1024,
    reasoning_effort: str | None = None,
    **endpoint: Unpack[Endpoint],
) -> ModelJudge:
    """`ModelJudge` with a model: one request for each distinct text.

    Args:
        model: The judging model's name.
        criterion: See `ModelJudge`.
        mode: `structured`: the model states a probability as structured output; `logprobs` and `line` see
            `ModelJudge`.
        reasoning: See `ModelJudge`.
        question: See `ModelJudge`.
        top_logprobs: See `ModelJudge`.
        structured_output: What the endpoint is asked for in the mode `structured`: `json_schema`, a
            `response_format`, or `function_calling`, a tool, which more endpoints know.
        temperature: 0 makes judgements repeatable; None for models that refuse it.
        max_tokens: Most tokens of a judgement, reasoning included.
        reasoning_effort: Of reasoning models, such as `low`.
        endpoint: See `Endpoint`.

    Returns:
        The verifier; its fingerprint states the model, its parameters and a digest of the words.

    Raises:
        InputError: If a setting is of another kind, or there is no key.
    """
    judging = _make_model(
        model,
        endpoint,
        temperature=temperature,
        max_tokens=max_tokens,
        reasoning_effort=reasoning_effort,
        structured_output=structured_output if mode == "structured" else None,
    )
    return ModelJudge(
        judging,
        criterion=criterion,
        mode=mode,
        reasoning=reasoning,
        question=question,
        top_logprobs=top_logprobs,
    )


def _make_model(model: str, endpoint: Endpoint, **settings: Any) -> ChatCompletions:
    """Make the model; settings that are None are left out."""
    unknown = [name for name in endpoint if name not in Endpoint.__annotations__]
    if unknown:
        # The client would send it along, and warn.
        msg = (
            f"{', '.join(unknown)} is no setting; what only your server knows goes into extra_body, the rest "
            f"is {', '.join(Endpoint.__annotations__)}"
        )
        raise InputError(msg)
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        chat_model = ChatCompletions.model_validate(
            {
                "model": model,
                "disable_streaming": True,
                # Given one client, LangChain makes another that overlooks the environment's proxies.
                "http_client": ModelwiseClient(),
                "http_async_client": LoopwiseClient(),
                **_WAITING,
                **endpoint,
                **given,
            }
        )
        chat_model.fingerprint  # noqa: B018 - settings that are no JSON are refused here, not when serving
    except ValidationError as error:
        # Without its input, for the key is among it.
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise InputError(_describe_refusal(wrong)) from None
    except openai.OpenAIError as error:
        msg = f"{_describe_refusal(str(error))} Pass api_key=; where a server wants none, any text does"
        raise InputError(msg) from None
    except TypeError as error:
        raise InputError(_describe_refusal(str(error))) from None
    return chat_model


def _describe_refusal(why: str) -> str:
    return f"no model can be made of these settings: {why}"
