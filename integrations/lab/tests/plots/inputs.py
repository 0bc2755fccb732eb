"""Reports to draw: a real comparison and a real evaluation, under other names where a test needs them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import cycle, pairwise

from langchain_cfc_lab import compare, get_methods
from langchain_cfc_lab.comparison_report import ComparisonReport, Histogram, LevelComparison, MethodComparison

from integrations.lab.tests.comparison.worlds import draw_world
from langchain_cfc import calibrate, evaluate
from langchain_cfc.evaluation import EvaluationReport

TWELVE = [one.name for one in get_methods()][:12]
ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
HISTOGRAM = Histogram(edges=[0.0, 0.25, 0.5, 1.0], correct=[5, 2, 0], wrong=[1, 3, 9])
WORLD = draw_world(1, 240, hopeless=(0.0, 0.0, 0.0))


def make_bin_words(count: int) -> list[str]:
    """Bins of a mean score, as a feature map puts them."""
    cuts = [f"{(place + 1) / (count + 1) + 0.0001234:.12g}" for place in range(count - 1)]
    inner = [f"lies in [{low}, {high})" for low, high in pairwise(cuts)]
    return [
        f"prompts whose mean score {place}"
        for place in (f"is below {cuts[0]}", *inner, f"is at least {cuts[-1]}")
    ]


@cache
def make_comparison() -> ComparisonReport:
    """Compare three methods at three levels, not in order, as someone may have asked for them."""
    methods, groups = ["conditional", "TopK", "CFC"], "bins(mean_score, 3)"
    return compare(
        WORLD, alpha=(0.2, 0.05, 0.1), methods=methods, features="group(topic)", groups=groups, splits=3
    )


@cache
def make_evaluation() -> EvaluationReport:
    """Evaluate an artifact for three groups of scores."""
    return evaluate(calibrate(WORLD, alpha=0.2, features="bins(mean_score, 3)", test_fraction=0.4), WORLD)


def rename(one: MethodComparison, words: Sequence[str]) -> MethodComparison:
    """Give a method as many groups as there are words for, repeating its own."""
    groups = [
        group.model_copy(update={"name": f"group {place}", "words": text})
        for place, (text, group) in enumerate(zip(words, cycle(one.groups), strict=False))
    ]
    return one.model_copy(update={"groups": groups})


def make_level(names: Sequence[str], words: Sequence[str], alpha: float = 0.1) -> LevelComparison:
    """Make a level of methods with these names; those that start with `TopK` have no thresholds."""
    report = make_comparison()
    kinds = ("TopK" if name.startswith("TopK") else "CFC" for name in names)
    methods = {name: rename(report.methods[kind], words) for name, kind in zip(names, kinds, strict=True)}
    return report.model_copy(update={"alpha": alpha, "target_coverage": 1.0 - alpha, "methods": methods})
