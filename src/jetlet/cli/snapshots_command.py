"""``jetlet snapshots``: what there is to go on from, and what is in it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

from jetlet.cli.failures import Refused
from jetlet.cli.jobs_commands import show_table
from jetlet.cli.running_jobs import running_jobs
from jetlet.errors import JetletError, PlanningError
from jetlet.snapshots.format import SnapshotRecord
from jetlet.snapshots.reading import StateEntry, read
from jetlet.snapshots.signing import Signer
from jetlet.snapshots.store import Exports, SnapshotStore
from jetlet.storage.file_systems import locate, without_credentials
from jetlet.ui.progress_display import size

LISTED = Signer(is_checking=False)
"""Nothing is unpickled in order to list what is there."""


class _Snapshots(click.Group):
    """Its own arguments are those of ``list``, so what is no command is a directory."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] not in (["show"], ["--help"]):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Snapshots, subcommand_metavar="[DIRECTORY [--delete NAME] | show ...]")
def snapshots() -> None:
    """List the snapshots in a directory, or show what is in one.

    DIRECTORY is the --snapshot-dir of a job, or any URL that fsspec knows; without it, those of the
    jobs that run. Snapshots with a name were saved with 'jetlet snapshot', and stay until they are
    deleted. The others belong to a job, which goes on from the newest one when it is run again.

    \b
    Examples:
      jetlet snapshots state
      jetlet snapshots state --delete before-upgrade
      jetlet snapshots s3://bucket/state --json
      jetlet snapshots show state --vertex rolling-aggregate --key ann
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@snapshots.command("list", hidden=True)
@click.argument("directory", required=False)
@click.option(
    "--delete", metavar="NAME", help="Delete the snapshot that was saved under this name."
)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each snapshot.")
def list_(directory: str | None, delete: str | None, as_json: bool) -> None:
    """List the snapshots in a directory: what 'jetlet snapshots' does by itself."""
    directories = [directory] if directory is not None else _directories_in_use()
    try:
        if delete is not None:
            _delete(directories, delete)
            return
        found = [(place, record) for place in directories for record in _records(place)]
    except JetletError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot read the snapshots: {error}") from error
    if as_json:
        for place, record in found:
            click.echo(json.dumps(_as_json(place, record), ensure_ascii=False))
    elif found:
        show_table(
            ("JOB", "SNAPSHOT", "TAKEN AT", "SIZE", "MEMBERS", "IN"),
            [
                (
                    record.job_name,
                    record.name or f"#{record.snapshot_id}",
                    _local_time(record.ended_ms),
                    size(record.size),
                    str(record.members),
                    without_credentials(place),
                )
                for place, record in found
            ],
        )
    else:
        places = ", ".join(map(without_credentials, directories))
        click.echo(f"there are no snapshots in {places}", err=True)


@snapshots.command()
@click.argument("directory")
@click.option("--vertex", metavar="NAME", help="The stage, or vertex, whose state is shown.")
@click.option(
    "--key",
    metavar="KEY",
    help="Only what belongs to this key: written as in Python, else it is text.",
)
@click.option("--job", metavar="NAME", help="Whose snapshots, if DIRECTORY has several jobs'.")
@click.option(
    "--snapshot",
    metavar="NAME",
    help="The name of a saved snapshot, or the number of one; by default the job's newest.",
)
@click.option(
    "--snapshot-key-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The file with the secret by which the snapshots are signed.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="So many entries at most.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each entry.")
def show(
    directory: str,
    vertex: str | None,
    key: str | None,
    job: str | None,
    snapshot: str | None,
    snapshot_key_file: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Show the state in a snapshot: without --vertex which stages have any.

    What is shown is unpickled: read only snapshots of those whom you trust. The classes of keys and
    values have to be importable; set PYTHONPATH for those of your own modules.
    """
    options: dict[str, Any] = {} if key is None else {"key": _literal(key)}
    if snapshot_key_file is not None:
        options["snapshot_key"] = Path(snapshot_key_file).read_bytes().strip()
    number = int(snapshot) if snapshot is not None and snapshot.isdigit() else snapshot
    try:
        contents = read(directory, vertex, job=job, snapshot=number, **options)
        if vertex is None and key is None:
            for name in contents.vertices:
                click.echo(json.dumps({"vertex": name}) if as_json else name)
            return
        is_empty = True
        for entry in islice(contents, limit):
            is_empty = False
            click.echo(_entry_as_json(entry) if as_json else _entry_as_text(entry))
        if is_empty and key is not None:
            click.echo(_nothing_for(key), err=True)
    except PlanningError as error:
        raise Refused(str(error)) from error
    except JetletError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot read the snapshots: {error}") from error


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _nothing_for(text: str) -> str:
    key = _literal(text)
    hint = "" if isinstance(key, str) else f'; for the text write --key "{text!r}"'
    return f"nothing is kept for the key {key!r}{hint}"


def _entry_as_text(entry: StateEntry) -> str:
    key = f"({entry.key!r}, for all)" if entry.is_shared else repr(entry.key)
    return f"{entry.vertex}  {key}  {entry.value!r}"


def _entry_as_json(entry: StateEntry) -> str:
    values = entry._asdict() | {"key": _for_json(entry.key), "value": _for_json(entry.value)}
    return json.dumps(values, ensure_ascii=False)


def _for_json(value: Any) -> Any:
    """What JSON has no form for is shown as Python does."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


def _local_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def _directories_in_use() -> list[str]:
    statuses = [job.status for job in running_jobs()]
    found = dict.fromkeys(s["snapshot_dir"] for s in statuses if s and s["snapshot_dir"])
    if not found:
        raise Refused("no job with snapshots runs: write jetlet snapshots DIRECTORY")
    return list(found)


def _records(place: str) -> Iterator[SnapshotRecord]:
    storage, root = locate(place)
    jobs = storage.entries(storage.join(root, "jobs"))
    exports = Exports(storage, root, LISTED)
    names = exports.names()
    if jobs is None and not names:
        raise Refused(f"{without_credentials(place)} has no snapshots of any job in it")
    for entry in jobs or ():
        for stored in SnapshotStore(storage, root, unquote(entry.name), LISTED).snapshots():
            yield stored.record
    for name in names:
        for record in exports.directory(name).records():
            if isinstance(record, SnapshotRecord):
                yield record
            else:
                click.echo(f"warning: {record}", err=True)


def _delete(directories: list[str], name: str) -> None:
    if len(directories) > 1:
        raise Refused(
            f"several jobs run: write jetlet snapshots DIRECTORY --delete {name}, where DIRECTORY "
            f"is one of {', '.join(map(without_credentials, directories))}"
        )
    Exports(*locate(directories[0]), LISTED).delete(name)
    click.echo(f"{name} is deleted", err=True)


def _as_json(place: str, record: SnapshotRecord) -> dict[str, Any]:
    return {
        "job": record.job_name,
        "snapshot": record.snapshot_id,
        "name": record.name,
        "taken_ms": record.ended_ms,
        "took_ms": record.ended_ms - record.began_ms,
        "bytes": record.size,
        "members": record.members,
        "is_terminal": record.is_terminal,
        "stages": {
            name: {"entries": state.entries, "bytes": state.bytes}
            for name, state in record.vertices.items()
            if state.entries
        },
        "directory": without_credentials(place),
    }
