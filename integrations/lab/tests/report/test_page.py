"""The report page and its command; hostile text stays text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_lab.report import Sources, find_hardest_prompts, render_report, write_report

from integrations.lab.tests.report.cases import HOSTILE, RECORDS, Case, make_case, make_prompt
from langchain_cfc import CalibrationArtifact, calibrate, certificates, evaluate, read_records
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import tabulate, write_records
from tests.certificates.prompts import prompts
from tests.cli.running import run
from tests.factories import change_candidates
from tests.recordings import list_facts

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Tags, attributes and visible text of a page; a tag that does not close is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.style: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.style if self.open[-1:] == ["style"] else self.texts).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).replace("\N{NO-BREAK SPACE}", " ").split())


def read_page(one: Case, **options: Any) -> Reader:
    return Reader(
        render_report(artifact=one.artifact, evaluation=one.evaluation, hardest=one.hardest, **options)
    )


@pytest.fixture(scope="module")
def facts_page(facts: Case) -> Reader:
    return read_page(facts)


@pytest.fixture(scope="module")
def marginal() -> Case:
    return make_case(list_facts(), alpha="0.2", features="1")


@pytest.fixture(scope="module")
def hostile_html(hostile: Case) -> str:
    return render_report(
        artifact=hostile.artifact,
        evaluation=hostile.evaluation,
        hardest=hostile.hardest,
        sources=Sources(HOSTILE[0], HOSTILE[1:4]),
    )


def test_page_of_a_bot_shows_each_promise_that_it_serves(bot: Case, facts_page: Reader) -> None:
    of_all = make_case(list_facts()[:700], max_wrong_of_all="0.1", alpha=None)
    both, alone = (read_page(one).text for one in (bot, of_all))
    for page, words in ((both, "At most 10 % of the answered, certified"), (alone, "At most 10 % of all")):
        table = page[page.rindex("Answered and wrong under each promise") :]
        assert words in table
        assert "At most 5 % of a batch of 200, on average" in table
    (answers,) = bot.evaluation.answers
    for words in (
        bot.artifact.certified_bot.certificates[0].sentence,
        f"{answers.answered:,} prompts",
        "not contradicted",
        "With probability at least",  # of sets, as without a bot
    ):
        assert words in both
    assert both.count("(certified)") == 1
    for absent in ("a batch of", "Answering or abstaining"):
        assert absent not in facts_page.text
    contradicted = answers.model_copy(update={"contradicted": True})
    broken = bot.evaluation.model_copy(update={"answers": (contradicted,)})
    assert "more than chance explains" in Reader(render_report(artifact=bot.artifact, evaluation=broken)).text


def test_report_page_states_the_promise_and_its_limits_first(facts: Case, facts_page: Reader) -> None:
    text = facts_page.text
    guarantee = facts.artifact.make_guarantee()
    claim = guarantee.claim
    assert "over easy as well as hard ones, over each of 9 groups, and over any mix of them" in text
    for sentence in (claim, guarantee.sentence, *guarantee.not_promised, *guarantee.assumptions):
        assert sentence in text
    order = [
        "The promise",
        claim,
        "Consistent with the promise",
        "What is not promised",
        "What to do next",
        "What happened",
        "The data ",
    ]
    # The contents name them first.
    body = text[text.index("tested on 355 questions") :]
    body = body[body.index(claim) - 20 :]
    places = [body.index(words) for words in order]
    assert places == sorted(places)


def test_report_page_is_one_file_without_external_content(facts_page: Reader, hostile_html: str) -> None:
    for read in (facts_page, Reader(hostile_html)):
        policy = [value for tag, name, value in read.attributes if tag == "meta" and "default-src" in value]
        assert policy == [
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
        ]
        forbidden = {"script", "link", "img", "iframe", "object", "embed", "form", "base", "foreignobject"}
        assert not forbidden & set(read.tags)
        for _, name, value in read.attributes:
            assert not name.startswith("on")
            if name in {"href", "src", "xlink:href", "srcset", "action"}:
                assert re.fullmatch(r"#[\w-]+", value)
        assert "url(" not in "".join(read.style)
        assert "@import" not in "".join(read.style)
        assert ("html", "lang", "en") in read.attributes
        assert ("meta", "name", "viewport") in read.attributes


def test_report_page_tables_and_figures_have_captions_and_scopes(facts_page: Reader) -> None:
    assert facts_page.tags["table"] == facts_page.tags["caption"] > 5
    heads = [value for tag, name, value in facts_page.attributes if tag == "th" and name == "scope"]
    assert len(heads) == facts_page.tags["th"]
    assert {"col", "row"} == set(heads)
    assert facts_page.tags["figure"] == facts_page.tags["figcaption"] >= 1


def test_report_page_shows_hostile_text_as_text(hostile: Case, hostile_html: str) -> None:
    read = Reader(hostile_html)
    for text in (HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[3], HOSTILE[5]):
        assert " ".join(text.split()) in read.text
    assert "7 * 7" in read.text, "no template reads what users wrote"
    shown = {answer.answer for one in hostile.hardest.prompts for answer in one.answers}
    assert any(text.startswith("<script>") for text in shown if text is not None)
    # Only the style sheet is one.
    assert read.tags["style"] == 1
    assert read.tags["title"] == 1 + read.tags["svg"]


def test_report_page_spells_out_invisible_characters(hostile_html: str) -> None:
    read = Reader(hostile_html)
    for code in ("U+0000", "U+0007", "U+007F", "U+0085", "U+2028", "U+202E", "U+202C"):
        assert f"[{code}]" in read.text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2028]", hostile_html)
    hostile_html.encode()


def test_report_page_headlines_a_broken_promise(facts: Case) -> None:
    broken = facts.evaluation.model_copy(update={"contradicted": ["group(topic)=capital"]})
    read = Reader(render_report(artifact=facts.artifact, evaluation=broken))
    assert "Contradicts the promise, for topic: capital: " in read.text
    assert "Consistent" not in read.text
    assert "%, less often than chance explains" in read.text
    assert "Do not serve this artifact" in read.text


def test_report_page_without_a_theorem_states_no_guarantee() -> None:
    read = read_page(make_case(list_facts(), alpha="0.2", features="mean_score", pac=PaperPAC(ridge=0.001)))
    assert "No guarantee: the aim is that in 80 % of cases" in read.text
    assert "No promise to check: " in read.text
    assert "With probability at least" not in read.text
    assert "Assumptions" not in read.text
    assert "unknown: not in the records (unbound)" in read.text
    # The default rule again, with the other options as they were.
    advised = read.text.split("Calibrate with a rule that makes a promise", 1)[1].split("--test-fraction", 1)[
        0
    ]
    assert "--features '1 + mean_score' --set-rule all --seed 0" in advised
    assert "--pac" not in advised


@pytest.mark.parametrize("unit", ["answers", "claims"])
def test_report_page_shows_the_certificate(facts_page: Reader, unit: str) -> None:
    records: Any = list_facts()[:500]
    options: dict[str, Any] = {}
    if unit == "claims":
        records, options = list(read_records(RECORDS).read_claims()), {"unit": unit, "at_most": 2}
    artifact = make_case(records, alpha="0.2", features="group(topic)", test_fraction=0.3, **options).artifact
    certified = certificates.certify(artifact, records, delta="0.1")
    certificate = certified.make_guarantee().certificate
    assert certificate is not None
    read = Reader(render_report(artifact=certified, evaluation=evaluate(certified, records)))
    assert ("Set correct at least" in read.text) == (unit == "answers")
    assert f"Certified on {certificate.prompts} prompts" in read.text
    kept = certificate.shares[0].kept
    assert f"seen: {kept} of {certificate.prompts}" in read.text
    assert "with confidence 90 %" in read.text
    assert "Certify this artifact" not in read.text
    assert "Certified on" not in facts_page.text


def test_report_page_of_a_bot_without_sets_reports_answers_only() -> None:
    source = load_recording()
    made = calibrate(source, max_wrong_rate=["0.1", "0.2"], test_fraction=0.3)
    seen = evaluate(made, source)
    read = Reader(render_report(artifact=made, evaluation=seen))
    assert "Of the questions that are answered, at most 10 % get a wrong answer" in read.text
    assert "At most 20 % is certified as well." in read.text
    assert "Consistent with the certificate: " in read.text
    assert "Certified on 869 questions" in read.text
    # The most confident wrong answers, and the abstentions that were nearest to an answer.
    table = tabulate(source, n=made.n)
    listed = find_hardest_prompts(made, table, texts=source, most=10)
    shown = Reader(render_report(artifact=made, evaluation=seen, hardest=listed)).text
    cut = made.certified_bot.certificates[-1].cut
    for outcome, is_beyond in (("wrong", False), ("abstained", True)):
        scores = [one.mean_score for one in listed.prompts if one.outcome == outcome]
        assert len(scores) == 5
        assert scores == sorted(scores)
        assert all((score > cut) == is_beyond for score in scores)
    for one in listed.prompts:
        assert one.prompt is not None
        assert one.reference is not None
        assert f"{one.right} of {one.drawn}" in shown
    assert shown.index("Wrong answers, lowest score first") < shown.rindex("What to do next")
    # Nothing is promised about sets, so nothing is shown or advised of them.
    for absent in (
        "Set holds a correct answer",
        "No guarantee",
        "Calibrate with a rule",
        "Certify this artifact",
        "every answer once",
    ):
        assert absent not in read.text
    first, *rest = seen.answers
    broken = seen.model_copy(update={"answers": (first.model_copy(update={"contradicted": True}), *rest)})
    assert "Do not serve it" in Reader(render_report(artifact=made, evaluation=broken)).text


def test_report_page_of_a_rate_among_all_questions_shows_answered_and_wrong() -> None:
    source = load_recording()
    made = calibrate(source, max_wrong_of_all="0.1", features="group(topic)", test_fraction=0.3)
    seen = evaluate(made, source)
    read = Reader(render_report(artifact=made, evaluation=seen))
    assert "Of all questions asked, at most 10 % get a wrong answer" in read.text
    assert f"{100 * (1 - seen.methods['conditional'].kept_promise):.1f} %" in read.text
    assert "Answered wrongly, of all questions" in read.text
    assert "max_wrong_of_all = 0.1" in read.text
    for absent in ("every answer once", "To answer without showing a set", "Set holds"):
        assert absent not in read.text


def test_report_page_names_groups_in_which_a_rate_is_not_certified() -> None:
    records = prompts(5, 1500, decimals=12)
    # Every answer about the sea is wrong.
    spoiled = [
        change_candidates(one, correct=False) if one.metadata["topic"] == "sea" else one for one in records
    ]
    pages = []
    for given in (records, spoiled):
        bot = calibrate(given, features="group(topic)", max_wrong_rate="0.4", wrong_rate_groups=True)
        pages.append(Reader(render_report(artifact=bot, evaluation=evaluate(bot, prompts(6, 300)))).text)
    assert ["not certified in: topic: sea (" in text for text in pages] == [False, True]


def test_report_page_contains_no_store_password(facts: Case) -> None:
    assert "secret" not in read_page(facts, sources=Sources(records=("postgresql://me:secret@host/db",))).text


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "facts.jsonl"
    write_records(path, load_recording())
    return path


@pytest.fixture(scope="module")
def artifact(records: Path, facts: Case) -> Path:
    path = records.parent / "artifact.json"
    facts.artifact.save(path)
    return path


def contains_a_prompt(html: str) -> bool:
    return any(str(record.input) in html for record in list_facts())


def test_report_command_writes_the_page_and_prints_the_evaluation(
    artifact: Path, records: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    ran = run("report", artifact, records, "-o", out, "--json")
    assert ran.code == 0
    assert ran.err == ""
    loaded = CalibrationArtifact.load(artifact)
    expected = evaluate(loaded, load_recording()).model_dump(mode="json")
    assert ran.data == {"report": str(out), **expected}
    html = out.read_text()
    assert "What artifact.json promises" in html
    assert "--alpha 0.2 --group topic" in html
    assert not contains_a_prompt(html), "texts are shown only if they are asked for"


def test_report_command_shows_texts_on_request(tmp_path: Path) -> None:
    artifact, records, out = (tmp_path / name for name in ("artifact.json", "few.jsonl", "page.html"))
    few = list_facts()[:300]
    make_case(few, alpha="0.3", features="mean_score").artifact.save(artifact)
    write_records(records, few)
    ran = run("report", artifact, records, "-o", out, "--show-text", "--prompts", "2")
    assert ran.code == 0, ran.err
    assert "Consistent with the promise: kept for 77.2 % of the questions, target 70 %." in ran.out
    html = out.read_text()
    assert html.count("<blockquote") == 2
    assert contains_a_prompt(html)


def test_report_command_exits_with_1_on_a_broken_promise(tmp_path: Path) -> None:
    path, out = tmp_path / "artifact.json", tmp_path / "page.html"
    good = [make_prompt(f"g{k}", (0.01 * (k % 50), "yes", True), (0.9, "no", False)) for k in range(200)]
    make_case(good, alpha=0.2, features="1").artifact.save(path)
    bad = [make_prompt(f"b{k}", (0.95, "yes", True), (0.9, "no", False)) for k in range(100)]
    write_records(tmp_path / "bad.jsonl", bad)
    ran = run("report", path, tmp_path / "bad.jsonl", "-o", out)
    assert ran.code == 1
    assert "Contradicts the promise, for all prompts: " in out.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--alpha", "0.1"], "was not calibrated at alpha = 0.1"),
        (["-o", "-"], "a report cannot be written to standard output"),
        (["-o", "RECORDS"], "exists and is not a report"),
    ],
)
def test_report_command_exits_with_2_on_bad_input_and_writes_nothing(
    artifact: Path, records: Path, tmp_path: Path, options: Sequence[str], said: str
) -> None:
    before = records.read_bytes()
    out = ["-o", str(tmp_path / "page.html")] if "-o" not in options else []
    ran = run(
        "report", artifact, records, *out, *(str(records) if one == "RECORDS" else one for one in options)
    )
    ran.assert_refused(said)
    assert list(tmp_path.iterdir()) == []
    assert records.read_bytes() == before


@pytest.fixture(scope="module")
def small() -> Case:
    """An artifact whose page is drawn at once."""
    prompts = [make_prompt(f"{k}", (k / 100, "yes", True), (0.9, "no", False)) for k in range(50)]
    return make_case(prompts, features="1")


def test_write_report_overwrites_reports_only(small: Case, facts: Case, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, artifact=small.artifact, evaluation=small.evaluation, sources=Sources("first"))
    first = path.read_text()
    write_report(path, artifact=small.artifact, evaluation=small.evaluation, sources=Sources("second"))
    second = path.read_text()
    assert "What first promises" in first
    assert "What second promises" in second
    for content in ("", "<!DOCTYPE html><html></html>", '{"id": "a record"}', first[1024:]):
        path.write_text(content)
        # Before anything is drawn, which would fail for the evaluation of another artifact.
        with pytest.raises(InputError, match="exists and is not a report; it will not be overwritten"):
            write_report(path, artifact=small.artifact, evaluation=facts.evaluation)
        assert path.read_text() == content


def test_write_report_keeps_the_old_page_on_failure(small: Case, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, artifact=small.artifact, evaluation=small.evaluation)
    before = path.read_bytes()
    with pytest.raises(InputError, match="another artifact"):
        write_report(path, small.artifact, small.evaluation.model_copy(update={"artifact_digest": ""}))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
