"""`suggest_draws`: draw rules side by side, on prompts that never calibrate."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_lab import DrawSuggestion, list_draw_rules, suggest_draws

from langchain_cfc import calibrate, evaluate, write_records
from langchain_cfc.demo import load_recording
from langchain_cfc.draw_rules import parse_draw_rule
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.verifiers import SelfConsistency
from tests.cli.running import run
from tests.recordings import list_facts

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")
RULES = ["lead(1, at_most=10)", "below(0.5, at_most=10)", "fixed(5)"]


@pytest.fixture(scope="module")
def found() -> DrawSuggestion:
    return suggest_draws(
        load_recording(), alpha=0.2, features="1", rules=RULES, splits=2, cost_per_candidate=0.002
    )


def test_suggest_draws_chooses_the_cheapest_rule_within_three_points(found: DrawSuggestion) -> None:
    by_rule = {one.rule: one for one in found.rules}
    assert list(by_rule) == ["lead(1, at_most=10)", "fixed(5)", "below(0.5, at_most=10)", "fixed(10)"]
    assert by_rule["fixed(10)"].mean_draws == 10.0
    assert by_rule["lead(1, at_most=10)"].mean_draws == 1.0
    for one in found.rules:
        assert one.cost == pytest.approx(1000 * one.mean_draws * 0.002)
        assert one.not_certifiable_rate is not None
        assert one.kept_promise == pytest.approx(one.usefulness + one.not_certifiable_rate)
    # What is proposed is the cheapest rule that loses at most three points.
    most = by_rule["fixed(10)"].usefulness
    assert found.chosen == "below(0.5, at_most=10)"
    assert by_rule[found.chosen].usefulness >= most - found.most_lost
    assert by_rule["fixed(5)"].usefulness < most - found.most_lost


def test_suggest_draws_uses_the_fit_split_alone(found: DrawSuggestion) -> None:
    # The figures are those of the fit split alone: other calibration prompts change none of them.
    table, provenance = tabulate(load_recording()), load_recording().provenance
    artifact = calibrate(
        table, alpha=0.2, features="1", draws=found.chosen, seed=0, fit_fraction=0.3, provenance=provenance
    )
    split = artifact.calibration.split
    fit = np.array([split.find_part(*one) == "fit" for one in zip(table.ids, table.clusters, strict=True)])
    assert fit.sum() == found.prompts == artifact.calibration.fit_size
    options: dict[str, Any] = {
        "alpha": 0.2,
        "features": "1",
        "rules": RULES,
        "splits": 2,
        "provenance": provenance,
    }
    spoiled = replace(table, correct=table.correct & fit[:, np.newaxis])
    assert suggest_draws(spoiled, cost_per_candidate=0.002, **options) == found
    # The control: labels of the fit split do change them.
    other = suggest_draws(replace(table, correct=np.ones_like(table.correct)), **options)
    assert [one.coverage for one in other.rules] != [one.coverage for one in found.rules]


@pytest.fixture(scope="module")
def for_bot() -> DrawSuggestion:
    return suggest_draws(load_recording(), max_wrong_rate=0.1, rules=RULES, fit_fraction=0.5)


def test_suggest_draws_for_a_bot_expects_what_calibrate_certifies(for_bot: DrawSuggestion) -> None:
    # Each figure is an estimate from the fit split of what the calibration split certifies. Two shares of
    # about 610 prompts differ by at most four standard deviations of 2.8 points.
    for one in for_bot.rules:
        artifact = calibrate(load_recording(), max_wrong_rate=0.1, draws=one.rule, fit_fraction=0.5)
        certificate = artifact.certified_bot.certificates[0]
        assert one.answered_rate == pytest.approx(
            certificate.groups[0].answered / certificate.prompts, abs=0.12
        )
        assert (one.coverage, one.kept_promise, one.mean_answers) == (None, None, None)
        assert 0.0 < (one.wrong_rate or 0.0) < 0.1
    # The control: without a rate to keep, a bot answers every question.
    assert max(one.answered_rate for one in for_bot.rules) < 0.8
    assert (for_bot.alpha, for_bot.max_wrong_rate, for_bot.splits) == (None, "0.1", 0)


def test_suggest_for_a_bot_prints_no_word_of_answer_sets(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    write_records(records, list_facts()[::2], load_recording().provenance)
    shown = run("suggest", records, "--max-wrong-rate", "0.1")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    (command,) = (line for line in lines[:4] if line.startswith("langchain-cfc "))
    assert max(len(line) for line in lines if line != command) <= 80
    assert "--max-wrong-rate 0.1" in command
    assert not re.search(r"alpha|\bsets?\b|threshold|covered|flagged|hat\(|features|gap", shown.out)
    run("suggest", records, "--max-wrong-rate", "0.1", "--features", "1").assert_refused("answer sets")
    run("suggest", records, "--max-wrong-rate", "0.1", "--alpha", "0.1").assert_refused("without alpha")
    assert run("suggest", records, "--max-wrong-rate", "0.0001").code == 1


def test_list_draw_rules_suits_the_verifier() -> None:
    table = tabulate(load_recording())
    separate = list_draw_rules(table, load_recording().provenance)
    assert 10 <= len(separate) <= 14
    assert all(parse_draw_rule(one).text == one and parse_draw_rule(one).at_most <= 10 for one in separate)
    assert any(one.startswith("below") for one in separate)
    votes = Provenance(n=10, verifier=dict(SelfConsistency().fingerprint))
    assert not any(one.startswith("below") for one in list_draw_rules(table, votes))


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"rules": ["lead(3, at_most=20)"]}, InputError, "may draw more than the 10"),
        ({"rules": ["never()"]}, InputError, "never"),
        ({"splits": 1}, InputError, "splits"),
        ({"fit_fraction": 0.0}, InputError, "fit_fraction"),
        ({"cost_per_candidate": -1.0}, InputError, "cost_per_candidate"),
        ({"provenance": Provenance(n=10)}, InputError, "separate_scores"),
        ({"provenance": Provenance(n=10, separate_scores=False)}, InputError, "compares the candidates"),
        ({"fit_fraction": 1e-6}, CalibrationError, "no prompts to select on"),
    ],
)
def test_suggest_draws_refuses_invalid_options(
    options: dict[str, Any], error: type[Exception], problem: str
) -> None:
    records: Any = list_facts() if "provenance" in options else load_recording()
    with pytest.raises(error, match=problem):
        suggest_draws(records, **{"alpha": 0.2, "rules": RULES, "splits": 2, **options})


@pytest.mark.long
def test_suggest_draws_command_prints_table_and_json(tmp_path: Path) -> None:
    records, out = tmp_path / "records.jsonl", tmp_path / "artifact.json"
    write_records(records, list_facts()[::3], load_recording().provenance)
    options = ["--draws", "--alpha", "0.2", "--splits", "2", "--jobs", "1", "--cost-per-candidate", "0.01"]
    shown = run("suggest", records, *options)
    assert shown.code == 0, shown.err
    assert "saves" in shown.out
    lines = shown.out.splitlines()
    (command,) = (line for line in lines[:4] if line.startswith("langchain-cfc "))
    assert max(len(line) for line in lines if line != command) <= 80
    arguments = command.replace("'", "").split(" ", 3)[:3]
    assert arguments == ["langchain-cfc", "calibrate", str(records)]
    data = run("suggest", records, *options, "--json").data
    made = calibrate(load_recording(), alpha=0.2, draws=data["chosen"], fit_fraction=0.3, test_fraction=0.2)
    made.save(out)
    assert evaluate(made, load_recording()).mean_draws is not None
