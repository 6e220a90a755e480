"""What pipelines, stages, jobs and results show of themselves."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item
from jetlet.errors import InvalidArgumentError, JobFailedError

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def fail(item):
    raise ValueError(f"no {item}")


def words():
    p = Pipeline("words & more")
    return p, p.read_from(sources.items(["a b", "b"])).flat_map(str.split, name="<split>")


def test_a_pipeline_is_drawn_finished_or_not():
    p, stage = words()
    drawing = p._repr_mimebundle_()["image/svg+xml"]
    assert "&lt;split&gt;" in drawing
    assert "<split>" not in drawing
    assert "words &amp; more" in drawing
    stage.map(str).write_to(sinks.noop())
    stage.map(str).write_to(sinks.noop())
    assert p._repr_mimebundle_()["image/svg+xml"].count('<rect class="box') == 6
    assert p._repr_mimebundle_()["text/plain"] == repr(p)
    assert "image/svg+xml" not in Pipeline()._repr_mimebundle_()


def test_a_stage_shows_its_place():
    _, stage = words()
    drawing = stage._repr_mimebundle_()["image/svg+xml"]
    assert re.findall(r'<title>([^<]*)</title>\s*<rect class="box[^"]*marked', drawing) == [
        "&lt;split&gt;"
    ]
    assert stage._repr_mimebundle_()["text/plain"] == repr(stage)
    assert stage.map(str)._repr_mimebundle_()["text/plain"] == "Stage('map'): text"


def test_show_has_the_first_items_of_a_stage(capsys):
    _, stage = words()
    stage.show()
    assert capsys.readouterr().out.splitlines() == ["item", "----", "a", "b", "b"]


def test_show_ends_a_source_that_has_no_end(capsys):
    p = Pipeline("endless")
    p.read_from(sources.batch("ones", lambda context: iter(int, 1))).show(3)
    assert capsys.readouterr().out.splitlines()[2:] == ["0", "0", "0"]


def test_show_has_columns_for_dicts(capsys):
    p = Pipeline("rows")
    p.read_from(sources.items([{"id": 1, "name": "x"}, {"id": 22, "name": "yy"}])).show()
    assert capsys.readouterr().out.splitlines() == [
        "id  name",
        "--  ----",
        "1   x",
        "22  yy",
    ]


def test_show_writes_nothing_to_the_sinks_of_the_pipeline(capsys, tmp_path):
    p = Pipeline("careful")
    dead, out = sinks.collect(), sinks.collect()
    dead.items, out.items = ["before"], ["before"]
    stage = p.read_from(sources.items([1, 2])).map(fail, on_error=dead)
    stage.write_to(out)
    stage.show()
    assert "no items" in capsys.readouterr().out
    assert (dead.items, out.items) == (["before"], ["before"])
    # And the pipeline itself is what it was.
    p.run(on="embedded")
    assert [letter.item for letter in dead.items] == [1, 2]


def test_show_of_an_aggregate_has_its_results(capsys):
    _, stage = words()
    stage.grouping_key(whole_item).aggregate(agg.counting()).show(1)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_show_checks_what_it_is_given():
    _, stage = words()
    with pytest.raises(InvalidArgumentError, match="show"):
        stage.show(0)
    with pytest.raises(InvalidArgumentError, match=r"timeout=0\.5"):
        stage.show(timeout=0)


def test_explain_tells_what_it_becomes_and_where_it_runs(capsys):
    _, stage = words()
    stage.grouping_key(whole_item).aggregate(agg.counting(), name="count").explain()
    text = capsys.readouterr().out
    assert "count-prepare" in text
    assert "It runs on Spark as a batch job, because" in text
    assert "2 stages on Spark" in text


def test_items_are_shown_as_a_table_and_escaped():
    out = sinks.collect()
    out.items = [f"<b>{i}</b>" for i in range(25)]
    bundle = out._repr_mimebundle_()
    assert bundle["text/html"].count("<tr>") == 21
    assert "&lt;b&gt;0&lt;/b&gt;" in bundle["text/html"]
    assert "<b>" not in bundle["text/html"]
    assert bundle["text/plain"].splitlines()[-1] == "and 5 more"
    out.items = []
    assert out._repr_mimebundle_()["text/plain"] == "no items"


def test_a_job_tells_how_it_went():
    p, stage = words()
    stage.write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        job.join()
        bundle = job._repr_mimebundle_()
    assert "words & more completed" in bundle["text/plain"]
    assert "2 items read, 3 written" in bundle["text/plain"]
    assert "words &amp; more completed" in bundle["text/html"]
    assert 'value="1.000"' in bundle["text/html"]


def test_a_job_that_failed_has_no_bar():
    p, stage = words()
    stage.map(fail, name="broken").write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        with pytest.raises(JobFailedError):
            job.join()
        html = job._repr_mimebundle_()["text/html"]
    assert "failed in vertex" in html
    assert "<progress" not in html


def test_an_error_begins_with_the_one_line():
    p, stage = words()
    stage.map(fail, name="broken").write_to(sinks.noop())
    with pytest.raises(JobFailedError) as raised:
        p.run(on="embedded")
    first, blank, *rest = raised.value._render_traceback_()
    assert first.startswith("JobFailedError: job 'words & more' failed")
    assert "broken" in first
    assert (blank, rest[0][:9]) == ("", "Traceback")


# --- In a real notebook -----------------------------------------------------------------------


@pytest.fixture
def run_cells(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")

    def run(notebook, **options):
        client = nbclient.NotebookClient(
            notebook,
            timeout=200,
            kernel_name="python3",
            resources={"metadata": {"path": str(NOTEBOOK.parent)}},
            **options,
        )
        client.execute(env={**os.environ, "IPYTHONDIR": str(tmp_path)})
        return notebook.cells

    def cells(*sources, **options):
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
        return run(made, **options)

    cells.run = run
    cells.read = lambda path: nbformat.read(path, as_version=4)
    return cells


def outputs(cell):
    """The last output of each kind, and the text that was printed."""
    found = {"stdout": "", "stderr": ""}
    for output in cell.outputs:
        if output.output_type == "stream":
            found[output.name] += output.text
        else:
            found |= output.get("data", {})
    return found


@pytest.mark.slow
@pytest.mark.process
def test_the_example_runs(run_cells):
    cells = run_cells.run(run_cells.read(NOTEBOOK))
    by_source = {
        cell.source.splitlines()[-1]: outputs(cell) for cell in cells if cell.cell_type == "code"
    }
    assert "image/svg+xml" in by_source["p"]
    assert by_source["words.show(5)"]["text/html"].count("<tr>") == 6
    assert "It runs on Spark as a batch job" in by_source["counts.explain()"]["stdout"]
    assert "completed" in by_source['job = p.run(on="embedded")']["text/html"]
    assert "<table" in by_source["out"]["text/html"]
    assert "word-count completed" in by_source["job"]["text/plain"]
    assert "http://127.0.0.1" in by_source["engine.ui()"]["text/html"]


ENDLESS = """
from jetlet import EmbeddedEngine, Pipeline, sinks, sources
def endless():
    p = Pipeline("endless")
    p.read_from(sources.batch("ones", lambda context: iter(int, 1))).write_to(sinks.noop())
    return p
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_cell_that_is_run_again_replaces_its_job(run_cells):
    cell = "engine = EmbeddedEngine(); job = engine.submit(endless())"
    cells = run_cells(
        ENDLESS,
        f"{cell}; first = job",
        cell,
        "print(first.status.value, job.status.value); engine.close()",
    )
    assert outputs(cells[-1])["stdout"] in ("cancelled starting\n", "cancelled running\n")
    assert "is cancelled" in outputs(cells[2])["stderr"]


@pytest.mark.slow
@pytest.mark.process
def test_a_job_is_shown_until_it_has_ended(run_cells):
    wait = """
import threading
job.cancel()
while any(thread.name == "jetlet-display" for thread in threading.enumerate()):
    threading.Event().wait(0.05)
engine.close()
"""
    cells = run_cells(
        ENDLESS, "engine = EmbeddedEngine(); job = engine.submit(endless()); job", wait
    )
    assert "endless cancelled" in outputs(cells[1])["text/plain"]


@pytest.mark.slow
@pytest.mark.process
def test_interrupting_a_cell_cancels_the_job(run_cells):
    interrupt = """
import os, signal, threading, _thread
engine = EmbeddedEngine()
job = engine.submit(endless())
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
job.join()
"""
    cells = run_cells(
        ENDLESS, interrupt, "print(job.status.value); engine.close()", allow_errors=True
    )
    assert cells[1].outputs[-1].ename == "KeyboardInterrupt"
    assert outputs(cells[2])["stdout"] == "cancelled\n"


@pytest.mark.slow
@pytest.mark.process
def test_what_a_cell_waited_for_is_shown_and_told_once(run_cells):
    bad = """
from jetlet import Pipeline, sinks, sources
p = Pipeline("bad")
p.read_from(sources.items([0])).map(lambda x: 1 / x).write_to(sinks.noop())
p.run(on="embedded")
"""
    good = "p = Pipeline('good')\np.read_from(sources.items([1])).write_to(sinks.noop())\n"
    cells = run_cells(bad, f"{good}p.run(on='embedded')", allow_errors=True)
    assert [output.output_type for output in cells[0].outputs] == ["display_data", "error"]
    (only,) = cells[1].outputs
    assert "good completed" in only.data["text/plain"]


@pytest.mark.slow
@pytest.mark.process
def test_an_error_in_a_cell_begins_with_the_one_line(run_cells):
    cells = run_cells("from jetlet import windows\nwindows.tumbling(-1)", allow_errors=True)
    error = cells[0].outputs[-1]
    assert error.traceback[0].startswith("InvalidArgumentError: ")
