"""MembersRunner: runs a job on member processes; the driver of the coordinator."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge
from jetlet.core.vertex import Vertex
from jetlet.errors import JobCancelledError, JobFailedError, RestartableError
from jetlet.execution.event_loop import SharedEventLoop
from jetlet.jobs.coordinator import (
    Action,
    Coordinator,
    Finish,
    Kill,
    MemberLost,
    SendPlan,
    Start,
    Stop,
)
from jetlet.jobs.job import Run
from jetlet.jobs.launcher import Bootstrap, MemberLauncher
from jetlet.jobs.messages import CLIENT, CONTROL, Alive, Ended, Go, Halt, Joined, PeerLost, Plan, Ready
from jetlet.jobs.remote_failure import RemoteFailure
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.network.connection import Connection
from jetlet.network.handshake import ServerHandshake, new_secret
from jetlet.network.hub import listen
from jetlet.network.packets import decode_header, decode_items

logger = logging.getLogger("jetlet.job")

TICK = 0.1


class MembersRunner:
    """Runs one job on ``count`` members. The job's thread drives it; a network thread listens."""

    def __init__(
        self,
        dag: DAG,
        count: int,
        launcher: Callable[[], MemberLauncher],
        *,
        default_parallelism: int,
        workers: int | None,
        host: str = "127.0.0.1",
    ) -> None:
        self._dag = dag
        self._count = count
        self._make_launcher = launcher
        self._default_parallelism = default_parallelism
        self._workers = workers
        self._host = host
        self._metrics: dict[int, Alive | Ended] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: _Session | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    def run(self, run: Run, on_running: Callable[[], None]) -> None:
        payload = dump_dag(self._dag)
        launcher = self._make_launcher()
        loops = SharedEventLoop("jetlet-coordinator")
        loop = loops.lease()
        with tempfile.TemporaryDirectory(prefix="jetlet-") as directory:
            session = _Session(self, run, launcher, payload, directory, on_running)
            try:
                with self._lock:
                    self._session, self._loop = session, loop
                    if self._is_cancelled:
                        raise JobCancelledError(f"job {run.job_name!r} was cancelled")
                finish = asyncio.run_coroutine_threadsafe(session.serve(), loop).result()
            finally:
                with self._lock:
                    self._session = self._loop = None
                launcher.close()
                loops.release()
        self._raise(run, finish)

    def _raise(self, run: Run, finish: Finish) -> None:
        if finish.was_cancelled:
            raise JobCancelledError(f"job {run.job_name!r} was cancelled")
        failure = finish.failure
        if isinstance(failure, RemoteFailure):
            raise failure.unpack()
        if isinstance(failure, MemberLost):
            raise RestartableError(
                f"job {run.job_name!r} failed: member {failure.member} {failure.reason}"
            )
        if failure is not None:
            raise JobFailedError(f"job {run.job_name!r} failed: {failure}")

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._loop is not None and self._session is not None:
                self._loop.call_soon_threadsafe(self._session.cancel)

    def metrics(self) -> JobMetrics:
        latest = list(self._metrics.values())
        return JobMetrics(
            (row for each in latest for row in each.metrics),
            edges=[edge for each in latest for edge in each.edges],
        )


class _Session:
    """One run, on the event loop: tells the coordinator what happens and does what it says."""

    def __init__(
        self,
        runner: MembersRunner,
        run: Run,
        launcher: MemberLauncher,
        dag: bytes,
        directory: str,
        on_running: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._run = run
        self._launcher = launcher
        self._dag = dag
        self._directory: str | None = directory if hasattr(asyncio, "start_unix_server") else None
        self._on_running = on_running
        self._secret = new_secret()
        self._connections: dict[int, Connection] = {}
        self._vertex_names = [vertex.name for vertex in run.dag.vertices]

    async def serve(self) -> Finish:
        """Run to the end."""
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[Finish] = self._loop.create_future()
        runner = self._runner
        self._coordinator = Coordinator(runner._count, self._loop.time())  # noqa: SLF001
        server, address = await listen(self._connection, self._directory, runner._host, None)  # noqa: SLF001
        self._server: asyncio.Server | None = server
        for index in range(runner._count):  # noqa: SLF001
            bootstrap = Bootstrap(
                address,
                self._secret.hex(),
                index,
                runner._count,  # noqa: SLF001
                self._directory,
                runner._host,  # noqa: SLF001
                [*sys.path],
            )
            self._launcher.launch(bootstrap, self._died)
        ticks = self._loop.create_task(self._tick())
        try:
            return await self._finished
        finally:
            ticks.cancel()
            self._stop_listening()
            for connection in self._connections.values():
                connection.close()
            # One more turn, so that the goodbyes go out.
            await asyncio.sleep(0)

    def cancel(self) -> None:
        """The user does not want the job any more."""
        if hasattr(self, "_coordinator"):
            self._do(self._coordinator.cancel(self._loop.time()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._do(self._coordinator.tick(self._loop.time()))

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    # --- Events -----------------------------------------------------------------------------

    def _connection(self) -> Connection:
        return Connection(
            ServerHandshake(self._secret),
            on_ready=self._connected,
            on_frame=self._hear,
            on_closed=self._disconnected,
        )

    def _connected(self, connection: Connection) -> None:
        self._connections[connection.peer] = connection
        if len(self._connections) == self._runner._count:  # noqa: SLF001
            self._stop_listening()

    def _disconnected(self, connection: Connection, error: Exception | None) -> None:
        # If the process has died, its death says more: leave it a moment to be told first.
        self._loop.call_later(0.5, self._lose, connection.peer, f"hung up: {error or 'closed'}")

    def _died(self, member: int, words: str) -> None:
        try:
            self._loop.call_soon_threadsafe(self._lose, member, words)
        except RuntimeError:
            return  # the job is over

    def _lose(self, member: int, reason: str) -> None:
        self._do(self._coordinator.lost(member, reason, self._loop.time()))

    def _hear(self, connection: Connection, kind: int, body: memoryview) -> None:
        member, now = connection.peer, self._loop.time()
        if kind == CLIENT:
            vertex, _ = decode_header(body)
            self._do(self._coordinator.heard(member, now))
            self._deliver(self._vertex_names[vertex], decode_items(body))
            return
        message = pickle.loads(body)
        if isinstance(message, Joined):
            self._do(self._coordinator.joined(member, message.address, now))
        elif isinstance(message, Ready):
            self._do(self._coordinator.ready(member, now))
        elif isinstance(message, Alive):
            self._runner._metrics[member] = message  # noqa: SLF001
            self._do(self._coordinator.heard(member, now))
        elif isinstance(message, Ended):
            self._runner._metrics[member] = message  # noqa: SLF001
            for vertex_name, report in message.reports:
                self._run.report(vertex_name, report)
            if message.failure is None:
                self._do(self._coordinator.completed(member))
            else:
                self._do(self._coordinator.failed(member, message.failure, now))
        elif isinstance(message, PeerLost):
            self._loop.call_later(0.5, self._lose, message.member, message.reason)

    def _deliver(self, vertex: str, batch: list[Any]) -> None:
        try:
            self._run.send_to_client(vertex, batch)
        except Exception as error:  # noqa: BLE001 - a sink of the user's may raise anything
            failure = JobFailedError(
                f"job {self._run.job_name!r} failed in vertex {vertex!r}: "
                f"{type(error).__name__}: {error}",
                vertex=vertex,
            )
            failure.__cause__ = error
            self._do(
                self._coordinator.failed(-1, RemoteFailure.pack(failure), self._loop.time())
            )

    # --- Actions ----------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendPlan):
                self._send_plan(action.addresses)
            elif isinstance(action, Start):
                self._on_running()
                self._tell(tuple(self._connections), Go())
            elif isinstance(action, Stop):
                self._tell(action.members, Halt())
            elif isinstance(action, Kill):
                for member in action.members:
                    self._launcher.kill(member)
            elif not self._finished.done():
                self._finished.set_result(action)

    def _send_plan(self, addresses: Mapping[int, str]) -> None:
        plan = Plan(
            dag=self._dag,
            job_name=self._run.job_name,
            run_id=self._run.id,
            default_parallelism=self._runner._default_parallelism,  # noqa: SLF001
            workers=self._runner._workers,  # noqa: SLF001
            processing_guarantee=self._run.config.processing_guarantee,
            addresses=addresses,
        )
        self._tell(tuple(self._connections), plan)

    def _tell(self, members: tuple[int, ...], message: Any) -> None:
        data = pickle.dumps(message)
        for member in members:
            connection = self._connections.get(member)
            if connection is not None:
                connection.send(CONTROL, data)


def dump_dag(dag: DAG) -> bytes:
    """The DAG as members get it: what belongs to the submitting process stays here."""
    import cloudpickle

    copy = DAG(dag.name)
    vertices = {}
    for vertex in dag.vertices:
        vertices[vertex] = copy.vertex(
            Vertex(
                vertex.name,
                vertex.supplier,
                vertex.local_parallelism,
                preferred_parallelism=vertex.preferred_parallelism,
                is_single=vertex.is_single,
            )
        )
    for edge in dag.edges:
        copy.edge(_between_copies(edge, vertices))
    data: bytes = cloudpickle.dumps(copy, protocol=5)
    return data


def _between_copies(edge: Edge, vertices: Mapping[Vertex, Vertex]) -> Edge:
    copy = Edge(
        vertices[edge.source], edge.source_ordinal, vertices[edge.dest], edge.dest_ordinal
    )
    copy.routing = edge.routing
    copy.key_fn = edge.key_fn
    copy.is_distributed = edge.is_distributed
    return copy.priority(edge.priority_value).queue_size(edge.queue_capacity)
