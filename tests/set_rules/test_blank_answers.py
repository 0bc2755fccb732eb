"""Candidates without an answer never enter a set, in calibration and serving alike."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage

from langchain_cfc import Candidate, CFCChatModel, CFCRunnable, PromptRecord, calibrate, read_records
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.decision import decide
from langchain_cfc.errors import FingerprintWarning
from langchain_cfc.records import Provenance, tabulate, write_records
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.candidates import make_candidate
from langchain_cfc.set_rules import parse_set_rule
from tests.factories import change_candidates
from tests.fakes import ScriptedModel

BLANK = ("", " ", "\n\t ", "\u3000")
RULES = (
    "all",
    "best_prefix",
    "rank",
    "unique",
    "unique(rank)",
    "unique(best_prefix)",
)
N = 3
REFUSALS = (
    AIMessage("", additional_kwargs={"refusal": "I cannot help with that."}),
    AIMessage("As I said:", additional_kwargs={"refusal": "I cannot help with that."}),
    AIMessage([{"type": "text", "text": "Well,"}, {"type": "refusal", "refusal": "I cannot."}]),
)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("blank", BLANK)
def test_set_rule_levels_of_blank_answers_are_infinite(rule: str, blank: str) -> None:
    scores = [[0.1, 0.3, 0.2], [0.1, 0.2, 0.3]]
    answers = [[blank, "lima", "quito"], [blank, blank, blank]]
    levels = parse_set_rule(rule).compute_levels(CandidateBatch.from_arrays(scores, answers))
    assert np.isinf(levels[:, 0]).all()
    assert np.isinf(levels[1]).all()
    # The other candidates have the same levels as without it.
    alone = parse_set_rule(rule).compute_levels(CandidateBatch.from_arrays([[0.3, 0.2]], [["lima", "quito"]]))
    scale = 2 / 3 if "rank" in rule and "at_least" not in rule else 1.0
    assert levels[0, 1:] == pytest.approx(alone[0] * scale)


@pytest.mark.parametrize("rule", RULES)
def test_success_score_ignores_blank_candidates_labelled_correct(rule: str) -> None:
    """A blank candidate that is labelled correct cannot be served, so that it does not count as covered."""
    draws = CandidateBatch.from_arrays([[0.1, 0.5], [0.1, 0.5]], [["", "lima"], ["", "lima"]])
    labelled = LabelledBatch(draws, np.array([[True, True], [True, False]]), ("a", "b"), (None, None), 2)
    success = parse_set_rule(rule).compute_success_scores(labelled, 2.0)
    assert success[0] <= 0.5
    assert success[1] == 2.0


def test_draws_without_texts_have_no_blank_answers() -> None:
    assert CandidateBatch.from_arrays([[0.1]]).blank is None
    assert parse_set_rule("all").compute_levels(CandidateBatch.from_arrays([[0.1]])).tolist() == [[0.1]]


def make_record(number: int, texts: tuple[str, ...]) -> PromptRecord:
    scores = (0.02, (number % 40) / 40, 0.9)
    candidates = tuple(
        Candidate(text=text, score=score, correct=text == "lima")
        for text, score in zip(texts, scores, strict=True)
    )
    return PromptRecord(id=str(number), input=f"question {number}", candidates=candidates)


RECORDS = [make_record(number, (BLANK[number % len(BLANK)], "lima", "quito")) for number in range(80)]


def test_readers_of_records_find_the_same_blank_answers(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, RECORDS)
    expected = tabulate(RECORDS).draws
    found = tabulate(read_records(path)).draws
    assert expected.blank is not None
    assert found.blank is not None
    assert expected.blank.tolist() == found.blank.tolist() == [[True, False, False]] * len(RECORDS)
    assert found.lengths is not None
    assert found.lengths.tolist() == [[0, 4, 5]] * len(RECORDS)


def score_blank_best(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
    """The best score for what says nothing, as a poor judge would give it."""
    del prompt
    return [0.02 if not one.text.strip() else 0.3 if one.text == "lima" else 0.9 for one in candidates]


def make_chain(generator: Any, **settings: Any) -> CFCRunnable:
    artifact = calibrate(RECORDS, alpha=0.2, features="1", **settings)
    return CFCRunnable(generator=generator, verifier=score_blank_best, artifact=artifact)


@pytest.mark.parametrize("rule", RULES)
def test_decide_and_chain_agree_and_never_accept_a_blank_answer(rule: str) -> None:
    for texts in (("", "lima", "quito"), (" \n", " ", "lima"), ("", " ", "\t"), ("quito", "", "quito")):
        chain = make_chain(ScriptedModel(texts=texts), set_rule=rule)
        result = chain.invoke("question")
        recorded = PromptRecord(
            id="new",
            input="question",
            candidates=tuple(
                Candidate(text=text, score=one.score, correct=False)
                for text, one in zip(texts, result.candidates, strict=True)
            ),
        )
        offline = decide(chain.artifact, tabulate([recorded]).draws)
        assert offline.accepted[0].tolist() == [one.accepted for one in result.candidates]
        assert offline.find_reason(0) == result.reason
        assert all(answer.strip() for answer in result.answers)
        assert asyncio.run(chain.ainvoke("question")) == result
        if not any(text.strip() for text in texts):
            assert (result.abstained, result.reason) == (True, "only_blank_answers")
            assert "is blank, refused or not judged" in result.explain()
        else:
            assert result.best in {"lima", "quito"}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusal_is_recorded_as_blank_and_never_the_best_answer(refusal: AIMessage) -> None:
    drawn = make_candidate(0, refusal)
    # What `collect` records of it is this text.
    assert (drawn.text, drawn.data, drawn.message) == ("", None, refusal)
    # Each draw has a message of its own: one object for two of them would look like a cache.
    replies = iter([refusal, AIMessage("lima"), refusal.model_copy()])
    chain = make_chain(lambda _: next(replies))
    message = CFCChatModel(chain=chain).invoke("question")
    assert message.text == "lima"
    refused = make_chain(lambda _: refusal.model_copy())
    assert refused.invoke("question").reason == "only_blank_answers"
    assert "cannot" not in json.dumps(refused.invoke("question").model_dump(mode="json")["answers"])


def test_candidate_that_only_calls_tools_is_not_blank() -> None:
    call: Any = {"name": "search", "args": {}, "id": "1", "type": "tool_call"}
    assert make_candidate(0, AIMessage("", tool_calls=[call])).text.strip()


def test_empty_extracted_answer_is_blank() -> None:
    with_answers = [
        change_candidates(record, lambda one: {"answer": str(one.text).strip()}) for record in RECORDS
    ]
    parts = Provenance(n=N, generator={"id": "g"}, verifier={"id": "v"})
    artifact = calibrate(with_answers, alpha=0.2, features="1", provenance=parts)
    settings: dict[str, Any] = {
        "generator": ScriptedModel(texts=("no idea", "the capital is lima", "hm")),
        "verifier": lambda prompt, candidates: [0.1, 0.3, 0.2][: len(candidates)] if prompt else [],
        "artifact": artifact,
        "generator_id": "g",
        "verifier_id": "v",
    }
    with pytest.warns(FingerprintWarning, match="answer"):
        chain = CFCRunnable(**settings, answer=lambda text: "lima" if "lima" in text else "")
    assert chain.invoke("question").answers == ("lima",)
    # Without the extractor other answers would be blank, so that it is not what was calibrated.
    with pytest.warns(FingerprintWarning, match="answer"):
        assert CFCRunnable(**settings).guarantee.binding == "unverified"


def test_coverage_holds_if_the_verifier_prefers_blank_answers() -> None:
    """The promise by its own law: split conformal on the rule's success score, over many prompts.

    The verifier gives blanks the best scores. Covered means that a set holds a correct answer that is not
    blank. 400 draws of a calibration set of 99 and one prompt each: the kept share has mean at least 0.8 and
    falls below 0.72 with probability under 1e-4 (binomial). Without the rule blanks would be shown as best.
    """
    rng = np.random.default_rng(3)
    kept, shown = [], []
    for _ in range(400):
        scores = rng.random((100, 4))
        blank = rng.random((100, 4)) < 0.3
        scores[blank] *= 0.1
        correct = ~blank & (rng.random((100, 4)) < 0.7)
        answers = [["" if is_blank else "x" for is_blank in row] for row in blank]
        labelled = LabelledBatch.from_arrays([str(row) for row in range(100)], scores, correct, answers)
        success = parse_set_rule("all").compute_success_scores(labelled, 2.0)
        threshold = np.sort(success[:99])[79]
        inside = parse_set_rule("all").compute_levels(labelled.draws)[99] <= threshold
        kept.append(bool((inside & correct[99]).any() or threshold >= 2.0))
        shown.append(bool((inside & blank[99]).any()))
    assert np.mean(kept) >= 0.72
    assert not any(shown)
