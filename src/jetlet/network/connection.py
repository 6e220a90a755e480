"""Connection: frames between two processes over one socket.

A frame is ``length, type, checksum`` and that many bytes. Frames of a type below :data:`DATA` are
control messages and go ahead of data that waits to be sent. Everything here runs on the network's
event loop, but for :meth:`Connection.send`, which may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from jetlet.errors import JetletError
from jetlet.network.handshake import Handshake, HandshakeError

logger = logging.getLogger("jetlet.network")

HEADER = struct.Struct("!IBI")  # length, type, checksum
MAX_FRAME = 2**31 - 1
SCRATCH = 256 * 1024
"""Bytes read at a time; a frame that is larger is read into a buffer of its own."""
JOINED = 64 * 1024
"""Parts up to this size are joined before they are written: a copy is cheaper than a call."""
HANDSHAKE_TIMEOUT = 5.0

DATA = 0x80
"""The type of data packets; all lower types are control messages."""

Buffer = bytes | bytearray | memoryview
OnFrame = Callable[["Connection", int, memoryview], None]
OnClosed = Callable[["Connection", Exception | None], None]
OnReady = Callable[["Connection"], None]


class FrameError(JetletError):
    """A frame that cannot be one: the other side, or the network, is broken."""


class Connection(asyncio.BufferedProtocol):
    """One end of a connection, from the handshake on.

    ``on_ready`` is called when the handshake has succeeded, ``on_frame`` with each frame after
    that, ``on_closed`` once at the end of a connection that was ready. A failed handshake closes
    the connection, leaves a line in the log and touches nothing else.
    """

    def __init__(
        self,
        handshake: Handshake,
        *,
        on_ready: OnReady,
        on_frame: OnFrame,
        on_closed: OnClosed,
        on_refused: OnClosed | None = None,
    ) -> None:
        self.bytes_in = self.bytes_out = self.frames_in = self.frames_out = 0
        self.backlog = 0
        """Bytes accepted by ``send`` and not given to the system yet; read from any thread."""
        self._handshake = handshake
        self._on_ready = on_ready
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._is_ready = False
        self._is_closed = False
        self._is_paused = False
        self._is_flush_due = False
        self._lock = threading.Lock()
        self._control: deque[Sequence[Buffer]] = deque()
        self._data: deque[Sequence[Buffer]] = deque()
        self._scratch = bytearray(SCRATCH)
        self._start = self._end = 0
        self._large: bytearray | None = None
        self._large_at = 0
        self._large_header = (0, 0, 0)
        self._error: Exception | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> int:
        """Identity of the other side; proved once the connection is ready."""
        return self._handshake.peer

    # --- From any thread --------------------------------------------------------------------

    def send(self, kind: int, *parts: Buffer) -> None:
        """Send a frame; it is dropped if the connection is closed."""
        length = checksum = 0
        for part in parts:
            length += len(part)
            checksum = zlib.crc32(part, checksum)
        if length > MAX_FRAME:
            raise FrameError(f"a frame of {length:,} bytes: {MAX_FRAME:,} are the limit")
        frame = (HEADER.pack(length, kind, checksum), *parts)
        with self._lock:
            self.backlog += length + HEADER.size
            (self._data if kind >= DATA else self._control).append(frame)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:
                return  # the loop has ended, and with it the connection

    def close(self) -> None:
        """Close after what was sent has been written; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._close)
        except RuntimeError:
            return

    # --- On the event loop ------------------------------------------------------------------

    def _close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        # Cleared first: whoever appends after this point schedules another flush.
        self._is_flush_due = False
        transport = self._transport
        if transport is None or self._is_closed or not self._is_ready:
            return
        while not self._is_paused:
            queue = self._control or self._data
            if not queue:
                return
            small: list[Buffer] = []
            size = 0
            while queue and size < JOINED:
                frame = queue.popleft()
                self.frames_out += 1
                for part in frame:
                    size += len(part)
                    if len(part) > JOINED:
                        transport.write(b"".join(small))
                        small.clear()
                        transport.write(part)
                    else:
                        small.append(part)
            transport.write(b"".join(small))
            with self._lock:
                self.backlog -= size
            self.bytes_out += size

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=1024 * 1024)
        self._deadline = self._loop.call_later(HANDSHAKE_TIMEOUT, self._give_up)
        if self._handshake.greeting:
            self._transport.write(self._handshake.greeting)

    def _give_up(self) -> None:
        if not self._is_ready:
            self._fail(HandshakeError("the other side did not finish the handshake"))

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._transport.abort()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_at :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._scratch):
            # A part of a frame is left at the end: move it to the front.
            left = self._end - self._start
            self._scratch[:left] = self._scratch[self._start : self._end]
            self._start, self._end = 0, left
        return memoryview(self._scratch)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        try:
            if self._large is not None:
                self._large_at += nbytes
                if self._large_at == len(self._large):
                    whole, self._large = self._large, None
                    self._deliver(self._large_header, memoryview(whole))
                return
            self._end += nbytes
            while self._start < self._end and self._parse():
                pass
        except (JetletError, struct.error) as error:
            self._fail(error)
        except Exception as error:
            logger.exception("a frame from member %s could not be handled", self.peer)
            self._fail(error)

    def _parse(self) -> bool:
        """Take one message out of what was read; false if there is no whole one."""
        available = self._end - self._start
        if not self._is_ready:
            expected = self._handshake.expects
            if available < expected:
                return False
            message = bytes(self._scratch[self._start : self._start + expected])
            self._start += expected
            self._transport.write(self._handshake.receive(message))
            if not self._handshake.expects:
                self._is_ready = True
                if self._deadline is not None:
                    self._deadline.cancel()
                self._on_ready(self)
                self._flush()
            return True
        if available < HEADER.size:
            return False
        header = HEADER.unpack_from(self._scratch, self._start)
        length = header[0]
        if length > MAX_FRAME:
            raise FrameError(f"a frame that claims to have {length:,} bytes")
        begin = self._start + HEADER.size
        if available - HEADER.size >= length:
            # A copy: the items may keep views of it for as long as they live.
            body = bytes(memoryview(self._scratch)[begin : begin + length])
            self._start = begin + length
            self._deliver(header, memoryview(body))
            return True
        if length + HEADER.size > len(self._scratch):
            self._large = bytearray(length)
            self._large_at = self._end - begin
            self._large[: self._large_at] = self._scratch[begin : self._end]
            self._large_header = header
            self._start = self._end = 0
        return False

    def _deliver(self, header: tuple[int, int, int], body: memoryview) -> None:
        _, kind, checksum = header
        if zlib.crc32(body) != checksum:
            raise FrameError("a frame whose checksum is wrong")
        self.frames_in += 1
        self._on_frame(self, kind, body)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        error = self._error or exc
        if self._is_ready:
            if error is not None:
                logger.info("connection with member %s lost: %s", self.peer, error)
            self._on_closed(self, error)
            return
        logger.warning("refused a connection: %s", error or "it was closed before the handshake")
        if self._on_refused is not None:
            self._on_refused(self, error)
