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
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.calibration.checks import check_answers, compute_smallest_alpha, is_attainable
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError, UnattainableTargetError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features import FeatureMap
from langchain_cfc.records import LabelledRecord, Provenance, tabulate
from langchain_cfc.records.files import find_provenance
from langchain_cfc.records.splits import digest_ids, make_split_plan
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.support.text import format_percent, pluralize
from langchain_cfc.thresholds import CAP, Level, compute_tau, format_alpha
from langchain_cfc_lab.compare import compute_standard_error, find_worst_group
from langchain_cfc_lab.methods import Pool
from langchain_cfc_lab.splits import Progress, measure_splits
from langchain_cfc_lab.trials import (
    DEFAULT_SET_RULES,
    MIN_GROUP_SIZE,
    TEST_SHARE,
    Option,
    TrialResult,
    Trials,
    get_first_line,
    list_default_maps,
    make_judged_groups,
)

SPLIT_OVERLAP = TEST_SHARE / (1.0 - TEST_SHARE)
# An option that flags more than this share of the prompts that have a correct candidate is rejected.
MAX_WITHHELD_SHARE = 0.5


class JudgedOption(Option):
    """Results of one option over the inner splits.

    Attributes:
        columns: Number of features.
        gap: Target coverage minus the kept promise of the worst group, which is the one with the smallest
            kept promise on average over the splits; at least 0.
        gap_error: Approximate standard error of the worst group's kept promise; see the module.
        group: The worst group, in words.
        size: Mean number of distinct answers shown, where a flagged prompt counts as n answers.
        kept_promise: Mean share of prompts covered or flagged.
        not_certifiable_rate: Mean share flagged.
        abstention_rate: Mean share without an answer, flagged ones included.
    """

    columns: int
    gap: float
    gap_error: float
    group: str
    size: float
    kept_promise: float
    not_certifiable_rate: float
    abstention_rate: float


class RunnerUp(Option):
    """The option that the rule would have chosen if the winner had not been tried.

    Attributes:
        lost: Why it lost, in words.
    """

    lost: str


class Unusable(ReportData):
    """A feature map, set rule or option that could not be judged.

    Attributes:
        what: The feature map, set rule or option.
        reason: Why it could not be judged.
    """

    what: str
    reason: str


class Suggestion(ReportData):
    """The options to calibrate with, the reason for them, and the command that uses them.

    Attributes:
        alpha: Error level for which options were selected, as decimal text.
        target_coverage: 1 - alpha.
        features: The feature map.
        set_rule: The set rule.
        reason: Why this option was chosen, in words.
        runner_up: The second best option; None if only one was judged.
        options: All options that were judged, in the order in which the rule would choose them.
        unusable: Feature maps, set rules and options that could not be judged.
        notes: What a reader has to know.
        prompts: Number of selection prompts, one from each cluster.
        digest: SHA-256 over the ids of the fit split; an artifact made with these settings holds the same
            digest under `calibration.digests["fit"]`.
        groups: Number of groups whose gaps were measured.
        tolerance: One standard error of a gap; the median over the options.
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
    runner_up: RunnerUp | None
    options: list[JudgedOption]
    unusable: list[Unusable]
    notes: list[str]
    prompts: int
    digest: str
    groups: int
    tolerance: float
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


@dataclass(frozen=True, eq=False)
class OptionResult:
    """An option with its results on the selection prompts."""

    shown: JudgedOption
    sizes: FloatArray  # (J,) `JudgedOption.size` in each split

    @classmethod
    def from_trials(
        cls, option: Option, tried: Sequence[TrialResult], words: Sequence[str], tau: float
    ) -> OptionResult:
        """Summarise the results of an option over J splits."""
        kept = np.array([one.kept for one in tried])
        worst, share = find_worst_group(kept)
        figures = {name: np.array([one.figures[name] for one in tried]) for name in tried[0].figures}
        shown = JudgedOption.model_validate(
            {
                **dict(option),
                **{name: float(values.mean()) for name, values in figures.items()},
                "columns": max(one.columns for one in tried),
                "gap": max(0.0, tau - share),
                "gap_error": compute_standard_error(kept[:, worst], SPLIT_OVERLAP),
                "group": words[worst],
            }
        )
        return cls(shown, figures["size"])


@dataclass(frozen=True, eq=False)
class Choice:
    """The outcome of the rule of choice for some options."""

    best: OptionResult
    smallest_gap: OptionResult  # the option with the smallest gap
    within_error: list[OptionResult]  # options whose gap is within the tolerance of that
    smallest_set: OptionResult  # the option in `within_error` with the smallest size
    equally_small: list[OptionResult]  # options in `within_error` whose size is indistinguishable from that

    @classmethod
    def choose(cls, options: Sequence[OptionResult], tolerance: float) -> Choice:
        """Apply the rule to at least one option; `tolerance` is one standard error of a gap."""
        smallest_gap = min(options, key=lambda one: one.shown.gap)
        within_error = [one for one in options if one.shown.gap <= smallest_gap.shown.gap + tolerance]
        smallest_set = min(within_error, key=lambda one: one.shown.size)
        equally_small = [
            one
            for one in within_error
            if one.shown.size - smallest_set.shown.size
            <= compute_standard_error(one.sizes - smallest_set.sizes, SPLIT_OVERLAP)
        ]
        # The error of a difference need not grow with it, so all options up to the largest of these count.
        largest = max(one.shown.size for one in equally_small)
        equally_small = [one for one in within_error if one.shown.size <= largest]
        best = min(equally_small, key=lambda one: (one.shown.columns, one.shown.size))
        return cls(best, smallest_gap, within_error, smallest_set, equally_small)


def compute_tolerance(options: Sequence[OptionResult]) -> float:
    """Return the median standard error of the options' gaps."""
    return float(np.median([one.shown.gap_error for one in options]))


def rank_options(options: Sequence[OptionResult], tolerance: float) -> list[OptionResult]:
    """Rank all options: first the rule's choice, then its choice among the rest, and so on."""
    remaining, order = list(options), []
    while remaining:
        order.append(Choice.choose(remaining, tolerance).best)
        remaining.remove(order[-1])
    return order


def explain_choice(choice: Choice, options: int, tolerance: float, tau: float) -> str:
    """Explain in two or three sentences why the winner won."""
    best, smallest = choice.best.shown, choice.smallest_set.shown
    gap = (
        f"Its worst group ({best.group}) falls short of {100 * tau:g} % by {_to_points(best.gap)} points; "
        f"the smallest gap of {options} options is {_to_points(choice.smallest_gap.shown.gap)}, and the "
        f"standard error is {_to_points(tolerance)}."
    )
    if len(choice.within_error) == 1:
        return f"{gap} No other option is within a standard error of the smallest gap."
    size = (
        f"Of the {len(choice.within_error)} options within a standard error of the smallest gap, the one "
        f"with the smallest sets returns {smallest.size:.2f} answers a prompt (a flagged prompt counts as "
        "all its candidates)"
    )
    if len(choice.equally_small) == 1:
        return f"{gap} {size}. It is selected."
    others = len(choice.equally_small) - 1
    alike = f"{pluralize(others, 'other')} {'is' if others == 1 else 'are'} statistically indistinguishable"
    if choice.best is choice.smallest_set:
        return f"{gap} {size}. It is selected; {alike} in set size and no simpler."
    return (
        f"{gap} {size}. {alike} in set size, and the one selected, with {best.size:.2f}, is the simplest of "
        f"them: {pluralize(best.columns, 'feature')}."
    )


def explain_loss(choice: Choice, other: OptionResult, tolerance: float) -> str:
    """Explain in a sentence why an option that the rule did not choose lost."""
    best, lost = choice.best.shown, other.shown
    if other not in choice.within_error:
        return (
            f"Its gap of {_to_points(lost.gap)} points ({lost.group}) is more than a standard error of "
            f"{_to_points(tolerance)} above the smallest, {_to_points(choice.smallest_gap.shown.gap)}."
        )
    if other not in choice.equally_small:
        return (
            f"Its gap of {_to_points(lost.gap)} points is also within a standard error of the smallest, but "
            f"it returns {lost.size:.2f} answers a prompt instead of {choice.smallest_set.shown.size:.2f}."
        )
    if lost.columns > best.columns:
        return (
            f"Its gap of {_to_points(lost.gap)} points and its {lost.size:.2f} answers a prompt are "
            f"statistically indistinguishable from the winner's, but it fits {lost.columns} numbers "
            f"instead of {best.columns}."
        )
    return (
        f"It is as simple, with a gap of {_to_points(lost.gap)} points, but returns {lost.size:.2f} answers "
        f"a prompt instead of {best.size:.2f}."
    )


def _to_points(share: float) -> str:
    return f"{100 * share:.1f}"


@dataclass(frozen=True, eq=False)
class OptionJudge:
    """Tries options on the selection prompts, and records which of them are unusable."""

    trials: Trials
    splits: int
    jobs: int
    progress: Progress | None
    provenance: Provenance | None
    unusable: list[Unusable] = field(default_factory=list)  # what was rejected so far

    @property
    def calibration_size(self) -> int:
        """Mean number of prompts that calibrate in an inner split."""
        return round(len(self.trials.pool.labelled) * (1.0 - TEST_SHARE))

    def select_set_rules(self, set_rules: Sequence[str]) -> list[str]:
        """Return the set rules with which an inner split can reach the level; raise if there are none."""
        pool, alpha = self.trials.pool, self.trials.alpha
        size = len(pool.labelled)
        attained = []
        refused: list[tuple[int, str]] = []
        for rule in set_rules:
            try:
                check_answers(pool.labelled, self.provenance, needed=parse_set_rule(rule).needs_answers)
                reached = int((pool.compute_success_scores(rule) < CAP).sum())
            except InputError as error:
                self._reject(f"set rule {rule}", get_first_line(error))
                continue
            inside = int(Fraction(reached * self.calibration_size, size))
            if is_attainable(alpha, self.calibration_size, inside):
                attained.append(rule)
                continue
            least = (
                f"Smallest alpha here: {compute_smallest_alpha(self.calibration_size, inside):g}"
                if inside
                else "No alpha is attainable here"
            )
            problem = (
                f"alpha = {alpha} is out of reach: {reached} of {size} selection prompts have a correct "
                f"candidate that can enter the set by {rule} (attainable coverage {reached / size:.3f}), and "
                f"about {self.calibration_size} calibrate in an inner split. {least}. Draw more candidates, "
                "improve the model, choose a larger alpha, or raise fit_fraction"
            )
            refused.append((reached, problem))
            self._reject(f"set rule {rule}", problem)
        if not attained and refused:
            raise UnattainableTargetError(max(refused, key=lambda one: one[0])[1])
        if not attained:
            raise self.make_error()
        return attained

    def select_maps(self, maps: Sequence[str]) -> list[str]:
        """Return the feature maps that can be fitted on the selection prompts."""
        return [text for text in maps if self._can_fit(text)]

    def _can_fit(self, feature_text: str) -> bool:
        pool = self.trials.pool
        try:
            needed = FeatureMap.parse(feature_text).needs_answers
            check_answers(pool.labelled, self.provenance, needed=needed)
            pool.compute_features(feature_text, np.arange(len(pool.labelled)))
        except InputError as error:
            self._reject(feature_text, get_first_line(error))
            return False
        return True

    def try_options(self, options: Sequence[Option]) -> list[OptionResult]:
        """Try options on every inner split, and return the results of those that are usable."""
        trials, tau = self.trials, float(compute_tau(self.trials.alpha))
        measure = partial(trials.measure_split, options)
        by_split = measure_splits(measure, self.splits, self.jobs, self.progress) if options else []
        judged = []
        for option, results in zip(options, zip(*by_split, strict=True), strict=True):
            tried = [one for one in results if isinstance(one, TrialResult)]
            failed = next((one for one in results if isinstance(one, str)), None)
            if failed is not None:
                self._reject(option.words, failed)
                continue
            one = OptionResult.from_trials(option, tried, trials.groups.words, tau)
            withheld = float(np.mean([trial.withheld for trial in tried]))
            if withheld > MAX_WITHHELD_SHARE:
                self._reject(
                    option.words,
                    f"flags {format_percent(withheld)} of the prompts that have a correct candidate: too few "
                    f"prompts for {pluralize(one.shown.columns, 'feature')} at this level",
                )
            else:
                judged.append(one)
        return judged

    def make_error(self) -> CalibrationError:
        """Return the error to raise if no option can be used."""
        listed = "\n".join(f"- {one.what}: {one.reason}" for one in self.unusable)
        size = len(self.trials.pool.labelled)
        return CalibrationError(f"no option can be used on the {size} selection prompts:\n{listed}")

    def _reject(self, what: str, reason: str) -> None:
        self.unusable.append(Unusable(what=what, reason=reason))


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
    provenance = find_provenance(records, provenance)
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
    option_judge = OptionJudge(trials, splits, jobs, progress, provenance)
    within_reach = option_judge.select_set_rules(rules)
    usable = option_judge.select_maps(list_default_maps(pool.draws) if maps is None else maps)
    judged = option_judge.try_options(
        [Option(features=text, set_rule=rule) for text in usable for rule in within_reach]
    )
    if not judged:
        raise option_judge.make_error()
    notes = [
        (
            "The gap of the selected option is optimistic, because the option was selected by it. The "
            "promise is not: no prompt used for selection is used for calibration."
        ),
        (
            f"About {option_judge.calibration_size} prompts calibrate in each inner split, and "
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
        **_make_choice_fields(judged, float(compute_tau(level))),
        unusable=option_judge.unusable,
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


def _make_choice_fields(judged: list[OptionResult], tau: float) -> dict[str, Any]:
    """Return the fields of a `Suggestion` that follow from the rule of choice."""
    tolerance = compute_tolerance(judged)
    choice, order = Choice.choose(judged, tolerance), rank_options(judged, tolerance)
    best, *others = (Option(**one.shown.model_dump(include=set(Option.model_fields))) for one in order)
    runner_up = None
    if others:
        runner_up = RunnerUp(**dict(others[0]), lost=explain_loss(choice, order[1], tolerance))
    return {
        **dict(best),
        "target_coverage": tau,
        "reason": explain_choice(choice, len(judged), tolerance, tau),
        "runner_up": runner_up,
        "options": [one.shown for one in order],
        "tolerance": tolerance,
    }
