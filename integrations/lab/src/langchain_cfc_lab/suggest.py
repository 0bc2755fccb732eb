"""`suggest`: choose feature map and set rule on prompts that never calibrate.

Options are compared on the fit split of `calibrate`, with the same seed and shares. Its prompts fit feature
maps anyway, and none of them calibrates. So the guarantee holds as if the options had been fixed beforehand:
given the fit split, the calibration prompts are exchangeable with new ones. If options were compared on the
calibration prompts themselves, the luckiest would pass for the best, and its guarantee would not hold.

*The rule of choice.* An option's *gap* is that of its worst group. Among the options whose gap is within one
standard error of the smallest, the rule chooses the one that shows the fewest answers; or the simplest of
those indistinguishable from it, given the standard error of the difference over the same splits.

A flagged prompt counts as kept, so gaps alone would favour an option that flags everything. Therefore a
flagged prompt counts with size n, the most that can be shown, and an option is unusable if it flags most of
the prompts that it could have answered. The number of distinct answers would be too low a price: where it is
small, flagging would cost hardly more than answering. On unseen prompts of the bundled recording, over twelve
splits at alpha = 0.2, that price led to 23 % flagged and this one to 10 %, with similar gaps.

*Standard errors.* Inner splits of one pool share prompts, so the mean over J splits is much less precise than
a mean over J independent ones. The variance is that of Nadeau and Bengio (2003, "Inference for the
generalization error"), (1 / J + test / development) s^2, as in every comparison here; it is approximate.
The options' errors differ by chance, because their worst groups differ in size, so the median is used for all
options. The error ignores that the worst of many groups looks worse than it is; but that bias raises the gaps
of all options, and the rule only compares gaps with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features import FeatureMap
from langchain_cfc.records import LabelledRecord, Provenance, tabulate
from langchain_cfc.records.files import open_records
from langchain_cfc.records.splits import digest_ids, make_split_plan
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.text import pluralize
from langchain_cfc.thresholds import Level, compute_tau, format_alpha
from langchain_cfc_lab.compare import compute_standard_error
from langchain_cfc_lab.methods import Pool
from langchain_cfc_lab.splits import Progress
from langchain_cfc_lab.trials import (
    DEFAULT_SET_RULES,
    MIN_GROUP_SIZE,
    SPLIT_OVERLAP,
    JudgedOption,
    Option,
    OptionResult,
    Trials,
    list_default_maps,
    make_judged_groups,
)


class Suggestion(ReportData):
    """The options to calibrate with, the reason for them, and the command that uses them.

    Attributes:
        alpha: Error level for which options were selected, as decimal text.
        target_coverage: 1 - alpha.
        features: The feature map.
        set_rule: The set rule.
        reason: Why this option was chosen, in words.
        runner_up: Why the second best option lost, in words; None if only one was judged.
        options: All options that were judged, in the order in which the rule would choose them.
        unusable: Feature maps, set rules and options that could not be judged, and why.
        notes: What a reader has to know.
        prompts: Number of selection prompts, one from each cluster.
        digest: SHA-256 over the ids of the fit split; an artifact made with these settings holds the same
            digest under `calibration.digests["fit"]`.
        groups: Number of groups whose gaps were measured.
        splits: Number of inner splits.
        seed: Seed of the split into fit, calibration and other parts.
        fit_fraction: Share of the prompts not held out on which options were selected.
        test_fraction: Share of all prompts held out for evaluation.
        command: The command to run next.
    """

    alpha: str
    target_coverage: float
    features: str
    set_rule: str
    reason: str
    runner_up: str | None
    options: list[JudgedOption]
    unusable: dict[str, str]
    notes: list[str]
    prompts: int
    digest: str
    groups: int
    splits: int
    seed: str
    fit_fraction: float
    test_fraction: float
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `calibrate` other than the records."""
        return {
            "alpha": self.alpha,
            "features": self.features,
            "set_rule": self.set_rule,
            "seed": self.seed,
            "fit_fraction": self.fit_fraction,
            "test_fraction": self.test_fraction,
        }

    def with_records(self, paths: Sequence[str]) -> Suggestion:
        """Return the suggestion with a command that names the given files."""
        return self.model_copy(update={"command": CalibrationConfig(**self.settings).format_command(paths)})


def narrow_options(
    options: Sequence[OptionResult], tolerance: float
) -> tuple[list[OptionResult], list[OptionResult]]:
    """Return the options whose gap is within the tolerance of the smallest, and those of them that are lean.

    Lean are those whose size is indistinguishable from the smallest; `tolerance` is one standard error of a
    gap.
    """
    smallest_gap = min(one.shown.gap for one in options)
    within_error = [one for one in options if one.shown.gap <= smallest_gap + tolerance]
    smallest = min(within_error, key=lambda one: one.shown.size)
    # The error of a difference need not grow with it, so all options up to the largest of these count.
    largest = max(
        one.shown.size
        for one in within_error
        if one.shown.size - smallest.shown.size
        <= compute_standard_error(one.sizes - smallest.sizes, SPLIT_OVERLAP)
    )
    return within_error, [one for one in within_error if one.shown.size <= largest]


def compute_tolerance(options: Sequence[OptionResult]) -> float:
    """Return the median standard error of the options' gaps."""
    return float(np.median([one.shown.gap_error for one in options]))


def rank_options(options: Sequence[OptionResult], tolerance: float) -> list[OptionResult]:
    """Rank all options: first the rule's choice, then its choice among the rest, and so on."""
    remaining, order = list(options), []
    while remaining:
        _, lean = narrow_options(remaining, tolerance)
        order.append(min(lean, key=lambda one: (one.shown.columns, one.shown.size)))
        remaining.remove(order[-1])
    return order


def _explain_choice(order: Sequence[OptionResult], tolerance: float, tau: float) -> str:
    """Explain in two or three sentences why the first of the ranked options won."""
    within_error, lean = narrow_options(order, tolerance)
    best = order[0].shown
    gap = (
        f"Its worst group ({best.group}) falls short of {100 * tau:g} % by {_to_points(best.gap)} points; "
        f"the smallest gap of {len(order)} options is {_to_points(min(one.shown.gap for one in order))}, and "
        f"the standard error is {_to_points(tolerance)}."
    )
    if len(within_error) == 1:
        return f"{gap} No other option is within a standard error of the smallest gap."
    chosen = "the one that shows the fewest answers"
    if len(lean) > 1:
        chosen = f"the simplest of the {len(lean)} that show about equally few answers"
    return (
        f"{gap} Of the {len(within_error)} options within a standard error of the smallest gap, it is "
        f"{chosen}: {best.size:.2f} a prompt (a flagged prompt counts as all its candidates), by "
        f"{pluralize(best.columns, 'feature')}."
    )


def _explain_loss(order: Sequence[OptionResult], tolerance: float) -> str:
    """Explain in a sentence why the second of the ranked options lost."""
    within_error, _ = narrow_options(order, tolerance)
    best, lost = order[0].shown, order[1].shown
    gap = f"Its gap of {_to_points(lost.gap)} points ({lost.group})"
    if order[1] not in within_error:
        return f"{gap} is more than a standard error of {_to_points(tolerance)} above the smallest."
    return (
        f"{gap} is within a standard error of the smallest, but it shows {lost.size:.2f} answers a prompt by "
        f"{pluralize(lost.columns, 'feature')}, instead of {best.size:.2f} by {best.columns}."
    )


def _to_points(share: float) -> str:
    return f"{100 * share:.1f}"


def suggest(
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    alpha: Level,
    features: Sequence[str] | None = None,
    set_rules: Sequence[str] | None = None,
    judge: Sequence[str] | None = None,
    seed: str | int = 0,
    fit_fraction: float = 0.3,
    test_fraction: float = 0.0,
    splits: int = 50,
    jobs: int = 1,
    progress: Progress | None = None,
    provenance: Provenance | None = None,
) -> Suggestion:
    """Choose the feature map and set rule to calibrate with.

    Options are tried on inner splits of the selection prompts and judged by the gap of their worst group and
    by the number of answers that they show; `langchain_cfc_lab.suggest` describes the rule. Every
    feature map is tried with every set rule. Groups are the same for all options.

    Args:
        records: Labelled records, or the table that `tabulate` makes of them.
        alpha: Error level to calibrate for.
        features: Feature maps to choose from; by default about a dozen, see `list_default_maps`.
        set_rules: Set rules to choose from; by default `all` and `best_prefix`.
        judge: Feature texts of the groups whose gaps are measured, such as `group(topic)` or
            `bins(mean_score, 5)`; by default groups by every known property of the prompts.
        seed: The seed that `calibrate` will get; the two shares must be those for `calibrate` too.
        fit_fraction: Share of the prompts not held out on which options are selected, in (0, 1).
        test_fraction: Share of all prompts held out for evaluation.
        splits: Number of inner splits, at least 2.
        jobs: Number of processes; with more than one, a script needs an `if __name__ == "__main__"` guard.
        progress: Function of the inner splits and their number that yields them, such as a progress bar.
        provenance: Header of the records; by default the one that they carry.

    Returns:
        The suggestion; `calibrate(records, **suggestion.settings)` applies it.

    Raises:
        InputError: If an argument or a record cannot be used.
        FeatureError: If the text of a feature map or group is wrong, or the groups in `judge` cannot be made.
        CalibrationError: If there are too few selection prompts, or no option can be used.
        UnattainableTargetError: If the level is out of reach on the selection prompts.
    """
    level = format_alpha(alpha)
    plan = make_split_plan(seed, fit=fit_fraction, test=test_fraction)
    if plan.fit == 0.0 or isinstance(splits, bool) or splits < 2:  # noqa: PLR2004 - an error takes two
        msg = (
            f"fit_fraction must be above 0 and splits at least 2, got fit_fraction={fit_fraction!r} and "
            f"splits={splits!r}"
        )
        raise InputError(msg)
    maps = None if features is None else list(dict.fromkeys(FeatureMap.parse(one).text for one in features))
    rules = tuple(dict.fromkeys(parse_set_rule(one).text for one in set_rules or DEFAULT_SET_RULES))
    records, provenance = open_records(records, provenance)
    table = tabulate(records, provenance=provenance)
    rows = plan.list_rows(table)
    part = table.take(rows["fit"])
    if not len(part):
        msg = (
            "there are no prompts to select on, because the fit split is empty: raise fit_fraction, or add "
            "records (a cluster is never split, so many clusters are needed)"
        )
        raise CalibrationError(msg)
    # Only ids and clusters are read from the other parts.
    pool = Pool(part.take(plan.select_one_per_cluster(part)))
    calibration = len(plan.select_one_per_cluster(table.take(rows["calibration"])))
    groups, few = make_judged_groups(pool, judge)
    trials = Trials(pool, groups, level, plan.seed)
    within_reach = trials.select_set_rules(rules)
    usable = trials.select_maps(list_default_maps(pool.draws) if maps is None else maps)
    options = [Option(features=text, set_rule=rule) for text in usable for rule in within_reach]
    judged = trials.try_options(options, splits, jobs, progress)
    tolerance, tau = compute_tolerance(judged), float(compute_tau(level))
    order = rank_options(judged, tolerance)
    notes = [
        (
            "The gap of the selected option is optimistic, because the option was selected by it. The "
            "promise is not: no prompt used for selection is used for calibration."
        ),
        (
            f"About {trials.calibration_size} prompts calibrate in each inner split, and "
            f"{calibration} will later: maps with many features flag more prompts here than they will then."
        ),
    ]
    if few:
        notes.append(
            f"Groups with fewer than {MIN_GROUP_SIZE} selection prompts, not used to judge options: {few}. "
            "A larger fit_fraction or more records would include them."
        )
    clustered = len(part) - len(pool.labelled)
    if clustered:
        notes.append(f"{clustered} selection prompts were left out: only one prompt per cluster is used.")
    return Suggestion(
        alpha=level,
        target_coverage=tau,
        features=order[0].shown.features,
        set_rule=order[0].shown.set_rule,
        reason=_explain_choice(order, tolerance, tau),
        runner_up=_explain_loss(order, tolerance) if len(order) > 1 else None,
        options=[one.shown for one in order],
        unusable=trials.unusable,
        notes=notes,
        prompts=len(pool.labelled),
        digest=digest_ids(part.ids),
        groups=len(groups.words),
        splits=splits,
        seed=plan.seed,
        fit_fraction=plan.fit,
        test_fraction=plan.test,
        command="",
    ).with_records(["RECORDS"])
