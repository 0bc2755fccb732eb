"""Methods that keep claims: ours, and the published rules by hand; what is about answers refuses claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_lab import compare, plan_bot, plan_calibration, suggest, suggest_draws
from langchain_cfc_lab.methods import Method, Pool, Split, get_methods
from langchain_cfc_lab.metrics import CLAIMS_FIGURES, Outcomes, compute_claims_figures

from langchain_cfc import evaluate
from langchain_cfc.calibration import calibrate
from langchain_cfc.errors import InputError
from langchain_cfc.records import Claim, ClaimsRecord, Provenance, tabulate, write_records
from langchain_cfc.set_rules import Claims
from tests.claims.worlds import make_answers
from tests.cli.running import run
from tests.factories import make_artifact

# The most confident unsupported claim of four calibration answers of each topic.
MISTAKES = {"a": (0.2, 0.4, 0.6, 0.8), "b": (0.1, 0.3, 0.5, 0.7)}
NEW = (0.35, 0.5, 0.65, 0.75, 0.85)
TESTED = 20


def make_record(name: str, topic: str, unsupported: tuple[float, ...]) -> ClaimsRecord:
    claims = [Claim(text="?", score=1.0 - one, supported=False) for one in unsupported]
    return ClaimsRecord(
        id=name,
        input=name,
        metadata={"topic": topic},
        claims=(Claim(text="sure", score=0.0, supported=True), *claims),
    )


def make_split(set_rule: str = "claims(0)") -> Split:
    """Two answers without a mistake that fit the groups, eight that calibrate, and twenty new ones."""
    records = [make_record(f"fit {topic}", topic, ()) for topic in MISTAKES]
    for topic, mistakes in MISTAKES.items():
        # A second, less confident mistake, which counts where one may be left.
        records += [make_record(f"{topic} {one}", topic, (one, one - 0.05)) for one in mistakes]
    records += [make_record(f"new {row}", "ab"[row % 2], NEW) for row in range(TESTED)]
    pool = Pool(tabulate(records, claims=True))
    return Split(pool, np.arange(2), np.arange(2, 10), np.arange(10, 10 + TESTED), "group(topic)", set_rule)


def list_kept(split: Split, name: str, alpha: str) -> list[list[float]]:
    """The confidences below 1 that a method keeps of each new answer."""
    (method,) = get_methods([name], "claims")
    made = method.make_sets(split, alpha)
    scores = split.test_candidates.scores
    return [
        [round(1.0 - float(score), 2) for score in scores[row, 1:][made.sets.accepted[row, 1:]]]
        for row in range(TESTED)
    ]


def keep_above(threshold: float) -> list[float]:
    return [one for one in NEW if one > threshold]


def test_back_off_for_claims_equals_a_calculation_by_hand() -> None:
    # Ten answers, of which two have no mistake: 0, 0, .1, ..., .8. Of rank ceil(11 * 0.7) = 8 is 0.6.
    assert list_kept(make_split(), "back-off", "0.3") == [keep_above(0.6)] * TESTED
    # One mistake may be left: 0, 0, .05, ..., .75; of rank 8 is 0.55.
    assert list_kept(make_split("claims(1)"), "back-off", "0.3") == [keep_above(0.55)] * TESTED
    # floor(11 * 0.05) = 0: no threshold is high enough.
    assert list_kept(make_split(), "back-off", "0.05") == [[]] * TESTED


def test_randomised_claims_thresholds_equal_a_calculation_by_hand() -> None:
    # Between the third and the fourth: a claim there is kept if (1 + U) / 5 <= 0.3, that is, U <= 1 / 2.
    split = make_split()
    low = split.uniforms < 0.5
    assert 4 < low.sum() < 16
    expected = [keep_above(MISTAKES["ab"[row % 2]][2 if low[row] else 3]) for row in range(TESTED)]
    assert list_kept(split, "conditional-back-off", "0.3") == expected


def test_marginal_claims_method_equals_calibrate_and_evaluate() -> None:
    records = make_answers(np.random.default_rng(1), 400)
    table = tabulate(records, claims=True)
    rows = np.arange(400)
    split = Split(Pool(table), rows[:0], rows[:200], rows[200:], "1", "claims(2)")
    artifact = calibrate(records[:200], unit="claims", at_most=2, alpha=0.2, features="1")
    served = evaluate(artifact, records[200:]).methods["conditional"]
    made = [one.make_sets(split, "0.2") for one in get_methods(["back-off", "marginal"], "claims")]
    seen = Outcomes.from_outputs(made, split.test_correct, Claims(2))
    figures = compute_claims_figures(seen)
    assert served.claims is not None
    assert seen.kept.mean(axis=1).tolist() == [served.kept_promise] * 2
    assert figures["claims_kept"].tolist() == pytest.approx([served.claims.kept] * 2)
    assert figures["unsupported_kept"].tolist() == pytest.approx([served.claims.unsupported_kept] * 2)


def test_claims_methods_never_keep_padding() -> None:
    table = tabulate(make_answers(np.random.default_rng(2), 200), claims=True)
    rows = np.arange(200)
    split = Split(Pool(table), rows[:40], rows[40:120], rows[120:], "hat(mean_score, 3)", "claims(0)")
    methods: tuple[Method, ...] = get_methods(unit="claims")
    assert [one.name for one in methods[-2:]] == ["back-off", "conditional-back-off"]
    for method in methods:
        accepted = method.make_sets(split, "0.3").sets.accepted
        assert accepted.any()
        assert not (accepted & ~split.test_candidates.is_drawn).any()


def test_compare_claims_reports_figures_and_groups() -> None:
    records = make_answers(np.random.default_rng(3), 300)
    found = compare(
        records, alpha=0.2, unit="claims", at_most=1, features="group(tier)", groups="group(tier)", splits=4
    )
    assert found.set_rule == "claims(1)"
    for method in found.methods.values():
        assert list(method.figures) == list(CLAIMS_FIGURES)
        assert method.figures["mean_set_size"].mean > 0.5
    hard = {
        name: next(group for group in one.groups if "hard" in group.name).kept_promise
        for name, one in found.methods.items()
    }
    assert hard["back-off"] < 0.7 < min(hard["conditional"], hard["conditional-back-off"])
    assert found.model_dump(mode="json")["unit"] == "claims"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "hold the claims of one answer each"),
        ({"unit": "claims", "methods": "paper"}, "known are ours and outside"),
        ({"unit": "claims", "methods": "conditional:rank"}, "known are ours and outside"),
        ({"unit": "claims", "set_rule": "rank"}, "several answers to a prompt"),
        ({"unit": "claims", "draws": "fixed(1)"}, "several answers to a prompt"),
        ({"at_most": 1}, "it counts unsupported claims"),
    ],
)
def test_compare_claims_refuses_options_for_answers(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        compare(make_answers(np.random.default_rng(5), 60), **{"alpha": 0.2, "splits": 1, **options})  # type: ignore[arg-type]


def test_compare_claims_command_prints_table_and_json(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, make_answers(np.random.default_rng(6), 200), Provenance(n=1, unit="claims"))
    options = ["compare", str(path), "--unit", "claims", "--splits", "2", "--jobs", "1"]
    shown = run(*options, "--alpha", "0.2", "--alpha", "0.3")
    assert shown.code == 0, shown.err
    lines = (shown.out + shown.err).splitlines()
    assert max(len(one) for one in lines if not one.startswith("langchain-cfc calibrate")) <= 80
    assert "conditional-back-off" in shown.out
    assert "claims kept" in shown.out
    shown = run(*options, "--metric", "selective_accuracy")
    assert shown.code == 2
    assert "claims_kept" in shown.err
    data = run(*options, "--alpha", "0.2", "--json").data
    assert data["unit"] == "claims"


@pytest.mark.parametrize(
    "use",
    [
        tabulate,
        lambda records: suggest(records, alpha=0.2),
        lambda records: suggest_draws(records, alpha=0.2),
        lambda records: plan_calibration(tabulate(records, claims=True), alpha=0.2),
        lambda records: plan_bot(tabulate(records, claims=True), max_wrong_rate="0.1"),
        lambda records: evaluate(make_artifact(), records),
    ],
)
def test_functions_about_several_answers_refuse_claims(
    use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="claims"):
        use(make_answers(np.random.default_rng(13), 60))
    assert list(tmp_path.iterdir()) == []
