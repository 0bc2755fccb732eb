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
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from langchain_core.messages import messages_from_dict
from sqlalchemy import (
    Connection,
    Dialect,
    bindparam,
    delete,
    func,
    insert,
    null,
    select,
    update,
)

from langchain_cfc._internal.database import DatabaseStore
from langchain_cfc._internal.serialization import canonical_json
from langchain_cfc.claims import Span
from langchain_cfc.collect.costs import Stage, Usage
from langchain_cfc.collect.executor import Labels
from langchain_cfc.collect.store import batches, schema
from langchain_cfc.collect.store.schema import Statement, Write
from langchain_cfc.errors import CFCError, CollectionError, StoreError
from langchain_cfc.records import Candidate, Claim, ClaimsRecord, Example, PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.candidates import StrippedCandidate
from langchain_cfc.verifiers.base import VerifierScores

Row: TypeAlias = dict[str, Any]
T = TypeVar("T")

# Number of prompts that are read at a time.
PAGE = 500
# Level of zlib: 300 candidates of 150 tokens with 5 alternatives each take 7.6 MB instead of 24.8.
_COMPRESSION = 6
# Text in PostgreSQL cannot contain this character.
_NUL = "\0"

_ADD_PROMPTS = insert(schema.prompts)
_ADD_DRAWS = insert(schema.draws)
_ADD_CLAIMS = insert(schema.claims)
_ADD_SCORES = insert(schema.scores)
_ADD_LABELS = insert(schema.labels)
_ADD_CALLS = insert(schema.calls)
_ADD_ANNOUNCED = insert(schema.announced)
_PROMPT = update(schema.prompts).where(schema.prompts.c.position == bindparam("at"))
_SET_CONTEXT = _PROMPT.values(context=bindparam("new_value"))
_SET_DRAWN = _PROMPT.values(stage=bindparam("new_stage"), draws_digest=bindparam("new_value"), context=null())
_SET_SCORED = _PROMPT.values(stage=bindparam("new_stage"), scores_digest=bindparam("new_value"))
_SET_LABELLED = _PROMPT.values(
    stage=bindparam("new_stage"), described=bindparam("new_described"), labels_digest=bindparam("new_value")
)
_SET_ERROR = _PROMPT.values(error=bindparam("new_value"))
_SET_EXAMPLE = _PROMPT.values(
    id=bindparam("new_id"),
    reference=bindparam("new_reference"),
    metadata=bindparam("new_metadata"),
    cluster=bindparam("new_cluster"),
    digest=bindparam("new_digest"),
)
_DELETE_DRAWS = delete(schema.draws).where(schema.draws.c.prompt == bindparam("at"))
_STRIP_DRAWS = (
    update(schema.draws)
    .where(schema.draws.c.prompt == bindparam("at"), schema.draws.c.slot == bindparam("at_slot"))
    .values(packed=bindparam("new_packed"), checksum=bindparam("new_value"))
)

# Rows are added before rows that refer to them, and candidates are deleted before they are drawn again.
_ORDER = (
    _ADD_PROMPTS,
    _SET_EXAMPLE,
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
_JSON = ("input", "reference", "metadata")
_IF_CORRECTED = (
    "If references were corrected, collect with relabel=True (--relabel), which labels what is stored again"
)
# Columns from the dataset that affect neither candidates nor labels.
_DESCRIPTION = ("metadata", "cluster")
# Key under which a connection caches the names of the models in the seal.
_KNOWN_MODELS = "cfc_models"


# Values to rows


def _prompt_row(position: int, example: Example) -> Row:
    row = {
        "position": position,
        "id": example.id,
        **{name: canonical_json(getattr(example, name)) for name in _JSON},
        "cluster": example.cluster,
        "stage": int(Stage.OPEN),
        "described": None,
        "error": None,
    }
    return {**row, "digest": schema.digest_prompt(row)}


def _data_json(draw: DrawnCandidate) -> str | None:
    return None if draw.data is None else canonical_json(draw.data)


def _draw_row(position: int, slot: int, draw: DrawnCandidate, *, without_nul: bool) -> Row:
    """Return the row of a candidate; raises `CollectionError` if the candidate cannot be stored."""
    advice = "Let the generator return text, or a message that holds JSON only"
    with _refuse_unstorable(f"candidate {slot}", advice):
        data, message = _data_json(draw), None
        if draw.message is not None:
            # Defaults are left out, because a new message has them anyway.
            fields = draw.message.model_dump(exclude_defaults=True)
            message = schema.ENCODER.encode({"type": draw.message.type, "data": fields})
        _check_text(draw.text, data, message, without_nul=without_nul)
    packed = None if message is None else zlib.compress(message.encode(), _COMPRESSION)
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


def _check_text(*texts: str | None, without_nul: bool) -> None:
    """Raise `ValueError` for text that the database cannot store, before it is combined with other rows."""
    for text in texts:
        if text is None:
            continue
        text.encode()
        if without_nul and _NUL in text:
            msg = "it holds the character U+0000, which PostgreSQL does not support"
            raise ValueError(msg)


# Rows to values


def read_example(row: Any) -> Example:
    """Return the example of a prompt's row, without the output of the metadata function."""
    fields = {name: json.loads(getattr(row, name)) for name in _JSON}
    return Example(id=row.id, cluster=row.cluster, **fields)


def read_draw(row: Any) -> DrawnCandidate:
    """Return the candidate of a row."""
    data = None if row.data is None else json.loads(row.data)
    if row.packed == schema.STRIPPED:
        return StrippedCandidate(row.text, data)
    message = None
    if row.packed is not None:
        message = messages_from_dict([json.loads(zlib.decompress(row.packed))])[0]
    return DrawnCandidate(row.text, message, data)


def _read_fields(prompt: Any) -> dict[str, Any]:
    """Return the fields of a prompt's record, with the output of the metadata function."""
    fields = {name: json.loads(getattr(prompt, name)) for name in _JSON}
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
                supported=row.correct,
                scores=None if row.outputs is None else json.loads(row.outputs),
            )
            for row in claims
        ),
    )


def read_record(prompt: Any, candidates: Sequence[Any]) -> PromptRecord:
    """Return the record of a prompt, given its row and the joined rows of its candidates."""
    return PromptRecord(
        **_read_fields(prompt),
        candidates=tuple(
            Candidate(
                text=row.text if row.data is None else None,
                message=None if row.data is None else json.loads(row.data),
                score=row.score,
                correct=row.correct,
                answer=row.answer,
                scores=None if row.outputs is None else json.loads(row.outputs),
            )
            for row in candidates
        ),
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
    without_nul: bool,
    stored: Collection[int] = (),
) -> list[Write]:
    """Return the writes that finish the draws of a prompt, of which the slots `stored` are already written.

    `usage` is the part of the usage that is not written yet. Raises `CollectionError` if a candidate cannot
    be stored, for example text with U+0000 if the database is `without_nul`.
    """
    missing = [
        _draw_row(position, slot, draw, without_nul=without_nul)
        for slot, draw in enumerate(draws)
        if slot not in stored
    ]
    digest = schema.digest_draws(
        position, [draw.text for draw in draws], [_data_json(draw) for draw in draws]
    )
    return [
        (_ADD_DRAWS, missing),
        (_SET_DRAWN, [{"at": position, "new_stage": int(Stage.DRAWN), "new_value": digest}]),
        *insert_calls(position, Stage.DRAWN, usage),
    ]


def insert_draw(
    position: int, slot: int, draw: DrawnCandidate, usage: Usage, *, without_nul: bool
) -> list[Write]:
    """Return the writes that store one candidate; arguments and errors as in `insert_draws`."""
    return [
        (_ADD_DRAWS, [_draw_row(position, slot, draw, without_nul=without_nul)]),
        *insert_calls(position, Stage.DRAWN, usage),
    ]


def set_context(position: int, digest: str) -> list[Write]:
    """Return the writes that store the digest of a prompt's prepared input, before its first candidate."""
    return [(_SET_CONTEXT, [{"at": position, "new_value": digest}])]


def delete_draws(position: int) -> list[Write]:
    """Return the writes that delete the candidates of a prompt."""
    return [(_DELETE_DRAWS, [{"at": position}])]


def announce_requests(position: int, stage: Stage, requests: int) -> list[Write]:
    """Return the writes that announce requests, or take back those that were not made (if negative)."""
    rows = [{"prompt": position, "stage": int(stage), "requests": requests}] if requests else []
    return [(_ADD_ANNOUNCED, rows)]


def insert_claims(position: int, spans: Sequence[Span], usage: Usage, *, without_nul: bool) -> list[Write]:
    """Return the writes that store the claims of an answer; `CollectionError` if one cannot be stored."""
    texts = [str(one.text) for one in spans]
    with _refuse_unstorable("a claim", "Let the splitter return other text"):
        _check_text(*texts, without_nul=without_nul)
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
            "outputs": None if one is None else canonical_json(one),
        }
        for slot, (score, one) in enumerate(zip(scores.scores, outputs, strict=True))
    ]
    digest = schema.digest_scores(position, [row["score"] for row in rows], [row["outputs"] for row in rows])
    return [
        (_ADD_SCORES, rows),
        (_SET_SCORED, [{"at": position, "new_stage": int(Stage.SCORED), "new_value": digest}]),
        *insert_calls(position, Stage.SCORED, usage),
    ]


def insert_labels(
    position: int,
    labels: Labels,
    usage: Usage,
    *,
    without_nul: bool,
    strip: Sequence[DrawnCandidate] = (),
) -> list[Write]:
    """Return the writes that finish a prompt, and remove the messages of the candidates to `strip`.

    Raises `CollectionError` if an answer or the metadata cannot be stored.
    """
    answers: Sequence[str | None] = labels.answers or [None] * len(labels.correct)
    with _refuse_unstorable("an extracted answer", "Let the answer extractor return other text"):
        _check_text(*answers, without_nul=without_nul)
    rows: list[Row] = [
        {"prompt": position, "slot": slot, "correct": bool(correct), "answer": answer}
        for slot, (correct, answer) in enumerate(zip(labels.correct, answers, strict=True))
    ]
    described = None
    if labels.metadata:
        with _refuse_unstorable("the metadata of the prompt", "Let its function return finite JSON"):
            described = canonical_json(labels.metadata)
            _check_text(described, without_nul=False)
    digest = schema.digest_labels(
        position, [row["correct"] for row in rows], [row["answer"] for row in rows], described
    )
    done = {"at": position, "new_stage": int(Stage.LABELLED), "new_described": described, "new_value": digest}
    return [
        (_ADD_LABELS, rows),
        (_SET_LABELLED, [done]),
        *strip_draws(
            position,
            [
                (slot, draw.text, _data_json(draw))
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
            "at": position,
            "at_slot": slot,
            "new_packed": schema.STRIPPED,
            "new_value": schema.digest_draw(position, slot, text, data, schema.STRIPPED),
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
        (_SET_ERROR, [{"at": position, "new_value": reason}]),
        *insert_calls(position, stage, usage),
    ]


# Many writes


def combine_writes(many: Iterable[Iterable[Write]]) -> list[Write]:
    """Merge the writes of several prompts into one write per statement, in a valid order."""
    rows: dict[Statement, list[Row]] = {statement: [] for statement in _ORDER}
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
    def rows_of(wanted: Statement) -> list[Row]:
        return [row for statement, rows in writes if statement is wanted for row in rows]

    prompts = rows_of(_ADD_PROMPTS)
    labelled = [row["new_value"] for row in rows_of(_SET_LABELLED)]
    models = {row["model"] for row in rows_of(_ADD_CALLS) if row["drew"] and row["model"]}
    # The connection caches the models in the seal, so that most draws need not read the seal.
    if not (prompts or labelled or models - connection.info.get(_KNOWN_MODELS, set())):
        return
    before = schema.read_seal(connection)
    connection.info[_KNOWN_MODELS] = set(before.models)
    seal = replace(before, prompts=before.prompts + len(prompts))
    seal = seal.with_finished(labelled).with_models(models)
    if seal != before:
        schema.replace_seal(connection, seal)


def add_prompts(
    store: DatabaseStore, items: Iterable[tuple[Example, PromptRecord | None]], models: Sequence[str] = ()
) -> int:
    """Add all prompts that are not stored yet, or none if one cannot be used; return the number added.

    Stored prompts take metadata and cluster from the examples, which do not affect candidates or labels. A
    prompt that is already finished comes with its record, whose candidates were drawn by `models`. Raises
    `StoreError` if another prompt is stored under the same id, or a prompt only seems to be new: one with the
    same input is stored that is not among the examples.
    """
    with store.begin_write() as connection:
        return insert_prompts(store, connection, items, models)


def insert_prompts(
    store: DatabaseStore,
    connection: Connection,
    items: Iterable[tuple[Example, PromptRecord | None]],
    models: Sequence[str] = (),
) -> int:
    """Add prompts in the transaction of a connection; otherwise the same as `add_prompts`."""
    new, stream = 0, iter(items)
    seen: set[str] = set()
    inputs: dict[str, str] = {}  # of new prompts without a record, with their ids
    columns = schema.prompts.c
    last = connection.execute(select(func.max(columns.position))).scalar()
    first = position = 0 if last is None else last + 1
    while page := list(islice(stream, PAGE)):
        query = select(schema.prompts).where(columns.id.in_([example.id for example, _ in page]))
        known = {row["id"]: dict(row) for row in connection.execute(query).mappings()}
        writes: list[list[Write]] = []
        for example, record in page:
            row = _prompt_row(position, example)
            seen.add(example.id)
            if known.setdefault(example.id, row) is not row:
                _check_same(store.name, row, known[example.id], ("input", "reference"))
                if known[example.id]["position"] < first:
                    writes.append(update_example(known[example.id], example))
                else:  # it was added a moment ago
                    _check_same(store.name, row, known[example.id], _DESCRIPTION)
                continue
            if record is not None:
                writes += _record_writes(position, record, models, without_nul=store.without_nul)
            elif first:
                inputs[row["input"]] = example.id
            writes.append([(_ADD_PROMPTS, [row])])
            position, new = position + 1, new + 1
        execute_writes(connection, combine_writes(writes))
    if inputs:
        _check_new(store.name, connection, first, seen, inputs)
    return new


def _check_new(
    name: str, connection: Connection, first: int, seen: Collection[str], inputs: Mapping[str, str]
) -> None:
    """Refuse new prompts whose input was stored before `first` under an id that no example has."""
    columns = schema.prompts.c
    stored = connection.execute(select(columns.id, columns.input).where(columns.position < first))
    replaced = [(one.id, inputs[one.input]) for one in stored if one.id not in seen and one.input in inputs]
    if replaced:
        old, new = replaced[0]
        msg = (
            f"the input of the prompt {new!r} is stored in {name} under the id {old!r}, which is not in the "
            f"dataset any more ({len(replaced)} such prompts). {_IF_CORRECTED}, if no other prompt has the "
            "same input; otherwise collect into another store"
        )
        raise StoreError(msg)


def match_examples(connection: Connection, examples: Iterable[Example]) -> dict[int, Example]:
    """Match stored prompts to the examples of their dataset as it is now.

    Args:
        connection: Connection to the store.
        examples: The examples.

    Returns:
        The examples by the position of their stored prompt: the one with the same id, or else the only one
        with the same input, provided that no other stored prompt without an example has that input. Ids that
        are digests change when a reference is corrected.
    """
    columns = schema.prompts.c
    stored = connection.execute(select(columns.position, columns.id, columns.input)).all()
    by_id = {example.id: example for example in examples}
    ids = {one.id for one in stored}
    open_prompts = _group_by_input((one.input, one.position) for one in stored if one.id not in by_id)
    open_examples = _group_by_input(
        (canonical_json(example.input), example) for example in by_id.values() if example.id not in ids
    )
    matched = {one.position: by_id[one.id] for one in stored if one.id in by_id}
    for key, positions in open_prompts.items():
        found = open_examples.get(key, [])
        if len(positions) == len(found) == 1:
            matched[positions[0]] = found[0]
    return matched


def _group_by_input(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def update_examples(name: str, connection: Connection, matched: Mapping[int, Example]) -> tuple[int, int]:
    """Take id, reference, metadata and cluster of stored prompts from examples.

    Returns the numbers of corrected references and of prompts without an example. Raises `StoreError` if the
    input of a prompt has changed, because its candidates were drawn for the other.
    """
    corrected, missing, writes = 0, 0, []
    for one in connection.execute(select(schema.prompts)).mappings().all():
        row = dict(one)
        example = matched.get(row["position"])
        if example is None:
            missing += 1
            continue
        _check_same(name, _prompt_row(row["position"], example), row, ("input",))
        corrected += canonical_json(example.reference) != row["reference"]
        writes.append(update_example(row, example))
    execute_writes(connection, combine_writes(writes))
    return corrected, missing


def update_example(row: Mapping[str, Any], example: Example) -> list[Write]:
    """Return the write that gives a stored prompt the example's columns; none if they are the same."""
    given = _prompt_row(row["position"], example)
    if given["digest"] == row["digest"]:
        return []
    changed = {f"new_{name}": given[name] for name in ("id", "reference", *_DESCRIPTION, "digest")}
    return [(_SET_EXAMPLE, [{"at": row["position"], **changed}])]


def _record_writes(
    position: int, record: PromptRecord, models: Sequence[str], *, without_nul: bool
) -> list[list[Write]]:
    candidates = record.candidates
    draws = [
        DrawnCandidate(str(one.text))
        if one.message is None
        else DrawnCandidate(one.answer_key, None, one.message)
        for one in candidates
    ]
    outputs = [one.scores or {} for one in candidates]
    scores = VerifierScores([one.score for one in candidates], outputs if any(outputs) else None)
    answers = [one.answer for one in candidates if one.answer is not None]
    if answers and len(answers) < len(candidates):
        msg = f"record {record.id!r} (number {position + 1}): only some of its candidates have an `answer`"
        raise CollectionError(msg)
    labels = Labels([one.correct for one in candidates], answers or None)
    return [
        insert_draws(position, draws, Usage.from_models(models), without_nul=without_nul),
        insert_scores(position, scores, Usage()),
        insert_labels(position, labels, Usage(), without_nul=without_nul),
    ]


def _check_same(name: str, row: Row, known: Mapping[str, Any], fields: Sequence[str]) -> None:
    differing = [field for field in fields if row[field] != known[field]]
    if differing:
        advice = (
            _IF_CORRECTED
            if differing == ["reference"]
            else "Collect it into another store, or give changed prompts new ids"
        )
        msg = (
            f"the prompt {row['id']!r} has another {' and '.join(differing)} in {name}: the dataset "
            f"has changed. {advice}"
        )
        raise StoreError(msg)
