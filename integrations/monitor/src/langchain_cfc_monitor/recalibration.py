"""Calibrate a new artifact on labelled traffic, and compare it with the one that serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from langchain_cfc.artifact import CalibrationArtifact, Previous, ReferenceHistogram, select_held_out
from langchain_cfc.calibration import CalibrationConfig, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import EvaluationReport, evaluate
from langchain_cfc.records import Provenance
from langchain_cfc.support.text import format_percent
from langchain_cfc.thresholds import Level
from langchain_cfc_monitor.monitor import CFCMonitor
from langchain_cfc_monitor.observed import Data, format_time
from langchain_cfc_monitor.sequential_tests import BLOCK_SIZE, DriftTest, LabelSamplingTest, SequentialTest
from langchain_cfc_monitor.status import name_quantity
from langchain_cfc_monitor.traffic import Traffic


def _list_sampling_differences(everything: Traffic, chosen: Traffic, level: float) -> Iterator[str]:
    """List the quantities in which the chosen results differ from the others, by `LabelSamplingTest`.

    If results are chosen at random, anything is listed with probability at most `level`.
    """
    sampled = LabelSamplingTest.start(everything.artifact, 0.0)
    tests = sampled.layout.tests
    used, results = {one.id for one in chosen.results}, everything.results if tests else ()
    if len(used) == len(results):
        return  # no others to compare with
    for start in range(0, len(results), BLOCK_SIZE):
        sampled = sampled.update([(one, one.id in used) for one in results[start : start + BLOCK_SIZE]])
    for what, _ in _list_alarms(tests, sampled, level):
        yield (
            f"{what} differs between the results that are used and the others: the labels are not a fair "
            "sample"
        )


def _list_changes(traffic: Traffic, level: float) -> Iterator[str]:
    """List what has changed over time among the results; if nothing did, with probability at most `level`.

    Two tests have half of the level each. `DriftTest` ranks each result among those before it; the ranks are
    uniform as long as the results are exchangeable. Fisher's exact test compares how often each model drew in
    the first half of the results and in the second (Bonferroni over the models).
    """
    half = level / 2.0
    drift = DriftTest.start(traffic.artifact, 0.0).without_calibration()
    for one in traffic.results:
        drift = drift.update(one)
    for what, since in _list_alarms(drift.layout.tests, drift, half):
        yield f"{what} has changed among these results, since about {since}: use only later results (since)"
    for model in traffic.models:
        drew = np.array([model in one.models for one in traffic.results])
        first, last = np.array_split(drew, 2)
        table = np.array([[part.sum(), (~part).sum()] for part in (first, last)])
        if stats.fisher_exact(table).pvalue <= half / len(traffic.models):
            yield (
                f"the model {model} drew {table[0, 0]} of the first {len(first)} results and {table[1, 0]} "
                f"of the last {len(last)}: use only results since it changed (since)"
            )


def _list_alarms(
    tests: Sequence[tuple[ReferenceHistogram, str]], state: SequentialTest, level: float
) -> Iterator[tuple[str, str]]:
    """Yield the quantities with an alarming test, and since when, by the rule of a monitor's status."""
    alarms: dict[str, float] = {}
    for place in np.flatnonzero(state.find_alarms(level)).tolist():
        alarms.setdefault(
            name_quantity(tests[place][0], state.artifact.traits), float(state.wealth.since[place])
        )
    for what, since in alarms.items():
        yield f"{what[0].upper()}{what[1:]}" if "(" not in what else what, format_time(since)


class Recalibration(Data):
    """A new artifact, and whether it should replace the one that serves.

    Attributes:
        artifact: The new artifact, with its certificates.
        results: Number of labelled results that it was made from, including held-out ones.
        compared: Evaluations of the serving artifact and of the new one on the held-out results; of answer
            sets, at the smallest level.
        certified: By level, a certified lower bound on the share of all prompts with a kept promise; empty
            for a bot, which promises nothing about sets.
        objections: Reasons not to replace the artifact that serves; empty if there are none.
    """

    artifact: CalibrationArtifact
    results: int
    compared: tuple[EvaluationReport, EvaluationReport]
    certified: Mapping[str, float]
    objections: tuple[str, ...]

    @property
    def certifies(self) -> bool:
        """Whether it may replace the artifact that serves."""
        return not self.objections


def recalibrate(
    monitor: CFCMonitor,
    *,
    min_kept: float | None = None,
    since: float | None = None,
    delta: Level | None = None,
    leave_out_incomplete: bool = False,
    test_fraction: float = 0.3,
    after: Previous = None,
    **changes: Any,
) -> Recalibration:
    """Calibrate again on the labelled results of a monitor, with the options of the artifact that serves.

    If results were chosen for labelling with unequal probabilities, a result that was chosen with probability
    p is used with probability least / p (rejection sampling, von Neumann 1951). So all guarantees are about
    all results. A part of the results is held out, to certify the new artifact and to compare both. Reasons
    to object are a rate below `min_kept`, labelled results that look unlike the others, and changes in what
    was served.

    Args:
        monitor: The monitor of the artifact that serves.
        min_kept: Share of all prompts for which the promise must be certified to be kept, in [0, 1]. May be
            left out for an artifact with a guarantee with confidence or a bot mode, because those are made
            only if their own tests pass.
        since: Use only results from this time on, in seconds since 1970, such as those of a new model.
        delta: Probability that a bound or test is wrong; by default that of the serving artifact, else 0.05.
        leave_out_incomplete: Whether to leave out labels that do not cover every candidate. Sound only if
            completeness depends neither on what is correct nor on what results look like.
        test_fraction: Share of the results that is held out to certify sets and to compare both artifacts, in
            (0, 1). A bot is certified on all others.
        after: Earlier attempts on these labels: the refusal, the new artifact or the `AttemptLedger`. This
            one is tested at the share of delta that is left for it.
        **changes: Options of `calibrate` that differ from those of the artifact that serves, such as
            `features` or `alpha`.

    Returns:
        The new artifact, objections against it, and the comparison. Nothing is written.

    Raises:
        InputError: If there are no labels, some are incomplete, results come from components that cannot be
            identified, the artifact was calibrated on several prompts per cluster, or `min_kept` is missing.
        CalibrationError: If there are too few results.
        UnattainableTargetError: If the target is out of reach for these results, or a test did not pass.
        StoreError: If the database cannot be used.
    """
    old = monitor.artifact
    config = _make_config(old, changes)
    tests_itself = config.is_confident or config.max_wrong_rate is not None
    if min_kept is None and not tests_itself:
        msg = (
            "min_kept: state the certified rate of kept promises that the new artifact must reach, such as "
            "0.85 for alpha = 0.1; a lower bound from so few labels lies below 1 - alpha"
        )
        raise InputError(msg)
    wanted = 0.0 if min_kept is None else min_kept
    if not 0.0 <= wanted <= 1.0:
        msg = f"min_kept must be a share in [0, 1], got {min_kept!r}"
        raise InputError(msg)
    if tests_itself and delta is not None:
        config = replace(config, delta=delta)
    everything = monitor.read_traffic(since)
    traffic = everything.select_labelled(leave_out_incomplete=leave_out_incomplete)
    _check_usable(monitor, traffic, since)
    sampled = traffic.select_sampled(monitor.least_probability)
    table = sampled.to_batch()
    provenance = _make_provenance(traffic)
    config = replace(config, test_fraction=test_fraction)
    new = calibrate(table, **config.to_arguments(), provenance=provenance, after=after)
    if not new.is_bot_alone:
        # The delta of the old certificates, or the usual one if there are none.
        usual = next((one.delta for one in old.certificates), "0.05")
        new = certify(new, table, delta=delta or usual, provenance=provenance)
    unseen, _ = select_held_out(new, table)
    levels = () if new.is_bot_alone else new.alphas
    certified = {alpha: _get_certified_rate(new, alpha) for alpha in levels}
    return Recalibration(
        artifact=new,
        results=len(traffic),
        compared=(_evaluate(old, unseen), _evaluate(new, unseen)),
        certified=certified,
        objections=(
            *_list_shortfalls(certified, wanted),
            *_list_sampling_differences(everything, sampled, monitor.level),
            *_list_changes(sampled, monitor.level),
        ),
    )


def _evaluate(artifact: CalibrationArtifact, labelled: LabelledBatch) -> EvaluationReport:
    return evaluate(artifact, labelled, alpha=artifact.alphas[0] if artifact.alphas else None)


def _make_config(artifact: CalibrationArtifact, changes: Mapping[str, Any]) -> CalibrationConfig:
    """Return the options of an artifact with changes.

    `fit_fraction` is reset if features change, because these may need another share of prompts for fitting.
    """
    defaults = {"fit_fraction": None} if "features" in changes else {}
    return replace(CalibrationConfig.from_artifact(artifact), **{**defaults, **changes})


def _check_usable(monitor: CFCMonitor, traffic: Traffic, since: float | None) -> None:
    """Raise an InputError if an artifact cannot be calibrated on these results."""
    digest = monitor.artifact.digest[:15]
    if not traffic.results:
        msg = (
            f"{monitor.name} holds no result of {digest} with a complete "
            f"label{'' if since is None else ' since then'}: label all candidates of some results"
        )
        raise InputError(msg)
    unsure = sum(one.binding == "unverified" for one in traffic.results)
    if unsure:
        msg = (
            f"{unsure} of {len(traffic)} results come from a generator, verifier or extractor that does not "
            "identify itself, so a new artifact could not identify it either: serve with what the warning "
            "asks for, such as verifier_id, and use later results"
        )
        raise InputError(msg)


def _make_provenance(traffic: Traffic) -> Provenance | None:
    """Return the artifact's provenance, with the models and the labeler of the served results."""
    before, models = traffic.artifact.provenance, traffic.models
    if before is None:
        return None
    said = {"model_version": models[0] if len(models) == 1 else list(models)} if models else {}
    generator = before.generator
    if generator is not None:
        generator = {name: value for name, value in generator.items() if name != "model_version"} | said
    labeler = {"id": "labels of served results"}
    return before.model_copy(update={"n": traffic.artifact.n, "generator": generator, "labeler": labeler})


def _get_certified_rate(artifact: CalibrationArtifact, alpha: str) -> float:
    """Return a certified lower bound on the share of all prompts with a kept promise."""
    for certificate in artifact.certificates:
        if certificate.alpha == alpha:
            return certificate.shares[0].kept_at_least
    promise = artifact.make_guarantee(alpha)
    return 0.0 if promise.kind == "heuristic" else promise.target_coverage  # tested on certification prompts


def _list_shortfalls(certified: Mapping[str, float], wanted: float) -> Iterator[str]:
    if wanted and not certified:
        yield (
            "min_kept is about sets, and this bot promises nothing about them: leave it out; its rates are "
            "certified"
        )
    for alpha, kept in certified.items():
        if kept < wanted:
            yield (
                f"at alpha = {alpha} the promise is certified to be kept at least "
                f"{format_percent(kept, '.1f')} of the time, but {format_percent(wanted, 'g')} is required: "
                "add labels, or choose a smaller alpha"
            )
