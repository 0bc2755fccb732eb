"""Lines and tables that show an artifact in a terminal: its summary, promises, groups, certificates, cuts."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import CalibrationArtifact, CertifiedBot
from langchain_cfc.cli.formatting import format_group, make_table, print_lines, print_list
from langchain_cfc.guarantee import CoverageCertificate, format_bound, format_share
from langchain_cfc.support.display import summarise
from langchain_cfc.support.text import format_limit, format_percent


def print_artifact(console: Console, artifact: CalibrationArtifact, *, details: bool) -> None:
    """Print what a notebook shows of an artifact, and below it the curve of a certified bot as text.

    `details` are all assumptions, and tables of certificates, groups and cuts.
    """
    shown = summarise(artifact)
    for sentence in shown.sentences:
        console.print(escape(sentence))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in shown.table[1:]:
        table.add_row(name, escape(value))
    console.print("", table)
    if artifact.bot is not None and artifact.bot.curve:
        print_lines(console, ["", *artifact.bot.risk_curve.draw_text()])
        console.print("(. seen, O certified, - limit; the figures: --details)", style="dim")
    if not details:
        return
    for certificate in artifact.certificates:
        console.print("", make_certificate_table(certificate))
    if artifact.alphas:
        promise = artifact.make_guarantee(artifact.alphas[0])
    else:
        promise = artifact.make_guarantee(
            max_wrong_rate=artifact.certified_bot.certificates[-1].max_wrong_rate
        )
    if promise.kind != "heuristic":
        print_list(console, promise.assumptions, "Assumptions")
        print_list(console, promise.not_promised, "Not promised")
    if not artifact.is_bot_alone:
        console.print("", make_groups_table(artifact))
    if artifact.bot is not None and artifact.bot.curve:
        console.print("", make_curve_table(artifact.bot))


def make_curve_table(bot: CertifiedBot) -> Table:
    """Make a table of answered share and certified wrong-answer rate by cut; those of bot mode are bold."""
    prompts = bot.certificates[0].prompts
    sure = format_share(1.0 - float(bot.delta))
    title = (
        f"What other cuts would cost (all bounds together with confidence {sure}; certified rates are bold)"
    )
    shown = bot.certificates[0].traits.shown
    table = make_table(shown, "wrong at most", "wrong seen", "mean score", texts=0, title=title)
    for point, own in bot.with_certified_points():
        table.add_row(
            format_percent(point.answered / prompts),
            format_percent(point.wrong_rate_at_most, ".1f"),
            f"{point.wrong} of {point.answered}",
            f"<= {format_limit(point.max_mean_score)}",
            style="bold" if own else "",
        )
    return table


def describe_artifact(artifact: CalibrationArtifact) -> dict[str, object]:
    """Return facts and guarantees of an artifact, without its numeric state, as plain data."""
    numbers: Any = {"arrays": True, "levels": True, "batch": {"wrong_scores", "inputs"}}
    data = artifact.model_dump(mode="json", exclude=numbers)
    promises = [one.model_dump(mode="json") for one in map(artifact.make_guarantee, artifact.alphas)]
    return {**data, "digest": artifact.digest, "alphas": list(artifact.alphas), "guarantees": promises}


def make_groups_table(artifact: CalibrationArtifact) -> Table:
    """Make a table of attainable coverage by group; red where the strictest level is out of reach."""
    group = "guaranteed group" if artifact.make_guarantee(artifact.alphas[0]).weightings[1:] else "group"
    table = make_table(group, "prompts", "attainable", "smallest alpha", width=42)
    for one in artifact.calibration.groups:
        smallest = f"{one.smallest_alpha:.3f}"
        table.add_row(
            format_group(one.words, one.name),
            f"{one.size:.0f}",
            format_percent(one.attainable),
            smallest if one.is_attainable(artifact.alphas[0]) else f"[bold red]{smallest}[/]",
        )
    return table


def make_certificate_table(certificate: CoverageCertificate) -> Table:
    """Make a table of the certified bounds, group by group."""
    headings = ("group", "prompts", "promise kept", "at least", "covered", "at least")
    # Without sets, "kept" and "covered" mean the same, so the last two are redundant.
    columns = 6 if certificate.is_about_sets else 4
    title = (
        f"Certified with failure probability {certificate.delta} at level {certificate.alpha}, all bounds "
        "together"
    )
    table = make_table(*headings[:columns], title=title, width=42)
    for share in certificate.shares:
        cells = (
            format_group(share.words, share.name),
            str(share.prompts),
            str(share.kept),
            format_bound(share.kept_at_least),
            str(share.covered),
            format_bound(share.coverage_at_least),
        )
        table.add_row(*cells[:columns])
    return table
