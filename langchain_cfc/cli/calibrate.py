"""`langchain-cfc calibrate`: build an artifact from labelled records."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from langchain_cfc import calibration
from langchain_cfc.artifact import open_attempts
from langchain_cfc.candidates import Unit
from langchain_cfc.cli._artifact import (
    describe_artifact,
    make_curve_table,
    make_groups_table,
    make_promise_table,
)
from langchain_cfc.cli.formatting import emit_json, get_console, report_errors
from langchain_cfc.cli.inputs import (
    RECORDS_HELP,
    OutArtifact,
    TestFraction,
    check_output,
    open_records,
    split_option,
)
from langchain_cfc.guarantee import PaperPAC

# Options under headings of their own in the help.
_promise_option = partial(typer.Option, rich_help_panel="What is promised")
_scores_option = partial(typer.Option, rich_help_panel="Scores and sets")


def calibrate(
    records: Annotated[list[str], typer.Argument(help=f"{RECORDS_HELP}.")],
    out_path: OutArtifact = Path("artifact.json"),
    alpha: Annotated[
        list[str] | None,
        _promise_option(
            help="Error level of sets; repeat to choose one per call when serving. Default: 0.1, or no sets "
            "with --max-wrong-rate."
        ),
    ] = None,
    features: Annotated[
        str, _scores_option(help="Feature map, e.g. 'hat(mean_score, 5) + group(topic)'.")
    ] = "hat(mean_score, 5)",
    unit: Annotated[
        Unit,
        _promise_option(help="What is kept or rejected: whole answers, or the claims of one answer."),
    ] = "answers",
    at_most: Annotated[
        int,
        _promise_option(min=0, help="With --unit claims: how many unsupported claims an answer may keep."),
    ] = 0,
    set_rule: Annotated[
        str,
        _scores_option(
            help="all, best_prefix or rank, or unique(...) or at_least_one(...) around one of them."
        ),
    ] = "all",
    draws: Annotated[
        str | None,
        typer.Option(
            help="Rule that stops drawing: 'fixed(5)', 'lead(3, at_most=10)', 'below(0.05, at_most=10)' or "
            "'agree(0.8, rounds=4+4+8)'."
        ),
    ] = None,
    pac: Annotated[
        str | None,
        _scores_option(
            help="The paper's CFC-PAC at this failure probability (its tables: 0.9); a heuristic."
        ),
    ] = None,
    adaptive_alpha: Annotated[
        bool,
        _promise_option(
            "--adaptive-alpha",
            help="Promise less for hard prompts instead of flagging them; every answer states its coverage.",
        ),
    ] = False,
    max_wrong_rate: Annotated[
        list[str] | None,
        _promise_option(
            help="Bot mode: certify that at most this share of the answered prompts is answered wrongly. "
            "Repeat to choose one when serving."
        ),
    ] = None,
    wrong_rate_groups: Annotated[
        bool,
        _promise_option("--wrong-rate-groups", help="Certify the wrong-answer rate in each group as well."),
    ] = False,
    delta: Annotated[
        str | None,
        _promise_option(
            help="Failure probability of --max-wrong-rate (default: 0.05), or of --alpha if --features puts "
            "every prompt into one of disjoint groups: 1, group(...) or bins(...) alone."
        ),
    ] = None,
    seed: Annotated[str, split_option(help="Seed of the split.")] = "0",
    fit_fraction: Annotated[
        float | None,
        split_option(help="Share of prompts to fit the feature map on. Default: 0.2 if needed."),
    ] = None,
    test_fraction: TestFraction = 0.0,
    allow_unattainable: Annotated[
        bool,
        _promise_option(
            "--allow-unattainable", help="Continue even if the target is out of reach over all prompts."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and promise as JSON.")] = False,
) -> None:
    """Build a calibration artifact from labelled records.

    What is certified with confidence is an attempt on these labels. Attempts are kept beside the records, in
    RECORDS.attempts.json, so that all of them together keep the failure probability: keep that file.
    """
    with report_errors():
        check_output(out_path)
        with open_attempts(records, out_path) as kept, open_records(records) as dataset:
            if delta or max_wrong_rate:
                kept.check_writable()
            artifact = calibration.calibrate(
                dataset.records,
                alpha=alpha or (None if max_wrong_rate else ["0.1"]),
                features=features,
                unit=unit,
                at_most=at_most,
                set_rule=set_rule,
                draws=draws,
                pac=None if pac is None else PaperPAC(pac),
                adaptive_alpha=adaptive_alpha,
                max_wrong_rate=max_wrong_rate or None,
                wrong_rate_groups=wrong_rate_groups,
                delta=delta,
                seed=seed,
                fit_fraction=fit_fraction,
                test_fraction=test_fraction,
                allow_unattainable=allow_unattainable,
                provenance=dataset.provenance,
                after=kept.ledger,
            )
            kept.record(artifact)
        artifact.save(out_path)
    if as_json:
        emit_json({"artifact": str(out_path), **describe_artifact(artifact)})
        return
    console = get_console()
    console.print(make_promise_table(artifact))
    if not artifact.is_bot_alone:
        console.print("", make_groups_table(artifact))
    if artifact.bot is not None and artifact.bot.curve:
        console.print("", make_curve_table(artifact.bot))
    console.print(f"\nartifact written to [bold]{escape(str(out_path))}[/]", soft_wrap=True)
