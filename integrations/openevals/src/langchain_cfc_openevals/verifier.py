"""Evaluators as verifiers: when serving, without a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig
from typing_extensions import Unpack

from langchain_cfc.errors import VerifierError
from langchain_cfc.extend import Steps
from langchain_cfc.verifiers import BaseVerifier, VerifierInput, from_evaluator
from langchain_cfc_openevals.arguments import Arguments
from langchain_cfc_openevals.builtin import resolve_evaluator
from langchain_cfc_openevals.evaluator import OUTPUTS, Evaluator, PromptEvaluator, to_range
from langchain_cfc_openevals.judge import JudgeSettings, make_judge

Prompt: TypeAlias = str | BasePromptTemplate[Any]


class EvaluatorVerifier(BaseVerifier):
    """Asks an evaluator about each distinct text of a prompt's candidates, concurrently.

    The score lies in [0, 1], and smaller is better. Made by `verifier` and `judge_verifier`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        key: str | None,
        higher_is_better: bool,
        ends: tuple[float, float] | None,
    ) -> None:
        self.name = "openevals-verifier"
        self._evaluator = evaluator
        self._reading = partial(
            from_evaluator, key=key, higher_is_better=higher_is_better, range=ends or evaluator.ends
        )
        # Results that cannot be read this way are refused here, not with the first prompt.
        self.fingerprint = self._reading(PromptEvaluator(evaluator, {})).fingerprint

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Evaluate each distinct text once; further arguments are made once."""
        further = yield from self._evaluator.make_keywords(given["prompt"], config, VerifierError)
        return (yield from self._reading(PromptEvaluator(self._evaluator, further)).flow(given, config))


def judge_verifier(
    model: BaseChatModel | str,
    prompt: Prompt,
    *,
    arguments: Arguments | None = None,
    candidate: str = OUTPUTS,
    key: str | None = None,
    higher_is_better: bool = True,
    range: tuple[float, float] | None = None,  # noqa: A002 - what evaluators call it
    **settings: Unpack[JudgeSettings],
) -> EvaluatorVerifier:
    """A prompt of openevals and a chat model as a verifier, 1 - what the model says.

    The model is called without streaming, so that the user never sees it quote rejected candidates. A reply
    that is not of the scale it was asked for is an error. Judge labels with another model: `collect` warns
    of the same.

    Args:
        model: A chat model, or the name of one, such as `openai:gpt-4o`.
        prompt: Name of a text in `openevals.prompts`, such as `RAG_GROUNDEDNESS_PROMPT`; text of yours with
            `{inputs}` and `{outputs}` in it; or a template of LangChain. It must do without a reference.
        arguments: Where further keywords of the prompt come from, such as `context`: a function or Runnable
            on the prompt that returns a mapping, asked once per prompt; or by keyword the field of a prompt
            that is a mapping, such as `{"context": "documents"}`. They may name `inputs`.
        candidate: The keyword by which the prompt shows the candidate; `context` where what was retrieved is
            the candidate.
        key: Which field to read where `output_schema` has several.
        higher_is_better: False for a prompt that asks for a fault, such as toxicity.
        range: Smallest and largest value of a field that `output_schema` has; else the scale's own.
        **settings: How the model is asked, see `JudgeSettings`.

    Raises:
        InputError: If the model, the prompt or a setting cannot be used.
    """
    evaluator = make_judge(model, prompt, settings, offline=False, arguments=arguments, candidate=candidate)
    return EvaluatorVerifier(evaluator, key, higher_is_better, to_range(range))


def verifier(
    evaluator: str | Callable[..., Any],
    settings: Mapping[str, Any] | None = None,
    *,
    arguments: Arguments | None = None,
    key: str | None = None,
    higher_is_better: bool = True,
    range: tuple[float, float] | None = None,  # noqa: A002 - what evaluators call it
    id: str | None = None,  # noqa: A002 - what the package calls it everywhere
) -> EvaluatorVerifier:
    """An evaluator that asks no model, as a verifier.

    Args:
        evaluator: `mypy`, or a function of yours with the keyword `outputs`, plain or async. What compares
            with a reference needs `arguments` that give `reference_outputs`.
        settings: What openevals makes it with, such as `code_extraction_strategy`.
        arguments: As in `judge_verifier`.
        key: Which of several results to read.
        higher_is_better: False for an evaluator of a fault.
        range: Its smallest and largest value, if they are not those that openevals states.
        id: What a function of yours is called in the fingerprint, if it cannot say itself.

    Raises:
        InputError: If there is no such evaluator, it cannot be made, or it needs a reference.
    """
    resolved = resolve_evaluator(evaluator, settings, offline=False, arguments=arguments, given_id=id)
    return EvaluatorVerifier(resolved, key, higher_is_better, to_range(range))
