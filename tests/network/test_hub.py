"""Hub: members meet, and carry the traffic of network edges."""

from __future__ import annotations

import asyncio
import os
import tempfile

import pytest

from jetlet.core.items import DONE
from jetlet.errors import JetletError
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import SingleTargetEdge
from jetlet.execution.progress_state import DONE as ENDED
from jetlet.execution.queue import BoundedQueue
from jetlet.network.connection import DATA
from jetlet.network.handshake import new_secret
from jetlet.network.hub import ACK, Hub
from jetlet.network.packets import encode
from jetlet.network.receive_window import INITIAL_WINDOW, UNIT_BITS
from jetlet.network.receiver import ReceiverTasklet
from jetlet.network.sender import SenderTasklet

SECRET = new_secret()


class Party:
    """Hubs that have met; ``lost`` has what each was told of broken connections."""

    def __init__(self, count, **options):
        self.lost = [[] for _ in range(count)]
        self.hubs = [
            Hub(i, count, SECRET, on_lost=lambda *a, i=i: self.lost[i].append(a), **options)
            for i in range(count)
        ]

    async def meet(self):
        addresses = {i: hub.listen() for i, hub in enumerate(self.hubs)}
        async with asyncio.timeout(60):
            await asyncio.gather(*(hub.join(addresses) for hub in self.hubs))

    async def leave(self):
        for hub in self.hubs:
            hub.close()
        await asyncio.sleep(0.01)


def run(count, test, **options):
    async def main():
        party = Party(count, **options)
        await party.meet()
        try:
            await test(party)
        finally:
            await party.leave()

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_everybody_meets_everybody_and_closes_the_door(count):
    async def test(party):
        for i, hub in enumerate(party.hubs):
            assert sorted(hub.connections) == [j for j in range(count) if j != i]
            assert hub.listener._socket.fileno() < 0

    run(count, test)


def test_sockets_leave_no_files():
    with tempfile.TemporaryDirectory() as directory:

        async def test(party):
            assert party.hubs[0].connections
            assert os.listdir(directory) == []  # noqa: PTH208

        run(3, test, directory=directory)


def edge(hubs, capacity=1024):
    """An edge from member 0 to member 1, without threads."""
    source, dest = BoundedQueue(10**6), BoundedQueue(capacity)
    sender = SenderTasklet(7, "a -> b", 1, InboundEdge(0, [source]), hubs[0].connections[1])
    receiver = ReceiverTasklet("a -> b", {0: SingleTargetEdge(dest)})
    return source, sender, receiver, dest


def test_items_travel_and_are_acknowledged(until):
    async def test(party):
        source, sender, receiver, dest = edge(party.hubs)
        party.hubs[0].carry({(7, 1): sender}, {})
        party.hubs[1].carry({}, {7: receiver})
        source.offer(list(range(1000)))
        source.offer_special(DONE)
        while sender.call() is not ENDED:
            pass
        got = []

        def step():
            state = receiver.call()
            while (entry := dest.poll(10_000)) is not None:
                got.extend([entry] if entry is DONE else entry)
            return state is ENDED

        await until(step)
        assert got == [*range(1000), DONE]
        await until(lambda: sender.metrics.window)
        assert sender.metrics.window == INITIAL_WINDOW << UNIT_BITS

    run(2, test)


def test_acknowledgement_that_comes_before_the_edge_is_not_lost(until):
    """The first one carries the initial window: without it a sender waits for a whole period."""

    async def test(party):
        _, sender, receiver, _ = edge(party.hubs)
        party.hubs[1].carry({}, {7: receiver})
        await until(lambda: party.hubs[0]._early)
        party.hubs[0].carry({(7, 1): sender}, {})
        assert sender.metrics.window == INITIAL_WINDOW << UNIT_BITS

    run(2, test)


def test_lost_connection_is_told_to_both_sides(until):
    async def test(party):
        party.hubs[0].connections[1].abort("cut")
        await until(lambda: party.lost[0] and party.lost[1])
        assert [member for member, _ in party.lost[0]] == [1]
        assert [member for member, _ in party.lost[1]] == [0]
        assert "cut" in str(party.lost[0][0][1])
        assert not party.lost[2]

    run(3, test)


def test_leaving_on_purpose_is_told_to_the_others_only(until):
    async def test(party):
        party.hubs[0].close()
        await until(lambda: party.lost[1])
        assert not party.lost[0]

    run(2, test)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (DATA, b"".join(encode(99, [1], 1))),
        (DATA, b"short"),
        (ACK, b"odd size"),
        (0x55, b"unknown"),
    ],
)
def test_message_that_makes_no_sense_ends_the_connection(kind, body, until):
    async def test(party):
        party.hubs[0].connections[1].send(kind, body)
        await until(lambda: party.lost[1])
        assert isinstance(party.lost[1][0][1], JetletError)

    run(2, test)


def test_second_connection_as_the_same_member_is_refused(until):
    async def main():
        party = Party(3)
        addresses = {i: hub.listen() for i, hub in enumerate(party.hubs)}
        joined = asyncio.create_task(party.hubs[1].join(addresses))
        await until(lambda: party.hubs[0].connections)
        twin = Hub(1, 3, SECRET, on_lost=lambda *_: None)
        twin.listen()
        task = asyncio.create_task(twin.join(addresses))
        await until(lambda: party.hubs[0].listener.refused)
        assert len(party.hubs[0].connections) == 1
        for each in (task, joined):
            each.cancel()
        twin.close()
        await party.leave()

    asyncio.run(main())


def test_peer_that_does_not_answer_fails_the_join():
    async def main():
        hub = Hub(1, 2, SECRET, on_lost=lambda *_: None)
        hub.listen()
        with pytest.raises(JetletError, match="cannot connect to member 0"):
            await hub.join({0: "tcp:127.0.0.1:1"})
        hub.close()

    asyncio.run(main())


def test_peer_with_another_secret_fails_the_join():
    async def main():
        stranger = Hub(0, 2, new_secret(), on_lost=lambda *_: None)
        hub = Hub(1, 2, SECRET, on_lost=lambda *_: None)
        hub.listen()
        with pytest.raises(JetletError, match="did not take the connection"):
            async with asyncio.timeout(60):
                await hub.join({0: stranger.listen()})
        hub.close()
        stranger.close()
        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_closing_ends_a_join_that_waits():
    async def main():
        hub = Hub(0, 2, SECRET, on_lost=lambda *_: None)
        address = hub.listen()
        task = asyncio.create_task(hub.join({0: address}))
        await asyncio.sleep(0)
        hub.close()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(60):
                await task

    asyncio.run(main())
