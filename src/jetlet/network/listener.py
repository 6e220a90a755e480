"""Listener: takes connections at an address, most of which may be from strangers; and connect.

An address is ``unix:path``, in a directory that only this user can enter, or ``tcp:host:port``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jetlet.errors import JetletError
from jetlet.network.connection import HANDSHAKE_TIMEOUT, Connection, OnClosed

logger = logging.getLogger("jetlet.network")

BACKLOG = 1024
"""Connections that the system may hold for us."""
PENDING = 64
"""Connections that may be in the handshake at a time. One more, and the oldest has to go: who knows
the secret is through within milliseconds."""
BURST = 256
"""Connections that are taken as fast as they come ..."""
RATE = 200.0
"""... and how many per second after that, so that a flood does not keep the job from its work."""
LOGGED = 10
"""Refusals that are logged one by one; the rest are counted."""
SOCKET_BUFFER = 1024 * 1024

MakeConnection = Callable[[OnClosed], Connection]
"""Makes the server's end of a connection; its argument is to be its ``on_refused``."""


@dataclass(slots=True)
class _Arrival:
    """A connection that has not proved anything yet."""

    raw: socket.socket
    task: asyncio.Task[None] | None = None
    connection: Connection | None = None

    @property
    def is_pending(self) -> bool:
        if self.task is not None and not self.task.done():
            return True
        return self.connection is not None and self.connection.is_pending

    def turn_away(self, reason: str) -> None:
        if self.connection is not None:
            self.connection.abort(reason)
        else:
            self.raw.close()  # the task has not begun, and will not
        if self.task is not None:
            self.task.cancel()  # a TLS handshake; if it has ended nothing happens


class Listener:
    """Accepts connections until it is closed. On the network's event loop."""

    def __init__(
        self, listening: socket.socket, make: MakeConnection, tls: ssl.SSLContext | None
    ) -> None:
        self.address = _address_of(listening)
        self.accepted = self.refused = 0
        self._socket = listening
        self._make = make
        self._tls = tls
        self._arrivals: deque[_Arrival] = deque()
        self._loop = asyncio.get_running_loop()
        self._tokens, self._last = float(BURST), self._loop.time()
        self._resting: asyncio.TimerHandle | None = None
        self._listen()

    @classmethod
    def open(
        cls,
        make: MakeConnection,
        *,
        directory: str | None = None,
        host: str = "127.0.0.1",
        ports: tuple[int, int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Listener:
        """Listen in ``directory`` if there is one and no need for TLS, else at a port of ``host``.

        ``directory`` must be private to this user, as those of ``tempfile`` are. ``ports`` are the
        first and the last of those to choose from, if not any will do.
        """
        listening = None
        if directory is not None and tls is None:
            listening = _unix_socket(directory)
        return cls(listening or _tcp_socket(host, ports), make, tls)

    def _accept(self) -> None:
        """Take one connection per turn of the loop, whoever knocks."""
        try:
            raw, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # such as too many open files
            logger.warning("cannot take a connection: %s", error)
            self._rest(0.1)
            return
        raw.setblocking(False)
        self.accepted += 1
        self._admit(raw)
        now = self._loop.time()
        self._tokens = min(float(BURST), self._tokens + (now - self._last) * RATE) - 1
        self._last = now
        if self._tokens < 0:
            self._rest(-self._tokens / RATE)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket)
        self._resting = self._loop.call_later(seconds, self._listen)

    def _listen(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _admit(self, raw: socket.socket) -> None:
        arrivals = self._arrivals
        while arrivals and not arrivals[0].is_pending:
            arrivals.popleft()
        if len(arrivals) >= PENDING:
            self._arrivals = arrivals = deque(a for a in arrivals if a.is_pending)
            if len(arrivals) >= PENDING:
                arrivals.popleft().turn_away("too many connections that prove nothing")
        arrival = _Arrival(raw)
        arrival.task = self._loop.create_task(self._serve(arrival))
        arrivals.append(arrival)

    async def _serve(self, arrival: _Arrival) -> None:
        raw = arrival.raw

        def make() -> Connection:
            arrival.connection = connection = self._make(self._refuse)
            connection.raw = raw if self._tls is None else None
            return connection

        _tune(raw)
        try:
            await self._loop.connect_accepted_socket(
                make,
                raw,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT if self._tls is not None else None,
            )
        except asyncio.CancelledError:
            raw.close()
            raise
        except Exception as error:  # whatever a stranger can cause
            raw.close()
            arrival.connection = None
            self._log(error)

    def _refuse(self, connection: Connection, error: Exception | None) -> None:
        self._log(error)

    def _log(self, error: Exception | None) -> None:
        self.refused += 1
        if self.refused <= LOGGED:
            logger.warning("refused a connection to %s: %s", self.address, error)
            if self.refused == LOGGED:
                logger.warning("further refusals at %s are only counted", self.address)

    def close(self) -> None:
        """Take no more connections and drop those that have not proved anything."""
        if self._socket.fileno() < 0:
            return
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        kind, _, path = self.address.partition(":")
        if kind == "unix":
            Path(path).unlink(missing_ok=True)
        for arrival in self._arrivals:
            if arrival.is_pending:
                arrival.turn_away("nobody is expected any more")
        if self.refused > LOGGED:
            logger.warning("refused %d connections to %s", self.refused, self.address)


async def connect(
    make: Callable[[], Connection], address: str, tls: ssl.SSLContext | None = None
) -> None:
    """Connect to the address of a listener.

    Raises an ``OSError`` that names both ends if there is no way to it.
    """
    loop = asyncio.get_running_loop()
    kind, _, rest = address.partition(":")
    if kind == "unix":
        raw = await _connected(socket.AF_UNIX, rest)
    else:
        raw = await _on_the_way(rest)

    def make_with_socket() -> Connection:
        connection = make()
        connection.raw = raw if tls is None else None
        return connection

    if kind == "unix":
        await loop.create_unix_connection(make_with_socket, sock=raw)
    else:
        await loop.create_connection(
            make_with_socket, sock=raw, ssl=tls, server_hostname="" if tls is not None else None
        )


async def reach(place: str) -> None:
    """Find out whether there is a way to a host and port, by the same error as ``connect``."""
    (await _on_the_way(place)).close()


async def _on_the_way(place: str) -> socket.socket:
    host, _, port = place.rpartition(":")
    try:
        return await _connected(_family(host), (host, int(port)))
    except OSError as error:  # a TimeoutError is one, without words
        said = str(error) or f"no answer within {HANDSHAKE_TIMEOUT:.0f} s"
        here = f"{socket.gethostname()} ({_own_address_or_none(host)})"
        raise OSError(f"no way from {here} to {place}: {said}") from error


def own_address(host: str) -> str:
    """The address of this machine as the network of the other one knows it."""
    with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # nothing is sent: it only finds the way
        own: str = probe.getsockname()[0]
    return own


def _own_address_or_none(host: str) -> str:
    try:
        return own_address(host)
    except OSError:
        return "which has no address in that network"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def _connected(family: socket.AddressFamily, address: str | tuple[str, int]) -> socket.socket:
    raw = socket.socket(family, socket.SOCK_STREAM)
    try:
        raw.setblocking(False)
        _tune(raw)
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            await asyncio.get_running_loop().sock_connect(raw, address)
    except BaseException:
        raw.close()
        raise
    return raw


def _unix_socket(directory: str) -> socket.socket | None:
    if not hasattr(socket, "AF_UNIX"):
        return None
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.bind(str(Path(directory, secrets.token_hex(4))))
        listening.listen(BACKLOG)
    except OSError as error:  # such as a path that is too long for a socket
        listening.close()
        logger.info("no Unix socket in %s, using TCP: %s", directory, error)
        return None
    return listening


def _tcp_socket(host: str, ports: tuple[int, int] | None) -> socket.socket:
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        try:
            return _at_port(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise JetletError(f"cannot listen at {host}, port {port}: {error}") from error
    raise JetletError(
        f"cannot listen at {host}: the ports from {first} to {last} are all taken; let there be "
        f"more of them in JobConfig(ports=...): one for each member of a host, and one for the "
        f"submitting process"
    )


def _at_port(host: str, port: int) -> socket.socket:
    listening = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        if port:
            # The connections of an attempt that has just ended are no reason not to listen.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _address_of(listening: socket.socket) -> str:
    name = listening.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    return f"tcp:{name[0]}:{name[1]}"


def _tune(raw: socket.socket) -> None:
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
        if raw.family != getattr(socket, "AF_UNIX", None):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
