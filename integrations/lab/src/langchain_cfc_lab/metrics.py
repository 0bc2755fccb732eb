"""Figures of answer sets, computed for many methods and levels at once.

Arrays have one row per *run* (one method at one level) and one column per test prompt. Each figure is one
number per run. A figure that a run does not define is NaN here and left out of means; an example is the
accuracy among answered prompts when none is answered. Reports never hold NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FeatureError, InputError
from langchain_cfc.features import FeatureMap
from langchain_cfc.features.terms import Group
from langchain_cfc.set_rules import SetRule, parse_set_rule
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc_lab.methods import MethodOutput

PROPERTY_BINS = 5
MAX_CATEGORIES = 30


@dataclass(frozen=True)
class Figure:
    """A figure of a comparison; names that begin with `mean_` are means of counts, all others are shares."""

    label: str  # name in tables and figures
    definition: str  # with the paper's name if its tables report it
    column: str = ""  # heading in the terminal's table of methods, if tables of methods show it


_WORST_GROUP = Figure(
    "promise kept in the worst group",
    "kept promise of the group that is worst on average over splits",
    "worst",
)
FIGURES = {
    "kept_promise": Figure(
        "promise kept",
        "share covered or flagged as not certifiable: the guaranteed event, which flagging everything keeps",
        "kept",
    ),
    "coverage": Figure(
        "set holds a correct answer",
        "share of prompts whose set holds a correct answer (the paper's ECR)",
        "cov.",
    ),
    "worst_group_kept_promise": _WORST_GROUP,
    "not_certifiable_rate": Figure("flagged", "share flagged as not certifiable", "flag"),
    "abstention_rate": Figure(
        "abstained, flagged ones included", "share without an answer, flagged ones included", "none"
    ),
    "mean_set_size": Figure("candidates per set", "mean number of candidates returned (the paper's APSS)"),
    "mean_distinct_answers": Figure(
        "distinct answers per set", "mean number of distinct answers, 0 if none", "answers"
    ),
    "selective_accuracy": Figure(
        "best answer right, if there is one",
        "share of answered prompts whose best answer is correct",
        "right",
    ),
    "worst_group_coverage": Figure(
        "coverage of the worst group",
        "smallest group coverage of each split, averaged over splits (the paper's GSC)",
    ),
    "mean_candidates_drawn": Figure("candidates drawn", "mean number of candidates that had to be drawn"),
}
# The figures if the claims of one answer are kept or dropped.
CLAIMS_FIGURES = {
    "kept_promise": Figure(
        "promise kept",
        "share of answers with at most k unsupported claims left: the guaranteed event",
        "kept",
    ),
    "worst_group_kept_promise": _WORST_GROUP,
    "claims_kept": Figure("claims kept", "share of all claims that are kept", "claims"),
    "abstention_rate": Figure("no claim left", "share of answers that lose all claims", "none"),
    "unsupported_kept": Figure(
        "unsupported, of those kept", "share of kept claims that are unsupported", "unsup."
    ),
    "mean_set_size": Figure("claims per answer", "mean number of claims kept"),
    "all_correct_rate": Figure(
        "nothing unsupported left", "share of answers with no unsupported claim left", "right"
    ),
}
# The figures of a bot that promises few wrong answers among all questions.
BOT_FIGURES = {
    "kept_promise": Figure(
        "promise kept", "share answered rightly or not at all: the guaranteed event", "kept"
    ),
    "worst_group_kept_promise": _WORST_GROUP,
    "abstention_rate": Figure("not answered", "share without an answer", "none"),
    "selective_accuracy": FIGURES["selective_accuracy"],
}
Event: TypeAlias = Literal["answers", "claims", "best_answer"]
_FIGURES: dict[Event, dict[str, Figure]] = {
    "answers": FIGURES,
    "claims": CLAIMS_FIGURES,
    "best_answer": BOT_FIGURES,
}
# What keeping the promise costs.
COST_FIGURES: dict[Event, str] = {
    "answers": "mean_distinct_answers",
    "claims": "claims_kept",
    "best_answer": "abstention_rate",
}


def find_event(set_rule: str) -> Event:
    """Return what a set rule's promise is about: answer sets, claims, or a bot's best answer."""
    rule = parse_set_rule(set_rule)
    if rule.option == "max_wrong_of_all":
        return "best_answer"
    return "answers" if rule.at_most is None else "claims"


def list_figures(set_rule: str) -> dict[str, Figure]:
    """Return the figures of a comparison under a set rule, by name."""
    return _FIGURES[find_event(set_rule)]


def is_share(figure: str) -> bool:
    """Return whether a figure is a share; the others are means of counts."""
    return not figure.startswith("mean_")


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of the prompts into G groups."""

    text: str  # feature text that defines the groups
    names: tuple[str, ...]
    words: tuple[str, ...]  # names to show to people
    member: FloatArray  # (N, G) 1.0 if the prompt is in the group, else 0.0

    @cached_property
    def sizes(self) -> FloatArray:
        """(G,) number of prompts in each group."""
        return np.asarray(self.member.sum(axis=0), dtype=np.float64)

    def take(self, rows: IntArray) -> Groups:
        """Return the groups restricted to the given prompts."""
        return Groups(self.text, self.names, self.words, self.member[rows])

    def compute_means(self, values: FloatArray | IntArray | BoolArray) -> FloatArray:
        """Return the (..., G) group means of (..., N) values, NaN for a group without prompts."""
        numbers = values.astype(np.float64)
        # Sums of whole numbers are exact. For other values the order of additions decides the last bit, and
        # in a matrix product that order depends on the number of threads; `einsum` adds sequentially.
        whole = values.dtype.kind != "f"
        sums = numbers @ self.member if whole else np.einsum("...n,ng->...g", numbers, self.member)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sums / self.sizes, dtype=np.float64)


def make_groups(text: str, fitted_on: CandidateBatch, draws: CandidateBatch) -> Groups:
    """Group N prompts by one feature term, such as `bins(mean_score, 5)` or `group(topic)`.

    Bins are named by position and not by cut-offs, so that results of several splits can be combined.
    """
    parsed = FeatureMap.parse(text)
    kind = parsed.text.partition("(")[0]
    if len(parsed.terms) != 1 or kind not in {"bins", "group", "hard"}:
        msg = (
            f"groups must be one term that splits prompts, such as bins(mean_score, 5), group(topic) or "
            f"hard(max_score, 0.8); got {text!r}"
        )
        raise InputError(msg)
    fitted = parsed.fit(fitted_on)
    weights = fitted.list_guaranteed_weights()[1:]
    count = len(weights)
    words = tuple(weight.words for weight in weights)
    if kind == "bins":
        (statistic,) = parsed.terms[0].statistics
        words = tuple(f"{statistic.words}: {place + 1} of {count}" for place in range(count))
    elif kind == "hard":
        words = "easy prompts", "hard prompts"
    return Groups(parsed.text, tuple(weight.name for weight in weights), words, fitted.transform(draws))


def make_property_groups(draws: CandidateBatch) -> tuple[Groups, ...]:
    """Group the prompts by every known property.

    The properties are all statistics, in equal-frequency bins, and all metadata keys with few categories.
    """
    texts = [f"bins({name}, {PROPERTY_BINS})" for name in draws.precomputed if not name.startswith("meta(")]
    groups = []
    for text in [*texts, *list_category_terms(draws, MAX_CATEGORIES)]:
        with suppress(FeatureError):  # the property hardly varies between prompts
            groups.append(make_groups(text, draws, draws))
    return tuple(groups)


def list_category_terms(draws: CandidateBatch, most: int) -> list[str]:
    """Return `group(key)` for each metadata key that all prompts have, with 2 to `most` categories."""
    if not len(draws) or not draws.metadata[0]:
        return []
    texts = []
    for key in draws.metadata[0]:
        # 1 and True are different categories, although Python considers them equal.
        values = {(type(entries.get(key)), entries.get(key)) for entries in draws.metadata}
        if (type(None), None) not in values and 1 < len(values) <= most:
            texts.append(Group(key).text)
    return texts


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Results of E runs on m test prompts; all arrays have shape (E, m)."""

    covered: BoolArray  # the set holds a correct answer; of claims: at most k unsupported ones are kept
    flagged: BoolArray  # the prompt is flagged as not certifiable
    sizes: IntArray  # number of candidates returned
    distinct: IntArray  # number of distinct answers returned
    right: BoolArray  # the best answer returned is correct
    wrong: IntArray  # number of wrong candidates, or unsupported claims, returned
    drawn: IntArray  # number of candidates that had to be drawn, or number of claims
    thresholds: FloatArray  # clipped to [0, 1]; NaN for a method without thresholds

    @classmethod
    def from_outputs(cls, made: Sequence[MethodOutput], correct: BoolArray, rule: SetRule) -> Outcomes:
        """Compare the sets of E runs with (m, n) labels; the set rule defines which prompts are covered."""
        sets = [one.sets for one in made]
        accepted = [one.accepted for one in sets]
        unknown = np.full(len(correct), np.nan)
        cut = [unknown if one.thresholds is None else np.clip(one.thresholds, 0.0, 1.0) for one in made]
        rows = np.arange(len(correct))
        sizes = np.array([inside.sum(axis=1) for inside in accepted])
        return cls(
            covered=np.array([rule.covers(correct, inside) for inside in accepted]),
            flagged=np.array([one.not_certifiable for one in sets]),
            sizes=sizes,
            distinct=np.array([one.distinct_answers for one in sets]),
            right=np.array([correct[rows, one.best] for one in sets]) & (sizes > 0),
            wrong=np.array([(inside & ~correct).sum(axis=1) for inside in accepted]),
            drawn=np.array([one.drawn for one in made]),
            thresholds=np.array(cut),
        )

    @property
    def kept(self) -> BoolArray:
        """(E, m) whether the prompt is covered or flagged, which is the guaranteed event."""
        return self.covered | self.flagged


def compute_figures(outcomes: Outcomes, groups: Groups) -> dict[str, FloatArray]:
    """Return (E,) values of the figures that one split defines, NaN if a run does not define one.

    `worst_group_kept_promise` takes all splits and is added later.
    """
    kept, answered = outcomes.kept, outcomes.sizes > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = (outcomes.right & answered).sum(axis=1) / answered.sum(axis=1)
    return {
        "coverage": outcomes.covered.mean(axis=1),
        "kept_promise": kept.mean(axis=1),
        "not_certifiable_rate": outcomes.flagged.mean(axis=1),
        "abstention_rate": 1.0 - answered.mean(axis=1),
        "mean_set_size": outcomes.sizes.mean(axis=1),
        "mean_distinct_answers": outcomes.distinct.mean(axis=1),
        "worst_group_coverage": np.fmin.reduce(groups.compute_means(outcomes.covered), axis=1),
        "selective_accuracy": accuracy,
        "mean_candidates_drawn": outcomes.drawn.mean(axis=1),
    }


def compute_claims_figures(outcomes: Outcomes) -> dict[str, FloatArray]:
    """Return (E,) values of the figures that only claims have; `unsupported_kept` is NaN if none is kept."""
    kept = outcomes.sizes.sum(axis=1)
    with np.errstate(invalid="ignore"):
        unsupported = outcomes.wrong.sum(axis=1) / kept
    return {
        "claims_kept": kept / outcomes.drawn.sum(axis=1),
        "unsupported_kept": unsupported,
        "all_correct_rate": (outcomes.wrong == 0).mean(axis=1),
    }


def compute_group_figures(outcomes: Outcomes, groups: Groups) -> dict[str, FloatArray]:
    """Return (E, G) figures of each group by name, NaN for a group without prompts."""
    return {
        "coverage": groups.compute_means(outcomes.covered),
        "kept_promise": groups.compute_means(outcomes.kept),
        "not_certifiable_rate": groups.compute_means(outcomes.flagged),
        "mean_set_size": groups.compute_means(outcomes.sizes),
        "threshold": groups.compute_means(outcomes.thresholds),
    }
