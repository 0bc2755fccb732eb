from __future__ import annotations

import math

import numpy as np
import pytest
from langchain_cfc_lab.compare import compare
from langchain_cfc_lab.metrics import make_groups, make_property_groups

from integrations.lab.tests.comparison.worlds import draw_world, make_comparison
from langchain_cfc.candidates import CandidateBatch, Scalar
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap, precompute_statistics
from langchain_cfc.features.statistics import STATISTICS


def make_described_prompts(metadata: list[dict[str, Scalar]]) -> CandidateBatch:
    """Prompts that differ in metadata alone."""
    return precompute_statistics(CandidateBatch.from_arrays([[0.5, 0.25]] * len(metadata), None, metadata))


@pytest.mark.parametrize(
    "text", ["bins(mean_score, 5)", "bins(entropy, 3)", "group(topic)", "hard(entropy, max_score, 0.8)"]
)
def test_make_groups_divides_prompts_as_the_features_do(text: str) -> None:
    draws = precompute_statistics(draw_world(1, 300).draws)
    some = draws.take(np.arange(0, 300, 3))
    groups = make_groups(text, some, draws)
    assert np.array_equal(groups.member, FeatureMap.parse(text).fit(some).transform(draws))
    assert (groups.member.sum(axis=1) == 1.0).all()
    assert len(groups.names) == len(groups.words) == len(set(groups.names)) == groups.member.shape[1]
    assert len(set(groups.words)) == len(groups.words)
    # The same names and words wherever the cut-offs were learned.
    other = make_groups(text, draws.take(np.arange(1, 300, 3)), draws)
    assert (other.names, other.words) == (groups.names, groups.words)
    if text.startswith(("bins(mean", "hard(")):  # entropies take few values
        assert not np.array_equal(other.member, groups.member)


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "mean_score",
        "mean_score^2",
        "hat(mean_score, 5)",
        "group(topic) + 1",
        "bins(mean_score, 2) + group(topic)",
    ],
)
def test_make_groups_refuses_terms_that_do_not_divide_prompts(text: str) -> None:
    draws = draw_world(3, 60).draws
    with pytest.raises(InputError, match="groups must be one term that splits prompts") as caught:
        make_groups(text, draws, draws)
    assert repr(text) in str(caught.value)
    with pytest.raises(InputError, match="groups must be one term"):
        compare(draw_world(3, 60), groups=text, splits=1, methods=["marginal"])


def test_hard_groups_are_cut_on_development_prompts_and_bins_on_all() -> None:
    labelled = draw_world(4, 300)
    for text in ("hard(max_score, 0.8)", "bins(max_score, 3)"):
        comparison = make_comparison(labelled, ["marginal"], group_text=text)
        draws, told_apart = comparison.pool.draws, 0
        for number in range(6):
            rows = comparison.make_plan(number).list_rows(comparison.pool.labelled)
            development = np.sort(np.concatenate([rows["fit"], rows["calibration"]]))
            by_part = {
                name: make_groups(text, fitted_on, draws).take(rows["test"]).sizes.tolist()
                for name, fitted_on in (("development", draws.take(development)), ("all", draws))
            }
            found = comparison.measure_split(number).group_sizes.tolist()
            assert found == by_part["development" if text.startswith("hard") else "all"]
            told_apart += by_part["development"] != by_part["all"]
        assert told_apart > 1


# Properties ------------------------------------------------------------------------------------------------


def test_property_groups_are_bins_of_statistics_and_categories() -> None:
    draws = precompute_statistics(draw_world(5, 300).draws)
    texts = [groups.text for groups in make_property_groups(draws)]
    assert texts == [f"bins({name}, 5)" for name in STATISTICS if f"bins({name}, 5)" in texts] + [
        "group(topic)",
        "group(even)",
    ]
    # Statistics that almost never vary are left out, the others are not.
    for name in STATISTICS:
        values = np.sort(draws.precomputed[name])
        varies = len({*values[[60, 120, 180, 240]].tolist()} - {values[0]}) > 0
        assert (f"bins({name}, 5)" in texts) == varies
    assert make_property_groups(draw_world(5, 300).draws)[0].text == "group(topic)"  # nothing measured


@pytest.mark.parametrize(
    "key",
    [
        "plain",
        "two words",
        'a "quote"',
        "a'b",
        "(paren)",
        "comma, too",
        "schön",
        "日本",
        "",
        "a\\b",
        "2020",
        "tab\t",
        "line\nbreak",
        "=",
        "true",
    ],
)
def test_property_groups_accept_any_key_and_category(key: str) -> None:
    values = ['with "quotes"', "schön", "a, b)", "", "日本", "true"]
    draws = make_described_prompts([{key: value} for value in values * 3])
    (groups,) = make_property_groups(draws)
    assert groups.sizes.tolist() == [3.0] * len(values)
    assert len(set(groups.words)) == len(set(groups.names)) == len(values)
    again = make_groups(groups.text, draws, draws)
    assert np.array_equal(again.member, groups.member)


def test_gap_names_the_worst_group_over_all_splits() -> None:
    labelled = draw_world(6, 400, 4, hopeless=(0.0, 0.2, 0.6))
    report = compare(labelled, alpha="0.3", methods=["ICP", "back-off"], groups="group(topic)", splits=6)
    for method in report.methods.values():
        worst = min(method.groups, key=lambda group: group.kept_promise)
        gap = method.gaps["group(topic)"]
        assert gap.group == worst.words
        assert gap.shortfall.mean == pytest.approx(0.7 - worst.kept_promise, abs=1e-12)
        assert gap.shortfall.splits == 6
        assert {"mean_score", "entropy", "group(topic)", "group(even)"} <= set(method.gaps)
        assert not any(math.isnan(one.shortfall.mean) for one in method.gaps.values())
    assert report.methods["ICP"].gaps["group(topic)"].group == "prompts whose topic is 'maths'"
