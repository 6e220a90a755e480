"""RemoteFailure: the error of a job on its way from another process to the user."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

from jetlet.errors import JobFailedError


class RemoteError(Exception):
    """An error of a class that could not be brought back; its text is that of the original."""


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """Plain data: it can be unpickled wherever Jetlet is."""

    kind: type[JobFailedError]
    message: str
    vertex: str | None
    item: str | None
    cause: bytes | None
    """The pickled cause, if it survives the journey."""
    traceback: str
    """The cause's traceback as text."""

    @classmethod
    def pack(cls, error: JobFailedError) -> RemoteFailure:
        """Made where the error happened."""
        cause = error.__cause__
        text = "".join(traceback.format_exception(cause)) if cause is not None else ""
        return cls(type(error), str(error), error.vertex, error.item, _pickled(cause), text)

    def unpack(self) -> JobFailedError:
        """The error, with its cause chained, and the remote traceback as a note on it."""
        error = self.kind(self.message, vertex=self.vertex, item=self.item)
        cause: BaseException | None = None
        if self.cause is not None:
            try:
                cause = pickle.loads(self.cause)
            except Exception:  # its class may exist over there only
                cause = None
        if cause is None and self.traceback:
            cause = RemoteError(self.traceback.strip().splitlines()[-1])
        if cause is not None:
            cause.add_note(f"Where it happened:\n{self.traceback}")
            error.__cause__ = cause
        return error


def _pickled(cause: BaseException | None) -> bytes | None:
    if cause is None:
        return None
    try:
        data = pickle.dumps(cause)
        pickle.loads(data)
    except Exception:  # whatever it is, it cannot travel
        return None
    return data
