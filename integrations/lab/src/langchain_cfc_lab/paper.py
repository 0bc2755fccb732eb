"""The paper's tables as data, and a reproduction of its synthetic experiment to compare with them.

*The experiment.* Each seed draws 20,000 prompts with 150 candidates. The last 10,000 are the test prompts;
the first 2,000, 5,000 or 10,000 calibrate, and the first 50, 100 or 150 candidates are used, so all cells of
a seed share their randomness. This was so in the paper, too: its ablation cell at N = 10,000 and M = 50
repeats the main table to the last digit.

*The generator.* `SyntheticWorld` gives tables that agree with those of the paper's synthetic experiment.
The paper says that difficulty T lies in [0, 1], that correctness becomes rarer with it, and that scores come
"from a known difficulty-dependent distribution". It does not print the distributions. These were fitted:

    T ~ U(0, 1)
    correct_j | T ~ Bernoulli(p(T)),  p(T) = rate + slope (1 - T)
    V_j | wrong ~ U(0, 1)
    V_j | correct, T ~ U^(1 / k(T)),  k(T) = shape + growth T,  so that P(V_j <= v) = v^k(T)

Its four numbers, 0.034, 0.276, 0.686 and 0.237, were fitted to the rows of TopK and ICP in the main table,
and to nothing else. The rows of Learnt CP, CFC and CFC-PAC, and the whole ablation over calibration sizes and
numbers of candidates, are predictions.

It is not the paper's generator, and it is not unique: sets and success scores only depend on the order of
scores, so any increasing map of all scores gives the same ECR, GSC and APSS for every rule based on order
statistics. Only Learnt CP, a regression on the scores themselves, would change. So the shapes of the two
score distributions are fixed relative to each other, and a figure of thresholds against difficulty shows
them up to that map.

Source: the paper's Section "Synthetic Data" and the appendix of the same name.

*The tables.* `published.json` holds every cell of the paper's tables, digit for digit as printed: those of
the appendix, and the excerpts in the main text, which repeat them. Numbers are decimal text because the last
digit shows how they were rounded. Missing values are None: the paper states no spread in two ablations, and
no number of calibration prompts for the recorded datasets.

Two forms were changed. The methods that the main text calls CFC-P and CFC-P-F have their names of the
appendix, CFC-PAC and CFC-PAC-FULL; and the synthetic ablation's shares, printed as 0.802, are in percent.

The paper contradicts itself in one cell: the spread of Learnt CP's GSC on TriviaQA at alpha = 0.2 is 1.6 in
the full table and 1.5 in the excerpt.

*Published against reproduced.* Each published figure is a mean over five seeds: the paper does not give their
number, but TopK's mean set size of 10.80 +- 0.98 at alpha = 0.15 is that of three seeds with K = 10 and two
with K = 12, with divisor 5. So even an exact reproduction differs from it by chance. Two checks of each cell:

**How surprising is the difference?** z is the difference divided by its standard deviation, if both are means
of the same distribution. Its variance has three parts:

- the paper's mean of five seeds: s^2 / 5. s is the spread of the many reproduced seeds and not the printed
  one, which has four degrees of freedom, is sometimes 0.00, and would make every z a ratio of two noises;
- the reproduced mean of R seeds: s^2 / R;
- the rounding of the printed value, u^2 / 12 for a last digit of unit u: the variance of a uniform error on
  [-u / 2, u / 2].

The last part is never 0. Where nothing varies, as with TopK's set size, it alone is the scale: the same value
has z = 0, and a value that rounds to the printed one has |z| <= sqrt(3).

z is not exactly normal, because a mean of five seeds is not, least of all where TopK chooses between two K.

**Is it in the published band?** A reproduced mean is in band if |published - reproduced| <= printed
spread + u / 2. The half unit allows for the rounding of the mean: printed with as many digits as the paper's,
the figure lies between the two ends that a reader of the table computes. The printed spread gets no such
allowance, because it is the radius that the paper states. The band is the spread of single seeds, which is
sqrt(5) standard errors of the mean of five. It is itself estimated from five seeds, so even the authors' own
generator would have only about nine in ten cells in band (P(|t| <= 2) = 0.88 at four degrees of freedom, more
with the rounding); 105 of 120 is about that. All cells share the paper's five seeds and deviate together, so
counts of large z are not those of independent cells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, partial
from importlib.resources import files
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc_lab.compare import Summary
from langchain_cfc_lab.comparison_report import LevelComparison
from langchain_cfc_lab.methods import Method, Pool, Split, list_paper_methods
from langchain_cfc_lab.metrics import Groups, make_groups
from langchain_cfc_lab.splits import (
    Progress,
    SplitResult,
    check_seed,
    measure_methods,
    measure_splits,
)

Dataset: TypeAlias = Literal["synthetic", "triviaqa", "gsm8k", "flickr8k"]
PublishedMethod: TypeAlias = Literal["TopK", "ICP", "Learnt CP", "CFC", "CFC-FULL", "CFC-PAC", "CFC-PAC-FULL"]
_Number: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]
Table: TypeAlias = Literal["main", "ablation"]

PUBLISHED_SEEDS = 5
# Limits of |z|. Of 120 normal z's, 1.1 are expected beyond the first and 0.1 beyond the second.
Z_LIMIT, FAR_Z_LIMIT = 2.6, 3.3
# z takes the spread of the reproduced seeds for the true one, which is too noisy with fewer seeds.
MIN_SEEDS = 100

ALPHAS = ("0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4", "0.45")
SIZES = (2000, 5000, 10_000)
BUDGETS = (50, 100, 150)
TEST_SIZE = 10_000
ABLATED_ALPHA = "0.2"
FEATURES = "bins(meta(difficulty), 10)"
LEARNT_FEATURES = "meta(difficulty)^2"
# The paper's text names no K beyond 16, the largest that its tables use.
TOP_K_GRID = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50)
MAIN_SETTING = (SIZES[-1], BUDGETS[0])
# Rows of the main table to which the four numbers of the world were fitted.
FITTED_METHODS = ("TopK", "ICP")

# The figure behind each column of the tables, and the factor to the unit of the column.
METRICS = {
    "ECR": ("coverage", 100.0),
    "GSC": ("worst_group_coverage", 100.0),
    "APSS": ("mean_set_size", 1.0),
}


@dataclass(frozen=True)
class SyntheticWorld:
    """Generator of prompts with known difficulty T, on which their candidates' labels and scores depend.

    Attributes:
        rate: Probability that a candidate of the hardest prompt, T = 1, is correct; in [0, 1].
        slope: Increase of that probability for the easiest prompt, T = 0; `rate + slope` in [0, 1].
        shape: k of the scores of correct candidates at T = 0, above 0. With k < 1 they tend to be smaller
            than the scores of wrong ones.
        growth: Increase of k at T = 1; `shape + growth` above 0.

    Raises:
        InputError: If a chance is not in [0, 1], or a shape is not above 0.
    """

    rate: float = 0.034
    slope: float = 0.276
    shape: float = 0.686
    growth: float = 0.237

    def __post_init__(self) -> None:
        """Reject invalid chances and shapes; both are linear in T, so it suffices to check the ends."""
        chances = {"rate": self.rate, "rate + slope": self.rate + self.slope}
        shapes = {"shape": self.shape, "shape + growth": self.shape + self.growth}
        for name, chance in chances.items():
            if not 0.0 <= chance <= 1.0:
                msg = f"{name} is {chance}; expected a chance in [0, 1]"
                raise InputError(msg)
        for name, shape in shapes.items():
            if not 0.0 < shape < np.inf:
                msg = f"{name} is {shape}; expected a finite number above 0"
                raise InputError(msg)

    def draw(self, prompts: int, n: int, rng: np.random.Generator) -> LabelledBatch:
        """Draw labelled prompts with their candidates.

        Args:
            prompts: Number of prompts N >= 1.
            n: Number of candidates per prompt, n >= 1 (the paper's M).
            rng: Source of randomness; draws T first, then labels, then scores.

        Returns:
            N prompts with ids "0" to "N-1", metadata `{"difficulty": T}` and no answers.

        Raises:
            InputError: If a number is below 1.
        """
        if prompts < 1 or n < 1:
            msg = f"expected at least one prompt and one candidate, got {prompts} prompts and n = {n}"
            raise InputError(msg)
        difficulty = rng.random(prompts)
        correct = rng.random((prompts, n)) < self.compute_chance(difficulty)[:, None]
        scores = rng.random((prompts, n))
        # Powers take most of the time, and only the one in six candidates that are correct needs them.
        rows, slots = np.nonzero(correct)
        scores[rows, slots] **= (1.0 / self.compute_exponent(difficulty))[rows]
        metadata = tuple({"difficulty": one} for one in difficulty.tolist())
        ids = tuple(map(str, range(prompts)))
        draws = CandidateBatch(scores, None, None, metadata, {"meta(difficulty)": difficulty})
        return LabelledBatch(draws, correct, ids, (None,) * prompts, n)

    def compute_chance(self, difficulty: FloatArray) -> FloatArray:
        """Return p(T), the probability that a candidate is correct; T in [0, 1], any shape."""
        return self.rate + self.slope * (1.0 - difficulty)

    def compute_exponent(self, difficulty: FloatArray) -> FloatArray:
        """Return k(T), the exponent of the distribution of correct scores; T in [0, 1], any shape."""
        return self.shape + self.growth * difficulty


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
        """One unit of the last digit of the printed mean, which was rounded by at most half of it."""
        return float(Decimal(1).scaleb(-len(self.mean.partition(".")[2])))


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
    tables = _load_tables()
    if table not in tables:
        msg = f"no table {table!r}; expected one of {', '.join(tables)}"
        raise InputError(msg)
    return tables[table]


@cache
def _load_tables() -> dict[str, tuple[PublishedCell, ...]]:
    written = json.loads(files("langchain_cfc_lab").joinpath("published.json").read_bytes())
    tables = {}
    for table in written["tables"]:
        # Fields that a cell leaves out have the table's value.
        name, cells = table.pop("name"), table.pop("cells")
        tables[name] = tuple(PublishedCell(table=name, **{**table, **cell}) for cell in cells)
    return tables


class Cell(ReportData):
    """One number of the paper together with its reproduction.

    The other fields are as in `PublishedCell`.

    Attributes:
        table: `main`, the full sweep over alpha, or `ablation`.
        published: Mean as printed.
        published_sd: Spread over seeds as printed.
        reproduced: Mean over the reproduced seeds.
        reproduced_sd: Spread over the reproduced seeds, with divisor R as in the paper.
        z: (published - reproduced) / sqrt(reproduced_sd^2 (1 / 5 + 1 / seeds) + unit^2 / 12), see the module.
        in_band: Whether |published - reproduced| <= published_sd + unit / 2.
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


def compare_cell(published: PublishedCell, figures: FloatArray | Sequence[float]) -> Cell:
    """Compare a published cell with (R,) figures of R >= 2 reproduced seeds, in the unit of the table."""
    values = np.asarray(figures, dtype=np.float64)
    mean, sd, unit = float(values.mean()), float(values.std()), published.unit
    scale = math.sqrt(sd**2 * (1 / PUBLISHED_SEEDS + 1 / len(values)) + unit**2 / 12)
    # `Decimal` includes both ends of a band: 90.75 - 90.6 is more than 0.15 in floats.
    radius = Decimal(published.sd or 0) + Decimal(str(unit)) / 2
    same = {"method", "alpha", "metric", "dataset", "n_calibration", "n_candidates", "features"}
    return Cell(
        **published.model_dump(include=same),
        table="ablation" if published.kind == "ablation" else "main",
        published=published.value,
        published_sd=float(published.sd or 0),
        reproduced=mean,
        reproduced_sd=sd,
        z=(published.value - mean) / scale,
        in_band=abs(Decimal(published.mean) - Decimal(str(mean))) <= radius,
        seeds=len(values),
        unit=unit,
    )


# For each table the number of its cells, the fewest in the published band, and the most with |z| above each
# of the two limits; None for no limit.
TARGETS: dict[Table, tuple[int, int, int | None, int | None]] = {
    "main": (120, 105, 3, 0),
    "ablation": (36, 33, None, None),
}


class Agreement(ReportData):
    """Counts that show how well a table of the synthetic experiment was reproduced.

    Attributes:
        cells: Number of cells compared.
        in_band: Number of cells in the published band.
        beyond: Number of cells with |z| above 2.6.
        far_beyond: Number of cells with |z| above 3.3.
        passes: Whether all cells were compared and meet the target; None if there are too few seeds to tell.
        words: The counts, the target and the verdict, in words.
    """

    table: Table
    cells: int
    in_band: int
    beyond: int
    far_beyond: int
    passes: bool | None
    words: str


def count_agreement(cells: Sequence[Cell]) -> Agreement:
    """Count how many cells of one table agree, and judge the counts by the table's target."""
    table, in_band = cells[0].table, sum(cell.in_band for cell in cells)
    beyond, far = (sum(abs(cell.z) > limit for cell in cells) for limit in (Z_LIMIT, FAR_Z_LIMIT))
    expected, least, *limits = TARGETS[table]
    passes: bool | None = len(cells) == expected and in_band >= least
    passes = passes and all(
        most is None or count <= most for count, most in zip((beyond, far), limits, strict=True)
    )
    verdict = "Reached." if passes else "Not reached."
    if min(cell.seeds for cell in cells) < MIN_SEEDS:
        passes, verdict = None, f"No verdict: fewer than {MIN_SEEDS} seeds."
    allowed = ["" if most is None else f" (at most {most} allowed)" for most in limits]
    return Agreement(
        table=table,
        cells=len(cells),
        in_band=in_band,
        beyond=beyond,
        far_beyond=far,
        passes=passes,
        words=(
            f"{table}: {in_band} of {len(cells)} cells lie in the published band (target: at least {least} "
            f"of {expected}); {beyond} are further than {Z_LIMIT} standard errors of a five-seed mean from "
            f"the published value{allowed[0]}, {far} further than {FAR_Z_LIMIT}{allowed[1]}. {verdict}"
        ),
    )


class SyntheticReport(ReportData):
    """Results of the synthetic experiment, compared with the paper cell by cell.

    Attributes:
        cells: Every cell of the two tables, published and reproduced.
        agreement: How well each table was reproduced.
        fitted: Number of cells that the world was fitted to, and how many of these are in the published band.
        predicted: The same two numbers for all other cells.
        account: What was fitted, what was predicted, and what that shows.
        sweep: The main sweep with groups, for figures.
    """

    seeds: int
    cells: list[Cell]
    agreement: list[Agreement]
    fitted: tuple[int, int]
    predicted: tuple[int, int]
    account: list[str]
    sweep: list[LevelComparison]


def measure_seed(world: SyntheticWorld, seed: int, number: int) -> dict[tuple[int, int], SplitResult]:
    """Return the figures of repetition `number`, by (calibration prompts, candidates per prompt)."""
    rng = np.random.default_rng([seed, number])
    drawn = world.draw(SIZES[-1] + TEST_SIZE, BUDGETS[-1], rng)
    results = {}
    for budget in BUDGETS:
        # Keep the first candidates only, but the precomputed difficulty, which does not depend on them.
        fewer = drawn.keep_first_candidates(budget)
        draws = replace(fewer.draws, precomputed=drawn.draws.precomputed)
        pool = Pool(replace(fewer, draws=draws), measure=False)
        for size in SIZES:
            split, groups = _make_split(pool, size)
            results[size, budget] = measure_methods(split, *_list_runs((size, budget)), groups)
    return results


def reproduce_synthetic(
    seeds: int = 200,
    *,
    seed: int = 0,
    world: SyntheticWorld | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> SyntheticReport:
    """Run the synthetic experiment and compare its figures with the paper's.

    Args:
        seeds: Number of seeds, at least 2; the paper has 5.
        seed: Base seed, at least 0, from which the seeds are derived.
        world: The generator of prompts; by default the fitted one.
        jobs: Number of processes.
        progress: Function of the seeds and their number that yields the seeds, such as a progress bar.

    Returns:
        The report.

    Raises:
        InputError: If there are too few seeds.
    """
    if seeds < 2:  # noqa: PLR2004 - for a spread
        msg = f"a spread needs at least two seeds, got {seeds}"
        raise InputError(msg)
    check_seed(seed)
    world = world or SyntheticWorld()
    measured = measure_splits(partial(measure_seed, world, seed), seeds, jobs, progress)
    tables = (list_published_cells("synthetic"), list_published_cells("synthetic_ablation"))
    cells = [_compare_published(cell, measured) for table in tables for cell in table]
    in_band: dict[bool, list[bool]] = {True: [], False: []}
    for cell in cells:
        in_band[cell.table == "main" and cell.method in FITTED_METHODS].append(cell.in_band)
    fitted, predicted = ((len(several), sum(several)) for several in in_band.values())
    drawn = world.draw(SIZES[-1] + TEST_SIZE, 1, np.random.default_rng(seed))
    _, groups = _make_split(Pool(drawn, measure=False), SIZES[-1])
    summary = Summary(
        [one[MAIN_SETTING] for one in measured], list_methods(), ALPHAS, groups, (), BUDGETS[0], 0.0
    )
    return SyntheticReport(
        seeds=seeds,
        cells=cells,
        agreement=[count_agreement([cell for cell in cells if cell.table == table]) for table in TARGETS],
        fitted=fitted,
        predicted=predicted,
        account=_write_account(fitted, predicted, seeds),
        sweep=summary.build_levels(),
    )


def list_methods() -> tuple[Method, ...]:
    """Return the methods of the main table, in which CFC keeps every accepted candidate."""
    topk, _, icp, learnt, _, full, _, pac = list_paper_methods(LEARNT_FEATURES, TOP_K_GRID)
    return topk, icp, learnt, replace(full, name="CFC"), replace(pac, name="CFC-PAC")


def _list_runs(key: tuple[int, int]) -> tuple[tuple[Method, ...], tuple[str, ...]]:
    """Return the methods and levels to run for a pair (calibration prompts, candidates per prompt)."""
    return (list_methods(), ALPHAS) if key == MAIN_SETTING else (list_methods()[-2:], (ABLATED_ALPHA,))


def _make_split(pool: Pool, size: int) -> tuple[Split, Groups]:
    """Return a split with `size` calibration prompts, and ten equal-frequency bins of test difficulty."""
    calibration, test = np.arange(size), np.arange(SIZES[-1], SIZES[-1] + TEST_SIZE)
    split = Split(pool, np.empty(0, dtype=np.int64), calibration, test, FEATURES, "all")
    return split, make_groups(FEATURES, split.test_candidates, pool.draws)


def _compare_published(cell: PublishedCell, measured: Sequence[dict[tuple[int, int], SplitResult]]) -> Cell:
    key = (cell.n_calibration or SIZES[-1], cell.n_candidates or BUDGETS[0])
    methods, levels = _list_runs(key)
    run = [one.name for one in methods].index(cell.method) * len(levels) + levels.index(cell.alpha)
    name, unit = METRICS[cell.metric]
    return compare_cell(cell, unit * np.array([one[key].figures[name][run] for one in measured]))


def _write_account(fitted: tuple[int, int], predicted: tuple[int, int], seeds: int) -> list[str]:
    return [
        (
            f"Fitted: four numbers of the generator, to the {fitted[0]} cells of TopK and ICP in the main "
            f"table; {fitted[1]} of them lie in the published band."
        ),
        (
            f"Predicted: the other {predicted[0]} cells, of Learnt CP, CFC and CFC-PAC and of the whole "
            f"ablation; {predicted[1]} of them lie in the published band. No number was fitted to them, but "
            "two choices that the text leaves open, TopK's K and the constant of the slack, come from the "
            "tables."
        ),
        (
            f"The published figures are means of five seeds, these of {seeds}. Even in exactly the same "
            "world, cells would differ by chance, which z measures."
        ),
        (
            "The generator is not the authors', and it is not unique: an increasing map of all scores "
            "changes no figure but Learnt CP's. Agreement shows that this reading of the methods fits the "
            "tables, not that the data are the authors'."
        ),
    ]
