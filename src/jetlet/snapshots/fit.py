"""Whether a snapshot fits a pipeline, which may have changed since; known before anything runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from jetlet.core.dag import DAG
from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT
from jetlet.core.processor import Processor
from jetlet.core.traits import State
from jetlet.core.vertex import Vertex
from jetlet.errors import SnapshotError
from jetlet.snapshots.format import SnapshotRecord, VertexState
from jetlet.snapshots.incremental import Incremental
from jetlet.snapshots.restore import make_fit
from jetlet.snapshots.store import StoredSnapshot

logger = logging.getLogger("jetlet.job")


def check_fit(stored: StoredSnapshot, dag: DAG, *, allow_changes: bool) -> None:
    """Refuse a snapshot whose state would be lost, or that lacks state; say so if it is allowed.

    Stages are matched by name. Those without state may come and go as they like.
    """
    record = stored.record
    where = f"snapshot {record.snapshot_id} in {stored.directory.path}"
    if record.partition_count != DEFAULT_PARTITION_COUNT:
        raise SnapshotError(
            f"{where} has {record.partition_count} partitions, and not {DEFAULT_PARTITION_COUNT}"
        )
    gone = [v for v, state in record.vertices.items() if state.entries and v not in dag]
    new = []
    for vertex in dag:
        processor = _sample(vertex)
        saved = record.vertices.get(vertex.name)
        if saved is None:
            if vertex.traits.state is State.SAVED:
                new.append(vertex.name)
        elif processor is not None:
            _check_version(vertex.name, saved, processor, where)
            try:
                make_fit(vertex.name, processor, saved)
            except SnapshotError as error:
                raise SnapshotError(f"{where}: {error}") from error
    if not gone and not new:
        return
    changes = "; ".join(filter(None, (_listed("gone", gone), _listed("new", new))))
    if not allow_changes:
        raise SnapshotError(
            f"{where} does not fit the pipeline: {changes}. Stages are matched by name: give a "
            f"renamed one its old name, with name=...; or write "
            f"JobConfig(allow_changed_stages=True) to drop the state of those that are gone, and "
            f"to let the new ones begin without any"
        )
    logger.warning("%s is restored without some stages: %s", where, changes)


def is_chained_alike(record: SnapshotRecord, dag: DAG) -> bool:
    """True if what was saved by its changes is so again, and in the same form."""
    for vertex in dag:
        saved, processor = record.vertices[vertex.name], _sample(vertex)
        if saved.has_ended:
            continue
        is_chained = isinstance(processor, Incremental) and processor.saves_changes
        if is_chained != saved.chained:
            return False
        if is_chained and processor is not None:
            made_by = (processor.schema_version, processor.state_definition())
            if made_by != (saved.schema_version, saved.definition):
                return False
    return True


def _listed(what: str, names: Iterable[str]) -> str:
    text = ", ".join(map(repr, names))
    return f"{what}: {text}" if text else ""


def definitions(dag: DAG) -> dict[str, Mapping[str, Any]]:
    """What the states of vertices are made by, where that makes a difference."""
    found = {}
    for vertex in dag:
        processor = _sample(vertex)
        definition = None if processor is None else processor.state_definition()
        if definition is not None:
            found[vertex.name] = definition
    return found


def _sample(vertex: Vertex) -> Processor | None:
    """A processor of the vertex, to look at; ``None`` if there is none to be had here."""
    try:
        return vertex.supplier.get()
    except Exception:  # some need to be initialised first
        return None


def _check_version(vertex: str, saved: VertexState, processor: Processor, where: str) -> None:
    if saved.schema_version == processor.schema_version or not saved.entries:
        return
    if type(processor).upgrade is Processor.upgrade:
        raise SnapshotError(
            f"{where} has the state of {vertex!r} with schema_version {saved.schema_version}, and "
            f"now it is {processor.schema_version}: define upgrade(self, old_version, state), "
            f"which returns the state as it is now"
        )
