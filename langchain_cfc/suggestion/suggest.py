"""`suggest`: feature map, set rule and verifiers, chosen on prompts that never calibrate.

What is chosen on is the fit split of `calibrate`, by the same seed and shares: its prompts fit feature maps
anyway, and none of them calibrates. So the promise of what is calibrated with a suggestion is as good as that
of what was fixed beforehand: given the fit split, the calibration prompts are exchangeable with new ones. Had
the calibration prompts themselves been looked at, the luckiest of many options would have been taken for the
best, and its promise would not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from langchain_cfc.comparison.jobs import Progress, nobody_watches
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import InputError
from langchain_cfc.records import PromptRecord, Provenance, Records
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.splits import split_plan
from langchain_cfc.suggestion.choosing import Choice, Judged, lost, ranked, reason, tolerance_of
from langchain_cfc.suggestion.contest import Contest
from langchain_cfc.suggestion.options import (
    DEFAULT_SET_RULES,
    Option,
    canonical_maps,
    combinations,
    default_maps,
    saying_the_same,
)
from langchain_cfc.suggestion.prompts import SelectionPrompts, tabulated
from langchain_cfc.suggestion.report import RunnerUp, Suggestion
from langchain_cfc.suggestion.trials import FEWEST_IN_GROUP, FIT, JudgedGroups, Trials
from langchain_cfc.thresholds import Level, alpha_text, exact_tau

# Combinations of verifiers are tried with so many of the best pairs of feature map and set rule.
BEST_FEW = 3


def suggest(
    records: Iterable[PromptRecord] | LabelledDraws,
    *,
    alpha: Level,
    features: Sequence[str] | None = None,
    set_rules: Sequence[str] | None = None,
    verifiers: Sequence[str] | None = None,
    judge: Sequence[str] | None = None,
    n: int | None = None,
    seed: str | int = 0,
    fit_fraction: float = 0.3,
    test_fraction: float = 0.0,
    certification_fraction: float = 0.0,
    splits: int = 50,
    jobs: int = 1,
    progress: Progress = nobody_watches,
    provenance: Provenance | None = None,
) -> Suggestion:
    """Choose what to calibrate with.

    Options are tried on inner splits of the selection prompts and judged by the gap of their worst group and
    by the number of answers that they show; `langchain_cfc.suggestion.choosing` has the rule. Every feature
    map is tried with every set rule on the recorded score, then the best three of these with every
    combination of verifiers. Groups are the same for all options: along the recorded scores, the answers and
    the metadata.

    Args:
        records: Labelled records, or the table that `tabulate` makes of them (`tabulate_raw` where verifiers
            are to be combined).
        alpha: Error level to select for.
        features: Feature maps to choose from; by default about a dozen, `DEFAULT_MAPS` and maps of answers
            and metadata.
        set_rules: Set rules to choose from; by default `all` and `best_prefix`.
        verifiers: Names of verifiers in the candidates' `scores`, tried alone and all together, beside the
            recorded score; by default those that every candidate has, an empty list for none.
        judge: Feature texts of the groups that gaps are looked for in, such as `group(topic)` or
            `bins(mean_score, 5)`; by default groups along everything that is known of prompts.
        n: Number of candidates to use, the first n slots; by default all.
        seed: As given to `calibrate` later, like the shares.
        fit_fraction: Share of the prompts not held out that is selected on, in (0, 1).
        test_fraction: Share of all prompts held out for evaluation.
        certification_fraction: Share of the others held out for certificates; for bot mode, which `calibrate`
            gives 0.3 by default, say so here already.
        splits: Number of inner splits, at least 2.
        jobs: Number of processes. With more than one, a script needs the guard that `multiprocessing` asks
            for.
        progress: Wraps the inner splits while options are tried; is told how many there are.
        provenance: Header of the records where they do not carry one themselves.

    Returns:
        The suggestion; `calibrate(records, **suggestion.settings)` follows it.

    Raises:
        InputError: If an argument or a record cannot be used.
        FeatureError: If the text of a feature map or group is wrong, or groups to judge by cannot be made.
        CalibrationError: If there are too few selection prompts, or no option can be used.
        UnattainableTargetError: If the level is out of reach on the selection prompts.
        MissingExtraError: If verifiers are to be combined and SciPy is not installed.
    """
    level = alpha_text(alpha)
    plan = split_plan(seed, fit=fit_fraction, test=test_fraction, certification=certification_fraction)
    if plan.fit == 0.0 or isinstance(splits, bool) or splits < 2:  # noqa: PLR2004 - an error takes two
        msg = (
            f"fit_fraction must be above 0 and splits at least 2, got fit_fraction={fit_fraction!r} and "
            f"splits={splits!r}"
        )
        raise InputError(msg)
    maps = None if features is None else canonical_maps(features)
    rules = tuple(dict.fromkeys(parse_set_rule(one).text for one in set_rules or DEFAULT_SET_RULES))
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    table, left_out = tabulated(records, verifiers, n=n, provenance=provenance)
    prompts = SelectionPrompts.of(table, plan)
    same = saying_the_same(prompts.pool.labelled)
    combined = combinations(tuple(table.raw), same)
    left_out += [
        f"The verifier {name!r} was not tried alone: it orders candidates as the recorded score does."
        for name in same
    ]
    contest = Contest(
        Trials(
            prompts.pool, JudgedGroups.of(prompts.pool, judge), (), level, plan.seed, FIT if combined else 0.0
        ),
        splits,
        jobs,
        progress,
        provenance,
    )
    within_reach = contest.within_reach(rules)
    usable = contest.usable(default_maps(prompts.pool.draws) if maps is None else maps)
    judged = contest.tried([Option(text, rule) for text in usable for rule in within_reach])
    if combined and judged:
        few = [one.option for one in ranked(judged, tolerance_of(judged))[:BEST_FEW]]
        judged += contest.tried([replace(one, combine=names) for one in few for names in combined])
    if not judged:
        raise contest.nothing_left()
    return _concluded(contest, judged, prompts, n, [*left_out, *_notes(contest, prompts)])


def _concluded(
    contest: Contest, judged: list[Judged], prompts: SelectionPrompts, n: int | None, notes: list[str]
) -> Suggestion:
    trials, plan = contest.trials, prompts.plan
    tolerance, tau = tolerance_of(judged), float(exact_tau(trials.alpha))
    order = ranked(judged, tolerance)
    choice = Choice.among(judged, tolerance)
    best = choice.best.shown
    found = Suggestion(
        alpha=trials.alpha,
        target_coverage=tau,
        features=best.features,
        set_rule=best.set_rule,
        combine=best.combine,
        reason=reason(choice, len(judged), tolerance, tau),
        runner_up=None if len(order) == 1 else _runner_up(choice, order[1], tolerance),
        options=[one.shown for one in order],
        unusable=contest.unusable,
        notes=notes,
        prompts=len(prompts.pool.labelled),
        digest=prompts.digest,
        groups=len(trials.groups.words),
        tolerance=tolerance,
        splits=contest.splits,
        n=n,
        seed=plan.seed,
        fit_fraction=plan.fit,
        test_fraction=plan.test,
        certification_fraction=plan.certification,
        command="",
    )
    return found.for_records(["RECORDS"])


def _runner_up(choice: Choice, second: Judged, tolerance: float) -> RunnerUp:
    its = second.shown
    return RunnerUp(
        features=its.features,
        set_rule=its.set_rule,
        combine=its.combine,
        lost=lost(choice, second, tolerance),
    )


def _notes(contest: Contest, prompts: SelectionPrompts) -> Iterable[str]:
    yield (
        "The gap of what was chosen is flattered, for it was chosen by it. The promise is not: no prompt "
        "selected on calibrates."
    )
    yield (
        f"About {contest.calibrating} prompts calibrate in each inner split, and {prompts.calibration} will "
        "later: features that are many flag more here than they will."
    )
    few = contest.trials.groups.left_out
    if few:
        yield (
            f"Groups with fewer than {FEWEST_IN_GROUP} selection prompts were not judged by: {few}. A larger "
            "fit_fraction, or more records, would show them."
        )
    if prompts.clustered:
        yield f"{prompts.clustered} selection prompts were left out: of each cluster one takes part."
