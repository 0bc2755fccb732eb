"""The paper's protocol on recorded candidates: what is run, what is compared, and what is said of it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from langchain_cfc_lab import STUDIES, StudyName, StudyReport, list_published_cells, reproduce_study
from langchain_cfc_lab.studies import _find_patterns

from langchain_cfc import read_records
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.records import tabulate
from tests.cli.running import run

RECORDING = Path(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz"))
LEVELS = ("0.25", "0.4")


@pytest.fixture(scope="module")
def table() -> LabelledBatch:
    return tabulate(read_records(RECORDING))


@pytest.fixture(scope="module")
def trivia(table: LabelledBatch) -> StudyReport:
    return reproduce_study("triviaqa", table, alpha=LEVELS, splits=2)


def test_reproduce_study_follows_the_protocol_of_the_paper(trivia: StudyReport) -> None:
    comparison = trivia.comparison
    assert comparison.features == comparison.groups == "hard(entropy, max_score, 0.925)"
    assert [group.words for group in comparison.methods["ICP"].groups] == ["easy prompts", "hard prompts"]
    assert {"TopK", "ICP", "Learnt CP", "CFC", "CFC-FULL", "CFC-PAC", "CFC-PAC-FULL"} <= set(
        comparison.methods
    )
    assert [one.name for one in trivia.ablations] == ["hard-group", "entropy-linear", "max-loss-linear"]


def test_reproduce_study_cuts_budgets_to_what_was_recorded(table: LabelledBatch) -> None:
    found = reproduce_study("gsm8k", table, alpha=LEVELS, splits=1)
    assert [one.level.n_candidates for one in found.ablations] == [5, 10]
    assert found.comparison.n_candidates == 5
    assert any("The ablation with 20 candidates uses the 10" in note for note in found.notes)


def test_reproduce_study_refuses_too_few_candidates(table: LabelledBatch) -> None:
    with pytest.raises(InputError, match="needs 5 candidates a prompt, and 4 are recorded"):
        reproduce_study("gsm8k", table.keep_first_candidates(4))


@pytest.mark.parametrize("name", STUDIES)
def test_patterns_are_counted_at_levels_within_reach_only(name: StudyName, trivia: StudyReport) -> None:
    sweep = trivia.comparison.sweep
    found = _find_patterns(list_published_cells(name), sweep)
    assert {pattern.published[1] for pattern in found} == {len(STUDIES[name].alphas)}
    assert {pattern.here[1] for pattern in found} == {2}
    out = [level.model_copy(update={"attainable_coverage": 0.1}) for level in sweep]
    assert {pattern.here for pattern in _find_patterns(list_published_cells(name), out)} == {(0, 0)}


def test_patterns_equal_those_of_the_published_tables(trivia: StudyReport) -> None:
    by_statement = {pattern.statement: pattern for pattern in trivia.patterns}
    cut = by_statement["cutting sets after calibration costs coverage (CFC below CFC-FULL; by construction)"]
    published = {
        (cell.alpha, cell.method): float(cell.mean)
        for cell in list_published_cells("triviaqa")
        if cell.metric == "ECR"
    }
    alphas = STUDIES["triviaqa"].alphas
    in_paper = sum(published[alpha, "CFC"] < published[alpha, "CFC-FULL"] for alpha in alphas)
    assert cut.published == (in_paper, len(alphas))
    here = sum(
        level.methods["CFC"].coverage < level.methods["CFC-FULL"].coverage
        for level in trivia.comparison.sweep
    )
    assert cut.here == (here, 2)


def test_conditional_sets_are_larger_on_the_shipped_recording(trivia: StudyReport) -> None:
    """In distinct answers, though they cover no more prompts."""
    for level in trivia.comparison.sweep:
        sizes = [level.methods[name].figures["mean_distinct_answers"].mean for name in ("CFC-FULL", "ICP")]
        assert sizes[0] > sizes[1] + 0.5
        assert level.methods["CFC-FULL"].coverage <= level.methods["ICP"].coverage + 0.01


def test_paper_command_prints_tables_patterns_and_ablations() -> None:
    ran = run("paper", "triviaqa", RECORDING, "--alpha", "0.3", "--splits", "1", "--jobs", "1")
    assert ran.code == 0, ran.err
    said = " ".join(ran.out.split())
    for needed in ("CFC-PAC-FULL", "Ablation", "6 of 6", "linear in entropy", "compare patterns"):
        assert needed in said, needed
    assert max(map(len, ran.out.splitlines())) <= 80
    assert run("paper", "gsm8k", "nowhere.jsonl").code == 2
