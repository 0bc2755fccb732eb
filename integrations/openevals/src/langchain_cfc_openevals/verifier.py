"""Judges as verifiers: used when serving, without a reference."""

from __future__ import annotations

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
from langchain_cfc_openevals.evaluator import OUTPUTS, Evaluator, PromptEvaluator, to_range
from langchain_cfc_openevals.judge import JudgeSettings, make_judge

Prompt: TypeAlias = str | BasePromptTemplate[Any]


class EvaluatorVerifier(BaseVerifier):
    """A verifier that asks a judge about each distinct text of a prompt's candidates, concurrently.

    The score lies in [0, 1], and smaller is better. Made by `make_judge_verifier`.
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
        # Building the reader here reports invalid settings now, not at the first prompt.
        self.fingerprint = self._reading(PromptEvaluator(evaluator, {})).fingerprint

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Return the scores; each distinct text is evaluated once, and further keywords are computed once."""
        further = yield from self._evaluator.make_keywords(given["prompt"], config, VerifierError)
        return (yield from self._reading(PromptEvaluator(self._evaluator, further)).flow(given, config))


def make_judge_verifier(
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
    """Return a verifier made from a judging prompt and a chat model; its score is 1 - the judge's.

    The model does not stream, so that the user never sees quotes of rejected candidates. A reply outside the
    requested scale is an error. Use another model for labels: `collect` warns if it is the same.

    Args:
        model: A chat model, or the name of one, such as `openai:gpt-4o`.
        prompt: Name of a text in `openevals.prompts`, such as `RAG_GROUNDEDNESS_PROMPT`; your own text with
            `{inputs}` and `{outputs}` in it; or a LangChain template. It must not need a reference.
        arguments: Source of further keywords of the prompt, such as `context`: a function or Runnable from
            the prompt to a mapping, called once per prompt; or, for prompts that are mappings, a mapping from
            keywords to fields, such as `{"context": "documents"}`. May include `inputs`.
        candidate: The prompt's keyword for the candidate; `context` if the candidate is retrieved text.
        key: Which field to read if `output_schema` has several.
        higher_is_better: False for a prompt that asks for a fault, such as toxicity.
        range: Smallest and largest value of the field of `output_schema`; by default the scale's own.
        **settings: Settings of the judge, see `JudgeSettings`.

    Raises:
        InputError: If the model, the prompt or a setting cannot be used.
    """
    evaluator = make_judge(model, prompt, settings, offline=False, arguments=arguments, candidate=candidate)
    return EvaluatorVerifier(evaluator, key, higher_is_better, to_range(range))
