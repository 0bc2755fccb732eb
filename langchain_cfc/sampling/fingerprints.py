"""Compute fingerprints of generators, verifiers, labelers and extractors.

A fingerprint is a mapping such as `{"id": "my-judge", "model": "gpt-4o-mini", "temperature": 0.7}`. It states
the class of the part. A chat model states every sampling parameter that is known here, `null` if it is unset,
so that a parameter that appears or disappears counts as a difference and not as a gap. Other settings that
differ from their defaults, headers included, are listed under `settings`, and a digest of the server's
address under `address`. Parts that cannot be described, such as a function in a chain or a class of the
user's own, are listed under `unnamed`. `langchain_cfc.sampling.comparison` says when two of them match.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, SecretStr

from langchain_cfc.errors import FingerprintError
from langchain_cfc.execution.langgraph_compat import get_tracing_params
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.sampling.code_identity import (
    find_named_class,
    is_configured_per_call,
    is_default,
    is_described_by_base,
    is_known_code,
    list_shadowed_methods,
    name_code,
)
from langchain_cfc.sampling.connections import (
    ACCOUNT_ENDINGS,
    ADDRESS_ENDINGS,
    describe_address,
    is_mapping_of_headers,
    list_custom_clients,
    select_headers,
)
from langchain_cfc.support.serialization import compute_sha256

# LangChain's tracing parameters, with their names in a fingerprint.
_LANGCHAIN_NAMES = {
    "ls_model_name": "model",
    "ls_temperature": "temperature",
    "ls_max_tokens": "max_tokens",
    "ls_stop": "stop",
}
# Parameters that every chat model's fingerprint states, null if unset.
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
# Providers' other names for the same settings.
_ALIASES = {
    "model_name": "model",
    "stop_sequences": "stop",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
}
# Settings whose entries become request parameters like the other settings.
PASS_THROUGH = ("model_kwargs", "extra_body", "options")
# Settings of which a bound value takes the place of the model's own.
_REPLACED = frozenset({*SAMPLING_PARAMETERS, *PASS_THROUGH} - {"reasoning"})
# Arguments and fields that do not change what is drawn: delivery, accounting, retries. `n` is among them
# because the sampler sets the number of choices itself.
_IGNORED = frozenset(
    {
        *("n", "candidate_count", "logprobs", "top_logprobs"),
        *("stream", "streaming", "stream_usage", "stream_options", "disable_streaming"),
        *("user", "metadata", "tags", "store", "run_name", "callbacks", "timeout", "max_retries"),
        *("keep_alive", "http_socket_options", "include_response_headers", "prompt_cache_options"),
        *("tiktoken_model_name", "ls_structured_output_format"),
        *("on_abstain", "full_result"),  # of a `CFCChatModel`
    }
)
# Bound arguments that turn a model into a different generator; compared by a common digest.
_TOOLS = ("tools", "tool_choice", "functions", "response_format")
TOOLS_DIGEST = "tools_digest"
# Stated as `kept` if reasoning is left in the texts of a generator; absent if it is removed.
REASONING_TEXT = "reasoning_text"
_PROMPT_DIGEST = "prompt_digest"
_STEPS_DIGEST = "steps_digest"
_SETTINGS = "settings"
_UNNAMED = "unnamed"
CLASS = "class"
ADDRESS = "address"


def compute_fingerprint(
    part: object, given_id: str | None = None, reasoning: Reasoning = "strip"
) -> dict[str, Any]:
    """Return the fingerprint of a generator, verifier or extractor.

    Args:
        part: Any object. If it has an attribute `fingerprint` (a mapping), that is used. A chat model states
            its name and settings, also inside a binding, retries or a sequence. A part that is configured
            per call or has fallbacks states nothing, because it is not known yet which model will answer.
        given_id: The user's name for the part, stored as `id`; it vouches for steps that cannot be described.
        reasoning: For a generator, whether reasoning in its texts is removed, see `CFCRunnable`.

    Returns:
        The fingerprint as plain data; empty if nothing is known.

    Raises:
        FingerprintError: If the part states an id other than `given_id`.
    """
    known = _describe_part(part)
    # A generator that replays records states how they were drawn, not how its texts are read now.
    known = {key: value for key, value in known.items() if key != REASONING_TEXT}
    if reasoning != "strip":
        known[REASONING_TEXT] = "kept"
    if given_id is None:
        return known
    is_ours = str(known.get(CLASS)).startswith("langchain_cfc")
    if is_ours and known.get("id", given_id) != given_id:
        # Such an id names a method; the user's vouches for the servers and functions in it.
        known = {**known, "method": known["id"], "id": given_id}
    if known.get("id", given_id) != given_id:
        msg = f"given the id {given_id!r}, but it states the id {known['id']!r}"
        raise FingerprintError(msg)
    return {**{key: value for key, value in known.items() if not is_unnamed(key)}, "id": given_id}


def is_identified(stated: Mapping[str, Any]) -> bool:
    """Return whether a fingerprint names an id, a model or a class, and leaves nothing in it unnamed."""
    return bool({"id", "model", CLASS} & set(stated)) and not any(is_unnamed(key) for key in stated)


def is_unnamed(key: str) -> bool:
    """Return whether a fingerprint's key lists parts that cannot be described."""
    # Keys of composite fingerprints have the role as a prefix: `model.unnamed`.
    return key.rpartition(".")[2] == _UNNAMED


def describe_model(part: Any, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of a model, or of what states one; empty for any other part."""
    # Wrappers forward the attributes of the wrapped part, without their own changes to it.
    if isinstance(part, RunnableBindingBase) or is_configured_per_call(part):
        return {}
    # `getattr` alone would instantiate a model that is only made when called, if the attribute is missing.
    own = getattr(part, "fingerprint", None) if inspect.getattr_static(part, "fingerprint", None) else None
    if isinstance(own, Mapping):
        return _add_bound_arguments(_add_class(part, own), bound)
    return _describe_chat_model(part, bound) if isinstance(part, BaseChatModel) else {}


def _describe_part(part: object) -> dict[str, Any]:
    """Return the fingerprint of the model that answers, with digests of the steps around it.

    That is the last model, or the last part that states anything. Without any, it is the part's class with a
    digest; empty if the part cannot be described.
    """
    # Late: LangChain's prompts and tools take a while to import, and a process that needs them has them.
    from langchain_cfc.sampling.step_descriptions import ChainDescription

    chain = ChainDescription()
    tree = chain.describe(part, is_last=True)
    steps = tree if isinstance(tree, list) else [tree]
    if not chain.models:
        return {} if chain.unnamed else {CLASS: name_code(type(part)), _STEPS_DIGEST: _digest(steps)}
    models = [place for place, one in enumerate(chain.models) if "model" in one]
    answering = (models or range(len(chain.models)))[-1]
    known = chain.models.pop(answering)
    for one in chain.models:
        chain.unnamed += [] if is_identified(one) else one.get(_UNNAMED, ["a part without an id"])
    if chain.prompts:
        known = {**known, _PROMPT_DIGEST: compute_sha256("\n".join(chain.prompts))}
    if not all(one is None or "prompt" in one or one == {"model": answering} for one in steps):
        known = {**known, _STEPS_DIGEST: _digest([steps, chain.models])}
    return _add_unnamed(known, chain.unnamed)


def _digest(described: Any) -> str:
    return compute_sha256(json.dumps(described, sort_keys=True))


def _add_class(part: object, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part's own fingerprint with its class.

    What an own class inherits from a class of this library describes only the latter: its id does not vouch.
    """
    kind = find_named_class(type(part))
    if isinstance(part, FunctionType) or kind.__module__ in sys.stdlib_module_names:
        return dict(own)
    known = {CLASS: name_code(kind), **own}
    if isinstance(part, BaseChatModel) and (address := describe_address(part)) is not None:
        known.setdefault(ADDRESS, address)
    if known[CLASS] is None:  # a part that replays records, which do not state the class
        del known[CLASS]
    if not is_described_by_base(part, "fingerprint"):
        return known
    inherited = {"method" if key == "id" else key: value for key, value in known.items()}
    return _add_unnamed({**inherited, CLASS: name_code(kind)}, [f"the class {kind.__name__}"])


def _add_bound_arguments(own: Mapping[str, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part's own fingerprint with the arguments bound to the part."""
    arguments = {name: value for name, value in bound.items() if name not in (*_TOOLS, *_IGNORED)}
    direct = {name: value for name, value in arguments.items() if name in own}
    others = dict(_flatten_settings({name: value for name, value in arguments.items() if name not in own}))
    aliased = {name: others.pop(name) for name in list(others) if name in own}
    digest, unnamed_tools = _digest_tools(bound)
    known = _add_unnamed({**own, **direct, **aliased, **digest}, unnamed_tools)
    if not others:
        return known
    if "model" not in own:
        return _add_unnamed(known, [f"the arguments {', '.join(others)}"])
    settings, unnamed = _describe_settings(others)
    return _add_unnamed({**known, _SETTINGS: {**(own.get(_SETTINGS) or {}), **settings}}, unnamed)


def _describe_chat_model(model: BaseChatModel, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of a chat model; empty if it does not name its model."""
    params: Mapping[str, Any] = get_tracing_params(model, **bound)
    if params.get("ls_model_name") is None:
        return {}
    known = {name: params[key] for key, name in _LANGCHAIN_NAMES.items() if params.get(key) is not None}
    kind = find_named_class(type(model))
    known = {CLASS: name_code(kind), **dict.fromkeys(SAMPLING_PARAMETERS), **known}
    own = _read_own_settings(model)
    unknown = [] if is_known_code(kind) else [f"the class {kind.__name__}"]
    unknown += [f"the attribute {name}" for name in list_shadowed_methods(model)]
    # Other own settings may be in force beside a bound one: ChatAnthropic merges its output_config.
    replaced = {name for name in own.keys() & bound.keys() if _ALIASES.get(name, name) in _REPLACED}
    own = {
        f"own {name}" if name in bound else name: value for name, value in own.items() if name not in replaced
    }
    outer = dict(_flatten_settings(bound))
    given = {**dict(_flatten_settings(own)), **outer}
    for name in ("model", *SAMPLING_PARAMETERS):
        value = given.pop(name, None)
        # An argument bound as None takes the model's own away, except for `stop`, an argument of every call.
        if value is not None or (name in outer and name != "stop"):
            known[name] = value
    known["stop"] = [known["stop"]] if isinstance(known["stop"], str) else known["stop"] or None
    plain, unnamed = _describe_settings({name: known[name] for name in SAMPLING_PARAMETERS}, verbatim=True)
    settings = state_settings(given)
    unnamed += [*unknown, *list_custom_clients(model)]
    return _add_unnamed({**known, **plain, ADDRESS: describe_address(model), **settings}, unnamed)


def state_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint entries for settings of a chat model that have no key of their own.

    Args:
        given: Fields or request arguments by name; those without effect on what is drawn are left out. Texts
            and structures are kept as digests only, because a setting that is unknown here may be a secret.

    Returns:
        `settings` and `tools_digest`, null if there are none; `prompt_digest` and `steps_digest`, null for a
            model on its own; and `unnamed` if a setting is not plain data.
    """
    flat = dict(_flatten_settings(given))
    described, unnamed = _describe_settings(flat)
    unset = dict.fromkeys((TOOLS_DIGEST, _PROMPT_DIGEST, _STEPS_DIGEST))
    digest, unnamed_tools = _digest_tools(flat)
    return _add_unnamed({**unset, _SETTINGS: described or None, **digest}, [*unnamed, *unnamed_tools])


def _read_own_settings(model: BaseChatModel) -> dict[str, Any]:
    """Return the fields of a model that may change its output: sampling parameters and non-default values.

    The fields of `BaseChatModel` are left out: they concern callbacks, caches and names.
    """
    settings = {}
    extra = model.model_extra or {}
    for name, value in {**vars(model), **extra}.items():
        field = type(model).model_fields.get(name)
        if field is None and name not in extra:
            continue
        # `output_version` may choose another interface of the provider.
        is_inherited = name in BaseChatModel.model_fields and name != "output_version"
        if is_inherited or (field is not None and field.exclude):
            continue
        # Sampling parameters are always stated, other settings only if they differ from their default and do
        # not concern the connection. The model's name comes from the tracing parameters.
        usual = _ALIASES.get(name, name)
        is_unstated = (
            name.endswith((*ACCOUNT_ENDINGS, *ADDRESS_ENDINGS, "client")) and not is_mapping_of_headers(name)
        ) or is_default(field, value)
        if usual != "model" and (usual in SAMPLING_PARAMETERS or not is_unstated):
            settings[name] = value
    return settings


def _flatten_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings by their usual names, including those in `PASS_THROUGH`; later ones take precedence."""
    for name, value in settings.items():
        if name in PASS_THROUGH and isinstance(value, Mapping):
            yield from _flatten_settings(value)
            if name == "options":  # of Ollama, where they replace all fields; other servers may ignore them
                yield name, value
        elif is_mapping_of_headers(name):
            yield name, select_headers(name, value)
        elif name not in _IGNORED:
            yield _ALIASES.get(name, name), value


def _describe_settings(
    settings: Mapping[str, Any], *, verbatim: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return settings as plain data, and the names of settings that cannot be written as such.

    Texts and structures become digests unless `verbatim` is set: an unknown setting may hold a secret.
    """
    described: dict[str, Any] = {}
    unnamed = []
    for name, value in settings.items():
        if isinstance(value, SecretStr) or name in _TOOLS or (value is None and not verbatim):
            continue
        try:
            # Converted to JSON and back, so that tuples and numeric keys equal those read from a file.
            plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
            written = json.dumps(plain, sort_keys=True, allow_nan=False)
        except Exception:  # noqa: BLE001 - a provider's object may raise anything
            unnamed.append(f"the setting {name}")
            continue
        is_short = isinstance(plain, (bool, int, float))
        described[name] = json.loads(written) if verbatim or is_short else compute_sha256(written)
    return described, unnamed


def _digest_tools(bound: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return a SHA-256 of the bound tools and response formats, and the names of any that are unreadable."""
    tools = {name: bound[name] for name in _TOOLS if bound.get(name) is not None}
    if not tools:
        return {}, []
    with suppress(Exception):  # a tool may fail in ways of its own
        # A tool or format is written as the schema that a model is shown.
        written = json.dumps(tools, sort_keys=True, default=convert_to_openai_tool)
        return {TOOLS_DIGEST: compute_sha256(written)}, []
    return {}, [f"the {' and '.join(tools)} bound to it"]


def _add_unnamed(known: dict[str, Any], unnamed: Sequence[str]) -> dict[str, Any]:
    """Return a fingerprint with further entries in its list of parts that cannot be described."""
    if not unnamed:
        return known
    return {**known, _UNNAMED: [*known.get(_UNNAMED, []), *unnamed]}
