"""TaskFailure: how an error gets from a Spark task to the user without a page of Java."""

from __future__ import annotations

import base64
import pickle
import re
import traceback

from jetlet.errors import JobCancelledError, JobFailedError

_MARK = re.compile(r"jetlet-failure:([A-Za-z0-9+/=]+):")


class RemoteError(Exception):
    """An error of a class that could not be brought back; its text is that of the original."""


class TaskFailure(Exception):
    """Raised in a task. Spark hands on its text, in which the real error is packed."""

    @classmethod
    def pack(
        cls, error: JobFailedError | JobCancelledError, cause: BaseException | None
    ) -> TaskFailure:
        """The failure of a task whose job ends with ``error``."""
        from jetlet.jobs.failure import cause_of

        cause = cause and cause_of(cause)
        text = "".join(traceback.format_exception(cause)) if cause is not None else ""
        vertex = getattr(error, "vertex", None)
        item = getattr(error, "item", None)
        parts = (str(error), vertex, item, _portable(cause), text)
        packed = base64.b64encode(pickle.dumps(parts)).decode()
        return cls(f"{error} jetlet-failure:{packed}:")


def _portable(cause: BaseException | None) -> bytes | None:
    """The cause itself, if it survives the journey."""
    if cause is None:
        return None
    from pyspark import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(cause)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - any error here means that it does not
        return None
    return data


def unpack(text: str) -> tuple[JobFailedError, BaseException | None, str] | None:
    """From what Spark says of a failed job: the error, its cause, and the remote traceback."""
    found = _MARK.search(text)
    if found is None:
        return None
    message, vertex, item, cause, remote = pickle.loads(base64.b64decode(found[1]))
    error = JobFailedError(message, vertex=vertex, item=item)
    original: BaseException | None = None
    if cause is not None:
        try:
            original = pickle.loads(cause)
        except Exception:  # noqa: BLE001 - its class may exist on the executor only
            original = None
    if original is None and remote:
        original = RemoteError(remote.strip().splitlines()[-1])
    return error, original, remote
