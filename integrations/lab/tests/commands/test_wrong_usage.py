"""Invalid options of the lab's commands: one error line and exit code 2."""

from __future__ import annotations

from importlib.resources import files

import pytest

from tests.cli.running import run

RECORDING = str(files("langchain_cfc") / "demo" / "facts.jsonl.gz")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("paper", "synthetic", "--alpha", "foo"), "alpha must be a decimal number"),
        (("paper", "synthetic", "--alpha", "0.123"), "the paper has no level 0.123"),
        (("paper", "synthetic", "--seed", "-1"), "seed must be a whole number, at least 0"),
        (("paper", "synthetic", "--seeds", "1"), "at least two seeds"),
        (("paper", "synthetic", "--jobs", "-1"), "Invalid value for '--jobs'"),
        (("suggest", RECORDING, "--alpha", "0.4", "--jobs", "0"), "Invalid value for '--jobs'"),
        (("compare", RECORDING, "--method", "condtional"), "did you mean 'conditional'?"),
        (("compare", RECORDING, "--metric", "coverge"), "did you mean 'coverage'?"),
        (("plan", "--n", "5", "--attainable", "90"), "did you mean 0.9?"),
        (("compare", RECORDING, "--report", "nowhere/page.html"), "folder that does not exist"),
        (("compare", RECORDING, "--report", "."), "is a folder"),
        (("compare", RECORDING, "--figures", f"{RECORDING}/figures"), "cannot be created as a folder"),
    ],
)
def test_commands_refuse_invalid_options_at_once(command: tuple[str, ...], said: str) -> None:
    ran = run(*command)
    assert ran.code == 2
    assert ran.out == ""
    assert said in " ".join(ran.err.replace("│", " ").split())


def test_compare_table_of_eight_levels_fits_80_columns() -> None:
    ran = run(
        "compare", RECORDING, "--splits", "2", "--jobs", "1", "--method", "TopK", "--method", "marginal"
    )
    assert max(map(len, ran.out.splitlines())) <= 80
    heading, *_ = (line for line in ran.out.splitlines() if line.startswith("alpha  "))
    assert heading.split()[-8:] == ["0.2", "0.25", "0.3", "0.35", "0.4", "0.45", "0.5", "0.55"]
