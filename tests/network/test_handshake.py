"""The handshake: nobody gets in without the secret, by whatever trick."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.network.handshake import (
    MAGIC,
    NONCE,
    PROOF,
    ClientHandshake,
    HandshakeError,
    ServerHandshake,
    new_secret,
)

SECRET = new_secret()


def shake(server, client):
    """Let them talk; returns the messages in order."""
    hello = server.greeting
    claim = client.receive(hello)
    proof = server.receive(claim)
    client.receive(proof)
    return hello, claim, proof


def test_both_sides_prove_themselves_and_the_server_learns_who_it_is():
    server, client = ServerHandshake(SECRET, 0), ClientHandshake(SECRET, 7, 0)
    assert server.peer is None
    shake(server, client)
    assert (server.expects, client.expects) == (0, 0)
    assert (server.peer, client.peer) == (7, 0)


def test_messages_have_the_announced_sizes():
    server, client = ServerHandshake(SECRET, 0), ClientHandshake(SECRET, 1, 0)
    assert len(server.greeting) == client.expects
    claim = client.receive(server.greeting)
    assert len(claim) == server.expects
    assert len(server.receive(claim)) == client.expects


def test_client_without_the_secret_is_refused():
    server, client = ServerHandshake(SECRET, 0), ClientHandshake(new_secret(), 1, 0)
    with pytest.raises(HandshakeError, match="does not know the secret"):
        server.receive(client.receive(server.greeting))
    assert server.peer is None
    assert server.expects


def test_server_without_the_secret_is_refused():
    client = ClientHandshake(SECRET, 1, 0)
    impostor = ServerHandshake(new_secret(), 0)
    client.receive(impostor.greeting)
    with pytest.raises(HandshakeError, match="the server does not know"):
        client.receive(bytes(PROOF))


def test_replayed_claim_is_refused_by_another_handshake():
    _, claim, _ = shake(ServerHandshake(SECRET, 0), ClientHandshake(SECRET, 1, 0))
    with pytest.raises(HandshakeError):
        ServerHandshake(SECRET, 0).receive(claim)


def test_replayed_server_does_not_fool_a_client():
    hello, _, proof = shake(ServerHandshake(SECRET, 0), ClientHandshake(SECRET, 1, 0))
    client = ClientHandshake(SECRET, 1, 0)
    client.receive(hello)
    with pytest.raises(HandshakeError):
        client.receive(proof)


def test_reflected_proof_is_refused():
    """A stranger sends a client's own proof back to it: roles differ, so it is worth nothing."""
    client = ClientHandshake(SECRET, 1, 0)
    claim = client.receive(MAGIC + bytes(NONCE))
    with pytest.raises(HandshakeError):
        client.receive(claim[-PROOF:])


def test_server_is_not_an_oracle_for_another_server():
    """A stranger takes the challenge of one server to a client that connects to another."""
    first, second = ServerHandshake(SECRET, 0), ServerHandshake(SECRET, 2)
    victim = ClientHandshake(SECRET, 1, 2)
    claim = victim.receive(first.greeting)
    with pytest.raises(HandshakeError):
        first.receive(claim)
    with pytest.raises(HandshakeError):
        second.receive(claim)


def test_proof_cannot_be_moved_to_another_identity():
    server, client = ServerHandshake(SECRET, 0), ClientHandshake(SECRET, 1, 0)
    claim = bytearray(client.receive(server.greeting))
    claim[len(MAGIC) + NONCE + 3] = 2
    with pytest.raises(HandshakeError):
        server.receive(bytes(claim))


def test_other_protocols_are_refused_on_both_sides():
    with pytest.raises(HandshakeError, match="does not speak"):
        ServerHandshake(SECRET, 0).receive(b"GET / HTTP/1.1\r\n".ljust(76))
    with pytest.raises(HandshakeError, match="does not speak"):
        ClientHandshake(SECRET, 1, 0).receive(b"220 smtp ready".ljust(40))


@given(st.data())
def test_no_change_of_any_bit_gets_through(data):
    server, client = ServerHandshake(SECRET, 0), ClientHandshake(SECRET, 1, 0)
    claim = bytearray(client.receive(server.greeting))
    bit = data.draw(st.integers(0, len(claim) * 8 - 1))
    claim[bit // 8] ^= 1 << bit % 8
    with pytest.raises(HandshakeError):
        server.receive(bytes(claim))


@given(st.binary(max_size=200))
def test_garbage_and_truncated_messages_are_refused(message):
    with pytest.raises(HandshakeError):
        ServerHandshake(SECRET, 0).receive(message)


def test_nonces_and_secrets_are_fresh():
    assert len({ServerHandshake(SECRET, 0).greeting for _ in range(100)}) == 100
    assert len({new_secret() for _ in range(100)}) == 100
