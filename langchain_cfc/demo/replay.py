"""Replay recorded candidates as if a model drew them, to run the whole pipeline without a model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from textwrap import shorten
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

from langchain_cfc.claims import Span
from langchain_cfc.errors import DrawError, InputError, VerifierError
from langchain_cfc.records import (
    Candidate,
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
    Provenance,
    Records,
)
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import REASONING_TEXT
from langchain_cfc.sampling.usage import DRAW_TAG
from langchain_cfc.verifiers.prompts import read_prompt

# Where messages hold the scores of a candidate by verifier; the score in use has no name.
_SCORES_KEY, _IN_USE = "cfc_recorded_scores", ""
# Limits of the search for prompts similar to a missing one: characters per prompt, and number of prompts.
_COMPARED_LENGTH, _MOST_COMPARED = 200, 5_000


class ReplayChatModel(BaseChatModel):
    """A chat model that answers recorded prompts with their recorded candidates, by request slot.

    A prompt therefore always gets the same candidates, even if a draw rule stops early. Outside a draw, the
    model returns the first one; asked for `n` choices, it returns the first n. Use `from_records` to make
    one.

    Attributes:
        fingerprint: The fingerprint of the recorded model.
    """

    fingerprint: dict[str, Any]

    # Private, because LangChain and this package search the public fields of a model over and over.
    _records: Mapping[str, PromptRecord] = PrivateAttr(default_factory=dict)

    @classmethod
    def from_records(
        cls, records: Iterable[PromptRecord], provenance: Provenance | None = None
    ) -> ReplayChatModel:
        """Return a model that replays these records.

        Args:
            records: Records whose candidates are texts; their labels are ignored.
            provenance: The records' header; its generator becomes the model's fingerprint.

        Raises:
            InputError: If two records have the same input, or a candidate is not a text.
        """
        by_input: dict[str, PromptRecord] = {}
        for record in records:
            first = by_input.setdefault(compute_prompt_key(record.input), record)
            if first is not record:
                msg = (
                    f"records {first.id!r} and {record.id!r} have the same input, so it is unclear which to "
                    "replay"
                )
                raise InputError(msg)
            if any(candidate.text is None for candidate in record.candidates):
                msg = f"record {record.id!r} holds candidates that are not text; only texts can be replayed"
                raise InputError(msg)
        model = cls(fingerprint=_get_fingerprint(provenance, "generator"))
        model._records = by_input
        return model

    def find_record(self, prompt: Any) -> PromptRecord:
        """Return the record of a prompt (text, messages or a JSON object).

        Raises:
            DrawError: If the prompt was not recorded; the message names the most similar recorded prompts.
        """
        key = compute_prompt_key(prompt)
        if key in self._records:
            return self._records[key]
        # The time for a comparison grows with the square of the length.
        starts = [known[:_COMPARED_LENGTH] for known in itertools.islice(self._records, _MOST_COMPARED)]
        nearest = get_close_matches(key[:_COMPARED_LENGTH], starts, n=3, cutoff=0.0)
        msg = (
            f"this prompt was not recorded, so there is nothing to replay: {_quote(key)}. Recorded prompts "
            f"near it: {', '.join(map(_quote, nearest)) or 'none'}"
        )
        raise DrawError(msg)

    @property
    def _llm_type(self) -> str:
        return "langchain-cfc-replay"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        *,
        n: int | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, kwargs
        record = self.find_record(messages)
        slots = [_find_slot(run_manager)] if n is None else range(n)
        return ChatResult(generations=[_make_generation(record, slot) for slot in slots])


class RecordedScores:
    """Verifier of replayed candidates that returns their recorded scores.

    Args:
        provenance: The records' header; its verifier becomes the fingerprint.
        output: Name of one of several verifiers, whose recorded raw outputs are returned instead.
    """

    def __init__(self, provenance: Provenance | None = None, *, output: str | None = None) -> None:
        self.fingerprint = _get_fingerprint(provenance, "verifier")
        self._output = output or _IN_USE

    def __call__(self, prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        """Return one recorded score per candidate.

        Raises:
            VerifierError: If a candidate does not come from a `ReplayChatModel`.
        """
        del prompt
        recorded = [{} if one.message is None else one.message.response_metadata for one in candidates]
        scores: list[Any] = [one.get(_SCORES_KEY, {}).get(self._output) for one in recorded]
        if None in scores:
            msg = f"candidate {scores.index(None)} does not come from a recording, so its score is unknown"
            raise VerifierError(msg)
        return scores


class _RecordedTexts:
    """A part of a chain that returns what was recorded for a text; one value only, or an InputError."""

    def __init__(self, recorded: Iterable[tuple[str, Any]], fingerprint: dict[str, Any]) -> None:
        self.fingerprint = fingerprint
        self._recorded: dict[str, Any] = {}
        for text, value in recorded:
            if self._recorded.setdefault(text, value) != value:
                msg = f"the text {text!r:.80} was recorded with several answers, or lists of claims"
                raise InputError(msg)

    def __call__(self, text: str) -> Any:
        """Return what was recorded for this text.

        Raises:
            KeyError: If the text was not recorded.
        """
        return self._recorded[text]


class RecordedAnswers(_RecordedTexts):
    """Answer extractor of replayed candidates that returns the answers recorded for their texts."""

    def __init__(self, records: Iterable[PromptRecord], provenance: Provenance | None = None) -> None:
        answers = ((str(one.text), one.answer_key) for record in records for one in record.candidates)
        super().__init__(answers, _get_fingerprint(provenance, "answer"))


class RecordedClaims(_RecordedTexts):
    """Splitter of replayed answers that returns the recorded claims; each record has its answer and spans."""

    def __init__(self, records: Iterable[ClaimsRecord], provenance: Provenance | None = None) -> None:
        super().__init__(map(_list_spans, records), _get_fingerprint(provenance, "splitter"))


def _list_spans(record: ClaimsRecord) -> tuple[str, list[Span]]:
    if record.answer is None or any(one.start is None and not one.no_verdict for one in record.claims):
        msg = f"record {record.id!r} lacks the answer or the spans of its claims: nothing to replay"
        raise InputError(msg)
    return record.answer, [Span(one.start, one.end, one.text) for one in record.claims]


class RecordedClaimScores:
    """Verifier of replayed claims that returns their recorded scores; see `RecordedScores`."""

    def __init__(self, records: Iterable[ClaimsRecord], provenance: Provenance | None = None) -> None:
        self.fingerprint = _get_fingerprint(provenance, "verifier")
        self._claims = {compute_prompt_key(record.input): record.claims for record in records}

    def __call__(self, prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        """Return one recorded score per claim.

        Raises:
            VerifierError: If these are not the claims recorded for the prompt.
        """
        claims = self._claims.get(compute_prompt_key(prompt), ())
        if [one.text for one in claims if one.start is not None] != [
            one.text for one in candidates if one.no_answer is None
        ]:
            msg = "these claims do not come from the recording, so their scores are unknown"
            raise VerifierError(msg)
        return [one.score for one in claims]


class RecordedMetadata:
    """Metadata function of replayed prompts that returns their recorded metadata."""

    def __init__(self, records: Iterable[LabelledRecord]) -> None:
        self._metadata = {compute_prompt_key(record.input): dict(record.metadata) for record in records}

    def __call__(self, prompt: Any) -> dict[str, Any]:
        """Return the metadata recorded for this prompt; empty if the prompt was not recorded."""
        return self._metadata.get(compute_prompt_key(prompt), {})


def make_replay_parts(source: Records) -> dict[str, Any]:
    """Return the arguments of `CFCRunnable`, besides the artifact, that replay a recording.

    Args:
        source: Labelled records whose candidates are texts, and their header; the labels are ignored.

    Returns:
        Generator, verifier, answer extractor and metadata function, by argument name; for claims the splitter
        instead of the extractor. One request returns all candidates of a prompt, and calls are not
        concurrent, because replaying never waits.

    Raises:
        InputError: If the records cannot be replayed; see the classes of the parts.
    """
    provenance = source.provenance
    records: Sequence[LabelledRecord]
    parts: dict[str, Any]
    if provenance is not None and provenance.unit == "claims":
        records = claims = list(source.read_claims())
        splitter, scores = RecordedClaims(claims, provenance), RecordedClaimScores(claims, provenance)
        parts = {"verifier": scores, "output": "claims", "splitter": splitter}
        # The model replays candidates: here a single one per prompt, its answer.
        replayed = [
            PromptRecord(
                id=record.id,
                input=record.input,
                candidates=(Candidate(text=record.answer, score=0.0, correct=False),),
            )
            for record in claims
        ]
    else:
        records = replayed = list(source)
        answer = RecordedAnswers(replayed, provenance)
        parts = {"verifier": RecordedScores(provenance), "answer": answer, "sampling": "single_request"}
    parts["generator"] = generator = ReplayChatModel.from_records(replayed, provenance)
    parts["reasoning"] = "keep" if REASONING_TEXT in generator.fingerprint else "strip"
    return {**parts, "metadata": RecordedMetadata(records), "max_concurrency": 1}


def _make_generation(record: PromptRecord, slot: int) -> ChatGeneration:
    candidate = record.candidates[slot % len(record.candidates)]
    recorded = {_SCORES_KEY: {**(candidate.scores or {}), _IN_USE: candidate.score}}
    return ChatGeneration(message=AIMessage(str(candidate.text), response_metadata=recorded))


def _find_slot(run_manager: CallbackManagerForLLMRun | None) -> int:
    """Return the slot of the candidate that a run draws, from its innermost tag; 0 outside a draw."""
    tags = run_manager.tags if run_manager is not None else []
    slots = [tag.rpartition(":")[2] for tag in tags if tag.startswith(f"{DRAW_TAG}:")]
    return int(slots[-1]) if slots else 0


def _get_fingerprint(provenance: Provenance | None, part: str) -> dict[str, Any]:
    stated = getattr(provenance, part, None)
    # The class is that of the recorded part, which older records do not state.
    return {"class": None, **stated} if stated else {}


def compute_prompt_key(prompt: Any) -> str:
    """Return a text that is equal for equal prompts, used to look up records.

    A text and the single human message that a chat model turns it into have the same key. The key covers all
    content shown to a model: prompts with the same text and different images have different keys.

    Args:
        prompt: Text, messages or a JSON object.

    Returns:
        The text itself, or canonical JSON of anything else.

    Raises:
        InputError: If the prompt is of another kind, or holds a block that is no text, image, audio or file.
    """
    content = read_prompt(prompt, "only text, messages and JSON objects can be replayed", InputError)
    if isinstance(content, str):
        return content
    try:
        # One form for all forms of a block, because chat models get some in another one than was recorded.
        shown = convert_to_openai_messages(content, text_format="block")
    except ValueError as error:
        msg = f"this prompt cannot be replayed: {error}"
        raise InputError(msg) from error
    return json.dumps(shown, sort_keys=True, ensure_ascii=False, default=repr)


def _quote(prompt: str) -> str:
    return repr(shorten(prompt, 100, placeholder="..."))
