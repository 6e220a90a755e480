"""JobConfig: how a job is to be run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from jetlet.core.dag import DAG
from jetlet.core.sizes import Size, to_bytes
from jetlet.core.state_on_disk import DISK, MEMORY, StateKind, StateOnDisk
from jetlet.core.vertex import check_saves
from jetlet.errors import InvalidArgumentError, UnsupportedFeatureError
from jetlet.execution.tasklet_supplier import TaskletSupplier
from jetlet.execution.tuning import PACKET_LIMIT
from jetlet.network.tls import Tls
from jetlet.snapshots.context import GUARANTEES, NONE
from jetlet.snapshots.signing import MIN_KEY

logger = logging.getLogger("jetlet.job")

OF_SNAPSHOTS = (
    "snapshot_interval",
    "storage_options",
    "snapshot_key",
    "keep_snapshots",
    "start_fresh",
    "allow_changed_stages",
    "allow_older_snapshot",
)
OF_RESTARTS = ("max_restarts", "restart_pause", "max_restart_pause")
OF_MEMBERS = ("link_timeout", "packet_size", "ports", "tls")
MIN_LINK_TIMEOUT = 2.0
DEFAULT_STATE_MEMORY = "512 MiB"
MEMBERS = "members"
MICRO_BATCH = "micro-batch"
ALL = "all"
"""As many members as there is a place for, at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """Settings of one job; all have defaults that suit a bounded pipeline."""

    name: str | None = None
    """By default the name of the pipeline or DAG. It names the job's snapshots, too."""
    default_parallelism: int | None = None
    """Processors per vertex and member where a stage does not say; default: one per worker."""
    processing_guarantee: str = NONE
    """``none``, ``at-least-once`` or ``exactly-once``: what a restart may do to results."""
    snapshot_interval: float = 10.0
    """Seconds between two snapshots, if there is a guarantee."""
    snapshot_timeout: float = 600.0
    """Seconds after which a snapshot that is not complete counts as failed, and is logged with who
    has not answered. What comes late is taken all the same; after three times as long the job is
    restarted. A barrier passes behind all that is in the queues: have patience with slow stages."""
    snapshot_dir: str | None = None
    """Where snapshots go: a directory, or any URL that fsspec knows. A job that is submitted with
    the directory and the name of an earlier one goes on from the last snapshot of that one, unless
    that has completed."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """For the client of the file system of ``snapshot_dir`` and ``initial_snapshot``, as for that
    of a source: credentials, an endpoint. They travel to members, and are not shown."""
    snapshot_key: bytes | None = field(default=None, repr=False)
    """A secret of 16 bytes or more by which snapshots are signed. One that was changed, or was not
    written by a job with the same key, is refused before anything in it is unpickled. It travels to
    members as all of the job does, and is never written or shown."""
    keep_snapshots: int = 1
    """How many good snapshots are kept, besides the one that is being written."""
    start_fresh: bool = False
    """Begin anew, and forget what an earlier job of this name has left in ``snapshot_dir``."""
    initial_snapshot: str | None = None
    """What to begin with, if the job has no snapshot of its own yet: the name of an exported
    snapshot in ``snapshot_dir``, or the path or URL of any (which has a slash in it)."""
    allow_changed_stages: bool = False
    """Restore a snapshot even if stages with state have gone or come since it was taken: the state
    of those is dropped, and these begin without any."""
    allow_older_snapshot: bool = False
    """Go on from an older snapshot if the last one is missing or damaged, although with
    ``exactly-once`` that writes again what was committed since the older one. Other guarantees go
    on from it by themselves."""
    max_restarts: int = 10
    """How often in a row, without a snapshot in between, the job is restarted from its last
    snapshot after a failure that a restart may cure, such as a lost member or a full disk. With
    ``processing_guarantee="none"`` it never is, unless it has tasks with checkpoints."""
    restart_pause: float = 0.1
    """Seconds before the first of these restarts; before each further one it is twice as long."""
    max_restart_pause: float = 30.0
    link_timeout: float = 10.0
    """Seconds within which it is noticed that nothing comes over the connection of two members, or
    of one with the submitting process. Then the job fails, or restarts if it has snapshots."""
    packet_size: int = PACKET_LIMIT
    """Bytes that a packet from one member to another should have at the most. Larger ones cost less
    for each item, smaller ones come sooner."""
    ports: tuple[int, int] | None = None
    """First and last of the ports at which members listen, and the submitting process, where they
    meet over a network: for a firewall that lets these through. By default any that are free."""
    tls: Tls | bool | None = None
    """Whether what members send each other, and the submitting process, is encrypted. By default it
    is as soon as it leaves this machine. ``True`` makes certificates for the job, as the default
    does; ``Tls(certificate, key, ca)`` are your own; ``False`` leaves it open to who can listen,
    though nobody can join who does not know the job's secret."""
    call_budget: float | None = None
    """Seconds that a call of a processor should take: as many items are handed to it as it manages
    in that time. By default 1 ms, and 50 ms in a batch on Spark, where nobody waits for single
    items."""
    suspend_on_failure: bool = False
    """Suspend the job when it fails, so that it can be resumed from its last snapshot."""
    streaming: str | None = None
    """How a stream runs on Spark: ``members``, long-lived tasks of one stage that pass items on at
    once; or ``micro-batch``, small jobs of Structured Streaming. By default members, unless the
    pipeline reads a Spark stream. ``members`` goes for bounded pipelines, too."""

    latency_markers: float | None = None
    """Seconds between two markers that each source sends along with its items, to measure how long
    these take to the sinks; ``None`` sends none. They do not wait for what a window, or a call that
    is awaited, holds back."""
    state: StateKind | None = None
    """Where stages keep their state by key, if they do not say it: ``memory``, or ``disk``, with
    what was used last in memory. By default in memory, unless there is a ``state_memory``."""
    state_memory: Size | None = None
    """How much state may be in memory on each member, in bytes or as ``"2 GiB"``; what is above it
    goes to disk. By default 512 MiB, if ``state`` is ``disk``. It is for all stages that keep their
    state on disk, and for nothing else."""
    state_dir: str | None = None
    """Directory for state on disk, on each member: that of temporary files by default. Use a fast
    disk of the machine's own. What is there is removed at the end; snapshots are what lasts."""
    ui: bool = False
    """Whether to serve a page that shows the job at work, and print its address; the same as
    ``engine.ui()``, where port, host and more can be said."""

    def __post_init__(self) -> None:
        if isinstance(self.snapshot_dir, os.PathLike):
            object.__setattr__(self, "snapshot_dir", os.fspath(self.snapshot_dir))
        if self.processing_guarantee not in GUARANTEES:
            raise InvalidArgumentError(
                f"processing_guarantee must be one of {', '.join(GUARANTEES)}, "
                f"not {self.processing_guarantee!r}"
            )
        if self.streaming not in (None, MEMBERS, MICRO_BATCH):
            raise InvalidArgumentError(
                f"streaming must be {MEMBERS!r} or {MICRO_BATCH!r}, not {self.streaming!r}"
            )
        key: object = self.snapshot_key
        if key is not None and not (isinstance(key, bytes) and len(key) >= MIN_KEY):
            raise InvalidArgumentError(
                f"snapshot_key is a secret of {MIN_KEY} bytes or more: make one with "
                f"secrets.token_bytes(32), and keep it where only the owner of the job can read it"
            )
        for name in ("default_parallelism", "keep_snapshots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {value}")
        for name in ("snapshot_interval", "snapshot_timeout", "restart_pause", "max_restart_pause"):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(
                    f"{name} is in seconds and positive, not {getattr(self, name)}"
                )
        if not isinstance(self.tls, Tls | bool | None):
            raise InvalidArgumentError(
                f"tls is True, False or Tls(certificate, key, ca), not {self.tls!r}"
            )
        if self.ports is not None and not _are_ports(self.ports):
            raise InvalidArgumentError(
                f"ports are the first and the last one, such as (40000, 40100), not {self.ports!r}"
            )
        if self.packet_size < 1:
            raise InvalidArgumentError(f"packet_size is in bytes, not {self.packet_size}")
        if self.state not in (None, MEMORY, DISK):
            raise InvalidArgumentError(f"state must be {MEMORY!r} or {DISK!r}, not {self.state!r}")
        if self.state_memory is not None:
            to_bytes("state_memory", self.state_memory)
        if isinstance(self.state_dir, os.PathLike):
            object.__setattr__(self, "state_dir", os.fspath(self.state_dir))
        if self.latency_markers is not None and self.latency_markers <= 0:
            raise InvalidArgumentError(
                f"latency_markers is in seconds and positive, not {self.latency_markers}"
            )
        if self.call_budget is not None and self.call_budget <= 0:
            raise InvalidArgumentError(
                f"call_budget is in seconds and positive, not {self.call_budget}"
            )
        if self.link_timeout < MIN_LINK_TIMEOUT:
            raise InvalidArgumentError(
                f"link_timeout must be {MIN_LINK_TIMEOUT} s or more, not {self.link_timeout}: "
                f"members that are busy are silent for a while"
            )
        if self.max_restarts < 0:
            raise InvalidArgumentError(
                f"max_restarts cannot be {self.max_restarts}: write 0 or more"
            )
        if self.suspend_on_failure and self.processing_guarantee == NONE:
            raise InvalidArgumentError(
                "suspend_on_failure=True is for jobs that can be resumed from a snapshot: write "
                'processing_guarantee="exactly-once", too'
            )

    def call_target_ns(self, default: int) -> int:
        """The call budget, in nanoseconds."""
        return default if self.call_budget is None else round(self.call_budget * 1e9)

    @property
    def default_state(self) -> str:
        """Where stages keep their state that do not say it."""
        return self.state or (MEMORY if self.state_memory is None else DISK)

    @property
    def state_on_disk(self) -> StateOnDisk:
        """Where state is that is on disk."""
        memory = to_bytes("state_memory", self.state_memory or DEFAULT_STATE_MEMORY)
        return StateOnDisk(memory, self.state_dir)

    @property
    def marker_period_ns(self) -> int:
        """Nanoseconds between two latency markers; 0 if there are none."""
        return 0 if self.latency_markers is None else max(1, round(self.latency_markers * 1e9))

    def tell_ignored(self, names: Iterable[str], where: str) -> None:
        """Log which of these settings were made, since they have no effect ``where`` it runs."""
        defaults = {field.name: field.default for field in fields(self)}
        made = [
            f"{name}={getattr(self, name)!r}" if name != "snapshot_key" else name
            for name in names
            if getattr(self, name) != defaults[name]
        ]
        if made:
            logger.warning("%s has no effect on %s", ", ".join(made), where)

    def check_directory(self, dag: DAG | None = None) -> None:
        """Refuse what needs snapshots where there is no place for them, or what has none.

        The same for what does not save its state, which a guarantee is to keep.
        """
        asked = (self.processing_guarantee != NONE, self.snapshot_dir, self.initial_snapshot)
        if dag is not None and any(isinstance(v.supplier, TaskletSupplier) for v in dag):
            if any(asked):
                raise UnsupportedFeatureError(
                    f"{dag.name!r} has tasks, which are committed to checkpoints of their own and "
                    f"take no snapshots: leave out processing_guarantee and snapshot_dir, and "
                    f'write TaskApplication(..., checkpoints=checkpoints.in_directory("state")); '
                    f"to interrupt it, cancel the job, which commits, and submit it again; "
                    f"exactly-once is TaskConfig(processing_guarantee='exactly-once')"
                )
            return
        merging = next((e for e in dag.edges if e.sort_key is not None), None) if dag else None
        if merging is not None and any(asked):
            raise UnsupportedFeatureError(
                f"{merging}: what is merged in order is not in snapshots: leave out .ordered(), or "
                f"processing_guarantee and snapshot_dir"
            )
        if self.snapshot_dir is not None:
            if dag is not None and self.processing_guarantee != NONE:
                check_saves(dag, f"when the job, which runs {self.processing_guarantee}, restarts")
            return
        self.tell_ignored(OF_SNAPSHOTS, "a job without a snapshot_dir, which takes no snapshots")
        if self.processing_guarantee != NONE:
            what = f"processing_guarantee={self.processing_guarantee!r}"
        elif self.initial_snapshot is not None:
            what = f"initial_snapshot={self.initial_snapshot!r}"
        else:
            return
        raise InvalidArgumentError(
            f'{what} needs a place for snapshots: write JobConfig(snapshot_dir="state", ...)'
        )


def _are_ports(ports: object) -> bool:
    if not isinstance(ports, tuple) or len(ports) != 2:
        return False
    first, last = ports
    return type(first) is int and type(last) is int and 1 <= first <= last <= 65535
