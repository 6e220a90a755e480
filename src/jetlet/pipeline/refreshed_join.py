"""Hash joins with a table that is read again while the job runs: ``hash_join(..., refresh="5m")``.

The table is a service of the stage, one for each member: it is made before the first item, made
anew on a thread of its own, and takes the place of the old one between two batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jetlet.core.durations import Duration, to_ms
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.checks import check_function
from jetlet.pipeline.errors import Rejected
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.transforms.services import ServiceTransform

__all__ = ["refreshed_join_transform"]

Table = dict[Any, list[Any]]


class TableOf:
    """Reads a bounded source to a table by key; picklable."""

    def __init__(self, source: BatchSource[Any], key_fn: Callable[[Any], Any]) -> None:
        self._source = source
        self._key_fn = key_fn

    def __call__(self, context: ProcessorContext) -> Table:
        table: Table = {}
        key_fn, rejected = self._key_fn, 0
        for split in self._source.splits(1):
            for batch in self._source.read(split):
                if isinstance(batch, Rejected):
                    rejected += len(batch)
                    continue
                for item in batch:
                    table.setdefault(key_fn(item), []).append(item)
        context.logger.info(
            "%s: read %d keys from %s, left out %d bad records",
            context.vertex_name,
            len(table),
            self._source.name,
            rejected,
        )
        return table


class LookUp:
    """What an item becomes, with its matches in the table; picklable."""

    def __init__(
        self,
        key_fn: Callable[[Any], Any],
        to_output: Callable[[Any, Any], Any] | None,
        *,
        is_inner: bool,
    ) -> None:
        self._key_fn = key_fn
        self._to_output = to_output
        self._missing: list[Any] = [] if is_inner else [None]

    def __call__(self, table: Table, item: Any) -> list[Any]:
        matches = table.get(self._key_fn(item), self._missing)
        to_output = self._to_output
        if to_output is None:
            return [(item, match) for match in matches]
        return [to_output(item, match) for match in matches]


def refreshed_join_transform(
    method: str,
    sides: Sequence[Any],
    to_output: Callable[..., Any] | None,
    refresh: Duration,
    *,
    is_inner: bool,
    **options: Any,
) -> ServiceTransform:
    """The transform of ``probe.hash_join(source, probe_key, build_key, refresh=...)``."""
    if len(sides) != 3 or not isinstance(sides[0], BatchSource):
        raise InvalidArgumentError(
            f"{method}: with refresh=... the source itself is read again, without stages behind "
            f'it: write .{method}(sources.csv("prices.csv"), probe_key, build_key, '
            f'refresh="5m"), or a service that is made again: '
            f'.map_using_service(jetlet.shared_service(load, reload="5m"), fn)'
        )
    source, probe_key, build_key = sides
    if source.on_error not in ("fail", "skip"):
        raise InvalidArgumentError(
            f"{method}: {source.name} is read again and again, so its bad records go to no sink: "
            f'write on_error="skip" or leave it out'
        )
    example = "source, lambda item: ..., lambda other: ..."
    check_function(method, probe_key, "a key function of an item", example)
    check_function(method, build_key, "a key function of an item to join with", example)
    if to_output is not None:
        example = "..., to_output=lambda item, match: ..."
        check_function(method, to_output, "a function of the item and its match", example)
    return ServiceTransform(
        kind="flat_map",
        fn=LookUp(probe_key, to_output, is_inner=is_inner),
        service=ServiceFactory(
            TableOf(source, build_key), reload=to_ms(f"{method}: refresh", refresh, minimum=1)
        ),
        **options,
    )
