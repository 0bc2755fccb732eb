"""`langchain-cfc compare` and `plan`: tables in 80 columns, JSON and figures."""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.running import Ran, run

RECORDING = Path(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz"))


def run_compare(*options: str | Path) -> Ran:
    return run("compare", RECORDING, "--splits", "2", "--jobs", "1", "--alpha", "0.3", *options)


def test_compare_prints_every_method_in_80_columns() -> None:
    ran = run_compare("--alpha", "0.4")
    assert ran.code == 0, ran.err
    # All but the command to copy, which is not wrapped.
    lines = [one for one in ran.out.splitlines() if not one.startswith("langchain-cfc calibrate")]
    assert max(map(len, lines)) <= 80
    for needed in ("conditional", "marginal", "TopK", "CFC-PAC-FULL", "sampling", "worst group"):
        assert needed in ran.out, needed
    # Names as `--method` takes them are explained.
    assert "marginal: one threshold for all prompts" in " ".join(ran.out.split())
    assert "points below target" in ran.out
    assert "…" not in ran.out


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (("--alpha", "0.4", "--method", "marginal"), "--alpha 0.3 --features 1 --out"),
        (("--method", "conditional"), "--alpha 0.3 --features 'hat(mean_score, 5)' --out"),
        (("--method", "conditional:best_prefix"), "'hat(mean_score, 5)' --set-rule best_prefix --out"),
        (("--method", "conditional", "--set-rule", "best_answer"), "--max-wrong-of-all 0.3 --features"),
        (("--method", "TopK"), ""),
    ],
)
def test_compare_begins_with_its_conclusion_and_the_next_command(
    options: tuple[str, ...], command: str
) -> None:
    head, found, _ = run_compare(*options).out.partition("1224 prompts, ")
    assert found
    assert command in head
    assert ("langchain-cfc calibrate" in head) == bool(command)
    assert head.startswith("At alpha = 0.3, ") == bool(command)


@pytest.mark.parametrize(
    ("names", "is_kept"),
    [(("marginal", "conditional", "conditional:best_prefix"), True), (("marginal",), False)],
)
def test_compare_names_the_method_that_keeps_its_promise_and_answers_most(
    names: tuple[str, ...], *, is_kept: bool
) -> None:
    methods = [f"--method={name}" for name in names]
    settings = ["--splits=3", "--jobs=1", "--alpha=0.2"]
    options = ["compare", str(RECORDING), *settings, *methods]
    found = json.loads(run(*options, "--json").out)
    head = " ".join(run(*options).out.split())
    means = {
        name: {figure: spread["mean"] for figure, spread in one["figures"].items()}
        for name, one in found["methods"].items()
    }
    keeping = [name for name, one in means.items() if one["worst_group_kept_promise"] >= 0.8]
    assert bool(keeping) == is_kept
    if is_kept:
        best = min(keeping, key=lambda name: means[name]["abstention_rate"])
        assert f"{best} keeps the promise of 80 % in every group" in head
        assert f"answers {100 * (1 - means[best]['abstention_rate']):.0f} % of the prompts" in head
    else:
        best = max(means, key=lambda name: means[name]["worst_group_kept_promise"])
        assert f"no method keeps 80 % in every group; {best} comes nearest" in head


@pytest.mark.long
def test_compare_writes_figures(tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    ran = run_compare("--figures", folder, "--method", "conditional", "--method", "marginal")
    assert ran.code == 0, ran.err
    drawn = sorted(folder.glob("*.svg"))
    assert len(drawn) >= 10
    for one in drawn:
        ET.fromstring(one.read_text(encoding="utf-8"))  # noqa: S314 - written above
        assert one.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("paper", "synthetic", "--alpha", "foo"), "alpha must be a decimal number"),
        (("paper", "synthetic", "--alpha", "0.123"), "got 0.123"),
        (("paper", "synthetic", "--jobs", "-1"), "Invalid value for '--jobs'"),
        (("suggest", str(RECORDING), "--alpha", "0.4", "--jobs", "0"), "Invalid value for '--jobs'"),
        (("compare", str(RECORDING), "--method", "condtional"), "did you mean 'conditional'?"),
        (("compare", str(RECORDING), "--metric", "coverge"), "did you mean 'coverage'?"),
        (("plan", "--n", "5", "--attainable", "90"), "did you mean 0.9?"),
        (("compare", str(RECORDING), "--figures", f"{RECORDING}/figures"), "cannot be created as a folder"),
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
