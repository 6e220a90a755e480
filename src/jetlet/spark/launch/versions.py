"""What differs between the versions of Spark, and with which version each difference ends.

    check_version(session)                            # refuses what is too old, warns of the newer
    rows = repartition_by_id(frame, 4, "target")
    for batch in arrow_batches(rows): ...

Everything here is to be deleted one day: a difference that ends with 4.1 when 4.1 is the oldest
version that we run on. Nothing else asks Spark for its version.

A session over Spark Connect has two versions, that of the server and that of PySpark here. What the
older one does not have is not there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from jetlet.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "NEWEST",
    "OLDEST",
    "arrow_batches",
    "arrow_schema",
    "batch_frame",
    "check_remote_batches",
    "check_version",
    "checkpoint_file_manager",
    "imported_by_pyspark",
    "installed_version",
    "is_classic",
    "kept_on_two_executors",
    "newest_java",
    "repartition_by_id",
    "spark_version",
    "versions_of",
]

Version: TypeAlias = "tuple[int, int]"

OLDEST: Version = (3, 5)
NEWEST: Version = (4, 3)

ANSWER_LIMIT = 5.0
"""Seconds that a session has to tell its versions."""

_servers: WeakKeyDictionary[SparkSession, Version] = WeakKeyDictionary()
"""Versions of the servers of sessions over Spark Connect, which it takes a call to ask for."""


def is_classic(session: SparkSession) -> bool:
    """True if the session has a JVM of its own beside it; False over Spark Connect."""
    return hasattr(session, "_jsparkSession")


def spark_version(session: SparkSession) -> Version:
    """Major and minor version of what the session can do."""
    package = package_version()
    if is_classic(session):
        return package
    if session not in _servers:
        _servers[session] = _parsed(session.version) or package
    return min(package, _servers[session])


def package_version() -> Version:
    """Major and minor version of PySpark here."""
    import pyspark

    return _parsed(pyspark.__version__) or NEWEST


def check_version(session: SparkSession) -> None:
    """Refuse a session that is too old; warn of one that is newer than any that was tried."""
    import pyspark

    found = {"PySpark": pyspark.__version__}
    if session.version != pyspark.__version__:
        found["the Spark server" if not is_classic(session) else "Spark"] = session.version
    for what, text in found.items():
        version = _parsed(text)
        if version is None:
            continue  # some builds have names of their own
        if version < OLDEST:
            raise UnsupportedFeatureError(
                f"{what} is {text}, and Jetlet runs on Spark {_shown(OLDEST)} to {_shown(NEWEST)}: "
                f"use one of these, or run without Spark, with p.run(on='embedded')"
            )
        if version > NEWEST:
            warnings.warn(
                f"{what} is {text}, newer than Spark {_shown(NEWEST)}, the last one that this "
                f"version of Jetlet was tried with",
                stacklevel=2,
            )


def _parsed(text: str) -> Version | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def _shown(version: Version) -> str:
    return ".".join(map(str, version))


def installed_version(home: Path) -> str | None:
    """The version of the Spark that is installed there, as far as the name of its jar tells."""
    for jar in home.glob("jars/spark-core_*.jar"):
        return jar.stem.partition("-")[2].partition("-")[2]
    return None


def versions_of(session: SparkSession | None) -> dict[str, str]:
    """Versions of the Spark that a session has, and of its Java, as far as they are told.

    A report is not kept waiting by a server that has gone.
    """
    found: dict[str, str] = {}

    def ask() -> None:
        with contextlib.suppress(Exception):  # there may be none, or it may have ended
            assert session is not None
            found["spark"] = session.version
            found["java"] = _java_of(session)

    asking = threading.Thread(target=ask, name="jetlet-versions", daemon=True)
    asking.start()
    asking.join(ANSWER_LIMIT)
    return dict(found)


def _java_of(session: SparkSession) -> str:
    if is_classic(session):
        jvm: Any = session.sparkContext._jvm
        return str(jvm.System.getProperty("java.version"))
    row = session.sql(
        "select java_method('java.lang.System', 'getProperty', 'java.version')"
    ).first()
    assert row is not None
    return str(row[0])


# --- Ends with 4.0 ------------------------------------------------------------------------------


def arrow_batches(frame: DataFrame) -> Iterable[pa.RecordBatch]:
    """Collect the rows of a DataFrame. Spark 4.0 brings ``toArrow``."""
    if hasattr(frame, "toArrow"):
        batches: Iterable[pa.RecordBatch] = frame.toArrow().to_batches()
        return batches
    old: Any = frame
    if is_classic(frame.sparkSession):
        return old._collect_as_arrow()  # type: ignore[no-any-return]
    client = old._session.client
    table, _ = client.to_table(old._plan.to_proto(client))
    return table.to_batches()  # type: ignore[no-any-return]


def imported_by_pyspark() -> tuple[str, ...]:
    """What PySpark imports with the first job. Before 4.0 it does not, and it takes long to."""
    return ("pyspark.testing.utils",) if package_version() >= (4, 0) else ()


def can_keep(session: SparkSession) -> bool:
    """Whether rows can be kept where they are, for another plan: before Spark 4.0 not over Spark
    Connect.
    """
    return is_classic(session) or spark_version(session) >= (4, 0)


def kept_on_two_executors(frame: DataFrame) -> DataFrame:
    """Run the DataFrame once and for all. Spark 4.0 says on how many executors the rows are kept.

    Before it they are on one, and a job that loses them fails. Over Spark Connect of that time
    there is no way to keep them.
    """
    if spark_version(frame.sparkSession) >= (4, 0):
        from pyspark import StorageLevel

        return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY_2)
    if is_classic(frame.sparkSession):
        return frame.localCheckpoint(eager=True)
    raise UnsupportedFeatureError(
        "a processor of this job does not say that it would emit the same items again if its task "
        "were run a second time, and over Spark Connect rows can be kept from Spark 4.0 on: let it "
        "say so (traits = Traits(repeats=...)), or use Spark 4.0"
    )


def check_remote_batches(session: SparkSession, stream: str) -> None:
    """Refuse a stream over Spark Connect, whose batches can be had from Spark 4.0 on."""
    if spark_version(session) < (4, 0):
        raise UnsupportedFeatureError(
            f"{stream!r} is a stream of Spark's, whose batches can be had over Spark Connect from "
            f"Spark 4.0 on: use that, or run this program with spark-submit where the server is"
        )


def batch_frame(java: Any, session: SparkSession) -> DataFrame:
    """PySpark's side of a DataFrame that Java has made. Spark 4.0 moves the class."""
    if package_version() >= (4, 0):
        from pyspark.sql.classic.dataframe import DataFrame
    else:
        from pyspark.sql import DataFrame  # type: ignore[assignment]
    return DataFrame(java, session)


# --- Ends with 4.1 ------------------------------------------------------------------------------


def newest_java(home: Path) -> int | None:
    """The newest Java that the Spark which is installed there starts on, if there is a limit.

    Before 4.1 its Hadoop asks Java in whose name it runs in a way that Java 23 has given up, and
    before 4.0 its Arrow makes buffers in one that Java 21 has.
    """
    version = _parsed(installed_version(home) or "")
    if version is None or version >= (4, 1):
        return None
    return 22 if version >= (4, 0) else 20


def repartition_by_id(frame: DataFrame, count: int, column: str) -> DataFrame:
    """Send each row to the partition whose number is in a column. Spark 4.1 has that itself.

    Before it, rows can only be sent by a hash of theirs: so each number is replaced by another one
    whose hash leads where the row is to go.
    """
    if spark_version(frame.sparkSession) >= (4, 1):
        return frame.repartitionById(count, column)
    from pyspark.sql import functions

    keys = ",".join(map(str, _keys_of_partitions(count)))
    return frame.repartition(count, functions.expr(f"array({keys})[{column}]"))


@functools.cache
def _keys_of_partitions(count: int) -> tuple[int, ...]:
    """For each partition the smallest number that Spark puts there."""
    found: dict[int, int] = {}
    for number in itertools.count():
        found.setdefault(_spark_hash(number) % count, number)
        if len(found) == count:
            return tuple(found[partition] for partition in range(count))
    raise AssertionError


def _spark_hash(number: int) -> int:
    """What Spark's ``hash`` gives for an ``int``: Murmur3 of four bytes, with a seed of 42."""
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> 32 - bits) & mask

    key = rotated(number * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    value = rotated(42 ^ key, 13) * 5 + 0xE6546B64 & mask
    value ^= 4
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    value ^= value >> 16
    return value - (1 << 32) if value >> 31 else value


def checkpoint_file_manager() -> str:
    """The class that writes the files of a stream's checkpoint; Spark 4.1 moves it."""
    package = "org.apache.spark.sql.execution.streaming"
    if package_version() >= (4, 1):
        package += ".checkpointing"
    return f"{package}.FileSystemBasedCheckpointFileManager"


# --- Ends with 4.2 ------------------------------------------------------------------------------


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns in Arrow's terms, with times in UTC. Until Spark 4.2 that is the only choice."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if package_version() >= (4, 2):
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
