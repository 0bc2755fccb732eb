"""What to do next: rules that turn an artifact's promise and results into recommended commands.

A rule looks at a `Situation` and yields a recommendation, or none. The limits of the rules are judgements of
what is worth a reader's time; statistical tests of the promise are taken from the evaluation.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from langchain_cfc.artifact import HELD_OUT_PART, AttainableGroup, CalibrationArtifact
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.evaluation import ClaimsFigures, EvaluationReport, MethodReport
from langchain_cfc.features import name_group
from langchain_cfc.guarantee import format_share
from langchain_cfc.support.text import join_names, pluralize
from langchain_cfc_lab.comparison_report import ComparisonReport
from langchain_cfc_lab.metrics import find_event
from langchain_cfc_lab.report._text import format_interval, to_percent
from langchain_cfc_lab.report.summary import find_guarantee

# Above this share of flagged prompts, abstaining is what users notice first.
MANY_FLAGGED = 0.2
# Below this share of claims kept, or above `MANY_FLAGGED` of answers with no claim left, little is left.
FEW_CLAIMS = 0.5
# A set with more distinct answers than this is of little use to most people.
MANY_ANSWERS = 3.0
# Below this ratio of distinct answers to candidates in a set, sets repeat themselves.
LEAST_DISTINCT_RATIO = 0.8
# With fewer test prompts than this, a 95 % interval can be wider than about twenty points.
FEW_PROMPTS = 100
# Wrong-answer rate to certify if bot mode is recommended.
MAX_WRONG_RATE = "0.1"
# At most this many groups are named; the others are counted.
MOST_GROUPS_NAMED = 4
# Placeholders for records whose names this report does not know.
CALIBRATION_RECORDS = "calibration-records.jsonl"
RECENT_RECORDS = "recent-records.jsonl"
# Share of new records to hold out for a report, if none was held out before.
TEST_FRACTION = 0.3
# A password in the address of a store: user:password@, or ?password=.
_PASSWORD = re.compile(r"((?<=://)[^:/@]*:).*(?=@)|((?<=[?&])password=)[^&]*")


@dataclass(frozen=True)
class Sources:
    """Names of files that recommended commands need.

    Attributes:
        artifact: The artifact's file.
        records: The records, as files or store.
    """

    artifact: str = "artifact.json"
    records: tuple[str, ...] = ("records.jsonl",)

    def without_passwords(self) -> Sources:
        """Return the same names without the passwords that addresses of stores may hold."""
        hidden = (_PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", one) for one in self.records)
        return replace(self, records=tuple(hidden))


@dataclass(frozen=True)
class Recommendation:
    """One thing to do next, with the command that does or begins it."""

    title: str  # an imperative
    why: str  # the reasons, with numbers
    command: str


@dataclass(frozen=True)
class Situation:
    """Input of the rules: an artifact at one level, and its results on held-out prompts."""

    alpha: str  # decimal text
    target: float
    n: int
    heuristic: bool  # whether nothing is promised
    contradicted: tuple[str, ...]  # groups on which the promise was kept too rarely for chance, in words
    wrong_too_often: bool  # whether bot mode answered wrongly more often than chance explains
    bot: bool  # whether a rate of wrong answers was asked for
    certified: bool  # whether any guarantee holds for this very artifact, with confidence
    holds_out: bool  # whether a part of the records was held out of calibration
    bound: bool  # whether the records named their generator and verifier
    tested: int  # number of test prompts
    attainable: float  # share of test prompts with a correct candidate
    attainable_ci: tuple[float, float]
    out_of_reach: tuple[AttainableGroup, ...]  # groups that attain too little for the level
    unique: bool  # whether the set rule returns every answer once
    config: CalibrationConfig  # settings that make such an artifact again
    # Whether the test prompts are the held-out part of the artifact's own records. Other test prompts must
    # not calibrate what is chosen by looking at this report.
    held_out_part: bool
    sources: Sources
    claims: ClaimsFigures | None = None  # results about claims; None if whole answers are kept
    # Results of the sets, which a bot alone does not have.
    kept_ci: tuple[float, float] | None = None
    flagged: float = 0.0  # share of test prompts flagged
    flagged_ci: tuple[float, float] = (0.0, 1.0)
    set_size: float = 0.0  # mean number of candidates returned, over prompts with an answer
    distinct: float = 0.0  # mean number of distinct answers, over the same prompts

    @classmethod
    def from_evaluation(
        cls, artifact: CalibrationArtifact, evaluation: EvaluationReport, sources: Sources | None = None
    ) -> Situation:
        """Build the situation of an artifact from its evaluation at one of its levels."""
        own = evaluation.methods.get("conditional")
        facts, guarantee = artifact.calibration, find_guarantee(artifact, evaluation)
        words = {group.name: name_group(group.words, group.name) for group in facts.groups}
        alone = not artifact.alphas
        has_sets = own is not None and own.claims is None
        size = evaluation.n_test
        return cls(
            alpha=guarantee.alpha,
            target=evaluation.target_coverage,
            n=artifact.n,
            heuristic=guarantee.kind == "heuristic" and not alone,
            contradicted=tuple(words.get(name, name) for name in evaluation.contradicted),
            wrong_too_often=any(one.contradicted for one in evaluation.answers),
            bot=artifact.bot is not None or artifact.is_bot_alone,
            certified=alone or guarantee.certificate is not None or guarantee.failure_probability is not None,
            holds_out=facts.held_out_size > 0,
            bound=artifact.provenance is not None,
            tested=size,
            attainable=evaluation.attainable_coverage,
            attainable_ci=clopper_pearson(round(evaluation.attainable_coverage * size), size),
            out_of_reach=tuple(
                one for one in facts.groups if has_sets and not one.is_attainable(guarantee.alpha)
            ),
            unique=not has_sets or artifact.parsed_set_rule.needs_answers,
            config=CalibrationConfig.from_artifact(artifact),
            held_out_part=evaluation.test_prompts.startswith(HELD_OUT_PART),
            sources=sources or Sources(),
            **({} if own is None else cls._describe_sets(own)),
        )

    @staticmethod
    def _describe_sets(own: MethodReport) -> dict[str, Any]:
        """Return the fields about sets or about what is left of answers."""
        has_sets, returned = own.claims is None, 1.0 - own.abstention_rate
        return {
            "claims": own.claims,
            "kept_ci": own.kept_promise_ci,
            "flagged": own.not_certifiable_rate if has_sets else 0.0,
            "flagged_ci": own.not_certifiable_ci,
            "set_size": own.mean_set_size / returned if returned > 0.0 else 0.0,
            "distinct": own.mean_distinct_answers / returned if returned > 0.0 and has_sets else 0.0,
        }


def recommend(situation: Situation) -> list[Recommendation]:
    """Return what to do next, the most urgent first; empty if no rule applies.

    Args:
        situation: What was promised and seen.
    """
    return [step for rule in RULES for step in rule(situation)]


def check_promise(seen: Situation) -> Iterator[Recommendation]:
    """Recommend another calibration if the promise was kept more rarely than chance explains."""
    if seen.contradicted:
        yield _recommend_recalibration(
            seen,
            "Do not serve this artifact; calibrate again on prompts like those to be served",
            "The promise was kept less often than chance explains on "
            f"{join_names(seen.contradicted, MOST_GROUPS_NAMED)}. "
            "Either these records differ from those calibrated on (other prompts, another model, another "
            "verifier, other labels), or this is the one test in forty that fails by chance. Collect "
            "recent prompts, especially of these groups.",
            recent=True,
        )


def check_bot_mode(seen: Situation) -> Iterator[Recommendation]:
    """Recommend another certificate if bot mode was wrong more often than chance explains."""
    if seen.wrong_too_often:
        yield _recommend_recalibration(
            seen,
            "Do not serve bot mode; certify it again on recent prompts",
            "More answers were wrong than the certified rate and chance explain.",
            recent=True,
        )


def check_guarantee(seen: Situation) -> Iterator[Recommendation]:
    """Recommend calibrating with a guarantee if no theorem backs the thresholds."""
    if seen.heuristic:
        yield _recommend_recalibration(
            seen,
            "Calibrate with a rule that makes a promise",
            "No theorem covers these thresholds, however good the figures are.",
            pac=None,
        )


def check_binding(seen: Situation) -> Iterator[Recommendation]:
    """Recommend records with a header if serving cannot check model and verifier."""
    if not seen.bound:
        yield Recommendation(
            "Record which generator and verifier made the records",
            "The artifact is unbound: its records have no header, so serving cannot detect another "
            "model or verifier. Use records written by `collect`, which have one, and calibrate again.",
            _format_command("collect", "--config", "collect.toml", "--out", "records.jsonl"),
        )


def check_flagged(seen: Situation) -> Iterator[Recommendation]:
    """Recommend a plan if so many prompts are flagged that users will notice."""
    if seen.flagged <= MANY_FLAGGED:
        return
    drawn = seen.n if seen.config.draws is None else f"at most {seen.n}"
    reach = (
        f"{to_percent(seen.attainable)} of the test prompts ({format_interval(seen.attainable_ci)}) have a "
        f"correct candidate among {drawn}, the target is {format_share(seen.target)}"
    )
    if seen.attainable_ci[0] <= seen.target:
        ways = (
            "No verifier can add a correct candidate: draw more candidates, use a better model, or choose a "
            "larger alpha."
        )
    else:
        ways = (
            "Overall that is enough, so another verifier, or features that separate hard prompts better "
            "from easy ones, may flag fewer prompts; so may more candidates."
        )
    yield Recommendation(
        "Draw more candidates, or use another verifier",
        f"{to_percent(seen.flagged)} of the test prompts ({format_interval(seen.flagged_ci)}) are flagged: "
        f"cannot be certified. {reach}. {ways} A plan shows what each number of candidates would attain.",
        _format_command("plan", *seen.sources.records, "--alpha", seen.alpha),
    )


def check_groups(seen: Situation) -> Iterator[Recommendation]:
    """Recommend a plan if too few prompts of a group have a correct candidate."""
    if not seen.out_of_reach:
        return
    worst = sorted(seen.out_of_reach, key=lambda group: group.attainable)
    named = join_names(
        [
            f"{name_group(group.words, group.name)} ({to_percent(group.attainable)} attainable)"
            for group in worst
        ],
        MOST_GROUPS_NAMED,
    )
    larger = math.ceil(100 * max(group.smallest_alpha for group in worst)) / 100
    ways = "More candidates or a better model would help"
    if larger < 1.0:
        ways += f"; so would alpha = {larger:g}, for all of them"
    keys = [key[1] for group in worst if (key := re.match(r"group\(([\w.-]+)\)=", group.name))]
    by_group = ("--group", keys[0]) if keys else ()
    yield Recommendation(
        "Decide what to do with the groups that cannot reach the target",
        f"At any threshold, too few of their prompts have a correct candidate for "
        f"{format_share(seen.target)}: {named}. Most of them are flagged, which keeps the promise and gives "
        f"no answer. {ways}.",
        _format_command("plan", *seen.sources.records, "--alpha", seen.alpha, *by_group),
    )


def check_repetition(seen: Situation) -> Iterator[Recommendation]:
    """Recommend `unique` if sets hold the same answer several times."""
    if not seen.unique and seen.set_size > 1.0 and seen.distinct < LEAST_DISTINCT_RATIO * seen.set_size:
        yield _recommend_recalibration(
            seen,
            "Return every answer once",
            f"A set with answers holds {seen.set_size:.1f} candidates on average, and {seen.distinct:.1f} "
            "distinct answers. The set rule `unique` returns each once, under the same promise.",
            set_rule=f"unique({seen.config.set_rule})",
        )


def check_set_size(seen: Situation) -> Iterator[Recommendation]:
    """Recommend another verifier if sets hold more distinct answers than people can use."""
    if seen.distinct <= MANY_ANSWERS:
        return
    why = (
        f"A set with answers holds {seen.distinct:.1f} distinct answers on average. A verifier that tells "
        "correct from wrong better makes sets smaller under the same promise; the mean of several often does."
    )
    yield Recommendation(
        "Record a second verifier, and average the two",
        f"{why} With a table `[verifiers.NAME]` for each in the configuration, the score is their mean.",
        _format_command("collect", "--config", "collect.toml", "--out", "records.jsonl"),
    )


def check_claims(seen: Situation) -> Iterator[Recommendation]:
    """Recommend allowing one more unsupported claim if little is left of the answers."""
    found = seen.claims
    if found is None or (found.kept >= FEW_CLAIMS and found.emptied <= MANY_FLAGGED):
        return
    most = seen.config.at_most + 1
    yield _recommend_recalibration(
        seen,
        f"To keep more of the answers, allow {pluralize(most, 'unsupported claim')}",
        f"{to_percent(found.kept)} of the claims are kept, and {to_percent(found.emptied)} of the answers "
        "have none left. A promise that allows one more unsupported claim keeps more, and so does a larger "
        f"alpha. Of the claims shown, more than {to_percent(found.unsupported_kept)} are then unsupported. A "
        "verifier that tells supported from unsupported better keeps more under the same promise.",
        at_most=most,
    )


def check_certificate(seen: Situation) -> Iterator[Recommendation]:
    """Recommend a certificate if the promise holds only on average over calibration sets."""
    if seen.certified or seen.heuristic:
        return
    records = seen.sources.records if seen.holds_out else ("new-records.jsonl",)
    source = (
        "A part of its records is held out for that."
        if seen.holds_out
        else "It needs labelled prompts that have not been used for anything else."
    )
    yield Recommendation(
        "Certify this artifact",
        "The promise is on average over calibration sets: this one may do better or worse. A certificate "
        f"bounds from below how well it does, with confidence. {source}",
        _format_command("certify", seen.sources.artifact, *records),
    )


def check_wrong_answers(seen: Situation) -> Iterator[Recommendation]:
    """Recommend bot mode if nothing bounds how often an answer is wrong."""
    if seen.bot or seen.claims is not None:
        return
    yield _recommend_recalibration(
        seen,
        "To answer without showing a set, certify how often answers are wrong",
        "Nothing is promised about how often the best answer of a set is wrong. Bot mode answers only "
        "where that is rare, and abstains elsewhere.",
        max_wrong_rate=MAX_WRONG_RATE,
    )


def check_test_size(seen: Situation) -> Iterator[Recommendation]:
    """Recommend an evaluation on more prompts if there are too few test prompts."""
    if seen.tested >= FEW_PROMPTS:
        return
    known, at = "how often the bot is wrong is hardly known", list[str]()
    if seen.kept_ci is not None:
        known = f"the share of kept promises is known only to be {format_interval(seen.kept_ci)}"
        at = ["--alpha", seen.alpha]
    yield Recommendation(
        "Evaluate on more prompts",
        f"With {pluralize(seen.tested, 'test prompt')}, {known}.",
        _format_command("evaluate", seen.sources.artifact, "more-records.jsonl", *at),
    )


Rule = Callable[[Situation], Iterator[Recommendation]]
RULES: tuple[Rule, ...] = (
    check_promise,
    check_bot_mode,
    check_guarantee,
    check_binding,
    check_flagged,
    check_groups,
    check_repetition,
    check_set_size,
    check_claims,
    check_certificate,
    check_wrong_answers,
    check_test_size,
)


def recommend_calibration(comparison: ComparisonReport, sources: Sources) -> Recommendation:
    """Recommend calibration after a comparison, since a comparison promises nothing by itself."""
    event = find_event(comparison.set_rule)
    return Recommendation(
        "Calibrate an artifact on prompts that this comparison has not seen",
        "A comparison promises nothing by itself, and figures of a method that was chosen by them are "
        "optimistic. New prompts make the promise valid.",
        CalibrationConfig(
            alpha=None if event == "best_answer" else comparison.alpha,
            max_wrong_of_all=comparison.alpha if event == "best_answer" else None,
            features=comparison.features,
            unit=comparison.unit,
            at_most=comparison.at_most or 0,
            set_rule=comparison.set_rule if event == "answers" else "all",
            test_fraction=TEST_FRACTION,
        ).format_command(["new-records.jsonl"], sources.artifact),
    )


def recommend_suggestion(alpha: float, sources: Sources) -> Recommendation:
    """Recommend `suggest` after a comparison; it chooses on prompts that never calibrate."""
    return Recommendation(
        "Choose features and set rule on prompts that never calibrate",
        "It ends with a calibrate command whose calibration prompts the choice has not used, so these "
        "records serve for both.",
        _format_command("suggest", *sources.records, "--alpha", f"{alpha:g}"),
    )


def _recommend_recalibration(
    seen: Situation, title: str, why: str, *, recent: bool = False, **changes: Any
) -> Recommendation:
    """Recommend making such an artifact again, next to the old one, with some options changed.

    Seed, fractions and all other options that determine the split stay, so that no prompt that tested the old
    artifact fits or calibrates the new one. Records that the artifact's split did not divide have all tested
    it: the command then names a placeholder for the calibration records, or for recent ones.
    """
    config = replace(seen.config, **changes)
    records: Sequence[str] = seen.sources.records
    if recent:
        records = (RECENT_RECORDS,)
        config = replace(config, test_fraction=config.test_fraction or TEST_FRACTION)
    elif not seen.held_out_part:
        records = (CALIBRATION_RECORDS,)
        why = (
            f"{why} {CALIBRATION_RECORDS} stands for the records that this artifact was calibrated on: those "
            "of this report have tested it, and must not calibrate the new artifact."
        )
    if config.only_in_python:
        why = (
            f"{why} The command line cannot express all of it: "
            f"{join_names(config.only_in_python, MOST_GROUPS_NAMED)}."
        )
    old = PurePath(seen.sources.artifact)
    return Recommendation(title, why, config.format_command(records, str(old.with_name(f"new-{old.name}"))))


def _format_command(*parts: str) -> str:
    return shlex.join(["langchain-cfc", *parts])
