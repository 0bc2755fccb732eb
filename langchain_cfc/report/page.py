"""The page: what is said where, put into HTML by one template."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from langchain_cfc._internal.files import atomic_writer
from langchain_cfc._internal.optional import require
from langchain_cfc._version import __version__
from langchain_cfc.artifact import CalibrationArtifact, CertifiedPolicy
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.experiments.comparison_report import ComparisonReport, DataFacts
from langchain_cfc.guarantee import format_share
from langchain_cfc.report import tables
from langchain_cfc.report.drawing import to_svg
from langchain_cfc.report.hardest import HardestPrompts, HardPrompt
from langchain_cfc.report.plots import (
    plot_attainable,
    plot_by_alpha,
    plot_certified_policies,
    plot_group_miscoverage,
    plot_score_histogram,
    plot_selective_risk,
    plot_threshold_by_difficulty,
)
from langchain_cfc.report.recommendations import (
    Recommendation,
    Situation,
    Sources,
    calibrate_step,
    recommendations,
    suggest_step,
)
from langchain_cfc.report.summary import (
    Promise,
    Tile,
    Verdict,
    promise_of,
    promise_of_comparison,
    tiles_of,
    verdict_of,
)
from langchain_cfc.report.tables import Table
from langchain_cfc.report.words import counted, percent, percent_interval, visible

if TYPE_CHECKING:
    from markupsafe import Markup


_PARTS = (("generator", "Generator"), ("verifier", "Verifier"), ("answer", "Answer extractor"))


def artifact_facts(artifact: CalibrationArtifact, evaluation: EvaluationReport) -> Iterator[tuple[str, str]]:
    """What an artifact was made from and tested on, as terms and texts."""
    facts = artifact.calibration
    fitted = f", {facts.fit_size:,} others fitted what is fitted" if facts.fit_size else ""
    tested = f"{evaluation.n_test:,} tested them ({evaluation.test_prompts})"
    yield "Prompts", f"{facts.size:,}{facts.weighing} calibrated the thresholds{fitted}, and {tested}"
    yield "Candidates", f"{artifact.n} for each prompt"
    yield (
        "Attainable",
        _attainable(
            facts.attainable_coverage, facts.weight or facts.size, f"calibration prompts{facts.by_weight}"
        ),
    )
    for part, heading in _PARTS:
        yield heading, _identity(artifact, part)
    if artifact.combination is not None:
        named = zip(artifact.combination.names, artifact.combination.coefficients, strict=True)
        yield "Score", f"combines {', '.join(f'{name} ({weight:+.3g})' for name, weight in named)}"
    yield "Features", artifact.feature_map.text
    yield "Set rule", artifact.set_rule_words
    yield "Threshold rule", artifact.threshold_rule
    several = f"; this page is about {evaluation.alpha:g}" if len(artifact.alphas) > 1 else ""
    yield "Error level", f"alpha = {', '.join(artifact.alphas)}{several}"
    yield "Artifact", f"{artifact.digest}, made {artifact.created_at} by version {artifact.library_version}"


def comparison_facts(comparison: ComparisonReport) -> Iterator[tuple[str, str]]:
    """What a comparison was made on and how, as terms and texts."""
    data = comparison.data
    yield "Prompts", f"{data.prompts:,}, with {counted(comparison.n_candidates, 'candidate')} each"
    yield "Attainable", _attainable(data.attainable_coverage, data.prompts, "prompts")
    yield "Correct candidates", percent(data.correct_candidates)
    if data.distinct_answers is not None:
        yield "Distinct answers", f"{data.distinct_answers:.1f} for each prompt on average"
    if data.auroc is not None:
        yield "Scores", f"a correct candidate beats a wrong one with probability {data.auroc:.3f} (AUROC)"
    tested = percent(comparison.test_fraction)
    yield "Splits", f"{comparison.splits:,}, from seed {comparison.seed}; {tested} are tested on"
    fitted = percent(comparison.fit_fraction)
    yield "Fitted on", f"{fitted} of the others, which do not calibrate our methods"
    yield "Features", comparison.features
    yield "Set rule", comparison.set_rule
    yield "Groups", comparison.groups


def _attainable(share: float, size: float, prompts: str) -> str:
    interval = percent_interval(clopper_pearson(share * size, size))
    return f"{percent(share)} of the {prompts} ({interval}) have a correct candidate"


def _identity(artifact: CalibrationArtifact, part: str) -> str:
    if artifact.provenance is None:
        return "not known: the records did not say (unbound)"
    known = getattr(artifact.provenance, part) or {}
    return str(known.get("id") or known.get("model") or "not named")


# A figure for each family: bars of all methods abreast would be too thin to see.
_FAMILIES = {"ours": "methods of this package", "paper": "as in the paper", "outside": "from elsewhere"}


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        id: Its id in the page.
        svg: What is drawn; already escaped.
        caption: What it shows, and how to read it.
    """

    id: str
    svg: Markup
    caption: str


def evaluation_figures(report: EvaluationReport) -> Iterator[Figure]:
    """What an evaluation shows."""
    if any(method.groups for method in report.methods.values()):
        yield _drawn(
            "figure-groups",
            plot_group_miscoverage(report),
            "How often the promise is broken in each group",
            "Bars below the line keep the promise. Error bars end where the 95 % interval does.",
        )


def policy_figures(policy: CertifiedPolicy) -> Iterator[Figure]:
    """What a certified policy was chosen among."""
    if any(point.answered for point in policy.curve):
        yield _drawn(
            "figure-policies",
            plot_certified_policies(policy),
            "Wrong answers against prompts answered, policy by policy",
            "On the certification prompts. Answering more costs more wrong answers.",
        )


def data_figures(data: DataFacts) -> Iterator[Figure]:
    """What the records are like."""
    if any(data.scores.correct) or any(data.scores.wrong):
        yield _drawn(
            "figure-scores",
            plot_score_histogram(data.scores),
            "Scores of correct and of wrong candidates",
            "The further apart the two are, the smaller the sets that keep the same promise.",
        )
    if data.attainable:
        yield _drawn(
            "figure-attainable",
            plot_attainable(data.attainable),
            "Attainable coverage of each group, foretold and seen",
            "Points on the diagonal were foretold rightly by the development prompts. Where little is "
            "attainable, prompts are flagged.",
        )


def comparison_figures(report: ComparisonReport) -> Iterator[Figure]:
    """What a comparison shows."""
    methods = report.methods.values()
    for family, title in _FAMILIES.items():
        named = [name for name, method in report.methods.items() if method.family == family and method.groups]
        if named:
            yield _drawn(
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
            yield _drawn(
                f"figure-thresholds-{family}",
                plot_threshold_by_difficulty(report, methods=depending),
                f"Thresholds in each group at alpha = {report.alpha:g}, {title}",
                "A rule that knows nothing of difficulty has one threshold for all. Means and standard "
                "deviations over the splits.",
            )
    if len(report.sweep) > 1:
        for figure, title in (
            ("kept_promise", "Promise kept against alpha"),
            ("worst_group_kept_promise", "Promise kept in the worst group against alpha"),
            ("mean_set_size", "Candidates per set against alpha"),
        ):
            if any(figure in method.figures for level in report.sweep for method in level.methods.values()):
                yield _drawn(
                    f"figure-by-alpha-{figure.replace('_', '-')}",
                    plot_by_alpha(report.sweep, methods=report.leading(), figure=figure),
                    title,
                    "Means and standard deviations over the splits.",
                )
    answering = any("selective_accuracy" in method.figures for method in methods)
    if answering or report.data.risk.answered:
        yield _drawn(
            "figure-risk",
            plot_selective_risk(report, methods=report.leading()),
            "Wrong best answers against prompts answered",
            "The line answers the prompts of lowest best score first, without any promise; each method has a "
            "point at each alpha.",
        )


def _drawn(name: str, axes: Any, title: str, words: str) -> Figure:
    markup = require("markupsafe", "calibrate", "a report")
    return Figure(id=name, svg=markup.Markup(to_svg(axes, title=title)), caption=f"{title}. {words}")


GENERATOR = "langchain-cfc report"
_GLOSSARY = (
    ("Alpha", "The error level. The target is 1 - alpha."),
    ("Candidate", "One of the answers drawn for a prompt, with a score by the verifier; smaller is better."),
    ("Threshold", "What a candidate's score, or its entry level, is held against. It depends on the prompt."),
    ("Answer set", "The candidates that the threshold lets in."),
    ("Covered", "The answer set holds a correct answer."),
    (
        "Flagged",
        "Cannot be certified: too few prompts like this have a correct candidate. No answer is given.",
    ),
    ("Promise kept", "Covered or flagged. This is what is promised."),
    ("Missed", "Neither covered nor flagged: the promise was broken. An empty set counts, unless flagged."),
    ("Attainable", "The share of prompts with a correct candidate. No threshold can cover more."),
    ("Interval", "Where the true figure lies, with confidence 95 %, for prompts drawn like these."),
)


@dataclass(frozen=True)
class _Part:
    """A section: words, then figures, then tables."""

    id: str
    heading: str
    words: tuple[str, ...]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class _Hard:
    """A hard prompt with the table of its answers."""

    prompt: HardPrompt
    table: Table


@dataclass(frozen=True)
class _Told:
    """All that one page tells."""

    title: str
    byline: str
    promise: Promise
    facts: tuple[tuple[str, str], ...]
    data_figures: tuple[Figure, ...]
    parts: tuple[_Part, ...]
    steps: tuple[Recommendation, ...]
    verdict: Verdict | None = None
    tiles: tuple[Tile, ...] = ()
    hardest_words: str = ""
    hardest: tuple[_Hard, ...] = ()


def page(
    *,
    artifact: CalibrationArtifact | None = None,
    evaluation: EvaluationReport | None = None,
    comparison: ComparisonReport | None = None,
    hardest: HardestPrompts | None = None,
    sources: Sources | None = None,
    notes: Sequence[str] = (),
    title: str | None = None,
) -> str:
    """A report as HTML, see `write_report`.

    Args:
        artifact: See there, like all that follows.
        evaluation: See there.
        comparison: See there.
        hardest: See there.
        sources: See there.
        notes: See there.
        title: See there.

    Returns:
        The page. Whatever came from users is escaped; characters that cannot be seen are spelt out.

    Raises:
        InputError: If there is nothing to report on, or the evaluation is not the artifact's.
        MissingExtraError: If jinja2, matplotlib or SciPy is not installed.
    """
    names = (sources or Sources()).without_passwords()
    if artifact is not None and evaluation is not None:
        told = _about_artifact(artifact, evaluation, comparison, hardest, names)
    elif comparison is not None and (artifact, evaluation, hardest) == (None, None, None):
        told = _about_comparison(comparison, names)
    else:
        msg = (
            "a report needs an artifact together with its evaluation, or a comparison by itself; hardest "
            "prompts are those of an artifact"
        )
        raise InputError(msg)
    html: str = _template().render(
        told=told,
        title=told.title if title is None else title,
        notes=tuple(notes),
        contents=tuple(_contents(told)),
        glossary=_GLOSSARY,
        generator=GENERATOR,
        style=_safe(_text_of("page.css")),
        colophon=f"Made by langchain-cfc {__version__} on {datetime.now(timezone.utc):%Y-%m-%d}. This page "
        "loads nothing and runs nothing.",
    )
    return html


def _contents(told: _Told) -> Iterator[tuple[str, str]]:
    yield "promise", told.promise.heading
    yield "data", "The data"
    yield from ((part.id, part.heading) for part in told.parts)
    if told.hardest:
        yield "hardest", "The hardest prompts"
    yield "next", "What to do next"
    yield "words", "Words on this page"


def _about_artifact(
    artifact: CalibrationArtifact,
    evaluation: EvaluationReport,
    comparison: ComparisonReport | None,
    hardest: HardestPrompts | None,
    sources: Sources,
) -> _Told:
    if evaluation.artifact_digest != artifact.digest:
        msg = "the evaluation is of another artifact: its digest differs"
        raise InputError(msg)
    alpha = artifact.level(str(evaluation.alpha))
    compared = () if comparison is None else (_compared(comparison, beside_artifact=True),)
    prompts = () if hardest is None else hardest.prompts
    return _Told(
        title=f"What {PurePath(sources.artifact).name} promises, and what happened",
        byline=(
            f"Artifact of {artifact.created_at[:10]}, {artifact.digest[:19]}…, "
            f"{counted(evaluation.n_test, 'test prompt')}"
        ),
        promise=promise_of(artifact, artifact.guarantee(alpha)),
        verdict=verdict_of(artifact, evaluation),
        tiles=tuple(tiles_of(artifact, evaluation)),
        facts=tuple(artifact_facts(artifact, evaluation)),
        data_figures=() if comparison is None else tuple(data_figures(comparison.data)),
        parts=(_happened(artifact, evaluation), *_bot(artifact, evaluation), *compared),
        hardest_words="" if hardest is None else _hardest_words(hardest),
        hardest=tuple(
            _Hard(one, tables.hard_table(place, one)) for place, one in enumerate(prompts, start=1)
        ),
        steps=tuple(recommendations(Situation.of(artifact, evaluation, sources))),
    )


def _about_comparison(comparison: ComparisonReport, sources: Sources) -> _Told:
    steps = (
        suggest_step(comparison.alpha, sources),
        calibrate_step(comparison.alpha, comparison.features, comparison.set_rule, sources),
    )
    names = ", ".join(PurePath(one).name for one in sources.records)
    return _Told(
        title=f"{counted(len(comparison.methods), 'method')} on {names}",
        byline=(
            f"{counted(comparison.data.prompts, 'prompt')}, "
            f"{counted(comparison.n_candidates, 'candidate')} each, {counted(comparison.splits, 'split')}"
        ),
        promise=promise_of_comparison(comparison),
        facts=tuple(comparison_facts(comparison)),
        data_figures=tuple(data_figures(comparison.data)),
        parts=(_compared(comparison, beside_artifact=False),),
        steps=steps,
    )


def _happened(artifact: CalibrationArtifact, evaluation: EvaluationReport) -> _Part:
    beside = (
        ", beside those that one threshold for all prompts gives, calibrated on the same data"
        if artifact.threshold_rule != "marginal"
        else ""
    )
    return _Part(
        id="happened",
        heading="What happened",
        words=(f"Answer sets of the artifact on the test prompts{beside}.",),
        figures=tuple(evaluation_figures(evaluation)),
        tables=(tables.overall_table(evaluation), *tables.groups_table(artifact, evaluation)),
    )


def _bot(artifact: CalibrationArtifact, evaluation: EvaluationReport) -> Iterator[_Part]:
    """Bot mode, where there is one."""
    policy, answers = artifact.policy, evaluation.answers
    if policy is None or answers is None:
        return
    known = set(artifact.guarantee(policy.certificate.alpha).not_promised)
    silent = [one for one in artifact.bot_guarantee().not_promised if one not in known]
    seen = (
        f"Of {evaluation.n_test:,} test prompts {answers.answered:,} ({percent(answers.answered_rate)}) are "
        f"answered, {answers.wrong:,} of them wrongly: {percent(answers.wrong_rate, 1)} (95 % interval "
        f"{percent_interval(answers.wrong_rate_ci, 1)}). Certified are at most "
        f"{format_share(answers.max_wrong_rate)}."
    )
    verdict = (
        "That is too many for chance: do not serve it."
        if answers.contradicted
        else "Nothing contradicts the certificate."
    )
    yield _Part(
        id="bot",
        heading="Answering or abstaining",
        words=(policy.certificate.sentence(), f"{seen} {verdict}", *silent),
        figures=tuple(policy_figures(policy)),
        tables=(tables.policies_table(policy),),
    )


def _compared(comparison: ComparisonReport, *, beside_artifact: bool) -> _Part:
    """A comparison; beside an artifact it also says how it was made, which nothing else there does."""
    made = (
        f"{counted(len(comparison.methods), 'method')} on {counted(comparison.data.prompts, 'prompt')}, "
        f"split {comparison.splits:,} times into {comparison.n_calibration:,} that calibrate and "
        f"{comparison.n_test:,} that are tested on. Features {comparison.features}; set rule "
        f"{comparison.set_rule}."
    )
    chosen = "A method chosen by these figures looks better on these prompts than it is."
    return _Part(
        id="compared",
        heading="Methods compared",
        words=(*((made, chosen) if beside_artifact else ()), *comparison.notes),
        figures=tuple(comparison_figures(comparison)),
        tables=(
            *([tables.promises_table(comparison)] if beside_artifact else []),
            tables.comparison_table(comparison),
            *tables.compared_groups_tables(comparison),
            *tables.gaps_tables(comparison),
            *tables.sweep_tables(comparison),
        ),
    )


def _hardest_words(hardest: HardestPrompts) -> str:
    shown = len(hardest.prompts)
    which = "All of them" if shown == hardest.missed + hardest.flagged else f"The {shown} hardest"
    text = "" if hardest.with_text else " Texts are left out: nobody allowed them."
    return (
        f"{counted(hardest.missed, 'test prompt')} missed, {hardest.flagged:,} flagged. {which}: missed ones "
        "by threshold and flagged ones by mean score, by turns. Candidates with the same answer share a row."
        f"{text}"
    )


@cache
def _template() -> Any:
    jinja: Any = require("jinja2", "calibrate", "a report")
    environment = jinja.Environment(autoescape=True, undefined=jinja.StrictUndefined, finalize=_finalised)
    return environment.from_string(_text_of("page.html.j2"))


def _finalised(value: Any) -> Any:
    """Spell out what cannot be seen, in all that the page did not make itself."""
    return visible(value) if type(value) is str else value


def _safe(text: str) -> Any:
    return require("markupsafe", "calibrate", "a report").Markup(text)


def _text_of(name: str) -> str:
    return files("langchain_cfc.report").joinpath(name).read_text(encoding="utf-8")


# The page says what it is within its first lines.
HEAD_BYTES = 1024


def write_report(
    path: str | os.PathLike[str],
    *,
    artifact: CalibrationArtifact | None = None,
    evaluation: EvaluationReport | None = None,
    comparison: ComparisonReport | None = None,
    hardest: HardestPrompts | None = None,
    sources: Sources | None = None,
    notes: Sequence[str] = (),
    title: str | None = None,
) -> None:
    """Write a report: one HTML file that needs no network and no script.

    Args:
        path: Where; an earlier report is replaced as a whole, anything else is not.
        artifact: The artifact it is about, if it is about one; then with an evaluation.
        evaluation: The artifact's evaluation at one of its levels.
        comparison: A comparison of methods, beside the artifact or by itself.
        hardest: The artifact's hardest test prompts; with texts only if they were found with texts.
        sources: Names of files for the commands that it recommends; placeholders by default.
        notes: What a reader has to know before all else, such as that the records come from another model.
        title: Its title.

    Raises:
        InputError: If the path holds something that is no report, there is nothing to report on, or the
            evaluation is not the artifact's.
        MissingExtraError: If jinja2, matplotlib or SciPy is not installed.
    """
    check_report(path)
    text = page(
        artifact=artifact,
        evaluation=evaluation,
        comparison=comparison,
        hardest=hardest,
        sources=sources,
        notes=notes,
        title=title,
    )
    with atomic_writer(path) as file:
        file.write(text.encode())


def check_report(path: str | os.PathLike[str]) -> None:
    """Refuse to write a report over anything that is none, such as the records it is made from.

    Args:
        path: Where a report is to be written.

    Raises:
        InputError: If the path holds something else, or is `-`.
    """
    target = Path(path)
    if str(target) == "-":
        msg = "reports are written to files: give a path"
        raise InputError(msg)
    if target.is_dir() or not target.parent.is_dir():
        problem = "is a folder" if target.is_dir() else "lies in a folder that does not exist"
        msg = f"{target} {problem}: give another path"
        raise InputError(msg)
    if target.is_file() and not _looks_like_report(target):
        msg = f"{target} exists and is not a report; it will not be overwritten: give another path"
        raise InputError(msg)


def _looks_like_report(path: Path) -> bool:
    with path.open("rb") as file:
        return f'<meta name="generator" content="{GENERATOR}">'.encode() in file.read(HEAD_BYTES)
