"""Options tried on inner splits of the selection prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from langchain_cfc._arrays import FloatArray, IntArray
from langchain_cfc.comparison.groups import groups_of, properties
from langchain_cfc.comparison.methods import OURS, ThresholdMethod
from langchain_cfc.comparison.metrics import Outcomes
from langchain_cfc.comparison.pool import Pool, Split
from langchain_cfc.errors import CalibrationError, InputError, ThresholdError
from langchain_cfc.features import naming
from langchain_cfc.splits import Part, split_plan
from langchain_cfc.suggestion.options import Option

# Of the selection prompts a third is tested on; where there are verifiers to combine, a quarter of the others
# fits the combinations.
TEST = 1.0 / 3.0
FIT = 0.25
# The share of a few prompts is an accident.
FEWEST_IN_GROUP = 20


@dataclass(frozen=True, eq=False)
class JudgedGroups:
    """The groups that gaps are looked for in, the same for every option.

    Attributes:
        words: P groups in words, all prompts first.
        member: (M, P) 1.0 where a selection prompt is in a group.
        left_out: Number of groups with too few prompts to be judged.
    """

    words: tuple[str, ...]
    member: FloatArray
    left_out: int

    @classmethod
    def of(cls, pool: Pool, judge: Sequence[str] | None) -> JudgedGroups:
        """Groups along every property that the prompts are known to have, or along those named.

        Args:
            pool: M selection prompts with their recorded scores.
            judge: Feature texts of groups, such as `bins(mean_score, 5)` or `group(topic)`.

        Raises:
            InputError: If a text is something else.
            FeatureError: If groups cannot be made of these prompts.
        """
        draws = pool.draws
        with naming(pool.labelled.ids):
            along = properties(draws) if judge is None else [groups_of(text, draws, draws) for text in judge]
        words = ["all prompts", *(words for groups in along for words in groups.words)]
        member = np.column_stack([np.ones(len(draws)), *(groups.member for groups in along)])
        enough = member.sum(axis=0) >= FEWEST_IN_GROUP
        enough[0] = True
        kept = tuple(one for one, there in zip(words, enough.tolist(), strict=True) if there)
        return cls(kept, member[:, enough], int((~enough).sum()))


@dataclass(frozen=True, eq=False)
class Tried:
    """What an option did on the test prompts of one inner split.

    Attributes:
        kept: (P,) kept promise of each group; NaN for a group without test prompts.
        columns: Number of features.
        size: Mean number of distinct answers shown; n for a flagged prompt.
        kept_promise: Share covered or flagged.
        flagged: Share flagged.
        abstained: Share without an answer.
        withheld: Share flagged of the prompts that have a correct candidate; 0 where none has.
    """

    kept: FloatArray
    columns: int
    size: float
    kept_promise: float
    flagged: float
    abstained: float
    withheld: float


# By option; where one could not be used, why.
Trial: TypeAlias = tuple[Tried | str, ...]


@dataclass(frozen=True, eq=False)
class Trials:
    """Options, and the prompts to try them on.

    Feature maps are fitted on all selection prompts, as `calibrate` will: of those tested on they see scores,
    answers and metadata, but no label. A combination of verifiers learns from labels, and has a part of each
    inner split to itself.

    Attributes:
        pool: M selection prompts, of each cluster one.
        groups: The groups that gaps are looked for in.
        options: C options.
        alpha: Error level as decimal text.
        seed: What inner splits are drawn by.
        fit: Share of the prompts not tested on that fits combinations.
    """

    pool: Pool
    groups: JudgedGroups
    options: tuple[Option, ...]
    alpha: str
    seed: str
    fit: float

    def measured(self, number: int) -> Trial:
        """What every option did on inner split `number`, from 0.

        Raises:
            CalibrationError: If a part of it is empty.
        """
        rows = split_plan(f"{self.seed}/{number}", fit=self.fit, test=TEST).rows(self.pool.labelled)
        asked: tuple[Part, ...] = ("calibration", "test", *(("fit",) if self.fit else ()))
        if not all(len(rows[part]) for part in asked):
            msg = (
                f"{len(self.pool.labelled)} selection prompts are too few to be split once more: raise "
                "fit_fraction, or bring more records"
            )
            raise CalibrationError(msg)
        splits: dict[tuple[str, ...] | None, Split] = {}
        return tuple(self._tried(option, rows, splits) for option in self.options)

    def _tried(
        self, option: Option, rows: dict[Part, IntArray], splits: dict[tuple[str, ...] | None, Split]
    ) -> Tried | str:
        try:
            if option.combine not in splits:
                splits[option.combine] = self._split(option.combine, rows)
            split = splits[option.combine]
            method = ThresholdMethod(
                option.words,
                "",
                "",
                "ours",
                rule="conditional",
                convention=OURS,
                set_rule=option.set_rule,
                features=option.features,
            )
            made = method.make(split, self.alpha)
        except (InputError, CalibrationError, ThresholdError) as error:
            return first_line(error)
        columns = split.features(option.features, "fit").shape[1]
        return _outcome(Outcomes.of([made], split.test_correct), split, self.groups.member, columns)

    def _split(self, combine: tuple[str, ...] | None, rows: dict[Part, IntArray]) -> Split:
        """The prompts with the scores of this split; feature maps are fitted on all of them."""
        pool = self.pool if combine is None else self.pool.combined(combine, rows["fit"])
        everything = np.arange(len(pool.labelled))
        return Split(pool, everything, rows["calibration"], rows["test"], "1", "all")


def _outcome(seen: Outcomes, split: Split, member: FloatArray, columns: int) -> Tried:
    kept, flagged = seen.kept[0], seen.flagged[0]
    inside = member[split.test]
    with np.errstate(invalid="ignore", divide="ignore"):
        by_group = (kept @ inside) / inside.sum(axis=0)
    attainable = split.pool.attainable[split.test]
    return Tried(
        kept=np.asarray(by_group, dtype=np.float64),
        columns=columns,
        size=float(np.where(flagged, split.pool.draws.n, seen.distinct[0]).mean()),
        kept_promise=float(kept.mean()),
        flagged=float(flagged.mean()),
        abstained=float((seen.sizes[0] == 0).mean()),
        withheld=float((flagged & attainable).sum() / max(int(attainable.sum()), 1)),
    )


def first_line(error: Exception) -> str:
    """What an error says, without the places that it points at."""
    return str(error).partition("\n")[0]
