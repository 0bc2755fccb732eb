"""`EvaluationReport`: what held-out records show of an artifact, and the verdict on its promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from langchain_cfc.certificates import BatchFigures
from langchain_cfc.features import name_group
from langchain_cfc.support.curves import RiskCurve
from langchain_cfc.support.display import Displayed, Summary, make_frame
from langchain_cfc.support.text import format_percent, join_names, pluralize
from langchain_cfc.support.units import UNITS, UnitTraits

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ReportData(Displayed, BaseModel):
    """Base class of all reports: frozen, without infinities and unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ClaimsFigures(ReportData):
    """Figures of the claims that were kept in the answers.

    Attributes:
        per_answer: Mean number of claims per answer.
        kept: Share of all claims that were kept.
        emptied: Share of answers that lost all their claims.
        unsupported: Share of unsupported claims among all claims.
        unsupported_kept: Share of unsupported claims among the claims kept; 0 if none was kept.
    """

    per_answer: float
    kept: float
    emptied: float
    unsupported: float
    unsupported_kept: float


class CoverageFigures(ReportData):
    """Figures of a method over all test prompts, or weighted over a group of them.

    `evaluate` measures one split: intervals are two-sided Clopper-Pearson intervals, and those of all groups
    hold simultaneously with confidence 95 % (Bonferroni); for soft groups approximately, by effective size.
    `compare` measures many splits: figures are means, with intervals as in `experiments.Spread`.

    Attributes:
        coverage: Share of prompts whose returned set holds a correct answer (the paper's ECR).
        kept_promise: Share covered or flagged as not certifiable: the guaranteed event.
        kept_promise_ci: Interval of `kept_promise`.
        not_certifiable_rate: Share flagged as not certifiable.
        mean_set_size: Mean number of candidates returned (the paper's APSS).
    """

    coverage: float
    kept_promise: float
    kept_promise_ci: tuple[float, float]
    not_certifiable_rate: float
    mean_set_size: float


class GroupFigures(CoverageFigures):
    """Results of a method in one group of test prompts, or under one weighting of them.

    Attributes:
        name: Name of the group or weighting.
        words: Its name to show to people.
        n: Sum of its weights; for a group, the number of its prompts.
    """

    name: str
    words: str
    n: float


class GroupReport(GroupFigures):
    """Results of an artifact in one group of test prompts, or under one weighting of them.

    Attributes:
        stated_coverage: Weighted mean of the stated coverage, which is the target unless levels are adaptive.
        claims: Figures of the claims, with the same weights; None if whole answers are kept.
    """

    stated_coverage: float
    claims: ClaimsFigures | None = None


class MethodFigures(CoverageFigures):
    """Figures of a method at one level over all test prompts, in one split or as means over many.

    Attributes:
        coverage_ci: Two-sided 95 % interval of `coverage`; for one split, the Clopper-Pearson interval.
        abstention_rate: Share of prompts without an answer, flagged ones included.
        mean_distinct_answers: Mean number of distinct answers returned.
    """

    coverage_ci: tuple[float, float]
    abstention_rate: float
    mean_distinct_answers: float


class LevelReport(ReportData):
    """Facts about one error level that do not depend on the methods.

    Attributes:
        alpha: Error level; of a bot alone, its smallest rate.
        target_coverage: 1 - alpha.
        n_calibration: Number of calibration prompts; for several splits, the rounded mean.
        n_test: Number of test prompts, likewise.
        n_candidates: Number of candidates per prompt.
        attainable_coverage: Share of test prompts with a correct candidate that can enter the set.
    """

    alpha: float
    target_coverage: float
    n_calibration: int
    n_test: int
    n_candidates: int
    attainable_coverage: float


class MethodReport(MethodFigures):
    """Results of one threshold rule over all test prompts.

    Attributes:
        stated_coverage: Mean coverage stated for the prompts, which is the target unless levels are adaptive.
        not_certifiable_ci: Interval of the share flagged.
        refused_rate: Share flagged only because the artifact keeps too few calibration prompts to determine
            the threshold; part of `not_certifiable_rate`.
        abstention_ci: Interval of the share without an answer.
        groups: The guaranteed weightings that hold test prompts, in the order of the feature map.
        stated_levels: Results by stated level, largest coverage first; only if levels are adaptive. The
            guarantee is for the `groups`, not for each level by itself.
        claims: Figures of the claims; None if whole answers are kept.
    """

    stated_coverage: float
    not_certifiable_ci: tuple[float, float]
    refused_rate: float = 0.0
    abstention_ci: tuple[float, float]
    groups: list[GroupReport]
    stated_levels: list[GroupReport] = []
    claims: ClaimsFigures | None = None


class AnswersReport(ReportData):
    """Results of bot mode at one certified rate.

    Attributes:
        max_wrong_rate: The certified bound on the share of wrong answers.
        answered: Number of test prompts answered.
        answered_rate: Share of test prompts answered.
        wrong: Number of answered prompts whose best answer is wrong.
        wrong_rate: Share of answered prompts whose best answer is wrong; 0 if none is answered.
        wrong_rate_ci: Two-sided 95 % Clopper-Pearson interval of `wrong_rate`.
        contradicted: Whether so many wrong answers have a probability below 2.5 % at the certified bound.
        claims: Figures of the claims; None for whole answers. One claim drawn from those that an answer shows
            then decides whether it is wrong.
    """

    max_wrong_rate: float
    answered: int
    answered_rate: float
    wrong: int
    wrong_rate: float
    wrong_rate_ci: tuple[float, float]
    contradicted: bool
    claims: ClaimsFigures | None = None


class _Row(NamedTuple):
    """What was answered and wrong for a certified rate or in a group; see `EvaluationReport.to_df`."""

    promise: str
    group: str
    questions: float
    answered: float
    wrong: float
    low: float
    high: float
    limit: float


class EvaluationReport(LevelReport):
    """Results of an artifact on labelled prompts that it was not calibrated on.

    Attributes:
        test_prompts: Which prompts of the records were used, in words.
        artifact_digest: Digest of the artifact.
        other_parts: Parts, such as `verifier`, that differ from those calibrated, so that these records do
            not test the promise.
        guarantee: Kind of the artifact's guarantee: `conditional`, `certified` or `heuristic`.
        promise: The option that names the level: `alpha` for answer sets, or `max_wrong_of_all` for a bot
            that promises few wrong answers among all questions. Its promise is kept on prompts that
            are answered rightly or not at all, and a set holds the answer, or nothing.
        contradicted: Names of the groups (`1` is all prompts) on which the artifact's own rule kept its
            promise, or that of the certificate over all prompts, too rarely for chance.
        methods: Results of the artifact's own thresholds (`conditional`) and, unless that is what these are,
            of one threshold for all prompts (`marginal`). Empty for a bot alone, which has no sets.
        answers: Results of bot mode at each certified rate, ascending.
        batches: Results of random batches of the test prompts; empty if the artifact promises only sets or
            keeps no scores for batches, or there are too few test prompts.
        mean_draws: Mean number of candidates drawn for a prompt; None without a draw rule.
        certified_by_people: What people's labels certify about the level and bot mode, in words.
        curve: Wrong against answered test prompts, cut by cut, with the certified cuts.
        subject: What it speaks of if that is `runs` or `calls` of an agent; None for answers and claims.
    """

    test_prompts: str
    artifact_digest: str
    other_parts: tuple[str, ...] = ()
    guarantee: str
    promise: Literal["alpha", "max_wrong_of_all"] = "alpha"
    contradicted: list[str]
    methods: dict[str, MethodReport]
    answers: tuple[AnswersReport, ...] = ()
    batches: tuple[BatchFigures, ...] = ()
    mean_draws: float | None = None
    certified_by_people: tuple[str, ...] = ()
    curve: RiskCurve = RiskCurve(answered=[], wrong=[])
    subject: Literal["runs", "calls"] | None = None

    def __repr__(self) -> str:
        """Return the verdict in one line."""
        return f"EvaluationReport({self.n_test} test prompts; {self.verdict.rstrip('.')})"

    @property
    def traits(self) -> UnitTraits:
        """The words for what it speaks of."""
        return UNITS[self.subject or ("answers" if self.claims is None else "claims")]

    def _summarise(self) -> Summary:
        prompt, shown = self.traits.prompt, self.traits.shown
        rows = list(self._list_rows())
        marginal = {row.group: format_percent(row.wrong, ".1f") for row in rows if row.promise == "marginal"}
        asked = "asked" if self.subject is None else f"{prompt}s"
        table = [("", asked, shown, "wrong", "95 %", "limit", *(["marginal"] if marginal else []))]
        table += [
            (
                row.group,
                f"{row.questions:.0f}",
                format_percent(row.answered),
                format_percent(row.wrong, ".1f"),
                f"{100 * row.low:.0f}-{100 * row.high:.0f}",
                format_percent(row.limit, ".3g"),
                *([marginal.get(row.group, "")] if marginal else []),
            )
            for row in rows
            if row.promise != "marginal"
        ]
        shares = [one.answered_rate for one in self.answers]
        shares = shares or [1.0 - one.abstention_rate for one in self.methods.values()][:1]
        answered = join_names([format_percent(share) for share in shares])
        tested = f"{answered} of {pluralize(self.n_test, prompt)} are {shown}: {self.test_prompts}."
        return Summary(self.verdict, (tested, *self._describe_sets()), "In numbers", table)

    def _describe_sets(self) -> Iterator[str]:
        """Yield what the table leaves out about sets, or about the claims that are shown."""
        if self.claims is not None:
            kept, emptied = format_percent(self.claims.kept), format_percent(self.claims.emptied)
            unsupported, shown = (
                format_percent(share, ".1f")
                for share in (self.claims.unsupported, self.claims.unsupported_kept)
            )
            yield self.traits.kept.format(kept, emptied, unsupported, shown)
        elif self.methods and self.promise == "alpha":
            own = self.methods["conditional"]
            covered, flagged = (
                format_percent(share, ".1f") for share in (own.coverage, own.not_certifiable_rate)
            )
            yield (
                f"The set holds a right answer for {covered} of the questions, and {flagged} are flagged as "
                f"not certifiable. A set has {own.mean_distinct_answers:.2f} different answers on average."
            )

    def _list_rows(self) -> Iterator[_Row]:
        """Yield for each certified rate, and for each method and group, what was answered and wrong.

        A set is wrong if it breaks its promise, among all questions; a bot's answer, among those answered.
        """
        for one in self.answers:
            limit = one.max_wrong_rate
            name = f"bot, at most {format_percent(limit, 'g')} wrong"
            shares = (one.answered_rate, one.wrong_rate, *one.wrong_rate_ci, limit)
            yield _Row("bot", name, float(self.n_test), *shares)
        for promise, method in self.methods.items():
            parts: list[tuple[str, float, float, MethodReport | GroupReport]] = [
                (f"all {self.traits.prompt}s", float(self.n_test), 1.0 - method.abstention_rate, method)
            ]
            # A bot shows one answer or none, also where it is not flagged.
            parts += [
                (
                    name_group(group.words, group.name),
                    group.n,
                    group.mean_set_size if self.promise != "alpha" else 1.0 - group.not_certifiable_rate,
                    group,
                )
                for group in (*method.groups, *method.stated_levels)
            ]
            for name, size, answered, part in parts:
                kept = (part.kept_promise, *reversed(part.kept_promise_ci), part.stated_coverage)
                broken = [round(1.0 - share, 12) + 0.0 for share in kept]  # not -0.0
                yield _Row(promise, name, size, answered, *broken)

    def to_df(self) -> Any:
        """Return what was answered and wrong as a pandas DataFrame, with a row for each rate and group.

        Columns are `promise` (`bot`, `conditional` or `marginal`), `group`, `questions`, and as shares
        `answered`, `wrong` with its 95 % interval `low` to `high`, and `limit`. Of a bot, `wrong` is the
        share of answers that are wrong; of sets, that of questions on which the promise is broken.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        return make_frame([row._asdict() for row in self._list_rows()])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw wrong against answered test prompts, with the certified cuts; see `RiskCurve.plot`."""
        return self.curve.plot(ax)

    @property
    def verdict(self) -> str:
        """Whether the results contradict what is promised, in one sentence with the figures."""
        if self.other_parts:
            return f"Not comparable: {state_other_parts(self.other_parts)}."
        is_bot = bool(self.answers) and (not self.methods or self.guarantee == "heuristic")
        if is_bot or any(one.contradicted for one in self.answers):
            figures = "; ".join(
                _state_wrong(one.wrong_rate if one.answered else None, one.max_wrong_rate, one.contradicted)
                for one in self.answers
            )
            broken = any(one.contradicted for one in self.answers)
            return f"{'Contradicts' if broken else 'Consistent with'} the certificate: {figures}."
        own = self.methods["conditional"]
        if self.promise == "max_wrong_of_all":
            wrong = 1.0 - own.kept_promise
            what = f"of all {self.traits.prompt}s {self.traits.shown} wrongly"
            figures = _state_wrong(wrong, self.alpha, bool(self.contradicted), what)
        else:
            figures = (
                f"kept for {format_percent(own.kept_promise, '.1f')} of the {self.traits.prompt}s, "
                f"target {format_percent(own.stated_coverage, '.3g')}"
            )
        if self.guarantee == "heuristic":
            return f"No promise to check: {figures}."
        if not self.contradicted:
            return f"Consistent with the promise: {figures}."
        named = {one.name: name_group(one.words, one.name) for one in own.groups}
        where = join_names([named.get(name, "all prompts") for name in self.contradicted])
        return f"Contradicts the promise, for {where}: {figures}."

    @property
    def claims(self) -> ClaimsFigures | None:
        """Figures of the claims, at the level or at the smallest certified rate; None for whole answers."""
        found = [one.claims for one in self.methods.values()] + [one.claims for one in self.answers]
        return found[0] if found else None

    @property
    def is_passed(self) -> bool:
        """Whether the records test what is promised, and nothing contradicts it."""
        failed = self.other_parts or self.contradicted or any(one.contradicted for one in self.answers)
        return not failed

    def describe_draws(self, each: str) -> str:
        """Return the number of candidates in words; `each` is a noun, or words such as `for each prompt`."""
        if self.mean_draws is None:
            return f"{self.n_candidates} {each}"
        return f"at most {self.n_candidates} {each}, {self.mean_draws:.1f} on average"


def _state_wrong(share: float | None, limit: float, is_contradicted: bool, wrong: str = "wrong") -> str:
    """State a share of wrong answers, None if nothing is answered, beside its limit."""
    if share is None:
        return f"nothing answered, limit {format_percent(limit, 'g')}"
    chance = ", which chance explains" if share > limit and not is_contradicted else ""
    return f"{format_percent(share, '.1f')} {wrong}, limit {format_percent(limit, 'g')}{chance}"


def state_other_parts(parts: Sequence[str]) -> str:
    """State that records come from other parts than those calibrated, so that they do not test the promise.

    Examples:
        >>> state_other_parts(["generator", "verifier"])[:70]
        'these records come from another generator and another verifier than th'
    """
    return (
        f"these records come from another {' and another '.join(parts)} than the calibration records, and "
        "the artifact promises nothing about them"
    )
