"""What the JVM and the Python workers print, on its way to the log or to the terminal.

    relay = OutputRelay(process.stdout, log)     # reads on a thread of its own
    relay.show = True                            # from now on to sys.stderr, no longer to the log
    relay.join()

While the JVM starts, it prints what nobody wants to read unless the start fails. After that, it is
what the user's functions print in Python workers.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
import threading
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NoiseFilter", "OutputRelay"]

_HEADER = "Traceback (most recent call last):\n"
_FRAME = re.compile(r' +File "([^"]*)"')
#: PySpark's part of a Python worker, in a directory or in a zip.
_PYSPARK = re.compile(r"/pyspark/(daemon|worker\w*|serializers)\.py$")
_HUNG_UP = ("BrokenPipeError", "ConnectionResetError")


class OutputRelay:
    """Carries what a process prints to its log, or to ``sys.stderr`` while ``show`` is set."""

    def __init__(self, output: IO[bytes], log: Path) -> None:
        self.show = False
        self._output = output
        self._log = log.open("ab", buffering=0)
        self._thread = threading.Thread(target=self._run, name="jetlet-spark-output", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the process has said all that it had to say."""
        # Bounded: a stray grandchild may hold the other end of the pipe.
        self._thread.join(2.0)

    def _run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        noise = NoiseFilter()
        with self._output, self._log:
            while chunk := os.read(self._output.fileno(), 65536):
                if self.show:
                    _print(noise.feed(decoder.decode(chunk)))
                else:
                    with contextlib.suppress(OSError):  # a full disk must not stop the JVM
                        self._log.write(chunk)
            if self.show:
                _print(noise.finish())


def _print(text: str) -> None:
    # Looked up each time: notebooks and tests put their own in its place.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


class NoiseFilter:
    """Leaves out the tracebacks that PySpark prints when a task's other end has hung up.

    When one task of a job fails or the job is cancelled, the workers of its other tasks find their
    socket closed and say so at length. Two of them may do so at once, line by line in turn.
    """

    def __init__(self) -> None:
        self._rest = ""  # the beginning of a line that may be, or is, part of a traceback
        self._inside_line = False
        self._held: list[str] = []

    def feed(self, text: str) -> str:
        """What of it to show now; a traceback is held back until its last line is known."""
        shown: list[str] = []
        *lines, rest = (self._rest + text).split("\n")
        for line in lines:
            shown.extend(self._line(line + "\n"))
        if rest and not self._held and (self._inside_line or not _may_be_traceback(rest)):
            # Not to be kept waiting for the end of its line, as a prompt or a row of dots.
            shown.append(rest)
            self._inside_line = True
            rest = ""
        self._rest = rest
        return "".join(shown)

    def finish(self) -> str:
        """What is still held back when nothing more comes.

        A worker may be killed, when the JVM is, while it complains that the JVM is gone.
        """
        held, self._held = self._held, []
        rest, self._rest = self._rest, ""
        if held and _is_pysparks(held):
            return "" if not rest or _may_be_traceback(rest) else rest
        return "".join([*held, rest])

    def _line(self, line: str) -> list[str]:
        if self._inside_line:
            self._inside_line = False
            return [line]
        if line == _HEADER or _is_pyspark_frame(line) or (self._held and line.startswith("  ")):
            self._held.append(line)
            return []
        held, self._held = self._held, []
        has_frames = any(map(_FRAME.match, held))
        is_noise = has_frames and _is_pysparks(held) and line.startswith(_HUNG_UP)
        return [] if is_noise else [*held, line]


def _is_pysparks(traceback: list[str]) -> bool:
    return all(_is_pyspark_frame(line) for line in traceback if _FRAME.match(line))


def _is_pyspark_frame(line: str) -> bool:
    found = _FRAME.match(line)
    return found is not None and _PYSPARK.search(found[1]) is not None


def _may_be_traceback(beginning: str) -> bool:
    return _HEADER.startswith(beginning) or beginning.startswith(" ")
