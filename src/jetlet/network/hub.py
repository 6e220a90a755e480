"""Hub: a member's connections with its peers, and the traffic of all network edges over them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections.abc import Callable, Mapping

from jetlet.errors import JetletError
from jetlet.network.connection import DATA, Connection
from jetlet.network.handshake import ClientHandshake, ServerHandshake
from jetlet.network.packets import MalformedPacketError, decode_header
from jetlet.network.receive_window import ACK_PERIOD
from jetlet.network.receiver import ReceiverTasklet
from jetlet.network.sender import SenderTasklet

logger = logging.getLogger("jetlet.network")

ACK = 0x01
_ACK_ENTRY = struct.Struct("!Hi")  # edge, limit
CONNECT_TIMEOUT = 10.0
BACKLOG = 128


async def listen(
    make: Callable[[], Connection], directory: str | None, host: str, tls: ssl.SSLContext | None
) -> tuple[asyncio.Server, str]:
    """A server and its address: a Unix socket in ``directory``, or else a free port of ``host``."""
    loop = asyncio.get_running_loop()
    if directory is not None and tls is None:
        path = os.path.join(directory, f"{os.getpid()}-{id(make):x}")  # noqa: PTH118 - a plain str
        server = await loop.create_unix_server(make, path, backlog=BACKLOG)
        return server, f"unix:{path}"
    server = await loop.create_server(make, host, 0, ssl=tls, backlog=BACKLOG)
    port = server.sockets[0].getsockname()[1]
    return server, f"tcp:{host}:{port}"


async def connect(
    make: Callable[[], Connection], address: str, tls: ssl.SSLContext | None
) -> None:
    """Connect to an address that ``listen`` gave."""
    loop = asyncio.get_running_loop()
    kind, _, rest = address.partition(":")
    if kind == "unix":
        await loop.create_unix_connection(make, rest)
        return
    host, _, port = rest.rpartition(":")
    transport, _ = await loop.create_connection(
        make, host, int(port), ssl=tls, server_hostname="" if tls is not None else None
    )
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Hub:
    """Everything runs on the network's event loop; tasklets are told by their own methods."""

    def __init__(
        self,
        index: int,
        count: int,
        secret: bytes,
        *,
        on_lost: Callable[[int, Exception | None], None],
        directory: str | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self._index = index
        self._count = count
        self._secret = secret
        self._on_lost = on_lost
        self._directory = directory
        self._host = host
        self._tls = tls
        self._client_tls = client_tls
        self._server: asyncio.Server | None = None
        self._complete = asyncio.Event()
        self._senders: Mapping[tuple[int, int], SenderTasklet] = {}
        self._receivers: Mapping[int, ReceiverTasklet] = {}
        self._acks: asyncio.Task[None] | None = None
        self._is_closing = False

    async def listen(self) -> str:
        """Accept peers from now on; return the address for them."""
        self._server, address = await listen(
            lambda: self._connection(ServerHandshake(self._secret)),
            self._directory,
            self._host,
            self._tls,
        )
        if self._count == 1:
            self._complete.set()
        return address

    async def join(self, addresses: Mapping[int, str]) -> None:
        """Connect to the peers with a lower index; wait until all others have connected to us."""
        for peer in range(self._index):
            handshake = ClientHandshake(self._secret, self._index, peer)
            await connect(
                lambda h=handshake: self._connection(h),  # type: ignore[misc]
                addresses[peer],
                self._client_tls,
            )
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await self._complete.wait()
        if self._server is not None:
            # Everybody is here: from now on there is no port to knock at.
            self._server.close()
            self._server = None

    def _connection(self, handshake: ServerHandshake | ClientHandshake) -> Connection:
        return Connection(
            handshake, on_ready=self._ready, on_frame=self._receive, on_closed=self._closed
        )

    def _ready(self, connection: Connection) -> None:
        peer = connection.peer
        if peer in self.connections or not 0 <= peer < self._count or peer == self._index:
            raise JetletError(f"a second connection as member {peer}")
        self.connections[peer] = connection
        if len(self.connections) == self._count - 1:
            self._complete.set()

    def _closed(self, connection: Connection, error: Exception | None) -> None:
        if self.connections.get(connection.peer) is connection and not self._is_closing:
            self._on_lost(connection.peer, error)

    def carry(
        self,
        senders: Mapping[tuple[int, int], SenderTasklet],
        receivers: Mapping[int, ReceiverTasklet],
    ) -> None:
        """Serve these edges: senders by (edge, member), receivers by edge."""
        self._senders = senders
        self._receivers = receivers
        if receivers:
            self._acks = asyncio.get_running_loop().create_task(self._acknowledge())

    def _receive(self, connection: Connection, kind: int, body: memoryview) -> None:
        if kind == DATA:
            edge, _ = decode_header(body)
            receiver = self._receivers.get(edge)
            if receiver is None or connection.peer not in receiver.lanes:
                raise MalformedPacketError(f"a packet for edge {edge}, which has no receiver here")
            receiver.receive(connection.peer, body)
        elif kind == ACK:
            for edge, limit in _ACK_ENTRY.iter_unpack(body):
                sender = self._senders.get((edge, connection.peer))
                if sender is not None:
                    sender.acknowledge(limit)
        else:
            raise MalformedPacketError(f"a frame of unknown type {kind}")

    async def _acknowledge(self) -> None:
        """Tell every peer, ten times a second, how far it may send on each edge."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            for peer, connection in self.connections.items():
                entries = [
                    _ACK_ENTRY.pack(edge, receiver.lanes[peer].limit(now))
                    for edge, receiver in self._receivers.items()
                    if peer in receiver.lanes
                ]
                if entries:
                    connection.send(ACK, b"".join(entries))
            await asyncio.sleep(ACK_PERIOD)

    async def close(self) -> None:
        """Close all connections, after what was sent has gone out."""
        self._is_closing = True
        if self._acks is not None:
            self._acks.cancel()
        if self._server is not None:
            self._server.close()
        for connection in self.connections.values():
            connection.close()
