"""Listener: lets peers in, keeps strangers out, and stays small however many there are."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from functools import partial
from pathlib import Path

import pytest

from jetlet.errors import JetletError
from jetlet.network import listener as module
from jetlet.network.connection import DATA
from jetlet.network.handshake import ClientHandshake, ServerHandshake, new_secret
from jetlet.network.listener import PENDING, Listener, connect, own_address

SECRET = new_secret()


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(prefix="jetlet-test-") as path:
        yield path


class Door:
    """A listener that remembers who came through."""

    def __init__(self, end, until, **options):
        self.ends = []
        self.until = until
        self._end = end
        self.listener = Listener.open(self._make, **options)

    def _make(self, on_refused):
        one = self._end()
        self.ends.append(one)
        return one.make(ServerHandshake(SECRET, 0), on_refused)

    async def guest(self, identity=1, secret=SECRET):
        one = self._end()
        await connect(lambda: one.make(ClientHandshake(secret, identity, 0)), self.listener.address)
        return one

    async def stranger(self, data=b""):
        loop = asyncio.get_running_loop()
        kind, _, rest = self.listener.address.partition(":")
        if kind == "unix":
            raw = socket.socket(socket.AF_UNIX)
            address = rest
        else:
            raw = socket.socket()
            host, _, port = rest.rpartition(":")
            address = (host, int(port))
        raw.setblocking(False)
        await loop.sock_connect(raw, address)
        if data:
            await loop.sock_sendall(raw, data)
        return raw


@pytest.fixture
def use(end, until):
    return partial(use_door, end, until)


def use_door(end, until, test, **options):
    async def run():
        door = Door(end, until, **options)
        try:
            await test(door)
        finally:
            door.listener.close()
            for one in door.ends:
                one.connection.abort("over")
            await asyncio.sleep(0.01)

    asyncio.run(run())


async def passes(door):
    one = await door.guest()
    await one.soon(one.ready)
    one.connection.send(DATA, b"hello")
    await door.until(lambda: any(e.messages == [(DATA, b"hello")] for e in door.ends))
    one.connection.abort("over")


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_peer_comes_through(use, directory, kind):
    options = {"directory": directory} if kind == "unix" else {}

    async def test(door):
        assert door.listener.address.startswith(f"{kind}:")
        await passes(door)

    use(test, **options)


def test_listens_on_loopback_unless_told_otherwise(use):
    async def test(door):
        assert door.listener.address.startswith("tcp:127.0.0.1:")

    use(test)


def test_unix_socket_is_in_a_directory_that_nobody_else_can_enter(use, directory):
    async def test(door):
        path = door.listener.address.removeprefix("unix:")
        assert stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116
        door.listener.close()
        with pytest.raises(FileNotFoundError):
            os.stat(path)  # noqa: PTH116

    use(test, directory=directory)
    assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700


def test_directory_with_too_long_a_name_means_tcp(use, directory):
    deep = Path(directory, "x" * 120)
    deep.mkdir()

    async def test(door):
        assert door.listener.address.startswith("tcp:")
        await passes(door)

    use(test, directory=str(deep))


def test_unknown_host_is_an_error():
    async def run():
        with pytest.raises(JetletError, match=r"cannot listen at 192\.0\.2\.1"):
            Listener.open(lambda _: pytest.fail("made"), host="192.0.2.1")

    asyncio.run(run())


def test_refusals_are_logged_with_their_reason_and_then_only_counted(use, caplog):
    async def test(door):
        for _ in range(30):
            raw = await door.stranger(b"GET / HTTP/1.1\r\n\r\n".ljust(76))
            async with asyncio.timeout(60):
                while await asyncio.get_running_loop().sock_recv(raw, 100):
                    pass
            raw.close()
        assert door.listener.refused == 30
        await passes(door)

    use(test)
    lines = [r.getMessage() for r in caplog.records]
    assert sum("does not speak this protocol" in line for line in lines) == module.LOGGED
    assert any("refused 30 connections" in line for line in lines)


def test_silent_strangers_are_bounded_and_the_oldest_go_first(use, monkeypatch):
    monkeypatch.setattr(module, "BURST", 10_000)

    async def test(door):
        raws = [await door.stranger() for _ in range(PENDING * 3)]
        await door.until(lambda: door.listener.refused == PENDING * 2)
        pending = [e for e in door.ends if e.connection.is_pending]
        assert len(pending) == PENDING
        assert pending == door.ends[-PENDING:]
        await passes(door)
        for raw in raws:
            raw.close()

    use(test)


def test_flood_is_taken_slowly(use, monkeypatch):
    monkeypatch.setattr(module, "BURST", 5)
    monkeypatch.setattr(module, "RATE", 20.0)

    async def test(door):
        loop = asyncio.get_running_loop()
        start = loop.time()
        raws = [await door.stranger() for _ in range(15)]
        await door.until(lambda: door.listener.accepted == 15)
        assert loop.time() - start > 9 / 20.0
        for raw in raws:
            raw.close()

    use(test)


def test_thousands_of_connections_leave_nothing_behind(use, monkeypatch):
    monkeypatch.setattr(module, "BURST", 10_000)
    files = Path("/proc/self/fd")
    before = len(list(files.iterdir())) if files.exists() else None

    async def test(door):
        for _ in range(2000):
            (await door.stranger()).close()
        await passes(door)
        await door.until(lambda: door.listener.refused == 2000)
        assert len(door.listener._arrivals) <= PENDING

    use(test)
    if before is not None:
        assert len(list(files.iterdir())) <= before + 1


def test_closed_listener_drops_those_in_the_handshake_and_keeps_those_who_passed(use):
    async def test(door):
        one = await door.guest()
        await one.soon(one.ready)
        raw = await door.stranger()
        await door.until(lambda: len(door.ends) == 2)
        address = door.listener.address
        door.listener.close()
        door.listener.close()
        async with asyncio.timeout(60):
            while await asyncio.get_running_loop().sock_recv(raw, 100):
                pass
        raw.close()
        one.connection.send(DATA, b"still here")
        assert await door.ends[0].until(1)
        with pytest.raises(OSError):
            await connect(lambda: pytest.fail("made"), address)
        one.connection.abort("over")

    use(test)


def test_guest_with_a_wrong_secret_learns_nothing_and_is_turned_away(use):
    async def test(door):
        one = await door.guest(secret=new_secret())
        await one.soon(one.refused)
        await door.ends[0].soon(door.ends[0].refused)
        assert not door.ends[0].ready.is_set()

    use(test)


def test_ports_are_taken_one_after_the_other_until_there_is_none_left(use):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        async def test(door):
            found = int(door.listener.address.rpartition(":")[2])
            assert port < found <= min(port + 200, 65_535)
            await passes(door)
            with pytest.raises(JetletError, match=rf"from {port} to {port} are all taken"):
                Listener.open(lambda refused: None, ports=(port, port))

        use(test, ports=(port, min(port + 200, 65_535)))


def test_a_host_knows_its_address_in_the_network_of_another():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("localhost") == "127.0.0.1"


def test_both_ends_are_named_where_there_is_no_way():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    async def try_it():
        await connect(lambda: pytest.fail("there is nobody"), f"tcp:127.0.0.1:{port}")

    with pytest.raises(OSError, match=rf"no way from .* \(127\.0\.0\.1\) to 127\.0\.0\.1:{port}: "):
        asyncio.run(try_it())
