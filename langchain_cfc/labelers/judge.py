"""A labeler made from a judge that sees the reference: a model, a function, or an evaluator of openevals."""

from __future__ import annotations

from functools import partial

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import LabelerError, VerifierError
from langchain_cfc.execution import Steps
from langchain_cfc.execution.steps import map_distinct
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.verifiers.base import combine_fingerprints
from langchain_cfc.verifiers.evaluators import Evaluator, EvaluatorCall


class JudgeLabels(BaseLabeler):
    """Asks a judge about each distinct text of a prompt's candidates, concurrently.

    A function with a parameter `outputs` is called with keywords, as the evaluators of openevals are:
    `inputs` is the prompt, `outputs` the candidate's text, `reference_outputs` the reference; of the first
    and the last only what it takes. Any other function is called with `(prompt, reference, text)`, a Runnable
    with `{"prompt": ..., "reference": ..., "candidate": text}`. All may be async. The judge's result is read
    as by `from_evaluator` of `langchain_cfc.verifiers`.

    A result that cannot be read is asked for once more. If that one cannot be read either, the label is None:
    it counts as wrong, which costs answers but no promise, and it is counted.

    A judge makes mistakes, and a guarantee that was calibrated on its labels is about what the judge calls
    correct. Have people label a sample: `create_review_report` measures the judge, `PeopleSample` certifies.

    Args:
        judge: A function or Runnable, plain or async, that returns True or False, or 1 or 0. Wrap one that
            returns grades: `lambda prompt, reference, text: grade(reference, text) >= 7`.

    Raises:
        InputError: As `from_evaluator`.
    """

    def __init__(self, judge: Evaluator) -> None:
        self.name = "judge-labels"
        self._judge = EvaluatorCall(judge, ("prompt", "reference"))
        self.fingerprint = combine_fingerprints(self.name, {}, {"judge": judge})

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool | None]]:
        """Ask the judge about each distinct text."""
        asked = {"prompt": given["prompt"], "reference": given["reference"]}
        texts = [candidate.text for candidate in given["candidates"]]
        try:
            numbers = yield from map_distinct(texts, partial(self._judge.rate, asked, config))
        except VerifierError as error:
            raise LabelerError(str(error)) from error
        unclear = next((one for one in numbers if one not in {None, 0.0, 1.0}), None)
        if unclear is not None:
            msg = (
                f"the judge returned {unclear:g}, neither True nor False: wrap it in a function that says "
                "which numbers mean correct"
            )
            raise LabelerError(msg)
        return [None if one is None else one == 1.0 for one in numbers]
