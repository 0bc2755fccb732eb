"""The demo: calibrate on a recording that ships with the package, and serve its held-out prompts."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.calibration import calibrate
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import AttainabilityWarning, CFCError
from langchain_cfc.evaluation import EvaluationReport, evaluate
from langchain_cfc.records import PromptRecord, Records, read_records
from langchain_cfc.runnable import CFCResult, CFCRunnable
from langchain_cfc.thresholds import Level

__all__ = [
    "ALPHA",
    "FEATURES",
    "SET_RULE",
    "TEST_FRACTION",
    "DemoResult",
    "demo_chain",
    "is_best_correct",
    "is_promise_kept",
    "load_recording",
    "run_demo",
]

ALPHA = "0.2"
# How hard a prompt looks (mean score), whether it is among the hardest fifth, and its topic.
FEATURES = "mean_score + hard(mean_score, 0.8) + group(topic)"
SET_RULE = "unique(all)"
TEST_FRACTION = 0.3
# The rates of wrong answers that the bot is certified for, in one artifact.
MAX_WRONG_RATES = ("0.05", "0.1")

# File of the bot's artifact, in the folder of the other artifact.
BOT_FILE = "bot.json"

# Prompts with the results of `CFCRunnable`.
Served: TypeAlias = tuple[tuple[PromptRecord, CFCResult], ...]
# Wraps an iterable of prompts to show progress; the second argument is their number.
Tracker: TypeAlias = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class DemoResult:
    """The artifacts of a demo, their evaluation on held-out prompts, and what its bot served."""

    sets: CalibrationArtifact
    bot: CalibrationArtifact
    report: EvaluationReport  # of the sets, with the bot's answers at each certified rate, ascending
    served: Served  # by the bot, at the smallest rate
    plain_wrong: int  # held-out prompts that the model alone would get wrong, with its first candidate
    best_wrong: int  # the same with the candidate of lowest score
    notes: tuple[str, ...]  # warnings of calibration


def load_recording() -> Records:
    """Return the recording that ships with the package; `DATA.md` in this folder states its source."""
    return read_records(str(files("langchain_cfc.demo").joinpath("facts.jsonl.gz")))


def demo_chain(
    artifact: CalibrationArtifact | str | os.PathLike[str],
    *,
    alpha: Level | None = None,
    max_wrong_rate: Level | None = None,
) -> CFCRunnable:
    """Return a chain that serves the recording under an artifact, without an API key or network access.

    Args:
        artifact: The artifact that `langchain-cfc demo` writes, or another one calibrated on the recording;
            the object or its file.
        alpha: As for `CFCRunnable`.
        max_wrong_rate: As for `CFCRunnable`.

    Returns:
        A chain that answers the recorded questions, given as text or as a single human message.

    Raises:
        ArtifactError: If the file is not a valid artifact, or one that was calibrated on other records.
        InputError: If the artifact holds several promises and none is named, or not the one that is named.
    """
    loaded = artifact if isinstance(artifact, CalibrationArtifact) else CalibrationArtifact.load(artifact)
    parts = make_replay_parts(load_recording())
    return CFCRunnable(artifact=loaded, alpha=alpha, max_wrong_rate=max_wrong_rate, **parts)


def run_demo(seed: str | int, out: Path, progress: Tracker = lambda prompts, _: prompts) -> DemoResult:
    """Calibrate answer sets and a rarely wrong bot on one part of the recording, and serve the rest by both.

    Args:
        seed: Seed of the split.
        out: Path to write the artifact of the sets to; the bot's is `bot.json` in the same folder. Serving
            uses the artifacts as read back from there.
        progress: Wraps the prompts each time they are served; its second argument is their number.

    Returns:
        The artifacts, their evaluation and the results that the bot served.

    Raises:
        InputError: If an artifact cannot be written.
        UnattainableTargetError: If no rate can be certified.
        CFCError: If the served results differ from those that `evaluate` computes.
    """
    source = load_recording()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AttainabilityWarning)
        sets = _calibrate(source, out, alpha=ALPHA, features=FEATURES, set_rule=SET_RULE, seed=seed)
    # A bot uses no features, so a constant is enough.
    bot_path = out.with_name(BOT_FILE)
    bot = _calibrate(source, bot_path, max_wrong_rate=MAX_WRONG_RATES, features="1", seed=seed)
    report = evaluate(sets, source).model_copy(update={"answers": evaluate(bot, source).answers})
    parts, split = make_replay_parts(source), bot.calibration.split
    held_out = [record for record in source if split.find_part(record.id, record.cluster) == "test"]
    by_rate = []
    for one in report.answers:
        chain = CFCRunnable(artifact=bot, max_wrong_rate=one.max_wrong_rate, **parts)
        by_rate.append(_serve(held_out, chain, progress))
        answered = [pair for pair in by_rate[-1] if not pair[1].abstained]
        _check_served(len(answered), one.answered)
        _check_served(sum(not is_best_correct(*pair) for pair in answered), one.wrong)
    in_sets = _serve(held_out, CFCRunnable(artifact=sets, show_rejected=True, **parts), progress)
    kept = sum(is_promise_kept(record, result) for record, result in in_sets)
    _check_served(kept / len(in_sets), report.methods["conditional"].kept_promise)
    best = [min(record.candidates, key=lambda one: one.score) for record in held_out]
    return DemoResult(
        sets,
        bot,
        report,
        by_rate[0],
        plain_wrong=sum(not record.candidates[0].correct for record in held_out),
        best_wrong=sum(not one.correct for one in best),
        notes=tuple(str(warning.message) for warning in caught),
    )


def _calibrate(source: Records, out: Path, **options: Any) -> CalibrationArtifact:
    """Calibrate on a part of the recording, save the artifact, and return it as read back."""
    calibrate(source, test_fraction=TEST_FRACTION, **options).save(out)
    return CalibrationArtifact.load(out)


def _serve(held_out: list[PromptRecord], chain: CFCRunnable, progress: Tracker) -> Served:
    return tuple((record, chain.invoke(record.input)) for record in progress(held_out, len(held_out)))


def is_promise_kept(record: PromptRecord, result: CFCResult) -> bool:
    """Return whether the set holds a correct answer, or the prompt was flagged as not certifiable."""
    return result.reason == "not_certifiable" or bool(_list_correct(record) & set(result.answers))


def is_best_correct(record: PromptRecord, result: CFCResult) -> bool:
    """Return whether the best answer of a result is correct."""
    return result.best in _list_correct(record)


def _list_correct(record: PromptRecord) -> set[str]:
    """Return the correct answers among those recorded for a prompt."""
    return {candidate.answer_key for candidate in record.candidates if candidate.correct}


def _check_served(served: float, expected: float) -> None:
    """Raise a CFCError unless the runnable and `evaluate`, which decide by the same function, agree."""
    if not math.isclose(served, expected):
        msg = f"serving counts {served:g} where evaluation counts {expected:g}: please report this"
        raise CFCError(msg)
