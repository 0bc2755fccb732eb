"""The figure of stated coverage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from langchain_cfc_lab.report.plots import plot_stated_coverage

from langchain_cfc import calibrate, evaluate
from langchain_cfc.errors import (
    InputError,
)
from tests.calibration.test_adaptive import draw_world


def test_plot_stated_coverage_shows_stated_and_kept() -> None:
    artifact = calibrate(draw_world(1, 600), alpha="0.1", adaptive_alpha=True)
    method = evaluate(artifact, draw_world(6, 500)).methods["conditional"]
    ax = plot_stated_coverage(method)
    points: Any = ax.containers[0]
    shown = np.array(points.lines[0].get_xydata())
    expected = [(one.stated_coverage, one.kept_promise) for one in method.stated_levels]
    assert shown.tolist() == [list(one) for one in expected]
    with pytest.raises(InputError, match="not adaptive"):
        plot_stated_coverage(evaluate(artifact, draw_world(6, 500)).methods["marginal"])
