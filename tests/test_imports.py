"""What importing Jetlet costs, and which folder may import from which."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import jetlet

ROOT = Path(jetlet.__file__).parent

HEAVY = [
    "click",
    "confluent_kafka",
    "datasketches",
    "fsspec",
    "msgspec",
    "numpy",
    "pandas",
    "prometheus_client",
    "psycopg",
    "py4j",
    "pyarrow",
    "pyspark",
    "redis",
    "rich",
    "rocksdict",
    "sqlalchemy",
    "zstandard",
]

LAYERS = [
    {"cli", "testing"},
    {"running"},
    {"ui"},
    {"sinks", "sources"},
    {"spark", "tasks"},
    {"jobs"},
    {"planner", "agg", "windows"},
    {"connectors", "processors"},
    {"pipeline", "columns"},
    {"execution", "network", "snapshots", "log", "metrics"},
    {"storage"},
    {"core"},
    {"errors", "interpreter", "versions", "_lazy", "_version"},
]
"""A module imports only from its own layer and those behind it; single files are among the folders.
"""

CONVENIENCES = {
    # What users call on a pipeline reaches up to the planner and the engines, when it is called.
    ("pipeline/pipeline.py", "planner"),
    ("pipeline/pipeline.py", "running"),
    ("pipeline/stages/stage.py", "tasks"),
    ("tasks/application.py", "running"),
    # Reading state: a job may have run in micro-batches, too.
    ("snapshots/reading.py", "spark"),
    # The page of an engine, and what a job says of itself when it has ended.
    ("jobs/engine.py", "ui"),
    ("jobs/job.py", "ui"),
    # What notebooks show.
    ("connectors/client.py", "ui"),
    ("pipeline/pipeline.py", "ui"),
    ("pipeline/stages/stage.py", "ui"),
}


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_takes_no_time_worth_mentioning():
    """Less than 100 ms are promised."""
    code = (
        "import time; start = time.process_time(); import jetlet; "
        "print(time.process_time() - start)"
    )

    assert min(float(run_python(code)) for _ in range(5)) < 0.1


@pytest.mark.parametrize(
    "statement",
    [
        "import jetlet",
        "from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources, whole_item",
    ],
)
def test_import_brings_no_client_along(statement):
    loaded = run_python(f"import sys\n{statement}\nprint(*sys.modules)").split()

    assert "jetlet" in loaded
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)


def test_planning_and_running_bring_no_client_along():
    code = """
import sys
from jetlet import Pipeline, agg, sinks, sources, whole_item
p = Pipeline("light")
out = sinks.collect()
p.read_from(sources.items([1, 1])).grouping_key(whole_item).aggregate(agg.counting()).write_to(out)
p.run(on="embedded")
assert out.items == [(1, 2)]
print(*sys.modules)
"""
    loaded = {name.split(".")[0] for name in run_python(code).split()}

    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_module_imports_only_from_below(path):
    file = str(path.relative_to(ROOT))
    if file in ("__init__.py", "__main__.py"):
        return
    home = layer_of(file)

    found = {(file, layer) for layer in imported_layers(ast.parse(path.read_text()))}

    upwards = {(file, layer) for file, layer in found if level_of(layer) < level_of(home)}
    assert upwards - CONVENIENCES == set()


def test_no_modules_import_each_other():
    """When they are imported; a function may import what uses its module."""
    names = {name_of(path): path for path in ROOT.rglob("*.py")}
    graph = {
        name: {
            each if each in names else each.rpartition(".")[0]
            for each in imported_names(top_level(ast.parse(path.read_text())))
        }
        - {name}
        for name, path in names.items()
    }
    assert "jetlet.core.dag" in graph["jetlet.jobs.embedded"]

    list(TopologicalSorter(graph).static_order())  # raises CycleError


HOSTS = [p for folder in ("execution", "jobs", "spark") for p in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("path", sorted(HOSTS), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_host_goes_by_what_is_declared(path):
    """It neither knows the stock processors nor looks for them in what makes them."""
    tree = ast.parse(path.read_text())

    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    looked_up = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}

    assert not {m for m in modules if m and m.startswith("jetlet.processors")}
    assert not attributes & {"func", "keywords", "_fn"}
    assert not looked_up & {"func", "keywords", "_fn"}


def level_of(layer):
    return next(level for level, layers in enumerate(LAYERS) if layer in layers)


def layer_of(file):
    return file.split("/")[0].removesuffix(".py")


def imported_layers(tree):
    """The layers that a module imports at run time, also inside functions."""
    ignored = {id(node) for block in type_checking_blocks(tree) for node in ast.walk(block)}
    for name in imported_names(node for node in ast.walk(tree) if id(node) not in ignored):
        parts = name.split(".")
        if parts[0] == "jetlet" and len(parts) > 1:
            yield parts[1] if (ROOT / parts[1]).exists() else home_of(parts[1])


def imported_names(nodes):
    """What statements among these import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top_level(tree):
    """What is run when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        is_run = isinstance(node, ast.stmt | ast.ExceptHandler) and not is_for_types(node)
        if is_run and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from top_level(node)


def name_of(path):
    """A module's name."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def home_of(name):
    """The layer of a name that the package itself exports."""
    return jetlet._HOMES[name].split(".")[1] if name in jetlet._HOMES else name


def type_checking_blocks(tree):
    return [node for node in ast.walk(tree) if is_for_types(node)]


def is_for_types(node):
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )
