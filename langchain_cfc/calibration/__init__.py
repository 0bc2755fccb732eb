"""Calibration: from labelled records to an artifact, honest about what the records allow."""

from __future__ import annotations

from langchain_cfc.calibration.calibrate import calibrate
from langchain_cfc.calibration.recipe import recipe

__all__ = ["calibrate", "recipe"]
