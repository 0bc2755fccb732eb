"""Published cells and figures: their data, and when a reproduced number equals them."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_lab.published import PublishedCell, compare_cell, compare_series, list_published_cells

from langchain_cfc.thresholds import format_alpha


def make_cell(mean: str = "90.3", sd: str | None = "0.5") -> PublishedCell:
    return list_published_cells("synthetic")[0].model_copy(update={"mean": mean, "sd": sd})


@pytest.mark.parametrize(
    ("mean", "spread", "matches"),
    [
        (90.26, 0.5, True),
        (90.349, 0.449, False),
        (90.2, 0.5, False),
        (90.36, 0.5, False),
        (90.3, 0.56, False),
    ],
)
def test_cell_matches_if_mean_and_spread_round_to_the_printed_digits(
    mean: float, spread: float, matches: bool
) -> None:
    found = compare_cell(make_cell(), [mean - spread, mean + spread], [1.0, 3.0])
    assert (found.matches, found.ours, found.ours_sd) == (matches, 2.0, 1.0)
    assert (found.reproduced, found.reproduced_sd) == pytest.approx((mean, spread))


def test_cell_without_a_printed_spread_compares_means_only() -> None:
    assert compare_cell(make_cell("12.30", None), [12.0, 12.6]).matches
    assert compare_cell(make_cell("12.30", None), [12.0, 12.6]).ours is None
    assert not compare_cell(make_cell("12.31", None), [12.0, 12.6]).matches


def test_series_matches_the_authors_numbers_to_their_digits() -> None:
    published = np.array([0.31532])
    assert compare_series("thresholds", "ICP", published + 4e-7).matches is True
    assert compare_series("thresholds", "ICP", published + 2e-6).matches is False
    assert compare_series("ablation", "CFC", published).matches is None


PAPER = {"TopK", "ICP", "Learnt CP", "CFC", "CFC-FULL", "CFC-PAC", "CFC-PAC-FULL"}
# Cells, methods, error levels, metrics.
SHAPES = {
    "synthetic": (120, 5, 8, 3),
    "synthetic_ablation": (36, 2, 1, 2),
    "synthetic_excerpt": (15, 5, 1, 3),
    "triviaqa": (126, 7, 6, 3),
    "triviaqa_ablation": (18, 2, 1, 3),
    "triviaqa_excerpt": (60, 5, 4, 3),
    "gsm8k": (126, 7, 6, 3),
    "gsm8k_ablation": (42, 7, 1, 3),
    "gsm8k_excerpt": (15, 5, 1, 3),
    "gsm8k_ablation_excerpt": (12, 2, 1, 3),
    "flickr8k": (63, 7, 3, 3),
    "flickr8k_ablation": (18, 2, 1, 3),
    "flickr8k_excerpt": (15, 5, 1, 3),
}

Key = tuple[str, str, str, int | None, int | None, str | None]


def get_key(cell: PublishedCell) -> Key:
    return cell.method, cell.alpha, cell.metric, cell.n_calibration, cell.n_candidates, cell.features


@pytest.mark.parametrize("table", SHAPES)
def test_published_table_is_complete_without_duplicates(table: str) -> None:
    cells = list_published_cells(table)
    methods, levels, metrics = ({getattr(c, name) for c in cells} for name in ("method", "alpha", "metric"))
    assert (len(cells), len(methods), len(levels), len(metrics)) == SHAPES[table]
    assert len({get_key(cell) for cell in cells}) == len(cells)
    assert methods <= PAPER
    settings = Counter((c.n_calibration, c.n_candidates, c.features) for c in cells)
    assert len(set(settings.values())) == 1  # as many cells in each setting
    assert {cell.table for cell in cells} == {table}
    assert {cell.dataset for cell in cells} == {table.partition("_")[0]}


@pytest.mark.parametrize("table", SHAPES)
def test_published_numbers_are_possible(table: str) -> None:
    for cell in list_published_cells(table):
        assert cell.alpha == format_alpha(cell.alpha)
        assert cell.sd is None or len(cell.sd.partition(".")[2]) == len(cell.mean.partition(".")[2])
        most = 100 if cell.metric != "APSS" else cell.n_candidates
        assert most is not None
        assert 0 < float(cell.mean) <= most
        assert cell.sd is None or 0 <= float(cell.sd) < 10
    shares = {get_key(c): float(c.mean) for c in list_published_cells(table) if c.metric != "APSS"}
    for where, value in shares.items():
        # No group is covered more than all on average.
        assert where[2] != "GSC" or value <= shares[(*where[:2], "ECR", *where[3:])]


@pytest.mark.parametrize("table", [name for name in SHAPES if name.endswith("_excerpt")])
def test_published_excerpts_repeat_the_appendix(table: str) -> None:
    whole = {get_key(cell): cell for cell in list_published_cells(table.removesuffix("_excerpt"))}
    differing = []
    for cell in list_published_cells(table):
        same = whole[get_key(cell)]
        assert cell.kind == "excerpt" != same.kind
        assert cell.mean == same.mean
        if cell.sd not in {None, same.sd}:
            differing.append((cell.method, cell.alpha, cell.metric, cell.sd, same.sd))
    # The one contradiction that the module states.
    stated = [("Learnt CP", "0.2", "GSC", "1.5", "1.6")] if table == "triviaqa_excerpt" else []
    assert differing == stated


REPOSITORY = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def table() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads((REPOSITORY / "docs" / "paper_statements.json").read_bytes())
    return rows


def test_paper_statements_name_existing_code_and_tests(table: list[dict[str, str]]) -> None:
    for statement, published, verdict, code, test in map(dict.values, table):
        assert published, statement
        assert not code or (REPOSITORY / code).is_file(), statement
        assert bool(code) == bool(test), statement
        assert verdict, statement
        if test:
            path, _, name = test.partition("::")
            tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
            assert name in {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}, test


def test_reproduction_page_contains_the_table_of_statements(table: list[dict[str, str]]) -> None:
    page = (REPOSITORY / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for row in table:
        assert f"| {row['statement']} | {row['published']} | {row['verdict']} |" in page
