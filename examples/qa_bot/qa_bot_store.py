"""Questions, decisions and answers of people, in one SQLite table. A question is decided once."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from langchain_cfc import CFCResult

FOLDER = Path(os.environ.get("QA_BOT_FOLDER", "cfc-demo/qa_bot"))
_TABLE = """
CREATE TABLE IF NOT EXISTS turns (
    id INTEGER PRIMARY KEY,
    conversation TEXT NOT NULL,
    key TEXT NOT NULL,
    question TEXT NOT NULL,
    rate TEXT NOT NULL,
    result TEXT,
    waiting INTEGER NOT NULL DEFAULT 0,
    answer TEXT,
    UNIQUE (conversation, key)
)
"""


@dataclass(frozen=True)
class Turn:
    """A question and what came of it.

    Attributes:
        id: Its number.
        question: What was asked.
        rate: The certified rate, written down before anything was drawn.
        result: The bot's decision; None until it is made.
        waiting: Whether it is in the queue for a person.
        answer: A person's answer; None until there is one.
    """

    id: int
    question: str
    rate: str
    result: CFCResult | None
    waiting: bool
    answer: str | None


class Store:
    """Conversations in a file; every call opens it again, so that threads and processes may share it.

    Args:
        path: The SQLite file; made with its folder if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with self._open() as database:
            database.execute(_TABLE)

    def ask(self, conversation: str, question: str, rate: str) -> Turn | None:
        """Write a question down with its rate, unless this conversation holds it already.

        Returns:
            The turn that stands, at whatever rate it was asked first; None if the question is new.
        """
        key = same_question(question)
        with self._open() as database:
            new = database.execute(
                "INSERT OR IGNORE INTO turns (conversation, key, question, rate) VALUES (?, ?, ?, ?)",
                (conversation, key, question, rate),
            )
            if new.rowcount:
                return None
        return self._turns("conversation = ? AND key = ?", conversation, key)[0]

    def save_decision(self, turn: Turn, result: CFCResult) -> None:
        """Store the decision, texts of rejected candidates included; the first one stands."""
        self._change("result = ? WHERE result IS NULL AND id = ?", result.model_dump_json(), turn.id)

    def forget(self, turn: Turn) -> None:
        """Take back a question on which nothing was decided, for the model could not be reached."""
        with self._open() as database:
            database.execute("DELETE FROM turns WHERE result IS NULL AND id = ?", (turn.id,))

    def escalate(self, turn: Turn) -> None:
        """Put a question into the queue for a person."""
        self._change("waiting = 1 WHERE answer IS NULL AND id = ?", turn.id)

    def answer(self, turn: Turn, text: str) -> bool:
        """Take a person's answer and the question out of the queue; False if another person was quicker."""
        return self._change("answer = ?, waiting = 0 WHERE waiting AND id = ?", text, turn.id)

    def conversation(self, name: str) -> list[Turn]:
        """All turns of a conversation, in the order in which they were asked."""
        return self._turns("conversation = ?", name)

    def queue(self) -> list[Turn]:
        """Questions that wait for a person, oldest first."""
        return self._turns("waiting")

    def list_decided(self) -> list[Turn]:
        """Questions that the bot has decided, oldest first."""
        return self._turns("result IS NOT NULL")

    def list_answered(self) -> list[Turn]:
        """Questions that a person has answered."""
        return self._turns("answer IS NOT NULL")

    def _turns(self, where: str, *values: str) -> list[Turn]:
        with self._open() as database:
            rows = database.execute(
                f"SELECT id, question, rate, result, waiting, answer FROM turns WHERE {where} ORDER BY id",  # noqa: S608
                values,
            ).fetchall()
        return [
            Turn(
                number, question, rate, result and CFCResult.model_validate_json(result), bool(waiting), said
            )
            for number, question, rate, result, waiting, said in rows
        ]

    def _change(self, what: str, *values: object) -> bool:
        with self._open() as database:
            return database.execute(f"UPDATE turns SET {what}", values).rowcount == 1  # noqa: S608

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self._path, timeout=30)
        try:
            with database:
                yield database
        finally:
            database.close()


def same_question(question: str) -> str:
    """What two ways of typing a question have in common: all but case, spaces and the last mark.

    >>> same_question(" What is  the capital of Peru?") == same_question("what is the capital of Peru")
    True
    """
    return " ".join(question.casefold().split()).rstrip(" ?!.")
