"""FragmentSpec: a fragment as it travels to the tasks that run it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from jetlet.core.dag import DAG, key_name
from jetlet.core.edge import Edge, Routing, from_, one_key
from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT
from jetlet.core.processor import Processor
from jetlet.core.traits import State
from jetlet.core.vertex import SplitSupplier, Vertex
from jetlet.execution.tuning import BATCH_CALL_TARGET_NS, Tuning
from jetlet.spark.batch.exchange import OutputPort
from jetlet.spark.batch.fragments import Exchange, Fragment, channel_order, cut
from jetlet.spark.batch.reruns import Rerun, reruns
from jetlet.spark.frames import Rows, frame_source

if TYPE_CHECKING:
    import pyarrow as pa

READER = "exchange"
"""Name of the vertex that feeds a fragment with what was shuffled to it."""

TASK_TUNING = Tuning(1, call_target_ns=BATCH_CALL_TARGET_NS)


@dataclass(frozen=True)
class FragmentSpec:
    """A fragment's vertices, with stand-ins for where data enters and leaves.

    The stand-ins are not vertices of the job: they do not show in its metrics.
    """

    job_name: str
    run_id: str
    index: int
    dag: DAG
    partition_count: int
    tasks: int
    readers: list[tuple[str, dict[int, int]]]
    """The vertices that feed the fragment with what was shuffled to it, by rank of the channels:
    each with the ordinal of its outbound edge for each channel."""
    broadcasts: dict[str, int]
    """Channel of each stand-in for a broadcast edge, by vertex name."""
    outputs: dict[str, OutputPort]
    """Exchanges that the fragment writes to, by name of the stand-in vertex."""
    clients: dict[str, int]
    """Channel of each vertex that sends items to the driver."""
    frame_sinks: dict[str, tuple[int, pa.StructType]]
    """Channel and columns of each vertex whose items become a DataFrame."""
    is_frame: bool = False
    """Nothing leaves the fragment but the items of its one sink, as rows of a DataFrame."""
    stateless: frozenset[str] = frozenset()
    """Vertices that have nothing to carry from one micro-batch to the next."""
    frame_source: tuple[str, str | Rows, bool] | None = None
    """The vertex whose items are the rows of a DataFrame, if there is one, their form, and whether
    anybody wants them in columns."""
    tuning: Tuning = TASK_TUNING

    @cached_property
    def stand_ins(self) -> dict[str, str]:
        """The vertices that are not the job's, with those of the job that they work for."""
        given = (*self.broadcasts, *(name for name, _ in self.readers))
        readers = {name: self.dag.outbound(self.dag[name])[0].dest.name for name in given}
        return readers | {name: port.vertex for name, port in self.outputs.items()}

    @property
    def ranks(self) -> dict[int, int]:
        """Rank of each incoming channel; they are read in this order."""
        return {c: rank for rank, (_, ordinals) in enumerate(self.readers) for c in ordinals}


def make_spec(
    dag: DAG,
    fragment: Fragment,
    tasks: Mapping[Fragment, int],
    *,
    job_name: str,
    run_id: str,
    splits: Mapping[str, Sequence[bytes]],
    clients: Mapping[str, int],
    frame_sinks: Mapping[str, tuple[int, pa.StructType]],
    is_frame: bool = False,
) -> FragmentSpec:
    """The fragment of ``dag`` as its tasks need it; ``splits`` are pickled, by source."""
    inner = DAG(dag.name)
    copies = {v: inner.vertex(_for_tasks(v, tasks[fragment], splits)) for v in fragment.vertices}
    names = {v.name for v in dag.vertices}
    outputs: dict[str, OutputPort] = {}
    emitted = reruns(dag, tasks)
    for exchange in fragment.outputs:
        edge = exchange.edge
        stand_in = _stand_in(inner, f"to {edge.dest.name}", names)
        inner.edge(from_(copies[edge.source], edge.source_ordinal).to(stand_in).isolated())
        outputs[stand_in.name] = OutputPort(
            channel=exchange.channel,
            vertex=edge.source.name,
            routing=edge.routing,
            key_fn=edge.key_fn,
            key_name=key_name(edge),
            targets=1 if exchange.is_broadcast else tasks[exchange.dest],
            checks_every_key=edge.checks_every_key,
            is_repeatable=emitted[edge.source] is Rerun.SAME_ORDER,
            is_marking=marking_exchange(exchange.dest) is exchange,
        )
    exchanged = {x.edge for x in (*fragment.outputs, *fragment.inputs)}
    for edge in dag.edges:
        if edge.source in copies and edge.dest in copies and edge not in exchanged:
            inner.edge(_like(edge, copies[edge.source], edge.source_ordinal, copies[edge.dest]))
    ranks = channel_order(dag, fragment)
    readers = [_stand_in(inner, READER, names) for _ in sorted(set(ranks.values()))]
    ordinals: list[dict[int, int]] = [{} for _ in readers]
    broadcasts: dict[str, int] = {}
    for exchange in fragment.inputs:
        edge = exchange.edge
        dest = copies[edge.dest]
        if exchange.is_broadcast:
            stand_in = _stand_in(inner, f"broadcast to {edge.dest.name}", names)
            broadcasts[stand_in.name] = exchange.channel
            inner.edge(_like(edge, stand_in, 0, dest))
            continue
        rank = ranks[exchange.channel]
        ordinal = ordinals[rank][exchange.channel] = len(ordinals[rank])
        inner.edge(_in_order(_like(edge, readers[rank], ordinal, dest)))
    frames = ((v, frame_source(v)) for v in fragment.vertices)
    return FragmentSpec(
        job_name=job_name,
        run_id=run_id,
        index=fragment.index,
        dag=inner,
        partition_count=DEFAULT_PARTITION_COUNT,
        tasks=tasks[fragment],
        readers=[(v.name, o) for v, o in zip(readers, ordinals, strict=True)],
        broadcasts=broadcasts,
        outputs=outputs,
        clients={v.name: clients[v.name] for v in copies if v.name in clients},
        frame_sinks={v.name: frame_sinks[v.name] for v in copies if v.name in frame_sinks},
        is_frame=is_frame,
        stateless=frozenset(v.name for v in fragment.vertices if not spans_batches(v)),
        frame_source=next(((v.name, s.items, v.in_columns) for v, s in frames if s), None),
    )


def fragments_of(dag: DAG) -> list[Fragment]:
    """The fragments in which Spark runs a DAG."""
    frames = [v for v in dag.vertices if frame_source(v)]
    return cut(dag, frames, [v for v in dag.vertices if v.traits.needs_index])


def spans_batches(vertex: Vertex) -> bool:
    """True if the vertex has something to carry from one micro-batch to the next."""
    return vertex.traits.state is not State.NONE and vertex.traits.spans_batches


def marking_exchange(fragment: Fragment) -> Exchange | None:
    """The exchange over which each task of a fragment is told its number.

    ``None`` if there is none whose first task is certain to be there: a DataFrame may have no
    tasks at all.
    """
    for exchange in fragment.shuffled_inputs:
        if not any(map(frame_source, exchange.source.vertices)):
            return exchange
    return None


def _stand_in(dag: DAG, name: str, taken: Iterable[str]) -> Vertex:
    """A new vertex with a name that neither the job nor the fragment has."""
    number, free = 1, name
    while free in taken or free in dag:
        number += 1
        free = f"{name} ({number})"
    return dag.vertex(Vertex(free, Processor, 1))


def _for_tasks(vertex: Vertex, tasks: int, splits: Mapping[str, Sequence[bytes]]) -> Vertex:
    """The vertex as it goes to the tasks: what belongs to the driver stays there."""
    count = vertex.parallelism(1)
    supplier = vertex.supplier
    if isinstance(supplier, SplitSupplier) and vertex.name in splits:
        supplier = supplier.with_splits(PickledSplits(splits[vertex.name], tasks * count))
    made = Vertex(vertex.name, supplier, count, is_single=vertex.is_single)
    made.disk = vertex.disk
    return made


class PickledSplits(Sequence[Any]):
    """Splits that travel pickled: a task takes out only those that it reads.

    They are in an order in which a reader, who takes every n-th of them, gets neighbours. So items
    that are collected from one task after the other are in the order of the source.
    """

    def __init__(self, splits: Sequence[bytes], readers: int) -> None:
        self._splits = [b""] * len(splits)
        places = (p for reader in range(readers) for p in range(reader, len(splits), readers))
        for place, split in zip(places, splits, strict=True):
            self._splits[place] = split

    def __len__(self) -> int:
        return len(self._splits)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [pickle.loads(split) for split in self._splits[index]]
        return pickle.loads(self._splits[index])


def _like(edge: Edge, source: Vertex, source_ordinal: int, dest: Vertex) -> Edge:
    """The same edge between other vertices, within one task."""
    twin = edge.between(source, dest)
    twin.source_ordinal = source_ordinal
    twin.is_distributed = False
    # Any one on each member: here there is only this one.
    return twin.unicast() if edge.routing is Routing.FANOUT else twin


def _in_order(edge: Edge) -> Edge:
    """Several processors behind an isolated edge would tear apart what came in one order."""
    return edge.partitioned(one_key) if edge.routing is Routing.ISOLATED else edge
