"""ServiceProcessor: map, filter and flat_map whose function uses a service.

A service is what is dear to make and must be given back: a connection, a client, a model. A
:class:`ServiceSupplier` makes one for all processors of a member, or one for each of them, and
gives each back exactly once, also when the job fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.traits import Traits
from jetlet.core.vertex import ProcessorSupplier
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.processors.base import STATELESS, BatchProcessor, ErrorPolicy, Output
from jetlet.processors.fused import FusedFunction, Run, Step
from jetlet.processors.service_lease import Leases

__all__ = ["FILTER", "FLAT_MAP", "MAP", "ServiceProcessor", "ServiceSupplier"]

MAP: Final = "map"
FILTER: Final = "filter"
FLAT_MAP: Final = "flat_map"

BLOCKING_TURN_NS: Final = 100_000_000
"""A processor that may block returns after about so long, to be cancelled or take a snapshot."""


class ServiceSupplier(ProcessorSupplier):
    """Makes processors that call ``fn(service, item)`` for each item.

    The factory's ``create(context)`` makes a service and its ``destroy(service)`` gives it back, if
    it is shared once per member, otherwise once per processor. Both may block. If its calls may
    block, each processor gets a thread of its own; a shared service is then used by several
    threads at once.

    ``map`` emits what ``fn`` returns, also ``None``; ``filter`` emits the item if it is true;
    ``flat_map`` emits what is in the iterable that it returns.
    """

    def __init__(
        self,
        kind: str,
        fn: Callable[[Any, Any], Any],
        factory: ServiceFactory[Any],
        *,
        policy: ErrorPolicy,
        data_ordinals: Ordinals = None,
    ) -> None:
        if kind not in (MAP, FILTER, FLAT_MAP):
            raise InvalidArgumentError(
                f"a processor with a service is of kind {MAP!r}, {FILTER!r} or {FLAT_MAP!r}, not "
                f"{kind!r}"
            )
        for name, function in (("create", factory.create), ("destroy", factory.destroy)):
            if not callable(function):
                raise InvalidArgumentError(
                    f"{kind}_using_service: the service's {name} is {function!r}: write a function"
                )
        if not callable(fn):
            raise InvalidArgumentError(f"{kind}_using_service: fn={fn!r}: write a function")
        self.kind = kind
        self.fn = fn
        self.factory = factory
        self.policy = policy
        self.data_ordinals = data_ordinals
        self.leases = Leases(factory)

    def traits(self) -> Traits:
        return replace(ServiceProcessor.traits, gpus=self.factory.gpus)

    def init(self, context: ProcessorContext) -> None:
        self.leases.open(context)

    def get(self) -> Processor:
        return ServiceProcessor(self)

    def close(self, error: BaseException | None) -> None:
        self.leases.close()


class ServiceProcessor(BatchProcessor):
    """Calls the function with its service for each item."""

    traits = STATELESS

    def __init__(self, supplier: ServiceSupplier) -> None:
        super().__init__(supplier.data_ordinals)
        self.is_cooperative = not supplier.factory.is_blocking
        if not self.is_cooperative:
            self.turn_ns = BLOCKING_TURN_NS
        self._step = supplier.kind, supplier.fn, supplier.policy
        self._lease = supplier.leases.for_processor()
        self._service: Any = None
        self._run: Run | None = None

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        self._serve(self._lease.take(context))

    def _serve(self, service: Any) -> None:
        kind, fn, policy = self._step
        self._service = service
        self._run = Run(self, FusedFunction((Step(kind, partial(fn, service), policy),)))

    def close(self) -> None:
        if self._run is not None:
            self._run.expansion.close()
            self._run = None
            service, self._service = self._service, None
            self._lease.give_back(service)

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        service = self._lease.renewed(self._service, self.context)
        if service is not self._service:
            self._serve(service)
        assert self._run is not None
        # If it blocks it takes item by item, to return in time. Otherwise the engine sees to it
        # that the inbox is small enough for the function.
        if self.is_cooperative:
            self._run.send(batch)
        else:
            self.send_bit_by_bit(self._one_by_one(batch, self._run))

    def _one_by_one(self, batch: Sequence[Any], run: Run) -> Output:
        out: list[Any] = []
        for item in batch:
            for part in run.results((item,)):
                out += part or ()
                if part is None or len(out) >= BATCH_SIZE:
                    yield out
                    out = []
                if part is None:
                    yield None
            if self.is_turn_over():
                yield out
                yield None
                out = []
        yield out
