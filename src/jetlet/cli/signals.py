"""StopSignals: Ctrl-C, SIGTERM and a terminal that goes away, taken as a wish to cancel."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

_HANG_UP = getattr(signal, "SIGHUP", None)
"""SIGHUP, which not every system has."""
_SHOW_CURSOR = b"\x1b[?25h"


class Stopped(KeyboardInterrupt):
    """A signal came while there was no job to cancel yet."""


class StopSignals:
    """While entered, the first signal is noted and the second ends the process at once.

    Before :meth:`defer` the first one also raises :class:`Stopped` in the main thread, since
    loading a file or starting an engine cannot be asked to stop. After it, whoever watches the job
    looks at :attr:`signum`: nothing is then interrupted in the middle of drawing.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        """The signal that came, if one did."""
        self._is_deferred = False
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that was ended by the signal."""
        return 128 + (self.signum or signal.SIGINT)

    def defer(self) -> None:
        """From now on only note a signal."""
        self._is_deferred = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM, _HANG_UP):
                # Ignored by whoever started us, as behind nohup: it stays so.
                if signum is not None and signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            if signum == _HANG_UP:
                return  # the shell and the system both tell of a terminal that is gone
            # A live display hides the cursor, and nobody is going to tidy up after this.
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            os.write(2, b"ended at once\n")
            os._exit(self.exit_code)
        self.signum = signum
        if not self._is_deferred:
            raise Stopped
