"""Try options of a calibration on inner splits of the selection prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import TypeAlias

import numpy as np

from langchain_cfc.calibration.checks import check_answers, compute_smallest_alpha, is_attainable
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import CalibrationError, InputError, ThresholdError, UnattainableTargetError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.support.text import format_percent, pluralize
from langchain_cfc.thresholds import CAP, compute_tau
from langchain_cfc_lab.compare import compute_standard_error, find_worst_group
from langchain_cfc_lab.methods import Pool, Split, make_our_method
from langchain_cfc_lab.metrics import (
    Groups,
    Outcomes,
    list_category_terms,
    make_groups,
    make_property_groups,
)
from langchain_cfc_lab.splits import Progress, measure_splits

# Few and diverse options: the more there are, the more the best one owes to chance.
DEFAULT_MAPS = {
    "1": "one threshold for all prompts",
    "mean_score": "a line in the mean score",
    "mean_score^2": "a parabola in it",
    "hat(mean_score, 5)": "a broken line in it, where neighbours share what they learn",
    "bins(mean_score, 5)": "fifths of it, each on its own",
    "hat(min_score, 5)": "a broken line in the best score",
    "mean_score + std_score": "the mean score, and how far scores spread",
    "hard(mean_score, 0.8)": "the hardest fifth, and the others",
}
ANSWER_MAPS = {
    "hat(entropy, 5)": "a broken line in the disagreement of answers",
    "hat(top_share, 5)": "a broken line in the share of the most frequent answer",
    "hard(entropy, max_score, 0.925)": "the paper's hard group on TriviaQA",
}
# `unique(...)` is not tried: the same distinct answers enter at the same thresholds, so all figures here are
# those of the wrapped rule. Nor is `rank`, which ignores the distances between scores.
DEFAULT_SET_RULES = ("all", "best_prefix")
MAX_KEYS = 3
MAX_CATEGORIES = 10
# Share of the selection prompts that an inner split tests on.
TEST_SHARE = 1.0 / 3.0
SPLIT_OVERLAP = TEST_SHARE / (1.0 - TEST_SHARE)
# An option that flags more than this share of the prompts that have a correct candidate is rejected.
MAX_WITHHELD_SHARE = 0.5
# Shares in smaller groups are mostly noise.
MIN_GROUP_SIZE = 20


class Option(ReportData):
    """A feature map and a set rule to calibrate with.

    Attributes:
        features: The feature map.
        set_rule: The set rule.
    """

    features: str
    set_rule: str

    @property
    def words(self) -> str:
        """The option on one line."""
        return f"{self.features} with {self.set_rule}"


def list_default_maps(draws: CandidateBatch) -> tuple[str, ...]:
    """Return the feature maps that `suggest` tries by default.

    These are maps of scores, of answers if they are known, and of metadata keys with few categories.
    """
    maps = [*DEFAULT_MAPS, *(ANSWER_MAPS if draws.answer_codes is not None else ())]
    for key in list_category_terms(draws, MAX_CATEGORIES)[:MAX_KEYS]:
        maps += [key, f"hat(mean_score, 5) + {key}"]
    return tuple(maps)


def make_judged_groups(pool: Pool, judge: Sequence[str] | None) -> tuple[Groups, int]:
    """Return the groups whose gaps are measured, and the number of groups left out for having few prompts.

    All prompts come first, then the groups by every known property, or by the feature texts in `judge`.
    """
    draws = pool.draws
    with name_records_in_errors(pool.labelled.ids):
        if judge is None:
            along = make_property_groups(draws)
        else:
            along = tuple(make_groups(text, draws, draws) for text in judge)
    words = ("all prompts", *(words for groups in along for words in groups.words))
    member = np.column_stack([np.ones(len(draws)), *(groups.member for groups in along)])
    enough = member.sum(axis=0) >= MIN_GROUP_SIZE
    enough[0] = True
    judged = tuple(one for one, is_large in zip(words, enough.tolist(), strict=True) if is_large)
    return Groups("", judged, judged, member[:, enough]), int((~enough).sum())


class JudgedOption(Option):
    """Results of one option over the inner splits.

    Attributes:
        columns: Number of features.
        gap: Target coverage minus the kept promise of the worst group, which is the one with the smallest
            kept promise on average over the splits; at least 0.
        gap_error: Approximate standard error of the worst group's kept promise.
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


@dataclass(frozen=True, eq=False)
class OptionResult:
    """An option with its results on the selection prompts."""

    shown: JudgedOption
    sizes: FloatArray  # (J,) `JudgedOption.size` in each split


# The (P,) kept promise of each group, NaN for one without test prompts, and the other figures by name.
Trial: TypeAlias = tuple[FloatArray, dict[str, float]]


@dataclass(frozen=True, eq=False)
class Trials:
    """The selection prompts and settings with which options are tried.

    Feature maps are fitted on all selection prompts, as `calibrate` will fit them. So they see the scores,
    answers and metadata of test prompts, but no labels.
    """

    pool: Pool  # M selection prompts, one from each cluster
    groups: Groups  # P groups of these prompts
    alpha: str
    seed: str
    unusable: dict[str, str] = field(default_factory=dict)  # what could not be judged so far, and why

    @property
    def calibration_size(self) -> int:
        """Mean number of prompts that calibrate in an inner split."""
        return round(len(self.pool.labelled) * (1.0 - TEST_SHARE))

    def select_set_rules(self, set_rules: Sequence[str]) -> list[str]:
        """Return the set rules with which an inner split can reach the level; raise if there are none."""
        pool, size = self.pool, len(self.pool.labelled)
        attained = []
        refused: list[tuple[int, str]] = []
        for rule in set_rules:
            try:
                check_answers(pool.labelled, needed=parse_set_rule(rule).needs_answers)
                reached = int((pool.compute_success_scores(rule) < CAP).sum())
            except InputError as error:
                self.unusable[f"set rule {rule}"] = get_first_line(error)
                continue
            inside = int(Fraction(reached * self.calibration_size, size))
            if is_attainable(self.alpha, self.calibration_size, inside):
                attained.append(rule)
                continue
            least = (
                f"Smallest alpha here: {compute_smallest_alpha(self.calibration_size, inside):g}"
                if inside
                else "No alpha is attainable here"
            )
            problem = (
                f"alpha = {self.alpha} is out of reach: {reached} of {size} selection prompts have a correct "
                f"candidate that can enter the set by {rule}, and about {self.calibration_size} calibrate. "
                f"{least}. Draw more candidates, or raise fit_fraction"
            )
            refused.append((reached, problem))
            self.unusable[f"set rule {rule}"] = problem
        if not attained and refused:
            raise UnattainableTargetError(max(refused)[1])
        if not attained:
            raise self.make_error()
        return attained

    def select_maps(self, maps: Sequence[str]) -> list[str]:
        """Return the feature maps that can be fitted on the selection prompts."""
        return [text for text in maps if self._can_fit(text)]

    def _can_fit(self, text: str) -> bool:
        pool = self.pool
        try:
            check_answers(pool.labelled, needed=FeatureMap.parse(text).needs_answers)
            pool.compute_features(text, np.arange(len(pool.labelled)))
        except InputError as error:
            self.unusable[text] = get_first_line(error)
            return False
        return True

    def try_options(
        self, options: Sequence[Option], splits: int, jobs: int = 1, progress: Progress | None = None
    ) -> list[OptionResult]:
        """Try options on every inner split, and return the results of those that are usable."""
        measure = partial(self.measure_split, options)
        by_split = measure_splits(measure, splits, jobs, progress) if options else []
        judged = []
        for option, results in zip(options, zip(*by_split, strict=True), strict=True):
            tried = [one for one in results if not isinstance(one, str)]
            if len(tried) < len(results):
                self.unusable[option.words] = next(one for one in results if isinstance(one, str))
                continue
            one, withheld = self._summarise(option, tried)
            if withheld > MAX_WITHHELD_SHARE:
                self.unusable[option.words] = (
                    f"flags {format_percent(withheld)} of the prompts that have a correct candidate: too few "
                    f"prompts for {pluralize(one.shown.columns, 'feature')} at this level"
                )
            else:
                judged.append(one)
        if not judged:
            raise self.make_error()
        return judged

    def make_error(self) -> CalibrationError:
        """Return the error to raise if no option can be used."""
        listed = "\n".join(f"- {what}: {reason}" for what, reason in self.unusable.items())
        size = len(self.pool.labelled)
        return CalibrationError(f"no option can be used on the {size} selection prompts:\n{listed}")

    def _summarise(self, option: Option, tried: Sequence[Trial]) -> tuple[OptionResult, float]:
        """Summarise an option's results over J splits; also return the mean share that it withholds."""
        kept = np.array([groups for groups, _ in tried])
        worst, share = find_worst_group(kept)
        figures = {name: np.array([one[name] for _, one in tried]) for name in tried[0][1]}
        means = {name: float(values.mean()) for name, values in figures.items()}
        shown = JudgedOption(
            features=option.features,
            set_rule=option.set_rule,
            columns=int(figures["columns"].max()),
            gap=max(0.0, float(compute_tau(self.alpha)) - share),
            gap_error=compute_standard_error(kept[:, worst], SPLIT_OVERLAP),
            group=self.groups.words[worst],
            size=means["size"],
            kept_promise=means["kept_promise"],
            not_certifiable_rate=means["not_certifiable_rate"],
            abstention_rate=means["abstention_rate"],
        )
        return OptionResult(shown, figures["size"]), means["withheld"]

    def measure_split(self, options: Sequence[Option], number: int) -> list[Trial | str]:
        """Return each option's results on inner split `number`, or the reason why it cannot be used."""
        plan = make_split_plan(f"{self.seed}/{number}", fit=0.0, test=TEST_SHARE)
        rows = plan.list_rows(self.pool.labelled)
        if not (len(rows["calibration"]) and len(rows["test"])):
            msg = (
                f"{len(self.pool.labelled)} selection prompts are too few to split again: raise "
                "fit_fraction, or add more records"
            )
            raise CalibrationError(msg)
        everything = np.arange(len(self.pool.labelled))  # feature maps are fitted on all prompts
        split = Split(self.pool, everything, rows["calibration"], rows["test"], "1", "all")
        return [self._try_option(option, split) for option in options]

    def _try_option(self, option: Option, split: Split) -> Trial | str:
        method = replace(make_our_method("conditional"), set_rule=option.set_rule, features=option.features)
        try:
            output = method.make_sets(split, self.alpha)
        except (InputError, CalibrationError, ThresholdError) as error:
            return get_first_line(error)
        outcomes = Outcomes.from_outputs([output], split.test_correct, parse_set_rule(split.set_rule))
        kept, flagged = outcomes.kept[0], outcomes.flagged[0]
        attainable = split.pool.attainable[split.test]
        figures = {
            "columns": split.compute_features(option.features, "fit").shape[1],
            # The share flagged among prompts with a correct candidate; 0 if there are none.
            "withheld": float((flagged & attainable).sum() / max(int(attainable.sum()), 1)),
            # A flagged prompt counts as all its candidates.
            "size": float(np.where(flagged, split.pool.draws.n, outcomes.distinct[0]).mean()),
            "kept_promise": float(kept.mean()),
            "not_certifiable_rate": float(flagged.mean()),
            "abstention_rate": float((outcomes.sizes[0] == 0).mean()),
        }
        return self.groups.take(split.test).compute_means(kept), figures


def get_first_line(error: Exception) -> str:
    """Return the first line of an error's message; further lines list locations."""
    return str(error).partition("\n")[0]
