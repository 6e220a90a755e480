"""RemoteFailure: the error of a job on its way from another process to the user."""

from __future__ import annotations

import pickle
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, Final

from jetlet.core.arguments import error_text
from jetlet.core.pickling import dump
from jetlet.errors import JobCancelledError, JobFailedError, RemoteError, RestartableError

TEXT: Final = 1000
"""Characters of an error's text that come along where the rest is too large."""


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

        Of a cause of more than ``limit`` bytes come its class and its text, and so much of the
        traceback.
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
    """The cause itself, or as much of it as survives the journey: its class, at the least."""
    state = {name: value for name, value in vars(cause).items() if _pickled(value) is not None}
    for made in (
        cause,
        _Bare(type(cause), cause.args, state),
        _Bare(type(cause), (error_text(cause)[:TEXT],)),
    ):
        data = _pickled(made)
        if data is not None and len(data) <= limit and type(pickle.loads(data)) is type(cause):
            return data
    return None


def _pickled(value: Any) -> bytes | None:
    """The value, if it can be pickled and made again."""
    try:
        data = dump(value)
        pickle.loads(data)
    except Exception:  # whatever it is, it cannot travel
        return None
    return data


@dataclass(frozen=True, slots=True)
class _Bare:
    """An error that is made anew without its ``__init__``, which may ask for other arguments."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    state: dict[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.kind, self.args, self.state)


def _remade(
    kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error
