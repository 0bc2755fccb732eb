"""Compute fingerprints of generators, verifiers and extractors, and compare serving with calibrated parts.

A fingerprint is a mapping such as `{"id": "my-judge", "model": "gpt-4o-mini", "temperature": 0.7}`. A chat
model states every sampling parameter that is known here, `null` if it is unset, so that a parameter that
appears or disappears counts as a difference and not as a gap. Other settings that differ from their defaults
are listed under `settings`. Parts that cannot be described, such as a function in a chain, are listed under
`unnamed`.

If two fingerprints state different values, the part is refused. They match if they are equal and neither side
leaves anything unstated; otherwise they are unverified. An `id` given by the user vouches for parts that
cannot be described. `model_version`, the name that a served model reports, may drift, so it only warns.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.load import Serializable, dumps
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnablePassthrough, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBinding, RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from langchain_cfc._internal.serialization import compute_sha256
from langchain_cfc.errors import FingerprintError, FingerprintWarning
from langchain_cfc.execution.langgraph_compat import get_tracing_params

__all__ = [
    "SAMPLING_PARAMETERS",
    "Fingerprint",
    "Match",
    "compare_fingerprints",
    "compute_fingerprint",
    "explain_doubt",
    "is_identified",
    "state_settings",
]

Fingerprint = Mapping[str, Any]
Match = Literal["matched", "unverified"]

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
# Arguments and fields that do not change what is drawn: delivery, accounting, retries. `n` is among them
# because the sampler sets the number of choices itself.
_IGNORED = frozenset(
    {
        *("n", "candidate_count", "logprobs", "top_logprobs"),
        *("stream", "streaming", "stream_usage", "stream_options", "disable_streaming"),
        *("user", "metadata", "tags", "store", "service_tier", "run_name", "callbacks"),
        *("timeout", "max_retries", "extra_headers", "headers", "extra_query", "default_query"),
        *("keep_alive", "http_socket_options", "include_response_headers", "prompt_cache_options"),
        *("tiktoken_model_name", "ls_structured_output_format"),
        *("on_abstain", "full_result"),  # of a `CFCChatModel`
    }
)
# Endings of the names of fields that say where and how a model is reached.
_CONNECTION_ENDINGS = (
    *("key", "token", "secret", "password", "credentials", "headers"),
    *("url", "uri", "endpoint", "_base", "host", "proxy", "region", "location"),
    *("organization", "project", "timeout", "retries", "client", "session"),
)
# Names of the model field in providers' embeddings classes, and fields that do not change a vector.
_EMBEDDING_MODEL_FIELDS = ("model", "model_name", "model_id", "repo_id", "deployment")
_EMBEDDING_DELIVERY = ("chunk_size", "batch_size", "show_progress", "show_progress_bar", "skip_empty")
# Bound arguments that turn a model into a different generator; compared by a common digest.
_TOOLS = ("tools", "tool_choice", "functions", "response_format")
_TOOLS_DIGEST = "tools_digest"
_PROMPT_DIGEST = "prompt_digest"
_STEPS_DIGEST = "steps_digest"
_SETTINGS = "settings"
_UNNAMED = "unnamed"


def compute_fingerprint(part: object, given_id: str | None = None) -> dict[str, Any]:
    """Return the fingerprint of a generator, verifier or extractor.

    Args:
        part: Any object. If it has an attribute `fingerprint` (a mapping), that is used. A chat model states
            its name and settings, also inside a binding, retries or a sequence. A part that is configured
            per call or has fallbacks states nothing, because it is not known yet which model will answer.
        given_id: The user's name for the part, stored as `id`; it vouches for steps that cannot be described.

    Returns:
        The fingerprint as plain data; empty if nothing is known.

    Raises:
        FingerprintError: If the part states an id other than `given_id`.
    """
    known = _describe_part(part, {})
    if given_id is None:
        return known
    if known.get("id", given_id) != given_id:
        msg = f"given the id {given_id!r}, but it states the id {known['id']!r}"
        raise FingerprintError(msg)
    return {**{key: value for key, value in known.items() if not _is_unnamed(key)}, "id": given_id}


def is_identified(stated: Mapping[str, Any]) -> bool:
    """Return whether a fingerprint names an id or a model and leaves nothing in it unnamed."""
    return bool({"id", "model"} & set(stated)) and not any(_is_unnamed(key) for key in stated)


def _is_unnamed(key: str) -> bool:
    """Return whether a fingerprint's key lists parts that cannot be described."""
    # Keys of composite fingerprints have the role as a prefix: `model.unnamed`.
    return key.rpartition(".")[2] == _UNNAMED


def _describe_part(part: object, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of a part that is called with the `bound` arguments."""
    # Wrappers come first: they forward the attributes of the wrapped part, without their own changes to it.
    if isinstance(part, RunnableBindingBase):
        known = _describe_part(part.bound, {**part.kwargs, **bound})
        # Other wrappers, such as a message history, may change the prompt.
        is_plain = isinstance(part, (RunnableBinding, RunnableRetry))
        return known if is_plain or not known else _add_unnamed(known, [type(part).__name__])
    if isinstance(part, (DynamicRunnable, RunnableWithFallbacks)):
        return {}
    # `getattr` alone would instantiate a model that is only made when called, if the attribute is missing.
    own = getattr(part, "fingerprint", None) if inspect.getattr_static(part, "fingerprint", None) else None
    if isinstance(own, Mapping):
        return _add_bound_arguments(own, bound)
    if isinstance(part, RunnableSequence):
        return _describe_sequence(part, bound)
    return _describe_chat_model(part, bound) if isinstance(part, BaseChatModel) else {}


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


def _describe_sequence(sequence: RunnableSequence[Any, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of the answering step, with digests of the steps around it."""
    steps = list(_flatten_steps(sequence))
    # A sequence passes its arguments to its first step.
    stated = [_describe_part(step, bound if position == 0 else {}) for position, step in enumerate(steps)]
    speaking = [position for position, known in enumerate(stated) if known]
    if not speaking:
        return {}
    models = [position for position in speaking if "model" in stated[position]]
    answering = (models or speaking)[-1]
    prompts: list[str] = []
    others: list[list[str]] = []
    unnamed = [f"the arguments {', '.join(bound)}"] if bound and answering != 0 and not stated[0] else []
    for position, step in enumerate(steps):
        if position == answering or _is_identity(step):
            continue
        written = _serialise(step, stated[position])
        if written is None:
            unnamed.append(_name_step(step))
        elif isinstance(step, BasePromptTemplate) and position < answering:
            prompts.append(written)
        else:
            # The position matters: after a prompt template, a step receives the prompt instead of the input.
            before = "between" if prompts else "before"
            others.append([before if position < answering else "after", written])
    known = stated[answering]
    if prompts and known.get(_PROMPT_DIGEST):
        prompts.append(known[_PROMPT_DIGEST])
    if others and known.get(_STEPS_DIGEST):
        others.append(["in", known[_STEPS_DIGEST]])
    if prompts:
        known = {**known, _PROMPT_DIGEST: compute_sha256("\n".join(prompts))}
    if others:
        known = {**known, _STEPS_DIGEST: compute_sha256(json.dumps(others))}
    return _add_unnamed(known, unnamed)


def _flatten_steps(sequence: RunnableSequence[Any, Any]) -> Iterator[Any]:
    """Yield the steps of a sequence, with nested sequences flattened."""
    for step in sequence.steps:
        if isinstance(step, RunnableSequence):
            yield from _flatten_steps(step)
        else:
            yield step


def _is_identity(step: Any) -> bool:
    """Return whether a step passes its input on; a message and its text count as the same candidate."""
    if type(step) is RunnablePassthrough:
        return step.func is None and step.afunc is None
    return type(step) is StrOutputParser


def _serialise(step: Any, known: Mapping[str, Any]) -> str | None:
    """Return a step as text, equal for equal steps; None if it cannot be described."""
    if known:
        return json.dumps(known, sort_keys=True) if is_identified(known) else None
    try:
        json.dumps(step, default=_list_fields)
        text = dumps(step)
    except (TypeError, ValueError):
        return None
    # LangChain writes other objects with their memory address, which differs in every process.
    return None if '"not_implemented"' in text else text


def _list_fields(part: Any) -> Any:
    """Return LangChain's serialised form of a part of a step.

    Raises `TypeError` for parts that it does not fully describe: a step configured per call is written with
    its default only, and a user's class only by its name.
    """
    is_described = isinstance(part, Serializable) and type(part).__module__.startswith("langchain")
    if not is_described or isinstance(part, DynamicRunnable):
        msg = f"{type(part).__name__} cannot be described"
        raise TypeError(msg)
    return part.to_json()


def _name_step(step: Any) -> str:
    named = step.get_name() if hasattr(step, "get_name") else ""
    kind = type(step).__name__
    return kind if not named or named == kind else f"{kind} {named!r}"


def _describe_chat_model(model: BaseChatModel, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of a chat model; empty if it does not name its model."""
    params: Mapping[str, Any] = get_tracing_params(model, **bound)
    if params.get("ls_model_name") is None:
        return {}
    known = {name: params[key] for key, name in _LANGCHAIN_NAMES.items() if params.get(key) is not None}
    known = {**dict.fromkeys(SAMPLING_PARAMETERS), **known}
    own = _read_own_settings(model, BaseChatModel)
    given = {**dict(_flatten_settings(own)), **dict(_flatten_settings(bound))}
    for name in ("model", *SAMPLING_PARAMETERS):
        if (value := given.pop(name, None)) is not None:
            known[name] = value
    known["stop"] = [known["stop"]] if isinstance(known["stop"], str) else known["stop"] or None
    plain, unnamed = _describe_settings({name: known[name] for name in SAMPLING_PARAMETERS}, verbatim=True)
    settings = state_settings(given)
    return _add_unnamed({**known, **plain, **settings}, unnamed)


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
    unset = dict.fromkeys((_TOOLS_DIGEST, _PROMPT_DIGEST, _STEPS_DIGEST))
    digest, unnamed_tools = _digest_tools(flat)
    return _add_unnamed({**unset, _SETTINGS: described or None, **digest}, [*unnamed, *unnamed_tools])


def describe_embeddings(embeddings: Embeddings) -> dict[str, Any]:
    """Return the fingerprint of embeddings, read by providers' conventions; empty if they name no model."""
    known = compute_fingerprint(embeddings)
    found = (getattr(embeddings, name, None) for name in _EMBEDDING_MODEL_FIELDS)
    model = next((name for name in found if isinstance(name, str)), None)
    if known or model is None:
        return known
    dimensions = getattr(embeddings, "dimensions", None)
    known = {"model": model, **({"dimensions": dimensions} if isinstance(dimensions, int) else {})}
    if not isinstance(embeddings, BaseModel):
        return known
    own = _read_own_settings(embeddings, Embeddings)
    ignored = (*_EMBEDDING_MODEL_FIELDS, *_EMBEDDING_DELIVERY)
    given = {name: value for name, value in _flatten_settings(own) if name not in ignored}
    settings, unnamed = _describe_settings(given)
    return _add_unnamed({**known, _SETTINGS: settings or None}, unnamed)


def _read_own_settings(model: BaseModel, base: type) -> dict[str, Any]:
    """Return the fields of a model that may change its output: sampling parameters and non-default values.

    The fields of `base` are left out: they concern callbacks, caches and names.
    """
    inherited = getattr(base, "model_fields", {})
    settings = {}
    extra = model.model_extra or {}
    for name, value in {**vars(model), **extra}.items():
        field = type(model).model_fields.get(name)
        if field is None and name not in extra:
            continue
        if name in inherited or (field is not None and field.exclude):
            continue
        # Sampling parameters are always stated, other settings only if they differ from their default and do
        # not concern the connection. The model's name comes from the tracing parameters.
        usual = _ALIASES.get(name, name)
        is_unstated = name.endswith(_CONNECTION_ENDINGS) or (field is not None and _is_default(field, value))
        if usual != "model" and (usual in SAMPLING_PARAMETERS or not is_unstated):
            settings[name] = value
    return settings


def _is_default(field: FieldInfo, value: Any) -> bool:
    try:
        return bool(value == field.get_default(call_default_factory=True, validated_data={}))
    except Exception:  # noqa: BLE001 - a provider's default factory, or a comparison without a boolean result
        return False


def _flatten_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings by their usual names, including those in `PASS_THROUGH`; later ones take precedence."""
    for name, value in settings.items():
        if name in PASS_THROUGH and isinstance(value, Mapping):
            yield from _flatten_settings(value)
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
    try:
        written = json.dumps(tools, sort_keys=True, default=_describe_tool)
    except (TypeError, ValueError):
        return {}, [f"the {' and '.join(tools)} bound to it"]
    return {_TOOLS_DIGEST: compute_sha256(written)}, []


def _describe_tool(tool: Any) -> Any:
    """Return a tool or format as the schema that a model is shown; raise `TypeError` if there is none."""
    try:
        return convert_to_openai_tool(tool)
    except Exception as error:
        msg = f"{type(tool).__name__} cannot be described"
        raise TypeError(msg) from error


def _add_unnamed(known: dict[str, Any], unnamed: Sequence[str]) -> dict[str, Any]:
    """Return a fingerprint with further entries in its list of parts that cannot be described."""
    if not unnamed:
        return known
    return {**known, _UNNAMED: [*known.get(_UNNAMED, []), *unnamed]}


_MODEL_VERSION = "model_version"
# Maximum number of keys that a message lists.
_MAX_KEYS = 4


def compare_fingerprints(part: str, calibrated: Fingerprint | None, serving: Fingerprint) -> Match:
    """Return whether a serving part is known to be the calibrated one; refuse it if it differs.

    Args:
        part: `generator`, `verifier`, `answer` or `splitter`, for messages.
        calibrated: The artifact's fingerprint of the part; None if the records had none.
        serving: The fingerprint of the serving part.

    Returns:
        `matched` if both state the same and leave nothing out; else `unverified`, for the reason that
            `explain_doubt` gives.

    Raises:
        FingerprintError: If a key that both state has different values.

    Warns:
        FingerprintWarning: If the served model reports a different version.
    """
    calibrated = calibrated or {}
    if calibrated.get(_TOOLS_DIGEST) is not None:
        serving = _remove_unset_tools(serving)
    shared = [key for key in calibrated if key in serving and not _is_unnamed(key)]
    different = [key for key in shared if calibrated[key] != serving[key]]
    if serving.get(_TOOLS_DIGEST) and "model" in shared and not {"id", _TOOLS_DIGEST} & set(calibrated):
        # A fingerprint that names a model but no tools means that the model had no tools.
        calibrated, different = {**calibrated, _TOOLS_DIGEST: None}, [*different, _TOOLS_DIGEST]
    if _MODEL_VERSION in different:
        msg = (
            f"the {part}'s model now reports version {serving[_MODEL_VERSION]!r}, in calibration it was "
            f"{calibrated[_MODEL_VERSION]!r}: calibrate again soon"
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=3)
    refused = [key for key in different if key != _MODEL_VERSION]
    if refused:
        listed = ", ".join(
            f"{key} is {serving[key]!r}, in calibration it was {calibrated[key]!r}" for key in refused
        )
        msg = (
            f"the {part} is not the one that the artifact was calibrated for: {listed}. Serve with the "
            f"calibrated {part}, or calibrate with this one"
        )
        raise FingerprintError(msg)
    return "matched" if explain_doubt(calibrated, serving) is None else "unverified"


def explain_doubt(calibrated: Fingerprint | None, serving: Fingerprint) -> str | None:
    """Return why two fingerprints that do not contradict each other fail to match; None if they match.

    A shared `id` vouches for everything that the serving fingerprint does not state. It also vouches for what
    the records do not state, unless they describe the model: then settings added since are not covered.

    Args:
        calibrated: The artifact's fingerprint of the part; None if the records had none.
        serving: The fingerprint of the serving part.

    Returns:
        The reason as a clause, for messages.
    """
    calibrated = {key: value for key, value in (calibrated or {}).items() if key != _MODEL_VERSION}
    serving = {key: value for key, value in serving.items() if key != _MODEL_VERSION}
    if calibrated.get(_TOOLS_DIGEST) is not None:
        serving = _remove_unset_tools(serving)
    if not calibrated or not serving:
        return "it does not identify itself" if calibrated else "the records do not identify it"
    for stated, when in ((serving, "it has"), (calibrated, "the calibrated one had")):
        unnamed = [name for key, names in stated.items() if _is_unnamed(key) for name in names]
        if unnamed:
            return f"{when} parts that cannot be compared ({', '.join(map(str, unnamed))})"
    new = [key for key in serving if key not in calibrated and key != "id"]
    missing = [key for key in calibrated if key not in serving]
    if "id" in calibrated and "id" in serving:
        describes_model = any(key.rpartition(".")[2] == "model" for key in calibrated)
        new, missing = [key for key in new if describes_model and serving[key] is not None], []
    elif not new and not missing and "model" not in calibrated:
        return "neither an id nor a model is stated"
    if new:
        return f"the records do not state {_list_keys(new)}"
    return f"it does not state {_list_keys(missing)}, as the records do" if missing else None


def _remove_unset_tools(serving: Fingerprint) -> Fingerprint:
    """Return a fingerprint without a null `tools_digest`, because tools may still be bound to each call."""
    return {key: value for key, value in serving.items() if key != _TOOLS_DIGEST or value is not None}


def _list_keys(keys: Sequence[str]) -> str:
    shown = ", ".join(keys[:_MAX_KEYS])
    return shown if len(keys) <= _MAX_KEYS else f"{shown} and {len(keys) - _MAX_KEYS} more settings"
