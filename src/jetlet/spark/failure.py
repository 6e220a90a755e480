"""How an error gets from a Spark task to the user without a page of Java.

A task raises :class:`TaskFailure`, whose text has the real error packed into it. Spark hands that
text on within its own, and :func:`unpack` finds it there. For what Spark itself has to say
:func:`explain` finds the one line that matters.
"""

from __future__ import annotations

import base64
import pickle
import re
import zlib
from dataclasses import dataclass

from jetlet.core.arguments import error_line
from jetlet.core.remote_failure import RemoteFailure
from jetlet.errors import JobCancelledError, JobFailedError, RestartableError
from jetlet.execution.failure import cause_of

MAX_CAUSE = 16 * 1024
"""Bytes of a pickled exception that may travel; as much of its text comes along in any case."""


class TaskFailure(Exception):
    """Raised in a task. Spark hands on its text, in which the real error is packed."""

    @classmethod
    def pack(
        cls, error: JobFailedError | JobCancelledError, cause: BaseException | None, run_id: str
    ) -> TaskFailure:
        """The failure of a task whose job ends with ``error``."""
        failure = RemoteFailure.pack(error, cause and cause_of(cause), MAX_CAUSE)
        packed = base64.b64encode(zlib.compress(pickle.dumps(failure))).decode()
        first = " ".join(str(error).splitlines()) or type(error).__name__
        return cls(f"{first} {_mark(run_id)}{packed}:")


def _mark(run_id: str) -> str:
    # With the run's id, which nobody can guess: an item that looks like a packed error, shown in
    # the text of another one, must not be unpickled.
    return f"jetlet-failure-{run_id}:"


def unpack(text: str, run_id: str) -> JobFailedError | None:
    """The error that a task of the run packed into what Spark says, if there is one.

    Its cause is chained, with the traceback of the task as a note.
    """
    mark = re.escape(_mark(run_id))
    found = re.search(mark + r"([A-Za-z0-9+/=]+):", text)
    if found is None:
        # Cut short on its way: the text before the mark is still better than Spark's own.
        plain = re.search(rf"TaskFailure: (.+?) {mark}", text)
        return None if plain is None else JobFailedError(plain[1])
    failure: RemoteFailure = pickle.loads(zlib.decompress(base64.b64decode(found[1])))
    return failure.unpack("the Spark task")


@dataclass(frozen=True, slots=True)
class _Symptom:
    """Something that Spark says, and what to tell the user about it."""

    pattern: str
    text: str
    """What is said instead; it may refer to the groups of the pattern."""
    is_restartable: bool = False


SLOW_START = r"Python worker failed to connect back"
"""What Spark says of a Python worker that it has given up waiting for, after ten seconds."""

_SYMPTOMS = (
    _Symptom(
        r"Total size of serialized results .* is bigger than .*maxResultSize \(?([^)\n]*)",
        "the results that are collected here are larger than spark.driver.maxResultSize (\\1): "
        "write them to files, or set spark.driver.maxResultSize=0",
    ),
    _Symptom(
        r"Checkpoint block \S+ not found",
        "what a stage has emitted was lost with the executors that had it, and the stage does not "
        "say that it would emit the same again (traits, in docs/core-api.md): run the job again",
        is_restartable=True,
    ),
    _Symptom(
        r"ExecutorLostFailure \(executor (\S+) .*?\)\s*(?:Reason: (.*))?",
        "executor \\1 was lost again and again: \\2",
        is_restartable=True,
    ),
    _Symptom(
        r"Python worker (?:exited unexpectedly|process terminated unexpectedly)[^\n]*",
        "a Python worker died each time that it was tried; either the system killed it for the "
        "memory that it used, or native code in it crashed",
        is_restartable=True,
    ),
    _Symptom(
        SLOW_START,
        "a Python worker took too long to start: the machine that it runs on is busy",
        is_restartable=True,
    ),
    _Symptom(
        r"Python in worker has different version:? \(?(\d+(?:\.|, )\d+)\)? than that in driver:? "
        r"(\d+\.\d+)",
        "the executors run Python \\1, and this program \\2: functions cannot travel between "
        "the two: set PYSPARK_PYTHON to an interpreter there that has the version of this one",
    ),
    _Symptom(
        r"(?:No module named 'pyarrow'|PyArrow >= \S+ must be installed)",
        "pyarrow cannot be imported where Spark runs Python: install it there, beside pandas, or "
        "set PYSPARK_PYTHON to an interpreter there that has it",
    ),
    _Symptom(
        r"Can't get attribute '\w+' on <module 'pyspark\.cloudpickle",
        "objects of a class of this program cannot come back from a server whose PySpark packs "
        "them in another way: have the version of the server here, or let what comes back be "
        "tuples and dicts",
    ),
    _Symptom(
        r"INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED|Trigger type \w+ is not supported",
        "this platform runs no stream without an end: write sources.spark_stream(..., "
        "available_now=True), which reads what there is when the job starts",
    ),
    _Symptom(
        r"(java\.lang\.OutOfMemoryError: [^\n]*)",
        "Spark ran out of memory (\\1): set spark.driver.memory, or on a cluster "
        "spark.executor.memory",
    ),
    _Symptom(r"No space left on device", "a disk is full: No space left on device"),
    _Symptom(
        r"(?:SparkContext was shut down|stopped SparkContext|SESSION_CLOSED|"
        r"INVALID_HANDLE\.SESSION)",
        "the Spark session was stopped while it ran",
        is_restartable=True,
    ),
    _Symptom(  # a JVM that is gone does not come back to this process
        r"(?:^[\w.]*Py4JNetworkError|^ConnectionRefusedError|Answer from Java side is empty)",
        "the connection to Spark is lost: its process has ended; start this program again",
    ),
    _Symptom(
        r"(?:Py4JNetworkError|ConnectionRefusedError|"
        r"failed to connect to all addresses|StatusCode\.UNAVAILABLE)",
        "the connection to Spark is lost: its process has ended, or cannot be reached",
        is_restartable=True,
    ),
    # A traceback of a Python worker: its last line is what it is about.
    _Symptom(
        r"Traceback \(most recent call last\):(?:\n[ \t]+[^\n]*)+\n(\w[^\n]*)",
        "\\1",
    ),
    _Symptom(
        r"most recent failure: Lost task [^\n]*?\): (?:[\w.$]+(?:Exception|Error): )?([^\n]+)",
        "\\1",
    ),
    _Symptom(r"Job aborted due to stage failure: ([^\n]+)", "\\1"),
)


def explain(error: BaseException, job_name: str) -> JobFailedError:
    """The error that a job ends with when Spark itself has failed, in one line."""
    text = error_line(error)
    for symptom in _SYMPTOMS:
        found = re.search(symptom.pattern, text)
        if found is not None:
            line = found.expand(symptom.text) if found.re.groups else symptom.text
            line = line.strip().rstrip(":")
            break
    else:
        symptom = _Symptom("", "")
        said = next((part.strip() for part in str(error).splitlines() if part.strip()), "")
        line = f"{type(error).__name__}: {said}" if said else type(error).__name__
    kind = RestartableError if symptom.is_restartable else JobFailedError
    return kind(f"job {job_name!r} failed on Spark: {line}")
