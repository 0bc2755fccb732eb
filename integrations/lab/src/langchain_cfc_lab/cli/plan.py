"""`langchain-cfc plan`: how many prompts to label, before any money is spent."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import open_attempts
from langchain_cfc.calibration.config import DEFAULT_DELTA
from langchain_cfc.cli.calibration_options import make_flag
from langchain_cfc.cli.formatting import (
    EXIT_NO,
    format_interval,
    make_table,
    print_list,
    print_result,
    report_errors,
)
from langchain_cfc.cli.inputs import RECORDS_HELP, AsJson, open_records
from langchain_cfc.cli.verdicts import make_batches_table
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import format_share
from langchain_cfc.records import tabulate
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.text import format_percent
from langchain_cfc_lab import (
    BotPlan,
    BotPromiseFigures,
    BotRatePlan,
    Plan,
    compare_bot_promises,
    plan_bot,
    plan_calibration,
)

# Options under headings of their own in the help.
_promise_option = partial(typer.Option, rich_help_panel="What is promised")
_cost_option = partial(typer.Option, rich_help_panel="Costs")
# The promises of a bot in words, after "at most 5 % wrong".
_PROMISES = {
    "max_wrong_rate": "of the answered, certified",
    "max_wrong_share": "of a batch, on average",
    "max_wrong_of_all": "of all, on average",
}
# Options that a plan of bot mode takes; all others are refused with it.
_BOT_OPTIONS = frozenset({"--pilot", "--max-wrong-rate", "--delta", "--test-fraction", "--as-json"})


def plan(
    context: typer.Context,
    pilot: Annotated[
        list[str] | None, typer.Argument(help=f"{RECORDS_HELP}. Omit it to state assumptions instead.")
    ] = None,
    alpha: Annotated[str, _promise_option(help="Target error level.")] = "0.1",
    max_wrong_rate: Annotated[
        list[str] | None,
        _promise_option(
            help="Plan a bot instead: the largest share of its answers that may be wrong. Repeat for rates "
            "that will be certified at once."
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", "-n", help="Candidates per prompt. Default: all that the pilot holds."),
    ] = None,
    group: Annotated[
        str | None, _promise_option(help="Metadata key; the promise must hold in each of its groups.")
    ] = None,
    attainable: Annotated[
        float | None,
        typer.Option(help="Without a pilot: assumed share of prompts with a correct candidate, in [0, 1]."),
    ] = None,
    slack: Annotated[float, _promise_option(help="How far coverage may fall below the target.")] = 0.03,
    delta: Annotated[
        float | None,
        _promise_option(
            help="Share of calibrations in which it may fall further (default 0.1); with --max-wrong-rate "
            f"the failure probability of the certificate (default {DEFAULT_DELTA}, as in calibrate)."
        ),
    ] = None,
    fit_fraction: Annotated[float, make_flag("fit_fraction")] = 0.2,
    test_fraction: Annotated[float, make_flag("test_fraction")] = 0.2,
    cost_per_candidate: Annotated[
        float, _cost_option(help="Cost to draw, score and label one candidate.")
    ] = 0.0,
    cost_per_prompt: Annotated[
        float, _cost_option(help="Cost of one prompt besides its candidates, such as its reference.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Plan how many prompts to label, at what cost, for which alpha.

    The plan covers all prompts and each group, from a small labelled pilot; without one, all prompts, from an
    assumption. It also says how many candidates to draw.

        langchain-cfc plan --n 5 --attainable 0.9 --alpha 0.15

    With --max-wrong-rate, it plans how many prompts are needed to certify a bot that is rarely wrong.

        langchain-cfc plan pilot.jsonl --max-wrong-rate 0.05

    Exit code 1 if the target is out of reach.
    """
    with report_errors():
        if max_wrong_rate:
            if not pilot or (others := _list_given_options(context) - _BOT_OPTIONS):
                msg = "--max-wrong-rate plans a bot from a pilot: give a file" + (
                    f", and leave out {', '.join(sorted(others))}" if pilot else ""
                )
                raise InputError(msg)
            with open_attempts(pilot) as kept, open_records(pilot) as dataset:
                labelled = tabulate(dataset)
                bot = plan_bot(
                    labelled,
                    max_wrong_rate=max_wrong_rate,
                    delta=DEFAULT_DELTA if delta is None else str(delta),
                    test_fraction=test_fraction,
                )
                kept.record_look(labelled, "plan")
            print_result(bot, _print_bot_plan, as_json=as_json)
            raise typer.Exit(0 if bot.is_possible else EXIT_NO)
        settings: dict[str, Any] = {
            "alpha": alpha,
            "slack": slack,
            "delta": 0.1 if delta is None else delta,
            "fit_fraction": fit_fraction,
            "test_fraction": test_fraction,
            "cost_per_candidate": cost_per_candidate,
            "cost_per_prompt": cost_per_prompt,
        }
        if not pilot:
            found = plan_calibration(group=group, n=n, attainable=attainable, **settings)
        else:
            with open_attempts(pilot) as kept, open_records(pilot) as dataset:
                labelled = tabulate(dataset)
                found = plan_calibration(labelled, group=group, n=n, attainable=attainable, **settings)
                shares = {"fit": fit_fraction, "test": test_fraction}
                promises = compare_bot_promises(
                    labelled, **{f"{one}_fraction": shares[one] for one in shares}
                )
                if promises:
                    rows = make_split_plan(0, **shares).list_rows(labelled)
                    kept.record_look(labelled.take(rows["fit"]), "plan")
                found = found.model_copy(update={"promises": promises})
    print_result(found, _print_plan, as_json=as_json)
    raise typer.Exit(EXIT_NO if found.labelled_prompts is None else 0)


def _print_plan(console: Console, found: Plan) -> None:
    if found.labelled_prompts is None:
        console.print(
            f"[bold red]alpha = {found.alpha:g} is out of reach[/] with n = {found.n} candidates.\n"
        )
    else:
        cost = f", at an expected cost of {found.expected_cost:,.2f}" if found.expected_cost else ""
        console.print(
            f"Label [bold]{found.labelled_prompts}[/] prompts with n = {found.n} candidates each{cost}, for "
            f"alpha = {found.alpha:g}: coverage then stays above "
            f"{format_share(found.target_coverage - found.slack)} in {format_share(1 - found.delta)} of "
            f"calibrations. Serving then takes {1000 * found.n:,} draws for a thousand questions.\n"
        )
    console.print(_make_group_table(found))
    if found.by_n:
        table = make_table("candidates n", *(str(one.n) for one in found.by_n))
        table.add_row("attainable coverage, %", *(f"{100 * one.attainable:.1f}" for one in found.by_n))
        console.print("", table)
    if found.promises:
        console.print("", _make_promises_table(found.promises))
        console.print(
            "Estimated on the fit split alone; calibrate with --seed 0 and the same --fit-fraction. Another "
            "rate chosen by other labels is another look at them."
        )
    if found.advice:
        print_list(console, found.advice, "Advice")


def _make_promises_table(promises: Sequence[BotPromiseFigures]) -> Table:
    """Make a table of what a bot would answer under each promise, at each rate."""
    headings = ("a bot, to choose from", "answered", "wrong of answered", "wrong of all")
    table = make_table(*headings, width=46)
    for one in promises:
        shares = (one.answered, one.wrong_of_answered, one.wrong_of_all)
        rate = format_share(one.rate)
        table.add_row(
            f"at most {rate} wrong {_PROMISES[one.promise]}",
            *(format_percent(share, ".1f") for share in shares),
        )
    return table


def _list_given_options(context: typer.Context) -> set[str]:
    """Return the parameters given on the command line, each as its option, such as `--test-fraction`."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        f"--{name.replace('_', '-')}"
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


def _print_bot_plan(console: Console, found: BotPlan) -> None:
    console.print(
        f"If every question were answered, {format_percent(found.wrong_rate)} of the answers would be wrong "
        f"(95 % interval {format_interval(found.wrong_rate_ci)} %, from {found.pilot_size} pilot prompts). "
        "To certify a rate that you choose by this plan, label new questions."
    )
    for one in found.rates:
        _print_rate(console, one)
    if found.batches:
        console.print("", make_batches_table(found.batches))


def _print_rate(console: Console, found: BotRatePlan) -> None:
    console.print(
        f"\nFor at most {format_share(found.max_wrong_rate)} wrong answers every bot that shows these must "
        f"abstain on at least [bold]{format_percent(found.least_abstention)}[/] of the prompts.\n"
    )
    if found.fewest_answered is not None:
        console.print(
            f"At least {found.fewest_answered} prompts must be answered to certify this rate, even if no "
            "answer is wrong. Estimated from the pilot, answering at least these shares takes about:\n"
        )
    table = make_table("answered", "wrong", "labelled prompts", texts=0)
    for step, larger in itertools.zip_longest(found.steps, found.steps[1:]):
        if larger is not None and step.prompts_needed == larger.prompts_needed is not None:
            continue  # the larger share takes no more prompts
        reached = step.prompts_needed is not None
        table.add_row(
            format_percent(step.answered),
            format_percent(step.wrong_rate, ".1f"),
            f"{step.prompts_needed:,}" if reached else "out of reach",
        )
        if not reached:
            break
    console.print(table)


def _make_group_table(found: Plan) -> Table:
    headings = ("group", "attainable", "95 % CI", "safe alpha", "prompts")
    table = make_table(*headings, width=24, no_wrap=True)
    table.add_column("verdict", no_wrap=True, min_width=12)
    styles = {"attainable": "green", "uncertain": "yellow", "out of reach": "red"}
    for group in found.groups:
        table.add_row(
            # Show a category without its term: `group(topic)=sums` as `sums`.
            escape(re.sub(r"^group\(.*?\)=", "", group.name)),
            format_percent(group.attainable, ".1f"),
            "" if group.attainable_ci is None else format_interval(group.attainable_ci),
            "" if group.smallest_alpha_certain is None else f"{group.smallest_alpha_certain:.3f}",
            "-" if group.prompts_needed is None else str(group.prompts_needed),
            f"[{styles[group.verdict]}]{group.verdict}[/]",
        )
    return table
