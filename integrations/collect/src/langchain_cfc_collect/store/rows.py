"""Convert examples, candidates, scores and labels to rows of a store, and back.

A `Write` is a statement with its rows. Most functions below return the writes of one prompt, `combine_writes`
merges those of many prompts, and `execute_writes` executes them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias, cast

from langchain_core.messages import messages_from_dict
from sqlalchemy import Connection, Dialect, delete, insert

from langchain_cfc.claims import Span
from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.no_answers import NoAnswer
from langchain_cfc.records import Candidate, Claim, ClaimsRecord, Example, PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.candidates import StrippedCandidate
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.verifiers.base import VerifierScores
from langchain_cfc_collect.costs import Stage, Usage
from langchain_cfc_collect.executor import Labels
from langchain_cfc_collect.store import batches, schema
from langchain_cfc_collect.store.schema import Statement, Write, define_update, match_keys

Row: TypeAlias = dict[str, Any]

# Number of prompts that are read at a time.
PAGE_SIZE = 500
# Level of zlib: 300 candidates of 150 tokens with 5 alternatives each take 7.6 MB instead of 24.8.
_COMPRESSION = 6
# Text in PostgreSQL cannot contain this character.
_NUL = "\0"

ADD_PROMPTS = insert(schema.prompts)
_ADD_DRAWS = insert(schema.draws)
_ADD_CLAIMS = insert(schema.claims)
_ADD_SCORES = insert(schema.scores)
_ADD_LABELS = insert(schema.labels)
_ADD_CALLS = insert(schema.calls)
_ADD_ANNOUNCED = insert(schema.announced)
_PROMPT_KEY = ["position"]
_SET_CONTEXT = define_update(schema.prompts, _PROMPT_KEY, ["context"])
_SET_DRAWN = define_update(schema.prompts, _PROMPT_KEY, ["stage", "draws_digest", "context"])
_SET_SCORED = define_update(schema.prompts, _PROMPT_KEY, ["stage", "scores_digest"])
_SET_LABELLED = define_update(schema.prompts, _PROMPT_KEY, ["stage", "labels_digest", "described"])
_SET_ERROR = define_update(schema.prompts, _PROMPT_KEY, ["error"])
SET_EXAMPLE = define_update(schema.prompts, _PROMPT_KEY, ["id", "reference", "metadata", "cluster", "digest"])
_DELETE_DRAWS = delete(schema.draws).where(*match_keys(schema.draws, ["prompt"]))
_STRIP_DRAWS = define_update(schema.draws, ["prompt", "slot"], ["packed", "checksum"])

# Rows are added before rows that refer to them, and candidates are deleted before they are drawn again.
_STATEMENT_ORDER = (
    ADD_PROMPTS,
    SET_EXAMPLE,
    _ADD_ANNOUNCED,
    _DELETE_DRAWS,
    _SET_CONTEXT,
    _ADD_DRAWS,
    _ADD_CLAIMS,
    _ADD_SCORES,
    _ADD_LABELS,
    _SET_DRAWN,
    _SET_SCORED,
    _SET_LABELLED,
    _STRIP_DRAWS,
    _SET_ERROR,
    _ADD_CALLS,
    *batches.STATEMENTS,
)
# Columns of a prompt that hold JSON from the dataset.
_JSON_COLUMNS = ("input", "reference", "metadata")
# Key under which a connection caches the names of the models in the seal.
_KNOWN_MODELS_KEY = "cfc_models"


# Values to rows


def make_prompt_row(position: int, example: Example) -> Row:
    """Return the row of a prompt that nothing was drawn for."""
    row = {
        "position": position,
        "id": example.id,
        **{name: canonical_json(getattr(example, name)) for name in _JSON_COLUMNS},
        "cluster": example.cluster,
        "stage": int(Stage.OPEN),
        "described": None,
        "error": None,
    }
    return {**row, "digest": schema.digest_prompt(row)}


def _serialize_data(draw: DrawnCandidate) -> str | None:
    # An empty text says by itself that the candidate is blank.
    data = draw.data if draw.no_answer in {None, "blank"} else draw.no_answer
    return None if data is None else canonical_json(data)


def _make_draw_row(position: int, slot: int, draw: DrawnCandidate, *, forbids_nul: bool) -> Row:
    """Return the row of a candidate; raises `CollectionError` if the candidate cannot be stored."""
    advice = "Let the generator return text, or a message that holds JSON only"
    with _refuse_unstorable(f"candidate {slot}", advice):
        data, message = _serialize_data(draw), None
        is_stripped = isinstance(draw, StrippedCandidate)
        if not is_stripped and draw.message is not None:
            # Defaults are left out, because a new message has them anyway.
            fields = draw.message.model_dump(exclude_defaults=True)
            message = schema.JSON_ENCODER.encode({"type": draw.message.type, "data": fields})
        _check_text(draw.text, data, message, forbids_nul=forbids_nul)
    packed = None if message is None else zlib.compress(message.encode(), _COMPRESSION)
    if is_stripped:
        packed = schema.STRIPPED
    return {
        "prompt": position,
        "slot": slot,
        "text": draw.text,
        "data": data,
        "packed": packed,
        "checksum": schema.digest_draw(position, slot, draw.text, data, packed),
    }


@contextmanager
def _refuse_unstorable(what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        msg = f"{what} cannot be stored: {error}. {advice}"
        raise CollectionError(msg) from error


def _check_text(*texts: str | None, forbids_nul: bool) -> None:
    """Raise `ValueError` for text that the database cannot store, before it is combined with other rows."""
    for text in texts:
        if text is None:
            continue
        text.encode()
        if forbids_nul and _NUL in text:
            msg = "it holds the character U+0000, which PostgreSQL does not support"
            raise ValueError(msg)


# Rows to values


def read_example(row: Any) -> Example:
    """Return the example of a prompt's row, without the output of the metadata function."""
    fields = {name: json.loads(getattr(row, name)) for name in _JSON_COLUMNS}
    return Example(id=row.id, cluster=row.cluster, **fields)


def read_draw(row: Any) -> DrawnCandidate:
    """Return the candidate of a row."""
    data, no_answer = _parse_data(row)
    if row.packed == schema.STRIPPED:
        return StrippedCandidate(row.text, data, no_answer)
    message = None
    if row.packed is not None:
        message = messages_from_dict([json.loads(zlib.decompress(row.packed))])[0]
    return DrawnCandidate(row.text, message, data, no_answer)


def _parse_data(row: Any) -> tuple[dict[str, Any] | None, NoAnswer | None]:
    """Return the data of a candidate's row, and why it is no answer."""
    data = None if row.data is None else json.loads(row.data)
    return (None, cast("NoAnswer", data)) if isinstance(data, str) else (data, None)


def _parse_outputs(row: Any) -> dict[str, Any]:
    """Return the fields `scores` and `no_verdict` of the joined row of a candidate or claim."""
    outputs = {} if row.outputs is None else json.loads(row.outputs)
    return {"scores": outputs or None, "no_verdict": True if outputs is None else None}


def _read_fields(prompt: Any) -> dict[str, Any]:
    """Return the fields of a prompt's record, with the output of the metadata function."""
    fields = {name: json.loads(getattr(prompt, name)) for name in _JSON_COLUMNS}
    if prompt.described is not None:
        fields["metadata"] |= json.loads(prompt.described)
    return {"id": prompt.id, "cluster": prompt.cluster, **fields}


def read_claims_record(prompt: Any, answer: str, claims: Sequence[Any]) -> ClaimsRecord:
    """Return the record of a prompt, given its row, its first answer and the joined rows of its claims."""
    return ClaimsRecord(
        **_read_fields(prompt),
        answer=answer,
        claims=tuple(
            Claim(
                text=row.text,
                start=row.start,
                end=row.stop,
                score=row.score,
                supported=bool(row.correct),
                no_label=True if row.correct is None else None,
                **_parse_outputs(row),
            )
            for row in claims
        ),
    )


def read_record(prompt: Any, candidates: Sequence[Any]) -> PromptRecord:
    """Return the record of a prompt, given its row and the joined rows of its candidates."""
    return PromptRecord(
        **_read_fields(prompt),
        candidates=tuple(map(_read_candidate, candidates)),
    )


def _read_candidate(row: Any) -> Candidate:
    data, no_answer = _parse_data(row)
    known = _parse_outputs(row)
    if known["no_verdict"] and not row.text and data is None:
        no_answer = no_answer or "blank"
    return Candidate(
        text=row.text if data is None else None,
        message=data,
        score=row.score,
        correct=bool(row.correct),
        no_label=True if row.correct is None else None,
        answer=row.answer,
        no_answer=no_answer,
        scores=known["scores"],
        no_verdict=known["no_verdict"] if no_answer is None else None,
    )


# Writes of one prompt


def insert_calls(position: int, stage: Stage, usage: Usage) -> list[Write]:
    """Return the writes that store usage of a stage."""
    calls = [{"prompt": position, "stage": int(stage), **vars(one)} for one in usage.calls]
    return [(_ADD_CALLS, calls)]


def insert_draws(
    position: int,
    draws: Sequence[DrawnCandidate],
    usage: Usage,
    *,
    forbids_nul: bool,
    stored: Collection[int] = (),
) -> list[Write]:
    """Return the writes that finish the draws of a prompt, of which the slots `stored` are already written.

    `usage` is the part of the usage that is not written yet. Raises `CollectionError` if a candidate cannot
    be stored, for example text with U+0000 if the database `forbids_nul`.
    """
    missing = [
        _make_draw_row(position, slot, draw, forbids_nul=forbids_nul)
        for slot, draw in enumerate(draws)
        if slot not in stored
    ]
    digest = schema.digest_draws(
        position, [draw.text for draw in draws], [_serialize_data(draw) for draw in draws]
    )
    done = {"set_stage": int(Stage.DRAWN), "set_draws_digest": digest, "set_context": None}
    return [
        (_ADD_DRAWS, missing),
        (_SET_DRAWN, [{"where_position": position, **done}]),
        *insert_calls(position, Stage.DRAWN, usage),
    ]


def insert_draw(
    position: int, slot: int, draw: DrawnCandidate, usage: Usage, *, forbids_nul: bool
) -> list[Write]:
    """Return the writes that store one candidate; arguments and errors as in `insert_draws`."""
    return [
        (_ADD_DRAWS, [_make_draw_row(position, slot, draw, forbids_nul=forbids_nul)]),
        *insert_calls(position, Stage.DRAWN, usage),
    ]


def set_context(position: int, digest: str) -> list[Write]:
    """Return the writes that store the digest of a prompt's prepared input, before its first candidate."""
    return [(_SET_CONTEXT, [{"where_position": position, "set_context": digest}])]


def delete_draws(position: int) -> list[Write]:
    """Return the writes that delete the candidates of a prompt."""
    return [(_DELETE_DRAWS, [{"where_prompt": position}])]


def announce_requests(position: int, stage: Stage, requests: int) -> list[Write]:
    """Return the writes that announce requests, or take back those that were not made (if negative)."""
    rows = [{"prompt": position, "stage": int(stage), "requests": requests}] if requests else []
    return [(_ADD_ANNOUNCED, rows)]


def insert_claims(position: int, spans: Sequence[Span], usage: Usage, *, forbids_nul: bool) -> list[Write]:
    """Return the writes that store the claims of an answer; `CollectionError` if one cannot be stored."""
    texts = [str(one.text) for one in spans]
    with _refuse_unstorable("a claim", "Let the splitter return other text"):
        _check_text(*texts, forbids_nul=forbids_nul)
    rows: list[Row] = [
        {"prompt": position, "slot": slot, "start": one.start, "stop": one.end, "text": text}
        for slot, (one, text) in enumerate(zip(spans, texts, strict=True))
    ]
    rows = [{**row, "checksum": schema.digest_claim(row, len(rows))} for row in rows]
    return [(_ADD_CLAIMS, rows), *insert_calls(position, Stage.SCORED, usage)]


def insert_scores(position: int, scores: VerifierScores, usage: Usage) -> list[Write]:
    """Return the writes that finish the scores of a prompt."""
    outputs: Sequence[Mapping[str, float] | None] = scores.outputs or [None] * len(scores.scores)
    rows: list[Row] = [
        {
            "prompt": position,
            "slot": slot,
            "score": float(score),
            "outputs": "null" if verdict is None else None if one is None else canonical_json(one),
        }
        for slot, (score, verdict, one) in enumerate(
            zip(scores.scores, scores.verdicts, outputs, strict=True)
        )
    ]
    digest = schema.digest_scores(position, [row["score"] for row in rows], [row["outputs"] for row in rows])
    done = {"set_stage": int(Stage.SCORED), "set_scores_digest": digest}
    return [
        (_ADD_SCORES, rows),
        (_SET_SCORED, [{"where_position": position, **done}]),
        *insert_calls(position, Stage.SCORED, usage),
    ]


def insert_labels(
    position: int,
    labels: Labels,
    usage: Usage,
    *,
    forbids_nul: bool,
    strip: Sequence[DrawnCandidate] = (),
) -> list[Write]:
    """Return the writes that finish a prompt, and remove the messages of the candidates to `strip`.

    Raises `CollectionError` if an answer or the metadata cannot be stored.
    """
    answers: Sequence[str | None] = labels.answers or [None] * len(labels.correct)
    with _refuse_unstorable("an extracted answer", "Let the answer extractor return other text"):
        _check_text(*answers, forbids_nul=forbids_nul)
    rows: list[Row] = [
        {
            "prompt": position,
            "slot": slot,
            "correct": None if correct is None else bool(correct),
            "answer": answer,
        }
        for slot, (correct, answer) in enumerate(zip(labels.correct, answers, strict=True))
    ]
    described = None
    if labels.metadata:
        with _refuse_unstorable("the metadata of the prompt", "Let its function return finite JSON"):
            described = canonical_json(labels.metadata)
            _check_text(described, forbids_nul=False)
    digest = schema.digest_labels(
        position, [row["correct"] for row in rows], [row["answer"] for row in rows], described
    )
    done = {"set_stage": int(Stage.LABELLED), "set_labels_digest": digest, "set_described": described}
    return [
        (_ADD_LABELS, rows),
        (_SET_LABELLED, [{"where_position": position, **done}]),
        *strip_draws(
            position,
            [
                (slot, draw.text, _serialize_data(draw))
                for slot, draw in enumerate(strip)
                if not isinstance(draw, StrippedCandidate) and draw.message is not None
            ],
        ),
        *insert_calls(position, Stage.LABELLED, usage),
    ]


def strip_draws(position: int, draws: Iterable[tuple[int, str, str | None]]) -> list[Write]:
    """Return the writes that remove the messages of candidates, given as (slot, text, JSON data)."""
    stripped: list[Row] = [
        {
            "where_prompt": position,
            "where_slot": slot,
            "set_packed": schema.STRIPPED,
            "set_checksum": schema.digest_draw(position, slot, text, data, schema.STRIPPED),
        }
        for slot, text, data in draws
    ]
    return [(_STRIP_DRAWS, stripped)]


def set_error(position: int, stage: Stage, error: CFCError, usage: Usage) -> list[Write]:
    """Return the writes that mark a prompt as failed; its finished stages stay."""
    # Characters that cannot be encoded are escaped.
    text = str(error).encode(errors="backslashreplace").decode()
    reason = canonical_json({"kind": type(error).__name__, "said": text})
    return [
        (_SET_ERROR, [{"where_position": position, "set_error": reason}]),
        *insert_calls(position, stage, usage),
    ]


# Many writes


def combine_writes(many: Iterable[Iterable[Write]]) -> list[Write]:
    """Merge the writes of several prompts into one write per statement, in a valid order."""
    rows: dict[Statement, list[Row]] = {statement: [] for statement in _STATEMENT_ORDER}
    for writes in many:
        for statement, parameters in writes:
            rows[statement].extend(parameters)
    return [(statement, parameters) for statement, parameters in rows.items() if parameters]


def execute_writes(connection: Connection, writes: Iterable[Write]) -> None:
    """Write rows and the seal in the transaction of a connection, skipping statements without rows.

    Rows go to the driver directly: SQLAlchemy's processing of each row would take longer than the write.
    """
    filled = [(statement, parameters) for statement, parameters in writes if parameters]
    for statement, parameters in filled:
        sql = _compile_sql(statement, connection.dialect, tuple(parameters[0]))
        connection.exec_driver_sql(sql, parameters)
    _update_seal(connection, filled)


@cache
def _compile_sql(statement: Statement, dialect: Dialect, names: tuple[str, ...]) -> str:
    return str(statement.compile(dialect=dialect, column_keys=names, for_executemany=True))


def _update_seal(connection: Connection, writes: Sequence[Write]) -> None:
    def list_rows(wanted: Statement) -> list[Row]:
        return [row for statement, rows in writes if statement is wanted for row in rows]

    prompts = list_rows(ADD_PROMPTS)
    labelled = [row["set_labels_digest"] for row in list_rows(_SET_LABELLED)]
    models = {row["model"] for row in list_rows(_ADD_CALLS) if row["drew"] and row["model"]}
    # The connection caches the models in the seal, so that most draws need not read the seal.
    if not (prompts or labelled or models - connection.info.get(_KNOWN_MODELS_KEY, set())):
        return
    before = schema.read_seal(connection)
    connection.info[_KNOWN_MODELS_KEY] = set(before.models)
    seal = replace(
        before.with_finished(labelled),
        prompts=before.prompts + len(prompts),
        models=tuple(sorted({*before.models, *models})),
    )
    if seal != before:
        schema.replace_seal(connection, seal)
