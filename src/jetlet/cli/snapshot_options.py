"""The options of ``jetlet run`` that are about snapshots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from jetlet.cli.failures import Refused
from jetlet.jobs.config import JobConfig
from jetlet.pipeline.pipeline import Pipeline
from jetlet.snapshots.context import GUARANTEES, NONE
from jetlet.snapshots.signing import Signer
from jetlet.snapshots.store import SnapshotStore
from jetlet.storage.file_systems import locate

LATEST = "latest"
F = TypeVar("F", bound=Callable[..., Any])

FLAGS = {
    "guarantee": "--guarantee",
    "snapshot_dir": "--snapshot-dir",
    "snapshot_interval": "--snapshot-interval",
    "snapshot_timeout": "--snapshot-timeout",
    "snapshot_key_file": "--snapshot-key-file",
    "keep_snapshots": "--keep-snapshots",
    "from_snapshot": "--from-snapshot",
    "restart_from": "--restart-from",
    "fresh": "--fresh",
    "allow_changed_stages": "--allow-changed-stages",
    "allow_older_snapshot": "--allow-older-snapshot",
    "suspend_on_failure": "--suspend-on-failure",
}
FIELDS = {
    "guarantee": "processing_guarantee",
    "from_snapshot": "initial_snapshot",
    "fresh": "start_fresh",
}
"""Fields of the job's configuration whose options have another name."""

_OPTIONS = [
    click.option(
        "--guarantee",
        type=click.Choice(GUARANTEES),
        help="What a failure may do to results; needs --snapshot-dir. By default none.",
    ),
    click.option(
        "--snapshot-dir",
        metavar="DIR",
        help="Where snapshots go, a directory or a URL. A job that was run with it "
        "before, and has not completed, goes on from its last snapshot.",
    ),
    click.option(
        "--snapshot-interval",
        type=click.FloatRange(min=0.0, min_open=True),
        metavar="SECONDS",
        help="Between two snapshots; by default 10.",
    ),
    click.option(
        "--snapshot-timeout",
        type=click.FloatRange(min=0.0, min_open=True),
        metavar="SECONDS",
        help="After which a snapshot counts as failed; after three times as long the job is "
        "restarted. By default 600.",
    ),
    click.option(
        "--snapshot-key-file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="A file with a secret, by which snapshots are signed; one that others have changed is "
        "refused.",
    ),
    click.option(
        "--keep-snapshots",
        type=click.IntRange(min=1),
        metavar="N",
        help="How many good ones are kept; by default 1.",
    ),
    click.option(
        "--from-snapshot",
        metavar="NAME",
        help="Begin with what 'jetlet snapshot' has saved under this name, or with the "
        "one at a path.",
    ),
    click.option(
        "--restart-from",
        metavar="latest|NAME",
        help="Go on from the job's last snapshot, which must be there; or from one that was saved "
        "under this name, whatever came after it.",
    ),
    click.option("--fresh", is_flag=True, help="Begin anew, and forget old snapshots."),
    click.option(
        "--allow-changed-stages",
        is_flag=True,
        help="Begin although stages with state have come or gone since the snapshot.",
    ),
    click.option(
        "--allow-older-snapshot",
        is_flag=True,
        help="If the last snapshot is missing or damaged, go on from the one before it, and "
        "write again what was written since.",
    ),
    click.option(
        "--suspend-on-failure",
        is_flag=True,
        help="Wait for 'jetlet resume' if the job fails for good.",
    ),
]


def snapshot_options(command: F) -> F:
    """Add them to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def snapshot_settings(
    given: dict[str, Any], what: object, *, is_batch_on_spark: bool
) -> dict[str, Any]:
    """Take them out of ``given``; what they say for the job's configuration."""
    values = {name: given.pop(name) for name in FLAGS}
    settings = {name: value for name, value in values.items() if value not in (None, False)}
    if not settings:
        return {}
    flag = FLAGS[next(iter(settings))]
    if is_batch_on_spark:
        raise Refused(
            f"{flag} is for streams: a bounded pipeline on Spark gives exact results without it. "
            f"Leave it out, or write --on embedded or --streaming members"
        )
    if not isinstance(what, Pipeline) and hasattr(what, "checkpoints"):
        raise Refused(f"{flag} is for pipelines; tasks keep checkpoints of their own: leave it out")
    if "snapshot_dir" not in settings:
        raise Refused(f"{flag} needs a place for snapshots: write --snapshot-dir state, too")
    if settings.get("guarantee", NONE) == NONE:
        for name in ("snapshot_interval", "keep_snapshots", "suspend_on_failure"):
            if name in settings:
                raise Refused(
                    f"{FLAGS[name]} is for jobs that take snapshots by themselves: write "
                    f"--guarantee exactly-once, too"
                )
    key_file = settings.pop("snapshot_key_file", None)
    if key_file is not None:
        settings["snapshot_key"] = Path(key_file).read_bytes().strip()
    restart_from = settings.pop("restart_from", None)
    if restart_from is not None:
        for name in ("from_snapshot", "fresh"):
            if name in settings:
                raise Refused(f"{FLAGS[name]} and --restart-from: write one of them")
        if restart_from != LATEST:
            settings |= {"fresh": True, "from_snapshot": restart_from}
    return {FIELDS.get(name, name): value for name, value in settings.items()}


def check_restart(restart_from: str | None, config: JobConfig, name: str) -> None:
    """Refuse to begin anew if that is not wanted."""
    if restart_from != LATEST or config.snapshot_dir is None:
        return
    storage, root = locate(config.snapshot_dir, config.storage_options)
    if not SnapshotStore(storage, root, name, Signer(config.snapshot_key)).snapshots():
        raise Refused(
            f"--restart-from {LATEST}: job {name!r} has no snapshot in {config.snapshot_dir}; "
            f"leave it out to begin anew"
        )
