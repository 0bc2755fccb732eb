"""Options tried on inner splits of the selection prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from langchain_cfc._internal.arrays import FloatArray, IntArray
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError, ThresholdError
from langchain_cfc.experiments.methods import OURS, Pool, Split, ThresholdMethod
from langchain_cfc.experiments.metrics import Outcomes, groups_of, properties
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.features.terms import Group
from langchain_cfc.records import PromptRecord, Provenance, Records, tabulate, tabulate_raw
from langchain_cfc.splits import Part, SplitPlan, digest_ids, split_plan

# Each in a word. Few, and unlike each other: the more there are, the luckier the luckiest is.
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
# Under `unique(...)` the same distinct answers enter at the same thresholds, so that nothing told here tells
# it from what it wraps; `rank` forgets how far scores lie apart.
DEFAULT_SET_RULES = ("all", "best_prefix")
MOST_KEYS = 3
MOST_CATEGORIES = 10


@dataclass(frozen=True)
class Option:
    """One way to calibrate.

    Attributes:
        features: The feature map.
        set_rule: The set rule.
        combine: Verifiers whose raw outputs make the score; None for the recorded score.
    """

    features: str
    set_rule: str
    combine: tuple[str, ...] | None = None

    @property
    def words(self) -> str:
        """What it is, on one line."""
        scored = "" if self.combine is None else f", scored by {' + '.join(self.combine)}"
        return f"{self.features} with {self.set_rule}{scored}"


def default_maps(draws: CandidateBatch) -> tuple[str, ...]:
    """Feature maps worth trying.

    Args:
        draws: The prompts to select on.

    Returns:
        Maps of scores; of answers, where they are known; and of metadata, where a key has few categories.
    """
    maps = [*DEFAULT_MAPS, *(ANSWER_MAPS if draws.answer_codes is not None else ())]
    for key in list(_keys_of_few_categories(draws))[:MOST_KEYS]:
        maps += [key, f"hat(mean_score, 5) + {key}"]
    return tuple(maps)


def _keys_of_few_categories(draws: CandidateBatch) -> Iterable[str]:
    entries = list(draws.metadata)
    for key in entries[0] if entries else ():
        values = {one.get(key) for one in entries}
        if None not in values and 1 < len(values) <= MOST_CATEGORIES:
            yield Group(key).text


def canonical_maps(texts: Sequence[str]) -> tuple[str, ...]:
    """The same maps in canonical text, each once."""
    return tuple(dict.fromkeys(FeatureMap.parse(text).text for text in texts))


def combinations(verifiers: Sequence[str], same: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Each verifier alone, and all together.

    Args:
        verifiers: Their names.
        same: Those that say the same as the recorded score, which is tried anyway.
    """
    alone = [(name,) for name in verifiers if name not in same]
    return (*alone, tuple(verifiers)) if len(verifiers) > 1 else tuple(alone)


def saying_the_same(labelled: LabelledBatch) -> list[str]:
    """The verifiers whose raw outputs order all candidates as the recorded scores do, or the other way round.

    Such is the log-probability that a score was made of. Alone it makes the same sets wherever thresholds do
    not depend on the unit of scores.
    """
    scores = labelled.draws.scores.ravel()
    return [name for name, outputs in labelled.raw.items() if _monotone(scores, outputs.ravel())]


def _monotone(scores: FloatArray, outputs: FloatArray) -> bool:
    """Whether outputs only rise, or only fall, with scores; equal scores may have any."""
    rising = (directed[np.lexsort((directed, scores))] for directed in (outputs, -outputs))
    return any(bool((ordered[1:] >= ordered[:-1]).all()) for ordered in rising)


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
        with name_records_in_errors(pool.labelled.ids):
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


@dataclass(frozen=True, eq=False)
class SelectionPrompts:
    """The prompts to select on.

    Attributes:
        plan: The split that `calibrate` will make.
        pool: M prompts of its fit part, of each cluster one.
        digest: Digest of all ids of the fit part.
        clustered: Number of prompts of that part that are left out, for there are others of their cluster.
        calibration: Number of prompts that will calibrate, of each cluster one.
    """

    plan: SplitPlan
    pool: Pool
    digest: str
    clustered: int
    calibration: int

    @classmethod
    def of(cls, table: LabelledBatch, plan: SplitPlan) -> SelectionPrompts:
        """The fit part of a split; of the other parts nothing is read but ids and clusters.

        Raises:
            CalibrationError: If it is empty.
        """
        rows = plan.rows(table)
        part = table.take(rows["fit"])
        if not len(part):
            msg = (
                "there are no prompts to select on, for the fit split is empty: raise fit_fraction, or bring "
                "more records (a cluster is never split, so many clusters are needed)"
            )
            raise CalibrationError(msg)
        alone = part.take(plan.one_per_cluster(part))
        return cls(
            plan,
            Pool(alone),
            digest_ids(part.ids),
            len(part) - len(alone),
            len(plan.one_per_cluster(table.take(rows["calibration"]))),
        )


def tabulated(
    records: Iterable[PromptRecord] | LabelledBatch,
    verifiers: Sequence[str] | None,
    *,
    n: int | None = None,
    provenance: Provenance | None = None,
) -> tuple[LabelledBatch, list[str]]:
    """Labelled records as a table with the raw outputs of the verifiers that may be combined, and no others.

    Args:
        records: Labelled records, or a table.
        verifiers: Names of verifiers; by default those whose output every candidate has.
        n: Number of candidates to use, the first n slots; by default all.
        provenance: Header of the records where they do not carry one themselves.

    Returns:
        The table, and what is to be said of verifiers that were left out.

    Raises:
        InputError: If a record cannot be used, or a candidate lacks the output of a verifier that was named.
    """
    notes: list[str] = []
    if not isinstance(records, (Records, LabelledBatch)):
        records = list(records)
    if verifiers is not None:
        names = tuple(verifiers)
        unwritable = [name for name in names if not _can_be_listed(name)]
        if unwritable:
            msg = (
                f"the verifier {unwritable[0]!r} cannot be named to `calibrate --combine`, which takes names "
                "between commas: rename it in the records"
            )
            raise InputError(msg)
    elif isinstance(records, LabelledBatch):
        names = tuple(records.raw)
    else:
        names, notes = _verifiers_of(records)
    notes += [
        f"The verifier {name!r} was left out: a list of names between commas cannot hold it."
        for name in names
        if not _can_be_listed(name)
    ]
    names = tuple(filter(_can_be_listed, names))
    if not names:
        table = tabulate(records, n=n, provenance=provenance)
    else:
        table, _ = tabulate_raw(records, names, n=n, provenance=provenance)
    return replace(table, raw={name: table.raw[name] for name in names}), notes


def _can_be_listed(name: str) -> bool:
    """Whether `calibrate --combine` reads the name as it is."""
    return "," not in name and name == name.strip() and bool(name)


def _verifiers_of(records: Iterable[PromptRecord]) -> tuple[tuple[str, ...], list[str]]:
    """The verifiers whose raw output every candidate has, and a note on each of the others."""
    found: Counter[str] = Counter()
    candidates = 0
    for record in records:
        for candidate in record.candidates:
            found.update((candidate.scores or {}).keys())
            candidates += 1
    everywhere = tuple(name for name, count in found.items() if count == candidates)
    notes = [
        f"The verifier {name!r} was left out: {count} of {candidates} candidates have its output, and a "
        "calibration needs all."
        for name, count in found.items()
        if count < candidates
    ]
    return everywhere, notes
