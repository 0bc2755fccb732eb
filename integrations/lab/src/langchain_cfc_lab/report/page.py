"""The page of a report: its facts, figures and sections."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.guarantee import format_share
from langchain_cfc.support.text import pluralize
from langchain_cfc.support.units import Unit
from langchain_cfc_lab.report import tables
from langchain_cfc_lab.report._text import format_interval, to_percent
from langchain_cfc_lab.report.drawing import create_axes
from langchain_cfc_lab.report.frame import Figure, check_report, make_figure, render_page, replace_page
from langchain_cfc_lab.report.hardest import HardestPrompts, HardPrompt
from langchain_cfc_lab.report.plots import plot_group_miscoverage
from langchain_cfc_lab.report.recommendations import (
    Findings,
    Sources,
    recommend,
)
from langchain_cfc_lab.report.summary import (
    describe_promise,
    describe_verdict,
    find_guarantee,
    make_tiles,
)
from langchain_cfc_lab.report.tables import Table

_PART_NAMES: dict[Unit, dict[str, str]] = {
    "answers": {"generator": "Generator", "verifier": "Verifier", "answer": "Answer extractor"},
    "claims": {"generator": "Generator", "verifier": "Verifier", "splitter": "Splitter"},
}


@dataclass(frozen=True)
class _Section:
    """A section of the page, which shows words, then figures, then tables."""

    id: str
    heading: str
    words: tuple[str, ...]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]


def list_artifact_facts(
    artifact: CalibrationArtifact, evaluation: EvaluationReport
) -> Iterator[tuple[str, str]]:
    """Yield the data and settings an artifact was made from and tested on, as pairs of term and text."""
    facts = artifact.calibration
    fitted = f", {facts.fit_size:,} others were used for fitting" if facts.fit_size else ""
    is_bot = not artifact.alphas
    used = f"{facts.size:,} calibrated the thresholds{fitted}"
    if is_bot:
        used = f"{artifact.certified_bot.certificates[0].prompts:,} certified the bot"
    tested = f"{evaluation.n_test:,} tested {'it' if is_bot else 'them'} ({evaluation.test_prompts})"
    yield "Questions", f"{used}, and {tested}"
    claims = evaluation.claims
    if claims is None:
        yield "Answers", evaluation.describe_draws("for each question")
        yield (
            "Possible",
            _describe_attainable(facts.attainable_coverage, facts.size, "calibration questions"),
        )
    else:
        drawn = "" if artifact.n == 1 else f", the first of {artifact.n} that were drawn for a question"
        yield "Claims", f"{claims.per_answer:.1f} in an answer on average{drawn}"
    for part, heading in _PART_NAMES[artifact.unit].items():
        yield heading, artifact.name_part(part)
    if not is_bot:
        yield "Features", artifact.feature_map.text
        if claims is None:
            yield "Set rule", artifact.set_rule
        several = f"; this page is about {evaluation.alpha:g}" if len(artifact.alphas) > 1 else ""
        name = artifact.parsed_set_rule.option
        yield "Error level" if name == "alpha" else "Rate", f"{name} = {', '.join(artifact.alphas)}{several}"
    yield "Artifact", f"{artifact.digest}, made {artifact.created_at} by version {artifact.library_version}"


def _describe_attainable(share: float, size: float, prompts: str) -> str:
    interval = format_interval(clopper_pearson(share * size, size))
    return f"{to_percent(share)} of the {prompts} ({interval}) have a right answer among those drawn"


def render_report(
    artifact: CalibrationArtifact,
    evaluation: EvaluationReport,
    hardest: HardestPrompts | None = None,
    sources: Sources | None = None,
) -> str:
    """Return the report of an artifact as one HTML page.

    Args:
        artifact: The artifact to report on.
        evaluation: Its evaluation at one of its levels.
        hardest: Its hardest test prompts; with texts only if they were found with texts.
        sources: Names of files for the recommended commands; placeholders by default.

    Returns:
        The page. All text from users is escaped; invisible characters are spelt out.

    Raises:
        InputError: If the evaluation is not the artifact's.
    """
    page = _describe_artifact(artifact, evaluation, hardest, (sources or Sources()).without_passwords())
    page["contents"] = tuple(_list_sections(page))
    return render_page("langchain_cfc_lab.report/page.html.j2", **page)


def write_report(
    path: str | os.PathLike[str],
    artifact: CalibrationArtifact,
    evaluation: EvaluationReport,
    hardest: HardestPrompts | None = None,
    sources: Sources | None = None,
) -> None:
    """Write a report as one HTML file that needs no network and no script.

    Args:
        path: Path of the file; an earlier report is replaced as a whole, any other file is refused.
        artifact: See `render_report`, also for the next three.
        evaluation: Its evaluation.
        hardest: Its hardest test prompts.
        sources: Names of files.

    Raises:
        InputError: If the path holds a file that is not a report, or the evaluation is not the artifact's.
    """
    check_report(path)  # before drawing, which takes seconds
    replace_page(path, render_report(artifact, evaluation, hardest, sources))


def _list_sections(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "promise", content["promise"].heading
    yield from ((part.id, part.heading) for part in content["first"])
    yield "next", "What to do next"
    yield from ((part.id, part.heading) for part in content["parts"])
    yield "data", "The data"
    if content["hardest"]:
        yield "hardest", "The hardest prompts"


def _describe_artifact(
    artifact: CalibrationArtifact,
    evaluation: EvaluationReport,
    hardest: HardestPrompts | None,
    sources: Sources,
) -> dict[str, Any]:
    """Return the template's variables for the page of an artifact."""
    if evaluation.artifact_digest != artifact.digest:
        msg = "the evaluation is of another artifact: its digest differs"
        raise InputError(msg)
    is_listed = hardest is not None and not hardest.is_of_bot
    prompts, unit = hardest.prompts if hardest is not None and is_listed else (), artifact.unit
    return {
        "title": f"What {PurePath(sources.artifact).name} promises, and what happened",
        "byline": (
            f"Artifact of {artifact.created_at[:10]}, {artifact.digest[:19]}…, "
            f"tested on {pluralize(evaluation.n_test, 'question')}"
        ),
        "promise": describe_promise(artifact, find_guarantee(artifact, evaluation)),
        "verdict": describe_verdict(evaluation),
        "tiles": make_tiles(artifact, evaluation),
        "first": tuple(_describe_bot_answers(hardest)),
        "facts": tuple(list_artifact_facts(artifact, evaluation)),
        "parts": (
            *([] if not artifact.alphas else [_describe_results(artifact, evaluation)]),
            *_describe_bot_mode(artifact, evaluation),
            *_describe_bot_promises(evaluation),
        ),
        "hardest_words": "" if hardest is None else _describe_hardest(hardest),
        "hardest": tuple(
            (one, _describe_threshold(one, unit), tables.tabulate_hard_prompt(place, one, unit))
            for place, one in enumerate(prompts, start=1)
        ),
        "steps": recommend(Findings(artifact, evaluation, sources)),
    }


def _describe_results(artifact: CalibrationArtifact, evaluation: EvaluationReport) -> _Section:
    what, others = "Answer sets of the artifact on the test prompts", "those of one threshold for all prompts"
    if artifact.unit == "claims":
        what = "What is left of the answers to the test prompts"
        others = "what one threshold for all prompts leaves"
    is_compared = len(evaluation.methods) > 1
    compared_with = f", beside {others}, calibrated on the same data" if is_compared else ""
    figures: tuple[Figure, ...] = ()
    own = evaluation.methods["conditional"]
    if not own.stated_levels and any(method.groups for method in evaluation.methods.values()):
        figures = (
            make_figure(
                "figure-groups",
                plot_group_miscoverage(evaluation),
                "How often the promise is broken in each group",
                "The line is what the promise allows. A bar above it may be chance: each error bar reaches "
                "up to the upper end of the 95 % interval; the table has the whole interval.",
            ),
        )
    return _Section(
        id="happened",
        heading="What happened",
        words=(f"{what}{compared_with}.",),
        figures=figures,
        tables=(
            tables.tabulate_overall(evaluation),
            *([tables.tabulate_stated_levels(own)] if own.stated_levels else []),
            *tables.tabulate_groups(artifact, evaluation),
        ),
    )


def _describe_bot_mode(artifact: CalibrationArtifact, evaluation: EvaluationReport) -> Iterator[_Section]:
    bot = artifact.bot
    if bot is None:
        return
    # Those of a bot alone are at the top of the page.
    certified = () if not artifact.alphas else tuple(one.sentence for one in bot.certificates)
    claims = artifact.unit == "claims"
    things = "claims" if claims else "answers"
    words = (
        "Unsupported claims against claims shown" if claims else "Wrong answers against questions answered",
        f"On the questions that certified the bot. Showing more {things} means more wrong ones.",
    )
    yield _Section(
        id="bot",
        heading="How many of the claims shown are unsupported" if claims else "Answering or abstaining",
        words=(*certified, *bot.refused.values()),
        figures=(make_figure("figure-cuts", artifact.plot(create_axes(4.1)), *words),) if bot.curve else (),
        tables=(
            *([tables.tabulate_rates(bot, evaluation.answers)] if bot.certificates else []),
            *([tables.tabulate_cuts(bot)] if bot.curve else []),
        ),
    )


def _describe_bot_promises(evaluation: EvaluationReport) -> Iterator[_Section]:
    if evaluation.batches:
        words = (
            "A promise on average, of a batch or of all questions, usually answers more than a certified one."
        )
        table = tables.tabulate_bot_promises(evaluation)
        yield _Section(id="which", heading="Which promise", words=(words,), figures=(), tables=(table,))


def _describe_bot_answers(hardest: HardestPrompts | None) -> Iterator[_Section]:
    """Yield the section on a bot's wrong answers, and abstentions nearest to an answer."""
    if hardest is None or not hardest.is_of_bot:
        return
    rate = hardest.max_wrong_rate
    limit = "" if rate is None else f"With at most {format_share(float(rate))} wrong: "
    text = "" if hardest.with_text else " Add --show-text to see the questions."
    yield _Section(
        id="answers",
        heading="Wrong answers and nearest abstentions",
        words=(
            (
                f"{limit}{pluralize(hardest.missed, 'test question')} answered wrongly, "
                f"{hardest.flagged:,} not answered. A lower score is better.{text}"
            ),
        ),
        figures=(),
        tables=tuple(
            table
            for table in (
                tables.tabulate_bot_answers(hardest.prompts, "wrong", "Wrong answers, lowest score first"),
                tables.tabulate_bot_answers(hardest.prompts, "abstained", "Nearest abstentions"),
            )
            if table.rows
        ),
    )


def _describe_hardest(hardest: HardestPrompts) -> str:
    shown = len(hardest.prompts)
    which = "All of them" if shown == hardest.missed + hardest.flagged else f"The {shown} hardest"
    text = "" if hardest.with_text else " Add --show-text to see the questions."
    if hardest.unit == "claims":
        marked = any(one.marked for one in hardest.prompts)
        legend = " Struck through: dropped. Wavy underline: kept, but unsupported." if marked else ""
        return (
            f"{pluralize(hardest.missed, 'test prompt')} missed, {hardest.flagged:,} with no claim left. "
            f"{which}: alternately missed ones, by number of unsupported claims left, and others, by mean "
            f"score.{legend}{text}"
        )
    return (
        f"{pluralize(hardest.missed, 'test prompt')} missed, {hardest.flagged:,} flagged. {which}: "
        "alternately missed ones, by threshold, and flagged ones, by mean score. Candidates with the same "
        f"answer share a row.{text}"
    )


def _describe_threshold(prompt: HardPrompt, unit: Unit) -> str:
    mean = f"Mean score {prompt.mean_score:.3f}."
    if prompt.outcome == "flagged":
        return f"No threshold can be certified. {mean}"
    if prompt.threshold is None:  # a cut is no threshold
        return mean
    if unit == "claims":
        return f"Claims of score {1.0 - prompt.threshold:.3f} or more are dropped. {mean}"
    return f"Threshold {prompt.threshold:.3f}: candidates that enter at or below it are in the set. {mean}"
