"""Shipping: what executors need that is not installed there: Jetlet, and the user's own modules.

Jetlet goes as an archive, once per session. Functions and classes of the user go by value, within
whatever refers to them: those of ``__main__``, and of every module that is neither installed nor
part of Python. So a change in a module is there with the next job.
"""

from __future__ import annotations

import pickle
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetlet._version import __version__
from jetlet.core.pickling import CodeByValue, user_modules
from jetlet.core.vertex import Vertex
from jetlet.errors import UnpicklableFunctionError
from jetlet.spark.launch.versions import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHIPPED = "spark.jetlet.shipped"


BY_VALUE = CodeByValue(user_modules, "pyspark.cloudpickle")
"""Pickles code by value, for executors, which may have none of the user's modules."""


def dumps(value: Any) -> bytes:
    """Pickle with user code by value."""
    with BY_VALUE.by_value():
        return BY_VALUE.dumps(value)


def dump_splits(vertex: Vertex, splits: Iterable[Any]) -> list[bytes]:
    """Pickle what a source is to read, or say that it cannot travel."""
    try:
        with BY_VALUE.by_value():
            return [BY_VALUE.dumps(split) for split in splits]
    except Exception as error:
        raise UnpicklableFunctionError(
            f"the input of stage {vertex.name!r} cannot be sent to another process: {error}. Give "
            f"it plain values, and make of them in a .map(...) what cannot travel"
        ) from error


def ship_package(spark: SparkSession) -> None:
    """Give Jetlet itself to executors that may not have it; once per session."""
    context = spark.sparkContext if is_classic(spark) else None
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


def send_artifact(spark: Any, parts: Iterable[bytes]) -> str:
    """Send bytes to all executors of a session over Spark Connect; returns the artifact's name.

    It stays there as long as the session does.
    """
    name = f"jetlet-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="jetlet-") as directory:
        path = Path(directory, name)
        with path.open("wb") as file:
            for part in parts:
                pickle.dump(part, file)
        spark.addArtifacts(str(path), file=True)
    return name


def read_artifact(name: str) -> Iterator[bytes]:
    """What was sent under this name; in a task."""
    from pyspark import SparkFiles

    with Path(SparkFiles.get(name)).open("rb") as file:
        while file.peek(1):
            yield pickle.load(file)


def is_one_process(master: str) -> bool:
    """True if driver and executor of this master are the same process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def write_package(archive: Path) -> None:
    """Write a zip file of the Jetlet package."""
    root = Path(__file__).resolve().parents[1]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(root.rglob("*.py")):
            file.write(path, Path("jetlet") / path.relative_to(root))
