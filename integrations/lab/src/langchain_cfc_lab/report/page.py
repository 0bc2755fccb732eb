"""The page of a report: its facts, figures and sections."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypedDict

from typing_extensions import Unpack

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import Unit
from langchain_cfc.certificates import state_abstentions
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.guarantee import format_share
from langchain_cfc.support.text import pluralize
from langchain_cfc_lab.comparison_report import ComparisonReport
from langchain_cfc_lab.metrics import COST_FIGURES, find_event, list_figures
from langchain_cfc_lab.report import comparison_tables, tables
from langchain_cfc_lab.report._text import format_interval, to_percent
from langchain_cfc_lab.report.drawing import create_axes
from langchain_cfc_lab.report.frame import Figure, check_report, make_figure, render_page, replace_page
from langchain_cfc_lab.report.hardest import HardestPrompts, HardPrompt
from langchain_cfc_lab.report.plots import (
    plot_attainable,
    plot_by_alpha,
    plot_group_miscoverage,
    plot_score_histogram,
    plot_selective_risk,
    plot_threshold_by_difficulty,
)
from langchain_cfc_lab.report.recommendations import (
    Findings,
    Recommendation,
    Sources,
    recommend,
    recommend_calibration,
    recommend_suggestion,
)
from langchain_cfc_lab.report.summary import (
    describe_comparison,
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
# A figure for each family: bars of all methods side by side would be too thin to see.
_FAMILY_NAMES = {"ours": "methods of this package", "paper": "as in the paper", "outside": "from elsewhere"}


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
    used = f"{facts.size:,}{facts.weighing} calibrated the thresholds{fitted}"
    if is_bot:
        used = f"{artifact.certified_bot.certificates[0].prompts:,} certified the bot"
    tested = f"{evaluation.n_test:,} tested {'it' if is_bot else 'them'} ({evaluation.test_prompts})"
    yield "Questions", f"{used}, and {tested}"
    claims = evaluation.claims
    if claims is None:
        yield "Answers", evaluation.describe_draws("for each question")
        calibrated = f"calibration questions{facts.by_weight}"
        possible = _describe_attainable(facts.attainable_coverage, facts.weight or facts.size, calibrated)
        yield "Possible", possible
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


def list_comparison_facts(comparison: ComparisonReport) -> Iterator[tuple[str, str]]:
    """Yield the data and settings of a comparison, as pairs of term and text."""
    data = comparison.data
    beats = "a correct candidate beats a wrong one"
    if comparison.unit == "claims":
        beats = "a supported claim beats an unsupported one"
        yield "Prompts", f"{data.prompts:,}, with the claims of one answer each"
        yield "Supported claims", to_percent(data.correct_candidates)
    else:
        yield "Prompts", f"{data.prompts:,}, with {pluralize(comparison.n_candidates, 'candidate')} each"
        yield "Attainable", _describe_attainable(data.attainable_coverage, data.prompts, "prompts")
        yield "Correct candidates", to_percent(data.correct_candidates)
        if data.distinct_answers is not None:
            yield "Distinct answers", f"{data.distinct_answers:.1f} for each prompt on average"
    if data.auroc is not None:
        yield "Scores", f"{beats} with probability {data.auroc:.3f} (AUROC)"
    tested = to_percent(comparison.test_fraction)
    yield "Splits", f"{comparison.splits:,}, from seed {comparison.seed}; {tested} of the prompts test"
    fitted = to_percent(comparison.fit_fraction)
    yield "Fitted on", f"{fitted} of the others, which our methods do not calibrate on"
    yield "Features", comparison.features
    yield "Set rule", comparison.set_rule
    yield "Groups", comparison.groups


def _describe_attainable(share: float, size: float, prompts: str) -> str:
    interval = format_interval(clopper_pearson(share * size, size))
    return f"{to_percent(share)} of the {prompts} ({interval}) have a right answer among those drawn"


def draw_data(comparison: ComparisonReport) -> Iterator[Figure]:
    """Draw the scores and the attainable coverage of the records."""
    data, unit = comparison.data, comparison.unit
    words = (
        "Scores of correct and of wrong candidates",
        "The further apart the two are, the smaller the sets that keep the same promise.",
    )
    if unit == "claims":
        words = (
            "Scores of supported and of unsupported claims",
            "The further apart the two are, the more claims are kept under the same promise.",
        )
    if any(data.scores.correct) or any(data.scores.wrong):
        yield make_figure("figure-scores", plot_score_histogram(data.scores, unit=unit), *words)
    if find_event(comparison.set_rule) == "answers" and any(
        one.groups for one in comparison.methods.values()
    ):
        yield make_figure(
            "figure-attainable",
            plot_attainable(comparison),
            "Attainable coverage of each group, predicted and seen",
            "Points on the diagonal were predicted correctly from the development prompts. Where little is "
            "attainable, prompts are flagged.",
        )


def draw_comparison(report: ComparisonReport) -> Iterator[Figure]:
    """Draw the figures of a comparison report."""
    methods = report.methods.values()
    for family, title in _FAMILY_NAMES.items():
        named = [name for name, method in report.methods.items() if method.family == family and method.groups]
        if named:
            yield make_figure(
                f"figure-groups-{family}",
                plot_group_miscoverage(report, methods=named),
                f"How often the promise is broken by group at alpha = {report.alpha:g}, {title}",
                "Bars below the line keep the promise. Error bars reach up by one standard deviation over "
                "splits.",
            )
        depending = [
            name for name in named if any("threshold" in one.figures for one in report.methods[name].groups)
        ]
        if depending:
            yield make_figure(
                f"figure-thresholds-{family}",
                plot_threshold_by_difficulty(report, methods=depending),
                f"Thresholds in each group at alpha = {report.alpha:g}, {title}",
                "A rule that ignores difficulty has one threshold for all. Means and standard "
                "deviations over the splits.",
            )
    if len(report.sweep) > 1:
        cost = COST_FIGURES[find_event(report.set_rule)]
        for figure in ("kept_promise", "worst_group_kept_promise", cost):
            if any(figure in method.figures for level in report.sweep for method in level.methods.values()):
                yield make_figure(
                    f"figure-by-alpha-{figure.replace('_', '-')}",
                    plot_by_alpha(report.sweep, methods=report.list_leading(), figure=figure),
                    f"{list_figures(report.set_rule)[figure].label.capitalize()} against alpha",
                    "Means and standard deviations over the splits.",
                )
    figure, title = "selective_accuracy", "Wrong best answers against prompts answered"
    line = "answers the prompts of lowest best"
    if report.unit == "claims":
        figure, title = "unsupported_kept", "Unsupported claims against claims shown"
        line = "shows the claims of lowest"
    if report.data.risk.answered or any(figure in method.figures for method in methods):
        yield make_figure(
            "figure-risk",
            plot_selective_risk(report, methods=report.list_leading()),
            title,
            f"The line {line} score first, without a promise; each method has a point at each alpha.",
        )


class ReportContent(TypedDict, total=False):
    """The contents of a report: an artifact with its evaluation, or a comparison of methods.

    Attributes:
        artifact: The artifact to report on, together with an evaluation of it.
        evaluation: The artifact's evaluation at one of its levels.
        comparison: A comparison of methods, without an artifact.
        hardest: The artifact's hardest test prompts; with texts only if they were found with texts.
        sources: Names of files for the recommended commands; placeholders by default.
    """

    artifact: CalibrationArtifact
    evaluation: EvaluationReport
    comparison: ComparisonReport | None
    hardest: HardestPrompts | None
    sources: Sources


def render_report(**content: Unpack[ReportContent]) -> str:
    """Return a report as HTML; see `ReportContent` for the arguments.

    Returns:
        The page. All text from users is escaped; invisible characters are spelt out.

    Raises:
        InputError: If there is nothing to report on, or the evaluation is not the artifact's.
    """
    names = content.get("sources", Sources()).without_passwords()
    artifact, evaluation = content.get("artifact"), content.get("evaluation")
    comparison, hardest = content.get("comparison"), content.get("hardest")
    if artifact is not None and evaluation is not None and comparison is None:
        page = _describe_artifact(artifact, evaluation, hardest, names)
    elif comparison is not None and (artifact, evaluation, hardest) == (None, None, None):
        page = _describe_comparison(comparison, names)
    else:
        msg = (
            "a report needs an artifact together with its evaluation, or only a comparison; hardest prompts "
            "need an artifact"
        )
        raise InputError(msg)
    page["contents"] = tuple(_list_sections(page))
    return render_page("langchain_cfc_lab.report/page.html.j2", **page)


def write_report(path: str | os.PathLike[str], **content: Unpack[ReportContent]) -> None:
    """Write a report as one HTML file that needs no network and no script.

    Args:
        path: Path of the file; an earlier report is replaced as a whole, any other file is refused.
        **content: See `ReportContent`.

    Raises:
        InputError: If the path holds a file that is not a report, there is nothing to report on, or the
            evaluation is not the artifact's.
    """
    check_report(path)  # before drawing, which takes seconds
    replace_page(path, render_report(**content))


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
        "data_figures": (),
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


def _describe_comparison(comparison: ComparisonReport, sources: Sources) -> dict[str, Any]:
    """Return the template's variables for the page of a comparison without an artifact."""
    names = ", ".join(PurePath(one).name for one in sources.records)
    drawn = f"{pluralize(comparison.n_candidates, 'candidate')} each"
    calibration = recommend_calibration(comparison, sources)
    steps: tuple[Recommendation, ...] = (recommend_suggestion(comparison.alpha, sources), calibration)
    if find_event(comparison.set_rule) == "best_answer":
        steps = (calibration,)
    if comparison.unit == "claims":
        drawn, steps = "the claims of one answer each", (calibration,)
    return {
        "title": f"{pluralize(len(comparison.methods), 'method')} on {names}",
        "byline": (
            f"{pluralize(comparison.data.prompts, 'prompt')}, {drawn}, "
            f"{pluralize(comparison.splits, 'split')}"
        ),
        "promise": describe_comparison(comparison),
        "verdict": None,
        "tiles": (),
        "first": (),
        "facts": tuple(list_comparison_facts(comparison)),
        "data_figures": tuple(draw_data(comparison)),
        "parts": (_describe_methods(comparison),),
        "hardest": (),
        "steps": steps,
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
        words=(*certified, *bot.refused.values(), *filter(None, [state_abstentions(bot)])),
        figures=(make_figure("figure-cuts", artifact.plot(create_axes(4.4)), *words),) if bot.curve else (),
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


def _describe_methods(comparison: ComparisonReport) -> _Section:
    return _Section(
        id="compared",
        heading="Methods compared",
        words=tuple(comparison.notes),
        figures=tuple(draw_comparison(comparison)),
        tables=(
            comparison_tables.tabulate_comparison(comparison),
            *comparison_tables.tabulate_compared_groups(comparison),
            *comparison_tables.tabulate_gaps(comparison),
            *comparison_tables.tabulate_sweep(comparison),
        ),
    )


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
