"""The notebook runs, and its stored outputs are those of a fresh run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebooks" / "quickstart.ipynb"


def read_outputs(notebook: Any) -> list[str]:
    """Return what each cell prints and shows."""
    return [
        "".join(output.get("text") or output.data["text/html"] for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


# Of ipykernel and its neighbours, in the process that asks.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.long
def test_notebook_outputs_equal_those_of_a_fresh_run(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    stored = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    fresh = NotebookClient(nbformat.from_dict(stored), timeout=300, resources=resources).execute()
    kinds = {output.output_type for cell in stored.cells for output in cell.get("outputs", ())}
    assert kinds == {"stream", "execute_result"}
    # If the change is meant: `jupyter execute --inplace examples/notebooks/quickstart.ipynb`.
    assert read_outputs(fresh) == read_outputs(stored)
