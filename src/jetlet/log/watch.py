"""LogWatch: tells a reader that somebody, in whichever process, has written to a log.

A reader at the end of its partitions need not look at them over and over. On Linux the kernel says
when something changes in a directory (inotify); a thread waits for that. Elsewhere, and where the
kernel has no more of these to give, :func:`watch` gives ``None``, and the reader looks again and
again as before. It should look now and then in any case: of what another machine writes to a file
system in the network, the kernel knows nothing.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Final

_MODIFY, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF = 0x2, 0x80, 0x100, 0x200, 0x400
_MASK: Final = _MODIFY | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF
_BUFFER: Final = 1 << 16


def watch(directories: Iterable[str], wake: Callable[[], None]) -> LogWatch | None:
    """Watch the directories of some partitions, if that is possible."""
    if sys.platform != "linux":
        return None
    try:
        return LogWatch(directories, wake)
    except OSError:
        return None


class LogWatch:
    """Calls ``wake``, on a thread of its own, once after each :meth:`arm`.

    That is when something has been written since the watch began or last woke, be it before or
    after it was armed.
    """

    def __init__(self, directories: Iterable[str], wake: Callable[[], None]) -> None:
        self._wake = wake
        self.has_woken = False
        """Set when the watch wakes; the reader clears it."""
        self._is_armed = False
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = _checked(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._stop_read = self._stop_write = -1
        self._epoll: select.epoll | None = None
        try:
            for directory in directories:
                _checked(libc.inotify_add_watch(self._inotify, os.fsencode(directory), _MASK))
            self._stop_read, self._stop_write = os.pipe()
            self._epoll = select.epoll()
            self._epoll.register(self._stop_read, select.EPOLLIN)
            self._epoll.register(self._inotify, 0)
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(
            target=self._run, args=(self._epoll,), name="jetlet-log-watch", daemon=True
        )
        self._thread.start()

    def arm(self) -> None:
        """Wake once more; for the thread that reads."""
        if not self._is_armed and self._epoll is not None:
            self._is_armed = True
            self._epoll.modify(self._inotify, select.EPOLLIN | select.EPOLLONESHOT)

    def close(self) -> None:
        """End the thread; idempotent. Not for the thread itself."""
        if self._epoll is None:
            return
        os.write(self._stop_write, b"x")
        self._thread.join()
        self._release()

    def _run(self, epoll: select.epoll) -> None:
        while all(fd != self._stop_read for fd, _ in epoll.poll()):
            try:
                while os.read(self._inotify, _BUFFER):
                    pass
            except BlockingIOError:
                pass
            # Now, not before: what is written from here on is seen when it is armed again.
            self._is_armed = False
            self.has_woken = True
            self._wake()

    def _release(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        for fd in (self._inotify, self._stop_read, self._stop_write):
            if fd >= 0:
                os.close(fd)
        self._inotify = self._stop_read = self._stop_write = -1


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
