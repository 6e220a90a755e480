"""How failures are told: a message first, and of the traceback only what the user wrote."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

import jetlet
from jetlet.errors import JobFailedError

_PACKAGE = str(Path(jetlet.__file__).parent) + os.sep
_STDLIB = tuple(
    {sysconfig.get_path(which) + os.sep for which in ("stdlib", "platstdlib")},
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


IN_FLAGS = {
    "JobConfig(start_fresh=True)": "--fresh",
    "JobConfig(allow_changed_stages=True)": "--allow-changed-stages",
    "JobConfig(allow_older_snapshot=True)": "--allow-older-snapshot",
    "JobConfig(snapshot_key=...)": "--snapshot-key-file FILE",
    'run(on="embedded")': "--on embedded",
}
"""What a message tells to write, and what that is on the command line."""
_MEMBERS = re.compile(r"(?:Spark|Embedded)Engine\(members=(\w+)\)")


class Refused(click.ClickException):
    """A mistake that is visible before anything runs; the message says what to write instead."""

    exit_code = 2

    def show_traceback(self) -> None:
        """Print the whole traceback of what led to it, for those who ask."""
        if self.__cause__ is not None:
            click.echo(format_cause(self, whole=True), err=True, nl=False)


def in_flags(message: str) -> str:
    """The message of an error as it is told to those who did not write a configuration."""
    for written, flag in IN_FLAGS.items():
        message = message.replace(written, flag)
    return _MEMBERS.sub(r"--members \1", message)


def is_user_file(filename: str, home: Path | None = None) -> bool:
    """True if ``filename`` is neither Jetlet's nor Python's nor of an installed package.

    ``home`` is a directory whose files are the user's, wherever it is.
    """
    if filename.startswith(("<", _PACKAGE)):
        return False
    if home is not None and filename.startswith(f"{home}{os.sep}"):
        return True
    return not filename.startswith(_STDLIB) and not any(part in filename for part in _INSTALLED)


def place_of(error: BaseException, home: Path | None = None) -> str:
    """Where in the user's code an error was raised, as ``file.py, line 7``; empty if nowhere."""
    if isinstance(error, SyntaxError) and error.filename:
        return _place(error.filename, error.lineno)
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if is_user_file(frame.filename, home):
            return _place(frame.filename, frame.lineno)
    return ""


def _place(filename: str, line: int | None) -> str:
    relative = os.path.relpath(filename)
    return f"{filename if relative.startswith('..') else relative}, line {line}"


def describe(error: BaseException) -> str:
    """``ValueError: message``, or the bare type of an error that says nothing."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def format_cause(error: BaseException, home: Path | None = None, *, whole: bool = False) -> str:
    """The traceback of what led to an error, by default without the frames of libraries.

    Empty if no frame is left.
    """
    is_wrapper = isinstance(error, JobFailedError | Refused)
    cause = error.__cause__ if is_wrapper and error.__cause__ is not None else error
    report = traceback.TracebackException.from_exception(cause, compact=True)
    if not whole:
        for each in _chain(report):
            each.stack = traceback.StackSummary.from_list(
                [frame for frame in each.stack if is_user_file(frame.filename, home)]
            )
        if not any(each.stack for each in _chain(report)):
            return ""
    return "".join(report.format())


def _chain(
    report: traceback.TracebackException,
) -> Iterator[traceback.TracebackException]:
    yield report
    following = [report.__cause__, report.__context__, *(report.exceptions or ())]
    for other in following:
        if other is not None:
            yield from _chain(other)
