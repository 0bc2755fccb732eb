"""A collection through batches by the code of the command line, in a process that tests kill."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from langchain_openai import ChatOpenAI

from langchain_cfc.cli._collection import run_collection
from langchain_cfc.collect.batches import submission
from langchain_cfc.collect.batches.submission import WaitTimes
from langchain_cfc.collect.config import read_config
from langchain_cfc.collect.executor import RetryPolicy
from langchain_cfc.collect.store import batches
from langchain_cfc.verifiers import ModelJudge

N, CONCURRENCY = 5, 8
# Next to a store whose batches are not written: what was submitted.
SUBMITTED = ".submitted"


def make_judge(**arguments: Any) -> ModelJudge:
    """A verifier that asks a model at the server."""
    return ModelJudge(ChatOpenAI(**arguments), mode="line")


def collect_by_command(url: str, path: str, size: int, *, forgets: bool) -> None:
    """Start or resume the collection; `forgets` does not record submitted batches, as a control."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    dataset = Path(path).with_suffix(".jsonl")
    if not dataset.exists():
        lines = [
            json.dumps({"id": f"p{number}", "q": f"question {number}", "a": f"answer {number} 0"})
            for number in range(size)
        ]
        dataset.write_text("\n".join(lines))
    arguments = {"model": "chat-1", "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    settings = {
        "store": path,
        "n": N,
        "source": {"path": str(dataset), "input": "q", "reference": "a", "id": "id"},
        "generator": {
            "factory": "langchain_openai:ChatOpenAI",
            "arguments": arguments,
        },
        "verifier": {"factory": "tests.collect.batched:make_judge", "arguments": arguments},
        "labeler": {"factory": "langchain_cfc.labelers:NormalisedMatch"},
        "run": {"concurrency": CONCURRENCY, "batch": True},
        "prices": {"*": {"input": 1000.0, "output": 10_000.0}},
    }
    hasty = mock.patch(
        "langchain_cfc.collect.collecting.RetryPolicy", partial(RetryPolicy, initial_wait=0.02)
    )
    pace = mock.patch.object(submission, "WAIT_TIMES", WaitTimes(quiet=0.1, first=0.05, longest=0.2))

    def forget_id(number: int, provider_id: str) -> list[Any]:
        with Path(path).with_suffix(SUBMITTED).open("a") as log:
            log.write(f"{number} {provider_id}\n")
        return []

    forget = mock.patch.multiple(
        batches,
        insert_batch=mock.Mock(return_value=[]) if forgets else batches.insert_batch,
        set_id=forget_id if forgets else batches.set_id,
    )
    try:
        with hasty, pace, forget:
            finished = run_collection(
                read_config(None, settings, ()), None, retry_failed=True, relabel=False, as_json=False
            )
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    sys.exit(0 if finished else 1)
