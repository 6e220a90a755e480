"""The documents are true: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from jetlet import Stage, errors, sinks, sources
from jetlet.cli import main
from jetlet.pipeline.stages.keyed_stage import StageWithKey
from jetlet.pipeline.stages.window_stage import WindowStage

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ON_SPARK = ("README.md", "spark.md", "spark-streams.md", "from-pyspark.md", "dataframes.md")
GENERATED = {
    ROOT / "docs" / page: page
    for page in (
        *("reference/command-line.md", "reference/metrics.md"),
        *(
            f"reference/api/{name}.md"
            for name in (
                *("pipelines", "aggregates-and-windows", "sources", "sinks", "engines", "core"),
                *("tasks", "testing"),
            )
        ),
    )
}
"""Pages that docs/generated.py makes."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def documents():
    for file in DOCUMENTS:
        marks = [pytest.mark.spark] if file.name in ON_SPARK else []
        yield pytest.param(file, id=file.name, marks=marks)


def program(document):
    """All Python of a document as one program, each line where it is in the document."""
    text = document.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            first = text.count("\n", 0, block.start(2))
            code = block[2].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


@pytest.mark.process
@pytest.mark.parametrize("document", [*documents()])
def test_python_of_a_document_runs(document, tmp_path, short_lived):
    shutil.copytree(ROOT / "examples" / "data" / "books", tmp_path / "books")
    script = tmp_path / f"{document.stem}.py"
    script.write_text(program(document), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env={**os.environ, **short_lived},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_only_documents_marked_so_start_spark():
    starts = re.compile(r"\bp\.run\(\)|on=\"spark\"|SparkEngine\(")
    found = {file.name for file in DOCUMENTS if starts.search(program(file))}
    assert found <= set(ON_SPARK)


# --- Commands -------------------------------------------------------------------------------


def commands():
    """Lines of shell blocks, without their comments."""
    for file in DOCUMENTS:
        for block in BLOCK.finditer(file.read_text(encoding="utf-8")):
            if block[1] in ("bash", "sh"):
                for line in block[2].splitlines():
                    words = shlex.split(line.removeprefix("$ "), comments=True)
                    if words:
                        yield pytest.param(words, id=f"{file.name}: {' '.join(words)}")


@pytest.mark.parametrize("words", [*commands()])
def test_command_exists(words):
    match words:
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case [".", ".venv/bin/activate"]:
            pass  # "make setup" makes it
        case ["python", "-m", "benchmarks", *names]:
            here = ROOT / "benchmarks"
            for name in names:
                assert (here / f"{name}.py").is_file() or (here / name / "__main__.py").is_file()
        case ["jetlet", "--version"]:
            pass
        case ["jetlet", name, *arguments]:
            context = main.make_context("jetlet", [name])
            command = main.get_command(context, name)
            assert command is not None
            command.make_context(name, arguments, parent=context)  # parses, and runs nothing
        case ["pip", "install", *targets]:
            project = (ROOT / "pyproject.toml").read_text()
            for extra in re.findall(r"\[(.+?)\]", " ".join(targets)):
                for each in extra.split(","):
                    assert re.search(rf"^{each} = \[", project, re.MULTILINE)
        case ["python", script, *_]:
            assert Path(script).name == "word_count.py" or (ROOT / script).is_file()
        case _:
            pytest.fail(f"say here how to check {words}")


# --- Links ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "examples" / "data" / "README.md"], ids=lambda file: file.name
)
def test_links_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert "://" not in target, "documents stand for themselves"
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        if file.resolve() in GENERATED:
            continue  # the builder of the site checks what is in these
        assert file.exists(), target
        if document.is_relative_to(ROOT / "docs"):
            assert file.resolve().is_relative_to(ROOT / "docs"), f"not on the site: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, target


def test_site_has_every_document_once():
    """Also those that are made of the code, which the builder misses if they are not made."""
    listed = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    written = [str(file.relative_to(ROOT / "docs")) for file in DOCUMENTS[1:]]
    assert sorted(listed) == sorted([*written, *GENERATED.values()])


# --- Tables that list everything ------------------------------------------------------------


@pytest.mark.parametrize("which", [sources, sinks], ids=lambda module: module.__name__)
def test_every_source_and_sink_is_in_the_table(which):
    table = (ROOT / "docs" / "reference" / "sources-and-sinks.md").read_text(encoding="utf-8")
    kind = which.__name__.removeprefix("jetlet.")
    assert set(re.findall(rf"`{kind}\.(\w+)`", table)) == set(which.__all__)


@pytest.mark.parametrize(
    ("heading", "stage"),
    [("a stage", Stage), ("a key", StageWithKey), ("a window", WindowStage)],
    ids=["stage", "key", "window"],
)
def test_every_stage_is_in_the_table(heading, stage):
    text = (ROOT / "docs" / "reference" / "stages.md").read_text(encoding="utf-8")
    section = text.partition(f"## Behind {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    methods = {
        name
        for name, value in inspect.getmembers(stage, inspect.isfunction)
        if not name.startswith("_")
    }
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == methods


def test_every_error_is_in_the_tree():
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert set(errors.__all__) <= set(re.findall(r"\w+Error", page))


def test_every_metric_is_in_the_reference():
    """The builder of the site is not there when tests run, so this looks at what it would say."""
    page = (ROOT / "docs" / "generated.py").read_text(encoding="utf-8")
    collector = (ROOT / "src/jetlet/metrics/job_collector.py").read_text(encoding="utf-8")
    named = set(re.findall(r'"(jetlet_[a-z]\w+)"', collector))
    assert named
    assert {name for name in named if f"`{name}`" not in page} == set()
    tables = set(re.findall(r"^(_[A-Z]+): Final = \(\n", collector, re.MULTILINE))
    assert tables
    assert {name for name in tables if f"job_collector.{name})" not in page} == set()
    events = {
        event
        for file in (ROOT / "src").rglob("*.py")
        for event in re.findall(r'context\.count\(\s*"(\w+)"', file.read_text(encoding="utf-8"))
    }
    assert events
    assert {event for event in events if f'"{event}":' not in page} == set()


def test_every_variable_of_the_environment_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    used = {
        name
        for file in (ROOT / "src").rglob("*.py")
        for name in re.findall(r'"(JETLET_[A-Z_]+)"', file.read_text(encoding="utf-8"))
    }
    assert {name for name in used if f"`{name}`" not in page} == set()


@pytest.mark.parametrize(
    "drawing", sorted((ROOT / "docs").glob("*.svg")), ids=lambda file: file.name
)
def test_drawing_is_well_formed_and_has_a_dark_form(drawing):
    root = ET.parse(drawing).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    style = root.find("{http://www.w3.org/2000/svg}style").text
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    used = {element.get("class") for element in root.iter() if element.get("class")}
    for name in used:
        assert re.search(rf"\.{name}\b", light), f"class {name} has no style"
    assert "fill: #0d1117" in dark


def excerpts():
    """The code that CONTRIBUTING.md shows, and the file it says it is from."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            file, code = block[2].split("\n", 1)
            yield file.removeprefix("# "), code


@pytest.mark.parametrize(("file", "code"), [*excerpts()])
def test_what_contributors_are_shown_is_the_code(file, code):
    assert code in (ROOT / file).read_text(encoding="utf-8")
