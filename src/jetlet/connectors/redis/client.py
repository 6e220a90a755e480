"""Redis: where the server is, and a connection to it that keeps nobody waiting for long.

:class:`RedisServer` says where it is and how to connect. A :class:`RedisConnection` sends commands
in batches and hands out the replies as they come; no call but :meth:`RedisConnection.connect` and
:meth:`RedisConnection.ask` waits for longer than it is told to, whatever the server does.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from jetlet.core.arguments import shortened
from jetlet.errors import InvalidArgumentError, MissingDependencyError, ServerUnreachableError
from jetlet.storage.file_systems import without_credentials

if TYPE_CHECKING:
    from redis.connection import ConnectionInterface

ANSWER_TIMEOUT: Final = 5.0
"""Seconds after which a server that does not answer counts as lost."""
NO_REPLY: Final = object()
"""What :meth:`RedisConnection.receive` returns when there is no reply yet."""

Command = Sequence[bytes | str | int | float]

_RESERVED: Final = {
    "decode_responses": "encoding=... instead, where there is one",
    "protocol": "nothing: it is chosen for you",
    "retry": "nothing: a source connects again by itself",
}


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Where to connect, and the settings of the connection; checked, picklable if these are."""

    what: str
    """The function that it was given to, for messages."""
    url: str
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, what: str, url: str, settings: Mapping[str, Any] | None = None) -> RedisServer:
        """Check what a user wrote; ``what`` names the function for messages."""
        given: Any = url
        if not isinstance(given, str) or not _is_url(given):
            raise InvalidArgumentError(
                f"{what}: url={url!r}: write 'redis://host:port/database', 'rediss://...' for TLS, "
                "or 'unix:///path/of/socket'"
            )
        if settings is not None and not isinstance(settings, Mapping):
            raise InvalidArgumentError(
                f"{what}: settings={shortened(settings)}: write a dict of options of a connection "
                "of redis-py, such as {'ssl_ca_certs': 'ca.pem'}"
            )
        for name in settings or ():
            if name in _RESERVED:
                raise InvalidArgumentError(f"{what}: settings: {name}: write {_RESERVED[name]}")
        if find_spec("redis") is None:
            raise MissingDependencyError(f"{what} needs redis-py: pip install 'jetlet[redis]'")
        return cls(what, given, dict(settings or {}))

    @property
    def address(self) -> str:
        """The URL as it may be shown."""
        return without_credentials(self.url)

    def connection(self) -> RedisConnection:
        """A new connection, which is not made yet."""
        from redis import ConnectionPool, RedisError
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        ours = {
            "socket_timeout": ANSWER_TIMEOUT,
            "socket_connect_timeout": ANSWER_TIMEOUT,
            "socket_keepalive": True,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        if self.url.startswith("unix:"):
            del ours["socket_connect_timeout"], ours["socket_keepalive"]
        try:
            made = ConnectionPool.from_url(self.url, **{**ours, **self.settings}).make_connection()
        except (RedisError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"{self.what}: url={self.address!r}, settings: {error}; write options that "
                "redis-py knows"
            ) from error
        return RedisConnection(self, made)


class RedisConnection:
    """Used by one thread, but for :meth:`interrupt`.

    ``ServerUnreachableError`` is raised when the connection is lost, redis-py's ``ResponseError``
    when the server refuses a command.
    """

    def __init__(self, server: RedisServer, client: ConnectionInterface) -> None:
        from redis import exceptions

        self._server = server
        self._client: Any = client
        self._lost = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)

    def connect(self) -> None:
        """Connect and log in; waits, up to :data:`ANSWER_TIMEOUT`."""
        from redis import RedisError

        try:
            self._client.connect()
        except (RedisError, OSError) as error:
            raise ServerUnreachableError(
                f"{self._server.what}: cannot connect to Redis at {self._server.address}: {error}; "
                "check url=... and that the server is running"
            ) from error

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands; as many replies are to be received."""
        packed = self._client.pack_commands(commands)
        try:
            self._client.send_packed_command(packed)
        except self._lost as error:
            raise self._loss(error) from error

    def receive(self, timeout: float) -> Any:
        """The next reply, or :data:`NO_REPLY` if none has come within so many seconds."""
        try:
            # A reply that has begun is waited for; an interrupt ends that.
            return self._client.read_response() if self._client.can_read(timeout) else NO_REPLY
        except self._lost as error:
            raise self._loss(error) from error

    def ask(self, name: str, *arguments: bytes | str | float) -> Any:
        """Send a command and wait for the reply, up to :data:`ANSWER_TIMEOUT`.

        Here a refusal, too, is a ``ServerUnreachableError``.
        """
        from redis import ResponseError

        try:
            self.send([(name, *arguments)])
            return self._client.read_response()
        except (*self._lost, ResponseError) as error:
            raise ServerUnreachableError(
                f"{self._server.what}: Redis at {self._server.address} says to {name}: {error}"
            ) from error

    def interrupt(self) -> None:
        """End the connection, so that a call that waits raises; from any thread."""
        # Not by `disconnect`: the thread that uses the client would connect again.
        connected: socket.socket | None = self._client._sock
        if connected is not None:
            with suppress(OSError):  # it has ended by itself
                connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._client.disconnect()

    def _loss(self, error: Exception) -> ServerUnreachableError:
        return ServerUnreachableError(
            f"{self._server.what}: lost the connection to Redis at {self._server.address}: {error}"
        )


def check_streams(what: str, streams: Any) -> list[str]:
    """The keys of one or several streams."""
    given = [streams] if isinstance(streams, str) else streams
    if (
        not isinstance(given, list | tuple)
        or not given
        or not all(isinstance(each, str) and each for each in given)
    ):
        raise InvalidArgumentError(
            f"{what}({streams!r}): write the key of a stream, or a list of keys"
        )
    return list(dict.fromkeys(given))


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme == "unix":
        return bool(parts.path)
    return parts.scheme in ("redis", "rediss") and bool(parts.hostname) and port != 0
