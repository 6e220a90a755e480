"""Shipping: what executors need that is not installed there: Jetlet, and the user's own modules."""

from __future__ import annotations

import pickle
import site
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jetlet._version import __version__
from jetlet.core.dag import DAG
from jetlet.errors import UnpicklableFunctionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHIPPED = "spark.jetlet.shipped"


def user_modules() -> list[ModuleType]:
    """Loaded modules that are neither installed nor part of Python or of Jetlet.

    They are sent along with the functions that use them, as ``__main__`` always is.
    """
    installed = {Path(path).resolve() for path in (*site.getsitepackages(), site.getusersitepackages())}
    installed |= {Path(p).resolve() for p in sysconfig.get_paths().values()}
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name == "__main__" or name.split(".")[0] in ("jetlet", "pyspark"):
            continue
        path = Path(file).resolve()
        if not any(path.is_relative_to(folder) for folder in installed):
            found.append(module)
    return found


@contextmanager
def by_value() -> Iterator[None]:
    """Within it, cloudpickle sends the user's modules by value."""
    from pyspark import cloudpickle

    known = set(cloudpickle.list_registry_pickle_by_value())
    added = [m for m in user_modules() if m.__name__ not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def dumps(value: Any) -> bytes:
    """Pickle with user code by value."""
    from pyspark import cloudpickle

    with by_value():
        data: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return data


def check_picklable(dag: DAG) -> None:
    """Refuse a vertex whose functions cannot travel, and say which."""
    from pyspark import cloudpickle

    with by_value():
        for vertex in dag.vertices:
            try:
                cloudpickle.dumps(vertex.supplier)
            except Exception as error:
                raise _unpicklable(f"stage {vertex.name!r}", error) from error
        for edge in dag.edges:
            try:
                cloudpickle.dumps(edge.key_fn)
            except Exception as error:
                raise _unpicklable(f"the key function of stage {edge.dest.name!r}", error) from error


def _unpicklable(what: str, error: Exception) -> UnpicklableFunctionError:
    return UnpicklableFunctionError(
        f"{what} cannot be sent to another process: {error}. Its function refers to something "
        f"that lives in this process only, such as an open file, a lock or a connection: make it "
        f"inside the function, or write .map_using_service(jetlet.service(lambda context: ...), fn)"
    )


def ship_package(spark: SparkSession) -> None:
    """Give Jetlet itself to executors that may not have it; once per session."""
    from jetlet.spark.runner import context_of

    context = context_of(spark)
    if context is not None and context.master.startswith("local") and "cluster" not in context.master:
        return  # the workers are on this machine and run this interpreter
    if spark.conf.get(_SHIPPED, None) == __version__:
        return
    archive = _package_archive()
    try:
        if context is not None:
            context.addPyFile(archive)
        else:
            spark.addArtifacts(archive, pyfile=True)
    finally:
        if context is None:
            Path(archive).unlink()
    spark.conf.set(_SHIPPED, __version__)


def _package_archive() -> str:
    """A zip of the Jetlet package, in a temporary file."""
    root = Path(__file__).resolve().parents[1]
    with tempfile.NamedTemporaryFile(prefix="jetlet-", suffix=".zip", delete=False) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.rglob("*.py")):
                archive.write(path, Path("jetlet") / path.relative_to(root))
        return file.name
