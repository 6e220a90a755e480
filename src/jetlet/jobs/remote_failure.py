"""RemoteFailure: the error of a job on its way from another process to the user."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

from jetlet.errors import JobFailedError, RemoteError, RestartableError
from jetlet.jobs.pickling import dump


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
    def pack(cls, error: JobFailedError) -> RemoteFailure:
        """Made where the error happened."""
        cause = error.__cause__
        text = "".join(traceback.format_exception(cause)) if cause is not None else ""
        return cls(
            str(error),
            error.vertex,
            error.item,
            isinstance(error, RestartableError),
            _portable(cause),
            text,
        )

    def unpack(self) -> JobFailedError:
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
                cause.add_note(f"In the member:\n{self.traceback.rstrip()}")
            error.__cause__ = cause
        return error


def _portable(cause: BaseException | None) -> bytes | None:
    """The cause itself, if it survives the journey."""
    if cause is None:
        return None
    try:
        data = dump(cause)
        if type(pickle.loads(data)) is not type(cause):
            return None
    except Exception:  # whatever it is, it cannot travel
        return None
    return data
