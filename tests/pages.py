"""A plugin that runs the blocks of README.md and docs/ as tests, each page in a folder of its own.

Integrations load it for their own README.md. Python blocks are run, `shell` blocks as well, and a `toml`
block becomes the file that its first line names. The pages speak of a `records.jsonl`, a `questions.csv`, an
`artifact.json` and a hosted model; here these are real files, and a server on this machine that replays
recorded answers.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from uuid import UUID

import pytest
from langchain_core.callbacks import manager
from langchain_openai import ChatOpenAI
from sybil import Example, Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from langchain_cfc import Candidate, PromptRecord, calibrate, write_records
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.records import Provenance
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import SequenceProbability
from tests.recordings import list_facts
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving
from tests.warm import warm_program

REPOSITORY = Path(__file__).resolve().parents[1]
# What README.md says before each question.
INSTRUCTION = "Give the answer alone:"
_HOSTED = "gpt-4o-mini-2024-07-18"
_PROGRAM = ExitStack()


def _set_up(namespace: dict[str, Any]) -> None:
    stack = namespace["_stack"] = ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    stack.callback(os.chdir, Path.cwd())
    os.chdir(folder)
    shared = _write_shared()
    url = stack.enter_context(serving(Script(shared.answers, model=_HOSTED)))
    # The same names of runs and the same time of making each time: what chance decides goes by their hashes.
    names = map(_run_id, itertools.count(1))
    stack.enter_context(mock.patch.object(manager, "uuid7", names.__next__))
    known = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "SOURCE_DATE_EPOCH": "1767225600"}
    stack.enter_context(mock.patch.dict(os.environ, known))
    _write_records(shared.facts)
    shutil.copy(shared.questions, "questions.csv")
    shutil.copy(REPOSITORY / "examples/long_answers/records.jsonl.gz", "long_answers.jsonl.gz")
    _capitals_artifact().save("artifact.json")


class _Shared(NamedTuple):
    """Objects that all pages share, made once."""

    facts: Sequence[PromptRecord]
    questions: Path
    answers: Mapping[str, Sequence[Answer]]


@functools.cache
def _write_shared() -> _Shared:
    folder = Path(_PROGRAM.enter_context(tempfile.TemporaryDirectory()))
    facts = [_without_answers(record) for record in list_facts()]
    made = _Shared(facts, folder / "questions.csv", hosted_model(facts).answers)
    _write_questions(made.questions, facts)
    return made


def _write_records(facts: Sequence[PromptRecord]) -> None:
    """README.md: the recording, with the header that `collect` writes for the page's model and verifier.

    The header names the address of the model, so it is written once the page's server runs.
    """
    hosted = ChatOpenAI(model="gpt-4o-mini", temperature=0.7, logprobs=True)
    header = Provenance(
        n=10, generator=compute_fingerprint(hosted), verifier=compute_fingerprint(SequenceProbability())
    )
    # Half of them shows on a page what all do.
    write_records(Path("records.jsonl"), facts[::2], header)


def hosted_model(facts: Sequence[PromptRecord]) -> Script:
    """The model of the pages: it answers recorded questions, with README.md's instruction or without.

    As hosted models do, it answers under a longer name than it is asked by.
    """
    instructed = [one.model_copy(update={"input": f"{INSTRUCTION} {one.input}"}) for one in facts]
    return replace(Script.of([*facts, *instructed]), model=_HOSTED)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hard topics of the recording are out of reach at the pages' levels, which `calibrate` rightly says."""
    kind = AttainabilityWarning
    for item in items:
        if isinstance(item, SybilItem):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind.__module__}.{kind.__name__}"))


def _run_id(number: int) -> UUID:
    return UUID(int=number)


def _without_answers(record: PromptRecord) -> PromptRecord:
    """The page serves without an answer extractor, so its records hold texts only."""
    plain = tuple(candidate.model_copy(update={"answer": None}) for candidate in record.candidates)
    return record.model_copy(update={"candidates": plain})


def _write_questions(path: Path, facts: list[PromptRecord]) -> None:
    """docs/your-own-data.md: 63 questions that the model mostly answers, as a reader would begin with."""
    topics = {"capital": 21, "chemical symbol": 21, "addition": 21}
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "answers", "topic"])
        for record in facts:
            topic = str(record.metadata["topic"])
            if topics.get(topic):
                topics[topic] -= 1
                rows.writerow([record.input, json.dumps(record.reference), topic])


def _run_shell(example: Example) -> None:
    """Run commands as a reader would, with the programs of this environment."""
    path = os.pathsep.join([str(_start_program()), str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example.parsed], check=True, env={**os.environ, "PATH": path}
    )


@functools.cache
def _start_program() -> Path:
    """Return the folder of a `langchain-cfc` that is ready to run, for all pages."""
    folder = Path(_PROGRAM.enter_context(tempfile.TemporaryDirectory()))
    return _PROGRAM.enter_context(warm_program(folder))


def pytest_unconfigure() -> None:
    """End the program of the pages."""
    _PROGRAM.close()


def _write_toml(example: Example) -> None:
    name, _, content = example.parsed.partition("\n")
    Path(name.removeprefix("# ")).write_text(content, encoding="utf-8")


def _capitals_artifact() -> Any:
    """docs/serving.md: a bot whose right answers score 0.1 to 0.3, and whose wrong ones score 0.9."""
    records = [
        PromptRecord(
            id=str(number),
            input=f"question {number}",
            candidates=(
                Candidate(text="right", score=0.1 + 0.2 * (number % 10) / 10, correct=True),
                Candidate(text="wrong", score=0.9, correct=False),
            ),
        )
        for number in range(40)
    ]
    named = Provenance(n=2, generator={"id": "capitals-bot"}, verifier={"id": "capitals-judge"})
    return calibrate(records, alpha=0.1, features="1", provenance=named)


def _tear_down(namespace: dict[str, Any]) -> None:
    namespace["_stack"].close()


pytest_collect_file = Sybil(
    parsers=[
        PythonCodeBlockParser(),
        CodeBlockParser("shell", _run_shell),
        CodeBlockParser("toml", _write_toml),
    ],
    # Of the repository, wherever the plugin is loaded.
    path=str(REPOSITORY),
    patterns=["README.md", "docs/*.md"],
    excludes=["docs/your-own-data.md"],  # docs/tests runs it, and compares its outputs
    setup=_set_up,
    teardown=_tear_down,
).pytest()
