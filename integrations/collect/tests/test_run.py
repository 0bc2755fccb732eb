"""`Run`: how it resumes, fails, stops and ends, and its notices."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.costs import Stage, Usage
from langchain_cfc_collect.run import MAX_CONSECUTIVE_FAILURES, MAX_FAILURES_AT_START, Run
from langchain_cfc_collect.status import CollectionStatus, LabelledAnswer
from langchain_cfc_collect.store import PAGE_SIZE, Store

from integrations.collect.tests.fakes import FakeExecutor, N, make_usage, run
from langchain_cfc.errors import CollectionError, DrawError, LabelerError, StoreError, VerifierError


def make_failures(stage: str, numbers: Sequence[int]) -> dict[tuple[str, str], Any]:
    kind = {"draw": DrawError, "score": VerifierError, "label": LabelerError}[stage]
    return {(stage, f"p{number}"): kind(f"{stage} {number}") for number in numbers}


# Complete runs and their status


def test_run_takes_every_prompt_through_every_stage_once(path: Path) -> None:
    executor, seen = FakeExecutor(), []
    size = PAGE_SIZE + 10
    ran = run(path, executor, size, at_once=30, progress=lambda standing: seen.append(standing.labelled))
    assert ran.complete
    assert set(executor.done.values()) == {1}
    assert len(executor.done) == 3 * size
    assert seen == list(range(1, size + 1))
    assert ran.status.remaining == ran.status.failed == 0
    again = run(path, executor)
    assert again.complete
    assert set(executor.done.values()) == {1}


def test_collection_status_of_run_and_store_agree(path: Path) -> None:
    chance = random.Random(3)  # noqa: S311 - a simulation
    labels = {f"p{number}": [chance.random() < 0.3 for _ in range(N)] for number in range(60)}
    scores = {name: [chance.random() for _ in range(N)] for name in labels}
    executor = FakeExecutor(
        scores=scores.__getitem__,
        correct=labels.__getitem__,
        costs=lambda name: make_usage(int(name[1:])),
        fails=make_failures("score", [3, 17]) | make_failures("draw", [40]) | make_failures("label", [41]),
    )
    begun: list[Run] = []
    ran = run(path, executor, 60, begun=begun.append)
    done = [name for name in labels if name not in {"p3", "p17", "p40", "p41"}]
    flat = [(s, c) for name in done for s, c in zip(scores[name], labels[name], strict=True)]
    for standing in (ran.status, read_status(path)):
        assert (standing.total, standing.labelled, standing.failed) == (60, 56, 4)
        assert standing.coverage == pytest.approx(sum(any(labels[name]) for name in done) / 56)
        for found, label in zip(standing.mean_scores, (False, True), strict=True):
            of_label = [score for score, correct in flat if correct is label]
            assert found == pytest.approx(sum(of_label) / len(of_label))
        assert standing.usage.tokens == sum(range(60))


def read_status(path: Path) -> CollectionStatus:
    with Store(path) as store:
        return CollectionStatus.from_store(store)


# Failures


@pytest.mark.parametrize(
    ("stage", "kept"), [("draw", Stage.OPEN), ("score", Stage.DRAWN), ("label", Stage.SCORED)]
)
def test_retry_failed_repeats_only_the_failed_stage(path: Path, stage: str, kept: Stage) -> None:
    executor = FakeExecutor(fails=make_failures(stage, [1, 4]))
    ran = run(path, executor, 6)
    assert ran.complete
    assert (ran.status.labelled, ran.status.failed) == (4, 2)
    with Store(path) as store:
        assert store.count_stages()[kept] == 2
        failures = store.read_failures()
        assert [(one.id, one.stage, one.error) for one in failures] == [
            (f"p{number}", kept + 1, f"{type(executor.fails[stage, 'p1']).__name__}: {stage} {number}")
            for number in (1, 4)
        ]
        # They are not retried unless requested.
        run(path, executor)
        assert executor.done[stage, "p1"] == 1
        assert store.retry_failed() == 2
    executor.fails = {}
    ran = run(path, executor)
    assert (ran.status.labelled, ran.status.failed) == (6, 0)
    twice = {one for one, count in executor.done.items() if count == 2}
    assert twice == {(stage, "p1"), (stage, "p4")}


def test_run_ends_after_too_many_consecutive_failures(path: Path) -> None:
    executor = FakeExecutor(fails=make_failures("draw", range(1, 100)))
    said = f"{MAX_CONSECUTIVE_FAILURES} prompts in a row failed, the last one: draw "
    with pytest.raises(CollectionError, match=said):
        run(path, executor, 100, at_once=4)
    # What was under way is finished, and nothing else is begun. The first prompt succeeded.
    failed = executor.count("draw") - 1
    assert MAX_CONSECUTIVE_FAILURES <= failed < MAX_CONSECUTIVE_FAILURES + 4
    with Store(path) as store:
        assert len(store.read_failures()) == failed


def test_run_tries_one_prompt_at_a_time_until_one_succeeds(path: Path) -> None:
    executor = FakeExecutor(fails=make_failures("draw", range(100)))
    with pytest.raises(CollectionError, match=r"(?s)the first prompt failed: .*retry_failed"):
        run(path, executor, 100, at_once=20)
    assert executor.count("draw") == 1
    executor.fails = make_failures("draw", [5])
    again = run(path, executor, at_once=20)
    assert (again.status.labelled, again.status.failed) == (98, 2)


@pytest.mark.parametrize("stage", ["draw", "score", "label"])
def test_nothing_is_drawn_for_a_second_prompt_if_a_call_of_any_stage_fails(path: Path, stage: str) -> None:
    executor = FakeExecutor(fails=make_failures(stage, range(100)))
    with pytest.raises(CollectionError, match=f"{stage} 0"):
        run(path, executor, 100, at_once=20)
    assert executor.count("draw") == 1


def test_sheet_without_labels_for_some_prompts_is_no_wrong_setting(path: Path) -> None:
    sheet = {"class": "langchain_cfc_collect.HumanLabels"}
    executor = FakeExecutor(fails=make_failures("label", range(20)), labeler=sheet)
    ran = run(path, executor, 30, at_once=4)
    assert (ran.status.labelled, ran.status.failed) == (10, 20)


def test_retried_prompts_that_fail_again_end_a_run_later(path: Path) -> None:
    executor = FakeExecutor(fails=make_failures("draw", range(1, 10)))
    run(path, executor, 12)
    with Store(path) as store:
        store.retry_failed()
    with pytest.raises(
        CollectionError, match=f"{MAX_FAILURES_AT_START} prompts in a row failed, the last one"
    ):
        run(path, executor)


def test_causes_of_failures_are_reported_once_and_after_ten(path: Path) -> None:
    said = run(path, FakeExecutor(fails=make_failures("draw", range(1, 30, 2))), 30, at_once=1).notices
    failed = [one for one in said if "failed with" in one]
    assert failed == ["1 prompt failed with DrawError: draw 1", "10 prompts failed with DrawError: draw 19"]


class RefusedError(Exception):
    """Stands for a client's error with the status of a response."""

    def __init__(self, status: int, code: str | None = None) -> None:
        super().__init__(f"refused with {status}")
        self.status_code, self.code = status, code


def make_refusals(numbers: Sequence[int], status: int, code: str | None = None) -> dict[tuple[str, str], Any]:
    failures = make_failures("draw", numbers)
    for failure in failures.values():
        failure.__cause__ = RefusedError(status, code)
    return failures


@pytest.mark.parametrize(
    ("status", "code"), [(401, None), (403, None), (404, None), (429, "insufficient_quota")]
)
def test_run_ends_at_the_first_refusal_of_the_key_or_model(path: Path, status: int, code: str | None) -> None:
    executor = FakeExecutor(fails=make_refusals(range(5, 100), status, code))
    with pytest.raises(CollectionError, match=r"(?s)a prompt failed.*retry_failed=True"):
        run(path, executor, 100, at_once=1)
    assert executor.count("draw") == 6
    # A prompt that the server refuses ends nothing.
    ran = run(path.with_name("b.db"), FakeExecutor(fails=make_refusals([1, 3], 400)), 10, at_once=2)
    assert (ran.status.labelled, ran.status.failed) == (8, 2)


def test_success_between_failures_keeps_the_run_going(path: Path) -> None:
    numbers = [number for number in range(100) if number % MAX_CONSECUTIVE_FAILURES]
    ran = run(path, FakeExecutor(fails=make_failures("draw", numbers)), 100, at_once=1)
    assert (ran.status.labelled, ran.status.failed) == (4, 96)


class RaisingExecutor(FakeExecutor):
    """An executor that raises instead of returning an error."""

    async def score(self, prompt: Any, journal: Any) -> Any:
        if prompt.example.id == "p5":
            msg = "a mistake of ours"
            raise RuntimeError(msg)
        return await super().score(prompt, journal)


def test_unexpected_error_ends_the_run_and_keeps_all_draws(path: Path) -> None:
    executor = RaisingExecutor(seconds=0.002)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        run(path, executor, 40)
    with Store(path) as store:
        stages = store.count_stages()
        assert sum(stages[stage] for stage in Stage if stage > Stage.OPEN) == executor.count("draw") < 40
        # All but the one were finished.
        assert stages[Stage.DRAWN] == 1
    assert run(path, FakeExecutor()).status.labelled == 40


# Stopping


def test_stopped_run_finishes_prompts_under_way(path: Path) -> None:
    executor = FakeExecutor(seconds=0.002)
    assert not run(path, executor, 40, begun=lambda going: going.stop()).complete
    assert not executor.done
    held: list[Run] = []

    def stop(standing: CollectionStatus) -> None:
        if standing.labelled == 10:
            held[0].stop()
            assert held[0].is_stopping

    ran = run(path, executor, at_once=4, begun=held.append, progress=stop)
    assert not ran.complete
    assert 10 <= ran.status.labelled < 10 + 4
    assert executor.count("draw") == executor.count("score") == executor.count("label") == ran.status.labelled
    ran = run(path, executor)
    assert ran.complete
    assert ran.status.labelled_at_start < 14
    assert set(executor.done.values()) == {1}


def test_cancelled_run_leaves_an_intact_store(path: Path) -> None:
    executor = FakeExecutor(seconds=0.003)

    tasks: list[asyncio.Task[Any] | None] = []

    def cancel(standing: CollectionStatus) -> None:
        if standing.labelled == 5 and (task := tasks[0]) is not None:
            task.cancel()

    with pytest.raises(asyncio.CancelledError):
        run(path, executor, 50, begun=lambda _: tasks.append(asyncio.current_task()), progress=cancel)
    assert run(path, executor).complete
    # Of those under way a stage may have been done twice.
    assert sum(count - 1 for count in executor.done.values()) <= 4
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def _refuse_writes(*_: Any) -> None:
    msg = "cannot write: the disk is gone"
    raise StoreError(msg)


def test_failed_write_to_the_store_stops_the_run_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(seconds=0.01)

    def break_it(standing: CollectionStatus) -> None:
        if standing.labelled == 5:
            monkeypatch.setattr(Store, "execute", _refuse_writes)

    with pytest.raises(StoreError, match="the disk is gone"):
        run(path, executor, 40, at_once=4, progress=break_it)
    # The other prompts do not go on drawing.
    assert executor.count("draw") <= 5 + 2 * 4
    monkeypatch.undo()
    assert run(path, executor).status.labelled == 40
    assert sum(count - 1 for count in executor.done.values()) <= 4


# Notices


def collect_notices(path: Path, executor: FakeExecutor, size: int) -> list[str]:
    # One after the other, so that "the first twenty" are known.
    return run(path, executor, size, at_once=1).notices


def make_scores(good: float, bad: float, right: Callable[[str, int], bool]) -> dict[str, Any]:
    """Scores around one value for correct candidates, and another for wrong ones."""
    chance = random.Random(7)  # noqa: S311 - a simulation
    noise = {(f"p{number}", slot): chance.uniform(-0.2, 0.2) for number in range(200) for slot in range(N)}
    return {
        "correct": lambda name: [right(name, slot) for slot in range(N)],
        "scores": lambda name: [
            (good if right(name, slot) else bad) + noise[name, slot] for slot in range(N)
        ],
    }


def first(_: str, slot: int) -> bool:
    return slot == 0


GOOD = make_scores(0.3, 0.7, first)
REVERSED = make_scores(0.7, 0.3, first)
USELESS = make_scores(0.5, 0.5, first)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 110),
        ({"texts": lambda name: [name, "other" if name == "p7" else name, name]}, 25),
        (make_scores(0.3, 0.7, lambda name, slot: name == "p19" and slot == 0), 40),
        ({"costs": lambda name: Usage() if int(name[1:]) % 2 else make_usage(10)}, 40),
    ],
    ids=["good scores", "one prompt's candidates differ", "one correct candidate", "no model named"],
)
def test_good_collection_has_no_notices(path: Path, changes: dict[str, Any], size: int) -> None:
    assert collect_notices(path, FakeExecutor(**{**GOOD, **changes}), size) == []


@pytest.mark.parametrize(
    ("blank", "notices"),
    [
        (lambda number: number != 1, ["3 of 3 candidates were blank", "57 of 60 candidates were blank"]),
        (lambda number: number % 5 == 1, ["12 of 60 candidates were blank"]),
        (lambda number: number == 3, []),
    ],
)
def test_notice_of_candidates_that_are_no_answers(path: Path, blank: Any, notices: list[str]) -> None:
    def write(name: str) -> list[str]:
        return [""] * N if blank(int(name[1:])) else [f"{name} {slot}" for slot in range(N)]

    found = collect_notices(path, FakeExecutor(**GOOD, texts=write), 40)
    assert [one.partition(":")[0] for one in found] == notices


@pytest.mark.parametrize(("size", "notices"), [(19, 0), (20, 1), (40, 1)])
def test_notices_of_identical_and_of_wrong_candidates_after_twenty_prompts(
    path: Path, size: int, notices: int
) -> None:
    found = collect_notices(path, FakeExecutor(**GOOD, texts=lambda name: [name] * N), size)
    words = "all 3 candidates were identical for each of the first 20 prompts"
    assert [words in one for one in found] == [True] * notices
    executor = FakeExecutor(
        correct=lambda name: [False] * N,  # noqa: ARG005 - of all prompts
        scores=lambda name: [0.9, 0.2, 0.5],  # noqa: ARG005 - the second is the best of all
    )
    found = collect_notices(path.with_name("b.db"), executor, size)
    assert len(found) == notices
    for one in found:
        first, *shown = one.splitlines()
        assert first.startswith("none of the first 20 prompts has a correct candidate")
        assert len(shown) == 3
        assert "  answer 'p0 1', reference None, prompt 'question 0'" in shown


@pytest.mark.parametrize("extracted", [None, [""] * N], ids=["no extractor", "nothing extracted"])
def test_read_doubtful_labels_returns_labels_that_scores_contradict(
    path: Path, extracted: list[str] | None
) -> None:
    # Slot 1 of every other prompt is right; scores of slot 0 fall with the number, those of slot 1 rise.
    right = {f"p{number}" for number in range(0, 10, 2)}
    executor = FakeExecutor(
        correct=lambda name: [False, name in right, False],
        scores=lambda name: [0.9 - int(name[1:]) / 100, 0.01 + int(name[1:]) / 1000, 0.9],
        extracted=extracted,
    )
    run(path, executor, 10)
    with Store(path) as store:
        found = CollectionStatus.from_store(store).doubtful_labels
    # All slots of odd prompts are wrong, so that their best is slot 1.
    assert [one.answer for one in found[:3]] == ["p1 1", "p3 1", "p5 1"]
    assert found[0] == LabelledAnswer("question 1", "p1 1", None, False)
    # Right ones, too: people who check only answers labelled wrong make certificates too good.
    assert [(one.answer, one.correct) for one in found[3:]] == [(f"p{row} 1", True) for row in (8, 6, 4)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (USELESS, "does not detectably separate correct from wrong candidates"),
        (REVERSED, "the scores point the wrong way"),
    ],
)
def test_notice_of_a_useless_or_reversed_verifier_after_100_prompts(
    path: Path, given: dict[str, Any], said: str
) -> None:
    assert collect_notices(path, FakeExecutor(**given), 99) == []
    (found,) = collect_notices(path.with_name("b.db"), FakeExecutor(**given), 110)
    assert said in found


def test_notice_of_another_drawing_model_but_not_of_judges(path: Path) -> None:
    models = {"p30": "model-2", "p31": "model-1", "p40": "model-2", "p50": "model-3"}
    executor = FakeExecutor(**GOOD, costs=lambda name: make_usage(10, models.get(name, "model-1")))
    found = collect_notices(path, executor, 60)
    assert [("model-2, after model-1" in one, "model-3, after" in one) for one in found] == [
        (True, False),
        (False, True),
    ]
    judged = FakeExecutor(**GOOD, costs=lambda name: make_usage(10, name, drew=False))
    assert collect_notices(path.with_name("b.db"), judged, 60) == []
