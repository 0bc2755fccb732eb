"""The paper's tables as data, digit for digit as printed.

`published.json` holds every cell of its tables: those of the appendix, and the excerpts in the main text,
which repeat them. Numbers are decimal text, for their last digit says how far they were rounded. What the
tables leave open is None: the paper states no spread in two ablations, and no number of calibration prompts
for the recorded datasets.

Carried over with two changes of form. The methods of the main text that are called CFC-P and CFC-P-F go by
the names of the appendix, CFC-PAC and CFC-PAC-FULL; and the shares of the synthetic ablation, printed as
0.802, are in percent like all others.

The paper contradicts itself in one cell: the spread of Learnt CP's GSC on TriviaQA at alpha = 0.2 is 1.6 in
the full table and 1.5 in the excerpt.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from langchain_cfc.errors import InputError
from langchain_cfc.thresholds import alpha_text

Dataset: TypeAlias = Literal["synthetic", "triviaqa", "gsm8k", "flickr8k"]
Kind: TypeAlias = Literal["main", "ablation", "excerpt"]
Method: TypeAlias = Literal["TopK", "ICP", "Learnt CP", "CFC", "CFC-FULL", "CFC-PAC", "CFC-PAC-FULL"]
Metric: TypeAlias = Literal["ECR", "GSC", "APSS"]
_Number: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Cell(_Data):
    """A cell as the file holds it; what it leaves out, its table says."""

    method: Method
    alpha: str
    metric: Metric
    mean: _Number
    sd: _Number | None
    n_calibration: int | None = None
    n_candidates: int | None = None
    features: str | None = None

    @field_validator("alpha")
    @classmethod
    def _is_canonical(cls, value: str) -> str:
        if value != alpha_text(value):
            msg = f"expected alpha in canonical form, {alpha_text(value)!r}, got {value!r}"
            raise ValueError(msg)
        return value

    @field_validator("sd")
    @classmethod
    def _has_the_same_digits(cls, value: str | None, info: ValidationInfo) -> str | None:
        mean = str(info.data.get("mean", ""))
        if value is not None and _exponent(value) != _exponent(mean):
            msg = f"expected a spread of as many decimals as the mean {mean}, got {value}"
            raise ValueError(msg)
        return value


class _Table(_Data):
    name: str
    kind: Kind
    label: str
    dataset: Dataset
    n_calibration: int | None = None
    n_candidates: int | None = None
    features: str | None = None
    cells: tuple[_Cell, ...]

    def published(self) -> tuple[PublishedCell, ...]:
        """Its cells, each with what the table says for all."""
        shared = {"table": self.name, **self.model_dump(exclude={"name", "cells"}, exclude_none=True)}
        return tuple(
            PublishedCell(**{**shared, **cell.model_dump(exclude={"sd"}, exclude_none=True), "sd": cell.sd})
            for cell in self.cells
        )


class _File(_Data):
    source: str
    tables: tuple[_Table, ...]


class PublishedCell(_Cell):
    """One number of the paper.

    Attributes:
        table: Name of the table, see `published_tables`.
        kind: `main` for a dataset's full sweep over alpha, `ablation`, or `excerpt` for one of the main text
            that repeats cells of another.
        label: The table's label in the paper's source.
        dataset: What the prompts are.
        method: The method, by the appendix's names.
        alpha: Error level as canonical decimal text.
        metric: `ECR`, the share of test prompts with a correct candidate in their set, in percent; `GSC`, the
            smallest such share of a group, in percent; or `APSS`, the mean number of candidates in a set.
        mean: As printed.
        sd: Spread over the seeds as printed; None where there is none.
        n_calibration: Number of calibration prompts; None where the paper does not say.
        n_candidates: Number of candidates per prompt; for TriviaQA and Flickr8k the largest.
        features: What the thresholds of the CFC methods are made of, in words.
    """

    table: str
    kind: Kind
    label: str
    dataset: Dataset

    @property
    def value(self) -> float:
        """The mean as a number."""
        return float(self.mean)

    @property
    def spread(self) -> float | None:
        """The standard deviation as a number."""
        return None if self.sd is None else float(self.sd)

    @property
    def unit(self) -> float:
        """One unit of the last digit printed: the mean was rounded by at most half of it."""
        return float(Decimal(1).scaleb(_exponent(self.mean)))


def published_tables() -> tuple[str, ...]:
    """The names of all tables.

    >>> published_tables()[:4]
    ('synthetic', 'synthetic_ablation', 'synthetic_excerpt', 'triviaqa')
    """
    return tuple(_by_name())


def published_cells(table: str) -> tuple[PublishedCell, ...]:
    """The cells of one of the paper's tables, in its order.

    Args:
        table: A name out of `published_tables`.

    Returns:
        At least one cell.

    Raises:
        InputError: If there is no such table.

    >>> cell = published_cells("synthetic")[0]
    >>> cell.method, cell.alpha, cell.metric, cell.mean, cell.sd
    ('TopK', '0.1', 'ECR', '90.6', '0.1')
    """
    tables = _by_name()
    if table not in tables:
        msg = f"no table {table!r}; expected one of {', '.join(tables)}"
        raise InputError(msg)
    return tables[table]


@cache
def _by_name() -> dict[str, tuple[PublishedCell, ...]]:
    written = files("langchain_cfc.paper").joinpath("published.json").read_bytes()
    return {table.name: table.published() for table in _File.model_validate_json(written).tables}


def _exponent(number: str) -> int:
    """The power of ten of its last digit."""
    return -len(number.partition(".")[2])
