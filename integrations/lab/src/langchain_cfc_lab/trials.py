"""Try options of a calibration on inner splits of the selection prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import CalibrationError, InputError, ThresholdError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc_lab.methods import OUR_CONVENTION, Pool, Split, ThresholdMethod
from langchain_cfc_lab.metrics import (
    Groups,
    Outcomes,
    list_category_terms,
    make_groups,
    make_property_groups,
)

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


@dataclass(frozen=True, eq=False)
class TrialResult:
    """Results of one option on the test prompts of one inner split."""

    kept: FloatArray  # (P,) kept promise of each group; NaN for a group without test prompts
    columns: int  # number of features
    withheld: float  # share flagged among prompts with a correct candidate; 0 if there are none
    figures: dict[str, float]  # the figures that `JudgedOption` averages over splits


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

    def measure_split(self, options: Sequence[Option], number: int) -> list[TrialResult | str]:
        """Return each option's results on inner split `number`, or the reason why it cannot be used."""
        rows = make_split_plan(f"{self.seed}/{number}", fit=0.0, test=TEST_SHARE).list_rows(
            self.pool.labelled
        )
        if not (len(rows["calibration"]) and len(rows["test"])):
            msg = (
                f"{len(self.pool.labelled)} selection prompts are too few to split again: raise "
                "fit_fraction, or add more records"
            )
            raise CalibrationError(msg)
        everything = np.arange(len(self.pool.labelled))  # feature maps are fitted on all prompts
        split = Split(self.pool, everything, rows["calibration"], rows["test"], "1", "all")
        return [self._try_option(option, split) for option in options]

    def _try_option(self, option: Option, split: Split) -> TrialResult | str:
        method = ThresholdMethod(
            option.words,
            "",
            "",
            "ours",
            rule="conditional",
            convention=OUR_CONVENTION,
            set_rule=option.set_rule,
            features=option.features,
        )
        try:
            output = method.make_sets(split, self.alpha)
        except (InputError, CalibrationError, ThresholdError) as error:
            return get_first_line(error)
        outcomes = Outcomes.from_outputs([output], split.test_correct, parse_set_rule(split.set_rule))
        kept, flagged = outcomes.kept[0], outcomes.flagged[0]
        attainable = split.pool.attainable[split.test]
        return TrialResult(
            kept=self.groups.take(split.test).compute_means(kept),
            columns=split.compute_features(option.features, "fit").shape[1],
            withheld=float((flagged & attainable).sum() / max(int(attainable.sum()), 1)),
            figures={
                # A flagged prompt counts as all its candidates.
                "size": float(np.where(flagged, split.pool.draws.n, outcomes.distinct[0]).mean()),
                "kept_promise": float(kept.mean()),
                "not_certifiable_rate": float(flagged.mean()),
                "abstention_rate": float((outcomes.sizes[0] == 0).mean()),
            },
        )


def get_first_line(error: Exception) -> str:
    """Return the first line of an error's message; further lines list locations."""
    return str(error).partition("\n")[0]
