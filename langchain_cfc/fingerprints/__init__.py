"""Fingerprints: whether the parts that serve are the parts that were calibrated.

A fingerprint is a flat mapping such as `{"id": "my-judge", "model": "gpt-4o-mini", "temperature": 0.7}`.
A chat model states every sampling parameter that is known here, `null` where it is unset, so that a parameter
that appears or disappears is a stated difference and not a gap. Everything else that it was given beyond its
defaults stands under `settings`. What cannot be described, such as a function in a chain, is listed under
`unnamed`.

Two fingerprints that state a difference are refused. They match if neither side leaves anything unstated;
all else is unverified. An `id` that the user gives vouches for what cannot be described. `model_version`, the
name that a served model reports, may drift and only warns.
"""

from __future__ import annotations

from langchain_cfc.fingerprints.comparison import Fingerprint, Match, compare_fingerprints, explain_doubt
from langchain_cfc.fingerprints.models import SAMPLING_PARAMETERS, state_settings
from langchain_cfc.fingerprints.parts import fingerprint, is_identified

__all__ = [
    "SAMPLING_PARAMETERS",
    "Fingerprint",
    "Match",
    "compare_fingerprints",
    "explain_doubt",
    "fingerprint",
    "is_identified",
    "state_settings",
]
