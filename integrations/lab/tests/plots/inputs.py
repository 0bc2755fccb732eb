"""Small reports to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from langchain_cfc_lab import get_methods
from langchain_cfc_lab.comparison_report import (
    ComparisonReport,
    DataFacts,
    GroupComparison,
    Histogram,
    LevelComparison,
    MethodComparison,
    Spread,
)

from langchain_cfc.evaluation import EvaluationReport, GroupReport, MethodReport
from langchain_cfc.support.curves import RiskCurve

TWELVE = [one.name for one in get_methods()][:12]
ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
HISTOGRAM = Histogram(edges=[0.0, 0.25, 0.5, 1.0], correct=[5, 2, 0], wrong=[1, 3, 9])
_DIGEST = "0" * 64


def make_spread(mean: float, sd: float = 0.01) -> Spread:
    return Spread(mean=mean, sd=sd, interval=(mean - 2 * sd, mean + 2 * sd), splits=100)


def make_bin_words(count: int) -> list[str]:
    """Bins of a mean score, as a feature map puts them."""
    cuts = [f"{(place + 1) / (count + 1) + 0.0001234:.12g}" for place in range(count - 1)]
    inner = [f"lies in [{low}, {high})" for low, high in pairwise(cuts)]
    return [
        f"prompts whose mean score {place}"
        for place in (f"is below {cuts[0]}", *inner, f"is at least {cuts[-1]}")
    ]


def make_group(place: int, words: str, kept: float, threshold: float | None) -> GroupComparison:
    coverage = kept - 0.02
    figures = {"kept_promise": make_spread(kept, 0.012), "coverage": make_spread(coverage, 0.015)}
    if threshold is not None:
        figures["threshold"] = make_spread(threshold, 0.03)
    return GroupComparison(
        name=f"group {place}",
        words=words,
        n=100.0,
        coverage=coverage,
        kept_promise=kept,
        kept_promise_ci=(kept - 0.024, kept + 0.024),
        not_certifiable_rate=0.02,
        mean_set_size=3.0,
        figures=figures,
    )


def make_method(
    alpha: float,
    words: Sequence[str] = (),
    shift: float = 0.0,
    *,
    thresholds: bool = True,
    without: Sequence[str] = (),
) -> MethodComparison:
    """A method that falls short more on harder groups; `shift` is the share of that shortfall removed."""
    target = 1.0 - alpha
    groups = []
    for place, text in enumerate(words):
        hardness = place / max(len(words) - 1, 1) - 0.5
        kept = target - (1.0 - shift) * alpha * hardness
        threshold = 0.2 + 0.5 * (shift * (hardness + 0.5) + 0.3) if thresholds else None
        groups.append(make_group(place, text, kept, threshold))
    figures = {
        "kept_promise": make_spread(target + 0.01 * shift),
        "coverage": make_spread(target - 0.02, 0.015),
        "worst_group_coverage": make_spread(target - alpha * (1.0 - 0.8 * shift), 0.02),
        "mean_set_size": make_spread(4.0 + 6.0 * (1 - alpha) + shift, 0.3),
        "mean_distinct_answers": make_spread(1.0 + 3.0 * (1 - alpha) + shift, 0.2),
        "selective_accuracy": make_spread(0.7 + 0.5 * alpha + 0.1 * shift),
    }
    return MethodComparison(
        family="ours",
        words="a method",
        promise="something",
        coverage=target - 0.02,
        coverage_ci=(target - 0.05, target + 0.01),
        kept_promise=target,
        kept_promise_ci=(target - 0.03, target + 0.03),
        not_certifiable_rate=0.02,
        abstention_rate=0.02 + alpha * (1.0 - 0.3 * shift),
        mean_set_size=3.0,
        mean_distinct_answers=2.0,
        groups=groups,
        figures={name: figure for name, figure in figures.items() if name not in without},
        gaps={},
    )


def make_level(methods: Mapping[str, MethodComparison], alpha: float = 0.1) -> LevelComparison:
    return LevelComparison(
        alpha=alpha,
        target_coverage=1.0 - alpha,
        n_calibration=1000,
        n_test=500,
        n_candidates=20,
        attainable_coverage=0.97,
        methods=dict(methods),
    )


def make_level_of(names: Sequence[str], words: Sequence[str] = (), alpha: float = 0.1) -> LevelComparison:
    """Methods with growing `shift`; those that start with `TopK` have no thresholds."""
    last = max(len(names) - 1, 1)
    return make_level(
        {
            name: make_method(alpha, words, place / last, thresholds=not name.startswith("TopK"))
            for place, name in enumerate(names)
        },
        alpha,
    )


def make_comparison(
    sweep: Sequence[LevelComparison], risk: RiskCurve | None = None, scores: Histogram | None = None
) -> ComparisonReport:
    return ComparisonReport(
        **sweep[0].model_dump(),
        splits=100,
        seed="0",
        test_fraction=0.3,
        fit_fraction=0.2,
        features="bins(mean_score, 10)",
        set_rule="all",
        groups="bins(mean_score, 10)",
        data=DataFacts(
            prompts=2000,
            correct_candidates=0.4,
            attainable_coverage=0.97,
            distinct_answers=4.0,
            auroc=0.8,
            scores=scores or HISTOGRAM,
            risk=risk or RiskCurve(answered=[], wrong=[]),
        ),
        sweep=list(sweep),
        notes=[],
    )


def make_evaluation(words: Sequence[str] = (), alpha: float = 0.1) -> EvaluationReport:
    """The evaluation of an artifact, with the same figures under both rules."""
    groups = [
        GroupReport(
            name=f"group {place}",
            words=text,
            n=50.0,
            stated_coverage=1.0 - alpha,
            coverage=0.85 - 0.02 * place,
            kept_promise=0.9 - 0.03 * place,
            kept_promise_ci=(0.8 - 0.03 * place, 0.97 - 0.03 * place),
            not_certifiable_rate=0.05,
            mean_set_size=3.0,
        )
        for place, text in enumerate(words)
    ]
    method = MethodReport(
        stated_coverage=1.0 - alpha,
        coverage=0.85,
        coverage_ci=(0.8, 0.9),
        kept_promise=0.91,
        kept_promise_ci=(0.86, 0.95),
        not_certifiable_rate=0.06,
        not_certifiable_ci=(0.03, 0.1),
        abstention_rate=0.07,
        abstention_ci=(0.04, 0.11),
        mean_set_size=3.0,
        mean_distinct_answers=2.0,
        groups=groups,
    )
    return EvaluationReport(
        alpha=alpha,
        target_coverage=1.0 - alpha,
        n_calibration=1000,
        n_test=500,
        n_candidates=20,
        attainable_coverage=0.97,
        test_prompts="held out",
        artifact_digest=_DIGEST,
        guarantee="conditional",
        contradicted=[],
        methods={"conditional": method, "marginal": method},
    )
