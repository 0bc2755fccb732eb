"""`langchain-cfc suggest`: choose options of `calibrate`, on prompts that will not calibrate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import langchain_cfc_lab as lab
from langchain_cfc.artifact import open_attempts
from langchain_cfc.artifact.attempt_files import AttemptFiles
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.cli.calibration_options import make_flag
from langchain_cfc.cli.formatting import (
    format_group,
    make_table,
    make_tracker,
    print_list,
    print_result,
    report_errors,
)
from langchain_cfc.cli.inputs import RECORDS_HELP, AsJson, open_records
from langchain_cfc.errors import InputError, UnattainableTargetError
from langchain_cfc.guarantee import format_share
from langchain_cfc.records import tabulate
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.text import format_percent
from langchain_cfc_lab import DrawSuggestion, Suggestion
from langchain_cfc_lab.cli import CORE_COUNT, Jobs, print_command, split_option

# Most rows of the table; the JSON holds all options.
_MOST_ROWS = 10


def suggest(
    records: Annotated[list[str], typer.Argument(help=RECORDS_HELP)],
    alpha: Annotated[
        str | None, make_flag("alpha", help="Target error level of answer sets.", show_default="0.1")
    ] = None,
    max_wrong_rate: Annotated[
        str | None,
        make_flag(
            "max_wrong_rate",
            help="Choose for a bot instead, of whose answers at most this share may be wrong: its draw rule, "
            "since it uses no feature map and no set rule.",
        ),
    ] = None,
    features: Annotated[
        list[str] | None,
        make_flag("features", help="Feature map to choose from; repeatable. Default: about a dozen."),
    ] = None,
    set_rule: Annotated[
        list[str] | None,
        make_flag("set_rule", help="Set rule to choose from; repeatable. Default: all and best_prefix."),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="What is promised",
            help="Groups that must be served well, e.g. 'group(topic)'; repeatable. Default: groups by "
            "everything known about the prompts.",
        ),
    ] = None,
    seed: Annotated[
        str, make_flag("seed", help="Seed of the split; it determines which prompts the choice uses.")
    ] = "0",
    fit_fraction: Annotated[float, make_flag("fit_fraction", help="Share of prompts to choose on.")] = 0.3,
    test_fraction: Annotated[float, make_flag("test_fraction")] = 0.0,
    splits: Annotated[int, split_option(help="Number of inner splits.")] = 50,
    draws: Annotated[
        bool,
        typer.Option(
            "--draws",
            help="Choose when to stop drawing instead: compare what a dozen draw rules save and cost, for "
            "the first --features and --set-rule given.",
        ),
    ] = False,
    cost_per_candidate: Annotated[
        float | None, typer.Option(help="With --draws: cost to draw and score one candidate.")
    ] = None,
    jobs: Jobs = CORE_COUNT,
    as_json: AsJson = False,
) -> None:
    """Choose features, set rule or draw rule, with reasons.

    The choice uses the prompts that `calibrate` fits on, never those that calibrate. The printed command
    makes the same split, so its promise holds as if the options had been fixed in advance.

    Exit code 1 if the target is out of reach.
    """
    is_bot = max_wrong_rate is not None
    shared: dict[str, Any] = {
        "alpha": alpha or (None if is_bot else "0.1"),
        "seed": seed,
        "fit_fraction": fit_fraction,
        "test_fraction": test_fraction,
        "splits": splits,
        "jobs": jobs,
    }
    what = "suggest draws" if draws or is_bot else "suggest"
    found: DrawSuggestion | Suggestion
    with report_errors():
        if is_bot and (features or set_rule or groups):
            msg = "--max-wrong-rate chooses a bot's draw rule: leave out options of answer sets"
            raise InputError(msg)
        # A terminal shows one progress bar at a time: read all records before trying options.
        with open_attempts(records) as kept, open_records(records) as dataset:
            kept.check()
            table = tabulate(dataset, provenance=dataset.provenance)
        shared["provenance"] = dataset.provenance
        try:
            if what == "suggest":
                found = lab.suggest(
                    table,
                    features=features or None,
                    set_rules=set_rule or None,
                    judge=groups or None,
                    progress=make_tracker("trying options"),
                    **shared,
                ).with_records(records)
            else:
                found = lab.suggest_draws(
                    table,
                    features=(features or ["hat(mean_score, 5)"])[0],
                    set_rule=(set_rule or ["all"])[0],
                    max_wrong_rate=max_wrong_rate,
                    cost_per_candidate=cost_per_candidate,
                    progress=make_tracker("trying draw rules"),
                    **shared,
                ).with_records(records)
        except UnattainableTargetError:
            _record_look(kept, table, shared, what)
            raise
        _record_look(kept, table, shared, what)
    print_result(found, _print_found, as_json=as_json)


def _record_look(kept: AttemptFiles, table: LabelledBatch, shared: Mapping[str, Any], what: str) -> None:
    """Record a look at the prompts that options were chosen on; another split would let them certify."""
    shares = {part: shared[f"{part}_fraction"] for part in ("fit", "test")}
    rows = make_split_plan(shared["seed"], **shares).list_rows(table)
    kept.record_look(table.take(rows["fit"]), what)


def _print_found(console: Console, found: DrawSuggestion | Suggestion) -> None:
    if isinstance(found, DrawSuggestion):
        _print_draws(console, found)
    else:
        _print_suggestion(console, found)


def _print_draws(console: Console, found: DrawSuggestion) -> None:
    is_bot = found.alpha is None
    cost = [] if found.rules[0].cost is None else ["cost of 1,000"]
    useful = "answers" if is_bot else "covers"
    everything = next(one for one in found.rules if one.rule == f"fixed({found.n})")
    chosen = next(one for one in found.rules if one.rule == found.chosen)
    saved = format_percent(1.0 - chosen.mean_draws / everything.mean_draws)
    console.print(
        f"[bold]{escape(chosen.rule)}[/] saves {saved} of the draws, and is the cheapest that {useful} at "
        f"most {100 * found.most_lost:g} points less than drawing all {found.n}. Next:"
    )
    print_command(console, found.command)
    if is_bot:
        rate = format_share(float(found.max_wrong_rate or 0))
        console.print(
            f"{len(found.rules)} draw rules for a bot with at most {rate} wrong answers, on {found.prompts} "
            "prompts that will not certify it\n"
        )
        headings = ["answered", "wrong"]
    else:
        console.print(
            f"{len(found.rules)} draw rules on {found.prompts} prompts that will not calibrate, means over "
            f"{found.splits} inner splits\n"
        )
        headings = ["covered", "answered", "flagged", "answers"]
    table = make_table("draw rule", "draws", *headings, *cost, width=27)
    for one in found.rules:
        shares = (one.coverage, one.answered_rate, one.not_certifiable_rate, one.wrong_rate)
        table.add_row(
            f"{'* ' if one.is_on_front else '  '}{one.rule}",
            f"{one.mean_draws:.2f}",
            *(f"{100 * share:.1f}" for share in shares if share is not None),
            *(f"{mean:.2f}" for mean in (one.mean_answers,) if mean is not None),
            *(f"{price:,.2f}" for price in (one.cost,) if price is not None),
            style="bold" if one.rule == found.chosen else "",
        )
    console.print(table)
    console.print(f"[dim]* no other rule draws less and {useful} as much; {', '.join(headings[:3])} in %[/]")
    if is_bot:
        console.print("[dim]wrong: of the answers given; expected with the prompts left to certify[/]")


def _print_suggestion(console: Console, found: Suggestion) -> None:
    console.print(
        f"The best of {len(found.options)} pairs of features and set rule: "
        f"[bold]{escape(found.options[0].words)}[/]. Next:"
    )
    print_command(console, found.command)
    console.print(
        f"Tried on {found.prompts} prompts that will not calibrate, in "
        f"{found.splits} inner splits; target {format_share(found.target_coverage)} in each of "
        f"{found.groups} groups\n"
    )
    console.print(_make_options_table(found))
    console.print("[dim]gap, kept and flag in %; price: answers shown per prompt, all of them if flagged[/]")
    more = len(found.options) - _MOST_ROWS
    if more > 0:
        console.print(f"[dim]and {more} more; --json shows all[/]")
    console.print(f"\n[bold]{escape(found.options[0].words)}[/]: {escape(found.reason)}")
    if found.runner_up is not None:
        console.print(f"\nRunner-up {escape(found.options[1].words)}: {escape(found.runner_up)}")
    console.print()
    print_list(console, found.notes)
    print_list(console, (f"Not usable: {what}. {why}" for what, why in found.unusable.items()))


def _make_options_table(found: Suggestion) -> Table:
    """Make a table of the best options, best first; the chosen one is bold."""
    table = make_table()
    table.add_column("", no_wrap=True)
    table.add_column("option [not bold](worst group)[/]", overflow="fold", width=46)
    for heading in ("gap", "price", "kept", "flag"):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, one in enumerate(found.options[:_MOST_ROWS], start=1):
        table.add_row(
            str(place),
            f"{escape(one.words)} [not bold][dim]({format_group(one.group)})[/][/]",
            f"{100 * one.gap:.1f}",
            f"{one.size:.2f}",
            f"{100 * one.kept_promise:.0f}",
            f"{100 * one.not_certifiable_rate:.0f}",
            style="bold" if place == 1 else "",
        )
    return table
