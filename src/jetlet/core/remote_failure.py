"""RemoteFailure: the error of a job on its way from another process to the user."""

from __future__ import annotations

import pickle
import sys
import traceback
from dataclasses import dataclass

from jetlet.core.pickling import dump
from jetlet.errors import JobCancelledError, JobFailedError, RemoteError, RestartableError


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """Plain data: it can be unpickled wherever Jetlet is."""

    message: str
    vertex: str | None
    item: str | None
    is_restartable: bool
    cause: bytes | None
    """The pickled cause, if it survives the journey."""
    traceback: str
    """The cause's traceback as text."""

    @classmethod
    def pack(
        cls,
        error: JobFailedError | JobCancelledError,
        cause: BaseException | None = None,
        limit: int = sys.maxsize,
    ) -> RemoteFailure:
        """Made where the error happened, by ``cause`` if that is not its own.

        A pickled cause of more than ``limit`` bytes is left out, and as much of the traceback.
        """
        cause = cause or error.__cause__
        text = "".join(traceback.format_exception(cause)) if cause is not None else ""
        return cls(
            str(error),
            getattr(error, "vertex", None),
            getattr(error, "item", None),
            isinstance(error, RestartableError),
            None if cause is None else _portable(cause, limit),
            text[-limit:],
        )

    def unpack(self, where: str = "the member") -> JobFailedError:
        """The error, with its cause chained, and the remote traceback as a note on it."""
        kind = RestartableError if self.is_restartable else JobFailedError
        error = kind(self.message, vertex=self.vertex, item=self.item)
        cause: BaseException | None = None
        if self.cause is not None:
            try:
                cause = pickle.loads(self.cause)
            except Exception:  # its class may exist over there only
                cause = None
        if cause is None and self.traceback:
            cause = RemoteError(self.traceback.strip().splitlines()[-1])
        if cause is not None:
            if self.traceback:
                cause.add_note(f"In {where}:\n{self.traceback.rstrip()}")
            error.__cause__ = cause
        return error


def _portable(cause: BaseException, limit: int) -> bytes | None:
    """The cause itself, if it survives the journey."""
    try:
        data = dump(cause)
        if len(data) > limit or type(pickle.loads(data)) is not type(cause):
            return None
    except Exception:  # whatever it is, it cannot travel
        return None
    return data
