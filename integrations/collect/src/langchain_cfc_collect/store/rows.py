"""Convert examples, candidates, scores and labels to rows of a store, and back.

Most functions below return the writes of one prompt, and `group_writes` brings those of many into order.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import messages_from_dict
from sqlalchemy import insert, text

from langchain_cfc.claims import Span
from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.candidates import StrippedCandidate
from langchain_cfc.sampling.token_counts import read_usage, sum_usage
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.verifiers.base import VerifierScores
from langchain_cfc_collect.costs import Stage, Usage
from langchain_cfc_collect.stages import Labels, StoredPrompt
from langchain_cfc_collect.store import batches, schema
from langchain_cfc_collect.store.calls import ADD_CALLS, insert_calls
from langchain_cfc_collect.store.schema import Row, Statement, Write, seal, unseal

# Number of prompts that are read at a time.
PAGE_SIZE = 500
# Bytes of a candidate that are stored as they are. With log-probabilities it has far more: compressed, 300
# candidates of 150 tokens with 5 alternatives each take 7.6 MB instead of 24.8.
_MAX_UNCOMPRESSED = 1000
# Created once, because `json.dumps` with options creates one for every call. Messages may hold infinities.
_MESSAGE_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_prompts, _draws = schema.prompts, schema.draws
_EMPTY_ROW: Row = dict.fromkeys(_prompts.c.keys())
ADD_PROMPTS = insert(_prompts)
SET_EXAMPLE = text("UPDATE prompts SET id = :id, example = :example WHERE position = :position")
_SET_CONTEXT = text("UPDATE prompts SET context = :context WHERE position = :position")
_SET_CLAIMS = text("UPDATE prompts SET claims = :claims WHERE position = :position")
_SET_ERROR = text("UPDATE prompts SET error = :error WHERE position = :position AND stage = :stage")
# A stage follows the one before it, once; the numbers are those of `Stage`.
SET_DRAWN = text(
    "UPDATE prompts SET stage = 1, draws = :draws, context = NULL WHERE position = :position AND stage = 0"
)
_SET_SCORED = text("UPDATE prompts SET stage = 2, scores = :scores WHERE position = :position AND stage = 1")
_SET_LABELLED = text(
    "UPDATE prompts SET stage = 3, labels = :labels WHERE position = :position AND stage = 2"
)
STAGE_UPDATES = (SET_DRAWN, _SET_SCORED, _SET_LABELLED, _SET_ERROR)
_ADD_DRAWS = insert(_draws)
_DELETE_DRAWS, _STRIP_DRAWS = (
    text("DELETE FROM draws WHERE number BETWEEN :first AND :last") for _ in range(2)
)

# Rows are added before rows that refer to them, and candidates are deleted before they are drawn again.
_STATEMENT_ORDER = (
    ADD_PROMPTS,
    SET_EXAMPLE,
    ADD_CALLS,
    _DELETE_DRAWS,
    _SET_CONTEXT,
    _ADD_DRAWS,
    SET_DRAWN,
    _SET_CLAIMS,
    _SET_SCORED,
    _SET_LABELLED,
    _STRIP_DRAWS,
    _SET_ERROR,
    *batches.STATEMENTS,
)


# Values to rows


def make_prompt_row(position: int, example: Example) -> Row:
    """Return the row of a prompt that nothing was drawn for."""
    content = [example.id, example.input, example.reference, example.metadata, example.cluster]
    with _refuse_unstorable(f"the prompt {example.id!r:.80}", "Correct it in the dataset"):
        sealed = seal(position, "example", content)
    known = {"position": position, "id": canonical_json(example.id), "stage": int(Stage.OPEN)}
    return _EMPTY_ROW | known | {"example": sealed}


def insert_draw(position: int, slot: int, draw: DrawnCandidate) -> Write:
    """Return the write that adds a candidate; raises `CollectionError` if it cannot be stored."""
    with _refuse_candidate(slot):
        content: Row = {"text": draw.text, "data": draw.data, "no_answer": draw.no_answer}
        if draw.message is not None:
            # Defaults are left out, because a new message has them anyway.
            fields = draw.message.model_dump(exclude_defaults=True, exclude={"usage_metadata"})
            stated = getattr(draw.message, "usage_metadata", None)
            if stated and (usage := sum_usage([read_usage(stated)])):
                fields["usage_metadata"] = usage
            content["message"] = {"type": draw.message.type, "data": fields}
        packed = _MESSAGE_ENCODER.encode(content).encode()
        if len(packed) > _MAX_UNCOMPRESSED:
            packed = zlib.compress(packed)
    number, sealed = schema.number_draw(position, slot), schema.seal_bytes(position, slot, packed)
    return _ADD_DRAWS, {"number": number, "prompt": position, "slot": slot, "packed": sealed}


def _has_message(draw: DrawnCandidate) -> bool:
    return isinstance(draw, StrippedCandidate) or draw.message is not None


@contextmanager
def _refuse_unstorable(what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        msg = f"{what} cannot be stored: {error}. {advice}"
        raise CollectionError(msg) from error


def _refuse_candidate(slot: int) -> Any:
    advice = "Let the generator return text, or a message that holds JSON only"
    return _refuse_unstorable(f"candidate {slot}", advice)


# Rows to values


def read_example(store: str, row: Any) -> Example:
    """Return the example of a prompt's row."""
    name, given, reference, metadata, cluster = unseal(store, row, "example")
    if json.loads(row.id) != name:
        schema.raise_damage(store, row)
    return Example(id=name, input=given, reference=reference, metadata=metadata, cluster=cluster)


def read_prompt(store: str, row: Any, draw_rows: Sequence[Any]) -> StoredPrompt:
    """Return the prompt of a row; `draw_rows` are those of its candidates, if messages are wanted."""
    if row.stage != sum(one is not None for one in (row.draws, row.scores, row.labels)):
        schema.raise_damage(store, row)
    kept = {}
    for one in draw_rows:
        if (packed := schema.unseal_bytes(one)) is None:
            schema.raise_damage(store, row)
        kept[one.slot] = _unpack_draw(packed)
    draws, claims, scores, labels = (
        unseal(store, row, name) for name in ("draws", "claims", "scores", "labels")
    )
    if draws is not None:
        sent = [slot for slot, (*_, has_message) in enumerate(draws) if has_message]
        # Messages of a prompt are removed together.
        if any(slot in kept for slot in sent) and not all(slot in kept for slot in sent):
            schema.raise_damage(store, row)
        draws = [kept.get(slot) or _make_draw(*one) for slot, one in enumerate(draws)]
    return StoredPrompt(
        row.position,
        read_example(store, row),
        draws,
        None if claims is None else [Span(*one) for one in claims],
        None if scores is None else VerifierScores(*scores),
        None if labels is None else Labels(*labels),
        unseal(store, row, "error"),
        kept if draws is None else {},
        unseal(store, row, "context"),
        row,
    )


def _make_draw(text: str, data: Any, has_message: bool) -> DrawnCandidate:
    no_answer = data if isinstance(data, str) else None
    data = None if no_answer is not None else data
    if has_message:
        return StrippedCandidate(text, data, no_answer)  # type: ignore[arg-type]  # it was one when written
    return DrawnCandidate(text, None, data, no_answer)  # type: ignore[arg-type]  # as above


def _unpack_draw(packed: bytes) -> DrawnCandidate:
    content = json.loads(packed if packed.startswith(b"{") else zlib.decompress(packed))
    message = messages_from_dict([content["message"]])[0] if "message" in content else None
    return DrawnCandidate(content["text"], message, content["data"], content["no_answer"])


# Writes of one prompt


def _set(statement: Statement, position: int, column: str, value: Any) -> Write:
    return statement, {"position": position, column: seal(position, column, value)}


def insert_draws(
    position: int, draws: Sequence[DrawnCandidate], *, stored: Collection[int] = ()
) -> list[Write]:
    """Return the writes that finish the draws of a prompt, of which the slots `stored` are already written.

    Raises `CollectionError` if a candidate cannot be stored.
    """
    messages = _insert_messages(position, draws, stored)
    # An empty text says by itself that the candidate is blank.
    content = [
        [draw.text, draw.data if draw.no_answer in {None, "blank"} else draw.no_answer, _has_message(draw)]
        for draw in draws
    ]
    try:
        drawn = _set(SET_DRAWN, position, "draws", content)
    except (ValueError, TypeError):
        for slot, one in enumerate(content):
            with _refuse_candidate(slot):
                seal(position, "draws", one)
        raise
    return [*messages, drawn]


def _insert_messages(
    position: int, draws: Sequence[DrawnCandidate], stored: Collection[int] = ()
) -> list[Write]:
    return [
        insert_draw(position, slot, draw)
        for slot, draw in enumerate(draws)
        if slot not in stored and not isinstance(draw, StrippedCandidate) and draw.message is not None
    ]


def set_context(position: int, digest: str) -> list[Write]:
    """Return the writes that store the digest of a prompt's prepared input, before its first candidate."""
    return [_set(_SET_CONTEXT, position, "context", digest)]


def delete_draws(position: int) -> list[Write]:
    """Return the writes that delete the candidates of a prompt."""
    return [(_DELETE_DRAWS, _match_prompt(position))]


def _match_prompt(position: int) -> Row:
    return {"first": schema.number_draw(position), "last": schema.number_draw(position + 1) - 1}


def insert_claims(position: int, spans: Sequence[Span]) -> list[Write]:
    """Return the writes that store the claims of an answer; `CollectionError` if one cannot be stored."""
    content = [[one.start, one.end, one.text] for one in spans]
    with _refuse_unstorable("a claim", "Let the splitter return other text"):
        return [_set(_SET_CLAIMS, position, "claims", content)]


def insert_scores(position: int, scores: VerifierScores) -> list[Write]:
    """Return the writes that finish the scores of a prompt."""
    verdicts = [None if one is None else float(one) for one in scores.verdicts]
    return [_set(_SET_SCORED, position, "scores", [verdicts, scores.outputs])]


def copy_stages(
    row: Any, messages: Sequence[DrawnCandidate], scores: VerifierScores | None, usage: Usage, position: int
) -> list[Write]:
    """Return the writes of another store's prompt, with messages, other scores and the usage of its draws.

    Labels follow scores, so without scores they are left out.
    """
    writes = insert_calls(position, Stage.DRAWN, usage) + _insert_messages(position, messages)
    copied = {SET_DRAWN: "draws", _SET_CLAIMS: "claims"}
    if scores is not None:
        writes += insert_scores(position, scores)
        copied[_SET_LABELLED] = "labels"
    for statement, column in copied.items():
        if getattr(row, column) is not None:
            sealed = schema.seal_copy(position, column, row)
            writes.append((statement, {"position": position, column: sealed}))
    return writes


def insert_labels(position: int, labels: Labels, *, keep_messages: bool = False) -> list[Write]:
    """Return the writes that finish a prompt, and remove the messages of its candidates.

    Raises `CollectionError` if an answer or the metadata cannot be stored.
    """
    with _refuse_unstorable("an extracted answer", "Let the answer extractor return other text"):
        canonical_json(labels.answers).encode()
    correct = [None if one is None else bool(one) for one in labels.correct]
    with _refuse_unstorable("the metadata of the prompt", "Let its function return finite JSON"):
        labelled = _set(_SET_LABELLED, position, "labels", [correct, labels.answers, labels.metadata or None])
    return [labelled] if keep_messages else [labelled, (_STRIP_DRAWS, _match_prompt(position))]


def insert_stages(
    draws: Sequence[DrawnCandidate],
    scores: VerifierScores | None,
    labels: Labels | None,
    usage: Usage,
    position: int,
) -> list[Write]:
    """Return the writes of the stages of a prompt that went through them elsewhere; None for the others."""
    writes = insert_calls(position, Stage.DRAWN, usage) + insert_draws(position, draws)
    if scores is not None:
        writes += insert_scores(position, scores)
    return writes if labels is None else writes + insert_labels(position, labels)


def set_error(position: int, stage: Stage, error: CFCError) -> list[Write]:
    """Return the writes that mark a prompt as failed in a stage; its finished stages stay."""
    # Characters that cannot be encoded are escaped.
    said = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
    statement, failed = _set(_SET_ERROR, position, "error", said)
    return [(statement, {**failed, "stage": int(stage) - 1})]


def group_writes(writes: Iterable[Write]) -> Iterator[tuple[Statement, list[Row]]]:
    """Yield each statement of some writes with all its rows, in a valid order."""
    rows: dict[Statement, list[Row]] = {statement: [] for statement in _STATEMENT_ORDER}
    for statement, row in writes:
        rows[statement].append(row)
    return ((statement, parameters) for statement, parameters in rows.items() if parameters)
