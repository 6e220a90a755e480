"""Making the class-data archive, by a Spark session that does a little of everything.

    path = warm_up()                         # half a minute, once for each Java and Spark
    python -m jetlet.spark.launch.warm_up           # the same from a shell

It runs in a process of its own, since the JVM that makes an archive is slower than others and
takes long to end. Of two that run at once, one makes the archive and the other waits for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import jetlet
from jetlet.errors import JetletError
from jetlet.spark.launch.archive import WORK_PREFIX, archive_for
from jetlet.spark.launch.gateway import spark_home
from jetlet.spark.launch.java import find_java
from jetlet.spark.launch.session import end_jvm, lean_session, start_session
from jetlet.spark.launch.versions import arrow_batches, repartition_by_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from jetlet.spark.launch.archive import ClassArchive

__all__ = ["warm_up", "warm_up_command"]

#: Settings of the user that are about their session, not about this one. The directories would be
#: on the class path, and an archive takes nothing but jars.
_NOT_OURS = (
    "HADOOP_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "PYSPARK_PYTHON",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_REMOTE",
    "SPARK_SUBMIT_OPTS",
    "YARN_CONF_DIR",
)


def warm_up() -> Path:
    """Make the archive if there is none yet, and return its path."""
    archive = _archive()
    if not archive.ready:
        command, environ = warm_up_command()
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode != 0 or not archive.ready:
            raise JetletError(
                "The class-data archive for Spark could not be made (sessions start without it):\n"
                + done.stderr.decode(errors="replace")[-2000:]
            )
    return archive.path


def warm_up_command() -> tuple[list[str], dict[str, str]]:
    """How to run this module in a process of its own: the command and its environment."""
    environ = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
    package = str(Path(jetlet.__file__).parents[1])
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environ["PYTHONPATH"] = os.pathsep.join([package, *(path for path in paths if path != package)])
    return [sys.executable, "-m", "jetlet.spark.launch.warm_up"], environ


def _archive() -> ClassArchive:
    archive = archive_for(find_java(), spark_home())
    if archive is None:
        raise JetletError(
            "There can be no class-data archive here: it is switched off (JETLET_SPARK_ARCHIVE), "
            "the cache directory cannot be written or is not this user's alone, or this Java "
            "has no archive of its own classes to build upon"
        )
    return archive


def _make(archive: ClassArchive) -> None:
    """Run the session whose JVM writes the archive, then give the archive its name."""
    with tempfile.TemporaryDirectory(dir=archive.path.parent, prefix=WORK_PREFIX) as directory:
        made = Path(directory, archive.path.name)
        started = start_session(
            "local[2]", "jetlet-warm-up", jvm_options=archive.make_options(made)
        )
        try:
            with started:
                _exercise(started.session, Path(directory, "data"))
        finally:
            end_jvm(patience=600.0)  # it writes the archive now
        if not made.is_file() or made.stat().st_size == 0:
            raise JetletError(f"The JVM ended without an archive; see {started.log}")
        made.replace(archive.path)


def _exercise(session: SparkSession, directory: Path) -> None:
    """Use what pipelines use, so that its classes are in the archive."""
    from pyspark.sql import functions as f

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    for each in (lean_session(session), session):
        numbers = each.range(100, numPartitions=2).mapInArrow(same, "id long")
        target = (f.col("id") % 2).cast("int")
        routed = repartition_by_id(numbers.withColumn("target", target), 2, "target")
        routed = routed.sortWithinPartitions("id").mapInArrow(same, "id long, target int")
        routed.unionAll(routed).observe("seen", f.count(f.lit(1))).collect()
        list(arrow_batches(routed))
    counted = routed.groupBy("target").agg(f.count("*").alias("n"), f.sum("id"))
    counted.join(f.broadcast(routed), "target").orderBy("id").limit(5).collect()
    for source in ("parquet", "json", "csv"):
        numbers.write.format(source).save(str(directory / source))
        session.read.schema("id long").format(source).load(str(directory / source)).collect()
    session.createDataFrame([(b"key", b"value")], "key binary, value binary").collect()
    context = session.sparkContext
    shared = context.broadcast([1])
    pairs = context.parallelize(range(4), 2).map(lambda n: (n % 2, shared.value[0]))
    pairs.reduceByKey(lambda a, b: a + b).collect()


def main(arguments: list[str]) -> None:
    archive = _archive()
    background = "--background" in arguments
    if background:
        os.nice(19)
    with archive.lock_path.open("w") as lock:
        try:
            # The lock ends with the process, however that ends.
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if background else 0))
        except BlockingIOError:
            return  # somebody else is at it
        if archive.ready:
            return
        try:
            _make(archive)
        except BaseException:
            archive.discard()
            raise
        archive.prune_others()
        with contextlib.suppress(OSError):
            archive.lock_path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
