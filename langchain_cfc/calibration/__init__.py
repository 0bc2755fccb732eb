"""Calibration: build an artifact from labelled records, and refuse targets that they cannot support."""

from __future__ import annotations

from langchain_cfc.calibration.calibrate import calibrate
from langchain_cfc.calibration.config import CalibrationConfig

__all__ = ["CalibrationConfig", "calibrate"]
