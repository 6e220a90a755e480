"""What pipelines, stages, jobs and results show of themselves in a notebook, and in a console.

Everything here is HTML or SVG that is made of escaped text, and needs nothing but the browser.
"""

from __future__ import annotations

import copy
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from jetlet.core.dag import DAG
from jetlet.core.edge import from_
from jetlet.core.processor import Processor
from jetlet.errors import JetletError
from jetlet.jobs.console import in_notebook
from jetlet.pipeline.expressions.data_types import ANY
from jetlet.pipeline.transforms.base import Transform
from jetlet.ui.job_view import JobView
from jetlet.ui.svg import draw

if TYPE_CHECKING:
    from jetlet.jobs.job import Job
    from jetlet.pipeline.pipeline import Pipeline
    from jetlet.pipeline.stages.stage import Stage

Bundle = dict[str, Any]

PERIOD: Final = 0.3
"""Seconds between two looks at a job that a cell waits for."""
SHOWN_ITEMS: Final = 20
SHOWN_TEXT: Final = 200
"""Characters of a value in a table."""
SHOW_LIMIT: Final = 10.0
"""Seconds after which ``stage.show()`` shows what has come by then."""
_TABLE: Final = (
    "border-collapse:collapse;font-variant-numeric:tabular-nums;font-family:ui-monospace,monospace"
)


# --- Pipelines and stages -------------------------------------------------------------------


def sketch(pipeline: Pipeline) -> DAG:
    """The stages of a pipeline as they were written, finished or not, for a drawing."""
    dag = DAG(pipeline.name)
    names: dict[int, str] = {}
    taken: set[str] = set()
    for transform in pipeline.transforms:
        name, number = transform.name, 2
        while name in taken:
            name, number = f"{transform.name}-{number}", number + 1
        taken.add(name)
        names[id(transform)] = name
        dag.new_vertex(name, Processor)
    ends: dict[str, int] = {}
    for transform in pipeline.transforms:
        for ordinal, source in enumerate(transform.inputs):
            name = names[id(source)]
            ends[name] = ends.get(name, -1) + 1
            dag.edge(from_(dag[name], ends[name]).to(dag[names[id(transform)]], ordinal))
    return dag


def pipeline_bundle(pipeline: Pipeline, chosen: Transform | None = None) -> Bundle:
    """The drawing of a pipeline, with one of its stages marked."""
    dag = sketch(pipeline)
    place = None if chosen is None else _place(pipeline, chosen)
    text = repr(pipeline)
    if not pipeline.transforms:
        return {"text/plain": text}
    marked = None if place is None else dag.vertices[place].name
    return {"text/plain": text, "image/svg+xml": draw(dag, shows_counts=False, marked=marked)}


def stage_bundle(stage: Stage[Any]) -> Bundle:
    """Where a stage is in its pipeline, and the type of its items if that is known."""
    bundle = pipeline_bundle(stage._pipeline, stage._transform)
    text = repr(stage)
    if stage.schema != ANY:
        text += f": {stage.schema}"
    return bundle | {"text/plain": text}


def _place(pipeline: Pipeline, chosen: Transform) -> int | None:
    return next((i for i, each in enumerate(pipeline.transforms) if each is chosen), None)


def explain(stage: Stage[Any]) -> str:
    """What the pipeline becomes up to this stage, and where it runs."""
    from jetlet.jobs.config import MEMBERS, JobConfig
    from jetlet.jobs.engine import SPARK_PARALLELISM, dag_of
    from jetlet.spark import mode, passes
    from jetlet.spark.modes import HOW
    from jetlet.ui.plan_view import stage_list, tree

    part = _up_to(stage)
    dag = dag_of(part, SPARK_PARALLELISM)
    lines = [f"{stage.name!r} and what it needs, in this process or on members:", ""]
    lines += tree(dag).splitlines()[2:]
    try:
        chosen = mode(dag, JobConfig())
    except JetletError as error:
        return "\n".join([*lines, "", f"It does not run on Spark: {error}"])
    lines += ["", f"It runs on Spark {HOW[chosen.kind]}, because {chosen.reason}."]
    if chosen.kind != MEMBERS:
        lines += ["", *stage_list(dag, passes(dag)).splitlines()]
    return "\n".join(lines)


def first_items(stage: Stage[Any], count: int, limit: float = SHOW_LIMIT) -> ItemTable:
    """Run the pipeline up to a stage in this process, until there are so many items."""
    from jetlet import sinks
    from jetlet.jobs.embedded import EmbeddedEngine

    out = sinks.collect()
    part = _up_to(stage, count, out)
    with EmbeddedEngine() as engine:
        job = engine.submit(part)
        with suppress(TimeoutError):
            job.join(limit)
    return ItemTable(list(islice(out.items, count)), stage.name)


def _up_to(stage: Stage[Any], count: int | None = None, sink: Any = None) -> Pipeline:
    """A pipeline of this stage and those it needs, whose failed and late items go nowhere."""
    from jetlet import sinks
    from jetlet.pipeline.pipeline import Pipeline
    from jetlet.pipeline.stages.stage import Stage

    pipeline = stage._pipeline
    needed: set[int] = set()
    waiting = [stage._transform]
    while waiting:
        transform = waiting.pop()
        if id(transform) not in needed:
            needed.add(id(transform))
            waiting += transform.inputs
    part = Pipeline(pipeline.name, preserve_order=pipeline.preserve_order)
    copies: dict[int, Transform] = {}
    for transform in pipeline.transforms:
        if id(transform) in needed:
            made = copies[id(transform)] = copy.copy(transform)
            made.inputs = [copies[id(each)] for each in transform.inputs]
            if not isinstance(made.on_error, str):
                made.on_error = "skip"
            made.late = None
            part._add(made)
    last: Stage[Any] = Stage(part, copies[id(stage._transform)])
    if count is not None:
        last = last.take(count)
    last.write_to(sink or sinks.noop())
    return part


# --- Items ----------------------------------------------------------------------------------


class ItemTable:
    """The first of some items: rows with columns if they are all dicts with the same keys."""

    def __init__(self, items: Sequence[Any], title: str = "", total: int | None = None) -> None:
        self.items = items
        self._title = title
        self._total = len(items) if total is None else total
        keys = list(items[0]) if items and isinstance(items[0], dict) else None
        if keys is not None and not all(isinstance(i, dict) and list(i) == keys for i in items):
            keys = None
        self._headers = ["item"] if keys is None else [str(key) for key in keys]
        self._rows = [
            [_short(item)] if keys is None else [_short(item[key]) for key in keys]
            for item in items
        ]

    @property
    def _foot(self) -> str:
        left = self._total - len(self._rows)
        return f"and {left:,} more" if left > 0 else ""

    def __repr__(self) -> str:
        if not self._rows:
            return f"{self._title}: no items" if self._title else "no items"
        widths = [max(map(len, column)) for column in zip(self._headers, *self._rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (self._headers, ["-" * width for width in widths], *self._rows)
        ]
        return "\n".join([*lines, *filter(None, [self._foot])])

    def _repr_html_(self) -> str:
        if not self._rows:
            return "<p>no items</p>"
        style = "text-align:left;padding:.15em .8em .15em 0;border-bottom:1px solid #8884"
        head = "".join(f'<th style="{style}">{escape(header)}</th>' for header in self._headers)
        body = "".join(
            "<tr>" + "".join(f'<td style="{style}">{escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self._rows
        )
        foot = f"<p>{escape(self._foot)}</p>" if self._foot else ""
        return f'<table style="{_TABLE}"><tr>{head}</tr>{body}</table>{foot}'


def items_bundle(items: Sequence[Any]) -> Bundle:
    """What a sink that collects has so far."""
    table = ItemTable(items[:SHOWN_ITEMS], total=len(items))
    return {"text/plain": repr(table), "text/html": table._repr_html_()}


def show_table(table: ItemTable) -> None:
    """Show it where it can be seen: below the cell, or on standard output."""
    if in_notebook():
        _display(table)
    else:
        sys.stdout.write(f"{table!r}\n")


def _display(what: object, **options: Any) -> Any:
    """Show something below the cell."""
    return import_module("IPython.display").display(what, **options)


def _short(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr failed: {type(error).__name__}>"
    return text if len(text) <= SHOWN_TEXT else f"{text[: SHOWN_TEXT - 1]}…"


# --- Jobs -----------------------------------------------------------------------------------


class JobDisplay:
    """A job as a cell shows it, now."""

    def __init__(self, job: Job) -> None:
        from jetlet.ui.job_feed import JobFeed

        self._job = job
        self._feed = JobFeed(job)

    def bundle(self) -> Bundle:
        """Status, progress and what holds it back."""
        view = self._feed.view()
        status = self._job.status.value
        words = f"{self._job.name} {status}, {view.elapsed:.1f} s: {view.summary()}"
        if view.elapsed:
            words += f", {view.read_rate:,.0f} read per second"
        lines = [words, view.verdict.sentence]
        error = self._job.error
        if error is not None:
            lines[1] = str(error).splitlines()[0] if str(error) else type(error).__name__
        first, second = map(escape, lines)
        second = re.sub("`(.*?)`", r"<code>\1</code>", second)
        html = f'<div style="line-height:1.5"><b>{first}</b><br>{self._bar(view)}{second}</div>'
        return {"text/plain": "\n".join(lines), "text/html": html}

    def _bar(self, view: JobView) -> str:
        status = self._job.status
        if status.is_final and status.value != "completed":
            return ""  # nothing will get further
        share = 1.0 if status.is_final else _done(view)
        value = "" if share is None else f' value="{share:.3f}"'
        return f'<progress style="width:min(28em,100%)" max="1"{value}></progress><br>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return self.bundle()


def _done(view: JobView) -> float | None:
    """The share that is done; ``None`` if nobody can know."""
    known = [stage for stage in view.stages if stage.total]
    if len(known) < len(view.stages) or not known:
        return None
    return sum(stage.done for stage in known) / sum(stage.total or 0 for stage in known)


def job_bundle(job: Job) -> Bundle:
    """What a job shows."""
    return JobDisplay(job).bundle()


def show_job(job: Job) -> None:
    """Show a job; below a cell it is shown anew until it has ended."""
    if _joined.get(job) == _cell():
        return  # the cell has shown it already
    shown = JobDisplay(job)
    if job.status.is_final or not in_notebook():
        _display(shown)
        return
    handle = _display(shown, display_id=True)

    def follow() -> None:
        while not job.status.is_final:
            time.sleep(PERIOD)
            handle.update(shown)

    threading.Thread(target=follow, name="jetlet-display", daemon=True).start()


def join_visibly(job: Job) -> None:
    """Wait for a job, while its progress is shown below the cell."""
    with job.awaited():
        _joined[job] = _cell()
        shown = JobDisplay(job)
        handle = _display(shown, display_id=True)
        try:
            while True:
                try:
                    return job.join(PERIOD)
                except TimeoutError:
                    if job.status.is_final:
                        raise
                    handle.update(shown)
        finally:
            handle.update(shown)


_joined: WeakKeyDictionary[Job, int] = WeakKeyDictionary()
"""The jobs that cells have waited for, with the number of the cell."""


def _cell() -> int:
    """The number of the cell that runs."""
    return int(import_module("IPython").get_ipython().execution_count)


_latest: WeakValueDictionary[str, Job] = WeakValueDictionary()
"""The jobs that were started by cells, by name."""


def replace_job(job: Job) -> None:
    """A cell starts a job: one of the same name, which an earlier run of it left, is cancelled."""
    before = _latest.get(job.name)
    _latest[job.name] = job
    if before is not None and before is not job and not before.status.is_final:
        sys.stderr.write(f"{job.name}: the job that this cell started before is cancelled\n")
        before.cancel()
