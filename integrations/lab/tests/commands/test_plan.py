"""The command `plan`."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.running import run


def test_plan_from_a_pilot_reports_prompts_cost_and_groups(records: Path) -> None:
    options = shlex.split("--alpha 0.2 --group topic --cost-per-candidate 0.001 --cost-per-prompt 0.05")
    ran = run("plan", records, *options, "--json")
    assert ran.code == 0
    prompts = ran.data["labelled_prompts"]
    assert ran.data["expected_cost"] == pytest.approx(prompts * (10 * 0.001 + 0.05))
    verdicts = {group["name"]: group["verdict"] for group in ran.data["groups"]}
    assert verdicts["all prompts"] == "attainable"
    assert verdicts["group(topic)=multiplication"] == "out of reach"
    readable = run("plan", records, *options).out
    assert f"Label {prompts} prompts with n = 10 candidates each" in readable
    assert max(map(len, readable.splitlines())) <= 80


def test_plan_for_bot_mode_reports_prompts_for_each_answered_share(records: Path) -> None:
    ran = run("plan", records, "--max-wrong-rate", "0.15", "--json")
    assert ran.code == 0
    sizes = [step["prompts_needed"] for step in ran.data["rates"][0]["steps"]]
    assert sizes[0] < sizes[-1] if sizes[-1] else sizes[0] is not None
    readable = run("plan", records, "--max-wrong-rate", "0.15").out
    assert f"{sizes[0]:,}" in readable
    assert "every bot that shows these must abstain on at least" in " ".join(readable.split())
    assert max(map(len, readable.splitlines())) <= 80
    both = run("plan", records, "--max-wrong-rate", "0.15", "--max-wrong-rate", "0.3", "--json").data["rates"]
    assert [one["max_wrong_rate"] for one in both] == [0.15, 0.3]
    assert both[0]["fewest_answered"] > ran.data["rates"][0]["fewest_answered"]
    assert run("plan", records, "--max-wrong-rate", "0.000000001").code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alpha", "0.1"], "leave out --alpha"),
        (["--n", "3", "--group", "topic"], "leave out --group, --n"),
        (["--max-wrong-rate", "2"], "--max-wrong-rate must be a decimal number"),
    ],
)
def test_plan_for_bot_mode_refuses_options_of_answer_sets(
    records: Path, options: list[str], message: str
) -> None:
    run("plan", records, "--max-wrong-rate", "0.1", *options).assert_refused(message)
    assert run("plan", "--max-wrong-rate", "0.1").code == 2


def test_plan_from_assumptions_exits_with_1_if_alpha_is_out_of_reach() -> None:
    assert run("plan", "--n", "5", "--attainable", "0.9", "--alpha", "0.15").code == 0
    assert run("plan", "--n", "5", "--attainable", "0.9", "--alpha", "0.05").code == 1


@pytest.mark.parametrize("arguments", [[], ["--n", "5"]])
def test_plan_without_pilot_or_assumptions_is_refused(arguments: list[str]) -> None:
    assert run("plan", *arguments).code == 2


RECORDING = str(files("langchain_cfc") / "demo" / "facts.jsonl.gz")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("paper", "synthetic", "--alpha", "foo"), "alpha must be a decimal number"),
        (("paper", "synthetic", "--alpha", "0.123"), "got 0.123"),
        (("paper", "synthetic", "--jobs", "-1"), "Invalid value for '--jobs'"),
        (("suggest", RECORDING, "--alpha", "0.4", "--jobs", "0"), "Invalid value for '--jobs'"),
        (("compare", RECORDING, "--method", "condtional"), "did you mean 'conditional'?"),
        (("compare", RECORDING, "--metric", "coverge"), "did you mean 'coverage'?"),
        (("plan", "--n", "5", "--attainable", "90"), "did you mean 0.9?"),
        (("compare", RECORDING, "--figures", f"{RECORDING}/figures"), "cannot be created as a folder"),
    ],
)
def test_commands_refuse_invalid_options_at_once(command: tuple[str, ...], said: str) -> None:
    ran = run(*command)
    assert ran.code == 2
    assert ran.out == ""
    assert said in " ".join(ran.err.split())


def test_compare_table_of_eight_levels_fits_80_columns() -> None:
    ran = run(
        "compare", RECORDING, "--splits", "2", "--jobs", "1", "--method", "TopK", "--method", "marginal"
    )
    lines = [one for one in ran.out.splitlines() if not one.startswith("langchain-cfc calibrate")]
    assert max(map(len, lines)) <= 80
    heading, *_ = (line for line in ran.out.splitlines() if line.startswith("alpha  "))
    assert heading.split()[-8:] == ["0.2", "0.25", "0.3", "0.35", "0.4", "0.45", "0.5", "0.55"]
