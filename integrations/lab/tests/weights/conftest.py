"""Fixtures of the core's tests of weights."""

from __future__ import annotations

from tests.calibration.test_weights import table, weighted

__all__ = ["table", "weighted"]
