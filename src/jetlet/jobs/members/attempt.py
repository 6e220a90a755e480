"""MembersAttempt: one run of a job on members, as the submitting process sees it."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jetlet.core.arguments import error_line
from jetlet.errors import JetletError, kind_of_failure
from jetlet.execution.tuning import Tuning
from jetlet.jobs.job import RunOf
from jetlet.jobs.members.attempt_snapshots import AttemptSnapshots
from jetlet.jobs.members.client_delivery import ClientDelivery
from jetlet.jobs.members.client_link import ACK
from jetlet.jobs.members.launcher import Bootstrap, MemberLauncher
from jetlet.jobs.members.members_coordinator import (
    Action,
    Finish,
    Kill,
    MembersCoordinator,
    Phase,
    SendPlan,
    Start,
    Stop,
)
from jetlet.jobs.members.messages import (
    CLIENT,
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
    Go,
    Halt,
    Joined,
    PeerLost,
    Plan,
    Ready,
    Saved,
    Unheard,
)
from jetlet.network.connection import Connection, OnClosed
from jetlet.network.handshake import COORDINATOR, ServerHandshake, new_secret
from jetlet.network.listener import Listener
from jetlet.network.tls import Credentials
from jetlet.snapshots.job_snapshots import JobSnapshots
from jetlet.snapshots.member_report import EndedProcessor

logger = logging.getLogger("jetlet.job")

TICK = 0.1
"""Seconds between two looks at the time."""
SILENCE = 0.5
"""Seconds after which a silent member is looked at more closely."""
GRACE = 0.5
"""Seconds between a broken connection and giving its member up. If the process has died, its death
says more, and is told by then."""


@dataclass(frozen=True, slots=True)
class AttemptConfig:
    """What a job's runs on members have in common."""

    count: int
    dag: bytes
    default_parallelism: int
    tuning: Tuning
    host: str
    known_as: str | None
    """What members call the host, if that is not its own name for itself."""
    use_tcp: bool
    tls: Credentials | None
    service: object
    stray_classes: Callable[[], tuple[tuple[str, str], ...]]
    """What members are to find under the names that it has here."""
    join_limit: float | None
    """Seconds that members have to start and connect, if not the usual."""


class MembersAttempt:
    """Tells the coordinator what happens and does what it says; on an event loop.

    But for the constructor and :meth:`close`, which are for the job's thread.
    """

    def __init__(
        self,
        config: AttemptConfig,
        run: RunOf[JobSnapshots],
        launcher: MemberLauncher,
        on_running: Callable[[], None],
        counters: dict[int, Counters],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._config = config
        self._run = run
        self._launcher = launcher
        self._on_running = on_running
        self._counters = counters
        self._loop = loop
        self._secret = new_secret()
        self._connections: dict[int, Connection] = {}
        self._listener: Listener | None = None
        self._finished: asyncio.Future[Finish] | None = None
        self._coordinator = MembersCoordinator(
            config.count,
            loop.time(),
            config.join_limit,
            # Whoever notices tells of it at the next heartbeat.
            link_limit=run.config.link_timeout * 0.8,
        )
        self._ending: dict[int, Sequence[EndedProcessor]] = {}
        """Members that have said farewell, and what they have left for snapshots. Their items are
        still being delivered, or their end is being recorded."""
        self.awaited: dict[int, tuple[str, ...]] = {}
        """Processors that a snapshot waits for, by member, as that has said last."""
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        if not config.use_tcp:
            self._directory = tempfile.TemporaryDirectory(
                prefix="jetlet-", ignore_cleanup_errors=True
            )
        self._is_running = self._is_draining = False
        self.snapshots = None if run.snapshots is None else AttemptSnapshots(self, run, loop)
        self._delivery = ClientDelivery(
            [vertex.name for vertex in run.dag.vertices],
            run.send_to_client,
            self._acknowledge,
            self._sink_failed,
            config.service,
        )

    async def serve(self) -> Finish:
        """Run to the end."""
        self._finished = self._loop.create_future()
        if self._coordinator.phase is not Phase.JOINING:
            # Cancelled before it began.
            return Finish(was_cancelled=True)
        config = self._config
        self._listener = Listener.open(
            self._connection,
            directory=self._directory.name if self._directory is not None else None,
            host=config.host,
            ports=self._run.config.ports,
            tls=config.tls.server_context() if config.tls is not None else None,
        )
        ticks: asyncio.Task[None] | None = None
        try:
            for index in range(config.count):
                self._launcher.launch(self._bootstrap(index, self._listener.address), self._died)
            ticks = self._loop.create_task(self._tick())
            return await self._finished
        finally:
            if ticks is not None:
                ticks.cancel()
            self._listener.close()
            for connection in self._connections.values():
                connection.close()
            # One more turn, so that the goodbyes go out.
            await asyncio.sleep(0)

    def _bootstrap(self, index: int, address: str) -> Bootstrap:
        config = self._config
        if config.known_as is not None:
            address = f"tcp:{config.known_as}:{address.rpartition(':')[2]}"
        return Bootstrap(
            address=address,
            secret=self._secret.hex(),
            index=index,
            count=config.count,
            path=[str(path) for path in sys.path],
            directory=self._directory.name if self._directory is not None else None,
            host=config.host,
            ports=self._run.config.ports,
            tls=config.tls,
            log_level=logging.getLogger().getEffectiveLevel(),
            link_limit=self._coordinator.link_limit,
        )

    def close(self) -> None:
        """Release what is left when all members are gone; may block."""
        self._delivery.close()
        self._remove_directory()

    def close_snapshots(self) -> bool:
        """When the loop has ended: true if the run has ended with a terminal snapshot."""
        return self.snapshots is not None and self.snapshots.close("the job has ended")

    def _remove_directory(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    # --- Events -----------------------------------------------------------------------------

    def cancel(self) -> None:
        """The user does not want the job any more."""
        self._do(self._coordinator.cancel(self._loop.time()))

    def drain(self) -> None:
        """Nothing more is to be read."""
        self._is_draining = True
        if self._is_running:
            self.tell(self._connections, Drain())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                self._look_at_the_time(self._loop.time())
            except Exception as error:
                # Never without ticks: they are what ends a job whose members hang.
                self.fail(error)

    def _look_at_the_time(self, now: float) -> None:
        for member in self._coordinator.silent(now, SILENCE):
            if member in self._ending or self._launcher.is_busy(member):
                self._coordinator.excused(member, now)
        self._do(self._coordinator.tick(now))

    def _connection(self, on_refused: OnClosed) -> Connection:
        return Connection(
            ServerHandshake(self._secret, COORDINATOR),
            on_ready=self._connected,
            on_message=self._hear,
            on_closed=self._disconnected,
            on_refused=on_refused,
        )

    def _connected(self, connection: Connection) -> None:
        member = connection.peer
        if not 0 <= member < self._config.count or member in self._connections:
            raise JetletError(f"a second connection as member {member}")
        self._connections[member] = connection
        if len(self._connections) == self._config.count and self._listener is not None:
            # Everybody is here: from now on there is no port to knock at.
            self._listener.close()

    def _disconnected(self, connection: Connection, error: Exception | None) -> None:
        reason = f"hung up: {error or 'its connection was closed'}"
        self._loop.call_later(GRACE, self._lose, connection.peer, reason)

    def _died(self, member: int, words: str) -> None:
        """From a thread of the launcher."""
        self.call_soon(self._lose, member, words)

    def _lose(self, member: int, reason: str) -> None:
        if member not in self._ending:
            self._do(self._coordinator.lost(member, reason, self._loop.time()))

    def _cut_off(self, member: int, reason: str) -> None:
        if member not in self._ending:
            self._do(self._coordinator.cut_off(member, reason, self._loop.time()))

    def _hear(self, connection: Connection, kind: int, body: memoryview) -> None:
        member, now = connection.peer, self._loop.time()
        coordinator = self._coordinator
        coordinator.heard(member, now)
        if kind == CLIENT:
            self._delivery.put(member, body)
            return
        if kind not in {CONTROL, FAREWELL, SAVED}:
            raise JetletError(f"a message of unknown type {kind}")
        message = pickle.loads(body)
        if isinstance(message, Alive):
            self._counters[member] = message.counters
            self.awaited[member] = message.awaited
        elif isinstance(message, Joined):
            self._do(coordinator.joined(member, message.address, now))
        elif isinstance(message, Ready):
            self._do(coordinator.ready(member, now))
        elif isinstance(message, Unheard):
            if message.peer not in self._ending:
                self._do(coordinator.unheard(member, message.peer, message.reason, now))
        elif isinstance(message, PeerLost):
            self._loop.call_later(GRACE, self._cut_off, message.member, message.reason)
        elif isinstance(message, Saved):
            # Items that were sent before it belong to what was saved.
            self._delivery.after(lambda: self.call_soon(self._hear_of_snapshot, member, message))
        elif isinstance(message, Drained | Committed):
            self._hear_of_snapshot(member, message)
        elif isinstance(message, Ended):
            self._ended(member, message)

    def _hear_of_snapshot(self, member: int, message: Saved | Drained | Committed) -> None:
        if self.snapshots is not None and message.epoch == self._run.epoch:
            self.snapshots.hear(member, message)

    def _ended(self, member: int, message: Ended) -> None:
        self._counters[member] = message.counters
        for vertex, report in message.reports:
            self._run.report(vertex, report)
        if message.failure is not None:
            now = self._loop.time()
            self._do(self._coordinator.failed(member, message.failure, now))
            return
        self._ending[member] = message.ended
        if self._delivery.is_over:
            self._complete(member)
            return
        # It has completed when the last of its items has arrived where it belongs.
        self._delivery.after(lambda: self.call_soon(self._complete, member))

    def _complete(self, member: int) -> None:
        if member not in self._ending:
            return
        if self.snapshots is None or self._coordinator.phase is Phase.STOPPING:
            # Stopped, it has not completed: a snapshot under way must not go without its state.
            self.completed(member)
        else:
            self.snapshots.ended(member, self._ending[member])

    def completed(self, member: int) -> None:
        """Nothing more is to be done for a member that has ended."""
        if self._ending.pop(member, None) is not None:
            self._do(self._coordinator.completed(member, self._loop.time()))

    def _acknowledge(self, member: int, vertex: int, taken: int) -> None:
        """From a thread of the delivery."""
        self._connections[member].send(CLIENT_ACK, ACK.pack(vertex, taken))

    def _sink_failed(self, vertex: str, error: Exception) -> None:
        """From a thread of the delivery."""
        failure = kind_of_failure(error)(
            f"job {self._run.job_name!r} failed in vertex {vertex!r}: {error_line(error)}",
            vertex=vertex,
        )
        failure.__cause__ = error
        self.call_soon(self.fail, failure)

    def fail(self, failure: Exception) -> None:
        """Something in this process has failed."""
        self._do(self._coordinator.failed_here(failure, self._loop.time()))

    def call_soon(self, callback: Callable[..., None], *args: object) -> None:
        """Call something on the loop; from any thread, at any time."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            return  # the job is over

    # --- Actions ----------------------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            try:
                self._carry_out(action)
            except Exception as error:
                logger.exception("job %s: cannot carry out %s", self._run.job_name, action)
                self.fail(error)
        if self._coordinator.phase is Phase.STOPPING and not self._delivery.is_over:
            # Nobody waits for the results any more.
            self._delivery.is_over = True
            for member in list(self._ending):
                self._complete(member)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, SendPlan):
            self._send_plan(action.addresses)
        elif isinstance(action, Start):
            # All are connected with each other: the sockets' names have served their purpose.
            self._remove_directory()
            if self.snapshots is not None:
                self.snapshots.start()
            self._on_running()
            self.tell(self._connections, Go())
            self._is_running = True
            if self._is_draining:
                self.drain()
        elif isinstance(action, Stop):
            self.tell(action.members, Halt())
        elif isinstance(action, Kill):
            for member in action.members:
                self._launcher.kill(member)
        elif self._finished is not None and not self._finished.done():
            self._finished.set_result(action)

    def _send_plan(self, addresses: Mapping[int, str]) -> None:
        config = self._config
        plan = Plan(
            dag=config.dag,
            job_name=self._run.job_name,
            run_id=self._run.id,
            default_parallelism=config.default_parallelism,
            tuning=config.tuning,
            processing_guarantee=self._run.config.processing_guarantee,
            addresses=addresses,
            stray_classes=config.stray_classes(),
            epoch=self._run.epoch,
            snapshots=None if self.snapshots is None else self.snapshots.plan(),
        )
        self.tell(self._connections, plan)

    def tell(self, members: Iterable[int], message: object) -> None:
        """Send a message to members."""
        data = pickle.dumps(message, protocol=5)
        for member in tuple(members):
            connection = self._connections.get(member)
            if connection is not None:
                connection.send(CONTROL, data)
