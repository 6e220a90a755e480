"""Who runs the queries: Jetlet on any of its hosts, and Flink, which is another Python's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.nexmark import flink_queries
from benchmarks.nexmark.queries import QUERIES, Inputs, last_averages, reads
from jetlet import Pipeline, sinks


class Contestant(Protocol):
    """What runs a query over the events of a directory."""

    def run(self, name: str, directory: Path) -> None:
        """Run it, and drop the results."""

    def results(self, name: str, directory: Path) -> list[Any]:
        """What it gives: a sequence or a dict of values each."""


class Ours:
    """An engine of Jetlet, whose sources are read by ``shares``."""

    def __init__(self, engine: Any, shares: int = 1) -> None:
        self._engine = engine
        self._shares = shares

    def run(self, name: str, directory: Path) -> None:
        self._run(name, directory, sinks.noop())

    def results(self, name: str, directory: Path) -> list[Any]:
        out: Any = sinks.collect()
        self._run(name, directory, out)
        return last_averages(out.items) if name == "q4" else out.items

    def _run(self, name: str, directory: Path, sink: Any) -> None:
        p = Pipeline(name)
        QUERIES[name](Inputs(p, directory, self._shares)).write_to(sink)
        self._engine.submit(p).join()


class Flink:
    """Flink SQL in a process of its own, on one core.

    Its distribution on PyPI reads no Parquet, and CSV takes it longer than most queries. So it has
    the columns that a query asks for in memory, as batches of Arrow.
    """

    def __init__(self, python: str, scratch: Path) -> None:
        self._python = python
        self._scratch = scratch
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._scratch.mkdir()
        self._process = subprocess.Popen(
            [self._python, flink_queries.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Nothing here is a function of Python's, for which there would be another process.
            env={**os.environ, "_python_worker_execution_mode": "process"},
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, name: str, directory: Path) -> None:
        self._ask(name, directory, wants_results=False)

    def results(self, name: str, directory: Path) -> list[Any]:
        return self._ask(name, directory, wants_results=True)

    def _ask(self, name: str, directory: Path, *, wants_results: bool) -> list[Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        tables = {each: self._table(directory, each, read) for each, read in reads(name).items()}
        line = {"query": name, "tables": tables, "wants_results": wants_results}
        print(json.dumps(line), file=process.stdin, flush=True)
        for answer in process.stdout:
            if answer.startswith("["):
                return json.loads(answer)  # type: ignore[no-any-return]
        raise SystemExit("Flink has ended")

    def _table(self, directory: Path, stream: str, columns: Iterable[str]) -> str:
        """The file of a stream with these columns, in which times are in milliseconds."""
        path = self._scratch / "-".join([directory.name, stream, *columns])
        if not path.exists():
            table = pq.read_table(directory / f"{stream}.parquet", columns=list(columns))
            table = pa.table(
                {
                    f"{name}_ms" if pa.types.is_timestamp(column.type) else name: column.cast(
                        pa.int64() if pa.types.is_timestamp(column.type) else column.type
                    )
                    for name, column in zip(table.column_names, table.columns, strict=True)
                }
            ).combine_chunks()
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=flink_queries.ROWS)
        return str(path)


def is_answer(name: str, found: Iterable[Any], wanted: Iterable[Any]) -> bool:
    """Whether the results are those, in any order."""
    return sorted(map(_plain, found)) == sorted(map(_plain, wanted))


def _plain(row: Any) -> str:
    values = row.values() if isinstance(row, dict) else row
    return repr([_milliseconds(v) if isinstance(v, datetime) else v for v in values])


def _milliseconds(time: datetime) -> int:
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
