"""`ReplayChatModel`: recorded candidates, served as if a model drew them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompt_values import StringPromptValue
from langchain_core.prompts import ChatPromptTemplate

from langchain_cfc import Candidate, CFCRunnable, PromptRecord, calibrate, read_records, write_records
from langchain_cfc.decision import decide
from langchain_cfc.demo.replay import (
    RecordedAnswers,
    RecordedClaims,
    RecordedClaimScores,
    RecordedMetadata,
    RecordedScores,
    ReplayChatModel,
    compute_prompt_key,
    make_replay_parts,
)
from langchain_cfc.errors import DrawError, InputError, VerifierError
from langchain_cfc.records import Claim, ClaimsRecord, Provenance, tabulate
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.fakes import RunRecorder

N = 3
PROVENANCE = Provenance(
    n=N, generator={"id": "recorded-model"}, verifier={"id": "recorded-judge"}, answer={"id": "upper"}
)


def make_record(number: int) -> PromptRecord:
    """A prompt whose first candidate is right; its success score is `number` / 40."""
    return PromptRecord(
        id=str(number),
        input=f"question {number}",
        metadata={"number": number},
        candidates=(
            Candidate(text=f"right {number}", score=number / 40, correct=True, answer=f"RIGHT {number}"),
            Candidate(text=f"wrong {number}", score=0.5, correct=False, answer=f"WRONG {number}"),
            Candidate(text=f"wrong too {number}", score=1.0, correct=False, answer=f"WRONG {number}"),
        ),
    )


RECORDS = [make_record(number) for number in range(1, 40)]


def make_replay_chain(**fields: Any) -> CFCRunnable:
    artifact = calibrate(RECORDS, alpha=0.25, features="1", set_rule="unique(all)", provenance=PROVENANCE)
    parts: dict[str, Any] = {
        "generator": ReplayChatModel.from_records(RECORDS, PROVENANCE),
        "verifier": RecordedScores(PROVENANCE),
        "answer": RecordedAnswers(RECORDS, PROVENANCE),
        "metadata": RecordedMetadata(RECORDS),
    }
    return CFCRunnable(**{"artifact": artifact, **parts, **fields})


def test_replay_model_answers_outside_a_draw_with_the_first_candidates() -> None:
    model = ReplayChatModel.from_records(RECORDS)
    assert [model.invoke("question 7").text for _ in range(2)] == ["right 7"] * 2
    drawn = model.generate([[HumanMessage("question 7")]], n=N).generations[0]
    assert [one.text for one in drawn] == ["right 7", "wrong 7", "wrong too 7"]


def test_replay_model_finds_a_prompt_in_every_form() -> None:
    model = ReplayChatModel.from_records(RECORDS)
    for prompt in (
        "question 3",
        [HumanMessage("question 3")],
        [("human", "question 3")],
        StringPromptValue(text="question 3"),
    ):
        assert model.invoke(prompt).text.endswith(" 3")
    chain = ChatPromptTemplate.from_template("question {number}") | ReplayChatModel.from_records(RECORDS)
    assert chain.invoke({"number": 3}).text == "right 3"


def test_replay_model_raises_draw_error_for_unknown_prompts() -> None:
    with pytest.raises(DrawError, match=r"this prompt was not recorded.*question 99"):
        ReplayChatModel.from_records(RECORDS).invoke("question 99")
    with pytest.raises(DrawError, match=f"{N} of {N} candidates could not be drawn"):
        make_replay_chain().invoke("question 99")


def test_find_record_names_recorded_prompts_near_an_unknown_one() -> None:
    model = ReplayChatModel.from_records(RECORDS)
    assert model.find_record([HumanMessage("question 7")]) is RECORDS[6]
    with pytest.raises(DrawError, match=r"near it: 'question 3', 'question \d+', 'question \d+'$"):
        model.find_record("question 3x")
    # However long prompts are, and however many were recorded, this takes no time to speak of.
    long = [make_record(1).model_copy(update={"id": str(k), "input": f"{k} " * 20_000}) for k in range(300)]
    before = time.process_time()
    with pytest.raises(DrawError) as failure:
        ReplayChatModel.from_records(long).find_record("5 " * 30_000)
    assert time.process_time() - before < 2.0
    assert len(str(failure.value)) < 600


@pytest.mark.parametrize("sampling", ["requests", "single_request"])
def test_replay_chain_serves_the_recorded_decisions(sampling: str) -> None:
    chain = make_replay_chain(show_rejected=True, sampling=sampling)
    decisions = decide(chain.artifact, tabulate(RECORDS).draws)
    for row, one in enumerate(RECORDS):
        result = chain.invoke(one.input, {"max_concurrency": 1})
        assert [c.text for c in result.candidates] == [c.text for c in one.candidates]
        assert [c.answer for c in result.candidates] == [c.answer for c in one.candidates]
        assert [c.score for c in result.candidates] == [c.score for c in one.candidates]
        assert [c.accepted for c in result.candidates] == decisions.accepted[row].tolist()
        assert result.threshold == decisions.thresholds[row]
        assert result.guarantee.binding == "matched"


def test_replay_chain_draws_all_candidates_with_one_request(tmp_path: Path) -> None:
    write_records(tmp_path / "records.jsonl", RECORDS, PROVENANCE)
    parts = make_replay_parts(read_records(tmp_path / "records.jsonl"))
    for chain, requests in ((make_replay_chain(**parts), 1), (make_replay_chain(), N)):
        recorder = RunRecorder()
        chain.invoke("question 7", {"callbacks": [recorder]})
        assert len(recorder.of("model")) == requests


def test_concurrent_replay_gives_the_recorded_candidates() -> None:
    chain = make_replay_chain(show_rejected=True)
    results = chain.batch([one.input for one in RECORDS], {"max_concurrency": 8})
    results += asyncio.run(chain.abatch([one.input for one in RECORDS]))
    for one, result in zip(RECORDS * 2, results, strict=True):
        found = sorted((str(c.text), c.score) for c in result.candidates)
        assert found == sorted((str(c.text), c.score) for c in one.candidates)


def test_fingerprints_of_replay_parts_are_the_recorded_ones() -> None:
    assert compute_fingerprint(ReplayChatModel.from_records(RECORDS, PROVENANCE)) == {"id": "recorded-model"}
    assert compute_fingerprint(RecordedScores(PROVENANCE)) == {"id": "recorded-judge"}
    assert compute_fingerprint(RecordedAnswers(RECORDS, PROVENANCE)) == {"id": "upper"}
    for part in (ReplayChatModel.from_records(RECORDS), RecordedScores(), RecordedAnswers(RECORDS)):
        assert compute_fingerprint(part) == {}


def test_recorded_scores_refuse_candidates_not_recorded() -> None:
    recorded = DrawnCandidate("right 1", ReplayChatModel.from_records(RECORDS).invoke("question 1"))
    verifier = RecordedScores()
    assert verifier("question 1", [recorded]) == [1 / 40]
    for stranger in (DrawnCandidate("right 1"), DrawnCandidate("right 1", AIMessage("right 1"))):
        with pytest.raises(VerifierError, match="candidate 1 does not come from a recording"):
            verifier("question 1", [recorded, stranger])


def test_recorded_answers_return_the_answer_of_a_text() -> None:
    answers = RecordedAnswers(RECORDS)
    assert answers("wrong too 2") == "WRONG 2"
    with pytest.raises(KeyError):
        answers("never said")


def test_recorded_answers_return_a_text_without_answer_itself() -> None:
    plain = PromptRecord(id="a", input="x", candidates=(Candidate(text="lima", score=0.5, correct=True),))
    assert RecordedAnswers([plain])("lima") == "lima"


def test_recorded_metadata_return_the_metadata_of_a_prompt() -> None:
    metadata = RecordedMetadata(RECORDS)
    assert metadata("question 5") == {"number": 5}
    assert metadata([HumanMessage("question 5")]) == {"number": 5}
    assert metadata("question 99") == {}


def make_image(pixels: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixels}"}}


def make_illustrated(pixels: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, make_image(pixels)]}]


def make_call(query: str) -> list[Any]:
    call: Any = {"name": "search", "args": {"query": query}, "id": "1", "type": "tool_call"}
    return [HumanMessage("x"), AIMessage("", tool_calls=[call]), ToolMessage("found", tool_call_id="1")]


def test_replay_model_distinguishes_prompts_by_their_images() -> None:
    candidates = {name: Candidate(text=name, score=0.5, correct=True) for name in ("cat", "rocket")}
    records = [
        PromptRecord(id=name, input=make_illustrated(pixels), candidates=(candidates[name],))
        for name, pixels in (("cat", "aaaa"), ("rocket", "bbbb"))
    ]
    model = ReplayChatModel.from_records(records)
    assert [model.invoke(make_illustrated(pixels)).text for pixels in ("bbbb", "aaaa")] == ["rocket", "cat"]
    metadata = RecordedMetadata(one.model_copy(update={"metadata": {"name": one.id}}) for one in records)
    assert metadata(make_illustrated("bbbb")) == {"name": "rocket"}
    with pytest.raises(DrawError, match="not recorded"):
        model.invoke("What is this?")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source_type": "base64", "data": "aaaa", "mime_type": "image/png"},
        {"type": "image", "base64": "aaaa", "mime_type": "image/png"},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": "aaaa"}},
        {"type": "file", "file": {"filename": "x.pdf", "file_data": "data:application/pdf;base64,aaaa"}},
    ],
)
def test_replay_model_finds_prompts_with_content_blocks(block: dict[str, Any]) -> None:
    # Chat models convert some blocks to LangChain's standard form before they see them.
    asked = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, block]}]
    record = PromptRecord(id="a", input=asked, candidates=(Candidate(text="it", score=0.5, correct=True),))
    assert ReplayChatModel.from_records([record]).invoke(asked).text == "it"


def test_replay_model_refuses_inputs_that_are_no_messages() -> None:
    record = PromptRecord(
        id="a", input=[{"no": "message"}], candidates=(Candidate(text="it", score=0.5, correct=True),)
    )
    with pytest.raises(InputError, match="only text, messages and JSON objects can be replayed"):
        ReplayChatModel.from_records([record])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x", [HumanMessage("x")]),
        ("x", [{"role": "user", "content": [{"type": "text", "text": "x"}]}]),
        ("x", [{"role": "user", "content": "x"}]),
        ([("system", "s"), ("human", "x")], [SystemMessage("s"), HumanMessage("x")]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_compute_prompt_key_is_equal_for_equal_prompts(one: Any, other: Any) -> None:
    assert compute_prompt_key(one) == compute_prompt_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x", "y"),
        ([HumanMessage("x")], [SystemMessage("x")]),
        ([HumanMessage("x")], [HumanMessage("x"), AIMessage("y")]),
        ([("system", "s"), ("human", "x")], [("human", "s"), ("human", "x")]),
        ({"a": 1}, {"a": 2}),
        (make_illustrated("aaaa"), make_illustrated("bbbb")),
        (make_illustrated("aaaa"), "What is this?"),
        (make_call("llama"), make_call("alpaca")),
        ([HumanMessage("x", name="a")] * 2, [HumanMessage("x", name="b")] * 2),
    ],
)
def test_compute_prompt_key_differs_for_different_prompts(one: Any, other: Any) -> None:
    assert compute_prompt_key(one) != compute_prompt_key(other)


def test_compute_prompt_key_of_an_object_equals_that_of_its_json() -> None:
    # A known limit, written down here: the key of an object is its JSON, and a text may be the same JSON.
    assert compute_prompt_key('{"a":1}') == compute_prompt_key({"a": 1})


def test_replay_parts_refuse_ambiguous_records() -> None:
    first, second = RECORDS[:2]
    same = second.model_copy(update={"input": first.input})
    with pytest.raises(InputError, match="records '1' and '2' have the same input"):
        ReplayChatModel.from_records([first, same])
    message = Candidate(message={"type": "ai", "content": "hi"}, score=0.1, correct=True)
    with pytest.raises(InputError, match="record '1' holds candidates that are not text"):
        ReplayChatModel.from_records([first.model_copy(update={"candidates": (message,) * N})])
    other = first.candidates[0].model_copy(update={"answer": "LEFT"})
    with pytest.raises(InputError, match="the text 'right 1' was recorded with several answers"):
        RecordedAnswers([first, second.model_copy(update={"candidates": (other,) * N})])


def test_recorded_claims_refuse_ambiguous_and_incomplete_records() -> None:
    claim = Claim(text="It is.", start=0, end=6, score=0.1, supported=True)
    record = ClaimsRecord(id="c", input="?", answer="It is.", claims=(claim,))
    assert RecordedClaims([record])("It is.")[0].end == 6
    same = ClaimsRecord(id="d", input="!", answer="It is.", claims=(claim,))
    assert RecordedClaims([record, same])("It is.")[0].end == 6
    other = same.model_copy(update={"claims": (claim.model_copy(update={"end": 2}),)})
    with pytest.raises(InputError, match="was recorded with several answers, or lists of claims"):
        RecordedClaims([record, other])
    bare = claim.model_copy(update={"start": None, "end": None})
    for part in ({"answer": None}, {"claims": (bare,)}):
        with pytest.raises(InputError, match="record 'c' lacks the answer or the spans of its claims"):
            RecordedClaims([record.model_copy(update=part)])
    with pytest.raises(VerifierError, match="these claims do not come from the recording"):
        RecordedClaimScores([record])("?", [DrawnCandidate("It was.")])
