"""Draws the pictures of `README.md` and `how-it-works.md` from the recording: `python docs/pictures.py`.

The commands that the page shows give the same figures; here they are drawn with only what the page speaks of.
It takes half a minute on two cores.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from langchain_cfc_lab import compare
from langchain_cfc_lab.report.drawing import COLOURS
from langchain_cfc_lab.report.plots import (
    plot_group_miscoverage,
    plot_score_histogram,
    plot_threshold_by_difficulty,
)
from matplotlib.figure import Figure

from langchain_cfc import CFCResult, calibrate
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.errors import AttainabilityWarning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = Path(__file__).parent / "figures"
# The fifths of the pictures are the groups of the promise.
FEATURES = "bins(mean_score, 5)"
SET_RULE = "unique(all)"
ALPHA = 0.2
# An easy question, a harder one, and one that cannot be certified.
# All were held out from calibration.
QUESTIONS = (
    "What is the capital of Lithuania?",
    "What is the atomic number of thallium?",
    "What is the capital of Aruba?",
)
CORRECT, WRONG = COLOURS[0], COLOURS[1]
BEYOND = 1.12  # where a threshold is drawn that no score can reach


def main() -> None:
    """Draw them all."""
    FIGURES.mkdir(exist_ok=True)
    # The same data give the same file, and the pictures bring their letters along.
    mpl.rcParams |= {"svg.hashsalt": "langchain-cfc", "svg.fonttype": "path"}
    save(draw_pipeline(), "readme_pipeline")
    save(draw_curve(), "readme_curve")
    save(draw_questions(asked()), "how_three_questions")
    report = compare(
        load_recording(),
        alpha=[ALPHA],
        methods=["conditional", "marginal"],
        features=FEATURES,
        set_rule=SET_RULE,
        jobs=os.cpu_count() or 1,
    )
    save(plot_score_histogram(report.data.scores), "how_scores")
    save(plot_threshold_by_difficulty(report), "how_thresholds")
    save(plot_group_miscoverage(report), "how_promise_broken")
    save(plot_group_miscoverage(report, of="coverage"), "how_no_correct_answer")
    for name, method in report.methods.items():
        print(name, f"kept {method.kept_promise:.3f}")
        for group in method.groups:
            shares = (group.kept_promise, group.coverage, group.not_certifiable_rate)
            low, high = group.figures["kept_promise"].interval or (0.0, 1.0)
            print("  {}: kept {:.3f}, covered {:.3f}, flagged {:.3f}".format(group.words, *shares), end="")
            print(f"; kept between {low:.3f} and {high:.3f}", end="")
            print(f"; attainable {group.figures['attainable'].mean:.3f}")


def draw_pipeline() -> Axes:
    """What happens to a question: boxes from left to right, and two ends."""
    ax = Figure(figsize=(7.6, 1.7), layout="constrained").subplots()
    boxes = {
        "question": (0.0, 0.0),
        "model:\n10 answers": (1.5, 0.0),
        "verifier:\n10 scores": (3.0, 0.0),
        "good enough?\n(threshold)": (4.5, 0.0),
        "the best answer": (6.3, 0.45),
        '"I do not know"': (6.3, -0.45),
    }
    style = {"boxstyle": "round,pad=0.45", "facecolor": "#eef3fb", "edgecolor": "black", "linewidth": 0.8}
    for text, (x, y) in boxes.items():
        ax.text(x, y, text, ha="center", va="center", fontsize=10.0, bbox=style)
    arrows = [(0.45, 0.95, 0.0), (2.05, 2.5, 0.0), (3.5, 3.9, 0.0), (5.15, 5.6, 0.45), (5.15, 5.6, -0.45)]
    for start, end, y in arrows:
        arrow = {"arrowstyle": "->", "linewidth": 1.0}
        ax.annotate("", xy=(end, y), xytext=(start, y / 3), arrowprops=arrow)
    ax.text(4.5, -0.95, "computed from questions with known answers", ha="center", fontsize=9.0)
    ax.set_xlim(-0.6, 7.2)
    ax.set_ylim(-1.15, 0.9)
    ax.axis("off")
    return ax


def draw_curve() -> Axes:
    """How many questions the demo's bot can answer, and how often it is wrong then."""
    artifact = calibrate(load_recording(), max_wrong_rate=[0.05, 0.1], features="1", test_fraction=0.3)
    return artifact.plot(Figure(figsize=(6.4, 3.2), layout="constrained").subplots())


def asked() -> list[CFCResult]:
    """What a chain with the pictures' features says to the three questions."""
    source = load_recording()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        # Hard fifths are out of reach, which is what the pictures show.
        warnings.simplefilter("ignore", AttainabilityWarning)
        made = calibrate(source, alpha=ALPHA, features=FEATURES, set_rule=SET_RULE, test_fraction=0.3)
        path = Path(folder, "artifact.json")
        made.save(path)
        chain = demo_chain(path).model_copy(update={"show_rejected": True})
        return [chain.invoke(question) for question in QUESTIONS]


def draw_questions(results: Sequence[CFCResult]) -> Axes:
    """Each question's candidates by score, beside its threshold."""
    right = {record.input: record for record in load_recording()}
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    ax = figure.subplots()
    for row, (question, result) in enumerate(zip(QUESTIONS, results, strict=True)):
        correct = {one.text: bool(one.correct) for one in right[question].candidates}
        spread: dict[float, int] = {}
        for one in result.candidates:
            step = spread[round(one.score, 2)] = spread.get(round(one.score, 2), -1) + 1
            is_right = correct[str(one.text)]
            ax.plot(
                one.score,
                row - 0.16 + 0.065 * step,
                marker="o" if is_right else "X",
                color=CORRECT if is_right else WRONG,
                markeredgecolor="black",
                markeredgewidth=0.4,
                markersize=7.0,
                label=("correct" if is_right else "wrong"),
                linestyle="",
            )
        threshold = BEYOND if result.threshold is None else min(result.threshold, BEYOND)
        ax.plot(
            [threshold, threshold], [row - 0.28, row + 0.5], color="black", linewidth=1.6, label="threshold"
        )
        said = f"set: {', '.join(result.answers)}" if result.answers else "not certifiable: no answer"
        ax.text(0.0, row - 0.4, f"{question}   {said}", va="center", fontsize=9.0, parse_math=False)
    ax.set_ylim(-0.6, len(QUESTIONS) - 0.45)
    ax.invert_yaxis()
    return finished(ax)


def finished(ax: Axes) -> Axes:
    """Axis, key and the place of what lies beyond all scores."""
    ax.set_yticks([])
    ax.spines[["top", "right", "left"]].set_visible(False)
    ticks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    ax.set_xticks([*ticks, BEYOND], [*(f"{tick:g}" for tick in ticks), "none is\nenough"])
    ax.set_xlabel("score (smaller is better)")
    handles, names = ax.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    ax.legend(list(once.values()), list(once), loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    return ax


def save(ax: Axes, name: str) -> None:
    """As SVG on white, for any page."""
    if figure := ax.get_figure(root=True):
        figure.savefig(FIGURES / f"{name}.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
