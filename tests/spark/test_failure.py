from __future__ import annotations

import base64
import pickle
import zlib

import pytest
from py4j.protocol import Py4JNetworkError

from jetlet.errors import JobCancelledError, JobFailedError, RestartableError
from jetlet.spark.failure import MAX_CAUSE, TaskFailure, explain, unpack

RUN = "0123456789ab"


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("no")


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def raised(error):
    try:
        raise error
    except type(error) as e:
        return e


def sent(error, cause):
    """What a driver makes of a task's failure, wrapped in what Spark says around it."""
    packed = TaskFailure.pack(error, cause, RUN)
    text = f"org.apache.spark.api.python.PythonException: Traceback:\n  x\n{packed}\n\tat org.Foo"
    return unpack(text, RUN)


def test_an_error_comes_back_with_vertex_item_and_cause():
    error = sent(JobFailedError("job failed", vertex="map", item="7"), raised(ValueError("bad")))
    assert (str(error), error.vertex, error.item) == ("job failed", "map", "7")
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.args == ("bad",)
    assert "ValueError: bad" in error.__cause__.__notes__[0]


def test_a_failure_that_a_restart_may_cure_stays_one():
    assert isinstance(sent(RestartableError("lost"), None), RestartableError)


@pytest.mark.parametrize("cause", [Unpicklable("secret"), ValueError(bytes(MAX_CAUSE))])
def test_a_cause_comes_with_its_class_whatever_it_is(cause):
    error = sent(JobFailedError("failed"), raised(cause))
    assert type(error.__cause__) is type(cause)
    assert str(cause).startswith(str(error.__cause__))


def test_a_message_of_several_lines_survives():
    assert str(sent(JobFailedError("one\ntwo"), None)) == "one\ntwo"


def test_a_text_that_was_cut_short_still_gives_the_message():
    packed = str(TaskFailure.pack(JobFailedError("the reason", vertex="map"), None, RUN))
    error = unpack(f"jetlet.spark.failure.TaskFailure: {packed[:60]}", RUN)
    assert str(error) == "the reason"


def test_cancellation_in_a_task_is_told_as_such():
    assert "cancelled" in str(sent(JobCancelledError("job was cancelled"), None))


def test_an_item_that_looks_like_a_packed_error_is_not_unpickled():
    bomb = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    item = f"TaskFailure: hello jetlet-failure-guess:{bomb}:"
    assert unpack(item, RUN) is None
    error = JobFailedError(f"failed on item {item!r}")
    assert str(sent(error, None)) == str(error)
    with pytest.raises(pytest.fail.Exception):
        unpack(item, "guess")


def test_what_is_not_ours_is_left_to_spark():
    assert unpack("java.lang.NullPointerException", RUN) is None


LOST = """\
An error occurred while calling o71.collectAsArrowToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 \
times, most recent failure: Lost task 0.3 in stage 3.0 (TID 9) (127.0.0.1 executor 5): \
ExecutorLostFailure (executor 5 exited caused by one of the running tasks) Reason: Command exited \
with code 137
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages
"""
DIED = """\
Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most recent failure: Lost \
task 1.3 in stage 0.0 (TID 4) (host executor driver): org.apache.spark.SparkException: Python \
worker exited unexpectedly (crashed). Consider setting ...
\tat org.apache.spark.api.python
"""
TRACEBACK = """\
[UDF_USER_CODE] Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 0.0 (TID 0) (host executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in read_command
    command = serializer._read_with_length(file)
ModuleNotFoundError: No module named 'jetlet'

\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("text", "said", "kind"),
    [
        (
            LOST,
            "executor 5 was lost again and again: Command exited with code 137",
            RestartableError,
        ),
        (DIED, "a Python worker died each time", RestartableError),
        (TRACEBACK, "ModuleNotFoundError: No module named 'jetlet'", JobFailedError),
        (
            (
                "Total size of serialized results of 3 tasks (1100.0 MiB) is bigger than "
                "spark.driver.maxResultSize (1024.0 MiB)"
            ),
            "larger than spark.driver.maxResultSize (1024.0 MiB)",
            JobFailedError,
        ),
        ("x\njava.lang.OutOfMemoryError: Java heap space\n\tat y", "spark.driver.memory", None),
        ("java.io.IOException: No space left on device", "a disk is full", None),
        (
            "Job 3 cancelled because SparkContext was shut down",
            "the Spark session was stopped while it ran",
            RestartableError,
        ),
        (
            "Job aborted due to stage failure: something new.\n\tat org.apache",
            "something new.",
            None,
        ),
        ("\n[SOME_ERROR] a reason\nmore", "ValueError: [SOME_ERROR] a reason", None),
    ],
)
def test_what_spark_says_becomes_one_line(text, said, kind):
    error = explain(ValueError(text), "words")
    assert str(error).startswith("job 'words' failed on Spark: ")
    assert said in str(error)
    assert "\n" not in str(error)
    assert type(error) is (kind or JobFailedError)


@pytest.mark.parametrize(
    ("error", "is_curable"),
    [
        (ConnectionRefusedError(111, "Connection refused"), False),
        (Py4JNetworkError("Answer from Java side is empty"), False),
        (RuntimeError("<_InactiveRpcError ... StatusCode.UNAVAILABLE>"), True),
        (RuntimeError("Lost task 0.3: ConnectionRefusedError: [Errno 111]"), True),
    ],
)
def test_only_a_server_comes_back_to_a_program(error, is_curable):
    """Its own JVM does not: each further attempt would fail in the same way."""
    explained = explain(error, "words")
    assert "the connection to Spark is lost" in str(explained)
    assert isinstance(explained, RestartableError) is is_curable


def test_an_error_without_a_text_is_named():
    assert str(explain(EOFError(), "words")) == "job 'words' failed on Spark: EOFError"


def test_what_was_to_be_kept_and_is_lost_can_be_run_again():
    said = "org.apache.spark.SparkException: Checkpoint block rdd_3_1 not found! Either"
    error = explain(RuntimeError(said), "job")
    assert isinstance(error, RestartableError)
    assert "run the job again" in str(error)


@pytest.mark.parametrize(
    ("said", "explained"),
    [
        (
            (
                "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that "
                "in driver: 3.11, PySpark cannot run with different minor versions."
            ),
            "the executors run Python 3.12, and this program",
        ),
        (
            (
                "[PYTHON_VERSION_MISMATCH] Python in worker has different version (3, 12) than "
                "that in driver 3.11, PySpark cannot run with different minor versions."
            ),
            "the executors run Python 3, 12, and this program",
        ),
        ("ModuleNotFoundError: No module named 'pyarrow'", "pyarrow cannot be imported where"),
        (
            (
                "Can't get attribute '_class_setstate' on <module 'pyspark.cloudpickle.cloudpickle'"
                " from '/usr/lib/python3/pyspark/cloudpickle/cloudpickle.py'>"
            ),
            "objects of a class of this program cannot come back from a server",
        ),
        ("Python worker failed to connect back.", "a Python worker took too long to start"),
        (
            (
                "[INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED] Trigger type ProcessingTime is not "
                "supported for this cluster type. Use a different trigger type e.g. AvailableNow."
            ),
            "this platform runs no stream without an end: write sources.spark_stream(...",
        ),
    ],
)
def test_what_executors_lack_is_explained_in_one_line(said, explained):
    text = str(explain(Exception(f"Job aborted due to stage failure: {said}\n\tat x"), "job"))
    assert text.startswith(f"job 'job' failed on Spark: {explained}")
    assert "\n" not in text
