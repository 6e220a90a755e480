"""The pages of the reference that are made of the code: a hook of the site's builder.

What is on them is what is public, so that none of it is missing and none is out of date. Everything
else is written by hand, in the files beside this one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import click
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from jetlet.cli import main as jetlet
from jetlet.cli.settings import PREFIX
from jetlet.metrics import job_collector

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

STAGES = {
    "Pipeline": "jetlet.pipeline.pipeline.Pipeline",
    "Stage": "jetlet.pipeline.stages.stage.Stage",
    "StageWithKey": "jetlet.pipeline.stages.keyed_stage.StageWithKey",
    "WindowStage": "jetlet.pipeline.stages.window_stage.WindowStage",
    "StreamSourceStage": "jetlet.pipeline.stages.stream_source_stage.StreamSourceStage",
}
"""What a program gets from a method, and never imports."""

API = {
    "pipelines": (
        "Pipelines and stages",
        [*STAGES.values(), *("jetlet." + name for name in ("JoinClause", "DeadLetter"))],
        [
            *("jetlet.KeyedProcess", "jetlet.ProcessContext", "jetlet.Timer"),
            *("jetlet.RawRecord", "jetlet.service", "jetlet.shared_service"),
        ],
    ),
    "aggregates-and-windows": (
        "Aggregates and windows",
        ["jetlet.agg", "jetlet.windows"],
        [],
    ),
    "engines": (
        "Engines and jobs",
        ["jetlet.EmbeddedEngine", "jetlet.SparkEngine", "jetlet.JobConfig", "jetlet.Tls"],
        ["jetlet.Job", "jetlet.JobStatus", "jetlet.snapshots", "jetlet.metrics", "jetlet.log"],
    ),
    "core": (
        "The Core API",
        ["jetlet.core", "jetlet.pipeline.source", "jetlet.pipeline.stream_source"],
        ["jetlet.pipeline.sink"],
    ),
    "tasks": (
        "Tasks",
        ["jetlet.tasks", "jetlet.tasks.systems", "jetlet.tasks.state.stores"],
        ["jetlet.tasks.state.checkpoints", "jetlet.tasks.state.changelog"],
    ),
    "testing": ("Testing", ["jetlet.testing"], []),
}
"""Page: its title, and the modules and names on it."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those that are there."""
    pages = {f"reference/api/{page}.md": _api(page) for page in API}
    pages |= {f"reference/api/{each}.md": _constructors(each) for each in ("sources", "sinks")}
    pages["reference/command-line.md"] = _command_line()
    pages["reference/metrics.md"] = _metrics()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_post_page(output: str, **_: object) -> str:
    """See to it that a page asks nothing of other hosts."""
    if found := re.search(r"""(?:src|<link[^>]*href)=["']?(https?:)?//[^"' >]+""", output):
        raise PluginError(f"a page loads from elsewhere: {found[0]}")
    return output


# --- The API --------------------------------------------------------------------------------


def _api(page: str) -> str:
    title, first, then = API[page]
    return f"# {title}\n\n" + "\n".join(_of(name) for name in [*first, *then])


def _of(name: str) -> str:
    """A class or function, or all that a module lists."""
    try:
        module = import_module(name)
    except ImportError:
        value = _found(name)
        return _directive(value, name)
    title = f"## {name}\n\n{inspect.cleandoc(module.__doc__ or '').partition(chr(10))[0]}\n\n"
    own = [(each, getattr(module, each)) for each in module.__all__]
    return title + "\n".join(
        _directive(value, f"{name}.{each}")
        for each, value in own
        if inspect.isclass(value) or inspect.isfunction(value)
    )


def _found(name: str) -> object:
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def _directive(value: object, name: str) -> str:
    where = f"{value.__module__}.{value.__qualname__}"  # type: ignore[attr-defined]
    shown = name.removeprefix("jetlet.").removeprefix("pipeline.")
    if name in STAGES.values():
        shown = name.rpartition(".")[2]
    return f'::: {where}\n    options:\n      heading: "{shown}"\n      toc_label: "{shown}"\n'


def _constructors(which: str) -> str:
    """Those functions are made when they are first used, so they are asked, not read."""
    module = import_module(f"jetlet.{which}")
    parts = [f"# {which.capitalize()}\n", _prose(module.__doc__)]
    for name in module.__all__:
        function = getattr(module, name)
        signature = inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
        call = ",\n    ".join(str(each) for each in signature.parameters.values())
        code = f"{which}.{name}(\n    {call},\n)" if call else f"{which}.{name}()"
        parts.append(f"### {which}.{name}\n\n```py\n{code}\n```\n\n{_prose(function.__doc__)}")
    return "\n".join(parts)


def _prose(text: str | None) -> str:
    """A docstring without what only readers of code and other tools know how to read."""
    text = inspect.cleandoc(text or "").replace("``", "`")
    return f"{text.replace('::' + chr(10), ':' + chr(10))}\n"


# --- The command line -----------------------------------------------------------------------


def _command_line() -> str:
    context = click.Context(jetlet, info_name="jetlet", max_content_width=90)
    parts = [
        "# The command line\n",
        "`python -m jetlet` is the same as `jetlet`. All commands have the same exit codes:\n",
        _exit_codes(),
        (
            "Each option of `jetlet run` can also be set by the environment variable in the table"
            " behind its text, or in `[tool.jetlet]` of a `pyproject.toml`; the"
            " [guide](../guide.md#arguments-and-settings) says which of them counts.\n"
        ),
    ]
    for name in jetlet.list_commands(context):
        command = jetlet.get_command(context, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=context, max_content_width=90)
        parts.append(f"## jetlet {name}\n\n```text\n{command.get_help(own)}\n```\n")
        if name == "run":
            parts.append(_variables(command))
        if isinstance(command, click.Group):
            parts += _subcommands(command, own)
    return "\n".join(parts)


def _subcommands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            own = click.Context(command, info_name=name, parent=context, max_content_width=90)
            yield f"```text\n{command.get_help(own)}\n```\n"


def _exit_codes() -> str:
    from jetlet import cli

    rows = [line.split(maxsplit=1) for line in (cli.__doc__ or "").splitlines()]
    codes = [row for row in rows if len(row) == 2 and row[0].isdigit()]
    table = "\n".join(f"| {code} | {text} |" for code, text in codes)
    return f"| exit code | meaning |\n|---|---|\n{table}\n"


def _variables(command: click.Command) -> str:
    rows = [
        f"| `{PREFIX}_{each.name.upper()}` | `{each.opts[0]}` |"
        for each in command.params
        if isinstance(each, click.Option) and each.name
    ]
    return "| environment variable | option |\n|---|---|\n" + "\n".join(rows) + "\n"


# --- Metrics --------------------------------------------------------------------------------

METRICS = {
    "vertex": ("Of each vertex, over its processors", job_collector._VERTEX),
    "edge": ("Of each end of a network edge", job_collector._EDGE),
    "worker": ("Of each cooperative worker", job_collector._WORKER),
    "container": ("Of each container of tasks", job_collector._CONTAINER),
}


EVENTS = {
    "late_events": "Items behind the watermark, that came too late for their window or state.",
    "skipped": 'Items and records that failed, with `on_error="skip"`.',
    "dead_letters": "Items and records that failed, and went to the sink given as `on_error`.",
    "reloads": "Times that a processor went on with a newer table or service.",
    "skipped_offsets": "Records of a log that were deleted before they were read.",
    "state_files_read": "Files of state that tasks of micro-batches had to read.",
}


def _metrics() -> str:
    parts = [
        "# Metrics\n",
        (
            "`job.metrics()` returns them in a program. `jetlet run --metrics-port PORT`, and a"
            " `MetricsServer`, serve them to Prometheus under these names, with the labels"
            " `job_name` and `job_id`; the [guide](../guide.md#watching-it) shows both.\n"
        ),
    ]
    for what, (title, rows) in METRICS.items():
        parts.append(f"## {title}\n\n| metric | what it is |\n|---|---|")
        parts += [f"| `jetlet_{what}_{name}` | {text} |" for name, text, *_ in rows]
        parts.append("")
    parts.append(
        "## Others\n\n| metric | what it is |\n|---|---|\n"
        "| `jetlet_job_running` | 1 until the job has ended. |\n"
        "| `jetlet_job_submitted_timestamp_seconds` | When it was submitted. |\n"
        "| `jetlet_vertex_call_duration_seconds` | A histogram of the calls of a vertex. |\n"
        "| `jetlet_vertex_watermark_timestamp_seconds` | How far its event time is. |\n"
        "| `jetlet_vertex_watermark_lag_seconds` | By how much that is behind the clock. |\n"
        "| `jetlet_vertex_as_of_timestamp_seconds` | When the table of a join with `refresh`, or"
        " the service with `reload`, was made that it uses. |\n"
        "| `jetlet_vertex_events_total` | What its processors count, by the label `event`: the next"
        " table. |\n"
        "| `jetlet_container_lag_messages` | Messages of a partition that are not processed. |\n"
        "| `jetlet_container_committed_offset` | Offset of a partition that was committed. |\n"
        "| `jetlet_task_gauge` | What a task has set itself. |\n"
        "| `jetlet_task_timer_calls_total`, `jetlet_task_timer_seconds_total` | What it timed. |\n"
    )
    parts.append("## What processors count\n\n| event | what it is |\n|---|---|")
    parts += [f"| `{event}` | {text} |" for event, text in EVENTS.items()]
    return "\n".join(parts)
