"""Shipping: what executors need that is not installed there: Jetlet, and the user's own modules.

Jetlet goes as an archive, once per session. Functions and classes of the user go by value, within
whatever refers to them: those of ``__main__``, and of every module that is neither installed nor
part of Python. So a change in a module is there with the next job.
"""

from __future__ import annotations

import pickle
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetlet._version import __version__
from jetlet.core.dag import DAG
from jetlet.core.vertex import Vertex
from jetlet.errors import UnpicklableFunctionError
from jetlet.jobs import pickling
from jetlet.jobs.pickling import CodeByValue, user_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHIPPED = "spark.jetlet.shipped"


BY_VALUE = CodeByValue(user_modules, "pyspark.cloudpickle")
"""For executors, which may have none of the user's modules."""


@contextmanager
def by_value() -> Iterator[None]:
    """Within it, cloudpickle sends the user's modules by value."""
    with pickling.by_value(BY_VALUE.modules, BY_VALUE.library()):
        yield


def dumps(value: Any) -> bytes:
    """Pickle with user code by value."""
    with by_value():
        return cloud_dumps(value)


def dumps_each(values: Iterable[Any]) -> list[bytes]:
    """The same for each of many values."""
    with by_value():
        return [cloud_dumps(value) for value in values]


def cloud_dumps(value: Any) -> bytes:
    """Pickle with what is not importable by value."""
    data: bytes = BY_VALUE.library().dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return data


def check_picklable(dag: DAG) -> None:
    """Refuse a vertex whose functions cannot travel, and say which."""
    with by_value():
        pickling.check_picklable(dag, cloud_dumps)


def dump_splits(vertex: Vertex, splits: Iterable[Any]) -> list[bytes]:
    """Pickle what a source is to read, or say that it cannot travel."""
    try:
        return dumps_each(splits)
    except Exception as error:
        raise UnpicklableFunctionError(
            f"the input of stage {vertex.name!r} cannot be sent to another process: {error}. Give "
            f"it plain values, and make of them in a .map(...) what cannot travel"
        ) from error


def ship_package(spark: SparkSession) -> None:
    """Give Jetlet itself to executors that may not have it; once per session."""
    context = spark.sparkContext if hasattr(spark, "_jsparkSession") else None
    if context is not None and is_one_process(context.master or ""):
        return  # the workers are on this machine and run this interpreter
    if spark.conf.get(_SHIPPED, None) == __version__:
        return
    name = f"jetlet-{__version__}.zip"
    if context is not None:
        from pyspark import SparkFiles

        # In Spark's own directory, which goes when the session does: executors fetch it later.
        archive = Path(SparkFiles.getRootDirectory(), name)
        write_package(archive)
        context.addPyFile(str(archive))
    else:
        with tempfile.TemporaryDirectory(prefix="jetlet-") as directory:
            archive = Path(directory, name)
            write_package(archive)
            spark.addArtifacts(str(archive), pyfile=True)
    spark.conf.set(_SHIPPED, __version__)


def is_one_process(master: str) -> bool:
    """True if driver and executor of this master are the same process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def write_package(archive: Path) -> None:
    """Write a zip file of the Jetlet package."""
    root = Path(__file__).resolve().parents[1]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(root.rglob("*.py")):
            file.write(path, Path("jetlet") / path.relative_to(root))
