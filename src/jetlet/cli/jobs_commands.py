"""``jetlet jobs``, and what is asked of running jobs: ``suspend``, ``drain``, ``snapshot``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from jetlet.cli.running_jobs import JobGoneError, RunningJob, find_job, running_jobs
from jetlet.ui.progress_display import seconds, size


@click.command()
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each job.")
def jobs(as_json: bool) -> None:
    """List the jobs that run.

    These are the jobs that were started with 'jetlet run', by you and on this machine, and have not
    ended. A suspended job is one of them: its process waits for 'jetlet resume'.

    \b
    Examples:
      jetlet jobs
      jetlet jobs --json | jq .status
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    found = running_jobs()
    if as_json:
        for job in found:
            about = job.status or {"job": job.name, "process": job.process, "status": None}
            click.echo(json.dumps({k: v for k, v in about.items() if k != "ok"}))
        return
    if not found:
        click.echo("no job runs", err=True)
        return
    show_table(
        ("JOB", "PROCESS", "STATUS", "FOR", "SNAPSHOTS", "FROM"), [_row(job) for job in found]
    )
    for job in found:
        if job.status is not None and job.status["error"]:
            click.echo(f"{job.name}: {job.status['error']}", err=True)


def _row(job: RunningJob) -> Sequence[str]:
    status = job.status
    if status is None:
        return (job.name, str(job.process), "does not answer", "", "", "")
    age = max(0.0, time.time() - status["submitted_ms"] / 1000)
    taken = _snapshots(status["snapshots"]) if status["snapshot_dir"] else "none"
    return (job.name, str(job.process), status["status"], seconds(age), taken, status["target"])


def _snapshots(stats: Mapping[str, Any]) -> str:
    """``17, the last one of 1.2 MB; 2 failed``."""
    text = f"{stats.get('taken', 0):,}"
    if stats.get("taken"):
        text += f", the last one of {size(stats['last_bytes'])}"
    if stats.get("failed"):
        text += f"; {stats['failed']:,} failed"
    if stats.get("restarts"):
        text += f"; {stats['restarts']:,} restarts"
    return text


@click.command()
@click.argument("job", required=False)
def suspend(job: str | None) -> None:
    """Stop a job with a snapshot, until it is resumed.

    Returns when that is done. The process of the job stays, and waits. What the job has written so
    far is committed; nothing is lost and nothing comes twice when it goes on.

    JOB is the name of a job that was started with 'jetlet run', by you and on this machine, or the
    number of its process; it can be left out if there is only one. It must have been started with
    --snapshot-dir.

    \b
    Examples:
      jetlet suspend clicks
      jetlet resume clicks
    """  # noqa: D301
    answer = find_job(job, "suspend").ask("suspend")
    click.echo(f"{answer['job']} is suspended{_at_snapshot(answer)}", err=True)


@click.command()
@click.argument("job", required=False)
def resume(job: str | None) -> None:
    """Let a suspended job go on from its last snapshot.

    JOB is the name of a job, or the number of its process; it can be left out if there is only one.
    """
    answer = find_job(job, "resume").ask("resume")
    click.echo(f"{answer['job']} goes on{_at_snapshot(answer)}", err=True)


@click.command()
@click.argument("job", required=False)
def restart(job: str | None) -> None:
    """Stop a job with a snapshot and start it again from there, in the same process.

    JOB is the name of a job, or the number of its process; it can be left out if there is only one.
    """
    answer = find_job(job, "restart").ask("restart")
    click.echo(f"{answer['job']} was restarted{_at_snapshot(answer)}", err=True)


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] N")
def rescale(words: tuple[str, ...]) -> None:
    """Let a job go on with another number of members.

    It stops with a snapshot and starts again from there. On Spark there have to be slots for so
    many.

    JOB is the name of a job, or the number of its process; it can be left out if there is only one.

    \b
    Example:
      jetlet rescale clicks 4
    """  # noqa: D301
    if len(words) not in (1, 2) or not words[-1].isdigit() or not int(words[-1]):
        raise click.UsageError("write the job and a number of members: jetlet rescale clicks 4")
    *job, members = words
    found = find_job(job[0] if job else None, "rescale")
    answer = found.ask("rescale", members=int(members))
    click.echo(f"{answer['job']} goes on with {members} members{_at_snapshot(answer)}", err=True)


@click.command()
@click.argument("job", required=False)
@click.option(
    "--snapshot",
    "name",
    metavar="NAME",
    help="Stop with a snapshot and keep it under this name, to start another job from.",
)
def cancel(job: str | None, name: str | None) -> None:
    """End a job.

    Without --snapshot it ends at once, as after Ctrl-C. With it, the job stops with a snapshot, as
    'jetlet suspend' does, which is kept under the name; then it ends.

    The snapshots of the job itself stay. Run it again with the same --snapshot-dir, and it goes on
    from the last one.

    JOB is the name of a job, or the number of its process; it can be left out if there is only one.

    \b
    Examples:
      jetlet cancel clicks
      jetlet cancel clicks --snapshot before-upgrade
      jetlet run new_clicks.py --on embedded --snapshot-dir state --from-snapshot before-upgrade
    """  # noqa: D301
    found = find_job(job, "cancel")
    try:
        found.ask("cancel", to_end=True, **({} if name is None else {"name": name}))
    except JobGoneError:
        # Its answer was lost with the process, which is what was asked for.
        if name is not None:
            raise click.ClickException(
                f"{found.name} has ended; look for the snapshot with 'jetlet snapshots'"
            ) from None
    kept = "" if name is None else f"; its state is in the snapshot {name!r}"
    click.echo(f"{found.name} is cancelled{kept}", err=True)


@click.command()
@click.argument("job", required=False)
def drain(job: str | None) -> None:
    """Let a job of tasks finish what it has read, commit that, and end.

    Returns at once; the job has ended when its process has. Run it again, and it goes on behind
    what it has done.

    JOB is the name of a job, or the number of its process; it can be left out if there is only one.
    """
    answer = find_job(job, "drain").ask("drain")
    click.echo(f"{answer['job']} reads nothing more, and ends with what it has", err=True)


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] NAME")
def snapshot(words: tuple[str, ...]) -> None:
    """Save the state of a job under a name, while it goes on.

    The snapshot is kept until somebody deletes it ('jetlet snapshots --delete NAME'). A job can be
    started from it with 'jetlet run --from-snapshot NAME'. That of a suspended job is its last one.

    JOB is the name of a job, or the number of its process; it can be left out if there is only one.

    \b
    Examples:
      jetlet snapshot clicks before-upgrade
      jetlet snapshots
    """  # noqa: D301
    if len(words) not in (1, 2):
        raise click.UsageError("write the job and a name: jetlet snapshot clicks before-upgrade")
    *job, name = words
    answer = find_job(job[0] if job else None, "snapshot").ask("export", name=name)
    click.echo(
        f"the state of {answer['job']} is in the snapshot {name!r} in {answer['snapshot_dir']}",
        err=True,
    )


def _at_snapshot(answer: Mapping[str, Any]) -> str:
    last = answer["snapshots"].get("last_id")
    return "" if last is None else f", at snapshot {last}"


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
