"""Each recommendation rule, with findings to which it applies and with some to which it does not."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from langchain_cfc_lab.report import Findings, Sources, recommend
from langchain_cfc_lab.report.recommendations import (
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
    check_test_size,
    check_wrong_answers,
)
from typer.main import get_command

from integrations.lab.tests.report.cases import Case, make_case
from langchain_cfc.artifact import AttainableGroup
from langchain_cfc.cli.commands import app
from langchain_cfc.demo import load_recording

SOURCES = Sources("kept/artifact.json", ("my records.jsonl",))
HARD = AttainableGroup(
    name="group(topic)=sums", words="topic is 'sums'", size=50.0, attainable=0.7, smallest_alpha=0.312
)


@pytest.fixture(scope="module")
def plain() -> Findings:
    """A bot beside sets that may repeat answers."""
    source = load_recording()
    options: dict[str, Any] = {
        "alpha": "0.3",
        "features": "mean_score",
        "set_rule": "all",
        "max_wrong_rate": "0.1",
    }
    case = make_case(list(source), provenance=source.provenance, **options)
    return Findings(case.artifact, case.evaluation, SOURCES)


def change(seen: Findings, part: str, **update: Any) -> Findings:
    """The findings with other fields of the artifact, its calibration, the evaluation or its results."""
    artifact, evaluation = seen.artifact, seen.evaluation
    if part == "artifact":
        artifact = artifact.model_copy(update=update)
    elif part == "calibration":
        artifact = artifact.model_copy(update={"calibration": artifact.calibration.model_copy(update=update)})
    elif part == "evaluation":
        evaluation = evaluation.model_copy(update=update)
    elif part == "answers":
        answers = tuple(one.model_copy(update=update) for one in evaluation.answers)
        evaluation = evaluation.model_copy(update={"answers": answers})
    else:
        assert seen.own is not None
        own = {"conditional": seen.own.model_copy(update={"abstention_rate": 0.0, **update})}
        evaluation = evaluation.model_copy(update={"methods": own})
    return Findings(artifact, evaluation, seen.sources)


# Rule, what it speaks up at, what it says, and the nearest findings at which it is silent.
RULE_CASES: list[tuple[Any, str, dict[str, Any], str, dict[str, Any]]] = [
    (
        check_promise,
        "evaluation",
        {"contradicted": ["1"]},
        "less often than chance explains on all prompts",
        {},
    ),
    (check_bot_mode, "answers", {"contradicted": True}, "certified rate", {}),
    (check_binding, "artifact", {"provenance": None}, "no header", {}),
    (check_flagged, "own", {"not_certifiable_rate": 0.21}, "are flagged", {"not_certifiable_rate": 0.2}),
    (
        check_groups,
        "calibration",
        {"groups": [HARD]},
        "topic is 'sums' (70\xa0% attainable). Most of them are flagged",
        {"groups": []},
    ),
    (
        check_repetition,
        "own",
        {"mean_set_size": 5.0, "mean_distinct_answers": 2.0},
        "5.0 candidates",
        {"mean_set_size": 5.0, "mean_distinct_answers": 4.0},
    ),
    (check_test_size, "evaluation", {"n_test": 99}, "99 test prompts", {"n_test": 100}),
]


@pytest.mark.parametrize(
    ("rule", "part", "update", "said", "near"), RULE_CASES, ids=lambda one: getattr(one, "__name__", "")
)
def test_recommendation_rule_applies_to_its_findings_only(  # noqa: PLR0917 - columns of the table
    plain: Findings, rule: Any, part: str, update: dict[str, Any], said: str, near: dict[str, Any]
) -> None:
    changed = change(plain, part, **update)
    (step,) = rule(changed)
    assert said in step.why
    assert step in recommend(changed)
    assert list(rule(change(plain, part, **near))) == []


def test_recommend_lists_urgent_steps_first(plain: Findings) -> None:
    for _, part, update, _, _ in RULE_CASES:
        plain = change(plain, part, **update)
    titles = [step.title for step in recommend(plain)]
    assert titles[0].startswith("Do not serve this artifact")
    assert titles[1].startswith("Do not serve bot mode")


def test_check_flagged_suggests_a_verifier_only_if_it_can_help(plain: Findings) -> None:
    flagged = change(plain, "own", not_certifiable_rate=0.5)
    (scarce,) = check_flagged(change(flagged, "evaluation", attainable_coverage=0.7))
    (plenty,) = check_flagged(change(flagged, "evaluation", attainable_coverage=0.97))
    assert "No verifier can add a correct candidate" in scarce.why
    assert "No verifier" not in plenty.why
    assert "another verifier" in plenty.why


def test_check_groups_names_the_worst_groups_and_counts_the_rest(plain: Findings) -> None:
    many = [
        AttainableGroup(
            name=f"g{k}", words=f"topic {k}", size=50.0, attainable=0.6 - k / 100, smallest_alpha=0.4
        )
        for k in range(6)
    ]
    (step,) = check_groups(change(plain, "calibration", groups=many))
    assert "topic 5 (55\xa0% attainable), topic 4" in step.why
    assert "and 2 more" in step.why
    assert "topic 1 " not in step.why
    assert "alpha = 0.4, for all" in step.why
    assert "--group" not in step.command
    (grouped,) = check_groups(change(plain, "calibration", groups=[HARD]))
    assert "--group topic" in grouped.command
    assert "alpha = 0.32, for all" in grouped.why, "rounded up, for below it nothing is attained"
    hopeless = HARD.model_copy(update={"smallest_alpha": 0.999})
    (nothing,) = check_groups(change(plain, "calibration", groups=[hopeless]))
    assert "for all" not in nothing.why


def test_check_claims_suggests_one_more_unsupported_claim(claims: Case) -> None:
    seen = Findings(claims.artifact, claims.evaluation, SOURCES)
    assert seen.own is not None
    found = seen.own.claims
    assert found is not None
    for kept, emptied, is_little in ((0.45, 0.05, True), (0.9, 0.21, True), (0.5, 0.2, False)):
        few = found.model_copy(update={"kept": kept, "emptied": emptied})
        steps = list(check_claims(change(seen, "own", claims=few)))
        assert bool(steps) == is_little
        for step in steps:
            assert "--unit claims --at-most 2" in step.command
            parse_command(step.command)


def test_steps_of_the_demo_are_plan_certificate_and_bot(facts: Case) -> None:
    seen = Findings(facts.artifact, facts.evaluation, SOURCES)
    plan, certify, bot = recommend(seen)
    assert "topic: multiplication" in plan.why
    assert "topic: continent" not in plan.why
    assert certify.command == "langchain-cfc certify kept/artifact.json 'my records.jsonl'"
    assert bot.title == "To answer without showing a set, certify how often answers are wrong"
    # Each rule is tried here or above, but that for artifacts without a theorem, which `test_page` tries.
    tried = {rule for rule, *_ in RULE_CASES} | {check_claims, check_certificate, check_wrong_answers}
    assert tried | {check_guarantee} == set(RULES)


def parse_command(command: str) -> None:
    """Parse a command as the command line would, without carrying it out."""
    name, *arguments = shlex.split(command)[1:]
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    _, known, rest = group.resolve_command(typer.Context(group), [name, *arguments])
    assert known is not None
    known.make_context(name, rest)


def test_recommended_commands_are_valid(plain: Findings, facts: Case) -> None:
    steps = [step for rule, part, update, *_ in RULE_CASES for step in rule(change(plain, part, **update))]
    steps += recommend(Findings(facts.artifact, facts.evaluation, SOURCES))
    for step in steps:
        assert step.command.startswith("langchain-cfc ")
        parse_command(step.command)


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
