"""Lines of text from a TCP server, to which the source connects, again and again if need be."""

from __future__ import annotations

import errno
import ipaddress
import os
import selectors
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

from jetlet.connectors.files.line_buffer import LineBuffer, check_line_encoding
from jetlet.core.arguments import check_name
from jetlet.core.durations import Duration, to_ms
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

POLL_TIMEOUT: Final = 0.1
"""Seconds that a poll waits for something to happen."""
FIRST_PAUSE_MS: Final = 100
"""Before the first attempt to connect again; each further one waits twice as long."""
CONNECT_TIMEOUT_MS: Final = 10_000

_BLOCK: Final = 1 << 16

Address = tuple[socket.AddressFamily, Any]


class SocketSource(StreamSource[str]):
    """Lines of text from a TCP server, to which the source connects.

    When the connection ends, or cannot be made, it connects again after 0.1 s, then 0.2 s and so
    on, up to ``max_pause``; lines that the server sends meanwhile are missed. With
    ``reconnect=False`` the stream ends with the connection.
    """

    is_blocking = True

    def __init__(
        self,
        host: str,
        port: int,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        reconnect: bool = True,
        max_pause: Duration = 10_000,
        name: str | None = None,
    ) -> None:
        what = "sources.socket"
        if not host or type(host) is not str:
            raise InvalidArgumentError(f"{what}({host!r}, ...): write the name of a host")
        if type(port) is not int or not 0 < port < 65536:
            raise InvalidArgumentError(f"{what}(..., {port!r}): write a port from 1 to 65535")
        self._host, self._port = host, port
        self._encoding = check_line_encoding(what, encoding, errors)
        self._errors = errors
        self._reconnect = reconnect
        self._max_pause = to_ms(f"{what}: max_pause", max_pause, minimum=1)
        self.name = check_name(what, name) or f"socket({host}:{port})"

    def partitions(self) -> Sequence[tuple[str, int]]:
        return [(self._host, self._port)]

    def open(
        self, partitions: Sequence[tuple[str, int]], context: ProcessorContext
    ) -> StreamReader[str]:
        host, port = partitions[0]
        return SocketReader(
            host,
            port,
            LineBuffer(f"{host}:{port}", self._encoding, self._errors),
            context,
            max_pause_ms=self._max_pause if self._reconnect else None,
        )


class SocketReader(StreamReader[str]):
    """Waits in a selector, for the server and for whoever interrupts.

    It is in one of four states: paused until it may connect again, looking up the address,
    connecting, connected. Nothing else waits; a look-up, which cannot be interrupted, has a thread
    of its own.
    """

    def __init__(
        self,
        host: str,
        port: int,
        lines: LineBuffer,
        context: ProcessorContext,
        *,
        max_pause_ms: int | None,
    ) -> None:
        self._host, self._port = host, port
        self._lines = lines
        self._logger = context.logger
        self._now = context.clock.monotonic_ns
        self._max_pause_ms = max_pause_ms
        """``None``: the stream ends with the first connection, or with the failure to make it."""
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = os.pipe()
        os.set_blocking(self._wake_receiver, False)
        os.set_blocking(self._wake_sender, False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._wake_lock = threading.Lock()
        """Nobody writes to the pipe any more once it is closed."""
        self._is_closed = False
        self._is_interrupted = False
        self._socket: socket.socket | None = None
        self._is_connected = False
        self._found: list[Address] | OSError | None = None
        """The addresses that the look-up of the host has given."""
        self._is_looking_up = False
        self._addresses: list[Address] = []
        """Addresses of the host that have not been tried yet."""
        self._deadline_ns = 0
        """When to begin if paused, when to give up if connecting."""
        self._pause_ms = FIRST_PAUSE_MS
        self._is_at_end = False

    def poll(self, limit: int) -> Sequence[Polled[str]] | None:
        lines = self._lines.take(limit)
        if not lines:
            if self._is_at_end:
                return None
            self._step()
            lines = self._lines.take(limit)
            if self._is_at_end and len(lines) < limit:
                lines += self._lines.take_rest()
        return [Polled(0, lines)] if lines else ()

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._wake()

    def close(self) -> None:
        with self._wake_lock:
            self._is_closed = True
            self._drop_socket()
            self._selector.close()
            os.close(self._wake_receiver)
            os.close(self._wake_sender)

    # --- The states -------------------------------------------------------------------------

    def _step(self) -> None:
        """Wait for what is next, and do it."""
        if self._socket is None:
            if self._is_looking_up and self._found is None:
                self._wait(POLL_TIMEOUT)
                return
            pause = (self._deadline_ns - self._now()) / 1e9
            if pause > 0:
                self._wait(min(pause, POLL_TIMEOUT))
                return
            self._begin()
            return
        if not self._wait(POLL_TIMEOUT):
            if not self._is_connected and self._now() >= self._deadline_ns:
                self._fail(TimeoutError(errno.ETIMEDOUT, "no answer"))
        elif self._is_connected:
            self._receive()
        else:
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._fail(OSError(error, os.strerror(error)))
            else:
                self._connected()

    def _begin(self) -> None:
        """Look the host up, then try its addresses one after the other."""
        if self._is_looking_up:
            self._is_looking_up = False
            found, self._found = self._found, None
            if isinstance(found, OSError):
                self._fail(found)
                return
            self._addresses = list(found or ())
        if self._addresses:
            self._connect(*self._addresses.pop(0))
        elif _is_numeric(self._host):
            self._addresses = _look_up(self._host, self._port)
        else:
            self._is_looking_up = True
            threading.Thread(target=self._look_up, name="jetlet-lookup", daemon=True).start()

    def _look_up(self) -> None:
        try:
            self._found = _look_up(self._host, self._port)
        except OSError as error:
            self._found = error
        self._wake()

    def _connect(self, family: socket.AddressFamily, address: Any) -> None:
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = opened
        self._deadline_ns = self._now() + CONNECT_TIMEOUT_MS * 1_000_000
        error = opened.connect_ex(address)
        if error in (0, errno.EINPROGRESS):
            self._selector.register(opened, selectors.EVENT_WRITE)
        else:
            self._fail(OSError(error, os.strerror(error)))

    def _connected(self) -> None:
        assert self._socket is not None
        self._logger.info("connected to %s:%d", self._host, self._port)
        self._is_connected = True
        self._addresses.clear()
        self._selector.modify(self._socket, selectors.EVENT_READ)

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_BLOCK)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        if data:
            self._lines.add(data)
            self._pause_ms = FIRST_PAUSE_MS
        else:
            self._fail(None)

    def _fail(self, error: OSError | None) -> None:
        """The connection has ended, by the server if there is no error, or was not made."""
        self._drop_socket()
        if self._is_connected:
            self._is_connected = False
            if error is None:
                # As in a file, the last line counts without its end.
                self._lines.add(b"\n" if len(self._lines) else b"")
            elif len(self._lines):
                self._logger.warning(
                    "%s:%d: dropped %d bytes of a line that was not completed",
                    self._host,
                    self._port,
                    len(self._lines),
                )
                self._lines.drop_rest()
        elif self._addresses:
            return  # try the next one at once
        if self._max_pause_ms is None:
            self._is_at_end = True
            if error is not None:
                raise error
            return
        self._logger.warning(
            "%s:%d: %s; trying again in %.1f s",
            self._host,
            self._port,
            error or "the server closed the connection",
            self._pause_ms / 1000,
        )
        self._deadline_ns = self._now() + self._pause_ms * 1_000_000
        self._pause_ms = min(self._pause_ms * 2, self._max_pause_ms)

    # --- Waiting ----------------------------------------------------------------------------

    def _wait(self, timeout: float) -> bool:
        """Wait for the socket, or to be woken; true if the socket is ready."""
        is_ready = False
        for key, _ in self._selector.select(0 if self._is_interrupted else timeout):
            if key.fileobj == self._wake_receiver:
                os.read(self._wake_receiver, _BLOCK)
            else:
                is_ready = True
        return is_ready

    def _wake(self) -> None:
        with self._wake_lock:
            if not self._is_closed:
                try:
                    os.write(self._wake_sender, b"!")
                except BlockingIOError:
                    return  # it is full: the reader will be woken

    def _drop_socket(self) -> None:
        if self._socket is not None:
            if self._socket in self._selector.get_map():
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]
