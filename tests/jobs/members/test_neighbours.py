"""What a member tells that waits for others, whose host nobody reaches."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from jetlet.jobs.members import member as member_module
from jetlet.jobs.members.launcher import Bootstrap
from jetlet.jobs.members.member import Member
from jetlet.network import listener


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def listening(stack):
    """An address where somebody listens."""
    return _place(stack.enter_context(socket.create_server(("127.0.0.1", 0))))


def refusing(stack):
    """An address where nobody listens, of a host that is there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return _place(server)


def silent(stack):
    """An address that does not answer: its queue is full, so that packets are dropped."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(4):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(server.getsockname())
    return _place(server)


def _place(server):
    return "{}:{}".format(*server.getsockname())


def told(neighbours, monkeypatch, *, has_plan=False):
    monkeypatch.setattr(member_module, "ALONE_LIMIT", 0.0)
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 1.0)
    messages = []
    waiting = SimpleNamespace(
        _index=1,
        _bootstrap=Bootstrap("", "", 1, 2, [], neighbours=tuple(neighbours)),
        _joining=object() if has_plan else None,
        _tell=messages.append,
    )
    asyncio.run(Member._look_for_neighbours(waiting))
    return messages


def test_one_that_does_not_answer_is_told_with_both_addresses(stack, monkeypatch):
    place = silent(stack)
    (lost,) = told([listening(stack), place, refusing(stack)], monkeypatch)
    assert lost.member == 1
    assert "waits for others in vain: no way from " in lost.reason
    assert f" (127.0.0.1) to {place}: no answer within 1 s" in lost.reason


def test_those_that_answer_and_those_that_have_ended_are_not_spoken_of(stack, monkeypatch):
    assert told([listening(stack), refusing(stack)], monkeypatch) == []


def test_a_member_that_has_its_plan_waits_for_nobody(stack, monkeypatch):
    assert told([silent(stack)], monkeypatch, has_plan=True) == []


def test_neighbours_are_told_to_members_in_any_way():
    bootstrap = Bootstrap("", "", 0, 1, [], neighbours=("10.0.0.1:1", "10.0.0.2:2"))
    assert Bootstrap.from_dict(json.loads(bootstrap.to_json())) == bootstrap
