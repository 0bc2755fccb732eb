"""Judges as labelers: used offline, with the record's reference and a rule from score to label."""

from __future__ import annotations

from functools import partial

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from typing_extensions import Unpack

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.extend import Steps
from langchain_cfc.labelers import BaseLabeler, JudgeLabels, LabelerInput
from langchain_cfc_openevals.arguments import Arguments
from langchain_cfc_openevals.evaluator import OUTPUTS, Evaluator, PromptEvaluator, to_range
from langchain_cfc_openevals.judge import JudgeSettings, make_judge
from langchain_cfc_openevals.verifier import Prompt


class EvaluatorLabeler(BaseLabeler):
    """A labeler that asks a judge about each distinct text and applies a rule to its score.

    Undecidable results raise a `LabelerError`: a result without a score, a score outside the scale, or a
    score between False and True without a limit. Made by `make_judge_labeler`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        key: str | None,
        at_least: float | None,
        at_most: float | None,
        ends: tuple[float, float] | None,
    ) -> None:
        self.name = "openevals-labeler"
        self._evaluator = evaluator
        low, high = ends or evaluator.ends
        if evaluator.graded and at_least is None and at_most is None:
            msg = f"scores lie from {low:g} to {high:g}: pass at_least= or at_most= to say which mean correct"
            raise InputError(msg)
        self._reading = partial(JudgeLabels, at_least=at_least, at_most=at_most, key=key, range=(low, high))
        # Building the reader here reports invalid settings now, not at the first prompt.
        self.fingerprint = self._reading(PromptEvaluator(evaluator, {})).fingerprint

    def __repr__(self) -> str:
        """Return the class name with the rule for correct answers."""
        return f"EvaluatorLabeler(correct: {self.fingerprint['correct']})"

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool | None]]:
        """Return the labels; each distinct text is evaluated once, and further keywords are computed once."""
        further = yield from self._evaluator.make_keywords(given["prompt"], config, LabelerError)
        return (yield from self._reading(PromptEvaluator(self._evaluator, further)).flow(given, config))


def make_judge_labeler(
    model: BaseChatModel | str,
    prompt: Prompt,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    arguments: Arguments | None = None,
    candidate: str = OUTPUTS,
    key: str | None = None,
    range: tuple[float, float] | None = None,  # noqa: A002 - what evaluators call it
    **settings: Unpack[JudgeSettings],
) -> EvaluatorLabeler:
    """Return a labeler made from a judging prompt and a chat model.

    A calibration on its labels promises answers that the judge calls correct. Have people label a sample, and
    see `langchain_cfc_collect.compare_labels` and `bound_true_coverage`.

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
    evaluator = make_judge(model, prompt, settings, offline=True, arguments=arguments, candidate=candidate)
    return EvaluatorLabeler(evaluator, key, at_least, at_most, to_range(range))
