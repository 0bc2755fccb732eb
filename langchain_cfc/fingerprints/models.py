"""What a chat model states: its name, every sampling parameter, and whatever else it was given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, SecretStr

# The names of LangChain's tracing parameters in a fingerprint.
_LANGCHAIN_NAMES = {
    "ls_model_name": "model",
    "ls_temperature": "temperature",
    "ls_max_tokens": "max_tokens",
    "ls_stop": "stop",
}
# What every chat model states, null where it is unset.
SAMPLING_PARAMETERS = (
    "temperature",
    "max_tokens",
    "stop",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "logit_bias",
    "seed",
    "reasoning_effort",
    "reasoning",
    "verbosity",
)
# Other names that providers give to the same settings.
_ALIASES = {
    "model_name": "model",
    "stop_sequences": "stop",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
}
# Settings whose content goes into the request beside the others.
_PASSED_ON = ("model_kwargs", "extra_body", "options")
# Arguments and fields that do not change what is drawn: delivery, accounting, retries. Whatever `n` says, the
# sampler asks for the choices itself.
NO_EFFECT = frozenset(
    {
        *("n", "candidate_count", "logprobs", "top_logprobs"),
        *("stream", "streaming", "stream_usage", "stream_options", "disable_streaming"),
        *("user", "metadata", "tags", "store", "service_tier", "run_name", "callbacks"),
        *("timeout", "max_retries", "extra_headers", "headers", "extra_query", "default_query"),
        *("keep_alive", "http_socket_options", "include_response_headers", "prompt_cache_options"),
        *("tiktoken_model_name", "ls_structured_output_format"),
    }
)
# Fields of a model that say where and how it is reached, by the end of their names.
_CONNECTION = (
    *("key", "token", "secret", "password", "credentials", "headers"),
    *("url", "uri", "endpoint", "_base", "host", "proxy", "region", "location"),
    *("organization", "project", "timeout", "retries", "client", "session"),
)
# Bound arguments that make another generator of a model.
TOOLS = ("tools", "tool_choice", "functions", "response_format")
TOOLS_DIGEST = "tools_digest"
PROMPT_DIGEST = "prompt_digest"
STEPS_DIGEST = "steps_digest"
SETTINGS = "settings"
UNNAMED = "unnamed"


def state_chat_model(model: BaseChatModel, bound: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of a chat model; empty where it does not name its model."""
    params: Mapping[str, Any] = model._get_ls_params(**bound)  # noqa: SLF001 - the documented hook for tracing
    if params.get("ls_model_name") is None:
        return {}
    known = {name: params[key] for key, name in _LANGCHAIN_NAMES.items() if params.get(key) is not None}
    given: dict[str, Any] = {**dict(flatten_settings(_own_settings(model))), **dict(flatten_settings(bound))}
    stated = {name: given.pop(name) for name in ("model", *SAMPLING_PARAMETERS) if name in given}
    known = {
        **dict.fromkeys(SAMPLING_PARAMETERS),
        **known,
        **{name: value for name, value in stated.items() if value is not None},
    }
    known["stop"] = [known["stop"]] if isinstance(known["stop"], str) else known["stop"] or None
    plain, unnamed = describe_settings({name: known[name] for name in SAMPLING_PARAMETERS}, verbatim=True)
    settings = state_settings(given)
    return add_unnamed({**known, **plain, **settings}, unnamed)


def state_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement of a chat model's settings that have no name of their own in its fingerprint.

    Args:
        given: Fields or request arguments by name; those without effect on what is drawn are left out. Only
            digests of texts and structures are kept: a setting that is unknown here may hold a secret.

    Returns:
        `settings` and `tools_digest`, null where there are none, `prompt_digest` and `steps_digest`, null for
            a model on its own, and `unnamed` where a setting is no plain data.
    """
    flat = dict(flatten_settings(given))
    described, unnamed = describe_settings(flat)
    unset = dict.fromkeys((TOOLS_DIGEST, PROMPT_DIGEST, STEPS_DIGEST))
    return add_unnamed({**unset, SETTINGS: described or None, **digest_tools(flat)}, unnamed)


def _own_settings(model: BaseChatModel) -> dict[str, Any]:
    """The fields of a chat model that may change what it draws, where they differ from their defaults."""
    held = {**vars(model), **(model.model_extra or {})}
    settings = {}
    for name, value in held.items():
        field = type(model).model_fields.get(name)
        if field is None and name not in (model.model_extra or {}):
            continue
        if name in BaseChatModel.model_fields or (field is not None and field.exclude):
            continue
        # A setting that is known is stated whatever its default; any other one only if it was changed.
        if _ALIASES.get(name, name) not in SAMPLING_PARAMETERS and (
            name.endswith(_CONNECTION) or _is_default(model, name, value)
        ):
            continue
        settings[name] = value
    return {name: value for name, value in settings.items() if _ALIASES.get(name, name) != "model"}


def _is_default(model: BaseChatModel, name: str, value: Any) -> bool:
    field = type(model).model_fields.get(name)
    if field is None:
        return False
    try:
        return bool(value == field.get_default(call_default_factory=True, validated_data={}))
    except Exception:  # noqa: BLE001 - a factory of the provider's, or a comparison that is no boolean
        return False


def flatten_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings by their usual names, those that some of them pass on among them; later ones overrule."""
    for name, value in settings.items():
        if name in _PASSED_ON and isinstance(value, Mapping):
            yield from flatten_settings(value)
        elif name not in NO_EFFECT:
            yield _ALIASES.get(name, name), value


def describe_settings(
    settings: Mapping[str, Any], *, verbatim: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Settings as plain data, and the names of those that have none.

    Texts and structures stand as digests unless they are asked for `verbatim`: a setting that is unknown here
    may hold anything, also a secret.
    """
    described: dict[str, Any] = {}
    unnamed = []
    for name, value in settings.items():
        if isinstance(value, SecretStr) or name in TOOLS or (value is None and not verbatim):
            continue
        try:
            # As a file gives it back, so that numbers as keys and tuples compare equal.
            plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
            written = json.dumps(plain, sort_keys=True, allow_nan=False)
        except Exception:  # noqa: BLE001 - whatever an object of the provider's does
            unnamed.append(f"the setting {name}")
            continue
        is_short = isinstance(plain, (bool, int, float))
        described[name] = json.loads(written) if verbatim or is_short else digest(written)
    return described, unnamed


def digest_tools(bound: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 over the tools and formats that a model is bound to; empty without any."""
    tools = {name: bound[name] for name in TOOLS if bound.get(name) is not None}
    if not tools:
        return {}
    # A class has no JSON; its name stands for it.
    written = json.dumps(
        tools, sort_keys=True, default=lambda part: getattr(part, "__name__", repr(type(part)))
    )
    return {TOOLS_DIGEST: digest(written)}


def add_unnamed(known: dict[str, Any], unnamed: Sequence[str]) -> dict[str, Any]:
    """A fingerprint with further parts that cannot be described."""
    if not unnamed:
        return known
    return {**known, UNNAMED: [*known.get(UNNAMED, []), *unnamed]}


def digest(text: str) -> str:
    """SHA-256 of a text, with the name of the algorithm in front."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
