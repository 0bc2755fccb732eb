"""Batches: which questions are answered, what is refused, and how a stopped batch goes on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_cfc import CalibrationArtifact, Candidate, CFCChatModel, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.errors import InputError
from langchain_cfc.runnable import BatchResult
from langchain_cfc.runnable.batch import ScoredListener
from langchain_cfc.support.files import lock_file
from tests.factories import make_answer, make_records, reload_artifact
from tests.fakes import answer_of, verify


def label_scores() -> list[PromptRecord]:
    """99 prompts with the mean scores .01 to .99; every tenth of them is wrong, from .09 on."""
    return [
        PromptRecord(
            id=f"labelled {number}",
            input=f"labelled 0.{number:02}",
            candidates=(Candidate(text="a", score=number / 100, correct=number % 10 != 9),) * 2,
        )
        for number in range(1, 100)
    ]


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    return reload_artifact(calibrate(label_scores(), max_wrong_of_all="0.2"))


class Pupil:
    """Answers a question with its own score, which it ends with; `blank` and `fail` are as they say."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.most = self.now = 0
        self.broken_from: int | None = None
        self._lock = threading.Lock()

    def __call__(self, prompt: str) -> str:
        with self._lock:
            self.asked.append(prompt)
            self.now += 1
            self.most = max(self.most, self.now)
            is_broken = self.broken_from is not None and len(self.asked) > self.broken_from
        try:
            if is_broken:
                raise KeyboardInterrupt
            if prompt.startswith("fail"):
                msg = "no connection"
                raise ConnectionError(msg)
            return "" if prompt.startswith("blank") else f"lima|{prompt.rsplit(maxsplit=1)[-1]}"
        finally:
            with self._lock:
                self.now -= 1


def make_batch_chain(artifact: CalibrationArtifact, pupil: Pupil | None = None, **fields: Any) -> CFCRunnable:
    generator = RunnableLambda(pupil or Pupil())
    return CFCRunnable(generator=generator, verifier=verify, artifact=artifact, **fields)


# (k + 1) / 100 are their p-values, so at q = .1 all are answered, and at less none.
QUESTIONS = [f"question 0.{number}5" for number in range(10)]


def list_answers(result: BatchResult) -> list[str | None]:
    return [one.best for one in result.results]


def test_questions_are_answered_up_to_the_largest_passing_p_value(artifact: CalibrationArtifact) -> None:
    chain = make_batch_chain(artifact)
    all_answered = chain.answer_batch(QUESTIONS[::-1], "0.1")
    assert all_answered.p_values == tuple((10 - place) / 100 for place in range(10))
    assert list_answers(all_answered) == [f"lima|{one.split()[-1]}" for one in QUESTIONS[::-1]]
    none_answered = chain.answer_batch(QUESTIONS, 0.09)
    assert list_answers(none_answered) == [None] * 10
    assert {one.reason for one in none_answered.results} == {"mean_score_too_high"}
    assert "lima" not in none_answered.model_dump_json()
    # The three smallest p-values are below .05 k / 6, the others far above.
    some = chain.answer_batch([*QUESTIONS[:3], "q 0.91", "q 0.92", "q 0.93"], 0.07)
    assert [one.abstained for one in some.results] == [False] * 3 + [True] * 3


def test_failed_and_blank_questions_count_and_are_not_answered(artifact: CalibrationArtifact) -> None:
    asked = [*QUESTIONS, "blank 0.0", "fail 0.0", "fail 0.1"]
    chain = make_batch_chain(artifact)
    assert list_answers(chain.answer_batch(asked, "0.129")) == [None] * 13
    result = chain.answer_batch(asked, "0.13")
    assert None not in list_answers(result)[:10]
    assert [one.reason for one in result.results[10:]] == ["only_blank_answers", "failed", "failed"]
    assert result.p_values[10:] == (1.0, 1.0, 1.0)
    assert result.errors[:11] == (None,) * 11
    assert all("ConnectionError" in str(one) for one in result.errors[11:])
    assert "failed" in result.results[-1].explain()
    assert "10 of 13 distinct questions" in result.guarantee.sentence


def test_equal_questions_count_once_and_are_drawn_once(artifact: CalibrationArtifact) -> None:
    pupil = Pupil()
    result = make_batch_chain(artifact, pupil).answer_batch([*QUESTIONS, "question  0.05 "], "0.1")
    assert len(pupil.asked) == 2 * len(QUESTIONS)
    assert result.results[0].answers == result.results[-1].answers == ("lima|0.05",)
    assert result.guarantee.batch is not None
    assert (result.guarantee.batch.questions, result.guarantee.batch.answered) == (10, 10)


def test_async_results_are_the_same(artifact: CalibrationArtifact) -> None:
    chain = make_batch_chain(artifact, answer=answer_of)
    asked = [*QUESTIONS, "fail 0.2"]
    result = chain.answer_batch(asked, "0.12")
    assert asyncio.run(chain.aanswer_batch(asked, "0.12")) == result
    assert BatchResult.model_validate_json(result.model_dump_json()) == result


def test_concurrency_is_limited_over_all_questions(artifact: CalibrationArtifact) -> None:
    pupil = Pupil()
    make_batch_chain(artifact, pupil).answer_batch(QUESTIONS, 0.1, {"max_concurrency": 3})
    assert pupil.most <= 3
    asyncio.run(make_batch_chain(artifact, pupil, max_concurrency=2).aanswer_batch(QUESTIONS))
    assert pupil.most <= 3


def test_a_listener_counts_scored_questions(artifact: CalibrationArtifact) -> None:
    counts: list[int] = []
    config: RunnableConfig = {"callbacks": [ScoredListener(counts.append)], "max_concurrency": 1}
    make_batch_chain(artifact).answer_batch([*QUESTIONS[:3], "fail 0.1"], 0.1, config)
    assert counts == [1, 2, 3]


CLAIMS = [make_answer(f"answer {number}", ("One.", 0.1, True), ("Two.", 0.9, False)) for number in range(40)]
REFUSED: dict[str, tuple[Any, str]] = {
    "one question": (QUESTIONS[:1], "max_wrong_of_all"),
    "one question, repeated": ([QUESTIONS[0], f" {QUESTIONS[0]}"], "at least two"),
    "no question": ([], "at least two"),
    "calibration prompt": ([*QUESTIONS, "labelled  0.05"], r"input 10 \(counted from 0\): equal"),
    "two calibration prompts": (["labelled 0.05", "x 0.1", "labelled 0.51"], "inputs 0 and 2 "),
    "message with a calibration prompt": ([[HumanMessage("labelled 0.05")], "x 0.1"], "input 0 "),
}


@pytest.mark.parametrize(("asked", "words"), REFUSED.values(), ids=REFUSED)
def test_a_batch_without_a_promise_is_refused_before_anything_is_drawn(
    artifact: CalibrationArtifact, asked: list[Any], words: str
) -> None:
    pupil = Pupil()
    with pytest.raises(InputError, match=words):
        make_batch_chain(artifact, pupil).answer_batch(asked)
    assert not pupil.asked


def test_wrong_kinds_and_shares_are_refused(artifact: CalibrationArtifact) -> None:
    chain = make_batch_chain(artifact)
    facts = artifact.calibration.model_copy(update={"prompt_kinds": None})
    any_kind = make_batch_chain(artifact.model_copy(update={"calibration": facts}))
    with pytest.raises(InputError, match="texts, messages or JSON"):
        any_kind.answer_batch([QUESTIONS[0], {"question": object()}])
    with pytest.raises(InputError, match=r"input 1 .* kind object"):
        chain.answer_batch([QUESTIONS[0], {"question": "?"}])
    for share in (0, 1, "nan", -0.1):
        with pytest.raises(InputError, match="max_wrong_share"):
            chain.answer_batch(QUESTIONS, share)


def test_one_question_has_no_share_of_a_batch(artifact: CalibrationArtifact) -> None:
    chain = make_batch_chain(artifact)
    for one in (chain, CFCChatModel(chain=chain)):
        with pytest.raises(InputError, match="answer_batch"):
            one.invoke("question 0.1", max_wrong_share=0.05)
    with pytest.raises(InputError, match="answer_batch"):
        make_batch_chain(artifact, max_wrong_share=0.05)


def test_artifacts_without_scores_are_refused_by_name() -> None:
    alone = calibrate(make_records(size=200), max_wrong_rate="0.5")
    claims = calibrate(CLAIMS, alpha="0.5", unit="claims", features="1")
    for artifact, words in ((alone, "max_wrong_of_all"), (claims, "claims")):
        chain = make_batch_chain(artifact, output=artifact.unit)
        with pytest.raises(InputError, match=words):
            chain.answer_batch(QUESTIONS)


def test_a_stopped_batch_goes_on_where_it_stopped(artifact: CalibrationArtifact, tmp_path: Path) -> None:
    journal, one_by_one = tmp_path / "batch.jsonl", RunnableConfig(max_concurrency=1)
    asked = [*QUESTIONS, "fail 0.3"]
    pupil = Pupil()
    pupil.broken_from = 9
    chain = make_batch_chain(artifact, pupil)
    with pytest.raises(KeyboardInterrupt):
        chain.answer_batch(asked, "0.12", one_by_one, journal=journal)
    with journal.open("ab") as file:  # as if it had been killed while it wrote
        file.write(b'{"question": 12')
    pupil.broken_from = None
    drawn = len(pupil.asked)
    result = chain.answer_batch(asked, "0.12", journal=journal)
    assert len(pupil.asked) - drawn == 6 * 2 + 2
    assert result == make_batch_chain(artifact).answer_batch(asked, "0.12")
    # Once the batch is answered, nothing is drawn again, and what failed has failed.
    drawn = len(pupil.asked)
    assert asyncio.run(chain.aanswer_batch(asked, "0.12", journal=journal)) == result
    assert len(pupil.asked) == drawn


def test_a_journal_serves_one_batch(artifact: CalibrationArtifact, tmp_path: Path) -> None:
    journal = tmp_path / "batch.jsonl"
    chain = make_batch_chain(artifact)
    chain.answer_batch(QUESTIONS, "0.1", journal=journal)
    assert journal.stat().st_mode & 0o077 == 0
    changed: list[tuple[CFCRunnable, list[str], str, str]] = [
        (chain, QUESTIONS, "0.2", "max_wrong_share"),
        (chain, QUESTIONS[:5], "0.1", "questions"),
        (make_batch_chain(calibrate(label_scores(), alpha="0.5")), QUESTIONS, "0.1", "artifact"),
    ]
    for other, asked, share, words in changed:
        with pytest.raises(InputError, match=words):
            other.answer_batch(asked, share, journal=journal)
    with journal.open("rb") as held:
        lock_file(held)
        with pytest.raises(InputError, match="in use"):
            chain.answer_batch(QUESTIONS, "0.1", journal=journal)
    journal.write_bytes(journal.read_bytes().replace(b'"draws"', b'"drawn"', 1))
    with pytest.raises(InputError, match="damaged"):
        chain.answer_batch(QUESTIONS, "0.1", journal=journal)
    journal.write_text("question,answer\n")
    with pytest.raises(InputError, match=r"jsonl: "):
        chain.answer_batch(QUESTIONS, "0.1", journal=journal)
    with pytest.raises(InputError, match="does not exist"):
        chain.answer_batch(QUESTIONS, "0.1", journal=tmp_path / "nowhere" / "batch.jsonl")
