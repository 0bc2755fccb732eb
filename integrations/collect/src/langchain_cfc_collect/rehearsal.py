"""`rehearse_calibration`: find configuration errors before paying for candidates and labels.

The prompts, their metadata, their split and the options are known before anything is drawn. So calibration
runs on made-up candidates: with random scores and answers, all correct, which is the best case for a target.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from langchain_cfc.calibration import CalibrationConfig, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.records import Example, Provenance
from langchain_cfc.support.imports import check_installed
from langchain_cfc.support.text import pluralize
from langchain_cfc.support.units import UNITS

_ANSWERS = ("a", "bb", "ccc")
_MOST_CLAIMS = 6


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
    made_up, plan = _make_up_candidates(prompts, provenance), config.plan_split()
    if config.test_fraction > 0 and len(plan.list_rows(made_up)["test"]) == 0:
        msg = (
            f"test_fraction = {config.test_fraction:g} of {len(prompts)} prompts leaves none to evaluate on: "
            "raise it, or add more prompts"
        )
        raise InputError(msg)
    if not metadata_known:
        known = [term.text for term in config.feature_map.terms if not term.metadata_keys]
        config = replace(config, features=" + ".join(known) or "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            calibrate(made_up, provenance=provenance, **config.to_arguments())
        except CalibrationError as error:  # nothing is labelled yet, so an argument is at fault
            reason, _, is_tested = str(error).partition("\nThis was test")
            larger = ", or allow more" if "allow more" in is_tested else ""
            advice = f"\n{pluralize(len(prompts), 'prompt')} cannot suffice: add some{larger}"
            raise InputError(reason + (advice if is_tested else "")) from error


def _make_up_candidates(prompts: Sequence[Example], provenance: Provenance) -> LabelledBatch:
    """Return the prompts with candidates, or with an answer of some claims, that are all correct."""
    rng = np.random.default_rng(0)
    is_fixed_count = UNITS[provenance.unit or "answers"].is_fixed_count
    counts = [provenance.n if is_fixed_count else int(rng.integers(1, _MOST_CLAIMS)) for _ in prompts]
    answers = [rng.choice(_ANSWERS, count).tolist() for count in counts] if is_fixed_count else None
    return LabelledBatch.from_arrays(
        [one.id for one in prompts],
        [rng.random(count).tolist() for count in counts],
        [[True] * count for count in counts],
        answers,
        clusters=[one.cluster for one in prompts],
        metadata=[one.metadata for one in prompts],
        extracted=provenance.answer is not None,
    )
