"""`rehearse_calibration`: find configuration errors before paying for candidates and labels.

The prompts, their metadata, their split and the options are known before anything is drawn. So calibration's
checks of these run on made-up candidates: equal answers, all correct, which is the best case for a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from langchain_cfc.calibration.checks import compute_smallest_alpha, compute_smallest_size, is_attainable
from langchain_cfc.calibration.config import CUTS_NEED, CalibrationConfig
from langchain_cfc.calibration.fit import (
    fit_feature_map,
    read_prompts,
    require_fit_split,
    select_independent,
    split_prompts,
    take_parts,
)
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import LARGEST_SIZE, required_size
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.records import Example, Provenance
from langchain_cfc.records.splits import Part
from langchain_cfc.support.files import read_creation_time
from langchain_cfc.support.imports import check_installed
from langchain_cfc.support.units import UNITS


def rehearse_calibration(
    config: CalibrationConfig,
    prompts: Sequence[Example],
    provenance: Provenance,
    *,
    metadata_known: bool = True,
) -> None:
    """Refuse a calibration that would fail for any candidates and labels of these prompts.

    Args:
        config: The options.
        prompts: N prompts, before anything is drawn for them.
        provenance: The provenance that their records will have.
        metadata_known: Whether their metadata is complete; False if a function will add to it.

    Raises:
        InputError: If options conflict with each other or with the prompts: an unsuitable draw rule, an empty
            part of the split, a target or rate out of reach.
        FeatureError: If the feature text is wrong, or the metadata of a prompt does not suit it.
        MissingExtraError: If SciPy is not installed.
    """
    config.check()
    check_installed({"scipy": "calibrate"}, "a calibration with its evaluation")
    read_creation_time()
    given = config.feature_map
    made_up, plan = _make_placeholder_candidates(prompts, provenance), config.plan_split()
    try:
        rehearsed = read_prompts(made_up, config, provenance)
        parts = split_prompts(rehearsed, plan)
        _check_fit_and_test_parts(config, parts, given)
        calibration = select_independent(parts["calibration"], plan, "calibration")
    except CalibrationError as error:  # nothing is labelled yet, so an argument is at fault
        raise InputError(str(error)) from error
    _check_features(rehearsed, parts["fit"], calibration, given, metadata_known=metadata_known)
    if config.alphas:
        _check_target(config, len(calibration))
    if config.wrong_rates:
        both = take_parts(rehearsed, plan, "fit", "calibration")
        certifying = calibration if config.wrong_rate_groups or config.certifies_claims else both
        _check_wrong_rate(config, len(plan.select_one_per_cluster(certifying)))


def _make_placeholder_candidates(prompts: Sequence[Example], provenance: Provenance) -> LabelledBatch:
    """Return the prompts with made-up candidates that all give one answer, or with one claim; all correct."""
    ids, clusters = [one.id for one in prompts], [one.cluster for one in prompts]
    metadata = [one.metadata for one in prompts]
    is_fixed_count = UNITS[provenance.unit or "answers"].is_fixed_count
    n = provenance.n if is_fixed_count else 1
    scores, labels = [[0.0] * n for _ in ids], [[True] * n for _ in ids]
    answers = [[""] * n for _ in ids] if is_fixed_count else None
    return LabelledBatch.from_arrays(ids, scores, labels, answers, clusters=clusters, metadata=metadata)


def _check_fit_and_test_parts(
    config: CalibrationConfig, parts: Mapping[Part, LabelledBatch], given: FeatureMap
) -> None:
    """Refuse a split without prompts to fit on or to evaluate on, if these are needed."""
    needs = {
        "adaptive levels are fitted on": config.is_adaptive and config.given_levels is None,
        f"features {given.text!r} must be fitted on": given.needs_fit and not given.fitted,
        CUTS_NEED: config.certifies_claims,
    }
    for what, needed in needs.items():
        if needed:
            require_fit_split(parts["fit"], what)
    if config.test_fraction > 0 and len(parts["test"]) == 0:
        msg = (
            f"test_fraction = {config.test_fraction:g} of {sum(map(len, parts.values()))} prompts leaves "
            "none to evaluate on: raise it, or add more prompts"
        )
        raise InputError(msg)


def _check_features(
    labelled: LabelledBatch,
    fit_split: LabelledBatch,
    calibration: LabelledBatch,
    given: FeatureMap,
    *,
    metadata_known: bool,
) -> None:
    """Refuse features that need metadata the prompts lack, or statistics that claims lack."""
    statistics = [one for term in given.terms for one in term.statistics]
    with name_records_in_errors(labelled.ids):
        for statistic in statistics:
            if statistic.key is None or metadata_known:
                statistic.compute_values(labelled.draws)
    if not metadata_known:
        return
    # Terms of scores or answers cannot be fitted to made-up candidates.
    terms = tuple(one for one in given.terms if all(part.key is not None for part in one.statistics))
    known = replace(given, terms=terms, adaptive_alpha=None)
    fitted = fit_feature_map(known, fit_split, calibration)
    with name_records_in_errors(calibration.ids):
        fitted.transform(calibration.draws)
    with name_records_in_errors(labelled.ids):
        fitted.transform(labelled.draws, allow_unknown=True)


def _check_target(config: CalibrationConfig, size: int) -> None:
    """Refuse a level that `size` calibration prompts cannot reach, even if all of them are covered."""
    alpha = config.alphas[0]
    # Adaptive levels are chosen later.
    allowed = config.is_adaptive or config.allow_unattainable
    if allowed or is_attainable(alpha, size, size):
        return
    msg = (
        f"alpha = {alpha} is out of reach: it needs at least {compute_smallest_size(alpha, 1)} questions to "
        f"calibrate on, and there are {size} besides those held out. Add questions, or allow more: "
        f"alpha={compute_smallest_alpha(size, size):g}"
    )
    raise InputError(msg)


def _check_wrong_rate(config: CalibrationConfig, size: int) -> None:
    """Refuse wrong-answer rates if `size` prompts can certify none of them, even without a wrong answer."""
    rate = config.wrong_rates[-1]
    least = required_size(0.0, Fraction(rate), config.first_level)
    if least is None or least > size:
        msg = (
            f"max_wrong_rate = {rate} needs {least or f'more than {LARGEST_SIZE:,}'} questions even if no "
            f"answer is wrong, and there are {size}"
            f"{' besides those held out' if config.test_fraction > 0 else ''}. Add questions"
            f"{', lower test_fraction' if config.test_fraction > 0 else ''}, or choose a larger rate"
        )
        raise InputError(msg)
