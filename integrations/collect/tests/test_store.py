"""`Store`: it returns what was written and refuses what does not belong into it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_cfc_collect.costs import Stage, Usage
from langchain_cfc_collect.journal import StoreJournal
from langchain_cfc_collect.stages import Labels
from langchain_cfc_collect.store import Store, Writer, rows
from langchain_cfc_collect.store.calls import insert_calls
from langchain_cfc_collect.store.schema import Write
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage

from integrations.collect.tests.sharing import execute_sql, make_numbered_examples
from langchain_cfc import Candidate, PromptRecord
from langchain_cfc.errors import CollectionError, StoreError
from langchain_cfc.records import Example, Provenance
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.candidates import make_candidate
from langchain_cfc.verifiers.base import VerifierScores
from tests.lengths import repetitions

CONFIGURATION: dict[str, Any] = {
    "n": 3,
    "generator": {"model": "a", "temperature": 0.7},
    "verifier": {"id": "v"},
    "labeler": {},
    "answer": None,
    "sampling": "requests",
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def write_draws(
    store: Store, position: int, draws: Sequence[DrawnCandidate], paid: Usage | None = None
) -> None:
    charge = insert_calls(position, Stage.DRAWN, paid or Usage())
    store.write([*rows.insert_draws(position, draws), *charge])


def finish_prompt(store: Store, position: int, n: int = 3) -> None:
    write_draws(store, position, [DrawnCandidate(f"{position} {slot}") for slot in range(n)])
    store.write(rows.insert_scores(position, VerifierScores([0.5] * n)))
    labels = Labels([slot == 0 for slot in range(n)])
    store.write(rows.insert_labels(position, labels))


# Examples


@settings(max_examples=repetitions(80, share=0.15))
@given(
    st.lists(
        st.builds(
            Example,
            id=TEXT.filter(bool),
            input=TEXT | st.lists(JSON, max_size=2) | st.dictionaries(TEXT, JSON, max_size=2),
            reference=JSON,
            metadata=st.dictionaries(
                TEXT, TEXT | st.booleans() | st.integers(-9, 9) | st.floats(0, 1), max_size=2
            ),
            cluster=st.none() | TEXT.filter(bool),
        ),
        max_size=6,
        unique_by=lambda one: one.id,
    )
)
def test_store_returns_examples_unchanged_and_in_order(memory: Path, some: list[Example]) -> None:
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        Store(Path(folder) / "s.db", create=True) as store,
    ):
        assert store.add(some) == len(some)
        assert [work.example for work in store.read_unfinished()] == some
        # Again they are known, in whatever order; and a further one comes last.
        assert store.add([Example(id="\0new", input="?"), *reversed(some)]) == 1
        assert [work.example.id for work in store.read_unfinished()] == [*(one.id for one in some), "\0new"]


@pytest.mark.parametrize("size", [3, rows.PAGE_SIZE + 10])
def test_store_keeps_one_of_equal_examples_and_refuses_unequal_ones(path: Path, size: int) -> None:
    # Within a page of those that are added at a time, and beyond it.
    some = make_numbered_examples(size)
    with Store(path, create=True) as store:
        assert store.add([*some, some[0]]) == size
        other = some[1].model_copy(update={"input": "changed", "reference": "c"})
        with pytest.raises(StoreError, match="the prompt 'p1' has another input and reference"):
            store.add([*make_numbered_examples(size + 5), other])
        assert sum(store.count_stages().values()) == size
    with Store(path.with_name("new.db"), create=True) as store:
        with pytest.raises(StoreError, match="has another input and reference"):
            store.add([*some, other])
        assert sum(store.count_stages().values()) == 0


@pytest.mark.parametrize("field", ["input", "reference"])
def test_store_refuses_a_changed_dataset(path: Path, field: str) -> None:
    before = Example(id="p", input="x", reference=[1], metadata={"a": 1}, cluster="c")
    with Store(path, create=True) as store:
        store.add([before])
        with pytest.raises(StoreError, match=f"has another {field} in ") as refused:
            store.add([before.model_copy(update={field: "y"})])
        assert ("--relabel" in str(refused.value)) == (field == "reference")
        # An id that is a digest of input and reference changes with them.
        renamed = before.model_copy(update={"id": "q", "reference": [2]})
        with pytest.raises(StoreError, match=r"input of the prompt 'q' is stored .*--relabel"):
            store.add([renamed])
        assert sum(store.count_stages().values()) == 1
        # Two prompts of one dataset may have the same input.
        assert store.add([before, renamed]) == 1


def test_store_updates_metadata_and_clusters_from_the_dataset(path: Path) -> None:
    before = [Example(id=str(row), input=str(row), reference="r") for row in range(rows.PAGE_SIZE + 2)]
    after = [one.model_copy(update={"metadata": {"topic": one.id}, "cluster": "c"}) for one in before]
    with Store(path, create=True) as store:
        store.add(before)
        finish_prompt(store, 0)
        assert store.add(after) == 0
        assert [work.example for work in store.read_unfinished()] == after[1:]
        [record] = store.read_records()
        assert (record.metadata, record.cluster) == ({"topic": "0"}, "c")
        store.check()
        # Control: within one reading of a dataset they may not differ.
        new = Example(id="new", input="new", reference="r")
        with pytest.raises(StoreError, match="the prompt 'new' has another metadata"):
            store.add([new, new.model_copy(update={"metadata": {"topic": "x"}})])


# Draws


def make_messages() -> list[BaseMessage]:
    usage = {
        "input_tokens": 3,
        "output_tokens": 2,
        "total_tokens": 5,
        "input_token_details": {"cache_read": 1},
    }
    content = [
        {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -3.0}]}
    ]
    call = {"name": "look", "args": {"at": ["x", 1.5, None]}, "id": "call_1", "type": "tool_call"}
    invalid = {"name": "look", "args": "{", "id": "1", "error": "no JSON", "type": "invalid_tool_call"}
    return [
        AIMessage("plain"),
        AIMessage(""),
        AIMessage("\0 and \u2028, \U0001f600"),
        AIMessage("with", id="lc_run-1", name="someone", usage_metadata=usage),
        AIMessage("probable", response_metadata={"model_name": "m", "logprobs": {"content": content}}),
        AIMessage("least", response_metadata={"logprob": float("-inf")}),
        AIMessage("", tool_calls=[call]),
        AIMessage("", invalid_tool_calls=[invalid]),
        AIMessage([{"type": "text", "text": "in "}, {"type": "text", "text": "blocks"}]),
        AIMessage("thought", additional_kwargs={"reasoning_content": "hm", "parsed": {"a": [1]}}),
        HumanMessage("odd"),
        ChatMessage(content="odder", role="critic"),
    ]


def make_outputs() -> list[Any]:
    return [*make_messages(), "text", "", {"structured": [1, {"deep": None}]}, ["a", "list"], 3.5]


@pytest.mark.parametrize("output", make_outputs(), ids=[str(number) for number in range(len(make_outputs()))])
def test_store_returns_a_draw_unchanged(path: Path, output: Any) -> None:
    draw = make_candidate(0, output)
    with Store(path, create=True) as store:
        store.add(make_numbered_examples(1))
        write_draws(store, 0, [draw])
    with Store(path) as store:
        (work,) = store.read_unfinished()
    assert work.draws == [draw]
    assert work.scores is None
    if draw.message is not None:
        (found,) = work.draws
        assert type(found.message) is type(draw.message)
        assert vars(found.message) == vars(draw.message)


def test_insert_draws_refuses_unstorable_candidates(path: Path) -> None:
    for wrong in (
        DrawnCandidate("half \ud83d"),
        DrawnCandidate("x", AIMessage("x", response_metadata={"o": object()})),
    ):
        with pytest.raises(CollectionError, match="candidate 1 cannot be stored"):
            rows.insert_draws(0, [DrawnCandidate("fine"), wrong])
    assert not path.exists()


# Records


def candidates(n: int) -> st.SearchStrategy[tuple[Candidate, ...]]:
    content = st.builds(lambda text: {"text": text}, TEXT) | st.builds(
        lambda data: {"message": data}, st.dictionaries(TEXT, JSON, max_size=2)
    )

    def one(
        content: dict[str, Any], score: float, correct: bool, answer: str | None, scores: Any
    ) -> Candidate:
        return Candidate(**content, score=score, correct=correct, answer=answer, scores=scores)

    def some(answered: bool, verifiers: bool) -> st.SearchStrategy[list[Candidate]]:
        answer = TEXT if answered else st.none()
        scores = (
            st.fixed_dictionaries({"a": st.floats(-9, 9), "b": st.floats(0, 1)}) if verifiers else st.none()
        )
        made = st.builds(one, content, st.floats(0, 1), st.booleans(), answer, scores)
        return st.lists(made, min_size=n, max_size=n)

    return st.tuples(st.booleans(), st.booleans()).flatmap(lambda given: some(*given)).map(tuple)


@settings(max_examples=repetitions(60, share=0.15))
@given(st.integers(1, 4).flatmap(lambda n: st.lists(candidates(n), min_size=1, max_size=4)), JSON)
def test_store_returns_records_and_provenance_unchanged(
    memory: Path, made: list[tuple[Candidate, ...]], reference: Any
) -> None:
    records = [
        PromptRecord(
            id=f"p{number}", input={"q": number}, reference=reference, metadata={"k": 1.5}, candidates=some
        )
        for number, some in enumerate(made)
    ]
    header = Provenance(
        n=len(made[0]),
        generator={"model": "m", "model_version": "m-1"},
        verifier={"id": "v"},
        labeler={"id": "l"},
    )
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        Store(Path(folder) / "s.db", create=True) as store,
    ):
        assert store.add_records(records, header) == len(records)
        assert list(store.read_records()) == records
        assert store.read_provenance() == header
        assert store.add_records(records, header) == 0


# The configuration


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"n": 4}, "n was 3 and is now 4"),
        ({"generator": {"model": "b", "temperature": 0.7}}, "generator.model was 'a' and is now 'b'"),
        ({"verifier": {"id": "w"}}, "verifier.id was 'v' and is now 'w'"),
        ({"labeler": {"mode": "l"}}, "labeler.mode was None and is now 'l'"),
    ],
)
def test_store_refuses_another_configuration_by_name(path: Path, changed: dict[str, Any], said: str) -> None:
    with Store(path, create=True) as store:
        store.set_configuration(CONFIGURATION)
        store.set_configuration(CONFIGURATION)
        with pytest.raises(StoreError) as refused:
            store.set_configuration({**CONFIGURATION, **changed})
        assert said in str(refused.value)
        assert str(path) in str(refused.value)
        advice = {"verifier": "store rescore", "labeler": "relabel"}.get(
            next(iter(changed)), "Use another store"
        )
        assert advice in str(refused.value)
        assert store.configuration == CONFIGURATION


def test_store_says_what_to_do_about_a_missing_file_and_other_contents(path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        Store(path)
    other = path.with_name("other.db")
    execute_sql(other, "CREATE TABLE bookmarks (url)")
    with pytest.raises(StoreError, match="is no store of a collection"):
        Store(other, create=True)
    Store(path, create=True).close()
    execute_sql(path, "UPDATE facts SET value = '9' WHERE name = 'version'", "DROP TABLE calls")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="version 9, but this release reads version 3: export its records"):
        Store(path, create=True)
    assert path.read_bytes() == before


# The writer


@asynccontextmanager
async def open_writer(path: Path, size: int, calls: int | None = None) -> AsyncIterator[Writer]:
    """A writer to a new store of so many prompts, which is closed at the end."""
    with Store(path, create=True) as store:
        store.add(make_numbered_examples(size))
        writer = Writer(store, calls)
        yield writer
        await writer.close()


def draw_text(position: int, slot: int = 0, text: str = "a") -> list[Write]:
    return [rows.insert_draw(position, slot, DrawnCandidate(text))]


def draw_prompt(position: int) -> list[Write]:
    return rows.insert_draws(position, [DrawnCandidate("a")])


@pytest.mark.parametrize(("seconds", "is_shared"), [(2.0, True), (0.0, False)])
async def test_writes_that_follow_each_other_closely_share_a_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *, is_shared: bool
) -> None:
    monkeypatch.setattr("langchain_cfc_collect.store.store._GATHERING_SECONDS", seconds)
    async with open_writer(path, 5) as writer:
        with mock.patch.object(Store, "execute", autospec=True, side_effect=Store.execute) as execute:
            for position in range(5):
                writer.submit(draw_text(position))
                await asyncio.sleep(0.05)
            await writer.flush()
    assert (execute.call_count == 1) is is_shared


@pytest.mark.parametrize(("callers", "is_waited_for"), [(2, False), (1, True)])
async def test_transaction_begins_when_every_call_waits_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, callers: int, *, is_waited_for: bool
) -> None:
    monkeypatch.setattr("langchain_cfc_collect.store.store._GATHERING_SECONDS", 2.0)
    async with open_writer(path, 2, calls=2) as writer:
        writer.submit(draw_text(0))
        flushes = [asyncio.ensure_future(writer.flush()) for _ in range(callers)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert all(one.done() for one in flushes) is not is_waited_for


@pytest.mark.parametrize("size", [0, 1, 400, 1000, 40_000, 200_000])
def test_candidate_of_any_size_is_read_as_it_was_written(path: Path, size: int) -> None:
    text = "".join(chr(0x41 + number * number % 997) for number in range(size))
    with Store(path, create=True) as store:
        store.add(make_numbered_examples(1))
        store.write([rows.insert_draw(0, 0, DrawnCandidate(text))])
    with Store(path) as store:
        (prompt,) = store.read_unfinished()
    assert prompt.partial[0].text == text


async def test_writer_fails_all_writes_of_a_failed_transaction(path: Path) -> None:
    async with open_writer(path, 3) as writer:
        both = (writer.write(draw_prompt(position)) for position in (0, 9))
        found = await asyncio.gather(*both, return_exceptions=True)
        # It goes on all the same, until a caller ends the run.
        with pytest.raises(StoreError):
            await writer.write(draw_prompt(1))
    assert [type(one) for one in found] == [StoreError, StoreError]
    with Store(path) as store:
        assert [work.example.id for work in store.read_unfinished() if work.draws] == ["p1"]


async def test_writer_completes_a_write_whose_caller_was_cancelled(path: Path) -> None:
    async with open_writer(path, 1) as writer:
        going = asyncio.ensure_future(writer.write(draw_prompt(0)))
        await asyncio.sleep(0)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
    with Store(path) as store:
        assert store.count_stages()[Stage.DRAWN] == 1


@pytest.mark.parametrize("is_committed", [True, False])
async def test_refused_candidates_are_deleted_but_stay_paid_for(path: Path, *, is_committed: bool) -> None:
    async with open_writer(path, 1) as writer:
        (prompt,) = writer.store.read_unfinished()
        journal = StoreJournal(writer, prompt, Stage.DRAWN, 2)
        for slot, text in enumerate("ab"):
            journal.recorder.record(AIMessage(text, response_metadata={"model_name": "m"}), drawn=True)
            journal.save(slot, DrawnCandidate(text))
        if is_committed:
            await writer.flush()
        journal.discard()
        journal.save(0, DrawnCandidate("c"))
    with Store(path) as store:
        (prompt,) = store.read_unfinished()
        assert {slot: one.text for slot, one in prompt.partial.items()} == {0: "c"}
        assert [(one.model, one.answered) for one in store.read_usage().calls] == [("m", 2)]


def test_only_the_writer_commits_without_waiting_for_the_disk(path: Path) -> None:
    with Store(path, create=True) as store:
        with store.connect_without_sync() as connection:
            own = connection.exec_driver_sql("PRAGMA synchronous").scalar()
        with store.begin_read() as connection:
            said = [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous")
            ]
    assert (said, own) == (["wal", 2], 1)  # 2 is FULL, 1 is NORMAL


async def test_power_cut_costs_at_most_the_commits_of_the_last_second(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = tmp_path / "after a power cut.db"
    fsync = os.fsync

    def keep(descriptor: int) -> None:
        """Copy the files; commits that follow are lost by a power cut before the next call."""
        fsync(descriptor)
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{after}{end}")

    def count_kept() -> int:
        with Store(after) as store:
            return sum(len(prompt.partial) for prompt in store.read_unfinished())

    monkeypatch.setattr(os, "fsync", keep)
    async with open_writer(path, 1) as writer:
        await writer.write(draw_text(0, 0))  # as the id of a batch
        assert count_kept() == 1
        writer.submit(draw_text(0, 1))
        await writer.flush()
        assert count_kept() == 1
        await asyncio.sleep(1.5)
        assert count_kept() == 2
        writer.submit(draw_text(0, 2))
    assert count_kept() == 3


def test_add_records_refuses_no_records_and_partial_answers(path: Path) -> None:
    texts = (Candidate(text="a", score=0.1, correct=True), Candidate(text="b", score=0.2, correct=False))
    answered = texts[0].model_copy(update={"answer": "A"})
    with Store(path, create=True) as store:
        with pytest.raises(StoreError, match="there are no records to add"):
            store.add_records([], None)
        with pytest.raises(
            CollectionError, match=r"record 'x' \(number 1\): only some of its candidates have"
        ):
            store.add_records([PromptRecord(id="x", input="?", candidates=(answered, texts[1]))], None)
