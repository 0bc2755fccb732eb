"""The notebooks run, and their stored outputs are those of a fresh run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def run(notebook: Any, folder: Path) -> Any:
    from nbclient import NotebookClient

    return NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()


def read_outputs(notebook: Any) -> list[str]:
    """Return what each cell prints; progress bars differ between runs and are left out."""
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_notebooks_are_quickstart_and_your_own_data() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["quickstart", "your_own_data"]


# Of ipykernel and its neighbours, in the process that asks.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
# The steps of the second one are those of docs/your-own-data.md, which the quick tests run.
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_outputs_equal_those_of_a_fresh_run(path: Path, tmp_path: Path) -> None:
    import nbformat

    stored = nbformat.read(path, as_version=4)
    (tmp_path / "notebooks").mkdir()
    shutil.copytree(ROOT / "examples" / "eval_dataset", tmp_path / "eval_dataset")
    fresh = run(nbformat.from_dict(stored), tmp_path / "notebooks")
    assert {output.output_type for cell in stored.cells for output in cell.get("outputs", ())} == {"stream"}
    # If the change is meant: `jupyter execute --inplace examples/notebooks/*.ipynb`.
    assert read_outputs(fresh) == read_outputs(stored)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.long
def test_control_failing_notebook_cell_fails_the_run(tmp_path: Path) -> None:
    import nbformat
    from nbclient.exceptions import CellExecutionError

    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run(broken, tmp_path)
