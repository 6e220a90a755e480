"""The public surface is a list: what may be imported, and that documents import nothing else."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]

PUBLIC = [
    "jetlet",
    "jetlet.agg",
    "jetlet.core",
    "jetlet.errors",
    "jetlet.log",
    "jetlet.metrics",
    "jetlet.pipeline.sink",
    "jetlet.pipeline.source",
    "jetlet.pipeline.stream_source",
    "jetlet.sinks",
    "jetlet.snapshots",
    "jetlet.sources",
    "jetlet.tasks",
    "jetlet.tasks.state.changelog",
    "jetlet.tasks.state.checkpoints",
    "jetlet.tasks.state.serdes",
    "jetlet.tasks.state.stores",
    "jetlet.tasks.systems",
    "jetlet.testing",
    "jetlet.windows",
]
"""All else is private, whatever its name."""

PROMISED = {
    "jetlet": "EmbeddedEngine JobConfig Pipeline SparkEngine agg sinks sources whole_item windows",
    "jetlet.agg": "all_of averaging counting max_by min_by summing to_list top_n",
    "jetlet.core": "DAG Edge Inbox Outbox Processor Traverser Vertex Watermark between from_",
    "jetlet.errors": "JetletError JobFailedError PlanningError RestartableError",
    "jetlet.log": "Log",
    "jetlet.metrics": "MetricsServer",
    "jetlet.pipeline.sink": "ClientSink Sink TransactionalSink",
    "jetlet.sinks": "client collect csv json_lines kafka log logger noop parquet spark sql text",
    "jetlet.snapshots": "SnapshotContents StateEntry read",
    "jetlet.sources": "batch csv items json_lines kafka log parquet spark spark_stream sql text",
    "jetlet.tasks": "AsyncStreamTask StreamTask TaskApplication checkpoints stores systems",
    "jetlet.testing": "VirtualClock assert_collected_eventually scripted_stream verify_processor",
    "jetlet.windows": "session sliding tumbling",
}
"""Names that programs rely on: one that is missing breaks them."""

DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_there_and_sorted(name):
    module = import_module(name)

    missing = [each for each in module.__all__ if not hasattr(module, each)]

    assert missing == []
    assert len(set(module.__all__)) == len(module.__all__)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("name", PUBLIC)
def test_names_made_in_a_public_module_are_listed_unless_they_are_private(name):
    """Of what users get to see as the module's own: functions and classes from other rooms."""
    module = import_module(name)
    if Path(module.__file__).name != "__init__.py" and name not in ("jetlet.agg", "jetlet.windows"):
        return  # a file of code has names of its own that are for its neighbours

    own = {
        each
        for each, value in vars(module).items()
        if not each.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", "").startswith("jetlet")
        and value.__module__ != "jetlet._lazy"
    }

    assert own - set(module.__all__) == set()


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_promised_names_are_public(name):
    assert set(PROMISED[name].split()) <= set(import_module(name).__all__)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_import_what_is_public(document):
    text = document.read_text(encoding="utf-8")
    if document.suffix == ".md":
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        text = "\n".join(blocks)

    private = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jetlet"):
            listed = import_module(node.module).__all__ if node.module in PUBLIC else ()
            private += [f"{node.module}.{a.name}" for a in node.names if a.name not in listed]
        elif isinstance(node, ast.Import):
            private += [a.name for a in node.names if a.name.startswith("jetlet.")]

    assert private == []


@pytest.mark.parametrize("module", ["jetlet.sources", "jetlet.sinks"])
def test_sources_and_sinks_say_what_they_take(module):
    module = import_module(module)
    for name in module.__all__:
        function = getattr(module, name)
        parameters = inspect.signature(function).parameters.values()

        assert inspect.isfunction(function)
        assert (function.__module__, function.__qualname__) == (module.__name__, name)
        assert not any(each.kind is each.VAR_KEYWORD for each in parameters), name
        assert any(each.name == "name" for each in parameters), name
        assert len(function.__doc__) > 10
        assert ": '" not in str(inspect.signature(function)), name


def test_help_shows_the_signature_and_the_text():
    from jetlet import sources

    shown = pydoc.plain(pydoc.render_doc(sources.csv))

    assert "csv(path: Paths, *, header: bool = True, " in shown
    assert "encoding: str = 'utf-8'" in shown
    assert "Rows of CSV files, as dicts of strings" in shown


def test_no_extra_of_ours_stands_in_another_under_a_condition():
    """Hatchling writes out what it stands for, and leaves out the condition."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirements in project["optional-dependencies"].values():
        assert not [each for each in requirements if re.match(r"jetlet\[.*;", each)]
