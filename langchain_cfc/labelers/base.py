"""What a labeler is, and what it returns.

A labeler is the paper's A(X, y): offline it says of each candidate of a prompt whether it is correct, given
the reference of the record. Like a verifier it is set-wise: it sees the prompt, its reference and all n
candidates, and returns n booleans.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias, TypedDict

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.errors import LabelerError
from langchain_cfc.execution import Call, FlowRunnable, Steps, Target, add_tags, call_by_keys, describe_error
from langchain_cfc.sampling import DrawnCandidate, without_streaming_and_cache
from langchain_cfc.verifiers.base import to_python_scalar


class _Given(TypedDict):
    prompt: Any
    reference: Any
    candidates: list[DrawnCandidate]


class LabelerInput(_Given, total=False):
    """What a labeler that is a Runnable is invoked with.

    `prompt` is the input of the record, `reference` the JSON value that its labels are made with (None where
    it has none), `candidates` are the n candidates in draw order. `id` is the record's, and may be left out:
    only labels that were written down by it need it.
    """

    id: str


Labels: TypeAlias = Sequence[bool]
Labeler: TypeAlias = (
    Runnable[Any, Any]
    | Callable[[Any, Any, list[DrawnCandidate]], Labels]
    | Callable[[Any, Any, list[DrawnCandidate]], Awaitable[Labels]]
)

_HINT = "a labeler returns True or False for each candidate, True where it is correct"


class BaseLabeler(FlowRunnable[LabelerInput, list[bool]]):
    """A labeler that is a Runnable, written as one flow for the sync and the async path.

    What it calls takes its places within the bounds of the prompt that is labelled, call by call.

    Attributes:
        fingerprint: What it says of itself, see `langchain_cfc.fingerprints`.
    """

    fingerprint: Mapping[str, Any]

    @abstractmethod
    def labelled(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """Label all candidates of a prompt.

        Args:
            given: The prompt with its reference and its n candidates.
            config: Config for whatever is called.

        Returns:
            n booleans, True where the candidate is correct.

        Raises:
            LabelerError: If the reference cannot be used, or a candidate cannot be labelled.
        """

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """The same under the name that all flows have."""
        return self.labelled(given, config)


def resolve_labeler(labeler: Labeler) -> Call:
    """A labeler as a call with a `LabelerInput`.

    Args:
        labeler: A Runnable on `LabelerInput`, or a function `(prompt, reference, candidates) -> labels`,
            plain or async.

    Returns:
        The call, whose failures are `LabelerError`s.

    Raises:
        LabelerError: If it is neither.
    """
    if isinstance(labeler, Runnable):
        return make_labeler_call("labeler", labeler)
    if not callable(labeler):
        msg = f"got a {type(labeler).__name__} as labeler: {_HINT}"
        raise LabelerError(msg)
    return make_labeler_call("labeler", call_by_keys(labeler, ("prompt", "reference", "candidates")))


def make_labeler_call(part: str, target: Target) -> Call:
    """A call whose failures are `LabelerError`s; what a model in it says is kept from streams.

    Args:
        part: What it is, for messages.
        target: What to call.
    """
    silent = without_streaming_and_cache(target, fresh=False) if isinstance(target, Runnable) else target
    return Call(part, silent, LabelerError)


def check_labels(labels: Any, n: int) -> list[bool]:
    """Refuse whatever is not one boolean per candidate.

    Args:
        labels: What a labeler returned.
        n: Number of candidates.

    Returns:
        n booleans.

    Raises:
        LabelerError: If there are not exactly n labels, or one is no boolean: 1 and "true" are none.
    """
    values: list[Any] | None = None
    cause: Exception | None = None
    # The keys of a mapping, the members of a set and the bytes of a text come in no order of candidates.
    if not isinstance(labels, (Mapping, AbstractSet, str, bytes, bytearray)):
        try:
            values = [to_python_scalar(value) for value in labels]
        except Exception as error:  # noqa: BLE001 - a labeler that yields its labels may fail only here
            cause = error
    if values is None:
        reason = f" ({describe_error(cause)})" if cause is not None else ""
        msg = f"the labeler returned {type(labels).__name__} instead of {n} labels{reason}: {_HINT}"
        raise LabelerError(msg) from cause
    if len(values) != n:
        msg = f"the labeler returned {len(values)} labels for {n} candidates: {_HINT}"
        raise LabelerError(msg)
    for slot, value in enumerate(values):
        if not isinstance(value, bool):
            msg = f"the label of candidate {slot} is {value!r:.80}: {_HINT}"
            raise LabelerError(msg)
    return values


Reads: TypeAlias = Literal["answer", "text"]


class CandidateLabeling:
    """Asks a labeler about the candidates of a prompt.

    Candidates of one answer have one label: otherwise a set of distinct answers could not say what it holds.

    Args:
        labeler: The labeler.
        reads: What it is shown where there is an answer extractor: each distinct `answer` as if it were the
            text, or the whole `text` of the first candidate that gives it.

    Raises:
        LabelerError: If it is no labeler.
    """

    def __init__(self, labeler: Labeler, reads: Reads = "answer") -> None:
        self._call = resolve_labeler(labeler)
        self._reads = reads

    def labels(
        self, given: LabelerInput, answers: Sequence[str] | None, config: RunnableConfig
    ) -> Steps[list[bool]]:
        """Whether each candidate is correct.

        Args:
            given: Prompt, reference and all candidates.
            answers: Their answers; None without an extractor.
            config: Config of child runs.

        Returns:
            One label per candidate.

        Raises:
            LabelerError: If the labeler fails, or returns anything but one boolean for each that it is shown.
        """
        shown, places = self._shown(given["candidates"], answers)
        asked: LabelerInput = {**given, "candidates": shown}
        found = yield from self._call.one(asked, add_tags(config, "cfc:labeler"))
        labels = check_labels(found, len(shown))
        return [labels[place] for place in places]

    def _shown(
        self, draws: Sequence[DrawnCandidate], answers: Sequence[str] | None
    ) -> tuple[list[DrawnCandidate], list[int]]:
        """What the labeler sees, and for each candidate the place of its own in that."""
        if answers is None:
            return list(draws), list(range(len(draws)))
        distinct = list(dict.fromkeys(answers))
        if self._reads == "answer":
            shown = [DrawnCandidate(answer) for answer in distinct]
        else:
            shown = [draws[answers.index(answer)] for answer in distinct]
        return shown, [distinct.index(answer) for answer in answers]


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its pairs, as `object_pairs_hook` of a JSON reader.

    Raises:
        ValueError: If a key stands twice in it.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        msg = "a key stands twice in one object"
        raise ValueError(msg)
    return fields
