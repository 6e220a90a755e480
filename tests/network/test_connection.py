"""Connection: messages of every size, control ahead of data, and what ends a connection."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import socket
import struct
import threading
import zlib

import pytest

from jetlet.errors import JetletError
from jetlet.network import connection as module
from jetlet.network.connection import DATA, HEADER, MAX_MESSAGE, Connection, MessageError
from jetlet.network.handshake import ClientHandshake, HandshakeError, ServerHandshake, new_secret

SECRET = new_secret()


FIELDS = struct.Struct("!IBII")


def message(kind, body, *, number=0, length=None, checksum=None):
    size = len(body) if length is None else length
    fields = FIELDS.pack(size, kind, number, zlib.crc32(body) if checksum is None else checksum)
    return fields + struct.pack("!I", zlib.crc32(fields)) + body


def flipped(data, at):
    """With one bit changed."""
    changed = bytearray(data)
    changed[at] ^= 0x10
    return bytes(changed)


async def reader_and_writer(end):
    """An end whose peer is a plain socket that has passed the handshake."""
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    right.setblocking(False)
    await loop.connect_accepted_socket(lambda: end.make(ServerHandshake(SECRET, 0)), left)
    client = ClientHandshake(SECRET, 1, 0)
    while client.expects:
        message = b""
        while len(message) < client.expects:
            message += await loop.sock_recv(right, client.expects - len(message))
        await loop.sock_sendall(right, client.receive(message))
    await end.soon(end.ready)
    return right


def test_messages_of_all_sizes_arrive_in_order(ends):
    async def run():
        async with ends() as (server, client):
            rnd = random.Random(3)
            edges = [0, 1, HEADER.size, module.JOINED, module.PIECE, module.SCRATCH]
            sizes = [max(0, size + d) for size in edges for d in (-10, -9, -1, 0, 1, 9)]
            sizes += [rnd.choice([10, 1000, 100_000, 2_000_000]) for _ in range(40)]
            bodies = [rnd.randbytes(size) for size in sizes]
            for body in bodies:
                cut = len(body) // 3
                client.connection.send(DATA, body[:cut], memoryview(body)[cut:])
                server.connection.send(DATA, body)
            assert await server.until(len(bodies)) == [(DATA, body) for body in bodies]
            assert await client.until(len(bodies)) == [(DATA, body) for body in bodies]
            assert client.connection.backlog == server.connection.backlog == 0
            assert client.connection.bytes_out > sum(sizes)

    asyncio.run(run())


@pytest.mark.parametrize("is_direct", [True, False])
def test_messages_sent_while_others_are_being_written_arrive_in_order(ends, is_direct):
    """Small ones, which are written at once if they can be, between large ones."""

    async def run():
        async with ends(is_direct=is_direct) as (server, client):
            await client.soon(client.ready)
            rnd = random.Random(8)
            bodies = [rnd.randbytes(rnd.choice([0, 5, 5000, 9000, 400_000])) for _ in range(600)]

            def send():
                for body in bodies:
                    client.connection.send(DATA, body)

            thread = threading.Thread(target=send)
            thread.start()
            messages = await server.until(len(bodies))
            thread.join()
            assert messages == [(DATA, body) for body in bodies]
            assert client.connection.backlog == 0
            assert client.connection.bytes_out == sum(map(len, bodies)) + 600 * HEADER.size

    asyncio.run(run())


def test_small_message_on_an_idle_connection_does_not_wait_for_the_loop(ends):
    async def run():
        async with ends() as (server, client):
            await client.soon(client.ready)
            await server.soon(server.ready)
            server.connection.raw.setblocking(False)
            client.connection.send(DATA, b"now")
            # The loop has had no turn since.
            assert len(server.connection.raw.recv(100)) == HEADER.size + 3
            assert client.connection.backlog == 0

    asyncio.run(run())


def test_control_goes_ahead_of_data_that_waits(ends):
    async def run():
        async with ends() as (server, client):
            for _ in range(50):
                client.connection.send(DATA, bytes(100_000))
            client.connection.send(1, b"urgent")
            messages = await server.until(51)
            # All of it was sent before the handshake had ended, so all of it had to wait.
            assert messages[0] == (1, b"urgent")

    asyncio.run(run())


def test_messages_of_many_threads_arrive_whole_and_in_the_order_of_each(ends):
    async def run():
        async with ends() as (server, client):

            def send(number):
                for i in range(200):
                    client.connection.send(DATA, struct.pack("!II", number, i), bytes(i * 7))

            threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            messages = await server.until(800)
            for thread in threads:
                thread.join()
            seen = [struct.unpack_from("!II", body) for _, body in messages]
            for number in range(4):
                assert [i for n, i in seen if n == number] == list(range(200))

    asyncio.run(run())


def test_close_writes_what_was_sent_before_it(ends):
    async def run():
        async with ends() as (server, client):
            await client.soon(client.ready)
            for _ in range(20):
                client.connection.send(DATA, bytes(500_000))
            client.connection.close()
            await server.soon(server.closed)
            assert len(server.messages) == 20
            assert server.error is None

    asyncio.run(run())


def test_sending_on_a_closed_connection_keeps_nothing(ends):
    async def run():
        async with ends() as (server, client):
            await client.soon(client.ready)
            server.connection.abort("test")
            await client.soon(client.closed)
            client.connection.send(DATA, bytes(1000))
            assert client.connection.backlog == 0

    asyncio.run(run())


def test_backlog_counts_what_a_slow_reader_has_not_taken(end):
    async def run():
        left, right = socket.socketpair()
        one = end()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: one.make(ServerHandshake(SECRET, 0)), left)
        client = ClientHandshake(SECRET, 1, 0)
        right.setblocking(False)
        hello = await loop.sock_recv(right, 1000)
        await loop.sock_sendall(right, client.receive(hello))
        await one.soon(one.ready)
        for _ in range(100):
            one.connection.send(DATA, bytes(100_000))
        await asyncio.sleep(0.05)
        assert 5_000_000 < one.connection.backlog < 10_001_000
        right.close()
        await one.soon(one.closed)
        assert one.connection.backlog == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("junk", "reason"),
    [
        (message(DATA, b"abc", number=1, checksum=1), "checksum"),
        (message(DATA, b"", number=1, length=MAX_MESSAGE + 1), "claims to have"),
        (message(DATA, b"", number=1, length=2**32 - 1), "claims to have"),
        (message(DATA, b"abc", number=0), "message 1 is missing: here is number 0"),
        (message(DATA, b"abc", number=2), "message 1 is missing: here is number 2"),
        # In the length, the type, the number, the checksums and the bytes.
        *(
            (flipped(message(DATA, b"abc", number=1), at), "damaged")
            for at in range(HEADER.size + 3)
        ),
    ],
)
def test_broken_message_closes_the_connection(end, junk, reason):
    async def run():
        one = end()
        raw = await reader_and_writer(one)
        loop = asyncio.get_running_loop()
        good, rest = message(DATA, b"good"), message(DATA, b"never read", number=2)
        await loop.sock_sendall(raw, good + junk + rest)
        await one.soon(one.closed)
        assert one.messages == [(DATA, b"good")]
        assert isinstance(one.error, MessageError)
        assert reason in str(one.error)
        raw.close()

    asyncio.run(run())


def test_truncated_message_is_never_delivered(end):
    async def run():
        for cut in (1, HEADER.size, HEADER.size + 3):
            one = end()
            raw = await reader_and_writer(one)
            await asyncio.get_running_loop().sock_sendall(raw, message(DATA, b"abcdef")[:cut])
            raw.close()
            await one.soon(one.closed)
            assert not one.messages

    asyncio.run(run())


def test_messages_arrive_byte_by_byte(end):
    async def run():
        one = end()
        raw = await reader_and_writer(one)
        raw.setblocking(True)
        body = os.urandom(300)
        for byte in message(DATA, body) + message(1, b"", number=1):
            raw.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await one.until(2) == [(DATA, body), (1, b"")]
        raw.close()
        await one.soon(one.closed)

    asyncio.run(run())


def test_handler_that_fails_closes_the_connection(end, caplog):
    async def run():
        one = end()
        one._message = lambda *_: 1 / 0
        raw = await reader_and_writer(one)
        await asyncio.get_running_loop().sock_sendall(raw, message(DATA, b"x"))
        await one.soon(one.closed)
        assert isinstance(one.error, ZeroDivisionError)
        raw.close()

    asyncio.run(run())


def test_wrong_secret_is_refused_by_both_ends(ends):
    async def run():
        async with ends(new_secret(), new_secret()) as (server, client):
            client.connection.send(DATA, b"too early")
            await server.soon(server.refused)
            await client.soon(client.refused)
            assert isinstance(server.error, HandshakeError)
            assert not server.ready.is_set()
            assert not client.ready.is_set()
            assert not server.messages
            assert not client.connection.is_pending

    asyncio.run(run())


def test_slow_handshake_is_given_up(end, monkeypatch):
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT", 0.05)

    async def run():
        left, right = socket.socketpair()
        one = end()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: one.make(ServerHandshake(SECRET, 0)), left)
        right.send(b"JETLET")
        await one.soon(one.refused)
        assert "no handshake within" in str(one.error)
        right.close()

    asyncio.run(run())


class Bomb:
    """Unpickling it leaves a trace."""

    went_off = False

    def __reduce__(self):
        return (setattr, (Bomb, "went_off", True))


def test_nothing_is_unpickled_or_kept_before_authentication(end, monkeypatch):
    bomb = pickle.dumps(Bomb())
    pickle.loads(bomb)
    assert Bomb.went_off, "the bomb works"
    Bomb.went_off = False
    monkeypatch.setattr(pickle, "loads", lambda *_, **__: pytest.fail("unpickled"))

    async def run():
        loop = asyncio.get_running_loop()
        for payload in (bomb, message(0x10, bomb), b"JETLET01" + bomb.ljust(68), bomb * 10_000):
            left, right = socket.socketpair()
            one = end()
            await loop.connect_accepted_socket(
                lambda one=one: one.make(ServerHandshake(SECRET, 0)), left
            )
            right.setblocking(False)
            try:
                async with asyncio.timeout(60):
                    await loop.sock_sendall(right, payload)
            except (BrokenPipeError, ConnectionResetError):
                pass
            right.close()
            await one.soon(one.refused)
            assert not one.messages
            # It never held more than the message that it waited for.
            assert one.connection.bytes_in <= 76

    asyncio.run(run())
    assert not Bomb.went_off


def test_connection_that_its_owner_does_not_want_is_refused(end):
    async def run():
        left, right = socket.socketpair()
        refused = asyncio.Event()

        def on_ready(connection):
            raise JetletError(f"member {connection.peer} is here already")

        loop = asyncio.get_running_loop()
        server = []

        def make():
            server.append(
                Connection(
                    ServerHandshake(SECRET, 0),
                    on_ready=on_ready,
                    on_message=lambda *_: pytest.fail("a message"),
                    on_closed=lambda *_: pytest.fail("it was never open"),
                    on_refused=lambda _, error: refused.set(),
                )
            )
            return server[0]

        await loop.connect_accepted_socket(make, left)
        client = end()
        await loop.create_unix_connection(
            lambda: client.make(ClientHandshake(SECRET, 1, 0)), sock=right
        )
        client.connection.send(DATA, b"x")
        await client.soon(refused)
        await client.soon(client.closed)

    asyncio.run(run())


def test_oversized_message_is_refused_where_it_is_sent(ends, monkeypatch):
    monkeypatch.setattr(module, "MAX_MESSAGE", 1000)

    async def run():
        async with ends() as (_, client):
            with pytest.raises(MessageError, match="1,000 are the limit"):
                client.connection.send(DATA, bytes(1001))

    asyncio.run(run())


# --- Heartbeats -------------------------------------------------------------------------------


def test_heartbeats_go_both_ways_and_are_no_messages(ends):
    async def run():
        async with ends(beat=0.001) as (server, client):
            await client.soon(client.ready)
            await server.until_beats(3)
            await client.until_beats(3)
            assert server.messages == client.messages == []

    asyncio.run(run())


def test_silence_is_told_until_something_comes(end):
    async def run():
        one = end(beat=0.001)
        raw = await reader_and_writer(one)  # which never says anything
        await one.soon(one.silent)
        assert one.silence > 0.002
        assert not one.closed.is_set()
        await asyncio.get_running_loop().sock_sendall(raw, message(DATA, b"here I am"))
        await one.until(1)
        assert one.connection._silence.look(asyncio.get_running_loop().time()) < one.silence + 10
        raw.close()
        await one.soon(one.closed)

    asyncio.run(run())


def test_bytes_of_a_large_message_count_as_a_sign_of_life_unless_they_are_few(end):
    async def run():
        one = end()
        raw = await reader_and_writer(one)
        loop = asyncio.get_running_loop()
        heard = []
        hear = one.connection._hear
        one.connection._hear = lambda: (heard.append(True), hear())
        whole = message(DATA, bytes(module.SCRATCH * 4))
        begun = module.SCRATCH // 2
        await loop.sock_sendall(raw, whole[:begun])
        await one.until_bytes(begun)
        assert not heard
        sent = begun
        while not heard:
            assert sent <= begun + module.PROGRESS
            await loop.sock_sendall(raw, whole[sent : sent + 1000])
            sent += 1000
            await one.until_bytes(sent)
        assert sent - begun >= module.PROGRESS
        await loop.sock_sendall(raw, whole[sent:])
        await one.until(1)
        raw.close()
        await one.soon(one.closed)

    asyncio.run(run())


def test_both_ends_of_a_connection_are_named(ends):
    async def run():
        async with ends() as (server, client):
            await client.soon(client.ready)
            await server.soon(server.ready)
            assert server.connection.addresses == "member 0 with member 1"
            assert client.connection.addresses == "member 1 with member 0"

    asyncio.run(run())
