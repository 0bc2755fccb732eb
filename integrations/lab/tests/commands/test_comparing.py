"""`langchain-cfc compare`: tables in 80 columns, JSON and figures."""

from __future__ import annotations

import json
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
