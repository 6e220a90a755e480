"""A member: a process that runs its share of a job. Started by a launcher, never by hand.

The main thread waits for the plan and then drives the execution; a second one, the network's, talks
to the coordinator and to the other members. The process ends with the job, and at once when the
coordinator is gone.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import pickle
import queue
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from io import TextIOWrapper
from typing import Any, TypeVar

from jetlet.core.arguments import error_line
from jetlet.core.pickling import adopt_classes, dump
from jetlet.core.remote_failure import RemoteFailure
from jetlet.errors import (
    JetletError,
    JobFailedError,
    RestartableError,
    kind_of_failure,
)
from jetlet.execution.execution_service import ExecutionService
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import OutboundEdge
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.plan_run import PlanRun
from jetlet.execution.shared_event_loop import SharedEventLoop
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.tuning import PACKET_LIMIT
from jetlet.jobs.members.client_link import ClientLink
from jetlet.jobs.members.launcher import Bootstrap
from jetlet.jobs.members.messages import (
    CLIENT_ACK,
    CONTROL,
    FAREWELL,
    SAVED,
    Alive,
    Committed,
    Counters,
    Drain,
    Drained,
    Ended,
    FinishSnapshot,
    Go,
    Halt,
    Joined,
    PeerLost,
    Plan,
    Ready,
    Saved,
    TakeSnapshot,
    Unheard,
)
from jetlet.metrics.log_book import LogBook
from jetlet.network.connection import Connection
from jetlet.network.handshake import COORDINATOR, ClientHandshake
from jetlet.network.hub import Hub
from jetlet.network.listener import connect, reach
from jetlet.network.receiver import ReceiverTasklet
from jetlet.network.sender import SenderTasklet
from jetlet.snapshots.context import SnapshotContext
from jetlet.snapshots.member import MemberSnapshots
from jetlet.snapshots.member_report import MemberReport
from jetlet.snapshots.restore import Restore
from jetlet.snapshots.writer import SnapshotWriter

logger = logging.getLogger("jetlet.member")

T = TypeVar("T")

HEARTBEAT = 0.25
"""Seconds between two signs of life."""
LOG_RECORDS = 40
"""So many of its latest log records go with each sign of life."""
ORPHAN_LIMIT = 1.0
"""Seconds that the process goes on after the coordinator is gone."""
ALONE_LIMIT = 5.0
"""Seconds without a plan after which a member looks whether it reaches its neighbours."""
SILENCE_LIMIT = 20.0
"""Seconds without an answer from the coordinator's host after which it is taken to be gone."""
SWITCH_INTERVAL = 0.0005
"""Seconds after which the interpreter lets another thread run. The network's thread must not wait
the usual 5 ms for a worker that is busy."""


class Member:
    """The life of this process."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._index = bootstrap.index
        self._count = bootstrap.count
        self._bootstrap = bootstrap
        self._secret = bytes.fromhex(bootstrap.secret)
        self._loops = SharedEventLoop("jetlet-network")
        self._loop = self._loops.lease()
        self._orders: queue.SimpleQueue[Plan | Go | Halt | None] = queue.SimpleQueue()
        """From the network's thread to the main one; ``None`` when the coordinator is gone."""
        self._control: Connection | None = None
        self._hub: Hub | None = None
        self._joining: asyncio.Task[None] | None = None
        self._client: ClientLink | None = None
        self._plan_run: PlanRun | None = None
        self._service: ExecutionService | None = None
        self._is_halted = False
        self._snapshots: MemberSnapshots | None = None
        self._epoch = 0
        self._reports: list[tuple[str, Any]] = []
        self._edges = _NetworkEdges()
        self._log_book = LogBook(LOG_RECORDS, self._index)
        self._place = f"{socket.gethostname()}, process {os.getpid()}"

    # --- The main thread --------------------------------------------------------------------

    def run(self) -> None:
        """Serve one job."""
        with self._log_book:
            self._serve_one()

    def _serve_one(self) -> None:
        self._tell(Joined(self._call(self._join_coordinator())))
        order = self._orders.get()
        if isinstance(order, Plan):
            self._say_farewell(self._serve(order))
        elif order is not None:
            self._say_farewell(None)
        # Until the coordinator hangs up: it has everything that was sent by then.
        while order is not None:
            order = self._orders.get()
        if self._plan_run is not None and self._plan_run.is_stuck:
            # Who knows what the interpreter would wait for at its end.
            os._exit(0)
        self._loops.release()

    def _serve(self, order: Plan) -> JobFailedError | None:
        """Run the plan to its end, and return why it failed if it did."""
        try:
            return self._run_plan(order)
        except JobFailedError as error:
            return error
        except Exception as error:
            failure = kind_of_failure(error)(
                f"job {order.job_name!r} failed on member {self._index}: {error_line(error)}"
            )
            failure.__cause__ = error
            return failure

    def _run_plan(self, order: Plan) -> JobFailedError | None:
        dag = pickle.loads(order.dag)
        adopt_classes(order.stray_classes)
        plan = ExecutionPlan(
            dag,
            default_parallelism=order.default_parallelism,
            member_index=self._index,
            member_count=self._count,
        )
        assert self._control is not None
        self._client = ClientLink(self._control, [v.name for v in dag.vertices])
        if not self._await_peers():
            return None
        service = self._service = order.tuning.service(f"jetlet-member-{self._index}")
        try:
            context = self._context(plan, order)
            run = self._plan_run = PlanRun(service, plan, context, self._await_start)
            if self._is_halted:
                run.cancel()
            error = run.run(self._announce_snapshots, waits_for_closing=True)
        finally:
            service.shut_down()
            if self._snapshots is not None:
                self._snapshots.close()
        return error if isinstance(error, JobFailedError) else None

    def _await_peers(self) -> bool:
        """Wait until all members are connected; false if the job is over before."""
        assert self._joining is not None
        joined: Coroutine[Any, Any, None] = _wait_for(self._joining)
        try:
            self._call(joined)
        except (CancelledError, asyncio.CancelledError):
            return False
        except JetletError as error:
            raise RestartableError(f"member {self._index}: {error}") from error
        return True

    def _context(self, plan: ExecutionPlan, order: Plan) -> RunContext:
        assert self._hub is not None
        assert self._client is not None
        self._edges.connections = self._hub.connections
        self._edges.packet_size = order.tuning.packet_size
        restore = self._prepare_snapshots(plan, order)
        return RunContext(
            job_name=order.job_name,
            run_id=order.run_id,
            attempt=str(order.epoch) if order.epoch else "",
            processing_guarantee=order.processing_guarantee,
            report=self._report,
            send_to_client=self._client.send,
            network=self._edges,
            snapshots=self._snapshots,
            restore=restore,
            call_target_ns=order.tuning.call_target_ns,
            marker_period_ns=order.tuning.marker_period_ns,
        )

    def _await_start(self, tasklets: list[Tasklet]) -> Sequence[Tasklet]:
        """Tell the coordinator that the tasklets are made, and wait for its word."""
        assert self._plan_run is not None
        self._call(self._carry())
        self._tell(Ready())
        if not isinstance(self._orders.get(), Go):
            self._plan_run.execution.cancel()
        return tasklets

    def _prepare_snapshots(self, plan: ExecutionPlan, order: Plan) -> Restore | None:
        """Make what takes snapshots, and return what this run begins with."""
        snapshots = order.snapshots
        if snapshots is None:
            return None
        self._epoch = order.epoch
        self._snapshots = MemberSnapshots(
            SnapshotContext(order.processing_guarantee, snapshots.last_id),
            SnapshotWriter(self._index, order.epoch, [v.name for v in plan.dag.vertices]),
            snapshots.since,
        )
        if snapshots.record is None or snapshots.directory is None:
            return None
        return Restore(snapshots.record, snapshots.directory, self._count)

    def _announce_snapshots(self) -> None:
        """All tasklets are initialised."""
        if self._snapshots is not None:
            self._snapshots.context.when_drained(lambda: self._tell(Drained(self._epoch)))

    def _report(self, vertex: str, message: Any) -> None:
        self._reports.append((vertex, message))

    def _say_farewell(self, error: JobFailedError | None) -> None:
        """Send the last message, behind all items."""
        failure = None if error is None else RemoteFailure.pack(error)
        counters = self._counters()
        ended = self._snapshots.all_ended() if self._snapshots is not None else ()
        try:
            message = dump(Ended(failure, self._reports, counters, ended))
        except Exception as e:
            failed = JobFailedError(
                f"what member {self._index} has to report cannot be sent: {error_line(e)}"
            )
            message = dump(Ended(failure or RemoteFailure.pack(failed), (), counters))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        assert self._control is not None
        # The connections with the other members stay open until the coordinator hangs up: a peer
        # may still have to read what was sent, and would lose it when its next write fails.
        self._control.send(FAREWELL, message)

    # --- Metrics ----------------------------------------------------------------------------

    def _counters(self) -> Counters:
        tasklets = self._plan_run.tasklets if self._plan_run is not None else ()
        return Counters(
            [
                (vertex, {"member": self._index, **row})
                for tasklet in tasklets
                for vertex, row in tasklet.metrics_rows()
            ],
            [{"member": self._index, **row} for row in self._edges.metrics()],
            [{**row, "place": self._place} for row in self._service.metrics(self._index)]
            if self._service
            else (),
            self._log_book.rows,
        )

    # --- The network's thread ---------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _join_coordinator(self) -> str:
        bootstrap = self._bootstrap
        self._hub = Hub(
            self._index,
            self._count,
            self._secret,
            on_lost=self._peer_lost,
            on_silence=self._unheard,
            beat=bootstrap.beat,
            directory=bootstrap.directory,
            host=bootstrap.host,
            ports=bootstrap.ports,
            tls=bootstrap.tls,
        )
        address = self._hub.listen()
        ready = asyncio.Event()

        def on_ready(connection: Connection) -> None:
            self._control = connection
            ready.set()

        control = partial(
            Connection,
            ClientHandshake(self._secret, self._index, COORDINATOR),
            on_ready=on_ready,
            on_message=self._hear,
            on_closed=self._hang_up,
            on_refused=self._hang_up,
            on_silence=self._unheard,
            beat=bootstrap.beat,
        )
        tls = bootstrap.tls.client_context() if bootstrap.tls is not None else None
        try:
            await connect(control, bootstrap.address, tls)
        except OSError:
            self._remove_directory()
            raise
        await ready.wait()
        assert self._control is not None
        self._control.break_in_silence(SILENCE_LIMIT)
        self._beating = self._loop.create_task(self._beat())
        if bootstrap.neighbours:
            self._looking = self._loop.create_task(self._look_for_neighbours())
        return address

    async def _look_for_neighbours(self) -> None:
        """Tell of one that nobody could start a member on, with a link that is down."""
        await asyncio.sleep(ALONE_LIMIT)
        found = (reach(address) for address in self._bootstrap.neighbours)
        for error in await asyncio.gather(*found, return_exceptions=True):
            is_dead = isinstance(error, OSError) and isinstance(error.__cause__, ConnectionError)
            if isinstance(error, OSError) and not is_dead and self._joining is None:
                self._tell(PeerLost(self._index, f"waits for others in vain: {error}"))

    async def _carry(self) -> None:
        assert self._hub is not None
        self._hub.carry(self._edges.senders, self._edges.receivers)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            try:
                counters = self._counters()
            except RuntimeError:  # something grew while it was read: next time
                counters = Counters()
            snapshots = self._snapshots
            awaited = () if snapshots is None else snapshots.context.awaited
            self._tell(Alive(counters, awaited))

    def _hear(self, connection: Connection, kind: int, body: memoryview) -> None:
        if kind == CLIENT_ACK:
            if self._client is not None:
                self._client.acknowledge(body)
            return
        message = pickle.loads(body)
        if isinstance(message, TakeSnapshot | FinishSnapshot):
            self._take_part(message)
            return
        if isinstance(message, Drain):
            if self._plan_run is not None:
                self._plan_run.drain()
            return
        if isinstance(message, Halt):
            self._halt()
        elif isinstance(message, Plan):
            assert self._hub is not None
            # At once: the main thread may need long to import what the plan refers to.
            self._joining = self._loop.create_task(self._hub.join(message.addresses))
        self._orders.put(message)

    def _take_part(self, message: TakeSnapshot | FinishSnapshot) -> None:
        """In a snapshot; nothing here blocks."""
        snapshots, epoch = self._snapshots, self._epoch
        if snapshots is None or message.epoch != epoch:
            return
        if isinstance(message, TakeSnapshot):
            snapshot_id = message.snapshot.snapshot_id

            def on_saved(report: MemberReport) -> None:
                assert self._control is not None
                self._control.send(SAVED, pickle.dumps(Saved(epoch, snapshot_id, report)))

            snapshots.begin(message.snapshot, message.directory, on_saved)
        else:
            finished = Committed(epoch, message.snapshot_id)
            snapshots.finish(
                message.snapshot_id,
                success=message.success,
                on_done=lambda: self._tell(finished),
            )

    def _halt(self) -> None:
        """Stop, whatever the main thread is doing."""
        self._is_halted = True
        if self._joining is not None:
            self._joining.cancel()
        if self._plan_run is not None:
            # Interrupting may block: not on this thread.
            threading.Thread(target=self._plan_run.cancel, daemon=True).start()

    def _hang_up(self, connection: Connection, error: Exception | None) -> None:
        """The coordinator has closed the connection, or is dead: there is nobody to work for."""
        if self._control is None:
            logger.error("member %d was not let in: %s", self._index, error)
        self._halt()
        self._orders.put(None)
        self._remove_directory()
        # Whatever user code may still be up to, this process does not outlive its job by long.
        self._loop.call_later(ORPHAN_LIMIT, os._exit, 1)

    def _remove_directory(self) -> None:
        """The coordinator is gone. It does this itself, unless it was killed."""
        if self._bootstrap.directory is not None:
            import shutil

            shutil.rmtree(self._bootstrap.directory, ignore_errors=True)

    def _peer_lost(self, member: int, error: Exception | None) -> None:
        reason = f"cannot be reached by member {self._index}: {error or 'it hung up'}"
        self._tell(PeerLost(member, reason))

    def _unheard(self, connection: Connection, silence: float) -> None:
        """The coordinator decides what it means: who is merely busy cannot be heard either."""
        over = silence - self._bootstrap.link_limit
        if over >= 0:
            words = (
                f"nothing came for {silence:.1f} s over the connection of {connection.addresses}"
            )
            if over < self._bootstrap.beat:  # told here once, and there until something comes
                logger.warning("%s", words)
            self._tell(Unheard(connection.peer, words))

    def _tell(self, message: object) -> None:
        assert self._control is not None
        self._control.send(CONTROL, pickle.dumps(message))


async def _wait_for(task: asyncio.Task[None]) -> None:
    await task


class _NetworkEdges:
    """Makes the tasklets of distributed edges and remembers them for the hub."""

    def __init__(self) -> None:
        self.connections: Mapping[int, Connection] = {}
        self.packet_size = PACKET_LIMIT
        self.senders: dict[tuple[int, int], SenderTasklet] = {}
        self.receivers: dict[int, ReceiverTasklet] = {}

    def sender(self, edge: int, member: int, name: str, inbound: InboundEdge) -> Tasklet:
        wire = self.connections[member]
        tasklet = SenderTasklet(edge, name, member, inbound, wire, self.packet_size)
        self.senders[edge, member] = tasklet
        return tasklet

    def receiver(self, edge: int, name: str, outbound: Mapping[int, OutboundEdge]) -> Tasklet:
        tasklet = self.receivers[edge] = ReceiverTasklet(name, outbound)
        return tasklet

    def metrics(self) -> list[dict[str, Any]]:
        """A row for each end of an edge on this member."""
        rows = [sender.metrics.snapshot() for sender in list(self.senders.values())]
        for receiver in list(self.receivers.values()):
            rows += [lane.metrics.snapshot() for lane in receiver.lanes.values()]
        return rows


def main(values: dict[str, Any]) -> None:
    """Serve the job that standard input told of."""
    bootstrap = Bootstrap.from_dict(values)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, TextIOWrapper)
        # By the line, so that what was printed is not lost with the process.
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)
    # User code that reads standard input finds its end, as it would on any other host.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    logging.basicConfig(
        level=bootstrap.log_level,
        format=f"%(levelname)s member {bootstrap.index} %(name)s: %(message)s",
        stream=sys.stderr,
    )
    Member(bootstrap).run()
