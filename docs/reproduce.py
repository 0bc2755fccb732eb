"""Writes `reproduction.md` and its figures: runs the commands that the page shows, and tabulates them.

    python docs/reproduce.py RECORDING ... [--sweep sweep.json]

takes the recordings that the page compares on, in the order of `RECORDINGS`, and what `benchmarks/sweep.py`
has measured. It takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
FIGURES = DOCS / "figures"
METRICS = ("ECR", "GSC", "APSS")


@dataclass(frozen=True)
class Recording:
    """A recording that the page compares on.

    Attributes:
        name: What it is called.
        words: What it holds.
        study: The experiment of the paper that suits it.
        levels: Levels within its reach, for that experiment.
    """

    name: str
    words: str
    study: str
    levels: tuple[str, ...]


RECORDINGS = (
    Recording(
        "facts.jsonl",
        "the recording that ships with the package: 1,224 questions about facts and sums, ten answers each "
        "by a model of 1.5 billion parameters, scored by their sequence probability",
        "triviaqa",
        ("0.2", "0.25", "0.3", "0.35", "0.4", "0.45"),
    ),
    Recording(
        "facts_small_model.jsonl",
        "the same questions, by a model of 0.5 billion parameters",
        "triviaqa",
        ("0.65", "0.7", "0.75", "0.8"),
    ),
    Recording(
        "word_problems.jsonl",
        "711 word problems of SVAMP and GSM8K, ten answers each by the larger model",
        "gsm8k",
        ("0.4", "0.45", "0.5", "0.55", "0.6"),
    ),
)


def main() -> None:
    """Write the page."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("recordings", nargs=len(RECORDINGS), type=Path, help="records files")
    options.add_argument("--sweep", type=Path, help="what benchmarks/sweep.py has written")
    given = options.parse_args()
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        parts = [HEAD, *synthetic(Path(folder)), RECORDED]
        for recording, path in zip(RECORDINGS, given.recordings, strict=True):
            parts += recorded(recording, path, Path(folder))
    if given.sweep:
        parts += speed(json.loads(given.sweep.read_text(encoding="utf-8")))
    (DOCS / "reproduction.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


HEAD = """\
# Reproducing the paper, and comparing on records

Written by `docs/reproduce.py`, which runs the commands below; do not edit. The authors of Conditional
Factuality Control have published no code. This page shows what comes of their tables here, and what the
methods do on real recordings, in their conventions and in ours."""


def synthetic(folder: Path) -> Iterator[str]:
    """The synthetic experiment."""
    drawn = folder / "synthetic"
    found = said("paper", "synthetic", "--figures", str(drawn), accept={0, 1})
    cells = found["cells"]
    yield "## The synthetic experiment"
    yield "```bash\nlangchain-cfc paper synthetic --json\n```"
    yield "\n".join(f"- {sentence}" for sentence in found["account"])
    yield " ".join(one["words"] for one in found["agreement"])
    main = [cell for cell in cells if cell["table"] == "main"]
    beyond = [cell for cell in main if abs(cell["z"]) > 2.0]  # noqa: PLR2004 - worth a look
    far = "; ".join(f"{c['method']} {c['metric']} at {c['alpha']}: {c['z']:+.1f}" for c in beyond)
    yield (
        "z is the distance of the published mean of five seeds from ours in standard errors. Beyond 2: "
        f"{far or 'none'}. A star marks a cell outside the published mean +- sd and half a unit of its "
        "last digit. All cells share the paper's five seeds and deviate together, so these are no "
        "independent counts; the authors' own generator would have some nine cells in ten in band."
    )
    for metric in METRICS:
        of_metric = [cell for cell in main if cell["metric"] == metric]
        alphas = list(dict.fromkeys(cell["alpha"] for cell in of_metric))
        rows = [
            [method, *(cell_text(c) for c in of_metric if c["method"] == method)]
            for method in dict.fromkeys(cell["method"] for cell in of_metric)
        ]
        yield f"{metric}, here and in brackets the paper:"
        yield table([metric, *(f"alpha {alpha}" for alpha in alphas)], rows)
    ablation = [cell for cell in cells if cell["table"] == "ablation"]
    settings = dict.fromkeys((c["n_calibration"], c["n_candidates"]) for c in ablation)
    columns = dict.fromkeys((c["method"], c["metric"]) for c in ablation)
    rows = [
        [f"{size:,}", str(budget)]
        + [
            cell_text(c)
            for column in columns
            for c in ablation
            if (c["n_calibration"], c["n_candidates"]) == (size, budget)
            and (c["method"], c["metric"]) == column
        ]
        for size, budget in settings
    ]
    yield "The ablation over calibration size and number of candidates, alpha = 0.2:"
    yield table(["N", "M", *(f"{method} {metric}" for method, metric in columns)], rows)
    yield figure(drawn, "synthetic_miscoverage_by_group", "Miscoverage by difficulty at alpha = 0.1")
    yield figure(drawn, "synthetic_threshold_by_difficulty", "Thresholds by difficulty at alpha = 0.1")


RECORDED = """\
## On real recordings

Each recording is split in halves 100 times; every method calibrates on one half and is tested on the
other. `kept` is the share of prompts that are covered or flagged as not certifiable, the event that is
guaranteed: who flags everything keeps 100 %, so read it with `flagged`. `hardest fifth` is the same among
the fifth of prompts of highest mean score, and `worst fifth` among the fifth that is worst on average; a
distinct answer counts once, a prompt without an answer as 0, and `best right` is among prompts with an
answer. The paper's methods stand in its own conventions: success score 1 where no candidate is correct,
nothing flagged, truncation after calibration, features fitted on the calibration prompts, sets that may be
empty. `back-off` aims at sets without a wrong candidate, not at covering; its own event is said below each
table.

Our sets are never empty: where no candidate reaches the threshold, the best one is returned, so only
flagged prompts get no answer. This raises `kept` above the target, most for conditional thresholds, where
the best candidate of such prompts is usually correct. Blank answers enter no set, ours or the paper's.

Two things to look for. One threshold for all prompts (`marginal`, `ICP`) keeps its promise on average and
breaks it on the hardest fifth. Conditional thresholds keep it there, mostly by flagging: the tables say
how many of that fifth are flagged, and how many get a set with a correct answer. (A fifth is not in the
span of these features, only soft groups around it.) And the paper's conditional methods fall short of the
target where many prompts have no correct candidate, because a set of everything counts as covered there;
ours flag prompts there."""


def recorded(recording: Recording, path: Path, folder: Path) -> Iterator[str]:
    """One recording: the comparison, and the paper's protocol on it."""
    name, drawn = recording.name, folder / recording.name
    found = said("compare", str(path), "--figures", str(drawn), *alphas(recording))
    data = found["data"]
    yield f"### `{name}`"
    yield f"{recording.words[0].upper()}{recording.words[1:]}."
    yield f"```bash\nlangchain-cfc compare {name} {' '.join(alphas(recording))} --report comparison.html\n```"
    yield (
        f"{data['prompts']:,} prompts, attainable coverage {100 * data['attainable_coverage']:.1f} %, AUROC "
        f"of the scores {data['auroc']:.2f}; at alpha = {found['alpha']:g}, in percent:"
    )
    yield methods(found)
    yield figure(drawn, "miscoverage_by_group", f"`{name}`: how often the promise is broken", name)
    yield figure(drawn, "worst_group_kept_promise_by_alpha", f"`{name}`: the worst fifth at each alpha", name)
    study = said("paper", recording.study, str(path), *alphas(recording))
    yield f"```bash\nlangchain-cfc paper {recording.study} {name} {' '.join(alphas(recording))}\n```"
    yield "What the paper's table says, and at how many levels it holds there and here:"
    yield table(
        ["statement", "paper", "here"],
        [
            [p["statement"], "{} of {}".format(*p["published"]), "{} of {}".format(*p["here"])]
            for p in study["patterns"]
        ],
    )


def speed(sweep: dict[str, float]) -> Iterator[str]:
    """What a sweep costs."""
    yield "## What a sweep costs"
    yield "```bash\npython benchmarks/sweep.py\n```"
    yield (
        f"100 splits x 7 methods x 8 alphas on 10,000 + 10,000 prompts, three features: "
        f"{sweep['sweep_seconds']:.0f} seconds in one process. One HiGHS linear programme per test prompt "
        f"would take {sweep['cold_times_slower']:,.0f} times as long, and warm-started from the last basis "
        f"{sweep['warm_times_slower']:,.0f} times: extrapolated from a sample of programmes of that size in "
        f"the same run, whose thresholds differ from ours by {sweep['cold_largest_difference']:.0e} at most."
    )


def methods(found: dict[str, Any]) -> str:
    """Every method at one level."""
    headings = ["method", "kept", "worst fifth", "hardest fifth", "of it flagged", "of it covered"]
    headings += ["covered", "flagged", "no answer", "answers", "best right"]
    rows = []
    for name, method in found["methods"].items():
        figures, hardest = method["figures"], method["groups"][-1]
        low, high = figures["kept_promise"]["interval"]
        worst = figures["worst_group_kept_promise"]["mean"]
        kept = [f"{percent(method['kept_promise'])} ({percent(low)} to {percent(high)})", percent(worst)]
        kept.append(percent(hardest["kept_promise"]))
        accuracy = figures.get("selective_accuracy")
        rows.append(
            [
                f"{name} ({method['family']})",
                *(kept if method["aims_at_coverage"] else "---"),
                *map(percent, (hardest["not_certifiable_rate"], hardest["coverage"], method["coverage"])),
                *map(percent, (method["not_certifiable_rate"], method["abstention_rate"])),
                f"{method['mean_distinct_answers']:.2f}",
                "-" if accuracy is None else percent(accuracy["mean"]),
            ]
        )
    spotless = found["methods"]["back-off"]["figures"]["all_correct_rate"]["mean"]
    return table(headings, rows) + (
        f"\n\n`back-off` promises that nothing returned is wrong, empty sets included: {percent(spotless)} %."
    )


def percent(share: float) -> str:
    """A share in percent, without the sign."""
    return f"{100 * share:.1f}"


def alphas(recording: Recording) -> list[str]:
    """The levels as options."""
    return [part for level in recording.levels for part in ("--alpha", level)]


def cell_text(cell: dict[str, Any]) -> str:
    """A reproduced cell beside the published one."""
    decimals = 2 if cell["metric"] == "APSS" else 1
    star = "" if cell["in_band"] else "*"
    return f"{cell['reproduced']:.{decimals}f} ({cell['published']:.{decimals}f}){star}"


def figure(folder: Path, name: str, words: str, prefix: str = "") -> str:
    """A figure, copied to where the page finds it."""
    stem = f"{prefix.removesuffix('.jsonl')}_{name}".strip("_")
    shutil.copyfile(folder / f"{name}.png", FIGURES / f"{stem}.png")
    return f"![{words.replace('`', '')}](figures/{stem}.png)"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---", *("---:" for _ in headings[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def said(*command: str, accept: frozenset[int] | set[int] = frozenset({0})) -> dict[str, Any]:
    """What a command prints as JSON."""
    print("langchain-cfc", *command, file=sys.stderr)
    ran = subprocess.run(  # noqa: S603 - commands written above
        [Path(sys.executable).with_name("langchain-cfc"), *command, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode not in accept:
        raise SystemExit(ran.returncode)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


if __name__ == "__main__":
    main()
