"""Retrieval over a small corpus: its README, its recording, its figures and its claims."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_lab import ComparisonReport
from langchain_cfc_lab.comparison_report import Spread

from examples.tests.running import list_readme_commands
from langchain_cfc import CalibrationArtifact, CFCResult, evaluate
from langchain_cfc.errors import FingerprintError
from langchain_cfc.records import PromptRecord, Records, read_records
from tests.lengths import repetitions
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

pytest.importorskip("bm25s")

pytestmark = pytest.mark.usefixtures("modules_of_example")

EXAMPLE = Path(__file__).parents[2] / "examples" / "rag"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")
SPLITS = repetitions(40, share=0.5)


@pytest.fixture(scope="module")
def shipped() -> Records:
    return read_records(EXAMPLE / "records.jsonl")


@pytest.fixture(scope="module")
def artifact(shipped: Records) -> CalibrationArtifact:
    from rag_calibrate import calibrate_chain

    return calibrate_chain(shipped)


@pytest.fixture(scope="module")
def report(shipped: Records) -> ComparisonReport:
    from rag_calibrate import compare_thresholds

    return compare_thresholds(shipped, SPLITS)


def held_out(artifact: CalibrationArtifact, records: Records) -> list[PromptRecord]:
    split = artifact.calibration.split
    return [record for record in records if split.find_part(record.id, record.cluster) == "test"]


@pytest.fixture(scope="module")
def served(artifact: CalibrationArtifact, shipped: Records) -> list[tuple[PromptRecord, CFCResult]]:
    """What the bot says to each question that was held out."""
    from rag_ask import bot

    chain = bot(artifact)
    return [(record, chain.invoke(record.input)) for record in held_out(artifact, shipped)]


def run_script(*arguments: str | Path, folder: Path | None = None) -> str:
    """Run Python with arguments; it must succeed and print no errors. Return its output."""
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    return ran.stdout


@pytest.mark.long
def test_rag_readme_commands_print_the_quoted_output(tmp_path: Path) -> None:
    printed = []
    for command in list_readme_commands(README):
        program, script, *rest = command.split()
        assert program == ".venv/bin/python"
        # Where the checkout is read from and what is written are two places here.
        printed.append(run_script(EXAMPLE.parents[1] / script, *rest, folder=tmp_path))
    assert len(printed) == 2
    assert (tmp_path / "cfc-demo" / "rag" / "groups.png").stat().st_size > 10_000
    table = re.findall(r"(?:^\|.*\n)+", printed[0], re.MULTILINE)
    assert table
    assert table[0] in README
    aurocs = re.findall(r"AUROC of ([\w ]+): (0\.\d+)", printed[0])
    assert len(aurocs) == 3
    assert all(f"| {name} | {auroc} |" in README for name, auroc in aurocs)
    for example in re.findall(r"```text\n(.*?)```", README, re.DOTALL):
        assert example in printed[1]


def test_rag_recording_matches_the_shipped_questions_and_chain(
    shipped: Records,
) -> None:
    from rag_chain import answer_of, examples, find_topic
    from rag_verifier import Groundedness

    from langchain_cfc.labelers import LabelerInput, NormalisedMatch
    from langchain_cfc.sampling import DrawnCandidate
    from langchain_cfc.sampling.fingerprints import compute_fingerprint

    assert shipped.provenance is not None
    assert shipped.provenance.n == 8
    expected = {one.id: one for one in examples()}
    records = list(shipped)
    assert len(records) == len({record.id for record in records}) > 200
    verifier, labeler = Groundedness(), NormalisedMatch(articles="en")
    assert (shipped.provenance.verifier or {})["groundedness.id"] == verifier.fingerprint["id"]
    assert compute_fingerprint(labeler).items() <= (shipped.provenance.labeler or {}).items()
    for record in records:
        question = expected[record.id]
        assert (record.input, record.reference) == (question.input, question.reference)
        assert record.metadata == find_topic(str(record.input))
        assert record.metadata["topic"] == record.id.partition("-")[0]
        draws = [DrawnCandidate(str(one.text)) for one in record.candidates]
        assert [one.answer for one in record.candidates] == [answer_of(one.text) for one in draws]
        again = verifier(record.input, draws)
        assert [(one.scores or {})["groundedness"] for one in record.candidates] == pytest.approx(again)
        said = [DrawnCandidate(str(one.answer)) for one in record.candidates]
        given = LabelerInput(id=record.id, prompt=record.input, reference=record.reference, candidates=said)
        assert [one.correct for one in record.candidates] == labeler.invoke(given)


def test_rag_served_figures_equal_evaluation(
    artifact: CalibrationArtifact, shipped: Records, served: list[tuple[PromptRecord, CFCResult]]
) -> None:
    kept = []
    for record, result in served:
        assert result.guarantee.binding == "matched"
        correct = {one.answer for one in record.candidates if one.correct}
        kept.append(result.reason == "not_certifiable" or bool(correct & set(result.answers)))
    seen = evaluate(artifact, shipped)
    assert seen.n_test == len(served) > 50
    assert np.mean(kept) == pytest.approx(seen.methods["conditional"].kept_promise)


def test_rag_citations_name_passages_that_contain_the_answer(
    served: list[tuple[PromptRecord, CFCResult]],
) -> None:
    from rag_ask import format_answer
    from rag_retrieval import retriever

    cited = abstained = 0
    for record, result in served:
        question = str(record.input)
        text = format_answer(question, result)
        passages = retriever().invoke(question)
        if result.abstained:
            assert text.startswith("I do not know: ")
            assert "[1]" not in text
            abstained += 1
            continue
        answers, *below = text.splitlines()
        sources = {int(one[3]): one for one in below if re.match(r"  \[\d\] ", one)}
        for said, answer in zip(answers.split(" or "), result.answers, strict=True):
            place = re.fullmatch(re.escape(answer) + r" (?:\[(\d)\]|\(in none of the passages\))", said)
            assert place is not None
            if place[1] is None:
                continue
            passage = passages[int(place[1]) - 1]
            assert (
                sources[int(place[1])]
                == f"  [{place[1]}] {passage.metadata['title']}: {passage.page_content}"
            )
            words = set(re.findall(r"\w+", f"{passage.metadata['title']} {passage.page_content}".lower()))
            assert words & set(re.findall(r"\w+", answer))
            cited += 1
    assert cited > 30
    assert abstained > 3


def test_rag_supports_measures_words_of_the_answer_in_passages() -> None:
    from rag_retrieval import retriever
    from rag_verifier import Groundedness, supports

    from langchain_cfc.sampling import DrawnCandidate

    question = "In which year was neon discovered?"
    passages = retriever().invoke(question)
    assert passages[0].metadata["title"] == "Neon, discovery"
    assert supports(question, "1898", passages)[0] == 1.0
    assert max(supports(question, "1899", passages)) == 0.0
    # Half of the words are there; nothing but the question's own; nothing at all.
    assert 0.0 < max(supports(question, "1898 1899", passages)) < 1.0
    assert max(supports(question, "neon", passages)) == 0.5
    assert max(supports(question, "...", passages)) == 0.0
    assert Groundedness()(question, [DrawnCandidate("1898"), DrawnCandidate("1899"), DrawnCandidate("")]) == [
        0.0,
        1.0,
        1.0,
    ]


def is_short(kept: Spread, report: ComparisonReport) -> bool:
    """Whether less was kept than promised, over random splits of the pool.

    The expectation is at least the target; a mean over splits scatters around it by its standard error, of
    which four are let pass. By chance one of ten means falls below with probability 3e-4, if means are
    normal; the splits are fixed.
    """
    return kept.mean < report.target_coverage - 4 * kept.sd / math.sqrt(report.splits)


def test_rag_conditional_thresholds_keep_a_promise_the_marginal_breaks(
    report: ComparisonReport,
) -> None:
    """Figures of fixed records and splits: what is claimed beside the table is read off it."""
    conditional, marginal = report.methods["conditional"], report.methods["marginal"]

    assert not any(is_short(one.figures["kept_promise"], report) for one in conditional.groups)
    assert not is_short(marginal.figures["kept_promise"], report)
    # The negative control: on a topic one threshold breaks it, and the same check says so.
    assert sum(is_short(one.figures["kept_promise"], report) for one in marginal.groups) == 1
    assert min(group.kept_promise for group in marginal.groups) < 0.2


@pytest.mark.long
def test_rag_works_with_a_model_over_http(
    shipped: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collect, calibrate and ask as with a paid model; a server replays the recording."""
    import rag_ask
    import rag_models
    from rag_calibrate import calibrate_chain
    from rag_chain import messages
    from rag_collect import main

    first = list(shipped)[:9]
    answers = {
        messages(record.input)[-1]["content"]: [
            Answer(str(one.text), math.log(max(1.0 - (one.scores or {})["sequence"], 1e-300)))
            for one in record.candidates
        ]
        for record in shipped
    }
    assert shipped.provenance is not None
    name = str((shipped.provenance.generator or {})["model"])
    with serving(Script(answers, model=name)) as url:
        main(["--base-url", url, "--model", name, "--questions", "9", "--folder", str(tmp_path)])
        collected = read_records(tmp_path / "records.jsonl")
        artifact = calibrate_chain(shipped)
        model, probability = rag_models.live(name, url)
        monkeypatch.setattr(rag_ask, "MODEL", model)
        monkeypatch.setattr(rag_ask, "PROBABILITY", probability)
        asked = held_out(artifact, shipped)[:3]
        live = [rag_ask.bot(artifact).invoke(record.input) for record in asked]
    assert collected.provenance is not None
    stated, found = shipped.provenance.model_dump(), collected.provenance.model_dump()
    for part in ("generator", "verifier"):  # the recording names neither classes nor an address
        assert found.pop(part).items() >= stated.pop(part).items()
    assert found == stated
    for record, expected in zip(collected, first, strict=True):
        assert record.model_copy(update={"candidates": ()}) == expected.model_copy(update={"candidates": ()})
        assert [(one.text, one.correct, one.answer) for one in record.candidates] == [
            (one.text, one.correct, one.answer) for one in expected.candidates
        ]
    monkeypatch.undo()
    replayed = [rag_ask.bot(artifact).invoke(record.input) for record in asked]
    assert [(one.answers, one.reason) for one in live] == [(one.answers, one.reason) for one in replayed]
    # Another model than calibrated is refused before anything is asked.
    monkeypatch.setattr(rag_ask, "MODEL", rag_models.live("another", url)[0])
    with pytest.raises(FingerprintError, match="model"):
        rag_ask.bot(artifact)
