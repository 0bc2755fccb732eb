"""What finished stages write: rows by statement, for one prompt or for many at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import TypeAlias

from sqlalchemy import (
    Connection,
    Delete,
    Dialect,
    Insert,
    Update,
    bindparam,
    delete,
    func,
    insert,
    null,
    select,
    update,
)

from langchain_cfc._internal.database import Database
from langchain_cfc.collect.stages import Labels, Stage, Usage
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.integrity import (
    draws_digest,
    labels_digest,
    read_seal,
    replace_seal,
    scores_digest,
)
from langchain_cfc.collect.store.results import PAGE
from langchain_cfc.collect.store.rows import Row
from langchain_cfc.errors import CFCError, StoreError
from langchain_cfc.records import Example, PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers.base import Scored

Statement: TypeAlias = Insert | Update | Delete
Write: TypeAlias = tuple[Statement, list[Row]]

ADD_PROMPTS = insert(schema.prompts)
ADD_DRAWS = insert(schema.draws)
ADD_SCORES = insert(schema.scores)
ADD_LABELS = insert(schema.labels)
ADD_CALLS = insert(schema.calls)
ADD_ANNOUNCED = insert(schema.announced)
_PROMPT = update(schema.prompts).where(schema.prompts.c.position == bindparam("of"))
_SET_CONTEXT = _PROMPT.values(context=bindparam("said"))
_SET_DRAWN = _PROMPT.values(stage=bindparam("now"), draws_digest=bindparam("said"), context=null())
_SET_SCORED = _PROMPT.values(stage=bindparam("now"), scores_digest=bindparam("said"))
_SET_LABELLED = _PROMPT.values(
    stage=bindparam("now"), described=bindparam("told"), labels_digest=bindparam("said")
)
_SET_ERROR = _PROMPT.values(error=bindparam("said"))
_DROP_DRAWS = delete(schema.draws).where(schema.draws.c.prompt == bindparam("of"))

# What others refer to comes first, and candidates that are drawn again replace those before.
_ORDER = (
    ADD_PROMPTS,
    ADD_ANNOUNCED,
    _DROP_DRAWS,
    _SET_CONTEXT,
    ADD_DRAWS,
    ADD_SCORES,
    ADD_LABELS,
    _SET_DRAWN,
    _SET_SCORED,
    _SET_LABELLED,
    _SET_ERROR,
    ADD_CALLS,
)


# Where a connection remembers the models of the seal.
_KNOWN_MODELS = "cfc_models"


class Writes:
    """Rows of many prompts, by statement, in an order in which they may be written."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Row]] = {id(statement): [] for statement in _ORDER}

    def add(self, statement: Statement, parameters: Sequence[Row]) -> None:
        """Add rows of one statement."""
        self._rows[id(statement)].extend(parameters)

    def all(self) -> list[Write]:
        """All rows, each statement once."""
        return [(statement, self._rows[id(statement)]) for statement in _ORDER]


def execute(connection: Connection, writes: Iterable[Write]) -> None:
    """Write rows and the seal in a connection's transaction; statements without rows are left out.

    They go to the driver as they are; to have each looked at on the way takes longer than to write it.

    Raises:
        StoreError: If the seal is damaged.
    """
    made = [(statement, parameters) for statement, parameters in writes if parameters]
    for statement, parameters in made:
        sql = _sql(statement, connection.dialect, tuple(parameters[0]))
        connection.exec_driver_sql(sql, parameters)
    _renew_seal(connection, made)


def _renew_seal(connection: Connection, made: Sequence[Write]) -> None:
    """Count what was written in the store's seal."""
    prompts = [row for statement, some in made if statement is ADD_PROMPTS for row in some]
    labelled = [row["said"] for statement, some in made if statement is _SET_LABELLED for row in some]
    calls = [row for statement, some in made if statement is ADD_CALLS for row in some]
    models = {row["model"] for row in calls if row["drew"] and row["model"]}
    # Those that were in the seal when this connection last read it: most draws need not look at it.
    if not (prompts or labelled or models - connection.info.get(_KNOWN_MODELS, set())):
        return
    before = read_seal(connection)
    connection.info[_KNOWN_MODELS] = set(before.models)
    seal = replace(before, prompts=before.prompts + len(prompts))
    seal = seal.with_finished(labelled).with_models(models)
    if seal != before:
        replace_seal(connection, seal)


@cache
def _sql(statement: Statement, dialect: Dialect, names: tuple[str, ...]) -> str:
    return str(statement.compile(dialect=dialect, column_keys=names, for_executemany=True))


def together(many: Iterable[Iterable[Write]]) -> list[Write]:
    """What is to be written for several prompts, as few statements of many rows."""
    writes = Writes()
    for one in many:
        for statement, parameters in one:
            writes.add(statement, parameters)
    return writes.all()


def drawn(position: int, draws: Sequence[DrawnCandidate], paid: Usage, *, without_nul: bool) -> list[Write]:
    """What to write when a prompt's candidates are drawn.

    Args:
        position: Of the prompt.
        draws: Its candidates.
        paid: What they took.
        without_nul: Whether the database lacks the character U+0000.

    Returns:
        The rows by statement.

    Raises:
        CollectionError: If one of them cannot be written.
    """
    return complete(position, draws, (), paid, without_nul=without_nul)


def candidate(
    position: int, slot: int, draw: DrawnCandidate, paid: Usage, *, without_nul: bool
) -> list[Write]:
    """What to write when one candidate is drawn; arguments and errors as in `drawn`."""
    return [
        (ADD_DRAWS, [rows.of_draw(position, slot, draw, without_nul=without_nul)]),
        (ADD_CALLS, rows.of_calls(position, Stage.DRAWN, paid)),
    ]


def context(position: int, digest: str) -> list[Write]:
    """What to write before the first candidate of a prompt, of what was prepared for its requests."""
    return [(_SET_CONTEXT, [{"of": position, "said": digest}])]


def dropped(position: int) -> list[Write]:
    """What to write where the candidates of a prompt that are there are not to be used."""
    return [(_DROP_DRAWS, [{"of": position}])]


def complete(
    position: int, draws: Sequence[DrawnCandidate], known: Collection[int], paid: Usage, *, without_nul: bool
) -> list[Write]:
    """What to write when all candidates are drawn.

    Args:
        position: Of the prompt.
        draws: All its candidates.
        known: Slots of those that are written already.
        paid: What was not written yet of what they took.
        without_nul: Whether the database lacks the character U+0000.

    Raises:
        CollectionError: If one of them cannot be written.
    """
    left = [
        rows.of_draw(position, slot, draw, without_nul=without_nul)
        for slot, draw in enumerate(draws)
        if slot not in known
    ]
    said = draws_digest(position, [draw.text for draw in draws], [rows.of_data(draw) for draw in draws])
    return [
        (ADD_DRAWS, left),
        (_SET_DRAWN, [{"of": position, "now": int(Stage.DRAWN), "said": said}]),
        (ADD_CALLS, rows.of_calls(position, Stage.DRAWN, paid)),
    ]


def announced(position: int, stage: Stage, requests: int) -> list[Write]:
    """What to write before requests are made, or where fewer were made than announced (below 0)."""
    rows_made = [{"prompt": position, "stage": int(stage), "requests": requests}] if requests else []
    return [(ADD_ANNOUNCED, rows_made)]


def scored(position: int, scores: Scored, paid: Usage) -> list[Write]:
    """What to write when they are scored."""
    scored_rows = rows.of_scores(position, scores)
    said = scores_digest(
        position, [row["score"] for row in scored_rows], [row["outputs"] for row in scored_rows]
    )
    return [
        (ADD_SCORES, scored_rows),
        (_SET_SCORED, [{"of": position, "now": int(Stage.SCORED), "said": said}]),
        (ADD_CALLS, rows.of_calls(position, Stage.SCORED, paid)),
    ]


def labelled(position: int, labels: Labels, paid: Usage, *, without_nul: bool) -> list[Write]:
    """What to write when they are labelled; arguments and errors as in `drawn`."""
    label_rows, described = (
        rows.of_labels(position, labels, without_nul=without_nul),
        rows.of_description(labels),
    )
    said = labels_digest(
        position, [row["correct"] for row in label_rows], [row["answer"] for row in label_rows], described
    )
    return [
        (ADD_LABELS, label_rows),
        (_SET_LABELLED, [{"of": position, "now": int(Stage.LABELLED), "told": described, "said": said}]),
        (ADD_CALLS, rows.of_calls(position, Stage.LABELLED, paid)),
    ]


def failed(position: int, stage: Stage, error: CFCError, paid: Usage) -> list[Write]:
    """What to write when a stage failed; what was finished before stays."""
    return [
        (_SET_ERROR, [{"of": position, "said": rows.of_error(error)}]),
        (ADD_CALLS, rows.of_calls(position, stage, paid)),
    ]


_prompts = schema.prompts


def add(
    database: Database, items: Iterable[tuple[Example, PromptRecord | None]], versions: Sequence[str] = ()
) -> int:
    """Add all that are not there yet, or none: what cannot be used leaves no half of a dataset behind.

    Args:
        database: The store's.
        items: Each an example, with its record where it is finished already.
        versions: What the models that drew for the records call themselves.

    Returns:
        How many are new.

    Raises:
        StoreError: If another prompt is there under the same id.
    """
    new, stream = 0, iter(items)
    with database.writing() as connection:
        last = connection.execute(select(func.max(_prompts.c.position))).scalar()
        position = 0 if last is None else last + 1
        while page := list(islice(stream, PAGE)):
            known = _known(connection, [example.id for example, _ in page])
            added = Writes()
            for example, record in page:
                row = rows.of_example(position, example)
                if known.setdefault(example.id, row) is not row:
                    _check_same(database.name, row, known[example.id])
                    continue
                if record is not None:
                    _add_record(database, added, row, record, versions)
                added.add(ADD_PROMPTS, [row])
                position, new = position + 1, new + 1
            execute(connection, added.all())
    return new


def _add_record(
    database: Database, added: Writes, row: Row, record: PromptRecord, versions: Sequence[str]
) -> None:
    position, without_nul = row["position"], database.without_nul
    draws, scores, labels = rows.of_record(position, record)
    for stage in (
        drawn(position, draws, Usage.drawn_by(versions), without_nul=without_nul),
        scored(position, scores, Usage()),
        labelled(position, labels, Usage(), without_nul=without_nul),
    ):
        for statement, parameters in stage:
            added.add(statement, parameters)


def _check_same(name: str, row: Row, known: Row) -> None:
    differing = [
        field for field in ("input", "reference", "metadata", "cluster") if row[field] != known[field]
    ]
    if differing:
        msg = (
            f"the prompt {row['id']!r} has another {' and '.join(differing)} in {name}: the dataset "
            "has changed. Collect it into a store of its own, or give changed prompts new ids"
        )
        raise StoreError(msg)


def _known(connection: Connection, ids: Sequence[str]) -> dict[str, Row]:
    found = connection.execute(select(_prompts).where(_prompts.c.id.in_(ids))).mappings()
    return {row["id"]: dict(row) for row in found}
