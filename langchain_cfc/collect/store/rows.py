"""Examples, draws, scores and labels as rows of the store, and back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, messages_from_dict

from langchain_cfc.collect.stages import Labels, Stage, Usage
from langchain_cfc.collect.store.integrity import draw_checksum, prompt_digest
from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.records import Candidate, Example, PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers.base import Scored

Row = dict[str, Any]
# 300 candidates of 150 tokens with 5 alternatives each take 7.6 MB in place of 24.8.
_COMPRESSION = 6
# PostgreSQL's text has no such character.
_NUL = "\0"
# Made once: `json.dumps` makes one of these for every call.
_SORTED = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_AS_IS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def of_example(position: int, example: Example, stage: Stage = Stage.OPEN) -> Row:
    """A prompt's row."""
    row = {
        "position": position,
        "id": example.id,
        "input": written(example.input),
        "reference": written(example.reference),
        "metadata": written(example.metadata),
        "cluster": example.cluster,
        "stage": int(stage),
        "described": None,
        "error": None,
    }
    return {**row, "digest": prompt_digest(row)}


def as_example(row: Any) -> Example:
    """The example of a prompt's row; what the metadata function said is not in it yet."""
    return Example(
        id=row.id,
        input=json.loads(row.input),
        reference=json.loads(row.reference),
        metadata=json.loads(row.metadata),
        cluster=row.cluster,
    )


def of_data(draw: DrawnCandidate) -> str | None:
    """The JSON of a structured candidate; None for text."""
    return None if draw.data is None else written(draw.data)


def of_draw(position: int, slot: int, draw: DrawnCandidate, *, without_nul: bool) -> Row:
    """The row of a candidate.

    Args:
        position: Of the prompt.
        slot: Of the candidate.
        draw: The candidate.
        without_nul: Whether the database has no such character.

    Raises:
        CollectionError: If the candidate, or its message, cannot be written.
    """
    try:
        data = of_data(draw)
        message = None if draw.message is None else _message(draw.message)
        _check(draw.text, data, message, without_nul=without_nul)
    except (TypeError, ValueError) as error:
        msg = (
            f"candidate {slot} cannot be stored: {error}. Let the generator return text, or a message "
            "that holds JSON only"
        )
        raise CollectionError(msg) from error
    packed = None if message is None else zlib.compress(message.encode(), _COMPRESSION)
    return {
        "prompt": position,
        "slot": slot,
        "text": draw.text,
        "data": data,
        "packed": packed,
        "checksum": draw_checksum(position, slot, draw.text, data, packed),
    }


def _check(*texts: str | None, without_nul: bool) -> None:
    """Refuse what the database has no characters for, before it is among the rows of other prompts.

    Raises:
        ValueError: If one of them holds half a surrogate pair, or the character U+0000 where there is none.
    """
    for text in texts:
        if text is None:
            continue
        text.encode()
        if without_nul and _NUL in text:
            msg = "it holds the character U+0000, which PostgreSQL has not"
            raise ValueError(msg)


def as_draw(row: Any) -> DrawnCandidate:
    """The candidate of a row."""
    message = None
    if row.packed is not None:
        message = messages_from_dict([json.loads(zlib.decompress(row.packed))])[0]
    return DrawnCandidate(row.text, message, None if row.data is None else json.loads(row.data))


def of_scores(position: int, scores: Scored) -> list[Row]:
    """The rows of n scores."""
    outputs: Sequence[Mapping[str, float] | None] = scores.outputs or [None] * len(scores.scores)
    return [
        {
            "prompt": position,
            "slot": slot,
            "score": float(score),
            "outputs": None if one is None else written(one),
        }
        for slot, (score, one) in enumerate(zip(scores.scores, outputs, strict=True))
    ]


def of_labels(position: int, labels: Labels, *, without_nul: bool) -> list[Row]:
    """The rows of n labels.

    Raises:
        CollectionError: If an answer cannot be written.
    """
    answers: Sequence[str | None] = labels.answers or [None] * len(labels.correct)
    try:
        _check(*answers, without_nul=without_nul)
    except ValueError as error:
        msg = f"an extracted answer cannot be stored: {error}. Let the answer extractor return other text"
        raise CollectionError(msg) from error
    return [
        {"prompt": position, "slot": slot, "correct": bool(correct), "answer": answer}
        for slot, (correct, answer) in enumerate(zip(labels.correct, answers, strict=True))
    ]


def of_description(labels: Labels) -> str | None:
    """What the metadata function says, as JSON; None where it says nothing.

    Raises:
        CollectionError: If it cannot be written.
    """
    if not labels.metadata:
        return None
    try:
        said = written(labels.metadata)
        _check(said, without_nul=False)
    except ValueError as error:
        msg = f"the metadata of the prompt cannot be stored: {error}. Let its function return finite JSON"
        raise CollectionError(msg) from error
    return said


def of_error(error: CFCError) -> str:
    """Why a stage failed, as JSON; what cannot be written is spelt out."""
    said = str(error).encode(errors="backslashreplace").decode()
    return written({"kind": type(error).__name__, "said": said})


def of_calls(position: int, stage: Stage, paid: Usage) -> list[Row]:
    """The rows of what models took for a stage."""
    return [
        {
            "prompt": position,
            "stage": int(stage),
            "model": one.model,
            "drew": one.drew,
            "input_tokens": one.input_tokens,
            "output_tokens": one.output_tokens,
            "answered": one.answered,
        }
        for one in paid.calls
    ]


def as_record(prompt: Any, candidates: Sequence[Any]) -> PromptRecord:
    """A record of a prompt's row and the joined rows of its candidates."""
    described: Mapping[str, Any] = {} if prompt.described is None else json.loads(prompt.described)
    return PromptRecord(
        id=prompt.id,
        input=json.loads(prompt.input),
        reference=json.loads(prompt.reference),
        metadata={**json.loads(prompt.metadata), **described},
        cluster=prompt.cluster,
        candidates=tuple(_candidate(row) for row in candidates),
    )


def _candidate(row: Any) -> Candidate:
    return Candidate(
        text=row.text if row.data is None else None,
        message=None if row.data is None else json.loads(row.data),
        score=row.score,
        correct=row.correct,
        answer=row.answer,
        scores=None if row.outputs is None else json.loads(row.outputs),
    )


def of_record(position: int, record: PromptRecord) -> tuple[list[DrawnCandidate], Scored, Labels]:
    """The candidates of a record that was made elsewhere."""
    draws = [
        DrawnCandidate(str(one.text))
        if one.message is None
        else DrawnCandidate(one.answer_key, None, one.message)
        for one in record.candidates
    ]
    outputs = [one.scores or {} for one in record.candidates]
    scores = Scored([one.score for one in record.candidates], outputs if any(outputs) else None)
    answers = [one.answer for one in record.candidates]
    if None in answers and any(answer is not None for answer in answers):
        msg = f"record {record.id!r} (number {position + 1}): only some of its candidates have an `answer`"
        raise CollectionError(msg)
    labels = Labels([one.correct for one in record.candidates], None if None in answers else answers)  # type: ignore[arg-type]  # checked
    return draws, scores, labels


def written(value: Any) -> str:
    """A value as JSON, equal values as equal text."""
    return _SORTED.encode(value)


def _message(message: BaseMessage) -> str:
    # What is left out is what a new message has by itself.
    data = message.model_dump(exclude_defaults=True)
    return _AS_IS.encode({"type": message.type, "data": data})
