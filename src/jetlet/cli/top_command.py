"""``jetlet top``: what the page shows, in a terminal."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from jetlet.cli.failures import Refused
from jetlet.cli.remote_jobs import RemoteJobs
from jetlet.cli.signals import StopSignals
from jetlet.ui.job_view import ContainerRow, EdgeRow, StageRow
from jetlet.ui.progress_display import is_live, lag, other_tables, rate, seconds, size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

REFRESH: Final = 1.0
NARROW: Final = 76
"""Columns of a terminal below which there is no room for bars."""
KEYS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float]]]] = {
    "b": ("busy", lambda row: -(row["busy"] or 0.0)),
    "w": ("blocked", lambda row: -(row["blocked"] or 0.0)),
    "r": ("rate", lambda row: -row["rate"]),
    "f": ("queue", lambda row: -(row["queue_fill"] or 0.0)),
    "l": ("lag", lambda row: -(row["watermark_lag_ms"] or 0)),
    "d": ("order of the data", lambda row: 0.0),
}
"""What a key sorts by, and how."""


@click.command()
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="Show it once, after two looks, and end.")
def top(job: str | None, once: bool) -> None:
    """Show the jobs that run, in this terminal, again and again.

    JOB is the name of a job; by default the one that was started last. The first line says what
    holds it back. Keys sort the vertices: b by how busy they are, w by how long they wait for
    room, r by rate, f by how full their queues are, l by lag, d in the order of the data. n shows
    the next job, and q ends.

    \b
    Examples:
      jetlet top
      jetlet top clicks --once
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from rich.console import Console
    from rich.live import Live

    jobs = RemoteJobs()
    console = Console()
    if once or not is_live(sys.stdout):
        _look(jobs, job)
        time.sleep(REFRESH)
        state, summaries = _look(jobs, job)
        console.print(screen(state, summaries, "d", console.width))
        return
    sort = "d"
    # The terminal is as it was, whatever ends this.
    with StopSignals(), suppress(KeyboardInterrupt), _keys() as pressed:
        state, summaries = _look(jobs, job)
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                shown = screen(state, summaries, sort, console.width)
                live.update(shown, refresh=True)
                key = pressed(REFRESH)
                if key == "q":
                    return
                if key == "n" and summaries and state is not None:
                    job = _behind(state["job"], [summary["job"] for summary in summaries])
                elif key in KEYS:
                    sort = key
                state, summaries = _look(jobs, job, state)


def _look(
    jobs: RemoteJobs, wanted: str | None, before: Mapping[str, Any] | None = None
) -> tuple[Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]:
    summaries = jobs.summaries()
    found = [each for each in summaries if wanted in (None, each["job"])]
    if not found and wanted is not None and before is None:
        names = ", ".join(each["job"] for each in summaries)
        raise Refused(f"no job {wanted!r} runs; {f'there are: {names}' if names else 'none does'}")
    return (jobs.state(found[0]["id"]) if found else before), summaries


def _behind(job: str, names: Sequence[str]) -> str:
    """The next of the jobs that run; the first behind one that runs no more."""
    return names[(names.index(job) + 1) % len(names) if job in names else 0]


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """What waits for a key, for so many seconds: it is empty if none is pressed."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios
    import tty

    stream = sys.stdin.fileno()
    before = termios.tcgetattr(stream)
    tty.setcbreak(stream)

    def pressed(limit: float) -> str:
        ready, _, _ = select.select([stream], [], [], limit)
        return sys.stdin.read(1) if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def _no_key(limit: float) -> str:
    time.sleep(limit)
    return ""


def screen(
    state: Mapping[str, Any] | None, summaries: Sequence[Mapping[str, Any]], sort: str, width: int
) -> RenderableType:
    """What is shown of a job; ``summaries`` are those of all."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if state is None:
        return Text("no job runs that was started with 'jetlet run'")
    others = [each["job"] for each in summaries if each["id"] != state["id"]]
    title = Text.assemble(
        (state["job"], "bold"),
        f"  {state['status']}  {seconds(state['elapsed'])}  ",
        state["where"],
    )
    if others:
        title.append(f"   also: {', '.join(others)}", "dim")
    sentence = Text()
    for number, part in enumerate(state["bottleneck"]["sentence"].split("`")):
        sentence.append(part, "bold yellow" if number % 2 else "")
    table = Table(box=None, padding=(0, 2, 0, 0))
    bar = 20 if width >= 100 else 10 if width >= NARROW else 0
    headers = ["vertex", "busy", "blocked", "waiting", "rate", "queue", "lag"]
    if bar:
        headers.insert(1, "")
    for header in headers:
        table.add_column(Text(header, "dim"), justify="right", no_wrap=True)
    table.columns[0].justify = "left"
    if bar:
        table.columns[1].justify = "left"
    named = state["bottleneck"]["vertex"]
    for row in sorted(state["vertices"], key=KEYS[sort][1]):
        name = Text(row["name"], "bold yellow" if row["name"] == named else "")
        name.truncate(max(8, width - bar - 58), overflow="ellipsis")
        table.add_row(
            name,
            *([_bar(row, bar)] if bar else []),
            *(Text(_share(row[key])) for key in ("busy", "blocked", "waiting")),
            Text(rate(row["rate"])),
            Text(_share(row["queue_fill"])),
            Text("" if row["watermark_lag_ms"] is None else lag(row["watermark_lag_ms"])),
        )
    tables = other_tables(
        [EdgeRow(**row) for row in state["edges"]],
        [ContainerRow(**row) for row in state["containers"]],
        [StageRow(**row) for row in state["stages"]],
        width,
    )
    keys = "  ".join(f"{key} {what}" for key, (what, _) in KEYS.items())
    foot = Text(f"{_foot(state)}\nsorted by {KEYS[sort][0]};  {keys}  n next job  q end", "dim")
    spaced = [part for each in (table, *tables) for part in (Text(), each)]
    return Group(title, sentence, *spaced, Text(), foot)


def _foot(state: Mapping[str, Any]) -> str:
    """What went in and out; and the snapshots and restarts, if there are any."""
    lines = [state["summary"]]
    for taken in state["taken"][-1:]:
        how = "" if taken["bytes"] is None else f"of {size(taken['bytes'])}, "
        how += f"took {seconds(taken['ms'] / 1000)}"
        lines.append(
            f"snapshot {taken['id']} " + (f"failed: {taken['error']}" if taken["error"] else how)
        )
    for failure in state["failures"][-1:]:
        restarts = state["snapshots"].get("restarts", 1)
        lines.append(f"restarts: {restarts}, the last one because {failure['cause']}")
    return "\n".join(lines)


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _bar(row: Mapping[str, Any], width: int) -> Text:
    """Busy, blocked and waiting; by shape as well as by colour."""
    from rich.text import Text

    if row["busy"] is None:
        return Text("")
    busy = round(row["busy"] * width)
    blocked = min(width - busy, round(row["blocked"] * width))
    return Text.assemble(
        ("█" * busy, "yellow"), ("▒" * blocked, "blue"), ("·" * (width - busy - blocked), "dim")
    )
