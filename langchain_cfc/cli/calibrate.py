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
from langchain_cfc.cli._format import (
    DATASET,
    check_output,
    curve_table,
    emit_json,
    failures_explained,
    group_label,
    opened,
    out,
    promise_table,
)
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.thresholds import WINDOW

# Headings of the help.
CONFIDENCE, VARIANTS, SPLITS = "Confidence and certificates", "Variants", "Splits"


class ThresholdRuleChoice(str, Enum):
    """Threshold rules by name."""

    conditional = "conditional"
    marginal = "marginal"
    grouped = "grouped"
    learned = "learned"


class PenalisedChoice(str, Enum):
    """Coefficients that a ridge penalises."""

    slopes = "slopes"
    all = "all"


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
        list[str] | None,
        typer.Option(
            help="Error level; give several to choose per call. Default 0.1, or with --max-wrong-rate levels "
            "from 0.05 to 0.9."
        ),
    ] = None,
    features: Annotated[
        str, typer.Option(help="Feature map, e.g. 'hat(mean_score, 5) + group(topic)'.")
    ] = "hat(mean_score, 5)",
    set_rule: Annotated[
        str,
        typer.Option(
            help="all, best_prefix or rank, or unique(...) or at_least_one(...) around one of them."
        ),
    ] = "all",
    never_empty: Annotated[
        bool,
        typer.Option(
            "--never-empty/--allow-empty",
            help="Where no candidate reaches the threshold: return the best one, or abstain.",
        ),
    ] = True,
    threshold_rule: Annotated[
        ThresholdRuleChoice,
        typer.Option(
            help="conditional holds for every weighting that the features span; grouped for disjoint groups, "
            "with --confident."
        ),
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
        int, typer.Option(help="Calibration prompts kept at least for each level; more if need be, 0: all.")
    ] = WINDOW,
    ridge: Annotated[
        float,
        typer.Option(
            help="Smooth thresholds; the promise then is exact over all prompts only.",
            rich_help_panel=VARIANTS,
        ),
    ] = 0.0,
    penalised: Annotated[
        PenalisedChoice,
        typer.Option(
            help="What --ridge penalises; all is the paper's form and promises nothing.",
            rich_help_panel=VARIANTS,
        ),
    ] = PenalisedChoice.slopes,
    stability_delta: Annotated[
        str | None,
        typer.Option(
            help="The paper's CFC-PAC slack at this failure probability (its tables: 0.9); a heuristic.",
            rich_help_panel=VARIANTS,
        ),
    ] = None,
    shift: Annotated[
        str | None,
        typer.Option(
            help="For a known shift, e.g. 'meta(ratio)': how much likelier a prompt is where it is served.",
            rich_help_panel=VARIANTS,
        ),
    ] = None,
    randomised: Annotated[
        bool,
        typer.Option(
            "--randomised",
            help="Randomise thresholds: coverage is 1 - alpha for continuous scores with --allow-empty, else "
            "more.",
            rich_help_panel=VARIANTS,
        ),
    ] = False,
    confident: Annotated[
        bool,
        typer.Option(
            "--confident",
            help="The promise for this very artifact, with confidence 1 - delta, not on average.",
            rich_help_panel=CONFIDENCE,
        ),
    ] = False,
    max_wrong_rate: Annotated[
        str | None,
        typer.Option(
            help="Bot mode: certify that at most this share of the answered prompts is answered wrongly.",
            rich_help_panel=CONFIDENCE,
        ),
    ] = None,
    wrong_rate_groups: Annotated[
        bool,
        typer.Option(
            "--wrong-rate-groups", help="Certify that in each group as well.", rich_help_panel=CONFIDENCE
        ),
    ] = False,
    delta: Annotated[
        str | None,
        typer.Option(
            help="Failure probability of --confident and of --max-wrong-rate; default 0.05.",
            rich_help_panel=CONFIDENCE,
        ),
    ] = None,
    seed: Annotated[
        str, typer.Option(help="Another seed gives another split.", rich_help_panel=SPLITS)
    ] = "0",
    fit_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of prompts that fits feature map and combination; default 0.2 if any is needed.",
            rich_help_panel=SPLITS,
        ),
    ] = None,
    test_fraction: Annotated[
        float, typer.Option(help="Share of prompts held out for `evaluate`.", rich_help_panel=SPLITS)
    ] = 0.0,
    certification_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of prompts held out for certificates; default 0.3 if any is needed, else 0.",
            rich_help_panel=CONFIDENCE,
        ),
    ] = None,
    within_clusters: Annotated[
        ClusterChoice,
        typer.Option(
            help="Calibrate on one prompt of each cluster, or on all (no theorem).", rich_help_panel=SPLITS
        ),
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
                alpha=alpha or (["0.1"] if max_wrong_rate is None else None),
                features=features,
                set_rule=set_rule,
                never_empty=never_empty,
                threshold_rule=threshold_rule.value,
                combine=verifiers or None,
                n=n,
                cap=cap,
                window=window or None,
                ridge=ridge,
                penalised=penalised.value,
                stability=None
                if stability_delta is None
                else PaperStability.from_constant(delta=stability_delta),
                shift=shift,
                randomised=randomised,
                confident=confident,
                max_wrong_rate=max_wrong_rate,
                wrong_rate_groups=wrong_rate_groups,
                delta=delta,
                seed=seed,
                fit_fraction=fit_fraction,
                test_fraction=test_fraction,
                certification_fraction=certification_fraction,
                within_clusters=within_clusters.value,
                allow_unattainable=allow_unattainable,
                provenance=dataset.provenance,
            )
        artifact.save(out_path)
    if as_json:
        emit_json({"artifact": str(out_path), **artifact_data(artifact)})
        return
    console = out()
    console.print(promise_table(artifact))
    console.print("", groups_table(artifact))
    if artifact.policy is not None:
        console.print("", curve_table(artifact))
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
