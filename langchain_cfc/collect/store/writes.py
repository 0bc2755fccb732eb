"""What finished stages write: rows by statement, for one prompt or for many at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TypeAlias

from sqlalchemy import Connection, Dialect, Insert, Update, bindparam, insert, update

from langchain_cfc.collect.stages import Labels, Paid, Stage
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.rows import Row
from langchain_cfc.errors import CFCError
from langchain_cfc.sampling import Draw
from langchain_cfc.verifiers.scoring import Scored

Statement: TypeAlias = Insert | Update
Write: TypeAlias = tuple[Statement, list[Row]]

ADD_PROMPTS = insert(schema.prompts)
ADD_DRAWS = insert(schema.draws)
ADD_SCORES = insert(schema.scores)
ADD_LABELS = insert(schema.labels)
ADD_CALLS = insert(schema.calls)
_PROMPT = update(schema.prompts).where(schema.prompts.c.position == bindparam("of"))
_SET_STAGE = _PROMPT.values(stage=bindparam("now"))
_SET_LABELLED = _PROMPT.values(stage=bindparam("now"), described=bindparam("said"))
_SET_ERROR = _PROMPT.values(error=bindparam("said"))

# What others refer to comes first.
_ORDER = (ADD_PROMPTS, ADD_DRAWS, ADD_SCORES, ADD_LABELS, _SET_STAGE, _SET_LABELLED, _SET_ERROR, ADD_CALLS)


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
    """Write rows in a connection's transaction; statements without rows are left out.

    They go to the driver as they are; to have each looked at on the way takes longer than to write it.
    """
    for statement, parameters in writes:
        if parameters:
            sql = _sql(statement, connection.dialect, tuple(parameters[0]))
            connection.exec_driver_sql(sql, parameters)


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


def drawn(position: int, draws: Sequence[Draw], paid: Paid, *, without_nul: bool) -> list[Write]:
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
    return [
        (ADD_DRAWS, rows.of_draws(position, draws, without_nul=without_nul)),
        (_SET_STAGE, [{"of": position, "now": int(Stage.DRAWN)}]),
        (ADD_CALLS, rows.of_calls(position, Stage.DRAWN, paid)),
    ]


def scored(position: int, scores: Scored, paid: Paid) -> list[Write]:
    """What to write when they are scored."""
    return [
        (ADD_SCORES, rows.of_scores(position, scores)),
        (_SET_STAGE, [{"of": position, "now": int(Stage.SCORED)}]),
        (ADD_CALLS, rows.of_calls(position, Stage.SCORED, paid)),
    ]


def labelled(position: int, labels: Labels, paid: Paid, *, without_nul: bool) -> list[Write]:
    """What to write when they are labelled; arguments and errors as in `drawn`."""
    return [
        (ADD_LABELS, rows.of_labels(position, labels, without_nul=without_nul)),
        (_SET_LABELLED, [{"of": position, "now": int(Stage.LABELLED), "said": rows.of_description(labels)}]),
        (ADD_CALLS, rows.of_calls(position, Stage.LABELLED, paid)),
    ]


def failed(position: int, stage: Stage, error: CFCError, paid: Paid) -> list[Write]:
    """What to write when a stage failed; what was finished before stays."""
    return [
        (_SET_ERROR, [{"of": position, "said": rows.of_error(error)}]),
        (ADD_CALLS, rows.of_calls(position, stage, paid)),
    ]
