"""Hub: a member's connections with its peers, and the traffic of all network edges over them."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial

from jetlet.errors import JetletError
from jetlet.network.connection import BEAT, DATA, Connection, OnClosed, OnSilence
from jetlet.network.handshake import ClientHandshake, Handshake, ServerHandshake
from jetlet.network.listener import Listener, connect
from jetlet.network.packets import MalformedPacketError, decode_header
from jetlet.network.receive_window import ACK_PERIOD, CLOSED
from jetlet.network.receiver import ReceiverTasklet
from jetlet.network.sender import SenderTasklet
from jetlet.network.tls import Credentials

logger = logging.getLogger("jetlet.network")

ACK = 0x01
_ACK_ENTRY = struct.Struct("!Hii")  # edge, limit, window


class Hub:
    """Everything runs on the network's event loop; tasklets are told by their own methods."""

    def __init__(
        self,
        index: int,
        count: int,
        secret: bytes,
        *,
        on_lost: Callable[[int, Exception | None], None],
        on_silence: OnSilence | None = None,
        beat: float = BEAT,
        directory: str | None = None,
        host: str = "127.0.0.1",
        ports: tuple[int, int] | None = None,
        tls: Credentials | None = None,
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self.listener: Listener | None = None
        self._index = index
        self._count = count
        self._secret = secret
        self._on_lost = on_lost
        self._on_silence = on_silence
        self._beat = beat
        self._directory = directory
        self._host = host
        self._ports = ports
        self._tls = tls
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders: Mapping[tuple[int, int], SenderTasklet] = {}
        self._receivers: Mapping[int, ReceiverTasklet] = {}
        self._early: dict[tuple[int, int], tuple[int, int]] = {}
        """Acknowledgements from peers that carry their edges already, when we do not yet."""
        self._acks: asyncio.Task[None] | None = None
        self._is_closing = False

    # --- Meeting ----------------------------------------------------------------------------

    def listen(self) -> str:
        """Accept peers from now on; return the address for them."""
        self.listener = Listener.open(
            lambda on_refused: self._connection(
                ServerHandshake(self._secret, self._index), on_refused
            ),
            directory=self._directory,
            host=self._host,
            ports=self._ports,
            tls=self._tls.server_context() if self._tls is not None else None,
        )
        return self.listener.address

    async def join(self, addresses: Mapping[int, str]) -> None:
        """Connect to the peers with a lower index; wait until all others have connected to us.

        There is no limit to the waiting: whoever called knows when a peer is lost.
        """
        context = self._tls.client_context() if self._tls is not None else None
        for peer in range(self._index):
            handshake = ClientHandshake(self._secret, self._index, peer)
            make = partial(self._connection, handshake, self._refused)
            try:
                await connect(make, addresses[peer], context)
            except (OSError, TimeoutError) as error:
                raise JetletError(f"cannot connect to member {peer}: {error}") from error
        self._check_complete()
        try:
            await self._complete
        finally:
            # Everybody is here: from now on there is no port to knock at.
            if self.listener is not None:
                self.listener.close()

    def _connection(self, handshake: Handshake, on_refused: OnClosed) -> Connection:
        return Connection(
            handshake,
            on_ready=self._ready,
            on_message=self._receive,
            on_closed=self._closed,
            on_refused=on_refused,
            on_silence=self._on_silence,
            beat=self._beat,
        )

    def _ready(self, connection: Connection) -> None:
        peer = connection.peer
        if peer in self.connections or not 0 <= peer < self._count or peer == self._index:
            raise JetletError(f"a second connection as member {peer}")
        self.connections[peer] = connection
        self._check_complete()

    def _check_complete(self) -> None:
        if len(self.connections) == self._count - 1 and not self._complete.done():
            self._complete.set_result(None)

    def _refused(self, connection: Connection, error: Exception | None) -> None:
        if not self._complete.done():
            self._complete.set_exception(
                JetletError(f"member {connection.peer} did not take the connection: {error}")
            )

    def _closed(self, connection: Connection, error: Exception | None) -> None:
        if self.connections.get(connection.peer) is connection and not self._is_closing:
            self._on_lost(connection.peer, error)

    # --- Traffic ----------------------------------------------------------------------------

    def carry(
        self,
        senders: Mapping[tuple[int, int], SenderTasklet],
        receivers: Mapping[int, ReceiverTasklet],
    ) -> None:
        """Serve these edges: senders by (edge, member), receivers by edge."""
        self._senders = senders
        self._receivers = receivers
        for key, ack in self._early.items():
            if key in senders:
                senders[key].acknowledge(*ack)
        self._early.clear()
        if receivers:
            self._acks = asyncio.get_running_loop().create_task(self._acknowledge())
            self._acks.add_done_callback(self._acks_ended)

    def _receive(self, connection: Connection, kind: int, body: memoryview) -> None:
        if kind == DATA:
            edge, _ = decode_header(body)
            receiver = self._receivers.get(edge)
            if receiver is None or connection.peer not in receiver.lanes:
                raise MalformedPacketError(f"a packet for edge {edge}, which has no receiver here")
            receiver.receive(connection.peer, body)
        elif kind == ACK and len(body) % _ACK_ENTRY.size == 0:
            for edge, limit, window in _ACK_ENTRY.iter_unpack(body):
                sender = self._senders.get((edge, connection.peer))
                if sender is not None:
                    sender.acknowledge(limit, window)
                elif not self._senders:
                    self._early[edge, connection.peer] = (limit, window)
        else:
            raise MalformedPacketError(f"a message of type {kind} with {len(body)} bytes")

    async def _acknowledge(self) -> None:
        """Tell every peer, ten times a second, how far it may send on each edge."""
        while True:
            self._send_acks(time.monotonic_ns())
            await asyncio.sleep(ACK_PERIOD)

    def _acks_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            # Without acknowledgements every sender would wait forever: better to fail.
            for connection in self.connections.values():
                connection.abort(f"acknowledging has failed: {task.exception()!r}")

    def _send_acks(self, now_ns: int) -> None:
        for peer, connection in self.connections.items():
            entries = []
            for edge, receiver in self._receivers.items():
                lane = receiver.lanes.get(peer)
                if lane is not None and lane.outbound is not None:
                    limit = lane.limit(now_ns)
                    window = CLOSED if lane.is_closed else lane.window.size
                    entries.append(_ACK_ENTRY.pack(edge, limit, window))
            if entries:
                connection.send(ACK, b"".join(entries))

    def close(self) -> None:
        """Close all connections, after what was sent has gone out."""
        self._is_closing = True
        if self._acks is not None:
            self._acks.cancel()
        if self.listener is not None:
            self.listener.close()
        if not self._complete.done():
            self._complete.cancel()
        for connection in self.connections.values():
            connection.close()
