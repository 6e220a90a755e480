"""Connection: messages between two processes over one socket.

A message is a header and as many bytes as that says. The header has a number that counts the
messages of its direction, a checksum of the bytes and one of itself: what is damaged, missing or
doubled on the way ends the connection, before anybody waits for bytes that a damaged length claims.
Messages of a type below :data:`DATA` are control messages and go ahead of data that waits to be
sent; those of one class keep their order.

Both sides send a heartbeat every second or so, and know how long they have not heard of the
other. Everything here runs on the network's event loop, but for what says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

from jetlet.errors import JetletError
from jetlet.network.handshake import COORDINATOR, Handshake, HandshakeError
from jetlet.network.silence import Silence

logger = logging.getLogger("jetlet.network")

_FIELDS = struct.Struct("!IBII")  # length, type, number, checksum of the bytes
_CHECKSUM = struct.Struct("!I")  # of those fields
HEADER = struct.Struct("!IBIII")  # both
NUMBERS = 2**32
MAX_MESSAGE = 2**31 - 1
SCRATCH = 256 * 1024
"""Bytes read at a time; a message that is larger is read into a buffer of its own."""
JOINED = 64 * 1024
"""Parts up to this size are joined before they are written: a copy is cheaper than a call."""
PIECE = 256 * 1024
"""A larger part is written in pieces of this size, so that what the socket does not take at once
need not be copied."""
TURN = 1024 * 1024
"""Bytes written before others on the event loop get their turn."""
DIRECT = 8 * 1024
"""A message up to this size that nothing is ahead of is written by the thread that sends it."""
HIGH_WATER = 128 * 1024
"""Bytes that may wait in the transport. Little, because no control message gets ahead of them."""
HANDSHAKE_TIMEOUT = 5.0

BEAT = 1.0
"""Seconds between two heartbeats, by default."""
PROGRESS = 64 * 1024
"""Bytes of a message that is still on its way which count as much as a heartbeat, since those have
to wait behind it. Less may be heartbeats that fill what was lost of it."""

HEARTBEAT = 0x00
"""The type of a message that says nothing but that its sender is there."""
DATA = 0x80
"""The lowest type of data; all lower types are control messages."""

Buffer = bytes | bytearray | memoryview
_Message = tuple[int, int, int, tuple[Buffer, ...]]
"""Length, type, checksum of the bytes, and the bytes, of a message that has no number yet."""
OnMessage = Callable[["Connection", int, memoryview], None]
OnClosed = Callable[["Connection", Exception | None], None]
OnReady = Callable[["Connection"], None]
OnSilence = Callable[["Connection", float], None]


class MessageError(JetletError):
    """A message that cannot be one: the other side, or the network, is broken."""


class Connection(asyncio.BufferedProtocol):
    """One end of a connection, from the handshake on.

    ``on_ready`` is called when the handshake has succeeded, and refuses the connection by raising;
    ``on_message`` with each message after that; ``on_closed`` once at the end of a connection that
    was ready, ``on_refused`` at the end of one that never was; ``on_silence``, at each heartbeat,
    with the seconds for which the other side has said nothing, if that is more than two of them.
    """

    def __init__(
        self,
        handshake: Handshake,
        *,
        on_ready: OnReady,
        on_message: OnMessage,
        on_closed: OnClosed,
        on_refused: OnClosed,
        on_silence: OnSilence | None = None,
        beat: float = BEAT,
    ) -> None:
        self.bytes_in = self.bytes_out = 0
        self.backlog = 0
        """Bytes accepted by ``send`` and not given to the system yet; read from any thread."""
        self._handshake = handshake
        self._on_ready = on_ready
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_refused = on_refused
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._is_ready = False
        self._is_closed = False
        self._is_closing = False
        self._is_paused = False
        self._is_flush_due = False
        self._is_writing = False
        self.raw: socket.socket | None = None
        """The socket, where whoever sends may write to it: not under TLS."""
        self._lock = threading.Lock()
        """Guards what waits to be written, and with it the order of messages."""
        self._control: deque[_Message] = deque()
        self._data: deque[_Message] = deque()
        self._sent = self._received = 0
        """Messages so far: the numbers of the next ones."""
        self._parts: deque[Buffer] = deque()
        """What is left of the messages that are being written."""
        # A stranger gets room for the next message of the handshake and no more.
        self._scratch = bytearray(handshake.expects)
        self._start = self._end = 0
        self._large: bytearray | None = None
        self._large_at = 0
        self._large_header = (0, 0)
        self._unheard = 0
        """Bytes since the other side was last heard of."""
        self._beat_period = beat
        self._silence = Silence(beat, self._loop.time())
        self._beating: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> int:
        """Identity of the other side; proved once the connection is ready."""
        peer = self._handshake.peer
        assert peer is not None
        return peer

    @property
    def addresses(self) -> str:
        """Both ends, for people: who they are and where."""
        handshake = self._handshake
        ours, theirs = name_of(handshake.identity), name_of(handshake.peer)
        if self._transport is None:
            return f"{ours} with {theirs}"
        here = _shown(self._transport.get_extra_info("sockname"))
        there = _shown(self._transport.get_extra_info("peername"))
        return f"{ours}{here} with {theirs}{there}"

    @property
    def is_pending(self) -> bool:
        """True until the handshake has succeeded or failed."""
        return not self._is_ready and not self._is_closed

    def break_in_silence(self, seconds: float) -> None:
        """Let it break when what was sent has not been taken for so long by the other host."""
        raw = self._transport.get_extra_info("socket")
        if raw is not None and raw.family != getattr(socket, "AF_UNIX", None):
            with contextlib.suppress(OSError, AttributeError):  # not every system has it
                limit = int(seconds * 1000)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)

    # --- From any thread --------------------------------------------------------------------

    def send(self, kind: int, *parts: Buffer) -> None:
        """Send a message; it is dropped if the connection is closed. From any thread."""
        length = checksum = 0
        for part in parts:
            length += len(part)
            checksum = zlib.crc32(part, checksum)
        if length > MAX_MESSAGE:
            raise MessageError(f"a message of {length:,} bytes: {MAX_MESSAGE:,} are the limit")
        with self._lock:
            if self._is_closed:
                return
            if length <= DIRECT and self._is_idle():
                if self._write_directly(b"".join((self._header(length, kind, checksum), *parts))):
                    return
            else:
                self.backlog += length + HEADER.size
                waiting = self._data if kind >= DATA else self._control
                waiting.append((length, kind, checksum, parts))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call_soon(self._flush)

    def _header(self, length: int, kind: int, checksum: int) -> bytes:
        """Of the next message to be written; by whoever may write."""
        fields = _FIELDS.pack(length, kind, self._sent, checksum)
        self._sent = (self._sent + 1) % NUMBERS
        return fields + _CHECKSUM.pack(zlib.crc32(fields))

    def _is_idle(self) -> bool:
        """True if nothing waits to be written, anywhere, and nothing else is written meanwhile."""
        return (
            self.raw is not None
            and self._is_ready
            and not self._is_writing
            and not self._parts
            and not self._control
            and not self._data
            and not self._transport.get_write_buffer_size()
        )

    def _write_directly(self, message: bytes) -> bool:
        """Write without a detour over the event loop's thread, which costs more than the writing.

        What the socket does not take is the first thing that the loop will write.
        """
        assert self.raw is not None
        try:
            written = self.raw.send(message)
        except OSError:  # full, or broken: the loop finds out which
            written = 0
        self.bytes_out += written
        if written == len(message):
            return True
        self._parts.append(memoryview(message)[written:])
        self.backlog += len(message) - written
        return False

    def close(self) -> None:
        """Close after what was sent has been written; from any thread."""
        self._call_soon(self._close)

    def abort(self, reason: str) -> None:
        """Close at once, whatever was to be written; from any thread."""
        self._call_soon(self._fail, MessageError(reason))

    def _call_soon(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            return  # the loop has ended, and with it the connection

    # --- Writing ----------------------------------------------------------------------------

    def _close(self) -> None:
        self._is_closing = True
        self._flush()

    def _flush(self) -> None:
        # Cleared first: whoever appends after this point schedules another flush.
        self._is_flush_due = False
        if self._transport is None or self._is_closed or not self._is_ready:
            return
        written = 0
        with self._lock:
            # From here on nobody writes directly, and whoever sends does not wait for the lock.
            self._is_writing = True
        while not self._is_paused and self._take_messages():
            if written >= TURN:
                # More is written in the next turn of the loop: reading must not wait for it.
                self._flush_later()
                break
            written += self._write()
        with self._lock:
            self._is_writing = False
            self.bytes_out += written
            self.backlog -= written
            is_done = not self._parts and not self._control and not self._data
        if self._is_closing and is_done:
            self._hang_up()

    def _hang_up(self) -> None:
        """Hang up. It may take a while until the other side has heard of it, if it ever does."""
        with self._lock:
            self._is_closed = True
        if self._beating is not None:
            self._beating.cancel()
        self._transport.close()

    def _flush_later(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _take_messages(self) -> bool:
        """See to it that there is something to write; control messages first."""
        if not self._parts:
            queue = self._control or self._data
            size = 0
            while queue and size < JOINED:
                length, kind, checksum, parts = queue.popleft()
                self._parts.append(self._header(length, kind, checksum))
                self._parts.extend(parts)
                size += HEADER.size + length
        return bool(self._parts)

    def _write(self) -> int:
        """Write the next part, or several small ones joined; return how many bytes."""
        parts = self._parts
        first = parts.popleft()
        if len(first) > PIECE:
            view = memoryview(first)
            parts.appendleft(view[PIECE:])
            first = view[:PIECE]
        elif parts and len(first) + len(parts[0]) <= JOINED:
            small = [first]
            size = len(first)
            while parts and size + len(parts[0]) <= JOINED:
                size += len(parts[0])
                small.append(parts.popleft())
            first = b"".join(small)
        if first:
            self._transport.write(first)
        return len(first)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        # Not at once: the transport is in the middle of writing, and must not be closed there.
        self._flush_later()

    # --- Reading ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._error is not None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._deadline = self._loop.call_later(HANDSHAKE_TIMEOUT, self._give_up)
        if self._handshake.greeting:
            self._transport.write(self._handshake.greeting)

    def _give_up(self) -> None:
        if not self._is_ready:
            self._fail(
                HandshakeError(f"no handshake within {HANDSHAKE_TIMEOUT:.0f} s from the other side")
            )

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_at :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._scratch):
            # A part of a message is left at the end: move it to the front.
            left = self._end - self._start
            self._scratch[:left] = self._scratch[self._start : self._end]
            self._start, self._end = 0, left
        return memoryview(self._scratch)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is not None:
            return
        self.bytes_in += nbytes
        try:
            if self._large is not None:
                self._large_at += nbytes
                self._unheard += nbytes
                if self._unheard >= PROGRESS:
                    self._hear()
                if self._large_at == len(self._large):
                    whole, self._large = self._large, None
                    self._deliver(self._large_header, memoryview(whole))
                return
            self._end += nbytes
            if not self._is_ready:
                self._shake_hands()
                return
            while self._start < self._end and self._parse():
                pass
        except JetletError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("a message from member %s could not be handled", self._handshake.peer)
            self._fail(error)

    def _shake_hands(self) -> None:
        if self._end < len(self._scratch):
            return
        handshake = self._handshake
        answer = handshake.receive(bytes(self._scratch))
        self._transport.write(answer)
        self._start = self._end = 0
        if handshake.expects:
            self._scratch = bytearray(handshake.expects)
            return
        self._is_ready = True
        try:
            self._on_ready(self)
        except BaseException:
            self._is_ready = False
            raise
        self._scratch = bytearray(SCRATCH)
        if self._deadline is not None:
            self._deadline.cancel()
        self._silence = Silence(self._beat_period, self._loop.time())
        self._beating = self._loop.call_later(self._beat_period, self._beat)
        self._flush()

    def _beat(self) -> None:
        """Say that we are here, and look whether the other side does."""
        self._beating = self._loop.call_later(self._beat_period, self._beat)
        self.send(HEARTBEAT)
        silence = self._silence.look(self._loop.time())
        if silence > 2 * self._beat_period and self._on_silence is not None:
            self._on_silence(self, silence)

    def _hear(self) -> None:
        self._unheard = 0
        self._silence.heard(self._loop.time())

    def _parse(self) -> bool:
        """Take one message out of what was read; false if there is no whole one."""
        available = self._end - self._start - HEADER.size
        if available < 0:
            return False
        begin = self._start + HEADER.size
        length, kind, number, checksum, of_header = HEADER.unpack_from(self._scratch, self._start)
        fields = memoryview(self._scratch)[self._start : begin - _CHECKSUM.size]
        if zlib.crc32(fields) != of_header:
            raise MessageError(
                "a message was damaged on the way: the checksum of its header is wrong"
            )
        if number != self._received:
            raise MessageError(f"message {self._received} is missing: here is number {number}")
        if length > MAX_MESSAGE:
            raise MessageError(f"a message that claims to have {length:,} bytes")
        header = kind, checksum
        if available >= length:
            # A copy: the items may keep views of it for as long as they live.
            body = bytes(memoryview(self._scratch)[begin : begin + length])
            self._start = begin + length
            self._deliver(header, memoryview(body))
            return True
        if length + HEADER.size > len(self._scratch):
            self._large = bytearray(length)
            self._large[:available] = memoryview(self._scratch)[begin : self._end]
            self._large_at = available
            self._large_header = header
            self._start = self._end = 0
        return False

    def _deliver(self, header: tuple[int, int], body: memoryview) -> None:
        kind, checksum = header
        if zlib.crc32(body) != checksum:
            raise MessageError("a message was damaged on the way: its checksum is wrong")
        self._received = (self._received + 1) % NUMBERS
        self._hear()
        if kind != HEARTBEAT:
            self._on_message(self, kind, body)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        with self._lock:
            self._is_closed = True
            self._control.clear()
            self._data.clear()
            self._parts.clear()
            self.backlog = 0
        for timer in (self._deadline, self._beating):
            if timer is not None:
                timer.cancel()
        error = self._error or exc
        if self._is_ready:
            if error is not None:
                level = logging.WARNING if isinstance(error, MessageError) else logging.INFO
                logger.log(level, "the connection of %s is lost: %s", self.addresses, error)
            self._on_closed(self, error)
        else:
            self._on_refused(
                self, error or HandshakeError("it was closed before the handshake had ended")
            )


def name_of(identity: int | None) -> str:
    """What people call who has this identity."""
    if identity is None:
        return "a stranger"
    return "the coordinator" if identity == COORDINATOR else f"member {identity}"


def _shown(address: object) -> str:
    """An address of a socket behind the name of who has it; Unix sockets have it at one end."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f" ({host}:{port})"
    return f" ({address})" if address else ""
