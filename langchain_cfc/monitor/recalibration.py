"""A new artifact from labelled traffic, held against the one that serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from langchain_cfc._internal.optional import require
from langchain_cfc.artifact import CalibrationArtifact, ReferenceHistogram, select_held_out
from langchain_cfc.calibration import CalibrationConfig, calibrate
from langchain_cfc.certificates import certify
from langchain_cfc.errors import InputError
from langchain_cfc.monitor.monitor import CFCMonitor
from langchain_cfc.monitor.sequential_tests import BLOCK, Drift, LabelSamplingTest, Layout
from langchain_cfc.monitor.shadow import SideBySide
from langchain_cfc.monitor.status import called
from langchain_cfc.monitor.traffic import Traffic, time_of
from langchain_cfc.records import Provenance
from langchain_cfc.thresholds import Level


def unlike(everything: Traffic, chosen: Traffic, level: float) -> Iterator[str]:
    """In what the results that are used look unlike the others.

    Those of each block are drawn from it without replacement, if it is chance that chooses them; see
    `LabelSamplingTest`.

    Args:
        everything: All results.
        chosen: Those of them that are used.
        level: Probability of saying anything where it is chance, in (0, 1).
    """
    tests = Layout.of(everything.artifact).tests
    used, results = {one.id for one in chosen.results}, everything.results if tests else ()
    sampled = LabelSamplingTest.begun(everything.artifact, 0.0)
    for start in range(0, len(results), BLOCK):
        block = [(one, one.id in used) for one in results[start : start + BLOCK]]
        sampled = sampled.after(block, start)
    for what, _ in _found(tests, sampled, level):
        yield f"{what} differs between the results that are used and the others: labels do not speak of all"


def changed(traffic: Traffic, level: float) -> Iterator[str]:
    """In what results have changed while they came.

    Each is ranked among those before it, which is uniform as long as all are of one kind, see `Drift`; and
    each model draws as often in the first half as in the second, by Fisher's exact test.

    Args:
        traffic: The results that are used, in their order.
        level: Probability of saying anything where nothing changed, in (0, 1): half for either test.
    """
    half = level / 2.0
    drift = Drift.begun(traffic.artifact, 0.0).without_calibration()
    for one in traffic.results:
        drift = drift.after(one)
    for what, since in _found(drift.tests, drift, half):
        yield f"{what} has changed among these results, since about {since}: use those from then on (since)"
    for model in traffic.models:
        drew = np.array([model in one.models for one in traffic.results])
        first, last = np.array_split(drew, 2)
        table = [[int(part.sum()), int((~part).sum())] for part in (first, last)]
        p_value = require("scipy.stats", "calibrate", "recalibration").fisher_exact(table).pvalue
        if p_value <= half / len(traffic.models):
            yield (
                f"the model {model} drew {table[0][0]} of the first {len(first)} results and {table[1][0]} "
                f"of the last {len(last)}: use those since it is as it is now (since)"
            )


def _found(
    tests: Sequence[tuple[ReferenceHistogram, str]], part: Drift | LabelSamplingTest, level: float
) -> Iterator[tuple[str, str]]:
    """Yield the quantities of the tests that alarm together, and since when, as a monitor's status does."""
    if part.mean.peak < -np.log(level):
        return
    capital = part.capital
    peaks = capital.peak >= -np.log(level)
    told: dict[str, float] = {}
    for place in np.flatnonzero(peaks).tolist():
        told.setdefault(called(tests[place][0]), float(capital.since[place]))
    for what, since in told.items():
        yield f"{what[0].upper()}{what[1:]}" if "(" not in what else what, time_of(since)


TEST_FRACTION, CERTIFICATION_FRACTION = 0.2, 0.3
_LABELER = {"id": "labels of served results"}


@dataclass(frozen=True)
class Recalibration:
    """A new artifact beside the one that serves.

    Attributes:
        artifact: The new one, with what is certified about it.
        results: Number of labelled results that it was made from, held-out ones included.
        compared: Both on results held out of its calibration and its certificates, at each level of both.
        certified: By level, how often its promise is certified to be kept over all prompts.
        objections: Why it should not take the place of the one that serves; none if it may.
    """

    artifact: CalibrationArtifact
    results: int
    compared: tuple[SideBySide, ...]
    certified: Mapping[str, float]
    objections: tuple[str, ...]

    @property
    def certifies(self) -> bool:
        """Whether it may take the place of the one that serves."""
        return not self.objections


def recalibrate(
    monitor: CFCMonitor,
    *,
    min_kept: float | None = None,
    since: float | None = None,
    delta: Level | None = None,
    leave_out_incomplete: bool = False,
    test_fraction: float = TEST_FRACTION,
    certification_fraction: float = CERTIFICATION_FRACTION,
    **changes: Any,
) -> Recalibration:
    """Calibrate anew on the labelled results of a monitor, as the artifact that serves was calibrated.

    Where results were chosen to be labelled with unequal probabilities, one that was chosen with probability
    p counts least / p in the threshold's regression (weighted exchangeability: Tibshirani, Barber, Candes and
    Ramdas 2019), and with that probability at all for everything else, from the certificate to the counts for
    drift (rejection sampling, von Neumann 1951): so whatever is promised is about all results. Part of them
    is held out: on one part the new artifact is certified, on another both are compared. It does not certify
    where labelled results look unlike the others, or where what is served changed among them.

    Args:
        monitor: Watches the artifact that serves.
        min_kept: How often the promise must at least be certified to be kept over all prompts, in [0, 1].
            May be left out for an artifact whose promise holds with confidence, or that has a bot mode: those
            are made only if their own tests pass.
        since: Seconds since 1970: only results from then on, such as those of a new model.
        delta: Probability that a bound or a test is wrong; by default that of the artifact that serves.
        leave_out_incomplete: Whether to pass over labels that do not speak of every candidate; sound only
            where that depends neither on what is correct nor on what results look like.
        test_fraction: Share of the results on which both are compared, in (0, 1).
        certification_fraction: Share of the others that certifies, in (0, 1).
        **changes: What `calibrate` is to be asked differently than for the artifact that serves, such as
            `features` or `alpha`. To try one after the other until it certifies voids the certificate.

    Returns:
        The new artifact, whether it certifies, and how both compare. Nothing is written.

    Raises:
        InputError: If there are no labels, some are incomplete, results come from parts that do not say what
            they are, or `min_kept` is missing.
        CalibrationError: If there are too few results.
        UnattainableTargetError: If the target is out of reach for these results, or a test did not pass.
        StoreError: If the database cannot be used.
        MissingExtraError: If SciPy is not installed.
    """
    old = monitor.artifact
    asked = _asked(old, changes)
    tests_itself = asked.confident or asked.max_wrong_rate is not None
    if min_kept is None and not tests_itself:
        msg = (
            "min_kept: say how often the promise must be certified to be kept for the new artifact to be "
            "used, such as 0.85 where alpha is 0.1; a bound on so many labels lies below 1 - alpha"
        )
        raise InputError(msg)
    wanted = 0.0 if min_kept is None else min_kept
    if not 0.0 <= wanted <= 1.0:
        msg = f"min_kept is a share in [0, 1], got {min_kept!r}"
        raise InputError(msg)
    if tests_itself and delta is not None:
        asked = replace(asked, delta=delta)
    everything = monitor.traffic(since)
    traffic = everything.labelled(leave_out_incomplete=leave_out_incomplete)
    _check_usable(monitor, traffic, since)
    least = monitor.least_probability
    table, provenance = replace(traffic.table(), weights=traffic.weights(least)), _provenance(traffic)
    asked = replace(asked, test_fraction=test_fraction, certification_fraction=certification_fraction)
    new = calibrate(table, **asked.options(), provenance=provenance)
    if not new.has_used_certification:
        new = certify(new, table, delta=delta or _delta(old), provenance=provenance)
    unseen = traffic.take(select_held_out(new, table)[0].ids)
    both = [alpha for alpha in new.alphas if alpha in old.alphas]
    compared = [SideBySide.of(unseen, new, alpha) for alpha in both]
    certified = {alpha: _kept(new, alpha) for alpha in new.alphas}
    return Recalibration(
        artifact=new,
        results=len(traffic),
        compared=tuple(one for one in compared if one is not None),
        certified=certified,
        objections=(
            *_too_rarely(certified, wanted),
            *unlike(everything, traffic.fair(least), monitor.level),
            *changed(traffic.fair(least), monitor.level),
        ),
    )


def _asked(artifact: CalibrationArtifact, changes: Mapping[str, Any]) -> CalibrationConfig:
    """How the artifact was asked for, with what changes.

    Served prompts need no shift: they come from where the artifact serves. Other features or another
    combination need a share to be fitted on that suits them.
    """
    fitted_otherwise = not {"features", "combine"}.isdisjoint(changes)
    defaults = {"shift": None, **({"fit_fraction": None} if fitted_otherwise else {})}
    return replace(CalibrationConfig.from_artifact(artifact), **{**defaults, **changes})


def _check_usable(monitor: CFCMonitor, traffic: Traffic, since: float | None) -> None:
    """Refuse results that nothing can be calibrated on."""
    digest = monitor.artifact.digest[:15]
    if not traffic.results:
        msg = (
            f"{monitor.name} holds no result of {digest} with a complete label"
            f"{'' if since is None else ' since then'}: label some, every candidate of each"
        )
        raise InputError(msg)
    unsure = sum(one.binding == "unverified" for one in traffic.results)
    if unsure:
        msg = (
            f"{unsure} of {len(traffic)} results come from a generator, verifier or extractor that does not "
            "say what it is, so that a new artifact could not either: serve with what the warning asks to be "
            "stated, such as verifier_id, and use results from then on"
        )
        raise InputError(msg)
    if not monitor.artifact.calibration.exchangeable:
        msg = (
            f"{digest} was calibrated on several prompts of a cluster, and results do not say which belong "
            "together: collect records that do"
        )
        raise InputError(msg)


def _provenance(traffic: Traffic) -> Provenance | None:
    """Where the results come from: as before, but for the models that drew them and who labelled them."""
    before, models = traffic.artifact.provenance, traffic.models
    if before is None:
        return None
    said = {"model_version": models[0] if len(models) == 1 else list(models)} if models else {}
    generator = before.generator
    if generator is not None:
        generator = {name: value for name, value in generator.items() if name != "model_version"} | said
    return before.model_copy(update={"n": traffic.artifact.n, "generator": generator, "labeler": _LABELER})


def _delta(artifact: CalibrationArtifact) -> str:
    """That of its certificates; the usual one where it has none."""
    return next((one.delta for one in artifact.certificates), "0.05")


def _kept(artifact: CalibrationArtifact, alpha: str) -> float:
    """How often a promise is certified to be kept over all prompts."""
    coverage = [] if artifact.policy is None else artifact.policy.coverage
    for certificate in [*artifact.certificates, *coverage]:
        if certificate.alpha == alpha:
            return certificate.shares[0].kept_at_least
    return artifact.guarantee(alpha).target_coverage  # tested on the third split


def _too_rarely(certified: Mapping[str, float], wanted: float) -> Iterator[str]:
    for alpha, kept in certified.items():
        if kept < wanted:
            yield (
                f"at alpha = {alpha} the promise is certified to be kept at least {100 * kept:.1f} % of the "
                f"time, and {100 * wanted:g} % are wanted: bring more labels, or choose a smaller alpha"
            )
