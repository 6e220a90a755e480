"""Handshake: both ends of a connection prove that they know the job's secret.

Before it has ended nothing else is read from a connection, and nothing is unpickled. Messages have
a fixed size::

    server -> client   magic, nonce of the server
    client -> server   magic, nonce of the client, identity of the client, proof
    server -> client   proof

A proof is an HMAC-SHA256 under the secret of a role, both nonces and both identities. The roles
and the fresh nonces make every proof useless anywhere else: replayed, reflected or moved to another
identity. The classes do no input or output: bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

from jetlet.errors import JetletError

MAGIC = b"JETLET01"
NONCE = 32
PROOF = 32
_IDENTITY = struct.Struct("!i")

COORDINATOR = -1
"""The identity of the submitting process; members count from 0."""


class HandshakeError(JetletError):
    """The other side does not know the secret, or does not speak the protocol."""


def new_secret() -> bytes:
    """A secret for one job."""
    return secrets.token_bytes(32)


def _prove(
    secret: bytes, role: bytes, nonces: tuple[bytes, bytes], identities: tuple[bytes, bytes]
) -> bytes:
    # Every part has a fixed size, so joining them is unambiguous.
    return hmac.new(secret, b"".join((role, *nonces, *identities)), hashlib.sha256).digest()


def _check_magic(message: bytes) -> None:
    if message[: len(MAGIC)] != MAGIC:
        raise HandshakeError("the other side does not speak this protocol")


class ServerHandshake:
    """The side that was connected to, as ``identity``. It learns who the other one is."""

    def __init__(self, secret: bytes, identity: int) -> None:
        self.identity = identity
        self._secret = secret
        self._identity = _IDENTITY.pack(identity)
        self._nonce = secrets.token_bytes(NONCE)
        self.greeting = MAGIC + self._nonce
        """The first bytes of the handshake, to be sent at once."""
        self.expects = len(MAGIC) + NONCE + _IDENTITY.size + PROOF
        """Size of the next message from the other side; 0 when the handshake has succeeded."""
        self.peer: int | None = None
        """The identity that the client proved."""

    def receive(self, message: bytes) -> bytes:
        """Take the next message and return the answer."""
        _check_magic(message)
        client = message[len(MAGIC) : len(MAGIC) + NONCE]
        identity = message[len(MAGIC) + NONCE : -PROOF]
        nonces, identities = (self._nonce, client), (self._identity, identity)
        expected = _prove(self._secret, b"client", nonces, identities)
        if not hmac.compare_digest(expected, message[-PROOF:]):
            raise HandshakeError("the other side does not know the secret")
        self.peer = _IDENTITY.unpack(identity)[0]
        self.expects = 0
        return _prove(self._secret, b"server", nonces, identities)


class ClientHandshake:
    """The side that connects, as ``identity``, to the server whose identity is ``peer``."""

    def __init__(self, secret: bytes, identity: int, peer: int) -> None:
        self.identity = identity
        self._secret = secret
        self._identity = _IDENTITY.pack(identity)
        self._server = _IDENTITY.pack(peer)
        self._nonce = secrets.token_bytes(NONCE)
        self._server_nonce = b""
        self.greeting = b""
        self.expects = len(MAGIC) + NONCE
        self.peer: int | None = peer

    def receive(self, message: bytes) -> bytes:
        """Take the next message and return the answer."""
        if not self._server_nonce:
            _check_magic(message)
            self._server_nonce = message[len(MAGIC) :]
            self.expects = PROOF
            return MAGIC + self._nonce + self._identity + self._proof(b"client")
        if not hmac.compare_digest(self._proof(b"server"), message):
            raise HandshakeError("the server does not know the secret")
        self.expects = 0
        return b""

    def _proof(self, role: bytes) -> bytes:
        return _prove(
            self._secret,
            role,
            (self._server_nonce, self._nonce),
            (self._server, self._identity),
        )


Handshake = ServerHandshake | ClientHandshake
