"""Lowering: one function per transform that adds its vertices and edges to the DAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, singledispatchmethod
from typing import Any

from jetlet.core.dag import PREPARE_SUFFIX
from jetlet.core.edge import from_
from jetlet.core.vertex import ProcessorSupplier, Vertex
from jetlet.errors import PlanningError
from jetlet.pipeline.functions import entry_key, whole_item
from jetlet.pipeline.transforms import (
    AggregateTransform,
    AsyncTransform,
    BatchedTransform,
    CustomTransform,
    DistinctTransform,
    FusedTransform,
    HashJoinTransform,
    IntervalJoinTransform,
    MergeTransform,
    PairsTransform,
    RebalanceTransform,
    RollingTransform,
    ServiceTransform,
    SinkTransform,
    SortTransform,
    SourceTransform,
    SpoolTransform,
    StatefulTransform,
    StatelessTransform,
    StreamSourceTransform,
    StripTransform,
    TimestampTransform,
    Transform,
    WindowTransform,
)
from jetlet.pipeline.windows import SlidingWindow
from jetlet.planner import events
from jetlet.planner.dag_builder import DagBuilder, KeyFn, Supplier
from jetlet.planner.graph import Node
from jetlet.processors.aggregate import (
    AccumulateByKeyProcessor,
    AccumulateProcessor,
    CombineByKeyProcessor,
    CombineProcessor,
)
from jetlet.processors.async_map import AsyncMapSupplier
from jetlet.processors.batched import BatchedProcessor
from jetlet.processors.distinct import DistinctProcessor
from jetlet.processors.event_time import EventTimePolicy
from jetlet.processors.expiring_state import expiring_rolling, expiring_stateful
from jetlet.processors.fused import FusedFunction, FusedProcessor, IdentityProcessor, Step
from jetlet.processors.hash_join import HashJoinProcessor
from jetlet.processors.interval_join import IntervalJoinProcessor
from jetlet.processors.pairs import PairsProcessor
from jetlet.processors.read import ReadSupplier
from jetlet.processors.rolling import RollingAggregateProcessor
from jetlet.processors.service_map import ServiceSupplier
from jetlet.processors.session_window import SessionWindowProcessor
from jetlet.processors.sliding_window import SlidingWindowProcessor, frame_key
from jetlet.processors.sort import SortProcessor
from jetlet.processors.spool import SpoolProcessor
from jetlet.processors.stateful import StatefulProcessor
from jetlet.processors.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.timestamps import StripProcessor, TimestampProcessor

BUILD_PRIORITY = -1
"""Build sides of a join are read to the end before its other input."""


class Lowering(DagBuilder):
    """Adds the nodes of a graph to a DAG, one after the other."""

    def run(self) -> None:
        """Add all nodes."""
        for node in self.graph.nodes:
            self.lower(node.transform, node)
        self.write_side_outputs()

    @singledispatchmethod
    def lower(self, transform: Transform, node: Node) -> None:
        """Add the vertices and edges of one node."""
        raise PlanningError(f"stage {node.name!r}: no engine knows {type(transform).__name__}")

    @lower.register
    def _(self, transform: SourceTransform, node: Node) -> None:
        self.emit(node, self.vertex(node, ReadSupplier(transform.source)))

    @lower.register
    def _(self, transform: StatelessTransform, node: Node) -> None:
        self._fused(node, [replace(transform, name=node.name)])

    @lower.register
    def _(self, transform: FusedTransform, node: Node) -> None:
        self._fused(node, transform.steps)

    def _fused(self, node: Node, steps: Sequence[StatelessTransform]) -> None:
        function = FusedFunction(
            [Step(s.kind, s.fn, self.policy(node, s)) for s in steps],
            takes_events=node.takes_events,
        )
        self.chain(node, partial(FusedProcessor, function, self.data_ordinals(node)))

    @lower.register
    def _(self, transform: ServiceTransform, node: Node) -> None:
        policy = self.policy(node)
        fn = transform.fn
        if node.takes_events:
            fn = events.applied_with(transform.kind, fn)
        self.chain(
            node,
            ServiceSupplier(
                transform.kind,
                fn,
                transform.service,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )

    @lower.register
    def _(self, transform: AsyncTransform, node: Node) -> None:
        policy = self.policy(node)
        fn = transform.fn
        if node.takes_events:
            fn = events.applied_async(fn, is_flat=transform.is_flat)
        self.chain(
            node,
            AsyncMapSupplier(
                fn,
                max_concurrency=transform.max_concurrency,
                ordered=transform.is_ordered,
                timeout=transform.timeout,
                retries=transform.retries,
                backoff=transform.backoff,
                flat=transform.is_flat,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )

    @lower.register
    def _(self, transform: BatchedTransform, node: Node) -> None:
        policy = self.policy(node)
        fn = events.applied_to_list(transform.fn) if node.takes_events else transform.fn
        self.chain(
            node,
            partial(
                BatchedProcessor,
                fn,
                transform.max_batch,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )

    @lower.register
    def _(self, transform: CustomTransform, node: Node) -> None:
        supplier = transform.supplier
        if node.takes_events and isinstance(supplier, ProcessorSupplier):
            supplier = supplier.for_events()
        self.chain(node, supplier)

    @lower.register
    def _(self, transform: StatefulTransform, node: Node) -> None:
        arguments = (transform.kind, transform.create, transform.fn, transform.key_fn)
        policy = self.policy(node)
        supplier: Supplier
        if transform.ttl is None:
            supplier = partial(
                StatefulProcessor, *arguments, policy=policy, data_ordinals=self.data_ordinals(node)
            )
        else:
            supplier = partial(
                expiring_stateful,
                *arguments,
                transform.ttl,
                on_evict=transform.on_evict,
                late_ordinal=self.late_output(node, transform.late),
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            )
        self._keyed(node, supplier, transform.key_fn)

    @lower.register
    def _(self, transform: RollingTransform, node: Node) -> None:
        arguments = (transform.operation, transform.key_fn)
        policy = self.policy(node)
        supplier: Supplier
        if transform.ttl is None:
            supplier = partial(
                RollingAggregateProcessor,
                *arguments,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            )
        else:
            supplier = partial(
                expiring_rolling,
                *arguments,
                transform.ttl,
                late_ordinal=self.late_output(node, transform.late),
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            )
        self._keyed(node, supplier, transform.key_fn)

    @lower.register
    def _(self, transform: DistinctTransform, node: Node) -> None:
        policy = self.policy(node)
        self._keyed(
            node,
            partial(
                DistinctProcessor,
                self.key_fn(node, transform.key_fn),
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
            transform.key_fn,
        )

    @lower.register
    def _(self, transform: SortTransform, node: Node) -> None:
        policy = self.policy(node)
        self._keyed(
            node,
            partial(
                SortProcessor,
                self.key_fn(
                    node, transform.key or whole_item if node.takes_events else transform.key
                ),
                reverse=transform.is_reverse,
                memory_limit=transform.memory_limit,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
            None,
        )

    def _keyed(self, node: Node, supplier: Supplier, key_fn: KeyFn | None) -> None:
        """A vertex fed by key, or without one by everybody into a single processor."""
        vertex = self.vertex(node, supplier, is_single=key_fn is None)
        edge = self.connect(node, 0, vertex)
        if key_fn is None:
            edge.all_to_one()
        else:
            self.by_key(node, edge, key_fn)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: MergeTransform, node: Node) -> None:
        vertex = self.vertex(node, IdentityProcessor)
        for ordinal in range(len(node.inputs)):
            self.connect(node, ordinal, vertex, ordinal)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: SpoolTransform, node: Node) -> None:
        self.chain(node, SpoolProcessor)

    @lower.register
    def _(self, transform: RebalanceTransform, node: Node) -> None:
        pass  # a property of the edge behind it, see connect()

    @lower.register
    def _(self, transform: HashJoinTransform, node: Node) -> None:
        policy = self.policy(node)
        probe_key_fns, to_output = transform.probe_key_fns, transform.to_output
        if node.takes_events:
            probe_key_fns = [events.key_of(fn) for fn in probe_key_fns]
            to_output = events.joined(to_output)
        vertex = self.vertex(
            node,
            partial(
                HashJoinProcessor,
                transform.build_key_fns,
                probe_key_fns,
                to_output,
                inner=transform.is_inner,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )
        self.connect(node, 0, vertex)
        for ordinal in range(1, len(node.inputs)):
            edge = self.connect(node, ordinal, vertex, ordinal)
            edge.broadcast().distributed().priority(BUILD_PRIORITY)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: IntervalJoinTransform, node: Node) -> None:
        policy = self.policy(node)
        vertex = self.vertex(
            node,
            partial(
                IntervalJoinProcessor,
                transform.key_fns,
                transform.lower,
                transform.upper,
                transform.to_output,
                late_ordinal=self.late_output(node, transform.late),
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )
        for ordinal, key_fn in enumerate(transform.key_fns):
            self.by_key(node, self.connect(node, ordinal, vertex, ordinal), key_fn)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: PairsTransform, node: Node) -> None:
        policy = self.policy(node)
        self.chain(
            node,
            partial(
                PairsProcessor,
                transform.to_output,
                inner=transform.is_inner,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )

    @lower.register
    def _(self, transform: AggregateTransform, node: Node) -> None:
        operation, key_fns = transform.operation, transform.key_fns
        is_two_stage = operation.combine is not None
        one_stage, step = not is_two_stage, node.name
        first: Supplier
        second: Supplier
        if key_fns is None:
            first = partial(AccumulateProcessor, operation, is_final=one_stage, step=step)
            second = partial(CombineProcessor, operation, step=step)
        else:
            first = partial(
                AccumulateByKeyProcessor, key_fns, operation, is_final=one_stage, step=step
            )
            second = partial(CombineByKeyProcessor, operation, step=step)
        if not is_two_stage:
            vertex = self.vertex(node, first, is_single=key_fns is None)
        else:
            vertex = self.vertex(node, first, suffix=PREPARE_SUFFIX)
        for ordinal in range(len(node.inputs)):
            edge = self.connect(node, ordinal, vertex, ordinal)
            if key_fns is not None:
                self.by_key(node, edge, key_fns[ordinal], distributed=not is_two_stage)
            elif not is_two_stage:
                edge.all_to_one()
        if is_two_stage:
            prepare = vertex
            vertex = self.vertex(node, second, is_single=key_fns is None)
            edge = from_(prepare).to(vertex)
            if key_fns is None:
                edge.all_to_one()
            else:
                edge.partitioned(entry_key).distributed()
            self.dag.edge(edge)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: StreamSourceTransform, node: Node) -> None:
        policy = EventTimePolicy(
            transform.allowed_lag, events.watermark_step(self.graph, node), transform.idle_timeout
        )
        timestamps = Timestamps(transform.timestamps, transform.timestamp_fn, policy)
        self.emit(node, self.vertex(node, StreamReadSupplier(transform.source, timestamps)))

    @lower.register
    def _(self, transform: TimestampTransform, node: Node) -> None:
        policy = self.policy(node)
        time_policy = None
        if transform.is_stream:
            time_policy = EventTimePolicy(
                transform.allowed_lag,
                events.watermark_step(self.graph, node),
                transform.idle_timeout,
            )
        self.chain(
            node,
            partial(
                TimestampProcessor,
                transform.fn,
                time_policy,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )

    @lower.register
    def _(self, transform: StripTransform, node: Node) -> None:
        self.chain(node, StripProcessor)

    @lower.register
    def _(self, transform: WindowTransform, node: Node) -> None:
        window, operation, key_fns = transform.window, transform.operation, transform.key_fns
        is_single = key_fns is None
        if (
            not isinstance(window, SlidingWindow)
            or window.early_period is not None
            or operation.combine is None
        ):
            late = self.late_output(node, transform.late)
            make: Any = (
                SlidingWindowProcessor
                if isinstance(window, SlidingWindow)
                else SessionWindowProcessor
            )
            only = partial(
                make,
                window,
                operation,
                key_fns,
                emits_events=node.emits_events,
                late_ordinal=late,
                step=node.name,
                data_ordinals=self.data_ordinals(node),
            )
            vertex = self.vertex(node, only, is_single=is_single)
            self._feed_window(node, vertex, key_fns, distributed=True)
            self.emit(node, vertex)
            return
        # Late events leave the first stage, over an edge behind its only ordinary one.
        first = partial(
            SlidingWindowProcessor,
            window,
            operation,
            key_fns,
            emits_frames=True,
            target_parallelism=1 if is_single else node.parallelism,
            late_ordinal=None if transform.late is None else 1,
            step=node.name,
            data_ordinals=None if transform.late is None else (0,),
        )
        prepare = self.vertex(node, first, suffix=PREPARE_SUFFIX)
        self._feed_window(node, prepare, key_fns, distributed=False)
        second = partial(
            SlidingWindowProcessor,
            window,
            operation,
            None,
            takes_frames=True,
            emits_events=node.emits_events,
            step=node.name,
        )
        vertex = self.vertex(node, second, is_single=is_single)
        edge = from_(prepare).to(vertex)
        self.dag.edge(edge.all_to_one() if is_single else edge.partitioned(frame_key).distributed())
        self.emit(node, vertex)
        if transform.late is not None:
            self.write(prepare, 1, transform.late)

    def _feed_window(
        self, node: Node, vertex: Vertex, key_fns: Sequence[KeyFn] | None, *, distributed: bool
    ) -> None:
        for ordinal in range(len(node.inputs)):
            edge = self.connect(node, ordinal, vertex, ordinal)
            if key_fns is not None:
                self.by_key(node, edge, key_fns[ordinal], distributed=distributed)
            elif distributed:
                edge.all_to_one()

    @lower.register
    def _(self, transform: SinkTransform, node: Node) -> None:
        vertex, inbound = self.sink_vertex(transform.sink, node.name, node.parallelism)
        self.connect(node, 0, vertex, inbound)
