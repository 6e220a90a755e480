"""What an engine does with a source and a sink, without an engine."""

from __future__ import annotations

import pickle
from pathlib import Path

import cloudpickle
import pytest

from jetlet.errors import BadRecordError
from jetlet.pipeline.source import BATCH_SIZE


def _read_all(source, target=1):
    """All items, split by split; the source and its splits travel as they would to a member."""
    splits = source.splits(target)
    there = pickle.loads(cloudpickle.dumps(source))
    items = []
    for split in splits:
        for batch in there.read(pickle.loads(pickle.dumps(split))):
            assert type(batch) in (list, tuple, range)
            assert 0 < len(batch) <= BATCH_SIZE
            items.extend(batch)
    return items


def _write_all(sink, *parts, run_id="run"):
    """Write each part with a writer of its own, and commit."""
    sink.begin(run_id)
    there = pickle.loads(cloudpickle.dumps(sink))
    messages = []
    for i, part in enumerate(parts):
        writer = there.open(run_id, f"writer-{i}")
        for start in range(0, len(part), 100):
            writer.write(part[start : start + 100])
        messages.append(writer.finish())
    sink.commit(run_id, pickle.loads(pickle.dumps(messages)))


def _refused_by(sink, batch):
    """The error that writing the batch raises; ends the run as an engine would."""
    sink.begin("run")
    writer = sink.open("run", "writer")
    try:
        with pytest.raises(BadRecordError) as refused:
            writer.write(batch)
            writer.finish()
    finally:
        writer.abort()
        sink.abort("run")
    return str(refused.value)


def _tree(directory: Path) -> dict[str, bytes]:
    """Every file below the directory, hidden ones too."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def read_all():
    return _read_all


@pytest.fixture(scope="session")
def write_all():
    return _write_all


@pytest.fixture(scope="session")
def refused_by():
    return _refused_by


@pytest.fixture(scope="session")
def tree():
    return _tree
