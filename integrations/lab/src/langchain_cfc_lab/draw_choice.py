"""`suggest_draws`: compare how many draws each rule saves, and what that costs in coverage.

As in `suggest`, rules are compared on the fit split of `calibrate`, with the same seed and shares. None of
these prompts calibrates, so the guarantee holds as if the chosen rule had been fixed beforehand. Each inner
split calibrates with a rule on part of these prompts, and judges it on the others as it would be served. For
a bot, the most prompts are answered that the later number of certification prompts would certify if the
selection prompts' figures hold.

Scores of self-consistency are those of all recorded candidates. For a bot they are computed again from the
answers that a rule would have drawn. The rule itself needs records that were collected by it.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np

from langchain_cfc.artifact import has_separate_scores, replay_prefixes, tabulate_held_out
from langchain_cfc.calibration import CalibrationConfig, calibrate
from langchain_cfc.candidates import CandidateBatch, LabelledBatch, score_by_agreement
from langchain_cfc.certificates.bounds import binomial_p_value
from langchain_cfc.certificates.coverage import compute_outcomes
from langchain_cfc.certificates.cuts import FIRST_SHARE
from langchain_cfc.draw_rules import parse_draw_rule, replay
from langchain_cfc.errors import (
    AttainabilityWarning,
    CalibrationError,
    CFCWarning,
    InputError,
    UnattainableTargetError,
)
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features import FeatureMap
from langchain_cfc.records import LabelledRecord, Provenance, tabulate
from langchain_cfc.records.files import open_records
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import Level, format_alpha
from langchain_cfc_lab.bot_plan import rank_answerable
from langchain_cfc_lab.splits import Progress, measure_splits

# Share of the selection prompts on which a rule is judged in an inner split.
_TEST_SHARE = 0.4
# Largest loss of coverage, against drawing all candidates, of the rule that is proposed.
MAX_COVERAGE_LOSS = 0.03
_FIGURES = ("mean_draws", "kept_promise", "coverage", "not_certifiable_rate", "answered_rate", "mean_answers")
_BOT_FIGURES = ("mean_draws", "answered_rate", "wrong_rate")


class JudgedDrawRule(ReportData):
    """Results of a draw rule on prompts that were not calibrated on, as means over inner splits.

    For a bot the figures of answer sets are None.

    Attributes:
        rule: Text of the rule.
        mean_draws: Mean number of candidates drawn for a prompt.
        cost: Cost of a thousand prompts, in the unit of `cost_per_candidate`; None if that was not given.
        answered_rate: Share with an answer.
        wrong_rate: Share of a bot's answers that are wrong; None for answer sets.
        kept_promise: Share of prompts covered or flagged.
        coverage: Share of prompts whose set holds a correct answer.
        not_certifiable_rate: Share flagged.
        mean_answers: Mean number of distinct answers in a set.
        is_on_front: Whether no other rule draws less and is as useful, or is more useful and draws as little.
    """

    rule: str
    mean_draws: float
    cost: float | None
    answered_rate: float
    wrong_rate: float | None = None
    kept_promise: float | None = None
    coverage: float | None = None
    not_certifiable_rate: float | None = None
    mean_answers: float | None = None
    is_on_front: bool

    @property
    def usefulness(self) -> float:
        """The coverage of answer sets; for a bot the share of prompts answered."""
        return self.answered_rate if self.coverage is None else self.coverage


class DrawSuggestion(ReportData):
    """Comparison of draw rules, and the rule to calibrate with.

    Attributes:
        alpha: Error level, as decimal text; None for a bot.
        max_wrong_rate: Largest share of a bot's answers that may be wrong, as decimal text; None for sets.
        n: Number of recorded candidates.
        rules: All rules that were judged, fewest draws first.
        chosen: The cheapest rule that loses at most `most_lost` of the usefulness of drawing all candidates.
        most_lost: Largest loss of `JudgedDrawRule.usefulness`, as a share of all prompts.
        prompts: Number of selection prompts, on which rules were compared.
        splits: Number of inner splits; 0 for a bot.
        command: The command to run next.
    """

    alpha: str | None
    max_wrong_rate: str | None
    n: int
    rules: list[JudgedDrawRule]
    chosen: str
    most_lost: float
    prompts: int
    splits: int
    command: str

    def with_records(self, paths: Sequence[str]) -> DrawSuggestion:
        """Return the suggestion with a command that names the given files."""
        return self.model_copy(update={"command": self.command.replace("RECORDS", shlex.join(paths))})


def suggest_draws(
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    alpha: Level | None = None,
    max_wrong_rate: Level | None = None,
    rules: Sequence[str] | None = None,
    features: str = "hat(mean_score, 5)",
    set_rule: str = "all",
    cost_per_candidate: float | None = None,
    seed: str | int = 0,
    fit_fraction: float = 0.3,
    test_fraction: float = 0.0,
    splits: int = 20,
    jobs: int = 1,
    progress: Progress | None = None,
    provenance: Provenance | None = None,
) -> DrawSuggestion:
    """Compare draw rules by their number of draws and their usefulness, and propose one.

    Args:
        records: Labelled records with all their candidates, or the table that `tabulate` makes of them.
        alpha: Error level of answer sets to calibrate for.
        max_wrong_rate: In its place, the largest share of a bot's answers that may be wrong.
        rules: Draw rules to compare with drawing all candidates; by default about a dozen that suit the
            verifier, see `list_draw_rules`.
        features: Feature map to calibrate with; a bot uses none.
        set_rule: Set rule to calibrate with; a bot uses none.
        cost_per_candidate: Cost of drawing and scoring one candidate, at least 0, in any unit.
        seed: The seed that `calibrate` will get; the next two shares must be those for `calibrate` too.
        fit_fraction: Share of the prompts not held out on which the rule is selected, in (0, 1).
        test_fraction: Share of all prompts held out for evaluation.
        splits: Number of inner splits, at least 2; a bot uses none.
        jobs: Number of processes.
        progress: Function of the inner splits and their number that yields them, such as a progress bar.
        provenance: Header of the records; by default the one that they carry.

    Returns:
        The comparison with the proposed rule and command.

    Raises:
        InputError: If an argument, a rule or a record cannot be used, or the records do not determine the
            scores for fewer candidates: a verifier compared them, other than a bot's by self-consistency.
        FeatureError: If the feature map is wrong.
        CalibrationError: If there are too few selection prompts.
        UnattainableTargetError: If no rule can be expected to certify a bot.

    Warns:
        CFCWarning: If the chosen rule needs records that were collected by it.
    """
    if splits < 2 or not 0.0 < fit_fraction < 1.0:  # noqa: PLR2004 - an inner comparison takes two
        msg = f"fit_fraction must lie in (0, 1) and splits be at least 2, got {fit_fraction!r} and {splits!r}"
        raise InputError(msg)
    if cost_per_candidate is not None and not 0.0 <= cost_per_candidate < np.inf:
        msg = f"cost_per_candidate must be a finite number, at least 0, got {cost_per_candidate!r}"
        raise InputError(msg)
    records, provenance = open_records(records, provenance)
    table = tabulate(records, provenance=provenance)
    plan = make_split_plan(seed, fit=fit_fraction, test=test_fraction)
    part = table.take(plan.list_rows(table)["fit"])
    part = part.take(plan.select_one_per_cluster(part))
    if len(part) == 0:
        msg = "there are no prompts to select on: raise fit_fraction, or add more records"
        raise CalibrationError(msg)
    n = table.draws.n
    draw_all = f"fixed({n})"
    texts = (
        list_draw_rules(part, provenance) if rules is None else [parse_draw_rule(one).text for one in rules]
    )
    texts = list(dict.fromkeys([draw_all, *texts]))
    for one in texts:
        if parse_draw_rule(one).at_most > n:
            msg = f"draws: {one} may draw more than the {n} candidates recorded"
            raise InputError(msg)
    # These are the options of the later calibration, so the parts are the same.
    config = CalibrationConfig(
        alpha=None if alpha is None else format_alpha(alpha),
        max_wrong_rate=max_wrong_rate,
        seed=seed,
        fit_fraction=fit_fraction,
        test_fraction=test_fraction,
    )
    if max_wrong_rate is None:
        config = replace(config, features=FeatureMap.parse(features).text, set_rule=set_rule)
    elif alpha is not None:
        msg = "max_wrong_rate: the draw rule of a bot is chosen without alpha; leave it out"
        raise InputError(msg)
    config.check()
    if max_wrong_rate is None:
        measure = partial(_measure_rules, part, config, provenance, texts)
        means = np.mean(measure_splits(measure, splits, jobs, progress), axis=0).tolist()
    else:
        splits = 0
        certifying = len(plan.select_one_per_cluster(table.take(plan.list_rows(table)["calibration"])))
        means = [_judge_bot_rule(part, config, provenance, one, certifying) for one in texts]
    judged = _mark_front(
        [
            JudgedDrawRule(
                rule=text,
                cost=None if cost_per_candidate is None else 1000.0 * figures[0] * cost_per_candidate,
                is_on_front=False,
                **dict(zip(_BOT_FIGURES if max_wrong_rate else _FIGURES, figures, strict=True)),
            )
            for text, figures in zip(texts, means, strict=True)
        ]
    )
    most = next(one for one in judged if one.rule == draw_all)
    if not max(one.usefulness for one in judged):
        msg = (
            f"max_wrong_rate = {config.wrong_rates[0]}: by the {len(part)} selection prompts, the remaining "
            f"{certifying} would certify no draw rule. `langchain-cfc plan` says how many are needed"
        )
        raise UnattainableTargetError(msg)
    chosen = next(one.rule for one in judged if one.usefulness >= most.usefulness - MAX_COVERAGE_LOSS)
    final = CalibrationConfig(**(config.to_arguments() | {"draws": None if chosen == draw_all else chosen}))
    return DrawSuggestion(
        alpha=None if max_wrong_rate is not None else config.alphas[0],
        max_wrong_rate=None if max_wrong_rate is None else config.wrong_rates[0],
        n=n,
        rules=judged,
        chosen=chosen,
        most_lost=MAX_COVERAGE_LOSS,
        prompts=len(part),
        splits=splits,
        command=_format_command(final, chosen, draw_all, provenance),
    )


def _format_command(
    config: CalibrationConfig, chosen: str, draw_all: str, provenance: Provenance | None
) -> str:
    """Return the command to run next: calibrate, or collect if the rule changes the recorded scores."""
    if chosen == draw_all or has_separate_scores(provenance) is not False:
        return config.format_command(["RECORDS"])
    warnings.warn(
        "the scores are agreement among all candidates of a question, which has fewer values with fewer "
        "draws: collect new records by the rule, and calibrate these",
        CFCWarning,
        stacklevel=3,
    )
    rule = parse_draw_rule(chosen)
    drawn = ["-n", str(rule.at_most)] if rule.condition == "fixed" else ["--draws", chosen]
    return shlex.join(["langchain-cfc", "collect", *drawn, "--store", "by_rule.db"])


def _measure_rules(
    table: LabelledBatch,
    config: CalibrationConfig,
    provenance: Provenance | None,
    rules: Sequence[str],
    split: int,
) -> list[list[float]]:
    """Calibrate with each rule in one inner split, and return its `_FIGURES` on the other prompts."""
    options = config.to_arguments() | {
        "seed": f"{config.seed}/draws {split}",
        "test_fraction": _TEST_SHARE,
        "fit_fraction": None,
        "allow_unattainable": True,
    }
    figures = []
    for rule in rules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttainabilityWarning)
            artifact = calibrate(table, **options | {"draws": rule}, provenance=provenance)
        test, _ = tabulate_held_out(artifact, table)
        outcomes = compute_outcomes(artifact, test, config.alphas[0])
        decided = outcomes.decisions
        each = (test.draws.counts, outcomes.kept, outcomes.covered, decided.not_certifiable, decided.answered)
        figures.append([float(values.mean()) for values in (*each, decided.distinct_answers)])
    return figures


def _judge_bot_rule(
    table: LabelledBatch,
    config: CalibrationConfig,
    provenance: Provenance | None,
    rule: str,
    certifying: int,
) -> list[float]:
    """Return the `_BOT_FIGURES` of a rule."""
    drawn = _replay_agreement(rule, table, provenance)
    means, wrong = rank_answerable(drawn)
    rate, level = Fraction(config.wrong_rates[0]), config.first_level * FIRST_SHARE
    answered = 0  # the most selection prompts, ties complete, whose figures would certify the rate
    for size in np.flatnonzero(np.diff(means, append=np.inf) > 0.0) + 1:
        trials = int(size) * certifying // len(table)
        if binomial_p_value(int(wrong[size]) * trials // int(size), trials, rate) <= level:
            answered = int(size)
    wrong_rate = int(wrong[answered]) / max(1, answered)
    return [float(drawn.draws.counts.mean()), answered / len(table), wrong_rate]


def _replay_agreement(rule: str, table: LabelledBatch, provenance: Provenance | None) -> LabelledBatch:
    """Return `replay_prefixes`, for scores of self-consistency with those of the candidates drawn."""
    draws, parsed = table.draws, parse_draw_rule(rule)
    if has_separate_scores(provenance) is not False or not np.allclose(
        draws.scores, _score_by_agreement(draws), rtol=0.0, atol=1e-6
    ):
        return replay_prefixes(parsed, table, provenance)
    drawn = replay(parsed, table)
    return replace(drawn, draws=replace(drawn.draws, scores=_score_by_agreement(drawn.draws), precomputed={}))


def _score_by_agreement(draws: CandidateBatch) -> FloatArray:
    """Return (N, n) scores by agreement among the candidates drawn; NaN without answers."""
    codes, blank = draws.answer_codes, draws.blank
    if codes is None or blank is None:
        return np.full(draws.scores.shape, np.nan)
    return score_by_agreement(np.where(blank, -1, codes), draws.counts)


def list_draw_rules(prompts: LabelledBatch, provenance: Provenance | None) -> list[str]:
    """List about a dozen draw rules that suit prompts with n recorded candidates.

    Rules on answers are listed if answers are known, and rules on scores if the verifier scores each
    candidate by itself. Cuts of scores are quantiles of these prompts' scores.

    Args:
        prompts: The selection prompts.
        provenance: Header of the records, which describes their verifier.

    Returns:
        The rules as texts, each with at most n draws.
    """
    n = prompts.draws.n
    first = max(2, n // 2)
    texts = [f"fixed({max(1, n // 2)})"]
    if prompts.draws.answer_codes is not None:
        texts += [f"lead({lead}, at_most={n})" for lead in (1, 2, 3, 4) if lead < n]
        if first < n:
            texts += [f"agree({share}, rounds={first}+{n - first})" for share in ("0.8", "1")]
    if has_separate_scores(provenance):
        cuts = np.quantile(prompts.draws.scores, [0.05, 0.15, 0.3, 0.5, 0.7]).round(3)
        texts += [f"below({cut:g}, at_most={n})" for cut in np.unique(cuts).tolist() if 0.0 < cut <= 1.0]
    return texts


def _mark_front(judged: Sequence[JudgedDrawRule]) -> list[JudgedDrawRule]:
    """Sort rules by mean number of draws, and mark those on the front; see `JudgedDrawRule`."""
    ordered = sorted(judged, key=lambda one: (one.mean_draws, -one.usefulness))
    best = -1.0
    marked = []
    for one in ordered:
        marked.append(one.model_copy(update={"is_on_front": one.usefulness > best}))
        best = max(best, one.usefulness)
    return marked
