"""Lines and tables that show an artifact in a terminal: facts, promise, groups, certificates, bot mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import CalibrationArtifact, CertifiedBot
from langchain_cfc.cli.formatting import format_group, make_table, print_lines, print_list
from langchain_cfc.guarantee import CoverageCertificate, describe_attempt, format_bound, format_share
from langchain_cfc.support.display import summarise
from langchain_cfc.support.text import format_limit, format_percent, join_names


def _count_prompts(artifact: CalibrationArtifact) -> str:
    """Return how many prompts calibrated the levels that are promised, and how many certified a bot."""
    facts, bot = artifact.calibration, artifact.bot
    used = [f"{facts.size} calibrated"] if artifact.alphas else []
    used += [f"{bot.certificates[0].prompts} certified"] if bot is not None and bot.certificates else []
    return ", ".join(used)


def _describe_drawn(artifact: CalibrationArtifact) -> str:
    most, is_fixed_count = artifact.traits.drawn.format(artifact.n), artifact.traits.is_fixed_count
    if not (is_fixed_count or artifact.n == 1):
        return f"{most}, the first of {artifact.n}"
    return most if artifact.draws is None else f"at most {most}: {artifact.draws}"


def make_promise_table(artifact: CalibrationArtifact) -> Table:
    """Make a table of the guarantee and its assumptions, with a label for each row."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _list_promise(artifact):
        table.add_row(label, escape(text))
    return table


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
    title = f"Certified with failure probability {certificate.delta}, all bounds together"
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


def _list_bot_mode(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    if artifact.bot is None:
        subject = artifact.subject or artifact.unit
        rate = f"A rate of {artifact.traits.wrong} {subject}"
        yield subject.capitalize(), f"{rate} is not certified (calibrate --max-wrong-rate)."
        return
    for certificate in artifact.bot.certificates:
        yield "Bot", artifact.make_bot_guarantee(max_wrong_rate=certificate.max_wrong_rate).summary
    if len(artifact.bot.certificates) > 1:
        yield "", "Each of these rates holds separately, with its confidence; choose one before serving."
    for reason in artifact.bot.refused.values():
        yield "Refused", reason


def _list_promise(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    if artifact.alphas:
        yield from _list_levels(artifact)
    yield from _list_bot_mode(artifact)
    if artifact.batch is not None:
        yield "Batch", f"Serves ask --batch, by the scores of {artifact.batch.prompts} labelled prompts."
    if artifact.is_bot_alone or artifact.make_guarantee(artifact.alphas[0]).kind != "heuristic":
        yield "Holds if", _format_assumptions(artifact)
    yield from _list_limits(artifact)
    yield from _list_origin(artifact)


def _list_levels(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    promises = [artifact.make_guarantee(alpha) for alpha in artifact.alphas]
    name = artifact.parsed_set_rule.option
    levels = {alpha: f"{name} = {alpha}: " if len(promises) > 1 else "" for alpha in artifact.alphas}
    for promise in promises:
        yield "Promise", f"{levels[promise.alpha]}{promise.sentence}"
    if artifact.confidence is not None:
        one = artifact.confidence
        yield "Confidence", describe_attempt(one.attempt, one.level, one.delta)
    elif promises[0].kind != "heuristic" and not artifact.certificates:
        yield (
            "Confidence",
            (
                "On average over calibration sets. This artifact may do better or worse; "
                "`langchain-cfc certify` bounds how well it does."
            ),
        )
    for certificate in artifact.certificates:
        yield "Certified", f"{levels[certificate.alpha]}{certificate.sentence}"
    for claim in promises[0].heuristics:
        yield "Heuristic", claim


def _list_limits(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    facts, traits = artifact.calibration, artifact.traits
    attainable = f"{format_percent(facts.attainable_coverage)} of the calibration {traits.prompt}s"
    if not artifact.is_bot_alone:
        yield (
            "Flagged",
            (
                f"{attainable} can keep the promise. Where too few can, {traits.prompt}s are flagged as not "
                "certifiable: no answer."
            ),
        )
    elif artifact.parsed_set_rule.option == "alpha" and traits.is_fixed_count:
        yield "Possible", f"{attainable} {traits.attainable.format(artifact.n)}."


def _list_origin(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    facts, drawn, prompt = artifact.calibration, _describe_drawn(artifact), artifact.traits.prompt
    yield (
        "Made from",
        (
            f"{_count_prompts(artifact)} {prompt}s, {drawn}"
            if artifact.is_bot_alone
            else f"{facts.size} calibration {prompt}s, {drawn}; features "
            f"{artifact.feature_map.text}; set rule {artifact.set_rule}"
        ),
    )
    yield (
        "Artifact",
        f"{artifact.digest[:19]}..., {artifact.created_at[:10]}, version {artifact.library_version}",
    )


def _format_assumptions(artifact: CalibrationArtifact) -> str:
    alike = f"new {artifact.traits.prompt}s are like those calibrated on"
    bound = "generator and verifier are the same (serving cannot compare them: the records name none)"
    parts = [one for one in artifact.traits.parts if getattr(artifact.provenance, one, None) is not None]
    if parts:  # a header of records may name none
        names = {"answer": "answer extractor"}
        named = join_names([f"{names.get(part, part)} {artifact.name_part(part)}" for part in parts])
        bound = f"serving uses the same {named} (which it checks)"
    return f"{alike}; the labels are right; the rate is chosen beforehand; {bound}. All: --details."


def print_curve(console: Console, artifact: CalibrationArtifact) -> None:
    """Print the curve of a certified bot as text, with its certified points."""
    if artifact.bot is not None and artifact.bot.curve:
        print_lines(console, ["", *artifact.bot.risk_curve.draw_text()])
        console.print("(. seen, O certified, - limit; the figures: --details)", style="dim")


def print_details(console: Console, artifact: CalibrationArtifact) -> None:
    """Print the promises in full, all assumptions, tables of groups and cuts, and facts."""
    name = artifact.parsed_set_rule.option
    for alpha in artifact.alphas:
        promise = artifact.make_guarantee(alpha)
        console.print(f"\n[bold]The promise at {name} = {alpha}[/]\n{escape(promise.sentence)}")
        if promise.certificate is not None:
            console.print("", make_certificate_table(promise.certificate))
    if artifact.alphas:
        promise = artifact.make_guarantee(artifact.alphas[0])
    else:
        promise = artifact.make_bot_guarantee(
            max_wrong_rate=artifact.certified_bot.certificates[-1].max_wrong_rate
        )
    if promise.kind != "heuristic":
        print_list(console, promise.assumptions, "Assumptions")
        print_list(console, promise.not_promised, "Not promised")
    if not artifact.is_bot_alone:
        console.print("", make_groups_table(artifact))
    if artifact.bot is not None and artifact.bot.curve:
        console.print("", make_curve_table(artifact.bot))
    console.print()
    print_lines(console, (f"{name:<20} {value}" for name, value in summarise(artifact).table[1:]))
