"""What the commands share: consoles, progress, JSON, exit codes, reading of records, and tables."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from langchain_cfc._internal.text import escape_controls, escape_controls_in_json, format_percent
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates import state_abstentions
from langchain_cfc.errors import CFCError, CFCWarning, UnattainableTargetError
from langchain_cfc.evaluation import (
    AnswersReport,
    EvaluationReport,
    GroupReport,
    MethodReport,
    StatedLevelReport,
)
from langchain_cfc.features import AdaptiveAlpha, name_group
from langchain_cfc.guarantee import (
    NOTHING_KEPT_IS_KEPT,
    Guarantee,
    format_share,
    state_confidence,
    state_guarantee,
)
from langchain_cfc.scoring import Combination

Item = TypeVar("Item")

# Characters of an answer in a table; it takes as many lines as it needs.
_CELL = 72

EXIT_NO = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130  # as shells report them; 1 would read as "no"
EXIT_BROKEN_PIPE = 141


class _Model(Protocol):
    """A report or result that knows its JSON."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


Printed = TypeVar("Printed", bound=_Model)


class _SafeConsole(Console):
    """A console that shows control characters in texts instead of sending them to the terminal.

    Escape sequences in answers, records or errors of providers could write the clipboard, change the title or
    clear the screen. rich removes some control characters, but not the escape character.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape a string before rich measures it or removes anything."""
        return super().render_str(escape_controls(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape every text that is printed; rich's own control sequences stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


class _ResultConsole(_SafeConsole):
    """A console whose reader may close the pipe early, as `head` does."""

    def on_broken_pipe(self) -> None:
        """Exit without a message."""
        _exit_broken_pipe()


def _exit_broken_pipe() -> NoReturn:
    """Exit so that Python does not flush standard output into the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(EXIT_BROKEN_PIPE)


def get_console() -> Console:
    """Return a console on standard output for results; a new one each time, to follow redirection."""
    return _ResultConsole(highlight=False)


def get_error_console() -> Console:
    """Return a console on standard error for notes, errors and progress."""
    return _SafeConsole(stderr=True, highlight=False)


def emit_json(data: Any) -> None:
    """Write strict JSON to standard output."""
    # Where the terminal is not UTF-8, the escapes of JSON keep the output valid.
    escaped = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    try:
        text = json.dumps(data, indent=2, ensure_ascii=escaped, allow_nan=False)
        sys.stdout.write(escape_controls_in_json(text) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _exit_broken_pipe()
    except OSError as error:  # such as a full disk; exit code 1 would read as "no"
        fail(f"standard output: {error.strerror or error}", EXIT_BAD_INPUT)


@contextmanager
def report_errors() -> Iterator[None]:
    """Print the package's errors as one line, with an exit code, and its warnings as notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CFCWarning)
        try:
            yield
        except UnattainableTargetError as error:
            fail(error, EXIT_NO)
        except CFCError as error:
            fail(error, EXIT_BAD_INPUT)
        except OSError as error:  # such as a full disk; exit code 1 would read as "no"
            fail(f"{error.strerror or error}: {error.filename or 'file'}", EXIT_BAD_INPUT)
        finally:
            for note in dict.fromkeys(str(warning.message) for warning in caught):
                print_note(get_error_console(), note)


def print_note(console: Console, note: str) -> None:
    """Print a note, as one line at any width."""
    console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print notes on a result, each of which takes as many lines as it needs."""
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}")


def print_result(found: Printed, print_text: Callable[[Console, Printed], None], *, as_json: bool) -> None:
    """Print a result to standard output, as JSON or by a function that takes the console."""
    if as_json:
        emit_json(found.model_dump(mode="json"))
    else:
        print_text(get_console(), found)


def print_list(console: Console, sentences: Iterable[str], title: str = "") -> None:
    """Print sentences without markup as a list, below a title if there is one."""
    if title:
        console.print(f"\n[bold]{title}[/]")
    for sentence in sentences:
        console.print(f"- {escape(sentence)}")


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print texts without markup, each as one line at any width."""
    for line in lines:
        console.print(escape(line), soft_wrap=True)


def fail(error: Exception | str, code: int) -> NoReturn:
    """Print one error and exit."""
    get_error_console().print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    raise typer.Exit(code)


def track_progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Show a progress bar while items are iterated over."""
    with make_progress(BarColumn(bar_width=24)) as progress:
        yield from progress.track(items, total=total, description=what)


def make_tracker(what: str) -> Callable[[Iterable[Any], int], Iterator[Any]]:
    """Return `track_progress` in the form that experiments take: a function of items and their number."""
    return lambda items, total: track_progress(items, what, total)


def make_progress(*columns: ProgressColumn) -> Progress:
    """Make a progress display on standard error; it shows nothing if that is no terminal."""
    console = get_error_console()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *columns,
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def make_table(
    *headings: str, texts: int = 1, title: str | None = None, width: int | None = None, **numbers: Any
) -> Table:
    """Make a table without rules: `texts` columns of text, and then columns of right-justified numbers.

    Columns of text are cut off at `width` characters. `numbers` are settings of the other columns.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings[:texts]:
        table.add_column(heading, no_wrap=width is not None, max_width=width)
    for heading in headings[texts:]:
        table.add_column(heading, justify="right", **numbers)
    return table


def format_answer_cell(value: Any, instruction: Any = None) -> str:
    """Format a prompt, answer or reference for such a table, without the instruction before the question.

    `instruction` is the template of the prompt, if it is text.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(instruction, str):
        text = text.removeprefix(instruction.partition("{")[0])
    line = " ".join(text.split())
    return escape(line if len(line) <= _CELL else f"{line[: _CELL - 1]}…")


def format_interval(bounds: tuple[float, float]) -> str:
    """Format an interval of shares in percent."""
    return f"{100 * bounds[0]:.0f}-{100 * bounds[1]:.0f}"


def make_report_tables(report: EvaluationReport) -> Iterator[Table]:
    """Make tables that fit 80 columns: over all prompts, then by guaranteed group."""
    yield _make_overall_table(report)
    if any(method.groups for method in report.methods.values()):
        yield _make_group_table(report)
    for method in report.methods.values():
        if method.stated_levels:
            yield _make_stated_table(method)


def _make_overall_table(report: EvaluationReport) -> Table:
    table = make_table()
    table.add_column("over all prompts, %", min_width=31)
    for name in report.methods:
        table.add_column(name, justify="right")
        table.add_column("95 % CI", justify="right", style="dim")

    def row(label: str, value: str, ci: str | None, style: str = "") -> None:
        cells: list[str] = []
        for method in report.methods.values():
            cells.append(f"{100 * getattr(method, value):.1f}")
            cells.append(format_interval(getattr(method, ci)) if ci else "")
        table.add_row(label, *cells, style=style)

    if any(method.stated_levels for method in report.methods.values()):
        row(f"promised (at most {100 * report.target_coverage:g})", "stated_coverage", None)
        row("promise kept", "kept_promise", "kept_promise_ci", "bold")
    else:
        target = f"target {100 * report.target_coverage:g}"
        row(f"promise kept ({target})", "kept_promise", "kept_promise_ci", "bold")
    if all(method.claims is not None for method in report.methods.values()):
        _add_claims_rows(table, report)
        return table
    row("set holds a correct answer", "coverage", "coverage_ci")
    row("flagged as not certifiable", "not_certifiable_rate", "not_certifiable_ci")
    if any(method.refused_rate > 0.0 for method in report.methods.values()):
        row("- as too few prompts were kept", "refused_rate", None)
    row("abstained (flagged or empty)", "abstention_rate", "abstention_ci")
    for label, value in (
        ("candidates per set", "mean_set_size"),
        ("distinct answers per set", "mean_distinct_answers"),
    ):
        sizes = [(f"{getattr(method, value):.2f}", "") for method in report.methods.values()]
        table.add_row(label, *(cell for pair in sizes for cell in pair))
    if report.mean_draws is not None:
        draws = [f"{report.mean_draws:.2f}", ""] * len(report.methods)
        table.add_row(f"draws per prompt (of {report.n_candidates})", *draws)
    return table


def format_calls(report: EvaluationReport) -> str:
    """Format how many candidates a thousand questions take, as one line."""
    each = report.n_candidates if report.mean_draws is None else report.mean_draws
    most = f", where {1000 * report.n_candidates:,} would be drawn without the rule"
    saved = "" if report.mean_draws is None else most
    return f"A thousand questions like these take {1000 * each:,.0f} draws{saved}."


def _add_claims_rows(table: Table, report: EvaluationReport) -> None:
    """Add what was kept of claims, and what of the claims shown is unsupported."""
    for label, name in (
        ("claims kept", "kept"),
        ("answers with no claim left", "emptied"),
        ("unsupported, of all claims", "unsupported"),
        ("unsupported, of those shown", "unsupported_kept"),
    ):
        shares = [getattr(method.claims, name) for method in report.methods.values()]
        table.add_row(label, *(cell for share in shares for cell in (f"{100 * share:.1f}", "")))


def _make_group_table(report: EvaluationReport) -> Table:
    own = next(iter(report.methods))
    table = make_table("promise kept by group, %", width=34)
    table.add_column("n", justify="right", min_width=3)
    for name in report.methods:
        table.add_column(name, justify="right", no_wrap=True)
    claims = [group.claims for group in report.methods[own].groups]
    table.add_column("flagged" if None in claims else "claims kept", justify="right", no_wrap=True)
    for index, group in enumerate(report.methods[own].groups):
        cells = [
            _format_kept(method.groups[index], method.groups[index].stated_coverage)
            for method in report.methods.values()
        ]
        share = group.not_certifiable_rate if group.claims is None else group.claims.kept
        flagged = f"{100 * share:.0f}"
        table.add_row(format_group(group.words, group.name), f"{group.n:.0f}", *cells, flagged)
    return table


def _make_stated_table(method: MethodReport) -> Table:
    results = (
        ("right answer in set", "flagged") if method.claims is None else ("claims kept", "no claim left")
    )
    table = make_table("by stated coverage, %", "n", "kept", *results, texts=0)
    for level in method.stated_levels:
        shares = (level.coverage, level.not_certifiable_rate)
        if level.claims is not None:
            shares = (level.claims.kept, level.claims.emptied)
        table.add_row(
            f"{100 * level.stated_coverage:g}",
            f"{level.n}",
            _format_kept(level, level.stated_coverage),
            *(f"{100 * share:.0f}" for share in shares),
        )
    return table


def _format_kept(group: GroupReport | StatedLevelReport, target: float) -> str:
    share = f"{100 * group.kept_promise:.0f}"
    if group.kept_promise_ci[1] < target:
        share = f"[bold red]{share}[/]"
    bounds = f"({format_interval(group.kept_promise_ci)})"
    return f"{share} [dim]{bounds:>8}[/]"


def format_answers(answers: AnswersReport, *, claims: bool) -> str:
    """Format what bot mode did as one line."""
    verdict = "[bold red]too many for chance[/]" if answers.contradicted else "nothing contradicts that"
    answered, wrongly = "answered", f"{answers.wrong} of {answers.answered} wrongly"
    if claims:
        answered = "of the answers show claims"
        wrongly = f"of one claim drawn from each, {answers.wrong} of {answers.answered} are unsupported"
    return (
        f"Bot mode (alpha = {answers.alpha:g}): {format_percent(answers.answered_rate)} {answered}, "
        f"{wrongly} ({format_percent(answers.wrong_rate, '.1f')}, 95 % "
        f"CI {format_interval(answers.wrong_rate_ci)}); certified are at most "
        f"{format_share(answers.max_wrong_rate)}: {verdict}."
    )


def make_answers_table(reports: Iterable[AnswersReport]) -> Table:
    """Make a table of what bot mode did at each certified rate; red where it was wrong too often."""
    table = make_table("at most wrong", "answered", "wrong", "wrong rate", "95 % CI", texts=0)
    for one in reports:
        rate = format_percent(one.wrong_rate, ".1f")
        table.add_row(
            format_share(one.max_wrong_rate),
            format_percent(one.answered_rate),
            f"{one.wrong} of {one.answered}",
            f"[bold red]{rate}[/]" if one.contradicted else rate,
            format_interval(one.wrong_rate_ci),
        )
    return table


def format_group(words: str, name: str = "") -> str:
    """Format the group of a weighting by its name for people, on one line."""
    return escape(name_group(words, name).replace("\n", " "))


def is_contradicted(report: EvaluationReport) -> bool:
    """Return whether what is seen contradicts the promise about sets, or the one about answers."""
    return bool(report.contradicted) or any(one.contradicted for one in report.all_answers)


def format_verdict(report: EvaluationReport) -> str:
    """Format whether the results contradict the guarantee, as one line."""
    if report.guarantee == "heuristic" and report.all_answers:
        if is_contradicted(report):
            return "[bold red]More answers are wrong than a certified rate explains.[/]"
        return "Nothing seen here contradicts the certified rates."
    if report.guarantee == "heuristic":
        return "No promise was made here: the threshold rule has no guarantee."
    if not report.contradicted:
        scope = " (made for all prompts together only)" if report.guarantee == "marginal" else ""
        return f"Nothing seen here contradicts the promise{scope}."
    return f"[bold red]Kept too rarely for chance:[/] {escape(', '.join(report.contradicted))}"


def list_facts(artifact: CalibrationArtifact) -> Iterator[str]:
    """List what an artifact is made of, one line each."""
    facts = artifact.calibration
    yield f"levels        alpha = {', '.join(artifact.alphas)}"
    yield f"candidates    n = {artifact.n} per prompt, cap {artifact.cap:g}"
    if artifact.draws is not None:
        yield f"drawn         {artifact.draws}"
    yield f"set rule      {artifact.set_rule_words}"
    yield f"threshold     {artifact.threshold_rule}"
    yield f"features      {artifact.feature_map.text}"
    if artifact.feature_map.adaptive_alpha is not None:
        yield from _list_stated_levels(artifact, artifact.feature_map.adaptive_alpha)
    combination = artifact.combination
    if combination is not None:
        yield f"combination   {_list_coefficients(combination)}"
        yield "              (log-odds of being correct for one standard deviation of each)"
    fitted = "the features"
    if combination is not None:
        fitted = "the combination" if facts.map_came_fitted else "features and combination"
    yield (
        f"prompts       {facts.size}{facts.weighing} calibrated, {facts.fit_size} fitted {fitted}, "
        f"{facts.held_out_size} held out"
        + (f", {facts.certification_size} for certificates" if facts.certification_size else "")
    )
    attainable = format_percent(facts.attainable_coverage)
    yield f"attainable    {attainable} of calibration prompts{facts.by_weight} can be covered"
    for part in ("generator", "verifier", "answer"):
        yield f"{part:<13} {name_part(artifact, part)}"
    yield f"made          {artifact.created_at} by version {artifact.library_version}"
    yield f"digest        {artifact.digest}"


def _list_stated_levels(artifact: CalibrationArtifact, adaptive: AdaptiveAlpha) -> Iterator[str]:
    """List the coverage that is stated for prompts, by mean score."""
    coverages = [format_share(1.0 - float(alpha)) for alpha in adaptive.alphas]
    steps = [f"{stated} up to {cut:.3g}" for stated, cut in zip(coverages, adaptive.cuts, strict=False)]
    above = f"{coverages[-1]} above" if steps else coverages[0]
    yield f"states        by mean score: {', '.join([*steps, above])}"
    yield f"              (fitted on {artifact.calibration.fit_size} prompts, margin {adaptive.margin:g})"


def _list_coefficients(combination: Combination) -> str:
    named = zip(combination.names, combination.coefficients, strict=True)
    return ", ".join(f"{name} {coefficient:+.3g}" for name, coefficient in named)


def name_part(artifact: CalibrationArtifact, part: str) -> str:
    """Return what the records call a part: `generator`, `verifier` or `answer`."""
    if artifact.provenance is None:
        return "unbound (the records did not say)"
    known = getattr(artifact.provenance, part) or {}
    return str(known.get("id") or known.get("model") or "not named")


def make_promise_table(artifact: CalibrationArtifact) -> Table:
    """Make a table of the guarantee and its assumptions, label by label."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _list_promise(artifact):
        table.add_row(label, escape(text))
    return table


def make_curve_table(artifact: CalibrationArtifact) -> Table:
    """Make a table of answered share and certified wrong-answer rate by policy, bot mode's own in bold."""
    policy = artifact.certified_policy
    certificate = policy.certificate
    points = policy.with_certified_points()
    sure = format_share(1.0 - float(certificate.delta))
    alone = certificate.policy.ignores_sets
    each = "; each certified rate, in bold, by itself" if alone else ""
    title = f"What answering more would cost (all bounds together with confidence {sure}{each})"
    headers = ("answered", "wrong at most", "wrong seen", "alpha", "distinct", "agreeing", "mean score")
    shown = headers if not alone else (*headers[:3], headers[-1])
    if certificate.unit == "claims":
        shown = ("show claims", "unsupported at most", "of one claim each", "alpha")
    table = make_table(*shown, texts=0, title=title)
    for point, own in points:
        most, cut = point.policy.max_answers, point.policy.max_mean_score
        counts = (
            format_percent(point.answered / certificate.prompts),
            format_percent(point.wrong_rate_at_most, ".1f"),
            f"{point.wrong} of {point.answered}",
        )
        sets = (point.alpha, "any" if most is None else f"<= {most}", f">= {point.policy.min_agreement}")
        score = "any" if cut is None else f"<= {cut:g}"
        cells = (*counts, score) if alone else (*counts, *sets, score)
        table.add_row(*cells[: len(shown)], style="bold" if own else "")
    return table


def _list_bot_mode(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    if artifact.policy is None:
        wrong = "How often an answered prompt is wrong"
        if artifact.unit == "claims":
            wrong = "How many of the claims shown are unsupported"
        yield "Answers", f"{wrong} is not certified (calibrate --max-wrong-rate)."
        return
    for certificate in artifact.policy.certificates:
        yield "Bot mode", certificate.sentence()
    if artifact.policy.others:
        yield "", "Each of these rates holds with its confidence by itself; choose one before any question."
    for reason in artifact.policy.refused.values():
        yield "Refused", reason
    if abstentions := state_abstentions(artifact.policy):
        yield "", abstentions


def _list_promise(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    promise, facts = artifact.guarantee(artifact.alphas[0]), artifact.calibration
    levels = {alpha: f"alpha = {alpha}: " if len(artifact.alphas) > 1 else "" for alpha in artifact.alphas}
    bot = artifact.policy
    if bot is not None and bot.ignores_sets:
        yield from _list_bot_mode(artifact)
        levels = {} if promise.kind == "heuristic" else levels
    for alpha, level in levels.items():
        yield "Promise", f"{level}{_format_promise(artifact, artifact.guarantee(alpha))}"
    if promise.kind in {"conditional", "marginal", "given_drawn"}:
        if promise.failure_probability is None and not artifact.certificates:
            yield (
                "Confidence",
                (
                    "On average over calibration sets: this very artifact may do better or worse; "
                    "`langchain-cfc certify` says how well."
                ),
            )
        for one in artifact.certificates:
            yield "Certified", f"{levels[one.alpha]}{one.sentence()}"
    if promise.kind != "heuristic":
        yield "Rests on", _format_assumptions(artifact)
    for claim in promise.heuristics:
        yield "Heuristic", claim
    attainable = f"{format_percent(facts.attainable_coverage)} of the calibration prompts{facts.by_weight}"
    if bot is not None and bot.ignores_sets:
        yield "Attainable", f"{attainable} have a correct candidate among the {artifact.n}."
    elif artifact.at_most is not None:
        yield from _list_bot_mode(artifact)
        yield "Dropped", f"As many claims as that takes. {NOTHING_KEPT_IS_KEPT}{_format_refused(artifact)}"
    else:
        yield from _list_bot_mode(artifact)
        yield (
            "Flagged",
            (
                f"{attainable} have a correct candidate that can enter the set. Where too few do, prompts "
                f"are flagged as not certifiable and abstained on.{_format_refused(artifact)}"
            ),
        )
    yield from _list_origin(artifact)


def _list_origin(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    facts = artifact.calibration
    drawn = f"{artifact.n} candidates each" if artifact.draws is None else f"draws by {artifact.draws}"
    if artifact.unit == "claims":
        drawn = "the claims of one answer each"
    yield (
        "Made from",
        (
            f"{facts.size} calibration prompts{facts.weighing}, {drawn}; features "
            f"{artifact.feature_map.text}; set rule {artifact.set_rule_words}; threshold rule "
            f"{artifact.threshold_rule}"
        ),
    )
    if artifact.combination is not None:
        yield "Score", f"combines {_list_coefficients(artifact.combination)}"
    yield (
        "Artifact",
        f"{artifact.digest[:19]}..., {artifact.created_at[:10]}, version {artifact.library_version}",
    )


def _format_refused(artifact: CalibrationArtifact) -> str:
    """Format how many prompts are flagged because the artifact keeps too few calibration prompts."""
    checks = [level.self_check for level in artifact.levels if level.self_check is not None]
    if not checks:
        return ""
    worst = max(checks, key=lambda check: check.refused / max(check.asked, 1))
    share = "None" if worst.refused == 0 else format_percent(worst.refused / worst.asked)
    return f" {share} of {worst.asked} asked in calibration are flagged because too few prompts were kept."


def _format_promise(artifact: CalibrationArtifact, promise: Guarantee) -> str:
    """Format a promise without naming every group."""
    if promise.kind in {"certified", "heuristic"}:
        return promise.sentence
    brief = state_guarantee(
        promise.kind,
        promise.target_coverage,
        promise.calibration_size,
        promise.weightings,
        adaptive=artifact.list_adaptive_coverages(promise.alpha),
        shift=artifact.shift,
        weighted=artifact.calibration.weight is not None,
        listed=False,
        at_most=artifact.at_most,
    )
    delta = promise.failure_probability
    sure = "" if delta is None else f" {state_confidence(delta, promise.confident, promise.weightings)}"
    return f"{brief}{sure}"


def _format_assumptions(artifact: CalibrationArtifact) -> str:
    alike = "new prompts like those calibrated on (exchangeable)"
    if artifact.shift is not None:
        alike = f"new prompts differing from those calibrated on by the ratio {artifact.shift} only"
    elif artifact.calibration.weight is not None:
        alike = "new prompts like those of which some were chosen to be labelled, with known probabilities"
    named = [name_part(artifact, part) for part in ("generator", "verifier", "answer")]
    bound = (
        "generator and verifier as calibrated (unbound: the records did not name them)"
        if artifact.provenance is None
        else f"generator {named[0]}, verifier {named[1]}, extractor {named[2]}, which serving compares"
    )
    return f"{alike}; right labels; a level chosen before drawing; {bound} (all: --details)."
