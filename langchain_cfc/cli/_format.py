"""What the commands share: consoles, progress, JSON, exit codes, and the tables of a report."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from langchain_cfc._internal.text import escape_controls, escape_controls_in_json
from langchain_cfc.artifact import CalibrationArtifact, looks_like_artifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import (
    CFCError,
    CFCWarning,
    InputError,
    UnattainableTargetError,
)
from langchain_cfc.evaluation import AnswersReport, EvaluationReport, GroupReport
from langchain_cfc.features import shorten_words
from langchain_cfc.guarantee import Guarantee, count_weightings, format_share
from langchain_cfc.records import Provenance, Records, read_records

Item = TypeVar("Item")

EXIT_NO = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130  # as shells report them; 1 would read as "no"
EXIT_BROKEN_PIPE = 141


class SafeConsole(Console):
    """A console that shows control characters in texts instead of sending them to the terminal.

    Answers, records and errors of providers are printed, and escape sequences in them could write the
    clipboard, change the title or clear the screen. rich removes some of these characters, and not escape.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as rich text; before rich measures or removes anything."""
        return super().render_str(escape_controls(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, texts included that were no strings; rich's own control sequences stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


class _Results(SafeConsole):
    """A console whose reader may leave early, as `head` does."""

    def on_broken_pipe(self) -> None:
        """End quietly, with nothing left to flush."""
        _reader_left()


def _reader_left() -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(EXIT_BROKEN_PIPE)


def out() -> Console:
    """The console of results, on standard output; made anew so that it follows redirection."""
    return _Results(highlight=False)


def err() -> Console:
    """The console of logs and progress, on standard error."""
    return SafeConsole(stderr=True, highlight=False)


def emit_json(data: Any) -> None:
    """Write machine-readable output: strict JSON on standard output."""
    # Where the terminal is not UTF-8, JSON's own escapes keep it valid.
    escaped = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    try:
        text = json.dumps(data, indent=2, ensure_ascii=escaped, allow_nan=False)
        sys.stdout.write(escape_controls_in_json(text) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_left()
    except OSError as error:  # a full disk, which is no "no"
        fail(f"standard output: {error.strerror or error}", EXIT_BAD_INPUT)


@contextmanager
def failures_explained() -> Iterator[None]:
    """Turn the package's errors into one line and an exit code, and its warnings into notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CFCWarning)
        try:
            yield
        except UnattainableTargetError as error:
            fail(error, EXIT_NO)
        except CFCError as error:
            fail(error, EXIT_BAD_INPUT)
        except OSError as error:  # a full disk, a file where a folder should be: never exit code 1, "no"
            fail(f"{error.strerror or error}: {error.filename or 'file'}", EXIT_BAD_INPUT)
        finally:
            for note in dict.fromkeys(str(warning.message) for warning in caught):
                err().print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)


def fail(error: Exception | str, code: int) -> NoReturn:
    """Print one error and end."""
    err().print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    raise typer.Exit(code)


def check_output(path: Path) -> None:
    """Refuse to write an artifact over anything that is none, such as the records it is made from.

    Raises:
        InputError: If the path holds something else, or is `-`.
    """
    if str(path) == "-":
        msg = "artifacts are written to files: give --out a path"
        raise InputError(msg)
    if path.is_file() and not looks_like_artifact(path):
        msg = f"{path} exists and is not an artifact; it will not be overwritten: give --out another path"
        raise InputError(msg)


def track_progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Show a progress bar on standard error while items pass by; nothing where it is no terminal."""
    console = err()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(items, total=total, description=what)


def percent(share: float) -> str:
    """A share as a percentage without decimals that pretend precision."""
    return f"{100 * share:.0f} %"


def interval(bounds: tuple[float, float]) -> str:
    """An interval of shares in percent."""
    return f"{100 * bounds[0]:.0f}-{100 * bounds[1]:.0f}"


def report_tables(report: EvaluationReport) -> Iterator[Table]:
    """The report as tables for an 80-column terminal: over all prompts, then by guaranteed group."""
    yield _overall(report)
    if any(method.groups for method in report.methods.values()):
        yield _by_group(report)


def _overall(report: EvaluationReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("over all prompts, %", min_width=31)
    for name in report.methods:
        table.add_column(name, justify="right")
        table.add_column("95 % CI", justify="right", style="dim")

    def row(label: str, value: str, ci: str | None, style: str = "") -> None:
        cells: list[str] = []
        for method in report.methods.values():
            cells.append(f"{100 * getattr(method, value):.1f}")
            cells.append(interval(getattr(method, ci)) if ci else "")
        table.add_row(label, *cells, style=style)

    row(f"promise kept (target {100 * report.target_coverage:g})", "kept_promise", "kept_promise_ci", "bold")
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
    return table


def _by_group(report: EvaluationReport) -> Table:
    own = next(iter(report.methods))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("promise kept by group, %", overflow="ellipsis", no_wrap=True, max_width=34)
    table.add_column("n", justify="right", min_width=3)
    for name in report.methods:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("flagged", justify="right", no_wrap=True)
    for index, group in enumerate(report.methods[own].groups):
        cells = [_kept(method.groups[index], report.target_coverage) for method in report.methods.values()]
        flagged = f"{100 * group.not_certifiable_rate:.0f}"
        table.add_row(group_label(group.words), f"{group.n:.0f}", *cells, flagged)
    return table


def _kept(group: GroupReport, target: float) -> str:
    """One cell: share and interval, red where the interval lies below the target."""
    share = f"{100 * group.kept_promise:.0f}"
    if group.kept_promise_ci[1] < target:
        share = f"[bold red]{share}[/]"
    bounds = f"({interval(group.kept_promise_ci)})"
    return f"{share} [dim]{bounds:>8}[/]"


def answers_line(answers: AnswersReport) -> str:
    """Bot mode in a line."""
    verdict = "[bold red]too many for chance[/]" if answers.contradicted else "nothing contradicts that"
    return (
        f"Bot mode (alpha = {answers.alpha:g}): {percent(answers.answered_rate)} answered, {answers.wrong} "
        f"of {answers.answered} wrongly ({100 * answers.wrong_rate:.1f} %, 95 % CI "
        f"{interval(answers.wrong_rate_ci)}); certified are at most {100 * answers.max_wrong_rate:g} %: "
        f"{verdict}."
    )


def group_label(words: str) -> str:
    """What a weighting speaks of, short and on one line, for a table."""
    return escape(shorten_words(words).replace("\n", " "))


def verdict(report: EvaluationReport) -> str:
    """One line: whether what was seen contradicts the promise."""
    if report.guarantee == "heuristic":
        return "No promise was made here: the threshold rule has no guarantee."
    if not report.contradicted:
        scope = " (made for all prompts together only)" if report.guarantee == "marginal" else ""
        return f"Nothing seen here contradicts the promise{scope}."
    return f"[bold red]Kept too rarely for chance:[/] {escape(', '.join(report.contradicted))}"


def facts_lines(artifact: CalibrationArtifact) -> Iterator[str]:
    """What an artifact is made of, a line each."""
    facts = artifact.calibration
    yield f"levels        alpha = {', '.join(artifact.alphas)}"
    yield f"candidates    n = {artifact.n} per prompt, cap {artifact.cap:g}"
    yield f"set rule      {artifact.set_rule_words}"
    yield f"threshold     {artifact.threshold_rule}"
    yield f"features      {artifact.feature_map.text}"
    combination = artifact.combination
    if combination is not None:
        named = zip(combination.names, combination.coefficients, strict=True)
        yield f"combination   {', '.join(f'{name} {coefficient:+.3g}' for name, coefficient in named)}"
        yield "              (log-odds of being correct for one standard deviation of each)"
    fitted = "the features"
    if combination is not None:
        fitted = "the combination" if facts.map_came_fitted else "features and combination"
    yield (
        f"prompts       {facts.size}{facts.weighing} calibrated, {facts.fit_size} fitted {fitted}, "
        f"{facts.held_out_size} held out"
        + (f", {facts.certification_size} for certificates" if facts.certification_size else "")
    )
    attainable = percent(facts.attainable_coverage)
    yield f"attainable    {attainable} of calibration prompts{facts.by_weight} can be covered"
    for part in ("generator", "verifier", "answer"):
        yield f"{part:<13} {identity(artifact, part)}"
    yield f"made          {artifact.created_at} by version {artifact.library_version}"
    yield f"digest        {artifact.digest}"


def identity(artifact: CalibrationArtifact, part: str) -> str:
    """What the records call a part: `generator`, `verifier` or `answer`."""
    if artifact.provenance is None:
        return "unbound (the records did not say)"
    known = getattr(artifact.provenance, part) or {}
    return str(known.get("id") or known.get("model") or "not named")


# Characters of the digest that are shown where the whole of it would take a line.
DIGEST = 19


def promise_table(artifact: CalibrationArtifact) -> Table:
    """The promise and what it rests on, label by label."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _rows(artifact):
        table.add_row(label, escape(text))
    return table


def curve_table(artifact: CalibrationArtifact) -> Table:
    """Answered share against the certified wrong-answer rate, policy by policy; bot mode's own in bold."""
    policy = artifact.certified_policy
    certificate = policy.certificate
    sure = format_share(1.0 - float(certificate.delta))
    title = f"What answering more would cost (all bounds together with confidence {sure})"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("answered", "wrong at most", "wrong seen", "alpha", "distinct", "agreeing"):
        table.add_column(heading, justify="right")
    for point in policy.curve:
        own = (point.alpha, point.policy) == (certificate.alpha, certificate.policy)
        most = point.policy.max_answers
        table.add_row(
            percent(point.answered / certificate.prompts),
            f"{100 * point.wrong_rate_at_most:.1f} %",
            f"{point.wrong} of {point.answered}",
            point.alpha,
            "any" if most is None else f"<= {most}",
            f">= {point.policy.min_agreement}",
            style="bold" if own else "",
        )
    return table


def _rows(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    promise, facts = artifact.guarantee(artifact.alphas[0]), artifact.calibration
    if promise.kind == "certified":
        for alpha in artifact.alphas:
            level = f"alpha = {alpha}: " if len(artifact.alphas) > 1 else ""
            yield "Promise", f"{level}{artifact.guarantee(alpha).sentence}"
    else:
        yield "Promise", _promise(artifact, promise)
    if promise.kind in {"conditional", "marginal"}:
        yield "Holds", _scope(artifact, promise)
        yield from _confidence_rows(artifact, promise)
    if promise.kind != "heuristic":
        yield "Rests on", _basis(artifact)
    for claim in promise.heuristics:
        yield "Heuristic", claim
    if artifact.policy is None:
        yield (
            "Answers",
            "How often an answered prompt is wrong is not certified (calibrate --max-wrong-rate).",
        )
    else:
        yield "Bot mode", artifact.policy.certificate.sentence()
    yield (
        "Flagged",
        (
            f"{percent(facts.attainable_coverage)} of the calibration prompts{facts.by_weight} have a "
            "correct candidate that can enter the set. Where too few do, prompts are flagged as not "
            f"certifiable and abstained on.{_refused(artifact)}"
        ),
    )
    yield (
        "Made from",
        (
            f"{facts.size} calibration prompts{facts.weighing}, {artifact.n} candidates each; features "
            f"{artifact.feature_map.text}; set rule {artifact.set_rule_words}; threshold rule "
            f"{artifact.threshold_rule}"
        ),
    )
    if artifact.combination is not None:
        named = zip(artifact.combination.names, artifact.combination.coefficients, strict=True)
        yield "Score", f"combines {', '.join(f'{name} {coefficient:+.3g}' for name, coefficient in named)}"
    yield (
        "Artifact",
        f"{artifact.digest[:DIGEST]}..., {artifact.created_at[:10]}, version {artifact.library_version}",
    )


def _refused(artifact: CalibrationArtifact) -> str:
    """What calibration found of prompts that are flagged for want of kept calibration prompts."""
    checks = [level.self_check for level in artifact.levels if level.self_check is not None]
    if not checks:
        return ""
    worst = max(checks, key=lambda check: check.refused / max(check.asked, 1))
    share = "None" if worst.refused == 0 else percent(worst.refused / worst.asked)
    return f" {share} of {worst.asked} asked in calibration are flagged because too few prompts were kept."


def _promise(artifact: CalibrationArtifact, promise: Guarantee) -> str:
    if promise.kind == "heuristic":
        return promise.sentence
    event = "the answer set holds a correct answer, or the prompt is flagged as not certifiable"
    if len(artifact.alphas) == 1:
        return f"With probability at least {format_share(promise.target_coverage)} {event}."
    return (
        f"With probability at least 1 - alpha {event}; alpha is {', '.join(artifact.alphas)}, chosen per "
        "call before anything is drawn."
    )


def _scope(artifact: CalibrationArtifact, promise: Guarantee) -> str:
    others = count_weightings(promise.weightings)
    where = "where they are served, " if artifact.shift is not None else ""
    if others:
        return (
            f"{where}on average over new prompts, and over each of {others} and any mix of them (--details)."
        )
    slack = " (under other weightings about, see --details)" if promise.estimated_slack else ""
    return f"{where}on average over new prompts{slack}; nothing is said about hard ones in particular."


def _confidence_rows(artifact: CalibrationArtifact, promise: Guarantee) -> Iterator[tuple[str, str]]:
    if promise.failure_probability is not None:
        sure = f"{100 * (1.0 - promise.failure_probability):.12g} %"
        others = count_weightings([one for one in promise.weightings if one.name in promise.confident])
        also = f" and over each of {others}" if others else ""
        yield "Confidence", f"{sure} that this very artifact keeps it over all prompts{also}."
    elif not artifact.certificates:
        yield (
            "Confidence",
            (
                "On average over calibration sets: this very artifact may do better or worse; `langchain-cfc "
                "certify` says how well."
            ),
        )
    for one in artifact.certificates:
        level = f"alpha = {one.alpha}: " if len(artifact.alphas) > 1 else ""
        yield "Certified", f"{level}{one.sentence()}"


def _basis(artifact: CalibrationArtifact) -> str:
    alike = "new prompts like those calibrated on (exchangeable)"
    if artifact.shift is not None:
        alike = f"new prompts differing from those calibrated on by the ratio {artifact.shift} only"
    elif artifact.calibration.weight is not None:
        alike = "new prompts like those of which some were chosen to be labelled, with known probabilities"
    named = [identity(artifact, part) for part in ("generator", "verifier", "answer")]
    bound = (
        "generator and verifier as calibrated (unbound: the records did not name them)"
        if artifact.provenance is None
        else f"generator {named[0]}, verifier {named[1]}, extractor {named[2]}, which serving compares"
    )
    return f"{alike}; right labels; a level chosen before drawing; {bound} (all: --details)."


DATASET = "Labelled records: .jsonl, .jsonl.gz or .parquet; or the store of a collection"
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True)
class Dataset:
    """Labelled records, as `calibrate` and `evaluate` take them.

    Attributes:
        records: The files' records, or the table of a store.
        provenance: Where they come from; None where nothing says.
    """

    records: Records | LabelledBatch
    provenance: Provenance | None


@contextmanager
def opened(paths: Sequence[str], outputs: Sequence[str] = ()) -> Iterator[Dataset]:
    """Open files or a store; how far files have been read is shown on standard error, if it is a terminal.

    Args:
        paths: At least one records file, or one store.
        outputs: Verifiers whose raw outputs are wanted.

    Yields:
        What they hold.

    Raises:
        InputError: If a store is given together with anything else.
    """
    if any(map(_is_store, paths)):
        yield _stored(paths, outputs)
        return
    console = err()
    columns = (SpinnerColumn(), TextColumn("reading records"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading records", total=None)
        records = replace(read_records(*paths), on_read=lambda more: progress.advance(task, more))
        yield Dataset(records, records.provenance)


def _stored(paths: Sequence[str], outputs: Sequence[str]) -> Dataset:
    if len(paths) > 1:
        msg = "a store is read by itself: give one store, or files only"
        raise InputError(msg)
    # Late, for it needs an extra of its own.
    from langchain_cfc.collect.store import Store

    with Store(paths[0]) as store:
        return Dataset(store.table(outputs), store.provenance())


def _is_store(path: str) -> bool:
    if "://" in path:
        return True
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE
