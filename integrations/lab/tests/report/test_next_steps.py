"""Each recommendation rule, in a situation where it applies and in one where it does not."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import typer
from langchain_cfc_lab import ComparisonReport
from langchain_cfc_lab.report import Situation, Sources, recommend
from langchain_cfc_lab.report.recommendations import (
    MANY_FLAGGED,
    RULES,
    check_binding,
    check_bot_mode,
    check_certificate,
    check_claims,
    check_flagged,
    check_groups,
    check_guarantee,
    check_promise,
    check_repetition,
    check_set_size,
    check_test_size,
    check_wrong_answers,
    recommend_calibration,
    recommend_suggestion,
)
from typer.main import get_command

from integrations.lab.tests.report.cases import Case
from langchain_cfc.artifact import AttainableGroup
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.cli.commands import app
from langchain_cfc.evaluation import ClaimsFigures
from langchain_cfc.features import name_group

# Nothing to do: bound, certified, kept, small sets, bot mode.
FINE = Situation(
    alpha="0.1",
    target=0.9,
    n=10,
    heuristic=False,
    contradicted=(),
    wrong_too_often=False,
    bot=True,
    certified=True,
    holds_out=False,
    bound=True,
    tested=500,
    kept_ci=(0.88, 0.93),
    flagged=0.05,
    flagged_ci=(0.03, 0.08),
    attainable=0.97,
    attainable_ci=(0.95, 0.98),
    out_of_reach=(),
    set_size=1.4,
    distinct=1.3,
    unique=False,
    config=CalibrationConfig(alpha="0.1", allow_unattainable=True, seed="7", test_fraction=0.3),
    held_out_part=True,
    sources=Sources("kept/artifact.json", ("my records.jsonl",)),
)
HARD = AttainableGroup(
    name="group(topic)=sums", words="topic is 'sums'", size=50.0, attainable=0.7, smallest_alpha=0.312
)

# Rule, what it speaks up at, what it says, and the nearest situation in which it is silent.
LITTLE = ClaimsFigures(per_answer=5.0, kept=0.45, emptied=0.05, unsupported=0.4, unsupported_kept=0.1)
RULE_CASES: list[tuple[Any, dict[str, Any], str, dict[str, Any]]] = [
    (
        check_promise,
        {"contradicted": ("topic is 'sums'",)},
        "kept less often than chance explains on topic is 'sums'",
        {},
    ),
    (check_bot_mode, {"wrong_too_often": True}, "certified rate", {"bot": True}),
    (check_guarantee, {"heuristic": True}, "No theorem", {}),
    (check_binding, {"bound": False}, "no header", {}),
    (
        check_flagged,
        {"flagged": 0.21},
        "97\xa0% of the test prompts (95\xa0to\xa098\xa0%) have",
        {"flagged": 0.2},
    ),
    (
        check_groups,
        {"out_of_reach": (HARD,)},
        "topic is 'sums' (70\xa0% attainable). Most of them are flagged",
        {},
    ),
    (
        check_repetition,
        {"set_size": 5.0, "distinct": 2.0},
        "5.0 candidates",
        {"set_size": 5.0, "distinct": 4.0},
    ),
    (check_set_size, {"distinct": 3.1}, "3.1 distinct answers", {"distinct": 3.0}),
    (
        check_claims,
        {"claims": LITTLE},
        "45\xa0% of the claims are kept, and 5\xa0% of the answers have none left",
        {"claims": LITTLE.model_copy(update={"kept": 0.5, "emptied": 0.2})},
    ),
    (check_certificate, {"certified": False}, "on average over calibration sets", {"certified": True}),
    (check_wrong_answers, {"bot": False}, "best answer of a set is wrong", {}),
    (check_test_size, {"tested": 99}, "99 test prompts", {"tested": 100}),
]


def test_recommendation_cases_cover_every_rule() -> None:
    assert {rule for rule, *_ in RULE_CASES} == set(RULES)


def test_recommend_returns_nothing_if_all_is_well() -> None:
    assert recommend(FINE) == []


@pytest.mark.parametrize(
    ("rule", "change", "said", "near"), RULE_CASES, ids=lambda one: getattr(one, "__name__", "")
)
def test_recommendation_rule_applies_to_its_situation_only(
    rule: Any, change: dict[str, Any], said: str, near: dict[str, Any]
) -> None:
    (step,) = rule(replace(FINE, **change))
    assert said in step.why
    assert list(rule(replace(FINE, **near))) == []
    assert recommend(replace(FINE, **change)) == [step], "no other rule looks at this"


def test_recommend_lists_urgent_steps_first() -> None:
    everything = replace(
        FINE, **{key: value for _, change, *_ in RULE_CASES for key, value in change.items()}
    )
    titles = [step.title for step in recommend(everything)]
    assert titles[0].startswith("Do not serve this artifact")
    assert titles[1].startswith("Do not serve bot mode")
    # Without a promise there is nothing to certify, and of claims no wrong answers; all others speak.
    assert len(titles) == len(RULES) - 2


def test_check_flagged_suggests_a_verifier_only_if_it_can_help() -> None:
    (scarce,) = check_flagged(replace(FINE, flagged=0.5, attainable_ci=(0.85, 0.95)))
    (plenty,) = check_flagged(replace(FINE, flagged=0.5))
    assert "No verifier can add a correct candidate" in scarce.why
    assert "No verifier" not in plenty.why
    assert "another verifier" in plenty.why


def test_check_groups_names_the_worst_groups_and_counts_the_rest() -> None:
    many = tuple(
        AttainableGroup(
            name=f"g{k}", words=f"topic {k}", size=50.0, attainable=0.8 - k / 100, smallest_alpha=0.3
        )
        for k in range(6)
    )
    (step,) = check_groups(replace(FINE, out_of_reach=many))
    assert "topic 5 (75\xa0% attainable), topic 4" in step.why
    assert "and 2 more" in step.why
    assert "topic 1 " not in step.why
    assert "alpha = 0.3, for all" in step.why
    assert "--group" not in step.command
    (grouped,) = check_groups(replace(FINE, out_of_reach=(HARD,)))
    assert "--group topic" in grouped.command
    assert "alpha = 0.32, for all" in grouped.why, "rounded up, for below it nothing is attained"
    (hopeless,) = check_groups(
        replace(FINE, out_of_reach=(HARD.model_copy(update={"smallest_alpha": 0.999}),))
    )
    assert "for all" not in hopeless.why


def test_check_claims_suggests_one_more_unsupported_claim() -> None:
    config = CalibrationConfig(alpha="0.1", unit="claims", at_most=1)
    emptied = LITTLE.model_copy(update={"kept": 0.9, "emptied": 0.21})
    (step,) = check_claims(replace(FINE, claims=emptied, config=config))
    assert "--unit claims --at-most 2" in step.command
    parse_command(step.command)
    assert list(check_wrong_answers(replace(FINE, bot=False, claims=emptied))) == []


def test_check_certificate_uses_a_held_out_part_if_there_is_one() -> None:
    (own,) = check_certificate(replace(FINE, certified=False, holds_out=True))
    (new,) = check_certificate(replace(FINE, certified=False))
    assert own.command == "langchain-cfc certify kept/artifact.json 'my records.jsonl'"
    assert new.command == "langchain-cfc certify kept/artifact.json new-records.jsonl"
    assert list(check_certificate(replace(FINE, certified=False, heuristic=True))) == []


def list_commands() -> list[str]:
    steps = [step for rule, change, *_ in RULE_CASES for step in rule(replace(FINE, **change))]
    steps += check_set_size(replace(FINE, distinct=4.0))
    for unit, set_rule in (("answers", "unique(all)"), ("claims", "claims(2)")):
        compared = ComparisonReport.model_construct(
            alpha=0.1, features="group(topic)", set_rule=set_rule, unit=unit
        )
        steps.append(recommend_calibration(compared, FINE.sources))
    steps.append(recommend_suggestion(0.1, FINE.sources))
    return [step.command for step in steps]


def parse_command(command: str) -> None:
    """Parse a command as the command line would, without carrying it out."""
    name, *arguments = shlex.split(command)[1:]
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    _, known, rest = group.resolve_command(typer.Context(group), [name, *arguments])
    assert known is not None
    known.make_context(name, rest)


@pytest.mark.parametrize("command", list_commands())
def test_recommended_commands_are_valid(command: str) -> None:
    assert command.startswith("langchain-cfc ")
    parse_command(command)


def test_situation_from_evaluation_reads_artifact_and_evaluation(facts: Case) -> None:
    seen = Situation.from_evaluation(facts.artifact, facts.evaluation, FINE.sources)
    own = facts.evaluation.methods["conditional"]
    assert (seen.alpha, seen.n, seen.tested, seen.flagged) == ("0.2", 10, 355, own.not_certifiable_rate)
    assert (seen.bound, seen.certified, seen.bot, seen.heuristic, seen.unique) == (
        True,
        False,
        False,
        False,
        True,
    )
    assert "topic: multiplication" in {name_group(group.words) for group in seen.out_of_reach}
    assert "topic: continent" not in {name_group(group.words) for group in seen.out_of_reach}
    # Sets that are empty do not make the others smaller.
    assert seen.distinct == pytest.approx(own.mean_distinct_answers / (1 - own.abstention_rate))
    assert seen.config.features == "mean_score + hard(mean_score, 0.8) + group(topic)"
    assert seen.held_out_part
    titles = [step.title for step in recommend(seen)]
    assert titles == [
        "Decide what to do with the groups that cannot reach the target",
        "Certify this artifact",
        "To answer without showing a set, certify how often answers are wrong",
    ]
    assert seen.flagged < MANY_FLAGGED


def test_situation_names_contradicted_groups_in_words(facts: Case) -> None:
    broken = facts.evaluation.model_copy(update={"contradicted": ["group(topic)=capital", "1"]})
    seen = Situation.from_evaluation(facts.artifact, broken)
    assert seen.contradicted == ("topic: capital", "all prompts")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:se&/cr:e@t@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://host/db?user=me&password=secret&a=b", "postgresql://host/db?user=me&password=***&a=b"),
        ("postgresql://me@host:5432/db", "postgresql://me@host:5432/db"),
        ("a:b/records.jsonl", "a:b/records.jsonl"),
    ],
)
def test_sources_without_passwords_hides_passwords(address: str, shown: str) -> None:
    assert Sources(records=(address,)).without_passwords().records == (shown,)
