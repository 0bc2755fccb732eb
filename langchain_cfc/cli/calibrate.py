"""`langchain-cfc calibrate`: labelled records in, artifact out."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from langchain_cfc import calibration
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli.opening import DATASET, opened
from langchain_cfc.cli.output import (
    check_output,
    emit_json,
    facts_lines,
    failures_explained,
    group_label,
    out,
)
from langchain_cfc.thresholds import WINDOW


class ThresholdRuleChoice(str, Enum):
    """Threshold rules by name."""

    conditional = "conditional"
    marginal = "marginal"
    learned = "learned"


class ClusterChoice(str, Enum):
    """How many prompts of a cluster calibrate."""

    one = "one"
    all = "all"


def calibrate(
    records: Annotated[list[str], typer.Argument(help=f"{DATASET}.")],
    out_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write the artifact.")] = Path(
        "artifact.json"
    ),
    alpha: Annotated[
        list[str] | None, typer.Option(help="Error level; give several to choose per call. Default 0.1.")
    ] = None,
    features: Annotated[
        str, typer.Option(help="Feature map, e.g. 'hat(mean_score, 5) + group(topic)'.")
    ] = "hat(mean_score, 5)",
    set_rule: Annotated[
        str, typer.Option(help="all, best_prefix, rank, or unique(...) around one of them.")
    ] = "all",
    threshold_rule: Annotated[
        ThresholdRuleChoice,
        typer.Option(help="conditional holds for every weighting that the features span."),
    ] = ThresholdRuleChoice.conditional,
    combine: Annotated[
        str | None,
        typer.Option(help="Make one score of these verifiers' raw outputs, e.g. judge,p_true."),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(
            help="Use the first n candidates; only for verifiers that score each by itself. Default all."
        ),
    ] = None,
    cap: Annotated[
        float, typer.Option(help="Success score of a prompt without a correct candidate, above 1.")
    ] = 2.0,
    window: Annotated[
        int, typer.Option(help="Calibration prompts that the artifact keeps for each level; 0 keeps all.")
    ] = WINDOW,
    seed: Annotated[str, typer.Option(help="Another seed gives another split.")] = "0",
    fit_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of prompts that fits feature map and combination; default 0.2 if any is needed."
        ),
    ] = None,
    test_fraction: Annotated[float, typer.Option(help="Share of prompts held out for `evaluate`.")] = 0.0,
    within_clusters: Annotated[
        ClusterChoice, typer.Option(help="Calibrate on one prompt of each cluster, or on all (no theorem).")
    ] = ClusterChoice.one,
    allow_unattainable: Annotated[
        bool, typer.Option("--allow-unattainable", help="Go on where the target is out of reach overall.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and promise as JSON.")] = False,
) -> None:
    """Build a calibration artifact from labelled records."""
    with failures_explained():
        check_output(out_path)
        verifiers = [] if combine is None else [name.strip() for name in combine.split(",")]
        with opened(records, verifiers) as dataset:
            artifact = calibration.calibrate(
                dataset.records,
                alpha=alpha or ["0.1"],
                features=features,
                set_rule=set_rule,
                threshold_rule=threshold_rule.value,
                combine=verifiers or None,
                n=n,
                cap=cap,
                window=window or None,
                seed=seed,
                fit_fraction=fit_fraction,
                test_fraction=test_fraction,
                within_clusters=within_clusters.value,
                allow_unattainable=allow_unattainable,
                provenance=dataset.provenance,
            )
        artifact.save(out_path)
    if as_json:
        emit_json({"artifact": str(out_path), **artifact_data(artifact)})
        return
    console = out()
    for line in facts_lines(artifact):
        console.print(escape(line), soft_wrap=True)
    console.print(groups_table(artifact))
    console.print(f"\nartifact written to [bold]{escape(str(out_path))}[/]", soft_wrap=True)


def artifact_data(artifact: CalibrationArtifact) -> dict[str, object]:
    """Facts and promises of an artifact, without its numeric state, as plain data."""
    data = artifact.model_dump(mode="json", exclude={"arrays", "levels"})
    promises = [artifact.guarantee(alpha).model_dump(mode="json") for alpha in artifact.alphas]
    return {**data, "digest": artifact.digest, "alphas": list(artifact.alphas), "guarantees": promises}


def groups_table(artifact: CalibrationArtifact) -> Table:
    """Attainable coverage by guaranteed group; groups where the strictest level is out of reach in red."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    promised = artifact.guarantee(artifact.alphas[0]).kind == "conditional"
    table.add_column(
        "guaranteed group" if promised else "group", overflow="ellipsis", no_wrap=True, max_width=42
    )
    table.add_column("prompts", justify="right")
    table.add_column("attainable", justify="right")
    table.add_column("smallest alpha", justify="right")
    for group in artifact.calibration.groups:
        out_of_reach = not group.allows(artifact.alphas[0])
        smallest = f"{group.smallest_alpha:.3f}"
        table.add_row(
            group_label(group.words),
            f"{group.size:.0f}",
            f"{100 * group.attainable:.0f} %",
            f"[bold red]{smallest}[/]" if out_of_reach else smallest,
        )
    return table
