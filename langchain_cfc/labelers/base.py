"""Labelers: their interface, checks of what they return, and labelling of a prompt's candidates.

A labeler is the paper's A(X, y): offline, it decides for each candidate of a prompt whether it is correct,
given the reference of the record. Like a verifier it is set-wise: it sees the prompt, its reference and all n
candidates, and returns n booleans. None in place of one says that no label can be read: it counts as wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import compress
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig
from typing_extensions import NotRequired, TypedDict

from langchain_cfc.errors import LabelerError
from langchain_cfc.execution import FlowRunnable, Steps, add_tags, run_flow
from langchain_cfc.execution.steps import map_distinct
from langchain_cfc.no_answers import is_invisible
from langchain_cfc.sampling import DrawnCandidate, make_silent_call
from langchain_cfc.verifiers.base import list_values, to_python_scalar


class LabelerInput(TypedDict):
    """Input of a labeler that is a Runnable.

    `prompt` is the input of the record, `reference` the JSON value that candidates are judged by (None if the
    record has none), `candidates` are the n candidates in draw order, or the claims of one answer. `id` is
    that of the record, and may be left out: only labels that are looked up by id need it.
    """

    prompt: Any
    reference: Any
    candidates: list[DrawnCandidate]
    id: NotRequired[str]


Labels: TypeAlias = Sequence[bool | None]
Labeler: TypeAlias = (
    Runnable[Any, Any]
    | Callable[[Any, Any, list[DrawnCandidate]], Labels]
    | Callable[[Any, Any, list[DrawnCandidate]], Awaitable[Labels]]
)
"""Says which candidates are correct: a function of prompt, reference and candidates, or a Runnable."""

_HINT = "a labeler returns True or False for each candidate, True where it is correct, or None if unknown"


class BaseLabeler(FlowRunnable[LabelerInput, Labels]):
    """Base class of labelers that are Runnables, written as one flow for the sync and the async path.

    A subclass implements `flow(given, config)`, a generator that returns n booleans, True if the candidate is
    correct, for a `LabelerInput`; None where no label can be read. Each call of the flow acquires its own
    permit within the limits of the prompt that is labelled. An unusable reference, or a candidate that cannot
    be labelled, raises a `LabelerError`.

    Attributes:
        fingerprint: What the labeler states about itself, see `langchain_cfc.sampling.fingerprints`.
        reads_text: Whether it sees whole texts, also if there is an answer extractor, as people do.
    """

    fingerprint: Mapping[str, Any]
    reads_text: bool = False


def check_labels(labels: Any, n: int) -> list[bool | None]:
    """Return n labels; raise a `LabelerError` for what is neither a boolean, such as 1, nor None."""
    values = list_values(labels, n, "the labeler", what="labels", hint=_HINT, failure=LabelerError)
    values = [to_python_scalar(value) for value in values]
    for slot, value in enumerate(values):
        if value is not None and not isinstance(value, bool):
            msg = f"the label of candidate {slot} is {value!r:.80}: {_HINT}"
            raise LabelerError(msg)
    return values


def check_reference(labeler: Labeler, given: LabelerInput) -> None:
    """Raise a `LabelerError` if a labeler of this package cannot use the reference of a prompt.

    It is asked about no candidate, so no model is called. Nothing is checked for the user's own labelers.
    """
    if isinstance(labeler, BaseLabeler):
        run_flow(labeler.flow({**given, "candidates": []}, {}))


class CandidateLabeling:
    """Asks a labeler about the candidates of a prompt.

    Candidates with the same answer get the same label; otherwise it would be undefined whether a set of
    distinct answers holds a correct one. If there is an answer extractor, the labeler sees each distinct
    answer as if it were the text, or the text of the first candidate with that answer if it `reads_text`.
    What is no answer is wrong, and so is a blank extracted answer; the labeler is not asked about them.

    Args:
        labeler: The labeler.

    Raises:
        LabelerError: If `labeler` cannot be called.
    """

    def __init__(self, labeler: Labeler) -> None:
        keys = ("prompt", "reference", "candidates")
        self._call = make_silent_call("labeler", labeler, LabelerError, keys, _HINT)
        self._reads_text = isinstance(labeler, BaseLabeler) and labeler.reads_text

    def label_candidates(
        self, given: LabelerInput, answers: Sequence[str] | None, config: RunnableConfig
    ) -> Steps[list[bool | None]]:
        """Return whether each candidate is correct.

        Args:
            given: Prompt, reference and all candidates.
            answers: The candidates' answers; None without an extractor.
            config: Config of child runs.

        Returns:
            One label per candidate; None where the labeler has none.

        Raises:
            LabelerError: If the labeler fails, or does not return one label per candidate that it is shown.
        """
        every = given["candidates"]
        answered = [
            one.no_answer is None and (answers is None or not is_invisible(answers[slot]))
            for slot, one in enumerate(every)
        ]
        if not any(answered):
            return [False] * len(every)
        draws = list(compress(every, answered))
        if answers is None:
            labels = yield from self._ask(given, config, draws)
        else:
            found = list(compress(answers, answered))

            def ask(distinct: list[str]) -> Steps[list[bool | None]]:
                if self._reads_text:
                    return self._ask(given, config, [draws[found.index(answer)] for answer in distinct])
                return self._ask(given, config, [DrawnCandidate(answer) for answer in distinct])

            labels = yield from map_distinct(found, ask)
        known = iter(labels)
        return [is_answer and next(known) for is_answer in answered]

    def _ask(
        self, given: LabelerInput, config: RunnableConfig, shown: list[DrawnCandidate]
    ) -> Steps[list[bool | None]]:
        asked: LabelerInput = {**given, "candidates": shown}
        labels = yield from self._call.invoke_one(asked, add_tags(config, "cfc:labeler"))
        return check_labels(labels, len(shown))
