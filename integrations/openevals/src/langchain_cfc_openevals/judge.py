"""Judges: a prompt of openevals or of your own, answered by a LangChain chat model.

The model does not stream, because it quotes candidates that may be rejected. Unlike openevals, this module
checks that the reply uses the requested scale.
"""

from __future__ import annotations

import hashlib
import json
import math
import string
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeAlias, TypedDict

import openevals.prompts
from langchain_core.callbacks import AsyncCallbackManagerForChainRun
from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumps
from langchain_core.prompts import BasePromptTemplate
from langchain_core.prompts.structured import StructuredPrompt
from langchain_core.runnables import Runnable, RunnableConfig
from openevals.llm import create_async_llm_as_judge, create_llm_as_judge
from openevals.types import FewShotExample
from typing_extensions import Unpack

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.extend import combine_fingerprints, to_evaluator_inputs, to_python_scalar
from langchain_cfc.labelers import JudgeLabels
from langchain_cfc.sampling import resolve_generator, without_streaming_and_cache
from langchain_cfc.verifiers import EvaluatorVerifier, from_evaluator

INPUTS, OUTPUTS, REFERENCE = "inputs", "outputs", "reference_outputs"
Prompt: TypeAlias = str | BasePromptTemplate[Any]
_DIGESTED = ("few_shot_examples", "output_schema", "structured_output_kwargs", "system")


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


class Judge(Runnable[Mapping[str, Any], Any]):
    """A judge of openevals; its input has `prompt` and `candidate`, and offline the `reference`.

    Models that it calls inherit the config.

    Args:
        model: A chat model, or the name of one, such as `openai:gpt-4o`.
        prompt: Text with placeholders such as `{inputs}` and `{outputs}`, the name of such a text in
            `openevals.prompts`, or a LangChain template.
        settings: Settings of the judge.
        offline: Whether it gets the reference, which does not exist when serving.
        arguments: Fields of the input that are further keywords of the prompt, by keyword.
        candidate: The prompt's keyword for the candidate.
        key: Which field of the output to read.
        range: Smallest and largest value of that field; by default the scale's own.
        at_least: Smallest value that means correct; with it the judge returns True or False.
        at_most: Largest value that means correct.

    Raises:
        InputError: If the model is not a chat model, the prompt does not contain the candidate or contains a
            keyword without a value, or the settings contradict each other.
    """

    def __init__(
        self,
        model: BaseChatModel | str,
        prompt: Prompt,
        settings: JudgeSettings,
        *,
        offline: bool,
        arguments: Mapping[str, str] | None,
        candidate: str,
        key: str | None = None,
        range: Sequence[float] | None = None,  # noqa: A002 - what evaluators call it
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        self.name = "openevals"
        _check_settings(settings)
        chat_model = _resolve_chat_model(model)
        resolved = _resolve_prompt(prompt)
        shown = _find_keywords(resolved)
        _check_keywords(shown, arguments, candidate, offline=offline)
        self._is_structured = settings.get("output_schema") is not None or isinstance(
            prompt, StructuredPrompt
        )
        options: dict[str, Any] = {
            **settings,
            "prompt": resolved,
            "judge": without_streaming_and_cache(chat_model, fresh=False),
        }
        self._evaluate: Any = create_llm_as_judge(**options)
        self._aevaluate: Any = create_async_llm_as_judge(**options)
        self._settings, self._candidate, self._arguments = settings, candidate, arguments or {}
        self._needs_reference = REFERENCE in shown
        choices = None if self._is_structured else settings.get("choices")
        ends = (0.0, 1.0) if choices is None else (float(min(choices)), float(max(choices)))
        self.ends = ends if range is None else _check_range(range)
        self._key, self._at_least, self._at_most = key, at_least, at_most
        for limit in (at_least, at_most):
            if limit is not None and not self.ends[0] <= limit <= self.ends[1]:
                msg = f"the limit {limit!r} lies outside of the range {list(self.ends)}"
                raise InputError(msg)
        # Whether scores may lie between the ends.
        self.is_graded = not self._is_structured and (
            bool(settings.get("continuous")) or len(set(choices or ())) > 2  # noqa: PLR2004 - the two ends
        )
        stated = {
            **_state_settings(resolved, settings),
            "candidate": candidate,
            "arguments": dict(self._arguments),
            "scale": "schema" if self._is_structured else _describe_scale(settings),
            **({} if key is None else {"key": key}),
            **({} if range is None else {"range": list(self.ends)}),
            **({} if at_least is None else {"correct": f"at least {at_least!r}"}),
            **({} if at_most is None else {"correct": f"at most {at_most!r}"}),
        }
        self.fingerprint = combine_fingerprints("openevals-judge", stated, {"model": chat_model})

    def invoke(self, input: Mapping[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        """Return the result for one candidate."""
        return self._call_with_config(self._judge, input, config, **kwargs)

    async def ainvoke(
        self,
        input: Mapping[str, Any],  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the result for one candidate, asynchronously."""
        return await self._acall_with_config(self._ajudge, input, config, **kwargs)

    def _judge(self, given: Mapping[str, Any]) -> Any:
        return self._read(self._check(self._evaluate(**self._make_keywords(given))))

    async def _ajudge(
        self, given: Mapping[str, Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> Any:
        del run_manager, config
        return self._read(self._check(await self._aevaluate(**self._make_keywords(given))))

    def _make_keywords(self, given: Mapping[str, Any]) -> dict[str, Any]:
        prompt = given["prompt"]
        held = prompt if isinstance(prompt, Mapping) else {}
        missing = [field for field in self._arguments.values() if field not in held]
        if missing:
            found = ", ".join(map(repr, held)) or f"a {type(prompt).__name__}"
            msg = f"the prompt holds no {', '.join(map(repr, missing))}; it is {found}"
            raise VerifierError(msg)
        further = {name: held[field] for name, field in self._arguments.items()}
        reference = {REFERENCE: given["reference"]} if "reference" in given else {}
        offered = {INPUTS: to_evaluator_inputs(prompt), **reference, **further}
        if self._needs_reference and offered.get(REFERENCE) is None:
            msg = "the judge's prompt shows a reference, but there is none"
            raise VerifierError(msg)
        return {**offered, self._candidate: given["candidate"]}

    def _read(self, result: Any) -> Any:
        """Return the value of a result as a share of its range, or whether the limit calls it correct.

        What is no number is returned as it is.
        """
        found = result.model_dump() if hasattr(result, "model_dump") else result
        name = "score" if self._key is None or not self._is_structured else self._key
        if name not in found:
            msg = f"the judge's output holds no {name!r}, only {', '.join(map(repr, found))}"
            raise VerifierError(msg)
        value: Any = to_python_scalar(found[name])
        low, high = self.ends
        if isinstance(value, bool):
            value = high if value else low
        if not _is_number(value):
            return value
        if self._at_least is not None:
            return value >= self._at_least
        return (value - low) / (high - low) if self._at_most is None else value <= self._at_most

    def _check(self, result: Any) -> Any:
        """Return the result; raise a `VerifierError` for a score outside the requested scale."""
        if self._is_structured:
            return result
        score: Any = to_python_scalar(result.get("score")) if isinstance(result, Mapping) else None
        choices = self._settings.get("choices")
        if choices is not None:
            fits, wanted = _is_number(score) and score in choices, f"one of {list(choices)}"
        elif self._settings.get("continuous"):
            fits, wanted = _is_number(score) and 0.0 <= score <= 1.0, "a number from 0 to 1"
        else:
            fits, wanted = isinstance(score, bool), "true or false"
        if not fits:
            msg = f"the judge's score is {score!r:.80}; it was asked for {wanted}"
            raise VerifierError(msg)
        return result


def make_judge_verifier(
    model: BaseChatModel | str,
    prompt: Prompt,
    *,
    arguments: Mapping[str, str] | None = None,
    candidate: str = OUTPUTS,
    key: str | None = None,
    higher_is_better: bool = True,
    range: Sequence[float] | None = None,  # noqa: A002 - what evaluators call it
    **settings: Unpack[JudgeSettings],
) -> EvaluatorVerifier:
    """Return a verifier made from a judging prompt and a chat model; its score is 1 - the judge's.

    The model does not stream, so that the user never sees quotes of rejected candidates. A reply outside the
    requested scale is an error. Use another model for labels: `collect` warns if it is the same.

    Args:
        model: A chat model, or the name of one, such as `openai:gpt-4o`.
        prompt: Name of a text in `openevals.prompts`, such as `RAG_GROUNDEDNESS_PROMPT`; your own text with
            `{inputs}` and `{outputs}` in it; or a LangChain template. It must not need a reference.
        arguments: Further keywords of the prompt, each with the field of the input that holds it, such as
            `{"context": "documents"}`. May include `inputs`.
        candidate: The prompt's keyword for the candidate; `context` if the candidate is retrieved text.
        key: Which field to read if `output_schema` has several.
        higher_is_better: False for a prompt that asks for a fault, such as toxicity.
        range: Smallest and largest value of the field of `output_schema`; by default the scale's own.
        **settings: Settings of the judge, see `JudgeSettings`.

    Raises:
        InputError: If the model, the prompt or a setting cannot be used.
    """
    judge = Judge(
        model,
        prompt,
        settings,
        offline=False,
        arguments=arguments,
        candidate=candidate,
        key=key,
        range=range,
    )
    return from_evaluator(judge, higher_is_better=higher_is_better)


def make_judge_labeler(
    model: BaseChatModel | str,
    prompt: Prompt,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    arguments: Mapping[str, str] | None = None,
    candidate: str = OUTPUTS,
    key: str | None = None,
    range: Sequence[float] | None = None,  # noqa: A002 - what evaluators call it
    **settings: Unpack[JudgeSettings],
) -> JudgeLabels:
    """Return a labeler made from a judging prompt and a chat model.

    A result without a score, a score outside the scale, or one between False and True without a limit raises
    a `LabelerError`. A calibration on its labels promises answers that the judge calls correct. Have people
    label a sample, and see `langchain_cfc_collect.create_review_report` and `PeopleSample`.

    Args:
        model: A chat model, or the name of one. It should not be the verifier's: `collect` warns about that.
        prompt: As in `make_judge_verifier`. `{reference_outputs}` is the record's reference.
        at_least: Smallest score that means correct, in the judge's scale. A judge that returns True or False
            needs no limit.
        at_most: Largest score that means correct, for a prompt that asks for a fault.
        arguments: As in `make_judge_verifier`.
        candidate: As in `make_judge_verifier`.
        key: As in `make_judge_verifier`.
        range: As in `make_judge_verifier`.
        **settings: Settings of the judge, see `JudgeSettings`.

    Raises:
        InputError: If the model, the prompt, a limit or a setting cannot be used.
    """
    if at_least is not None and at_most is not None:
        msg = "`at_least=` and `at_most=` are mutually exclusive; give one"
        raise InputError(msg)
    judge = Judge(
        model,
        prompt,
        settings,
        offline=True,
        arguments=arguments,
        candidate=candidate,
        key=key,
        range=range,
        at_least=at_least,
        at_most=at_most,
    )
    if judge.is_graded and at_least is None and at_most is None:
        low, high = judge.ends
        msg = f"scores lie from {low:g} to {high:g}: pass at_least= or at_most= to say which mean correct"
        raise InputError(msg)
    return JudgeLabels(judge)


def _check_range(ends: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a range, also from a list, as files hold them."""
    if len(ends) != 2 or not ends[0] < ends[1] or not math.isfinite(ends[1] - ends[0]):  # noqa: PLR2004 - a pair
        msg = f"range must be two finite numbers, the smaller one first, got {ends!r}"
        raise InputError(msg)
    return (float(ends[0]), float(ends[1]))


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


def _check_keywords(
    shown: set[str], arguments: Mapping[str, str] | None, candidate: str, *, offline: bool
) -> None:
    is_mapping = isinstance(arguments, Mapping) or arguments is None
    if not is_mapping or candidate in (arguments or ()):
        msg = (
            f"arguments is {arguments!r}; expected fields of the prompt by keyword, without {candidate!r}. "
            "Wrap a judge that needs more in a function for from_evaluator"
        )
        raise InputError(msg)
    if candidate not in shown:
        listed = ", ".join(f"{{{one}}}" for one in sorted(shown)) or "nothing"
        msg = (
            f"the judge's prompt shows {listed}, but not the candidate, {{{candidate}}}: all candidates of "
            "a prompt would get the same score. Pass candidate= to name the candidate's keyword"
        )
        raise InputError(msg)
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


def _state_settings(resolved: str | BasePromptTemplate[Any], settings: JudgeSettings) -> dict[str, Any]:
    """Return everything besides the model and the scale that affects a judgement, for the fingerprint."""
    words = resolved if isinstance(resolved, str) else dumps(resolved)
    if '"not_implemented"' in words and not isinstance(resolved, str):
        msg = "the judge's template holds data that is not plain, so it could not be recognised"
        raise InputError(msg)
    given = {name: value for name, value in settings.items() if value and name in _DIGESTED}
    schema = given.get("output_schema")
    if schema is not None and not isinstance(schema, Mapping):
        given["output_schema"] = schema.model_json_schema()  # type: ignore[attr-defined]  # a pydantic class
    return {
        # openevals's wording of scales and examples depends on its version.
        "openevals": version("openevals"),
        "prompt": _digest(words),
        "reasoning": settings.get("use_reasoning", True),
        **{name: _digest(value) for name, value in given.items()},
    }


def _describe_scale(settings: JudgeSettings) -> str:
    if settings.get("choices"):
        return f"one of {', '.join(map(repr, settings['choices']))}"
    return "0 to 1" if settings.get("continuous") else "true or false"


def _digest(data: Any) -> str:
    try:
        text = json.dumps(data, sort_keys=True)
    except (TypeError, ValueError) as error:
        msg = f"a setting of the judge is not plain data ({error}), so it could not be recognised"
        raise InputError(msg) from error
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
