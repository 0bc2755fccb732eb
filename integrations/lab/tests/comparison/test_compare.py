from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_lab import ComparisonReport, compare
from langchain_cfc_lab.methods import OUR_CONVENTION, ThresholdMethod

from integrations.lab.tests.comparison.worlds import (
    count_progress,
    draw_world,
    list_numbers,
    make_comparison,
    make_records,
    shuffle,
    tabulate_facts,
)
from langchain_cfc import PromptRecord, calibrate, evaluate, read_records, write_records
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import CFCError, FeatureError, InputError
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.support.arrays import BoolArray
from tests.calibration.test_draws import make_records as make_voted_records
from tests.guarantees.promises import compute_log_wealth
from tests.lengths import mostly_long

FALSE_ALARM = 1e-6


@pytest.fixture(scope="module")
def report() -> ComparisonReport:
    """Everything there is, on every other prompt of the recording, at the levels of the paper."""
    return compare(tabulate_facts().take(np.arange(0, 1200, 2)), splits=2)


# One split of it is what an artifact does ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")
@mostly_long(
    ("features", "set_rule"),
    [
        ("group(topic)", "all"),
        ("hat(mean_score, 4)", "unique(best_prefix)"),
        ("mean_score^2", "rank"),
        ("bins(max_score, 5)", "best_prefix"),
        ("group(topic) + hat(entropy, 4)", "unique(rank)"),
        ("hard(entropy, max_score, 0.9)", "all"),
    ],
    quick=4,
)
def test_compare_with_one_split_equals_evaluate(features: str, set_rule: str) -> None:
    labelled = tabulate_facts()
    shares: dict[str, Any] = {"test_fraction": 0.4, "fit_fraction": 0.25}
    options: dict[str, Any] = {"alpha": "0.3", "features": features, "set_rule": set_rule, **shares}
    methods = ["conditional", "marginal", "confident", "conditional:rank"]
    found = compare(shuffle(labelled, 1), methods=methods, groups="group(topic)", splits=1, seed=5, **options)
    artifact = calibrate(labelled, seed="5/0", allow_unattainable=True, **options)
    expected = evaluate(artifact, labelled)
    for name in ("alpha", "target_coverage", "n_calibration", "n_test", "n_candidates"):
        assert getattr(found, name) == getattr(expected, name)
    if set_rule == "all":
        assert found.attainable_coverage == pytest.approx(expected.attainable_coverage, abs=1e-12)
    same: dict[str, Any] = {"alpha": "0.3", "seed": "5/0", "allow_unattainable": True, **shares}
    ranked = calibrate(labelled, features=features, set_rule="rank", **same)
    confident = calibrate(labelled, features="1", set_rule=set_rule, delta="0.05", **same)
    by_name = {
        **expected.methods,
        "conditional:rank": evaluate(ranked, labelled).methods["conditional"],
        "confident": evaluate(confident, labelled).methods["conditional"],
    }
    assert list(by_name) == ["conditional", "marginal", "conditional:rank", "confident"]
    for rule, theirs in by_name.items():
        mine = found.methods[rule]
        for name in (
            "coverage",
            "kept_promise",
            "not_certifiable_rate",
            "abstention_rate",
            "mean_set_size",
            "mean_distinct_answers",
        ):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=1e-12), name
        if features == "group(topic)" and rule in expected.methods:
            assert [group.name for group in mine.groups] == [group.name for group in theirs.groups]
            for one, other in zip(mine.groups, theirs.groups, strict=True):
                assert (one.words, one.n) == (other.words, other.n)
                for name in ("coverage", "kept_promise", "not_certifiable_rate", "mean_set_size"):
                    assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-12), name
    # The control: another seed, another split.
    elsewhere = compare(labelled, alpha="0.3", methods=["marginal"], splits=1, seed=6, **shares)
    assert elsewhere.methods["marginal"].coverage != expected.methods["marginal"].coverage


# The same again --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_compare_of_bots_equals_evaluate() -> None:
    labelled = tabulate_facts()
    options: dict[str, Any] = {"features": "group(topic)", "test_fraction": 0.4, "fit_fraction": 0.25}
    found = compare(
        labelled, alpha="0.05", set_rule="best_answer", groups="group(topic)", splits=1, **options
    )
    artifact = calibrate(labelled, max_wrong_of_all="0.05", seed="0/0", **options)
    expected = evaluate(artifact, labelled).methods
    assert list(found.methods) == ["conditional", "marginal", "confident", "learned"]
    for name in ("conditional", "marginal"):
        ours, seen = found.methods[name], expected[name]
        assert ours.kept_promise == pytest.approx(seen.kept_promise)
        assert ours.abstention_rate == pytest.approx(1.0 - seen.mean_set_size)
        assert [one.kept_promise for one in ours.groups] == pytest.approx(
            [one.kept_promise for one in seen.groups]
        )
        assert "coverage" not in ours.figures


def test_compare_depends_on_records_and_seed_alone(tmp_path: Path) -> None:
    labelled = draw_world(1, 240)
    settings: dict[str, Any] = {"alpha": ("0.2", "0.4"), "features": "group(topic) + mean_score", "splits": 2}
    first = compare(labelled, **settings)
    for again in (labelled, shuffle(labelled, 2), shuffle(labelled, 3)):
        assert compare(again, **settings) == first
    records = make_records(labelled)
    from_records = compare(records, **settings)
    assert from_records == compare(iter(records[::-1]), **settings)
    write_records(tmp_path / "records.jsonl", records[100:] + records[:100])
    assert from_records == compare(read_records(tmp_path / "records.jsonl"), **settings)
    other = compare(labelled, seed=1, **settings)
    assert other.seed == "1"
    assert other.methods["marginal"].coverage != first.methods["marginal"].coverage
    assert compare(labelled, seed="0", **settings) == first


def test_compare_uses_one_prompt_of_each_cluster() -> None:
    rng = np.random.default_rng(3)
    names = [None if rng.random() < 0.3 else f"c{rng.integers(0, 50)}" for _ in range(240)]
    labelled = draw_world(3, 240, clusters=names)
    different = len({name for name in names if name is not None}) + names.count(None)
    comparison = make_comparison(labelled, ["marginal"])
    assert len(comparison.pool.labelled) == different
    chosen = [name for name in comparison.pool.labelled.clusters if name is not None]
    assert len(set(chosen)) == len(chosen)
    found = compare(labelled, alpha="0.3", methods=["marginal"], splits=2)
    assert found.data.prompts == different
    assert f"{240 - different} prompts were left out: only one prompt per cluster is used." in found.notes
    assert compare(shuffle(labelled, 1), alpha="0.3", methods=["marginal"], splits=2) == found
    # Another seed chooses others; without clusters all take part, and nothing is said.
    again = make_comparison(labelled, ["marginal"], seed="1")
    assert set(again.pool.labelled.ids) != set(comparison.pool.labelled.ids)
    alone = compare(replace(labelled, clusters=(None,) * 240), alpha="0.3", methods=["marginal"], splits=2)
    assert alone.data.prompts == 240
    assert not any("left out" in note for note in alone.notes)


# The report ------------------------------------------------------------------------------------------------


def test_comparison_report_is_json_with_finite_numbers(report: ComparisonReport) -> None:
    text = report.model_dump_json()
    assert ComparisonReport.model_validate_json(text) == report
    assert ComparisonReport.model_validate_json(text).model_dump_json() == text
    json.loads(text, parse_constant=pytest.fail)
    found = list_numbers(report.model_dump())
    assert len(found) > 35_000
    assert all(math.isfinite(one) for one in found)


def test_compare_leads_with_the_strictest_level_within_reach() -> None:
    for seed, hopeless in (
        (7, (0.0, 0.0, 0.0)),
        (8, (0.0, 0.1, 0.2)),
        (9, (0.5, 0.6, 0.7)),
        (10, (0.9, 0.9, 0.9)),
    ):
        found = compare(
            draw_world(seed, 300, hopeless=hopeless),
            alpha=("0.3", "0.05", "0.5", "0.15", "0.1"),
            methods=["marginal"],
            splits=2,
        )
        assert [level.alpha for level in found.sweep] == [0.3, 0.05, 0.5, 0.15, 0.1]
        within = []
        for level in found.sweep:
            share = level.attainable_coverage
            if 1.0 - level.alpha <= share - 2 * math.sqrt(share * (1 - share) / level.n_calibration) + 1e-12:
                within.append(level.alpha)
        assert found.alpha == min(within, default=0.5)
        out = [
            f"{level.alpha:g}" for level in found.sweep if level.target_coverage > level.attainable_coverage
        ]
        *notes, used = found.notes
        assert "all 300 prompts are behind" in used
        assert len(notes) == bool(out)
        assert not out or notes[0].startswith(f"At alpha = {', '.join(out)} the target is out of reach")


def test_comparison_data_describe_the_prompts() -> None:
    labelled = draw_world(11, 150, 4, decimals=1)
    data = compare(labelled, alpha="0.3", methods=["marginal"], splits=1).data
    scores, correct = labelled.draws.scores, labelled.correct
    assert data.prompts == 150
    assert data.correct_candidates == pytest.approx(correct.mean())
    assert data.attainable_coverage == pytest.approx(correct.any(axis=1).mean())
    codes = labelled.draws.answer_codes
    assert codes is not None
    assert data.distinct_answers == pytest.approx(np.mean([len(set(row)) for row in codes.tolist()]))
    pairs = [
        (right < wrong) + (right == wrong) / 2 for right in scores[correct] for wrong in scores[~correct]
    ]
    assert data.auroc == pytest.approx(float(np.mean(pairs)), abs=1e-9)
    assert sum(data.scores.correct) == correct.sum()
    assert sum(data.scores.wrong) == (~correct).sum()
    assert data.scores.edges[0] == 0.0
    assert data.scores.edges[-1] == 1.0
    # The risk curve: after every group of equal best scores, how many are answered, and how many wrongly.
    best = scores.argmin(axis=1)
    rows = np.arange(150)
    lowest, wrong = scores[rows, best], ~correct[rows, best]
    steps = sorted(set(lowest.tolist()))
    assert data.risk.answered == pytest.approx([(lowest <= step).mean() for step in steps])
    assert data.risk.wrong == pytest.approx([wrong[lowest <= step].mean() for step in steps])


# Odd records -----------------------------------------------------------------------------------------------


def set_labels(labelled: LabelledBatch, correct: BoolArray) -> LabelledBatch:
    return replace(labelled, correct=correct)


def test_compare_accepts_records_with_one_label_only() -> None:
    labelled = draw_world(13)
    everything = compare(set_labels(labelled, np.ones((200, 4), np.bool_)), alpha="0.3", splits=1)
    assert everything.data.auroc is None
    assert everything.data.attainable_coverage == 1.0
    nothing = compare(set_labels(labelled, np.zeros((200, 4), np.bool_)), alpha=("0.1", "0.3"), splits=1)
    assert nothing.alpha == 0.3
    assert nothing.data.auroc is None
    assert "At alpha = 0.1, 0.3 the target is out of reach" in nothing.notes[0]
    for name in ("conditional", "marginal", "confident", "learned"):
        assert nothing.methods[name].not_certifiable_rate == nothing.methods[name].kept_promise == 1.0
        assert "selective_accuracy" not in nothing.methods[name].figures
    assert nothing.methods["CFC-FULL"].coverage == 0.0
    for one in (everything, nothing):
        assert ComparisonReport.model_validate_json(one.model_dump_json()) == one


def test_compare_accepts_equal_scores_for_group_features() -> None:
    labelled = draw_world(14)
    alike = replace(labelled, draws=replace(labelled.draws, scores=np.full((200, 4), 0.5)))
    with pytest.raises(FeatureError, match=r"has only one bin: mean score is 0\.5"):
        compare(alike, splits=2)
    found = compare(alike, features="group(topic)", groups="group(topic)", splits=1, alpha="0.3")
    assert {"mean_score", "max_score"}.isdisjoint(found.methods["marginal"].gaps)
    assert found.data.risk.answered == [1.0]
    scores_only = replace(alike, draws=replace(alike.draws, answer_codes=None, lengths=None))
    blind = compare(scores_only, features="1", groups="group(topic)", splits=1, alpha="0.3")
    assert blind.data.distinct_answers is None
    assert set(blind.methods["marginal"].gaps) == {"group(topic)", "group(even)"}


def make_partly_extracted() -> list[PromptRecord]:
    """Records of which some candidates have an extracted answer and some have none."""
    records = make_records(draw_world(16))
    first = records[0]
    answered = (first.candidates[0].model_copy(update={"answer": "a"}), *first.candidates[1:])
    return [first.model_copy(update={"candidates": answered}), *records[1:]]


@pytest.mark.parametrize(
    "settings",
    [
        {"set_rule": "unique"},
        {"features": "hat(entropy, 3)"},
        {"methods": ["conditional:unique"]},
        {"methods": ["marginal", "learned:unique(rank)"]},
    ],
)
def test_compare_refuses_mixed_extracted_answers_where_they_matter(settings: dict[str, Any]) -> None:
    compare(make_records(draw_world(16)), alpha="0.3", splits=1, **settings)
    with pytest.raises(InputError, match="only some candidates have an extracted `answer`"):
        compare(make_partly_extracted(), alpha="0.3", splits=1, **settings)


# Arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0}, "alpha must be a decimal number strictly between 0 and 1"),
        ({"alpha": math.nan}, "alpha must be a decimal number strictly between 0 and 1.*nan"),
        ({"alpha": ("0.1", "x")}, "alpha must be a decimal number.*'x'"),
        ({"alpha": ()}, "alpha: at least one error level is needed"),
        ({"methods": ["nonsense"]}, "unknown method 'nonsense'"),
        ({"methods": []}, "at least one method is needed"),
        ({"features": "bins(nonsense, 3)"}, "nonsense"),
        ({"features": "group(nonsense)"}, "no metadata 'nonsense'"),
        ({"features": "bins(meta(topic), 3)"}, r"metadata 'topic' of .* is '.*'; meta\(topic\) needs a"),
        ({"groups": "hat(mean_score, 5)"}, "groups must be one term that splits prompts"),
        ({"groups": "group(nonsense)"}, "no metadata 'nonsense'"),
        ({"set_rule": "nonsense"}, "unknown set rule 'nonsense'"),
        ({"set_rule": "best_answer", "methods": ["ours", "ICP"]}, "conditional:best_prefix, .* and ICP"),
        ({"methods": ["conditional:best_answer"]}, "conditional:best_answer would be judged"),
        ({"splits": 0}, "splits must be a whole number of splits, at least 1; got 0"),
        ({"splits": 2.5}, "splits must be a whole number of splits, at least 1; got 2.5"),
        ({"test_fraction": 0.0}, "test_fraction must be a share above 0 and below 1, got 0.0"),
        ({"fit_fraction": 0.0}, "fit_fraction must be a share above 0 and below 1, got 0.0"),
        ({"test_fraction": math.nan}, "test_fraction must be a share above 0 and below 1, got nan"),
    ],
)
def test_compare_refuses_invalid_arguments_before_measuring(changes: dict[str, Any], message: str) -> None:
    seen: list[int] = []
    settings: dict[str, Any] = {"splits": 2, "progress": count_progress(seen)} | changes
    with pytest.raises(InputError, match=message):
        compare(draw_world(18), **settings)
    assert seen == []  # before anything was measured


@pytest.mark.parametrize("size", [1, 2, 3])
def test_compare_refuses_too_few_prompts_and_says_what_to_do(size: int) -> None:
    for features, groups in (("1", "group(topic)"), ("hat(mean_score, 5)", "bins(mean_score, 5)")):
        with pytest.raises(CFCError, match=r"more|at least two different values|take another"):
            compare(draw_world(19, size), features=features, groups=groups, splits=5, alpha="0.3")


# What is promised ------------------------------------------------------------------------------------------
# Independent pools, one split of each. In a split, calibration and test prompts are exchangeable, so that a
# test prompt x has E f(x) (kept - tau) >= 0 for every f that the features span: for the constant, and with
# group(topic) for each topic. A pool gives Z = mean of f (kept - tau) over its test prompts, Z <= 1 - tau, of
# expectation at least 0. A gambler against it has wealth 1e6 with probability 1e-6 at most
# (`compute_log_wealth`); 9 checks hold together with probability 1 - 9e-6, and the seeds are fixed. At
# alpha = 0.1 the target is out of reach, at 0.25 for one topic only: both flags and sets keep promises.
POOLS, SIZE = 160, 260
HOPELESS = (0.0, 0.125, 0.25)
ALPHAS_ASKED = ("0.1", "0.25")
# In this world the best candidate is right so often that it makes up for one threshold on every topic.
MAY_BE_EMPTY = ThresholdMethod(
    "marginal, may be empty",
    "one threshold for all prompts, sets as it makes them",
    "all prompts together",
    "ours",
    rule="marginal",
    convention=replace(OUR_CONVENTION, fills_empty=False),
)


@pytest.fixture(scope="module")
def pools() -> list[ComparisonReport]:
    return [
        compare(
            draw_world(1000 + number, SIZE, 3, hopeless=HOPELESS),
            alpha=ALPHAS_ASKED,
            methods=["conditional", "marginal", MAY_BE_EMPTY, "CFC-FULL", "ICP"],
            features="group(topic)",
            groups="group(topic)",
            splits=1,
            seed=number,
        )
        for number in range(POOLS)
    ]


def compute_gains(pools: list[ComparisonReport], method: str, place: int, group: int | None) -> list[float]:
    """Z of each pool, for all prompts or for one topic."""
    found = []
    for report in pools:
        level = report.sweep[place]
        seen = level.methods[method]
        if group is None:
            found.append(seen.kept_promise - level.target_coverage)
        else:
            one = seen.groups[group]
            found.append(one.n / level.n_test * (one.kept_promise - level.target_coverage))
    return found


def is_alarm(pools: list[ComparisonReport], method: str, place: int, group: int | None) -> bool:
    alpha = float(ALPHAS_ASKED[place])
    return compute_log_wealth(compute_gains(pools, method, place, group), alpha) >= -math.log(FALSE_ALARM)


@pytest.mark.long
def test_our_methods_keep_their_promise_and_those_of_the_paper_do_not(pools: list[ComparisonReport]) -> None:
    for place in range(2):
        assert not is_alarm(pools, "marginal", place, None)
        for group in (None, 0, 1, 2):
            assert not is_alarm(pools, "conditional", place, group)
    # The controls. One threshold for all promises nothing for the hardest topic.
    plain = MAY_BE_EMPTY.name
    assert not is_alarm(pools, plain, 1, None)
    assert is_alarm(pools, plain, 1, 2) or is_alarm(pools, plain, 1, 1)
    # The same thresholds and flags, and never less covered.
    for report in pools:
        filled, empty = (report.sweep[1].methods[name] for name in ("marginal", plain))
        assert filled.not_certifiable_rate == empty.not_certifiable_rate
        assert filled.coverage >= empty.coverage
    # S = 1 covers prompts without a correct candidate by accepting everything.
    assert is_alarm(pools, "CFC-FULL", 0, None)
    assert is_alarm(pools, "CFC-FULL", 0, 2)
    # What is answered at 0.25: neither all nor nothing.
    answered = [1.0 - one.sweep[1].methods["conditional"].abstention_rate for one in pools]
    assert 0.3 < np.mean(answered) < 0.99


RULE = "lead(3, at_most=10)"


def test_compare_with_a_draw_rule_stops_every_method() -> None:
    records = load_recording()
    found = compare(records, alpha=0.2, draws=RULE, splits=1, features="1")
    mean = compare(records, alpha=0.2, draws="fixed(10)", splits=1, features="1")
    for report, least, most in ((found, 5.0, 6.0), (mean, 10.0, 10.0)):
        drawn = [
            one.figures["mean_candidates_drawn"].mean
            for name, one in report.methods.items()
            if name != "sampling"  # a method that stops by its own rule
        ]
        assert all(least <= one <= most for one in drawn)
    assert found.notes[-2].startswith(f"Draw rule {RULE}: 5.2")
    assert "sampling" in found.notes[-1]
    assert "conditional" in found.methods
    assert "sampling" not in found.methods
    # Fewer candidates cover less: padding is no candidate.
    assert found.attainable_coverage < mean.attainable_coverage
    assert found.data.prompts == mean.data.prompts
    assert found.data.scores.wrong != mean.data.scores.wrong
    counted = sum(found.data.scores.wrong) + sum(found.data.scores.correct)
    assert counted / found.data.prompts == pytest.approx(
        float(found.notes[-2].split(": ")[1].split()[0]), abs=0.01
    )


def test_compare_refuses_fewer_candidates_than_the_verifier_compared() -> None:
    votes = Provenance(n=8, verifier={"id": "self-consistency"})
    options: dict[str, Any] = {"alpha": 0.3, "splits": 2, "methods": "marginal", "provenance": votes}
    with pytest.raises(InputError, match="by this rule"):
        compare(make_voted_records(), draws="fixed(3)", **options)
    with pytest.raises(InputError, match="collect that number"):
        compare(tabulate(make_voted_records(), n=3), **options)
