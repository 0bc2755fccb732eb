"""The report page of an artifact for claims."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from langchain_cfc_lab.report import find_hardest_prompts, render_report
from langchain_cfc_lab.report.hardest import MarkedText

from integrations.lab.tests.report.cases import RECORDS, Case, make_case, make_hostile_answers
from integrations.lab.tests.report.test_page import Reader, read_page
from langchain_cfc import CalibrationArtifact, calibrate, evaluate, read_records
from langchain_cfc.artifact import tabulate_draws
from langchain_cfc.records import Claim, ClaimsRecord
from tests.cli.running import run
from tests.factories import make_answer

FEATURES = "group(topic) + hat(mean_score, 3)"
# The threshold is the largest of the confidences of unsupported claims, of which each answer has one.
SUPPORTED, UNSUPPORTED = 0.1, 0.5


class MarkReader(Reader):
    """Collects what is marked as dropped, and as left in though unsupported."""

    def __init__(self, html: str) -> None:
        self.dropped: list[str] = []
        self.unsupported: list[str] = []
        super().__init__(html)

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        if {"del", "mark"} & set(self.open[-1:]):
            (self.dropped if self.open[-1] == "del" else self.unsupported).append(data)


def render(one: Case) -> str:
    return render_report(artifact=one.artifact, evaluation=one.evaluation, hardest=one.hardest)


@pytest.fixture(scope="module")
def long_answers() -> Case:
    source = read_records(RECORDS)
    return make_case(
        list(source.read_claims()),
        unit="claims",
        at_most=1,
        alpha="0.2",
        features=FEATURES,
        provenance=source.provenance,
    )


@pytest.fixture(scope="module")
def long_page(long_answers: Case) -> Reader:
    return read_page(long_answers)


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """Drops claims of score 0.5 and more, for all prompts."""
    claims = (("right", SUPPORTED, True), ("wrong", UNSUPPORTED, False))
    return calibrate(
        [make_answer(f"{number}", *claims) for number in range(40)], unit="claims", alpha="0.1", features="1"
    )


def test_claims_page_uses_the_words_of_claims_only(long_page: Reader) -> None:
    text = long_page.text
    assert "With probability at least 80 %, at most 1 unsupported claim is left in the answer." in text
    assert "an answer that loses all of them keeps the promise." in text
    assert "What is left of the answers to the test prompts, beside what one threshold" in text
    assert "Splitter sentences" in text
    assert re.search(r"(?i)candidate|answer set|flagged|attainable|set rule", text) is None


def test_claims_page_shows_the_figures_of_the_evaluation(long_answers: Case, long_page: Reader) -> None:
    text = long_page.text
    own, other = (long_answers.evaluation.methods[name] for name in ("conditional", "marginal"))
    assert own.claims is not None
    assert other.claims is not None
    low, high = (100 * bound for bound in own.kept_promise_ci)
    assert f"Promise kept {100 * own.kept_promise:.1f} % {low:.1f} to {high:.1f} %" in text
    low, high = (100 * bound for bound in own.abstention_ci)
    assert f"Answers with no claim left {100 * own.claims.emptied:.1f} % {low:.1f} to {high:.1f} %" in text
    for label, name in (
        ("Claims kept", "kept"),
        ("Unsupported, of the claims shown", "unsupported_kept"),
        ("Unsupported, of all claims", "unsupported"),
    ):
        shares = [100 * getattr(one.claims, name) for one in (own, other)]
        assert f"{label} {shares[0]:.1f} % {shares[1]:.1f} %" in text
    group, compared = own.groups[0].claims, other.groups[0].claims
    assert group is not None
    assert compared is not None
    assert f"{100 * group.kept:.0f} % ({100 * compared.kept:.0f} %)" in text


def test_claims_page_shows_hostile_claims_as_text_and_marks_them(claims: Case) -> None:
    html = render(claims)
    read = MarkReader(html)
    assert not {"script", "img"} & set(read.tags)
    assert "<script>window.hacked = 1</script>" in read.text
    assert not re.search("[\x00-\x08\x7f-\x9f\u202a-\u202e\u2028]", html)
    marks = [part for one in claims.hardest.prompts for part in one.marked]
    assert len(read.dropped) == sum(part.mark == "dropped" for part in marks) > 0
    assert len(read.unsupported) == sum(part.mark == "unsupported" for part in marks) > 0
    # In words as well, for those who do not see the marks.
    assert read.text.count("[dropped:") == len(read.dropped)
    assert read.text.count("[unsupported:") == len(read.unsupported)
    assert "Struck through: dropped. Wavy underline: kept, but unsupported." in read.text


def test_find_hardest_prompts_orders_answers_of_claims(artifact: CalibrationArtifact) -> None:
    records = [
        make_answer("fine", ("a", 0.1, True), ("b", 0.6, False)),
        make_answer("one", ("a", 0.2, False), ("b", 0.6, True)),
        make_answer("two", ("a", 0.1, False), ("b", 0.1, False), ("c", 0.2, True)),
        make_answer("emptied", ("a", 0.7, False)),
        make_answer("worse", ("a", 0.9, True), ("b", 0.8, False)),
    ]
    found = find_hardest_prompts(artifact, tabulate_draws(artifact, records), texts=records)
    assert (found.missed, found.flagged, found.unit) == (2, 2, "claims")
    assert [one.id for one in found.prompts] == ["two", "worse", "one", "emptied"]
    assert [one.outcome for one in found.prompts] == ["missed", "emptied", "missed", "emptied"]
    assert {one.id: one.why for one in found.prompts} == {
        "two": "Missed: the promise is broken. 1 of 3 claims supported.",
        "one": "Missed: the promise is broken. 1 of 2 claims supported.",
        "worse": "No claim left. 1 of 2 claims supported.",
        "emptied": "No claim left. 0 of 1 claim supported.",
    }
    # Without an answer, or without places, only the claims are listed.
    unplaced = [one.model_copy(update={"answer": None}) for one in records]
    listed = find_hardest_prompts(artifact, tabulate_draws(artifact, records), texts=unplaced)
    assert {one.marked for one in listed.prompts} == {()}
    assert [one.answer for one in found.prompts[0].answers] == ["a", "b", "c"]


def test_uncertifiable_answers_of_claims_are_counted_separately(claims: Case) -> None:
    records = [
        one.model_copy(
            update={"id": f"new {one.id}", "metadata": {"topic": "unknown"} if row < 6 else one.metadata}
        )
        for row, one in enumerate(make_hostile_answers(60, seed=1))
    ]
    made = calibrate(make_hostile_answers(), unit="claims", alpha="0.3", features="group(topic)")
    seen, table = evaluate(made, records), tabulate_draws(made, records)
    found = find_hardest_prompts(made, table, most=60)
    flagged = [one for one in found.prompts if one.outcome == "flagged"]
    assert len(flagged) == 6
    assert all(one.why.startswith("Flagged: cannot be certified.") for one in flagged)
    text = Reader(render_report(artifact=made, evaluation=seen, hardest=found)).text
    assert "Of these, because nothing can be certified 10.0 %" in text
    assert "No threshold can be certified." in text
    assert "nothing can be certified" not in read_page(claims).text


def test_overlap_of_a_dropped_claim_is_marked_as_dropped(artifact: CalibrationArtifact) -> None:
    answer = "Lima is old and large. Done."
    claims = []
    for text, score, supported in (
        ("Lima is old and large.", 0.1, False),
        ("and large", 0.9, True),
        ("Done.", 0.1, True),
    ):
        start = answer.index(text)
        claims.append(Claim(text=text, start=start, end=start + len(text), score=score, supported=supported))
    records = [ClaimsRecord(id="x", input="x", answer=answer, claims=tuple(claims))]
    (prompt,) = find_hardest_prompts(artifact, tabulate_draws(artifact, records), texts=records).prompts
    assert prompt.marked == (
        MarkedText("Lima is old ", "unsupported"),
        MarkedText("and large", "dropped"),
        MarkedText(".", "unsupported"),
        MarkedText(" Done.", ""),
    )


def test_claims_page_contains_no_claim_without_show_text(long_answers: Case, tmp_path: Path) -> None:
    path, out = tmp_path / "artifact.json", tmp_path / "page.html"
    long_answers.artifact.save(path)
    ran = run("report", path, RECORDS, "-o", out, "--json")
    assert ran.code == 0, ran.err
    assert ran.data == {
        "report": str(out),
        **json.loads(evaluate(long_answers.artifact, read_records(RECORDS)).model_dump_json()),
    }
    hidden = MarkReader(out.read_text())
    texts = [answer.answer or "" for one in long_answers.hardest.prompts for answer in one.answers]
    assert len(texts) > 10
    assert not [text for text in texts if text in hidden.text]
    assert "Claim 1" in hidden.text
    assert hidden.dropped == hidden.unsupported == []
    assert run("report", path, RECORDS, "-o", out, "--show-text").code == 0
    shown = MarkReader(out.read_text())
    assert all(" ".join(text.split()) in shown.text for text in texts)
    assert shown.dropped


def test_claims_page_shows_the_certified_share_of_unsupported_claims() -> None:
    source = read_records(RECORDS)
    one = make_case(
        list(source.read_claims()),
        unit="claims",
        alpha=None,
        max_wrong_rate="0.2",
        provenance=source.provenance,
    )
    page = render(one)
    assert "How many of the claims shown are unsupported" in page
    assert "Of the claims that an answer shows, at most 20" in page
    assert "At most 20 % unsupported" in page
    assert not re.search(r"candidate|answer set|best answer|wrong answer", Reader(page).text)
