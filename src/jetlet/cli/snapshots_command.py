"""``jetlet snapshots``: what there is to go on from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import click

from jetlet.cli.failures import Refused
from jetlet.cli.jobs_commands import show_table
from jetlet.cli.progress_display import size
from jetlet.cli.running_jobs import running_jobs
from jetlet.errors import JetletError
from jetlet.snapshots.format import SnapshotRecord
from jetlet.snapshots.signing import Signer
from jetlet.snapshots.store import Exports, SnapshotStore
from jetlet.storage.file_systems import locate, without_credentials

LISTED = Signer(is_checking=False)
"""Nothing is unpickled in order to list what is there."""


@click.command()
@click.argument("directory", required=False)
@click.option(
    "--delete", metavar="NAME", help="Delete the snapshot that was saved under this name."
)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each snapshot.")
def snapshots(directory: str | None, delete: str | None, as_json: bool) -> None:
    """List the snapshots in a directory.

    DIRECTORY is the --snapshot-dir of a job, or any URL that fsspec knows; without it, those of the
    jobs that run. Snapshots with a name were saved with 'jetlet snapshot', and stay until they are
    deleted. The others belong to a job, which goes on from the newest one when it is run again.

    \b
    Examples:
      jetlet snapshots state
      jetlet snapshots state --delete before-upgrade
      jetlet snapshots s3://bucket/state --json
    """  # noqa: D301 - click's mark for text that is not to be wrapped
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
