"""Every notebook runs from top to bottom, and stands in the repository with its outputs."""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

SHORT = {
    "tour": """
STEPS, EARLY, SEEDS = 2, 2, (0, 1)
MORE = ["study.underpowered=true", "study.pilot=true", "preflight=false"]
"""
}
"""What the cell tagged `parameters` becomes in the test: the tour trains."""
FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def figures(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelManager]:
    """One for all notebooks, because its imports take longer than most of them."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(FOLDER))
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_committed_as_a_run_from_top_to_bottom_left_it(file):
    notebook = nbformat.read(file, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert figures(notebook)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_draws_as_many_figures_as_it_shows(file, kernel):
    shown = nbformat.read(file, as_version=4)
    fresh = nbformat.read(file, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source = SHORT[file.stem]
    # only the imported modules stay for the next one
    fresh.cells.append(nbformat.v4.new_code_cell(f"import os\nos.chdir({str(FOLDER)!r})\n%reset -f"))
    NotebookClient(fresh, km=kernel, timeout=120, resources={"metadata": {"path": str(FOLDER)}}).execute()
    assert figures(fresh) == figures(shown)
