"""The page: what is said where, put into HTML by one template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from langchain_cfc._extras import require
from langchain_cfc._version import __version__
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.comparison.report import ComparisonReport
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.guarantee import share_text
from langchain_cfc.report import figures, tables
from langchain_cfc.report.facts import artifact_facts, comparison_facts
from langchain_cfc.report.figures import Figure
from langchain_cfc.report.hardest import HardestPrompts, HardPrompt
from langchain_cfc.report.next_steps import Situation, Sources, Step, calibrate_step, next_steps, suggest_step
from langchain_cfc.report.promise import (
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
    steps: tuple[Step, ...]
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
        data_figures=() if comparison is None else tuple(figures.data_figures(comparison.data)),
        parts=(_happened(artifact, evaluation), *_bot(artifact, evaluation), *compared),
        hardest_words="" if hardest is None else _hardest_words(hardest),
        hardest=tuple(
            _Hard(one, tables.hard_table(place, one)) for place, one in enumerate(prompts, start=1)
        ),
        steps=tuple(next_steps(Situation.of(artifact, evaluation, sources))),
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
        data_figures=tuple(figures.data_figures(comparison.data)),
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
        figures=tuple(figures.evaluation_figures(evaluation)),
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
        f"{share_text(answers.max_wrong_rate)}."
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
        figures=tuple(figures.policy_figures(policy)),
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
        figures=tuple(figures.comparison_figures(comparison)),
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
