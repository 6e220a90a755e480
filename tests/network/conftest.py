"""Pairs of connections over real sockets, and what they saw."""

from __future__ import annotations

import asyncio
import itertools
import socket
from contextlib import asynccontextmanager

import pytest

from jetlet.network.connection import Connection
from jetlet.network.handshake import ClientHandshake, ServerHandshake, new_secret

TIMEOUT = 60.0
QUIET = 1000.0
"""No heartbeats: every byte is counted."""


async def until_true(condition):
    """Let the loop run until something is so."""
    async with asyncio.timeout(TIMEOUT):
        for turn in itertools.count():
            if condition():
                return
            await asyncio.sleep(0 if turn < 1000 else 0.001)


class End:
    """One end of a connection that remembers all that happens to it."""

    def __init__(self, beat=QUIET):
        self._beat = beat
        self.silence = 0.0
        self.silent = asyncio.Event()
        self.messages = []
        self.ready = asyncio.Event()
        self.closed = asyncio.Event()
        self.refused = asyncio.Event()
        self.error = None
        self.connection = None

    def make(self, handshake, on_refused=None):
        def refuse(connection, error):
            self.error = error
            self.refused.set()
            if on_refused is not None:
                on_refused(connection, error)

        self.connection = Connection(
            handshake,
            on_ready=lambda _: self.ready.set(),
            on_message=self._message,
            on_closed=self._closed,
            on_refused=refuse,
            on_silence=self._silent,
            beat=self._beat,
        )
        return self.connection

    def _message(self, _, kind, body):
        self.messages.append((kind, bytes(body)))

    def _closed(self, _, error):
        self.error = error
        self.closed.set()

    def _silent(self, _, seconds):
        self.silence = seconds
        self.silent.set()

    async def until_beats(self, count):
        """Wait for so many messages or heartbeats."""
        await until_true(lambda: self.connection._received >= count)

    async def until_bytes(self, count):
        """Wait until so many bytes have come since the handshake."""
        at = ServerHandshake(b"", 0).expects
        await until_true(lambda: self.connection.bytes_in >= count + at)

    async def until(self, count):
        """Wait for so many messages."""
        await until_true(lambda: len(self.messages) >= count)
        return self.messages

    @staticmethod
    async def soon(event):
        async with asyncio.timeout(TIMEOUT):
            await event.wait()


@asynccontextmanager
async def connected(server_secret=None, client_secret=None, *, is_direct=True, beat=QUIET):
    """Two ends over a socket pair, in the middle of their handshake."""
    loop = asyncio.get_running_loop()
    secret = server_secret or new_secret()
    left, right = socket.socketpair()
    server, client = End(beat), End(beat)
    await loop.connect_accepted_socket(lambda: server.make(ServerHandshake(secret, 0)), left)
    await loop.create_unix_connection(
        lambda: client.make(ClientHandshake(client_secret or secret, 1, 0)), sock=right
    )
    if is_direct:
        server.connection.raw, client.connection.raw = left, right
    try:
        yield server, client
    finally:
        for end in (server, client):
            end.connection.abort("the test is over")
        await asyncio.sleep(0.01)


@pytest.fixture
def ends():
    return connected


@pytest.fixture
def end():
    return End


@pytest.fixture
def until():
    return until_true
