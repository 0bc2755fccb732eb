"""Published against reproduced, cell by cell.

What is published is a mean over five seeds: the paper does not give their number, but TopK's mean set size of
10.80 +- 0.98 at alpha = 0.15 is that of three seeds with K = 10 and two with K = 12, with divisor 5. So even
an exact reproduction differs from it, by the chance of five seeds. Two questions are asked of each cell.

**How surprising is the difference?** z is the difference over its standard deviation if both are means of the
same law. That has three parts:

- the paper's mean of five seeds: s^2 / 5. s is the spread of the many reproduced seeds and not the printed
  one, for that has four degrees of freedom, happens to be 0.00, and would make every z a ratio of two noises;
- the reproduced mean of R seeds: s^2 / R;
- the rounding of the print, u^2 / 12 for a last digit of unit u: the variance of a uniform error on
  [-u / 2, u / 2].

The last never is 0. Where nothing varies, as with TopK's set size, it alone is the scale: the same value has
z = 0, and a value that rounds to the print has |z| <= sqrt(3).

z is not exactly normal, for a mean of five seeds is not, least of all where TopK chooses between two K.

**Is it in the published band?** A reproduced mean is in band if |published - reproduced| <= printed
spread + u / 2. The half unit is for the rounding of the mean: printed with as many digits as the paper's,
the figure lies between the two ends that a reader of the table computes. The printed spread has no such
allowance: it is the radius that the paper states, and to widen what one is measured against asks for a
reason. The band is the spread of single seeds, sqrt(5) standard errors of the mean of five. It is
estimated from five seeds itself, so that the authors' own generator would have some nine cells in ten in
band (P(|t| <= 2) = 0.88 at four degrees of freedom, more with the rounding), and 105 of 120 is about
that. All cells share the paper's five seeds and deviate together: counts of z are not those of
independent cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, computed_field

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import InputError
from langchain_cfc.paper.published import Dataset, PublishedCell

Table: TypeAlias = Literal["main", "ablation"]

PUBLISHED_SEEDS = 5
# Of 120 normal z's, 1.1 are expected beyond the first and 0.1 beyond the second.
BEYOND, FAR_BEYOND = 2.6, 3.3
# z takes the spread of the reproduced seeds for that of the law; of a few seeds it is another noise.
FEWEST_SEEDS = 100


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Cell(_Data):
    """One number of the paper beside the same one reproduced.

    Attributes:
        table: `main`, the full sweep over alpha, or `ablation`.
        method: The method, by the names of the paper's appendix.
        alpha: Error level as canonical decimal text.
        metric: `ECR` and `GSC`, in percent, or `APSS`.
        published: As printed.
        published_sd: Spread over seeds as printed.
        reproduced: Mean over the reproduced seeds.
        reproduced_sd: Spread over them, with divisor R as in the paper.
        z: (published - reproduced) / sqrt(reproduced_sd^2 (1 / 5 + 1 / seeds) + unit^2 / 12), see the module.
        in_band: Whether |published - reproduced| <= published_sd + unit / 2.
        dataset: What the prompts are.
        n_calibration: Number of calibration prompts; None where the paper does not say.
        n_candidates: Number of candidates per prompt.
        features: What the paper's thresholds are made of, in words.
        seeds: Number R of reproduced seeds.
        unit: One unit of the last digit printed.
    """

    table: Table
    method: str
    alpha: str
    metric: str
    published: float
    published_sd: float
    reproduced: float
    reproduced_sd: float
    z: float
    in_band: bool
    dataset: Dataset
    n_calibration: int | None
    n_candidates: int | None
    features: str | None
    seeds: int
    unit: float


def compared(published: PublishedCell, figures: FloatArray | Sequence[float]) -> Cell:
    """Compare one cell.

    Args:
        published: A cell of a full sweep or an ablation, with its spread.
        figures: (R,) the same figure for R >= 2 seeds, in percent for ECR and GSC.

    Returns:
        Both, and how far they are apart.

    Raises:
        InputError: If the paper prints no spread, the cell is an excerpt, or the figures cannot be used.

    >>> from langchain_cfc.paper.published import published_cells
    >>> cell = compared(published_cells("synthetic")[0], [90.3, 90.9, 90.6])
    >>> round(cell.z, 6), cell.in_band
    (0.0, True)
    """
    if published.kind == "excerpt" or published.spread is None:
        msg = (
            f"{published.table} has no cell to compare with: expected a full sweep or an ablation, which "
            "excerpts repeat, with a printed spread"
        )
        raise InputError(msg)
    values = np.asarray(figures, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():  # noqa: PLR2004 - for a spread
        msg = f"figures must be finite numbers of at least two seeds, got an array of shape {values.shape}"
        raise InputError(msg)
    mean, sd, unit = float(values.mean()), float(values.std()), published.unit
    scale = math.sqrt(sd**2 * (1 / PUBLISHED_SEEDS + 1 / len(values)) + unit**2 / 12)
    return Cell(
        table=published.kind,
        method=published.method,
        alpha=published.alpha,
        metric=published.metric,
        published=published.value,
        published_sd=published.spread,
        reproduced=mean,
        reproduced_sd=sd,
        z=(published.value - mean) / scale,
        in_band=_in_band(mean, published),
        dataset=published.dataset,
        n_calibration=published.n_calibration,
        n_candidates=published.n_candidates,
        features=published.features,
        seeds=len(values),
        unit=unit,
    )


class Target(_Data):
    """What a reproduction of a table is held to.

    Attributes:
        cells: Number of cells that the table has.
        in_band: Fewest of them in the published band.
        beyond: Most of them with |z| above 2.6; None where none is set.
        far_beyond: Most of them with |z| above 3.3; None where none is set.
    """

    cells: int
    in_band: int
    beyond: int | None = None
    far_beyond: int | None = None


TARGETS: dict[Table, Target] = {
    "main": Target(cells=120, in_band=105, beyond=3, far_beyond=0),
    "ablation": Target(cells=36, in_band=33),
}


class Agreement(_Data):
    """How well a table of the synthetic experiment was reproduced.

    Attributes:
        table: Which one.
        cells: Number of cells compared.
        in_band: Number of them in the published band.
        beyond: Number of them with |z| above 2.6.
        far_beyond: Number of them with |z| above 3.3.
        seeds: Number of reproduced seeds.
        target: What was to be reached.
        passes: Whether it was, by all cells of the table; None where the seeds are too few to tell.
        words: The same in a sentence.
    """

    table: Table
    cells: int
    in_band: int
    beyond: int
    far_beyond: int
    seeds: int
    target: Target

    @computed_field  # type: ignore[prop-decorator] # mypy knows no decorated properties
    @property
    def passes(self) -> bool | None:
        """Whether the target is reached; by fewer cells than the table has it never is."""
        if self.seeds < FEWEST_SEEDS:
            return None
        target = self.target
        return (
            self.cells == target.cells
            and self.in_band >= target.in_band
            and _within(self.beyond, target.beyond)
            and _within(self.far_beyond, target.far_beyond)
        )

    @computed_field  # type: ignore[prop-decorator] # as above
    @property
    def words(self) -> str:
        """What was counted, and what was to be reached."""
        target = self.target
        return (
            f"{self.table}: {self.in_band} of {self.cells} cells lie in the published band (at least "
            f"{target.in_band} of {target.cells} are to); {self.beyond} are further than {BEYOND} standard "
            f"errors of a five-seed mean from the published value{_most(target.beyond)}, {self.far_beyond} "
            f"further than {FAR_BEYOND}{_most(target.far_beyond)}. "
            f"{self._verdict}"
        )

    @property
    def _verdict(self) -> str:
        if self.passes is None:
            return f"No verdict: fewer than {FEWEST_SEEDS} seeds."
        return "Reached." if self.passes else "Not reached."


def agreement(cells: Sequence[Cell]) -> Agreement:
    """Count the cells of one table of the synthetic experiment.

    Args:
        cells: Different cells of one table.

    Returns:
        The counts beside the target of that table.

    Raises:
        InputError: If there are no cells, they are of several tables or of another dataset, or one comes
            twice.
    """
    if {cell.dataset for cell in cells} != {"synthetic"} or len({cell.table for cell in cells}) != 1:
        msg = "expected cells of one table of the synthetic experiment, the one that has targets"
        raise InputError(msg)
    keys = {(cell.method, cell.alpha, cell.metric, cell.n_calibration, cell.n_candidates) for cell in cells}
    if len(keys) < len(cells):
        msg = f"{len(cells)} cells, of which {len(keys)} differ; expected each once"
        raise InputError(msg)
    table = cells[0].table
    return Agreement(
        table=table,
        cells=len(cells),
        in_band=sum(cell.in_band for cell in cells),
        beyond=sum(abs(cell.z) > BEYOND for cell in cells),
        far_beyond=sum(abs(cell.z) > FAR_BEYOND for cell in cells),
        seeds=min(cell.seeds for cell in cells),
        target=TARGETS[table],
    )


def _in_band(mean: float, published: PublishedCell) -> bool:
    # In decimals, so that both ends of a band are in it: 90.75 - 90.6 is more than 0.15 in floats.
    radius = Decimal(published.sd or 0) + Decimal(str(published.unit)) / 2
    return abs(Decimal(published.mean) - Decimal(str(mean))) <= radius


def _within(number: int, most: int | None) -> bool:
    return most is None or number <= most


def _most(number: int | None) -> str:
    return "" if number is None else f" (at most {number} may be)"
