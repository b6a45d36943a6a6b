"""The notebooks run from top to bottom, and say what they promise."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the kernel's machinery
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "notebooks")}})
    with client.setup_kernel(env=dict(os.environ)):
        for at, cell in enumerate(notebook.cells):
            client.execute_cell(cell, at)
    return notebook


def shown(notebook):
    """What each cell shows, its richest form last."""
    return [
        "\n".join(
            str(text) for one in cell.get("outputs", []) for text in (one.get("data") or {"": one.get("text")}).values()
        )
        for cell in notebook.cells
    ]


def figures(notebook):
    return sum("image/svg+xml" in one.get("data", {}) for cell in notebook.cells for one in cell.get("outputs", []))


def test_first_look(tmp_path, monkeypatch):
    notebook = run("first-look", tmp_path, monkeypatch)
    text = "\n".join(shown(notebook))
    assert figures(notebook) == 2
    assert "Predicted, not measured" in text
    assert "busbw_gb_per_s" in text


@pytest.mark.netns
def test_two_configurations(tmp_path, monkeypatch):
    notebook = run("two-configurations", tmp_path, monkeypatch)
    text = "\n".join(shown(notebook))
    assert "Iteration time: worse" in text, "one spine instead of two halves the rate between the leaves"
    assert "link leaf0&gt;spine1" in text
    assert figures(notebook) == 2


@pytest.mark.netns
def test_extrapolation(tmp_path, monkeypatch):
    notebook = run("extrapolate", tmp_path, monkeypatch)
    (table,) = [text for text in shown(notebook) if "time_us" in text and "busbw_gb_per_s" in text]
    assert all(f"<td>{ranks}</td>" in table for ranks in (4, 8, 16, 32, 64))
    assert figures(notebook) == 1
