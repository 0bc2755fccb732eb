"""A collection over HTTP in a process that tests kill; imported once, by a fork server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias
from unittest import mock

import typer
from langchain_cfc_collect.cli.collect import run_collection
from langchain_cfc_collect.config import read_config
from langchain_cfc_collect.store import Store, Writer, rows
from langchain_cfc_collect.store.schema import Write
from sqlalchemy import Connection

from integrations.collect.tests.sharing import (
    make_numbered_examples,
    shorten_retry_waits,
)

N, CONCURRENCY = 3, 4
Break: TypeAlias = Literal["torn", "late"]

examples = partial(make_numbered_examples, reference="answer {} 0")


def run_collect_command(settings: Mapping[str, Any]) -> NoReturn:
    """Collect by the code of the command line, and exit with its code."""
    try:
        finished = run_collection(
            read_config(None, settings, ()), None, retry_failed=True, relabel=False, as_json=False
        )
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    sys.exit(0 if finished else 1)


def make_settings(path: str, size: int, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The settings of a collection of numbered questions, whose file is written if it is not there."""
    rows = Path(path).with_suffix(".jsonl")
    if not rows.exists():
        lines = [json.dumps({"id": one.id, "q": one.input, "a": one.reference}) for one in examples(size)]
        rows.write_text("\n".join(lines))
    model = {**arguments, "api_key": "none", "max_retries": 0}
    return {
        "store": path,
        "source": {"path": str(rows), "input": "q", "reference": "a", "id": "id"},
        "generator": {"factory": "langchain_openai:ChatOpenAI", "arguments": model},
        "labeler": {"factory": "NormalisedMatch"},
        **more,
    }


def collect_by_command(
    url: str, path: str, size: int, max_tokens: int | None, breaking: Break | None
) -> None:
    """Start or resume a collection by the code of the command line, with its signals and exit codes.

    Args:
        url: Of the server.
        path: Of the store.
        size: Number of prompts.
        max_tokens: The budget; None for none.
        breaking: A deliberate fault, for the negative controls.
    """
    os.environ["NO_PROXY"] = "127.0.0.1"
    arguments = {"model": "recorded", "base_url": url, "logprobs": True}
    limits = {"concurrency": CONCURRENCY, "timeout": 5.0, "max_tokens": max_tokens}
    verifier = {"factory": "SequenceProbability"}
    settings = make_settings(path, size, arguments, n=N, verifier=verifier, run=limits)
    # A second between two attempts, as for real servers, would be most of the test.
    with shorten_retry_waits(), BREAKING[breaking]():
        run_collect_command(settings)


@contextmanager
def commit_statement_by_statement() -> Iterator[None]:
    execute = Store.execute

    def one_by_one(self: Store, connection: Connection, writes: Iterable[Write]) -> None:
        for statement, added in rows.group_writes(writes):
            execute(self, connection, [(statement, row) for row in added])
            connection.connection.commit()
            time.sleep(0.003)

    with mock.patch.object(Store, "execute", one_by_one):
        yield


@contextmanager
def write_at_the_end() -> Iterator[None]:
    """Report writes as done at once, but write them at the end of the run."""
    held: list[Any] = []
    submit, close = Writer.submit, Writer.close

    def seem(_: Writer, writes: Any) -> None:
        held.append(writes)

    async def close_late(self: Writer) -> None:
        for writes in held:
            submit(self, writes)
        await close(self)

    with mock.patch.object(Writer, "submit", seem), mock.patch.object(Writer, "close", close_late):
        yield


BREAKING: dict[Break | None, Callable[[], Any]] = {
    None: nullcontext,
    "torn": commit_statement_by_statement,
    "late": write_at_the_end,
}
