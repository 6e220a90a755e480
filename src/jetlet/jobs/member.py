"""A member: a process that runs its share of a job. Started by a launcher, never by hand.

    python -m jetlet.jobs.member < bootstrap

The main thread waits for the plan and then drives the execution; a second one, the network's, talks
to the coordinator and to the other members. The process ends with the job, and at once when the
coordinator is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from jetlet.errors import JobFailedError
from jetlet.execution.event_loop import SharedEventLoop
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import OutboundEdge
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.processor_tasklet import ProcessorTasklet
from jetlet.execution.service import Execution, ExecutionService
from jetlet.execution.tasklet import Tasklet
from jetlet.jobs.failure import outcome
from jetlet.jobs.launcher import Bootstrap
from jetlet.jobs.messages import (
    CLIENT,
    CONTROL,
    Alive,
    Ended,
    Go,
    Halt,
    Joined,
    PeerLost,
    Plan,
    Ready,
)
from jetlet.jobs.remote_failure import RemoteFailure
from jetlet.network.connection import Connection
from jetlet.network.handshake import ClientHandshake
from jetlet.network.hub import Hub, connect
from jetlet.network.packets import encode
from jetlet.network.receiver import ReceiverTasklet
from jetlet.network.sender import MAX_BACKLOG, SenderTasklet

logger = logging.getLogger("jetlet.member")

HEARTBEAT = 0.25
"""Seconds between two signs of life."""
COORDINATOR = -1
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
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._control: Connection | None = None
        self._control_ready = threading.Event()
        self._hub: Hub | None = None
        self._execution: Execution | None = None
        self._is_halted = False
        self._reports: list[tuple[str, Any]] = []
        self._network = _Network(self)
        self._vertex_numbers: dict[str, int] = {}

    # --- The main thread --------------------------------------------------------------------

    def run(self) -> None:
        """Serve one job."""
        address = self._call(self._join_coordinator())
        self._tell(Joined(address))
        plan = self._orders.get()
        if not isinstance(plan, Plan):
            return
        failure: RemoteFailure | None = None
        try:
            self._run_plan(plan)
        except JobFailedError as error:
            failure = RemoteFailure.pack(error)
        self._tell(Ended(failure, self._reports, *self._metrics()))
        if self._hub is not None:
            self._call(self._hub.close())
        # Until the coordinator hangs up: it has everything that was sent by then.
        while self._orders.get() is not None:
            pass
        self._loops.release()

    def _run_plan(self, order: Plan) -> None:
        dag = pickle.loads(order.dag)
        self._vertex_numbers = {v.name: i for i, v in enumerate(dag.vertices)}
        plan = ExecutionPlan(
            dag,
            default_parallelism=order.default_parallelism,
            member_index=self._index,
            member_count=self._count,
        )
        assert self._hub is not None
        self._call(self._hub.join(order.addresses))
        service = ExecutionService(order.workers, name=f"jetlet-member-{self._index}")
        execution = self._execution = service.execution(order.job_name, lambda: tasklets)
        run = RunContext(
            job_name=order.job_name,
            run_id=order.run_id,
            processing_guarantee=order.processing_guarantee,
            report=lambda vertex, message: self._reports.append((vertex, message)),
            send_to_client=self._send_to_client,
            closer=execution.closer,
            crosses_threads=len(service.workers) > 1,
            network=self._network,
        )
        tasklets: Sequence[Tasklet] = ()
        try:
            try:
                tasklets = plan.build(run)
                self._call(self._carry())
                self._tell(Ready())
                if isinstance(self._orders.get(), Go) and not self._is_halted:
                    execution.run()
                else:
                    execution.cancel()
            except Exception as error:  # noqa: BLE001 - it is reported like any other failure
                execution.fail(None, error)
            error = outcome(execution, order.job_name)
            plan.close(error)
        finally:
            service.shut_down()
        if isinstance(error, JobFailedError):
            raise error

    async def _carry(self) -> None:
        assert self._hub is not None
        self._hub.carry(self._network.senders, self._network.receivers)

    def _send_to_client(self, vertex: str, batch: Sequence[Any]) -> bool:
        control = self._control
        assert control is not None
        if control.backlog > MAX_BACKLOG:
            return False
        number = self._vertex_numbers[vertex]
        control.send(CLIENT, *encode(number, list(batch), len(batch)))
        return True

    def _metrics(
        self,
    ) -> tuple[list[tuple[str, Mapping[str, Any]]], list[Mapping[str, Any]]]:
        tasklets = self._execution.tasklets if self._execution else ()
        rows: list[tuple[str, Mapping[str, Any]]] = [
            (t.metrics.vertex, t.metrics.snapshot())
            for t in tasklets
            if isinstance(t, ProcessorTasklet)
        ]
        edges: list[Mapping[str, Any]] = [s.metrics.snapshot() for s in self._network.senders.values()]
        for receiver in self._network.receivers.values():
            edges += [lane.metrics.snapshot() for lane in receiver.lanes.values()]
        return rows, edges

    # --- The network's thread ---------------------------------------------------------------

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _join_coordinator(self) -> str:
        self._hub = Hub(
            self._index,
            self._count,
            self._secret,
            on_lost=self._peer_lost,
            directory=self._bootstrap.directory,
            host=self._bootstrap.host,
        )
        address = await self._hub.listen()
        ready = asyncio.Event()

        def on_ready(connection: Connection) -> None:
            self._control = connection
            ready.set()

        handshake = ClientHandshake(self._secret, self._index, COORDINATOR)
        await connect(
            lambda: Connection(
                handshake,
                on_ready=on_ready,
                on_frame=self._hear,
                on_closed=lambda _c, _e: self._hang_up(),
                on_refused=lambda _c, _e: self._hang_up(),
            ),
            self._bootstrap.address,
            None,
        )
        await ready.wait()
        self._loop.create_task(self._beat())  # noqa: RUF006 - it lives as long as the loop
        return address

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            self._tell(Alive(*self._metrics()))

    def _hear(self, connection: Connection, kind: int, body: memoryview) -> None:
        message = pickle.loads(body)
        if isinstance(message, Halt):
            self._is_halted = True
            if self._execution is not None:
                # Interrupting may block: not on this thread.
                threading.Thread(target=self._execution.cancel, daemon=True).start()
        self._orders.put(message)

    def _hang_up(self) -> None:
        """The coordinator has closed the connection, or is dead: there is nobody to work for."""
        self._orders.put(None)
        if self._execution is not None:
            threading.Thread(target=self._execution.cancel, daemon=True).start()
        # Whatever user code may still be up to, this process does not outlive its job by long.
        self._loop.call_later(1.0, os._exit, 1)

    def _peer_lost(self, member: int, error: Exception | None) -> None:
        reason = f"member {self._index} lost its connection with it: {error or 'closed'}"
        self._tell(PeerLost(member, reason))

    def _tell(self, message: Any) -> None:
        assert self._control is not None
        self._control.send(CONTROL, pickle.dumps(message))


class _Network:
    """Makes the tasklets of distributed edges and remembers them for the hub."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.senders: dict[tuple[int, int], SenderTasklet] = {}
        self.receivers: dict[int, ReceiverTasklet] = {}

    def sender(self, edge: int, member: int, name: str, inbound: InboundEdge) -> Tasklet:
        hub = self._member._hub  # noqa: SLF001 - a part of the member
        assert hub is not None
        tasklet = SenderTasklet(edge, name, inbound, hub.connections[member])
        self.senders[edge, member] = tasklet
        return tasklet

    def receiver(self, edge: int, name: str, outbound: Mapping[int, OutboundEdge]) -> Tasklet:
        tasklet = self.receivers[edge] = ReceiverTasklet(name, outbound)
        return tasklet


def main() -> None:
    """Serve the job that standard input tells of."""
    bootstrap = Bootstrap.from_json(sys.stdin.readline())
    sys.path[:] = bootstrap.path
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL)
    logging.basicConfig(
        format=f"%(levelname)s member {bootstrap.index} %(name)s: %(message)s", stream=sys.stderr
    )
    Member(bootstrap).run()


if __name__ == "__main__":
    main()

