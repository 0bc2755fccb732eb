"""Drawing imports matplotlib late, never pyplot, and names the missing extra."""

from __future__ import annotations

import subprocess
import sys

from langchain_cfc_lab.report import plots

DRAWN = """
import sys
from langchain_cfc_lab.report import drawing, plots
from integrations.lab.tests.plots.inputs import HISTOGRAM
print("matplotlib" in sys.modules)
ax = plots.plot_score_histogram(HISTOGRAM)
drawing.to_svg(ax, title="scores")
print("matplotlib" in sys.modules, "matplotlib.pyplot" in sys.modules)
"""


def test_matplotlib_is_imported_on_drawing_only_and_pyplot_never() -> None:
    # pyplot keeps figures open and chooses how they are shown.
    run = subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "False"]


def test_plots_all_lists_callables_in_order() -> None:
    assert sorted(plots.__all__) == plots.__all__
    assert all(callable(getattr(plots, name)) for name in plots.__all__)
