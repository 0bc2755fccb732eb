"""Each recommendation applies to its findings only, and its command keeps the options of the artifact.

Options are the fields of `CalibrationConfig`: a new one fails here until it has a case.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from langchain_cfc_lab.report import Findings, Recommendation, Sources, recommend
from langchain_cfc_lab.report import recommendations as rules
from typer.main import get_command

from integrations.lab.tests.report.cases import Case, make_case
from langchain_cfc import (
    CalibrationArtifact,
    Candidate,
    FeatureMap,
    PromptRecord,
    calibrate,
    evaluate,
    read_records,
    write_records,
)
from langchain_cfc.artifact import AttainableGroup
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.cli.commands import app
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import Provenance, tabulate
from tests.cli.running import run
from tests.lengths import mostly_long

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
        rules.check_promise,
        "evaluation",
        {"contradicted": ["1"]},
        "less often than chance explains on all prompts",
        {},
    ),
    (rules.check_bot_mode, "answers", {"contradicted": True}, "certified rate", {}),
    (rules.check_binding, "artifact", {"provenance": None}, "no header", {}),
    (
        rules.check_flagged,
        "own",
        {"not_certifiable_rate": 0.21},
        "are flagged",
        {"not_certifiable_rate": 0.2},
    ),
    (
        rules.check_groups,
        "calibration",
        {"groups": [HARD]},
        "topic is 'sums' (70\xa0% attainable). Most of them are flagged",
        {"groups": []},
    ),
    (
        rules.check_repetition,
        "own",
        {"mean_set_size": 5.0, "mean_distinct_answers": 2.0},
        "5.0 candidates",
        {"mean_set_size": 5.0, "mean_distinct_answers": 4.0},
    ),
    (rules.check_test_size, "evaluation", {"n_test": 99}, "99 test prompts", {"n_test": 100}),
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
    (scarce,) = rules.check_flagged(change(flagged, "evaluation", attainable_coverage=0.7))
    (plenty,) = rules.check_flagged(change(flagged, "evaluation", attainable_coverage=0.97))
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
    (step,) = rules.check_groups(change(plain, "calibration", groups=many))
    assert "topic 5 (55\xa0% attainable), topic 4" in step.why
    assert "and 2 more" in step.why
    assert "topic 1 " not in step.why
    assert "alpha = 0.4, for all" in step.why
    assert "--group" not in step.command
    (grouped,) = rules.check_groups(change(plain, "calibration", groups=[HARD]))
    assert "--group topic" in grouped.command
    assert "alpha = 0.32, for all" in grouped.why, "rounded up, for below it nothing is attained"
    hopeless = HARD.model_copy(update={"smallest_alpha": 0.999})
    (nothing,) = rules.check_groups(change(plain, "calibration", groups=[hopeless]))
    assert "for all" not in nothing.why


def test_check_claims_suggests_one_more_unsupported_claim(claims: Case) -> None:
    seen = Findings(claims.artifact, claims.evaluation, SOURCES)
    assert seen.own is not None
    found = seen.own.claims
    assert found is not None
    for kept, emptied, is_little in ((0.45, 0.05, True), (0.9, 0.21, True), (0.5, 0.2, False)):
        few = found.model_copy(update={"kept": kept, "emptied": emptied})
        steps = list(rules.check_claims(change(seen, "own", claims=few)))
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
    tried = {rule for rule, *_ in RULE_CASES} | {
        rules.check_claims,
        rules.check_certificate,
        rules.check_wrong_answers,
    }
    assert tried | {rules.check_guarantee} == set(rules.RULES)


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


pytestmark = pytest.mark.filterwarnings(
    f"ignore::{AttainabilityWarning.__module__}.{AttainabilityWarning.__name__}"
)

SIZE, N = 400, 4
REPEATED = {"mean_set_size": 3.0, "mean_distinct_answers": 1.0}
# For each option a value other than its default, and what else it needs.
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "alpha": (["0.35", "0.5"], {}),
    "adaptive_alpha": (True, {}),
    "features": ("bins(mean_score, 2)", {}),
    "set_rule": ("rank", {}),
    "draws": ("lead(2, at_most=4)", {}),
    "pac": (PaperPAC(delta="0.95"), {}),
    "max_wrong_rate": (["0.6"], {}),
    "wrong_rate_groups": (True, {"max_wrong_rate": "0.6", "features": "group(topic)"}),
    "delta": ("0.2", {"features": "bins(mean_score, 2)"}),
    "seed": ("another seed", {}),
    "fit_fraction": (0.3123456789, {}),
    "test_fraction": (0.4123456789, {}),
    "allow_unattainable": (True, {"alpha": "0.01"}),
}


def make_answered_records(size: int = SIZE) -> list[PromptRecord]:
    """Prompts with answers, two verifiers' raw outputs, topics, and clusters of two."""
    rng = np.random.default_rng(0)
    scores, right = rng.random((size, N)), rng.random((size, N)) < 0.7
    return [
        PromptRecord(
            id=f"p{row}",
            input=f"p{row}",
            metadata={"topic": ("capital", "river")[row % 2]},
            cluster=f"c{row // 2}" if row < size // 2 else None,
            candidates=tuple(
                Candidate(
                    text=f"{slot}",
                    answer="right" if right[row, slot] else f"wrong {slot % 2}",
                    score=float(scores[row, slot]),
                    scores={"judge": float(scores[row, slot]), "p_true": float(rng.random())},
                    correct=bool(right[row, slot]),
                )
                for slot in range(N)
            ),
        )
        for row in range(size)
    ]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("advice") / "records.jsonl"
    header = Provenance(n=N, verifier={"id": "own"}, separate_scores=True)
    write_records(path, make_answered_records(), header)
    return path


def calibrate_records(records: Path, **options: Any) -> CalibrationArtifact:
    """An artifact with a seed of its own and a part of the records held out."""
    own = {"alpha": "0.4", "features": "mean_score", "seed": "7", "test_fraction": 0.3, "set_rule": "all"}
    asked = {**own, **options}
    return calibrate(read_records(records), **asked)


def find_results(artifact: CalibrationArtifact, records: Path, **own: Any) -> Findings:
    """Return the findings of a report on the held-out part of the records, with other results of the sets."""
    report = evaluate(artifact, read_records(records), alpha=artifact.alphas[-1])
    changed = report.methods["conditional"].model_copy(update={"abstention_rate": 0.0, **own})
    sources = Sources(str(records.with_name("artifact.json")), (str(records),))
    return Findings(artifact, report.model_copy(update={"methods": {"conditional": changed}}), sources)


def find_advice(seen: Findings, title: str) -> Recommendation:
    (step,) = [one for one in recommend(seen) if one.title.startswith(title)]
    return step


def run_advice(step: Recommendation) -> CalibrationArtifact:
    """Run the command of a step and return the artifact that it writes."""
    words = shlex.split(step.command)
    assert words[:2] == ["langchain-cfc", "calibrate"]
    ran = run(*words[1:])
    assert ran.code == 0, ran.err
    return CalibrationArtifact.load(words[words.index("--out") + 1])


def list_ids(artifact: CalibrationArtifact, records: Path, *parts: str) -> set[str]:
    labelled = tabulate(read_records(records), n=N)
    rows = artifact.calibration.split.list_rows(labelled)
    return {labelled.ids[row] for name, some in rows.items() if name in parts for row in some.tolist()}


def to_canonical(value: Any) -> Any:
    return tuple(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


def test_advice_cases_cover_every_calibration_option() -> None:
    defaults = {one.name: one.default for one in fields(CalibrationConfig)}
    # A report gives no advice about claims or about a bot's rate among all questions.
    assert {*CASES, "unit", "at_most", "max_wrong_of_all"} == set(defaults)
    for name, (value, _) in CASES.items():
        assert value != defaults[name]


@mostly_long("option", CASES, quick=6)
def test_advice_command_keeps_every_option_and_the_test_part(option: str, records: Path) -> None:
    value, needs = CASES[option]
    old = calibrate_records(records, **{**needs, option: value})
    assert to_canonical(getattr(CalibrationConfig.from_artifact(old), option)) == to_canonical(value)
    # Whatever was seen, the report says: return every answer once.
    seen = find_results(old, records, **REPEATED)
    new = run_advice(find_advice(seen, "Return every answer once"))
    tested = list_ids(old, records, "test")
    assert tested
    assert not tested & list_ids(new, records, "fit", "calibration")
    assert list_ids(new, records, "test") == tested
    before, after = (CalibrationConfig.from_artifact(one).to_arguments() for one in (old, new))
    assert after.pop("set_rule") == f"unique({before.pop('set_rule')})"
    assert after == before


ARTIFACTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pac": {"pac": PaperPAC(ridge=0.01)},
    "ranks with confidence": {"features": "group(topic)", "delta": "0.2"},
    "bot": {"max_wrong_rate": "0.6"},
    "first candidates": {"draws": "fixed(3)"},
}


@mostly_long("name", ARTIFACTS, quick=4)
def test_advice_commands_have_valid_options(name: str, records: Path) -> None:
    """Every command asks for options that go together, and drops none that it does not speak of."""
    seen = find_results(calibrate_records(records, **ARTIFACTS[name]), records, **REPEATED)
    answers = tuple(one.model_copy(update={"contradicted": True}) for one in seen.evaluation.answers)
    evaluation = seen.evaluation.model_copy(update={"contradicted": ["1"], "answers": answers})
    seen = replace(seen, evaluation=evaluation)
    commands = [one.command for one in recommend(seen) if one.command.startswith("langchain-cfc calibrate")]
    assert len(commands) >= 3
    for command in commands:
        config = parse_options(command, records)
        config.check()
        assert config.plan_split().seed == "7"
        assert config.test_fraction == 0.3


class Stop(Exception):  # noqa: N818 - nothing went wrong
    """Raised in place of calibrating."""


def parse_options(command: str, records: Path) -> CalibrationConfig:
    """Return the options that the command line passes to `calibrate`."""
    asked: dict[str, Any] = {}

    def keep(_: object, **options: Any) -> None:
        asked.update(options)
        raise Stop

    words = [str(records) if word == rules.RECENT_RECORDS else word for word in shlex.split(command)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("langchain_cfc.calibration.calibrate", keep)
        with pytest.raises(Stop):
            run(*words[1:])
    del asked["after"]  # about the records, not the settings
    return CalibrationConfig(**asked)


def test_advice_on_new_records_does_not_calibrate_on_them(records: Path, tmp_path: Path) -> None:
    """On new records all prompts test, so that none of them may be used by the advice."""
    new_records = tmp_path / "new.jsonl"
    write_records(
        new_records,
        [
            one.model_copy(update={"id": f"new {one.id}", "cluster": None})
            for one in make_answered_records(100)
        ],
    )
    artifact = calibrate_records(records, test_fraction=0.0)
    seen = find_results(artifact, new_records, **REPEATED)
    step = find_advice(seen, "Return every answer once")
    assert str(new_records) not in step.command
    assert "calibrate calibration-records.jsonl --out" in step.command
    assert "calibration-records.jsonl stands for the records" in step.why


def test_advice_notes_options_that_the_command_line_cannot_express(records: Path) -> None:
    fitted = FeatureMap.parse("mean_score").fit(tabulate(make_answered_records(50)).draws)
    for options, words in (
        ({"features": fitted}, "the feature map was already fitted"),
        ({"pac": PaperPAC(ridge=0.01)}, "pac has a ridge"),
    ):
        artifact = calibrate_records(records, **options)
        (name, value), *_ = options.items()
        assert getattr(CalibrationConfig.from_artifact(artifact), name) == value
        seen = find_results(artifact, records, **REPEATED)
        assert words in find_advice(seen, "Return every answer once").why
    plain = find_results(calibrate_records(records), records, **REPEATED)
    assert "cannot say" not in find_advice(plain, "Return every answer once").why
