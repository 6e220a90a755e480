"""Where a pipeline reads from: ``sources.text("books/*.txt")`` and its like.

Every source of files takes a path, a directory, a glob (``**`` goes into directories), a list of
these, or a URL that fsspec knows (``s3://bucket/*.csv``; ``storage_options`` are for its client).
A directory, named or matched, stands for the files right in it; names that begin with ``_`` or
``.`` are left out. Files are read in the order of their names; those that end in ``.gz``,
``.bz2``, ``.xz`` or ``.zst`` are decompressed. Relative paths start from the directory that the
source is made in.
"""

# Connectors are imported by the function that needs them, so that `import jetlet` stays quick.

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from jetlet.pipeline.source import BatchSource

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["batch", "csv", "items", "json_lines", "parquet", "spark", "text"]

T = TypeVar("T")
Split = TypeVar("Split")
Path = str | os.PathLike[str]


def text(
    path: Path | Iterable[Path],
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    split_size: int | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BatchSource[str]:
    r"""Lines of text files, without the line end (``\n`` or ``\r\n``; a lone ``\r`` is none).

    Several readers share a file that is not compressed, in pieces of ``split_size`` bytes (by
    default 1 to 64 MiB, going by the size of the input). Bytes that are not of the encoding fail
    the job, with the file and the offset, unless ``errors`` says otherwise. A byte-order mark at
    the start of a file is dropped.
    """
    from jetlet.connectors.text import TextSource

    return TextSource(
        path,
        encoding=encoding,
        errors=errors,
        split_size=split_size,
        name=name,
        local_parallelism=local_parallelism,
        storage_options=storage_options,
    )


class CsvOptions(TypedDict, total=False):
    """Those of :func:`csv` that do not decide what an item is."""

    delimiter: str
    quotechar: str | None
    escapechar: str | None
    strict: bool
    multiline: bool
    encoding: str
    errors: str
    split_size: int | None
    name: str | None
    local_parallelism: int | None
    storage_options: Mapping[str, Any] | None


@overload
def csv(
    path: Path | Iterable[Path],
    *,
    header: Literal[False],
    fields: None = None,
    types: Mapping[int, Callable[[str], Any]] | None = None,
    **options: Unpack[CsvOptions],
) -> BatchSource[tuple[Any, ...]]: ...


@overload
def csv(
    path: Path | Iterable[Path],
    *,
    header: bool = True,
    fields: Sequence[str],
    types: Mapping[str, Callable[[str], Any]] | None = None,
    **options: Unpack[CsvOptions],
) -> BatchSource[dict[str, Any]]: ...


@overload
def csv(
    path: Path | Iterable[Path],
    *,
    header: Literal[True] = True,
    fields: None = None,
    types: Mapping[str, Callable[[str], Any]] | None = None,
    **options: Unpack[CsvOptions],
) -> BatchSource[dict[str, Any]]: ...


def csv(
    path: Path | Iterable[Path],
    *,
    header: bool = True,
    fields: Sequence[str] | None = None,
    types: Mapping[Any, Callable[[str], Any]] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    escapechar: str | None = None,
    strict: bool = True,
    multiline: bool = True,
    encoding: str = "utf-8",
    errors: str = "strict",
    split_size: int | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BatchSource[Any]:
    """Rows of CSV files, as dicts of strings; as tuples with ``header=False`` and no ``fields``.

    The names come from the first row of each file, or from ``fields``. ``types`` converts columns:
    ``types={"age": int}`` (without names, by the column's number from 0). Blank lines are skipped;
    a row with another number of columns fails the job, with the file and the line. ``strict``
    refuses misplaced and unclosed quotes. ``quotechar=None`` means that nothing is quoted.

    A quoted field may have line ends in it, so a file is read by one reader. If there are none,
    say ``multiline=False``: several readers then share a big file, in pieces of ``split_size``.
    """
    from jetlet.connectors.csv import CsvSource

    return CsvSource(
        path,
        header=header,
        delimiter=delimiter,
        quotechar=quotechar,
        escapechar=escapechar,
        fields=fields,
        types=types,
        strict=strict,
        multiline=multiline,
        encoding=encoding,
        errors=errors,
        split_size=split_size,
        name=name,
        local_parallelism=local_parallelism,
        storage_options=storage_options,
    )


def json_lines(
    path: Path | Iterable[Path],
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    split_size: int | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BatchSource[Any]:
    """The value on each line of JSON Lines files. Blank lines are skipped; splits as in `text`."""
    from jetlet.connectors.jsonl import JsonLinesSource

    return JsonLinesSource(
        path,
        encoding=encoding,
        errors=errors,
        split_size=split_size,
        name=name,
        local_parallelism=local_parallelism,
        storage_options=storage_options,
    )


def parquet(
    path: Path | Iterable[Path],
    *,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | Sequence[Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BatchSource[dict[str, Any]]:
    """Rows of Parquet files, as dicts. Several readers share a file by its row groups.

    ``columns`` are the ones to read, ``filters`` the rows: an expression of pyarrow such as
    ``pc.field("age") > 30``, or a list such as ``[("age", ">", 30)]``. Row groups whose statistics
    rule a match out are not read. Needs ``pip install 'jetlet[arrow]'``.
    """
    from jetlet.connectors.parquet import ParquetSource

    return ParquetSource(
        path,
        columns=columns,
        filters=filters,
        name=name,
        local_parallelism=local_parallelism,
        storage_options=storage_options,
    )


def items(items: Iterable[T], *, name: str | None = None) -> BatchSource[T]:
    """Items that you have: a list, tuple or range, or any iterable that ends.

    An iterator or generator is read to its end when a job is submitted, and its items are kept, so
    that the pipeline can run again.
    """
    from jetlet.connectors.items import ItemsSource

    return ItemsSource(items, name=name)


@overload
def batch(
    name: str,
    read_fn: Callable[[Split], Iterable[Sequence[T]]],
    splits: Sequence[Split] | Callable[[int], Sequence[Split]] | None = None,
    *,
    batched: Literal[True],
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> BatchSource[T]: ...


@overload
def batch(
    name: str,
    read_fn: Callable[[Split], Iterable[T]],
    splits: Sequence[Split] | Callable[[int], Sequence[Split]] | None = None,
    *,
    batched: Literal[False] = False,
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> BatchSource[T]: ...


def batch(
    name: str,
    read_fn: Callable[[Any], Iterable[Any]],
    splits: Sequence[Any] | Callable[[int], Sequence[Any]] | None = None,
    *,
    batched: bool = False,
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> BatchSource[Any]:
    """A source of your own: ``read_fn(split)`` returns an iterable of the split's items.

    ``splits`` is a list of whatever ``read_fn`` understands, or a function from the number of
    readers to such a list; without it there is one split, ``None``. With ``batched=True`` the
    iterable gives lists of items. A generator is closed when reading stops, so it may hold a
    connection in a ``with``. ``blocking=True`` gives each reader a thread of its own; say it when
    ``read_fn`` waits for a network.
    """
    from jetlet.connectors.builders import BuiltBatchSource

    return BuiltBatchSource(
        name,
        read_fn,
        splits=splits,
        batched=batched,
        blocking=blocking,
        local_parallelism=local_parallelism,
    )


@overload
def spark(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: Literal["dict"] = "dict",
    name: str | None = None,
) -> BatchSource[dict[str, Any]]: ...


@overload
def spark(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: Literal["tuple"],
    name: str | None = None,
) -> BatchSource[tuple[Any, ...]]: ...


def spark(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: str = "dict",
    name: str | None = None,
) -> BatchSource[Any]:
    """Rows of a Spark DataFrame, so whatever Spark can read; on Spark only.

    ``frame_fn`` gets the session when the job is submitted, for example
    ``lambda spark: spark.read.orc("events").where("day > '2024-01-01'")``. ``columns`` are the
    ones to read. With ``items="tuple"`` an item is a tuple in the order of the columns. Spark
    decides in how many tasks the DataFrame is read. Values are as pyarrow gives them: a timestamp
    is a ``datetime`` with the session's time zone, a map a list of pairs.
    """
    from jetlet.spark.frames import FrameSource

    return FrameSource(frame_fn, columns=columns, items=items, name=name)
