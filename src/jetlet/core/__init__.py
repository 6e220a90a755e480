"""The Core API: build a DAG of processors by hand.

``dag.new_vertex(name, MyProcessor)`` adds a step, ``dag.edge(between(a, b).partitioned(key_fn))``
joins two, and an engine runs it: ``engine.submit(dag)``. Pipelines are planned into the same DAGs.
"""

from jetlet.core.clock import SYSTEM_CLOCK, Clock, SystemClock
from jetlet.core.dag import DAG
from jetlet.core.edge import DEFAULT_QUEUE_SIZE, Edge, Routing, between, from_
from jetlet.core.inbox import Inbox
from jetlet.core.items import DONE, IDLE, BroadcastKey, SnapshotBarrier, SpecialItem, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT, partition_id, stable_hash
from jetlet.core.processor import PartitionTime, Processor, ProcessorContext
from jetlet.core.traits import BatchPart, Repeats, State, Traits
from jetlet.core.traverser import Traverser, traverse, traverse_fn, traverse_items
from jetlet.core.vertex import USE_DEFAULT, ProcessorSupplier, RunHook, Vertex

__all__ = [
    "DAG",
    "DEFAULT_PARTITION_COUNT",
    "DEFAULT_QUEUE_SIZE",
    "DONE",
    "IDLE",
    "SYSTEM_CLOCK",
    "USE_DEFAULT",
    "BatchPart",
    "BroadcastKey",
    "Clock",
    "Edge",
    "Inbox",
    "Ordinals",
    "Outbox",
    "PartitionTime",
    "Processor",
    "ProcessorContext",
    "ProcessorSupplier",
    "Repeats",
    "Routing",
    "RunHook",
    "SnapshotBarrier",
    "SpecialItem",
    "State",
    "SystemClock",
    "Traits",
    "Traverser",
    "Vertex",
    "Watermark",
    "between",
    "from_",
    "partition_id",
    "stable_hash",
    "traverse",
    "traverse_fn",
    "traverse_items",
]
