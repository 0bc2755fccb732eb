"""Calibrate on the recording, and measure over many splits what is kept for each topic.

python rag_calibrate.py                     artifact.json and groups.png, in cfc-demo/rag
python rag_calibrate.py --records FILE      on records of your own, such as rag_collect.py writes
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np
from langchain_cfc_lab import ComparisonReport, compare
from langchain_cfc_lab.comparison_report import GroupComparison, MethodComparison
from langchain_cfc_lab.report.plots import plot_group_miscoverage
from matplotlib.figure import Figure
from rag_models import RECORDS

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.records import PromptRecord, read_records
from langchain_cfc.scoring import compute_auroc

ALPHA = "0.2"
FEATURES = "group(topic)"
SET_RULE = "unique(all)"
VERIFIERS = ("groundedness", "sequence")
TEST_FRACTION = 0.25
# Large enough for every topic to be met where the feature map is fitted.
FIT_FRACTION = 0.35

Shares: TypeAlias = GroupComparison | MethodComparison


def calibrate_chain(records: Iterable[PromptRecord]) -> CalibrationArtifact:
    """Calibrate the chain; the questions of the test part are held out, to ask about."""
    with warnings.catch_warnings():
        # A topic out of reach is flagged, which the table shows.
        warnings.simplefilter("ignore", AttainabilityWarning)
        return calibrate(
            records,
            alpha=ALPHA,
            features=FEATURES,
            set_rule=SET_RULE,
            test_fraction=TEST_FRACTION,
            fit_fraction=FIT_FRACTION,
        )


def compare_thresholds(records: Iterable[PromptRecord], splits: int = 100) -> ComparisonReport:
    """Compare conditional thresholds with one threshold for all, on the same random splits."""
    return compare(
        records,
        alpha=ALPHA,
        methods=("conditional", "marginal"),
        features=FEATURES,
        groups=FEATURES,
        set_rule=SET_RULE,
        splits=splits,
        test_fraction=TEST_FRACTION,
        fit_fraction=FIT_FRACTION,
    )


def measure_auroc(records: Iterable[PromptRecord], artifact: CalibrationArtifact) -> dict[str, float]:
    """Measure how well verifiers tell correct from wrong on the held-out questions: AUROC."""
    split = artifact.calibration.split
    rows = [one.candidates for one in records if split.find_part(one.id, one.cluster) == "test"]
    correct = np.array([[one.correct for one in row] for row in rows])
    scores = {
        name: np.array([[(one.scores or {})[name] for one in row] for row in rows]) for name in VERIFIERS
    }
    scores["their mean"] = np.array([[one.score for one in row] for row in rows])
    found = {name: compute_auroc(values, correct) for name, values in scores.items()}
    return {name: one.auroc for name, one in found.items() if one is not None}


def table(report: ComparisonReport, records: Sequence[PromptRecord]) -> str:
    """Mean shares over the splits as a Markdown table, one row for each topic and one for all questions.

    A question is attainable if one of its recorded candidates is correct.
    """
    attainable = defaultdict[str, list[bool]](list)
    for record in records:
        attainable[str(record.metadata["topic"])].append(any(one.correct for one in record.candidates))
    lines = [
        "| topic | attainable | conditional: kept | covered | flagged | one threshold: kept | covered |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    conditional, marginal = report.methods["conditional"], report.methods["marginal"]
    for group, other in zip(conditional.groups, marginal.groups, strict=True):
        topic = group.name.partition("=")[2]
        lines.append(_row(topic, fmean(attainable[topic]), group, other))
    lines.append(_row("all", fmean(chain.from_iterable(attainable.values())), conditional, marginal))
    return "\n".join(lines)


def _row(name: str, attainable: float, conditional: Shares, marginal: Shares) -> str:
    shares = [attainable, conditional.kept_promise, conditional.coverage, conditional.not_certifiable_rate]
    shares += [marginal.kept_promise, marginal.coverage]
    return f"| {name} | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrate, measure by topic and draw the figure."""
    parser = argparse.ArgumentParser(description="Calibrate the RAG chain and measure it by topic.")
    parser.add_argument("--records", type=Path, default=RECORDS, help="labelled records")
    parser.add_argument("--splits", type=int, default=100, help="how often to split them for the table")
    parser.add_argument("--folder", type=Path, default=Path("cfc-demo/rag"), help="where files are written")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    records = read_records(options.records)
    artifact = calibrate_chain(records)
    artifact.save(options.folder / "artifact.json")
    for name, auroc in measure_auroc(records, artifact).items():
        print(f"AUROC of {name}: {auroc:.3f}")
    report = compare_thresholds(records, options.splits)
    print(f"Means over {report.splits} random splits, target {report.target_coverage:.0%}:\n")
    print(table(report, list(records)))
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    plot_group_miscoverage(report, figure.subplots())
    figure.savefig(options.folder / "groups.png", dpi=120)
    print(f"\nartifact: {options.folder / 'artifact.json'}\nfigure: {options.folder / 'groups.png'}")


if __name__ == "__main__":
    main()
