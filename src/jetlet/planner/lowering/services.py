"""Functions that are given a service, and coroutine functions."""

from __future__ import annotations

from jetlet.pipeline.transforms.services import AsyncTransform, ServiceTransform
from jetlet.planner import events
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.coroutines.async_map import AsyncMapSupplier
from jetlet.processors.service_map import ServiceSupplier


@lower.register
def _lower_service(
    transform: ServiceTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    fn = transform.fn
    if node.takes_events:
        fn = events.applied_with(transform.kind, fn)
    dag.chain(
        node,
        ServiceSupplier(
            transform.kind,
            fn,
            transform.service,
            policy=sides.policy,
            data_ordinals=sides.data,
        ),
    )


@lower.register
def _lower_async(
    transform: AsyncTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    fn = transform.fn
    if node.takes_events:
        applied = events.applied_async if transform.service is None else events.applied_async_with
        fn = applied(fn, is_flat=transform.is_flat)
    supplier = AsyncMapSupplier(
        fn,
        service=transform.service,
        max_concurrency=transform.max_concurrency,
        ordered=transform.is_ordered,
        timeout=transform.timeout,
        retries=transform.retries,
        backoff=transform.backoff,
        retry_on=transform.retry_on,
        flat=transform.is_flat,
        key_fn=dag.key_fn(node, transform.key_fn),
        policy=sides.policy,
        data_ordinals=sides.data,
    )
    dag.chain(node, supplier, transform.key_fn)
