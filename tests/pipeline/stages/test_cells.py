"""Notebooks: a cell that is run again does not double what a pipeline does."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from jetlet import Pipeline, sinks, sources
from jetlet.errors import InvalidArgumentError


class Notebook:
    """Runs cells as IPython does: in one namespace, each text under a file name of its own."""

    def __init__(self, file_name="/tmp/ipykernel_1/{hash}.py"):
        self.user_ns = {"Pipeline": Pipeline, "sources": sources, "sinks": sinks}
        self.execution_count = 0
        self._file_name = file_name
        self._parent = {}

    def get_parent(self):
        return self._parent

    def run(self, text, id=None):
        self.execution_count += 1
        self._parent = {} if id is None else {"metadata": {"cellId": id}}
        name = self._file_name.format(hash=hash(text), count=self.execution_count)
        exec(compile(text, name, "exec"), self.user_ns)


@pytest.fixture(params=["/tmp/ipykernel_1/{hash}.py", "<ipython-input-{count}-{hash}>"])
def notebook(request, monkeypatch):
    made = Notebook(request.param)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: made))
    return made


MAKE = "p, out = Pipeline('cells'), sinks.collect()"
BUILD = "p.read_from(sources.items([1, 2])).map(str).write_to(out)"


def test_cell_that_is_run_again_is_refused_and_changes_nothing(notebook):
    notebook.run(MAKE)
    notebook.run(BUILD)
    with pytest.raises(InvalidArgumentError, match="Run the cell with Pipeline"):
        notebook.run(BUILD)
    notebook.run("p.run(on='embedded')")
    assert notebook.user_ns["out"].items == ["1", "2"]


def test_cell_that_was_changed_is_known_by_its_place(notebook):
    notebook.run(MAKE, "a")
    notebook.run(BUILD, "b")
    with pytest.raises(InvalidArgumentError, match="has been run before"):
        notebook.run(BUILD.replace("str", "float"), "b")


def test_new_pipeline_takes_the_cell_again(notebook):
    for _ in range(2):
        notebook.run(MAKE)
        notebook.run(BUILD)
        notebook.run("p.run(on='embedded')")
        assert notebook.user_ns["out"].items == ["1", "2"]


def test_loop_in_a_cell_and_different_cells_may_add_as_often_as_they_like(notebook):
    notebook.run(MAKE)
    notebook.run(f"for _ in range(3):\n    {BUILD}")
    notebook.run(f"{BUILD}  # once more")
    notebook.run("p.run(on='embedded')")
    assert len(notebook.user_ns["out"].items) == 8


def test_function_of_a_module_is_part_of_the_cell_that_calls_it(notebook):
    notebook.user_ns["build"] = lambda p, out: p.read_from(sources.items([1])).write_to(out)
    notebook.run(MAKE)
    notebook.run("build(p, out)")
    with pytest.raises(InvalidArgumentError):
        notebook.run("build(p, out)")


def test_outside_notebooks_nothing_is_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    p = Pipeline("script")
    for _ in range(2):
        p.read_from(sources.items([1])).write_to(sinks.noop())
    assert p._cells == []
