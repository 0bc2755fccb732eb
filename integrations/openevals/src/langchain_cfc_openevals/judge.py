"""Judges: a prompt of openevals or of your own, answered by a LangChain chat model.

The model does not stream, because it quotes candidates that may be rejected. Unlike openevals, this module
checks that the reply uses the requested scale.
"""

from __future__ import annotations

import hashlib
import json
import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, TypedDict

import openevals.prompts
from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumps
from langchain_core.prompts import BasePromptTemplate
from langchain_core.prompts.structured import StructuredPrompt
from openevals.llm import create_async_llm_as_judge, create_llm_as_judge
from openevals.types import FewShotExample

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.extend import (
    combine_fingerprints,
    resolve_generator,
    to_python_scalar,
    without_streaming_and_cache,
)
from langchain_cfc_openevals.arguments import Arguments, describe_arguments, list_parts, to_callable
from langchain_cfc_openevals.evaluator import INPUTS, OUTPUTS, REFERENCE, Evaluator


class JudgeSettings(TypedDict, total=False):
    """Settings of a judge, with the names of `openevals.create_llm_as_judge`.

    Attributes:
        system: A system message before the prompt.
        continuous: Whether the judge returns a number from 0 to 1 instead of True or False.
        choices: At least two numbers to choose from instead.
        use_reasoning: Whether the judge gives reasons before its score; True by default.
        few_shot_examples: Example judgements, appended to the prompt.
        output_schema: JSON schema or pydantic class of the output, instead of a single score; `key` says
            which field to read.
        structured_output_kwargs: For the model's `with_structured_output`, such as `{"method": ...}`.
    """

    system: str
    continuous: bool
    choices: Sequence[float]
    use_reasoning: bool
    few_shot_examples: Sequence[FewShotExample]
    output_schema: Any
    structured_output_kwargs: dict[str, Any]


def make_judge(
    model: BaseChatModel | str,
    prompt: str | BasePromptTemplate[Any],
    settings: JudgeSettings,
    *,
    offline: bool,
    arguments: Arguments | None = None,
    candidate: str = OUTPUTS,
) -> Evaluator:
    """Return an evaluator in which a chat model judges by a prompt.

    Args:
        model: A chat model, or the name of one, such as `openai:gpt-4o`.
        prompt: Text with placeholders such as `{inputs}` and `{outputs}`, the name of such a text in
            `openevals.prompts`, or a LangChain template.
        settings: Settings of the judge.
        offline: Whether it gets the reference, which does not exist when serving.
        arguments: Source of further keywords of the prompt, see `to_callable`.
        candidate: The prompt's keyword for the candidate.

    Raises:
        InputError: If the model is not a chat model, the prompt does not contain the candidate or contains a
            keyword without a value, or the settings contradict each other.
    """
    _check_settings(settings)
    chat_model, structured = _resolve_chat_model(model), _is_structured(prompt, settings)
    resolved = _resolve_prompt(prompt)
    _check_keywords(resolved, arguments, candidate, offline=offline)
    options: dict[str, Any] = {
        **settings,
        "prompt": resolved,
        "judge": without_streaming_and_cache(chat_model, fresh=False),
    }
    scale = None if structured else _list_scores(settings)
    return Evaluator(
        create_llm_as_judge(**options),
        create_async_llm_as_judge(**options),
        combine_fingerprints(
            "openevals-judge",
            _state_settings(resolved, settings, arguments, candidate),
            {"model": chat_model, **list_parts(arguments)},
        ),
        to_callable(arguments, candidate),
        candidate,
        needs_reference=REFERENCE in _find_keywords(resolved),
        check=None if structured else partial(_check_score, settings),
        ends=(0.0, 1.0) if scale is None else (min(scale), max(scale)),
        graded=bool(settings.get("continuous")) or len(scale or ()) > 2,  # noqa: PLR2004 - the two ends
    )


def _resolve_chat_model(given: BaseChatModel | str) -> BaseChatModel:
    model = resolve_generator(given)
    if isinstance(model, BaseChatModel):
        return model
    msg = (
        f"the judge is a {type(given).__name__}; openevals takes a chat model itself, such as "
        "ChatOpenAI(...), without binding, retry or parser around it"
    )
    raise InputError(msg)


def _resolve_prompt(prompt: str | BasePromptTemplate[Any]) -> str | BasePromptTemplate[Any]:
    """Return the text of a prompt, given as text or by its name, or a template unchanged."""
    if isinstance(prompt, BasePromptTemplate):
        return prompt
    if not isinstance(prompt, str):
        msg = f"the judge's prompt is a {type(prompt).__name__}; expected text or a template of LangChain"
        raise InputError(msg)
    if not prompt.isidentifier():
        return prompt
    if prompt in openevals.prompts.__all__:
        return str(getattr(openevals.prompts, prompt))
    listed = ", ".join(sorted(openevals.prompts.__all__))
    msg = f"openevals has no prompt {prompt!r}, only {listed}; a prompt of your own shows {{outputs}}"
    raise InputError(msg)


def _is_structured(prompt: Any, settings: JudgeSettings) -> bool:
    return settings.get("output_schema") is not None or isinstance(prompt, StructuredPrompt)


def _find_keywords(resolved: str | BasePromptTemplate[Any]) -> set[str]:
    """Return the keywords that occur in a prompt."""
    if isinstance(resolved, BasePromptTemplate):
        return set(resolved.input_variables)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(resolved) if field is not None]
    except ValueError as error:
        msg = f"the judge's prompt cannot be filled in ({error}): double braces that are meant literally"
        raise InputError(msg) from error
    return {field.partition(".")[0].partition("[")[0] for field in fields}


def _check_keywords(resolved: Any, arguments: Arguments | None, candidate: str, *, offline: bool) -> None:
    shown = _find_keywords(resolved)
    if candidate not in shown:
        listed = ", ".join(f"{{{one}}}" for one in sorted(shown)) or "nothing"
        msg = (
            f"the judge's prompt shows {listed}, but not the candidate, {{{candidate}}}: all candidates of "
            "a prompt would get the same score. Pass candidate= to name the candidate's keyword"
        )
        raise InputError(msg)
    if arguments is not None and not isinstance(arguments, Mapping):
        # The keywords that a function returns are only known when it is called.
        return
    given = {INPUTS, candidate, *(arguments or ()), *([REFERENCE] if offline else ())}
    missing = sorted(shown - given)
    if not missing:
        return
    why = "" if offline or REFERENCE not in missing else ": there is no reference when serving"
    msg = (
        f"the judge's prompt shows {', '.join(missing)}, which has no value{why}. Use another prompt, or "
        "pass the value with arguments="
    )
    raise InputError(msg)


def _check_settings(settings: JudgeSettings) -> None:
    unknown = sorted(set(settings) - set(JudgeSettings.__annotations__))
    if unknown:
        msg = (
            f"a judge has no setting {', '.join(unknown)}; it has {', '.join(JudgeSettings.__annotations__)}"
        )
        raise InputError(msg)
    scales = [name for name in ("continuous", "choices", "output_schema") if settings.get(name)]
    if len(scales) > 1:
        msg = f"{' and '.join(scales)} are mutually exclusive; give one"
        raise InputError(msg)
    choices = settings.get("choices")
    if choices is not None and not (len(set(choices)) > 1 and all(map(_is_number, choices))):
        msg = f"choices={list(choices)!r}; expected at least two different finite numbers"
        raise InputError(msg)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _list_scores(settings: JudgeSettings) -> list[float]:
    choices: Iterable[float] = settings.get("choices") or (0.0, 1.0)
    return sorted(set(map(float, choices)))


def _check_score(settings: JudgeSettings, result: Any) -> None:
    """Raise a `VerifierError` for a score outside the requested scale."""
    score: Any = to_python_scalar(result.get("score")) if isinstance(result, Mapping) else None
    choices = settings.get("choices")
    if choices is not None:
        fits, wanted = _is_number(score) and score in choices, f"one of {list(choices)}"
    elif settings.get("continuous"):
        fits, wanted = _is_number(score) and 0.0 <= score <= 1.0, "a number from 0 to 1"
    else:
        fits, wanted = isinstance(score, bool), "true or false"
    if not fits:
        msg = f"the judge's score is {score!r:.80}; it was asked for {wanted}"
        raise VerifierError(msg)


def _state_settings(
    resolved: str | BasePromptTemplate[Any],
    settings: JudgeSettings,
    arguments: Arguments | None,
    candidate: str,
) -> dict[str, Any]:
    """Return everything besides the model that affects a judgement, for the fingerprint."""
    words = resolved if isinstance(resolved, str) else dumps(resolved)
    if '"not_implemented"' in words and not isinstance(resolved, str):
        msg = "the judge's template holds data that is not plain, so it could not be recognised"
        raise InputError(msg)
    digests: dict[str, Callable[[Any], str]] = {
        "few_shot_examples": _digest,
        "output_schema": lambda schema: _digest(
            schema if isinstance(schema, Mapping) else schema.model_json_schema()
        ),
        "structured_output_kwargs": _digest,
        "system": _sha256,
    }
    given: Mapping[str, Any] = settings
    further = {name: digest(given[name]) for name, digest in digests.items() if given.get(name)}
    return {
        # openevals's wording of scales and examples depends on its version.
        "openevals": version("openevals"),
        "prompt": _sha256(words),
        "candidate": candidate,
        "arguments": describe_arguments(arguments),
        "scale": _describe_scale(settings, structured=_is_structured(resolved, settings)),
        "reasoning": settings.get("use_reasoning", True),
        **further,
    }


def _describe_scale(settings: JudgeSettings, *, structured: bool) -> str:
    if structured:
        return "schema"
    if settings.get("choices"):
        return f"one of {', '.join(map(repr, settings['choices']))}"
    return "0 to 1" if settings.get("continuous") else "true or false"


def _digest(data: Any) -> str:
    try:
        return _sha256(json.dumps(data, sort_keys=True))
    except (TypeError, ValueError) as error:
        msg = f"a setting of the judge is not plain data ({error}), so it could not be recognised"
        raise InputError(msg) from error


def _sha256(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
