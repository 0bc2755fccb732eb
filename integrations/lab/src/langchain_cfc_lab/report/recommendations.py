"""What to do next: rules that turn an artifact's promise and results into recommended commands.

A rule looks at an artifact and its evaluation, and yields a recommendation, or none. The limits of the rules
are judgements of what is worth a reader's time; statistical tests of the promise are taken from the
evaluation.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from langchain_cfc.artifact import HELD_OUT_PART, CalibrationArtifact
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.evaluation import EvaluationReport, MethodReport
from langchain_cfc.features import name_group
from langchain_cfc.guarantee import Guarantee, format_share
from langchain_cfc.support.text import join_names, pluralize
from langchain_cfc_lab.report._text import format_interval, to_percent
from langchain_cfc_lab.report.summary import find_guarantee

# Above this share of flagged prompts, abstaining is what users notice first.
MANY_FLAGGED = 0.2
# Below this share of claims kept, or above `MANY_FLAGGED` of answers with no claim left, little is left.
FEW_CLAIMS = 0.5
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
class Findings:
    """Input of the rules: an artifact, its results on held-out prompts at one level, and names of files."""

    artifact: CalibrationArtifact
    evaluation: EvaluationReport
    sources: Sources = Sources()

    @property
    def guarantee(self) -> Guarantee:
        """What is promised at the level."""
        return find_guarantee(self.artifact, self.evaluation)

    @property
    def is_heuristic(self) -> bool:
        """Whether nothing is promised."""
        return bool(self.artifact.alphas) and self.guarantee.kind == "heuristic"

    @property
    def own(self) -> MethodReport | None:
        """Results of the artifact's sets or claims; None for a bot without them."""
        return self.evaluation.methods.get("conditional")

    @property
    def sets(self) -> MethodReport | None:
        """Results of the answer sets; None for claims, and for a bot without sets."""
        return None if self.own is None or self.own.claims is not None else self.own


def recommend(findings: Findings) -> list[Recommendation]:
    """Return what to do next, the most urgent first; empty if no rule applies."""
    return [step for rule in RULES for step in rule(findings)]


def check_promise(seen: Findings) -> Iterator[Recommendation]:
    """Recommend another calibration if the promise was kept more rarely than chance explains."""
    broken = seen.evaluation.contradicted
    if broken:
        known = seen.artifact.calibration.groups
        words = {group.name: name_group(group.words, group.name) for group in known}
        groups = join_names([words.get(name, name) for name in broken], MOST_GROUPS_NAMED)
        yield _recommend_recalibration(
            seen,
            "Do not serve this artifact; calibrate again on prompts like those to be served",
            f"The promise was kept less often than chance explains on {groups}. "
            "Either these records differ from those calibrated on (other prompts, another model, another "
            "verifier, other labels), or this is the one test in forty that fails by chance. Collect "
            "recent prompts, especially of these groups.",
            recent=True,
        )


def check_bot_mode(seen: Findings) -> Iterator[Recommendation]:
    """Recommend another certificate if bot mode was wrong more often than chance explains."""
    if any(one.contradicted for one in seen.evaluation.answers):
        yield _recommend_recalibration(
            seen,
            "Do not serve bot mode; certify it again on recent prompts",
            "More answers were wrong than the certified rate and chance explain.",
            recent=True,
        )


def check_guarantee(seen: Findings) -> Iterator[Recommendation]:
    """Recommend calibrating with a guarantee if no theorem backs the thresholds."""
    if seen.is_heuristic:
        yield _recommend_recalibration(
            seen,
            "Calibrate with a rule that makes a promise",
            "No theorem covers these thresholds, however good the figures are.",
            pac=None,
        )


def check_binding(seen: Findings) -> Iterator[Recommendation]:
    """Recommend records with a header if serving cannot check model and verifier."""
    if seen.artifact.provenance is None:
        yield Recommendation(
            "Record which generator and verifier made the records",
            "The artifact is unbound: its records have no header, so serving cannot detect another "
            "model or verifier. Use records written by `collect`, which have one, and calibrate again.",
            _format_command("collect", "--config", "collect.toml", "--out", "records.jsonl"),
        )


def check_flagged(seen: Findings) -> Iterator[Recommendation]:
    """Recommend a plan if so many prompts are flagged that users will notice."""
    own = seen.sets
    if own is None or own.not_certifiable_rate <= MANY_FLAGGED:
        return
    alike = CalibrationConfig.from_artifact(seen.artifact).draws is None
    drawn = seen.artifact.n if alike else f"at most {seen.artifact.n}"
    size, target = seen.evaluation.n_test, seen.evaluation.target_coverage
    share = seen.evaluation.attainable_coverage
    attainable = clopper_pearson(round(share * size), size)
    reach = (
        f"{to_percent(share)} of the test prompts ({format_interval(attainable)}) have a correct candidate "
        f"among {drawn}, the target is {format_share(target)}"
    )
    if attainable[0] <= target:
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
        f"{to_percent(own.not_certifiable_rate)} of the test prompts "
        f"({format_interval(own.not_certifiable_ci)}) are flagged: cannot be certified. {reach}. {ways} A "
        "plan shows what each number of candidates would attain.",
        _format_command("plan", *seen.sources.records, "--alpha", seen.guarantee.alpha),
    )


def check_groups(seen: Findings) -> Iterator[Recommendation]:
    """Recommend a plan if too few prompts of a group have a correct candidate."""
    alpha = seen.guarantee.alpha
    beyond = [one for one in seen.artifact.calibration.groups if not one.is_attainable(alpha)]
    if not beyond or seen.sets is None:
        return
    worst = sorted(beyond, key=lambda group: group.attainable)
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
        f"{format_share(seen.evaluation.target_coverage)}: {named}. Most of them are flagged, which keeps "
        f"the promise and gives no answer. {ways}.",
        _format_command("plan", *seen.sources.records, "--alpha", alpha, *by_group),
    )


def check_repetition(seen: Findings) -> Iterator[Recommendation]:
    """Recommend `unique` if sets hold the same answer several times."""
    own = seen.sets
    if own is None or own.abstention_rate == 1.0:
        return
    size, distinct = (
        mean / (1.0 - own.abstention_rate) for mean in (own.mean_set_size, own.mean_distinct_answers)
    )
    is_repeated = size > 1.0 and distinct < LEAST_DISTINCT_RATIO * size
    if is_repeated and not seen.artifact.parsed_set_rule.needs_answers:
        yield _recommend_recalibration(
            seen,
            "Return every answer once",
            f"A set with answers holds {size:.1f} candidates on average, and {distinct:.1f} "
            "distinct answers. The set rule `unique` returns each once, under the same promise.",
            set_rule=f"unique({seen.artifact.set_rule})",
        )


def check_claims(seen: Findings) -> Iterator[Recommendation]:
    """Recommend allowing one more unsupported claim if little is left of the answers."""
    found = None if seen.own is None else seen.own.claims
    if found is None or (found.kept >= FEW_CLAIMS and found.emptied <= MANY_FLAGGED):
        return
    most = (seen.artifact.at_most or 0) + 1
    yield _recommend_recalibration(
        seen,
        f"To keep more of the answers, allow {pluralize(most, 'unsupported claim')}",
        f"{to_percent(found.kept)} of the claims are kept, and {to_percent(found.emptied)} of the answers "
        "have none left. A promise that allows one more unsupported claim keeps more, and so does a larger "
        f"alpha. Of the claims shown, more than {to_percent(found.unsupported_kept)} are then unsupported. A "
        "verifier that tells supported from unsupported better keeps more under the same promise.",
        at_most=most,
    )


def check_certificate(seen: Findings) -> Iterator[Recommendation]:
    """Recommend a certificate if the promise holds only on average over calibration sets."""
    guarantee = seen.guarantee
    is_certified = guarantee.certificate is not None or guarantee.failure_probability is not None
    if is_certified or seen.is_heuristic or not seen.artifact.alphas:
        return
    holds_out = seen.artifact.calibration.held_out_size > 0
    records = seen.sources.records if holds_out else ("new-records.jsonl",)
    source = (
        "A part of its records is held out for that."
        if holds_out
        else "It needs labelled prompts that have not been used for anything else."
    )
    yield Recommendation(
        "Certify this artifact",
        "The promise is on average over calibration sets: this one may do better or worse. A certificate "
        f"bounds from below how well it does, with confidence. {source}",
        _format_command("certify", seen.sources.artifact, *records),
    )


def check_wrong_answers(seen: Findings) -> Iterator[Recommendation]:
    """Recommend bot mode if nothing bounds how often an answer is wrong."""
    if seen.artifact.bot is not None or seen.artifact.is_bot_alone or seen.artifact.unit == "claims":
        return
    yield _recommend_recalibration(
        seen,
        "To answer without showing a set, certify how often answers are wrong",
        "Nothing is promised about how often the best answer of a set is wrong. Bot mode answers only "
        "where that is rare, and abstains elsewhere.",
        max_wrong_rate=MAX_WRONG_RATE,
    )


def check_test_size(seen: Findings) -> Iterator[Recommendation]:
    """Recommend an evaluation on more prompts if there are too few test prompts."""
    if seen.evaluation.n_test >= FEW_PROMPTS:
        return
    known, at = "how often the bot is wrong is hardly known", list[str]()
    if seen.own is not None:
        known = f"the share of kept promises is known only to be {format_interval(seen.own.kept_promise_ci)}"
        at = ["--alpha", seen.guarantee.alpha]
    yield Recommendation(
        "Evaluate on more prompts",
        f"With {pluralize(seen.evaluation.n_test, 'test prompt')}, {known}.",
        _format_command("evaluate", seen.sources.artifact, "more-records.jsonl", *at),
    )


Rule = Callable[[Findings], Iterator[Recommendation]]
RULES: tuple[Rule, ...] = (
    check_promise,
    check_bot_mode,
    check_guarantee,
    check_binding,
    check_flagged,
    check_groups,
    check_repetition,
    check_claims,
    check_certificate,
    check_wrong_answers,
    check_test_size,
)


def _recommend_recalibration(
    seen: Findings, title: str, why: str, *, recent: bool = False, **changes: Any
) -> Recommendation:
    """Recommend making such an artifact again, next to the old one, with some options changed.

    Seed, fractions and all other options that determine the split stay, so that no prompt that tested the old
    artifact fits or calibrates the new one. Records that the artifact's split did not divide have all tested
    it: the command then names a placeholder for the calibration records, or for recent ones.
    """
    config = replace(CalibrationConfig.from_artifact(seen.artifact), **changes)
    records: Sequence[str] = seen.sources.records
    if recent:
        records = (RECENT_RECORDS,)
        config = replace(config, test_fraction=config.test_fraction or TEST_FRACTION)
    elif not seen.evaluation.test_prompts.startswith(HELD_OUT_PART):
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
