"""Raw messages are kept while a stage may read them and removed once a prompt is labelled."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import CollectionResult, Components, Store, collect
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

from integrations.collect.tests.damaging import make_store, read_contents
from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc.errors import CollectionError
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import SequenceProbability

SIZE, N = 6, 2


def say(prompt: str) -> AIMessage:
    """Answer with log-probabilities, which differ from prompt to prompt."""
    tokens = [
        {
            "token": f"{prompt} ",
            "logprob": -0.1 * len(prompt),
            "top_logprobs": [{"token": "x", "logprob": -k}],
        }
        for k in range(20)
    ]
    usage: Any = {"input_tokens": 1, "output_tokens": 20, "total_tokens": 21}
    said = {"model_name": "m", "logprobs": {"content": tokens}}
    return AIMessage(f"It is {prompt}.", response_metadata=said, usage_metadata=usage)


def label_texts(_: Any, reference: Any, candidates: list[DrawnCandidate]) -> list[bool]:
    return [reference in one.text for one in candidates]


def label_messages(_: Any, reference: Any, candidates: list[DrawnCandidate]) -> list[bool]:
    return [one.message is not None and reference in one.message.text for one in candidates]


def collect_to(path: Path, labeler: Any = label_texts, name: str = "l", **options: Any) -> CollectionResult:
    parts = Components(
        generator=RunnableLambda(say),
        verifier=SequenceProbability(),
        labeler=labeler,
        n=N,
        generator_id="g",
        labeler_id=name,
    )
    examples = [Example(id=f"p{k}", input="?" * (k + 1), reference="??") for k in range(SIZE)]
    return collect(examples, parts, path, make_silent_options(**options))


def count_messages(path: Path) -> int:
    with closing(sqlite3.connect(path)) as file:
        return int(file.execute("SELECT COUNT(*) FROM draws").fetchone()[0])


# While collecting


def test_unlabelled_prompts_keep_their_messages(path: Path) -> None:
    def fail(*_: Any) -> list[bool]:
        msg = "down"
        raise RuntimeError(msg)

    with pytest.raises(CollectionError, match="down"):
        collect_to(path, fail)
    assert count_messages(path) == N
    assert collect_to(path, label_messages, retry_failed=True).status.labelled == SIZE
    assert count_messages(path) == 0


def test_relabel_without_messages_works_only_for_labelers_of_texts(path: Path) -> None:
    collect_to(path)
    with Store(path) as store:
        before = list(store.read_records())
    with pytest.raises(CollectionError, match=r"old ones were kept.* message of the candidate 'It is"):
        collect_to(path, label_messages, "messages", relabel=True)
    with Store(path) as store:
        assert list(store.read_records()) == before
    collect_to(path, relabel=True)
    with Store(path) as store:
        assert list(store.read_records()) == before
    kept = path.with_name("kept.db")
    collect_to(kept, keep_payloads=True)
    assert collect_to(kept, label_messages, "messages", relabel=True).status.labelled == SIZE
    assert count_messages(kept) == 0


def test_messages_that_were_kept_can_be_deleted_by_sql(path: Path) -> None:
    make_store(path, 200)
    before, size, there = read_contents(path), path.stat().st_size, count_messages(path)
    delete = "DELETE FROM draws WHERE prompt IN (SELECT position FROM prompts WHERE stage = 3); VACUUM"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(delete)
    with Store(path) as store:
        store.check()
    # Drawn in part, drawn, and scored prompts still have theirs.
    assert count_messages(path) == there - 160 * 3
    assert read_contents(path) == before
    assert path.stat().st_size < 0.6 * size
