"""The paper's tables and figures as data, and a published cell beside what a run gives.

`published.json` holds every cell of the paper's tables, digit for digit as printed: those of the appendix,
and the excerpts in the main text, which repeat them. Numbers are decimal text because the last digit shows
how they were rounded. Missing values are None: the paper states no spread in two ablations, and no number of
calibration prompts for the recorded datasets. The numbers behind the figures are those of the authors' file
of expected results (github.com/FlynnYe/CFC-LLMs, `expected/paper_results.json` at commit 2fc0be6).

Two forms were changed. The methods that the main text calls CFC-P and CFC-P-F have their names of the
appendix, CFC-PAC and CFC-PAC-FULL; and the synthetic ablation's shares, printed as 0.802, are in percent.

The paper contradicts itself in one cell: the spread of Learnt CP's GSC on TriviaQA at alpha = 0.2 is 1.6 in
the full table and 1.5 in the excerpt. In another it contradicts its authors' file, which `cause` says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field

from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.support.arrays import FloatArray

Dataset: TypeAlias = Literal["synthetic", "triviaqa", "gsm8k", "flickr8k"]
PublishedMethod: TypeAlias = Literal["TopK", "ICP", "Learnt CP", "CFC", "CFC-FULL", "CFC-PAC", "CFC-PAC-FULL"]
_Number: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]

# The figure behind each column of the tables, and the factor to the unit of the column.
METRICS = {
    "ECR": ("coverage", 100.0),
    "GSC": ("worst_group_coverage", 100.0),
    "APSS": ("mean_set_size", 1.0),
}


class PublishedCell(ReportData, strict=True):
    """One number of the paper's tables, as printed.

    Attributes:
        table: Name of the table.
        kind: `main` for a dataset's full sweep over alpha, `ablation`, or `excerpt` for a table of the main
            text that repeats cells of another.
        label: The table's label in the paper's source.
        dataset: The dataset of the prompts.
        method: The method, by its name in the appendix.
        alpha: Error level as canonical decimal text.
        metric: `ECR`, the share of test prompts with a correct candidate in their set, in percent; `GSC`, the
            smallest such share of a group, in percent; or `APSS`, the mean number of candidates in a set.
        mean: Mean over the seeds as printed.
        sd: Spread over the seeds as printed; None if none is printed.
        n_calibration: Number of calibration prompts; None if the paper does not state it.
        n_candidates: Number of candidates per prompt; for TriviaQA and Flickr8k the largest.
        features: Features of the CFC methods' thresholds, in words.
        cause: Why the printed cell is not what the authors' code gives; None if it is, or if it is not known.
    """

    method: PublishedMethod
    alpha: str
    metric: Literal["ECR", "GSC", "APSS"]
    mean: _Number
    sd: _Number | None
    n_calibration: int | None = None
    n_candidates: int | None = None
    features: str | None = None
    table: str
    kind: Literal["main", "ablation", "excerpt"]
    label: str
    dataset: Dataset
    cause: str | None = None

    @property
    def decimals(self) -> int:
        """Number of printed decimals."""
        return len(self.mean.partition(".")[2])


class Cell(PublishedCell, strict=True):
    """One number of the paper beside what the authors' conventions give, and ours.

    Attributes:
        reproduced: Mean over the seeds with the authors' conventions.
        reproduced_sd: Spread over the seeds, with their number as divisor as in the paper.
        ours: Mean over the same seeds with our exact conventions; None if no method of ours corresponds.
        ours_sd: Its spread.
        matches: Whether the mean, and the spread if one is printed, round to the printed digits.
    """

    reproduced: float
    reproduced_sd: float
    ours: float | None
    ours_sd: float | None
    matches: bool


def compare_cell(
    published: PublishedCell, figures: Sequence[float], ours: Sequence[float] | None = None
) -> Cell:
    """Compare a published cell with one figure per seed, in the unit of the table."""
    mean, sd = _summarise(figures)
    places = published.decimals
    return Cell(
        **published.model_dump(),
        reproduced=mean,
        reproduced_sd=sd,
        ours=None if ours is None else _summarise(ours)[0],
        ours_sd=None if ours is None else _summarise(ours)[1],
        matches=f"{mean:.{places}f}" == published.mean
        and (published.sd is None or f"{sd:.{places}f}" == published.sd),
    )


def _summarise(figures: Sequence[float]) -> tuple[float, float]:
    values = np.asarray(figures, dtype=np.float64)
    return float(values.mean()), float(values.std())


class FigureSeries(ReportData):
    """Numbers behind one of the paper's figures beside what the authors' conventions give.

    Attributes:
        figure: What the figure shows.
        series: The method, or what the numbers are.
        published: The numbers of the authors' file; None if it does not hold them.
        reproduced: The same numbers with the authors' conventions.
        ours: The same numbers with ours; None if there are none.
        matches: Whether each reproduced number equals the published one to the digits given here; None
            without a published one.
    """

    figure: str
    series: str
    published: list[float] | None
    reproduced: list[float]
    ours: list[float] | None
    matches: bool | None


def compare_series(
    figure: str, series: str, reproduced: FloatArray, ours: FloatArray | None = None
) -> FigureSeries:
    """Compare the numbers behind a figure with those of the authors' file, which has at most six decimals."""
    published = _load()["figures"].get(figure, {}).get(series)
    return FigureSeries(
        figure=figure,
        series=series,
        published=published,
        reproduced=reproduced.tolist(),
        ours=None if ours is None else ours.tolist(),
        matches=None if published is None else bool(np.abs(reproduced - published).max() <= 5e-7),  # noqa: PLR2004
    )


def list_published_cells(table: str) -> tuple[PublishedCell, ...]:
    """Return the cells of one of the paper's tables, in the order of the table.

    Args:
        table: Name of the table, such as `synthetic` or `triviaqa`.

    Returns:
        At least one cell.

    Raises:
        InputError: If there is no such table.

    Examples:
        >>> cell = list_published_cells("synthetic")[0]
        >>> cell.method, cell.alpha, cell.metric, cell.mean, cell.sd
        ('TopK', '0.1', 'ECR', '90.6', '0.1')
    """
    tables = _load()["tables"]
    if table not in tables:
        msg = f"no table {table!r}; expected one of {', '.join(tables)}"
        raise InputError(msg)
    cells: tuple[PublishedCell, ...] = tables[table]
    return cells


@cache
def _load() -> dict[str, Any]:
    written = json.loads(files("langchain_cfc_lab").joinpath("published.json").read_bytes())
    tables = {}
    for table in written["tables"]:
        # Fields that a cell leaves out have the table's value.
        name, cells = table.pop("name"), table.pop("cells")
        tables[name] = tuple(PublishedCell(table=name, **{**table, **cell}) for cell in cells)
    return {"tables": tables, "figures": written["figures"]}
