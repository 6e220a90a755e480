"""Which pipelines can run in micro-batches, and how their DAG is cut for it.

What reads the stream runs in as many tasks as Spark reads a batch in, which differs from batch to
batch. So it keeps no state, and every vertex that has some is cut off from it. All others have the
same tasks in every batch.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from jetlet.core.dag import DAG
from jetlet.core.vertex import StreamSupplier, Vertex, check_saves
from jetlet.errors import UnsupportedFeatureError
from jetlet.pipeline.sink import TransactionalSink
from jetlet.spark.batch.fragment_spec import spans_batches
from jetlet.spark.batch.fragments import Fragment, cut, is_broadcast
from jetlet.spark.stream_frames import BatchFrameSupplier, SparkStreamSource, spark_stream


class BatchPlan:
    """A DAG as it is run in micro-batches."""

    def __init__(self, dag: DAG) -> None:
        self.stream_vertex, self.stream = _stream_of(dag)
        self.dag = dag.copy(_with_batches)
        behind = _behind(self.dag, self.dag[self.stream_vertex])
        _check_rest(dag, behind)
        _check_clocks(dag)
        _check_sinks(dag)
        check_saves(dag, "with each micro-batch, since each has processors of its own")
        source = self.dag[self.stream_vertex]
        numbered = [v for v in self.dag.vertices if v.traits.needs_index or spans_batches(v)]
        bounded = [v for v in self.dag.vertices if v not in behind]
        frames = [source, *(v for v in bounded if _reads_frame(v))]
        self.fragments = cut(self.dag, frames, [v for v in numbered if v is not source])
        self.source_fragments = [f for f in self.fragments if source in f.vertices]
        self.bounded_fragments = [f for f in self.fragments if not behind & {*f.vertices}]

    @property
    def has_state(self) -> bool:
        """True if any of the tasks has."""
        return any(map(self.keeps_state, self.fragments))

    def keeps_state(self, fragment: Fragment) -> bool:
        """True if tasks of the fragment have something to keep from batch to batch."""
        return fragment not in self.source_fragments and any(map(spans_batches, fragment.vertices))


def _stream_of(dag: DAG) -> tuple[str, SparkStreamSource[Any]]:
    streams = [v for v in dag if v.traits.is_stream]
    found = [(v.name, source) for v in streams if (source := spark_stream(v)) is not None]
    others = [v.name for v in streams if spark_stream(v) is None]
    if others:
        raise UnsupportedFeatureError(
            f"{found[0][0]!r} is a stream of Spark's, which comes in micro-batches, and "
            f"{others[0]!r} is none: read both with sources.spark_stream(...), joined by Spark, or "
            f"neither"
        )
    if len(found) > 1:
        raise UnsupportedFeatureError(
            f"{found[0][0]!r} and {found[1][0]!r} are two streams of Spark's, and a job reads one: "
            f"put them together with Spark, such as sources.spark_stream(lambda spark: "
            f"first.unionByName(second))"
        )
    return found[0]


def _check_sinks(dag: DAG) -> None:
    """Refuse sinks whose writers have to last."""
    for vertex in dag:
        sink = None if vertex.hook is None else vertex.hook.sink
        if isinstance(sink, TransactionalSink) and sink.gathers:
            raise UnsupportedFeatureError(
                f"{sink!r}: roll_size and roll_interval gather what several transactions write, "
                f"and a micro-batch is committed as a whole: leave them out, and write "
                f"sources.spark_stream(..., interval=...) for fewer files"
            )


def _with_batches(vertex: Vertex) -> Vertex:
    """A copy of the vertex; if it is the stream, it reads a DataFrame."""
    twin = copy(vertex)
    source = spark_stream(vertex)
    if source is not None:
        assert isinstance(vertex.supplier, StreamSupplier)
        twin.supplier = BatchFrameSupplier(source, vertex.supplier)
    return twin


def _behind(dag: DAG, source: Vertex) -> set[Vertex]:
    """The vertices that items of the stream come to, and itself."""
    behind = {source}
    for vertex in dag:
        if any(edge.source in behind for edge in dag.inbound(vertex)):
            behind.add(vertex)
    return behind


def _check_rest(dag: DAG, behind: set[Vertex]) -> None:
    """Refuse bounded input, unless it is what a join looks up."""
    names = {v.name for v in behind}
    for edge in dag.edges:
        if edge.source.name in names or is_broadcast(edge):
            continue
        if edge.dest.name in names or edge.dest.hook is not None:
            raise UnsupportedFeatureError(
                f"{edge.source.name!r} is bounded, and {edge.dest.name!r} would have to read it "
                f"beside a stream of Spark's, which comes in micro-batches: join it with "
                f".hash_join(...), or run it as a job of its own"
            )


def _check_clocks(dag: DAG) -> None:
    """Refuse what is to happen while no batch comes."""
    for vertex in dag:
        if vertex.traits.needs_clock:
            raise UnsupportedFeatureError(
                f'{vertex.name!r} has when_idle="advance", and a stream of Spark\'s comes in '
                f"micro-batches: without data there is no batch in which event time could go on. "
                f"Leave out when_idle, or read the stream on members, from a source of Jetlet's"
            )


def _reads_frame(vertex: Vertex) -> bool:
    from jetlet.spark.frames import frame_source

    return frame_source(vertex) is not None
