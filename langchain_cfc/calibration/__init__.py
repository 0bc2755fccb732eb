"""Calibration: from labelled records to an artifact, honest about what the records allow."""

from __future__ import annotations

from langchain_cfc.calibration.calibrate import calibrate
from langchain_cfc.calibration.config import CalibrationConfig

__all__ = ["CalibrationConfig", "calibrate"]
