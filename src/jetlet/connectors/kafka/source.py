"""Topics of Kafka as a source of pipelines."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, Unpack, cast, overload

from jetlet.columns.json_lines import JsonColumns
from jetlet.connectors.kafka.client import (
    KafkaDirectory,
    KafkaServers,
    Place,
    check_topic,
    is_pattern,
)
from jetlet.connectors.kafka.consumer import KafkaConsumer, KafkaRecord, OnGap
from jetlet.core.arguments import (
    check_choice,
    check_count,
    check_functions,
    check_name,
    check_start,
    time_to_ms,
)
from jetlet.core.durations import Duration, to_ms
from jetlet.core.processor import ProcessorContext
from jetlet.errors import BadRecordError, InvalidArgumentError, MissingDependencyError
from jetlet.pipeline.expressions.data_types import ANY, DataType
from jetlet.pipeline.expressions.schemas import class_of, schema_type
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.stream_source import Polled, Span, SpanPart, StreamReader, StreamSource
from jetlet.processors.item_failure import item_at

if TYPE_CHECKING:
    from confluent_kafka import Message

T = TypeVar("T")

logger = logging.getLogger("jetlet.connectors")

Start = Literal["earliest", "latest", "committed"] | Mapping[Any, int] | int | datetime

Until = Literal["end"] | Mapping[Any, int] | int | datetime

DISCOVERY_MS: Final = 5000
"""Milliseconds between two looks for new partitions, by default."""
OFFSET_BEGINNING: Final = -2
"""What the client takes for the first record that is there."""
POLL_TIMEOUT: Final = 0.05
"""Seconds that a poll waits for records."""


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """A partition to read, and where to begin."""

    place: Place
    offset: int


class JsonDecoder:
    """Makes of a value what a schema says; picklable."""

    def __init__(self, what: str, schema: Any) -> None:
        try:
            from msgspec.json import Decoder
        except ImportError as error:
            raise MissingDependencyError(
                f"{what}(schema=...) needs a package: pip install 'jetlet[msgspec]'"
            ) from error
        try:
            self._decode: Callable[[bytes], Any] = Decoder(class_of(schema)).decode
        except TypeError as error:
            raise InvalidArgumentError(f"{what}: schema: {error}") from error
        self._made_of = what, schema

    def __call__(self, value: bytes) -> Any:
        return self._decode(value)

    def __reduce__(self) -> tuple[object, ...]:
        return JsonDecoder, self._made_of


@dataclass(frozen=True, slots=True)
class KafkaDecoding:
    """What becomes of a record."""

    key: Callable[[bytes], Any] | None
    value: Callable[[bytes], Any] | None
    project: Callable[[KafkaRecord], Any] | None

    def function(self) -> Callable[[Message[Any, Any]], Any]:
        """From what the client gives to an item."""
        decode_key, decode_value, project = self.key, self.value, self.project

        def value_of(message: Message[Any, Any]) -> Any:
            value = message.value()
            return value if value is None or decode_value is None else decode_value(value)

        def record_of(message: Message[Any, Any]) -> Any:
            assert project is not None
            key = message.key()
            return project(
                KafkaRecord(
                    message.topic() or "",
                    message.partition() or 0,
                    message.offset() or 0,
                    message.timestamp()[1],
                    key if key is None or decode_key is None else decode_key(key),
                    value_of(message),
                    cast(list[tuple[str, Any]], message.headers() or []),
                )
            )

        return value_of if project is None else record_of


class KafkaOptions(TypedDict, total=False):
    """Options of a source of Kafka that do not decide what an item is."""

    start: Start
    until: Until | None
    group: str | None
    on_gap: OnGap
    discovery_interval: Duration | None
    settings: Mapping[str, Any] | None
    schema: type | None
    name: str | None
    local_parallelism: int | None


class KafkaSource(StreamSource[T]):
    """Records of topics of Kafka, those that are there and those that are sent later.

    An item is the value of a record, as bytes or as ``value(bytes)`` makes it, such as
    ``value=json.loads``. For more than the value write ``project``, which gets a ``KafkaRecord``
    with ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value`` and ``headers``;
    ``key(bytes)`` then deserialises the key. Neither is called for what is ``None``. A record that
    cannot be decoded fails the job; to have it in a dead-letter sink, read bytes and decode them
    in ``.map(..., on_error=...)``.

    With a ``schema`` (a dataclass, ``TypedDict``, ``Struct`` or ``pyarrow.Schema``) values are
    JSON, and become one of these; expressions are checked against it, and for stages that work on
    columns many values become a table, as in `json_lines`. Needs ``pip install 'jetlet[msgspec]'``.

    ``start`` is ``"earliest"``, ``"latest"`` (only what is sent from now on), ``"committed"`` (what
    ``group`` has committed; the earliest where it has not), a dict from partitions to offsets
    (with several topics, from ``(topic, partition)``), or a time: milliseconds since 1970 or a
    ``datetime``. Nothing is committed: how far a job has read is in its snapshots. Records that are
    gone, because retention has deleted them before they were read, are skipped with a warning;
    with ``on_gap="fail"`` the job fails.

    With ``until`` it ends, as bounded input does: ``"end"`` is where each partition ends when the
    job is submitted, a dict from partitions to offsets, or a time, is what is no longer read.

    ``servers`` are ``"host:port"`` of some brokers, ``settings`` those of librdkafka, such as
    ``{"security.protocol": "SSL"}``. Partitions are shared among the readers. Those that a topic
    gets later are found while the job runs, within ``discovery_interval``, and read from their
    beginning whatever ``start`` says; so are the topics that match a pattern, which is a topic that
    begins with ``^``, such as ``"^orders-.*"``. What is deleted ends. ``discovery_interval=None``
    looks only when the job is started. Needs ``pip install 'jetlet[kafka]'``.
    """

    has_native_timestamps = True
    is_replayable = True
    is_blocking = True
    beginning = OFFSET_BEGINNING

    @overload
    def __init__(
        self: KafkaSource[bytes | None],
        topic: str | Sequence[str],
        servers: str | Sequence[str],
        *,
        value: None = None,
        **options: Unpack[KafkaOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str | Sequence[str],
        servers: str | Sequence[str],
        *,
        value: Callable[[bytes], T],
        **options: Unpack[KafkaOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str | Sequence[str],
        servers: str | Sequence[str],
        *,
        value: Callable[[bytes], Any] | None = None,
        key: Callable[[bytes], Any] | None = None,
        project: Callable[[KafkaRecord], T],
        **options: Unpack[KafkaOptions],
    ) -> None: ...

    def __init__(
        self,
        topic: str | Sequence[str],
        servers: str | Sequence[str],
        *,
        value: Callable[[bytes], Any] | None = None,
        key: Callable[[bytes], Any] | None = None,
        project: Callable[[KafkaRecord], Any] | None = None,
        start: Start = "earliest",
        until: Until | None = None,
        group: str | None = None,
        on_gap: OnGap = "skip",
        discovery_interval: Duration | None = DISCOVERY_MS,
        settings: Mapping[str, Any] | None = None,
        schema: Any = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> None:
        what = "sources.kafka"
        if schema is not None and (value is not None or project is not None):
            raise InvalidArgumentError(
                f"{what}: schema=... says what becomes of a value: leave out value=... and "
                "project=..."
            )
        self._type, self._columns = ANY, None
        if schema is not None:
            self._type, value = schema_type(what, schema), JsonDecoder(what, schema)
            self._columns = JsonColumns.of(schema)
        self.has_columns = self._columns is not None
        self._in_columns = False
        self._servers = KafkaServers.of(what, servers, settings)
        given: Any = [topic] if isinstance(topic, str) else topic
        if not isinstance(given, list | tuple) or not given:
            raise InvalidArgumentError(f"{what}({topic!r}): write a topic or a list of topics")
        self._topics = list(dict.fromkeys(_check_topic(what, each) for each in given))
        check_functions(what, key=key, value=value, project=project)
        if key is not None and project is None:
            raise InvalidArgumentError(
                f"{what}: key=... is for a record's key, and items are values unless you write "
                "project=..., such as project=lambda record: (record.key, record.value)"
            )
        check_start(what, start, "partitions to offsets", "earliest", "latest", "committed")
        if until is not None:
            check_start(what, until, "partitions to offsets", "end", parameter="until")
        check_choice(f"{what}: on_gap", on_gap, "skip", "fail")
        if group is not None and (not group or type(group) is not str):
            raise InvalidArgumentError(f"{what}: group={group!r}: write the name of a group")
        if start == "committed" and group is None:
            raise InvalidArgumentError(f"{what}: start='committed': write group=... with it")
        self._start = start
        self._until = until
        self._group = group
        if discovery_interval is not None and until is None:
            self.discovery_ms = to_ms(f"{what}: discovery_interval", discovery_interval, minimum=1)
        self._on_gap: OnGap = on_gap
        self._decoding = KafkaDecoding(key, value, project)
        self.name = check_name(what, name) or f"kafka-source({','.join(self._topics)})"
        self.preferred_local_parallelism = (
            check_count(f"{what}: local_parallelism", local_parallelism) or 1
        )

    def item_type(self) -> DataType:
        return self._type

    def in_columns(self) -> KafkaSource[T]:
        twin = copy(self)
        twin._in_columns = self.has_columns
        return twin

    def partitions(self) -> Sequence[KafkaPartition]:
        # "Latest" is when the job is submitted: what is sent while it starts is not missed.
        with KafkaDirectory(self._servers, self._group) as directory:
            places = directory.places(self._topics)
            offsets = self._offsets(directory, places)
        return [KafkaPartition(*each) for each in zip(places, offsets, strict=True)]

    def look_for_partitions(self) -> Iterator[Sequence[Place]]:
        with KafkaDirectory(self._servers, self._group) as directory:
            while True:
                yield directory.places(self._topics, must_exist=False)

    def partition_of(self, key: Place) -> KafkaPartition | None:
        is_wanted = any(
            re.match(each, key[0]) if is_pattern(each) else each == key[0] for each in self._topics
        )
        return KafkaPartition(key, OFFSET_BEGINNING) if is_wanted else None

    def _offsets(self, directory: KafkaDirectory, places: list[Place]) -> Sequence[int]:
        start = self._start
        if start == "latest":
            return directory.end_offsets(places)
        if isinstance(start, int | datetime):
            return directory.offsets_at(places, time_to_ms(start))
        wanted: Mapping[Place, int] = {}
        if start == "committed":
            wanted = directory.committed(places)
        elif isinstance(start, Mapping):
            wanted = self._by_place("start", start, places)
        earliest = directory.start_offsets(places)
        return [wanted.get(place, first) for place, first in zip(places, earliest, strict=True)]

    def _by_place(
        self, parameter: str, given: Mapping[Any, int], places: Sequence[Place]
    ) -> Mapping[Place, int]:
        # A topic need not be named if there is only one.
        is_short = len(self._topics) == 1
        wanted = {
            (self._topics[0], key) if is_short and isinstance(key, int) else key: offset
            for key, offset in given.items()
        }
        if unknown := set(wanted) - set(places):
            raise InvalidArgumentError(
                f"sources.kafka: {parameter}={given!r}: there is no partition "
                f"{min(unknown, key=repr)!r}; write some of {places!r}"
            )
        return wanted

    @property
    def is_bounded(self) -> bool:
        return self._until is not None

    def spans(self) -> Sequence[Span]:
        with KafkaDirectory(self._servers, self._group) as directory:
            places = directory.places(self._topics)
            until = self._until
            if isinstance(until, int | datetime):
                ends = directory.offsets_at(places, time_to_ms(until))
            else:
                ends = directory.end_offsets(places)
            if isinstance(until, Mapping):
                wanted = self._by_place("until", until, places)
                for place, end in zip(places, ends, strict=True):
                    if wanted.get(place, end) > end:
                        raise InvalidArgumentError(
                            f"sources.kafka: until={until!r}: {place[0]}[{place[1]}] ends at "
                            f"offset {end} now; write that, or until='end'"
                        )
                ends = [wanted.get(place, end) for place, end in zip(places, ends, strict=True)]
            starts = self._offsets(directory, places)
        return [
            Span(KafkaPartition(place, start), end)
            for place, start, end in zip(places, starts, ends, strict=True)
        ]

    def read_span(self, span: Span) -> Iterator[SpanPart[T]]:
        place, position = span.partition.place, span.partition.offset
        if position >= span.end:
            return
        consumer = KafkaConsumer(
            self._servers, group=self._group, on_gap=self._on_gap, logger=logger
        )
        decode = self._decoding.function()
        with closing(consumer):
            consumer.assign({place: position})
            while position < span.end:
                found = consumer.poll(BATCH_SIZE, POLL_TIMEOUT).get(place, [])
                # There may be fewer records than offsets, and so some behind the end among them.
                messages = [each for each in found if (each.offset() or 0) < span.end]
                position = consumer.positions[place]
                rest = replace(span, partition=KafkaPartition(place, position))
                times = [message.timestamp()[1] for message in messages]
                yield SpanPart(_decoded(messages, decode), times, rest)

    def partition_key(self, number: int, partition: KafkaPartition) -> Place:
        # A topic may get more partitions, which would move those of the topics behind it.
        return partition.place

    def partition_name(self, number: int, partition: KafkaPartition) -> str:
        topic, index = partition.place
        return f"{topic}[{index}]"

    def open(
        self, partitions: Sequence[KafkaPartition], context: ProcessorContext
    ) -> StreamReader[T]:
        consumer = KafkaConsumer(
            self._servers,
            group=self._group,
            on_gap=self._on_gap,
            on_skip=lambda count: context.count("skipped_offsets", count),
            may_lose_partitions=self.discovery_ms is not None,
            logger=context.logger,
        )
        columns = self._columns if self._in_columns else None
        return KafkaStreamReader(consumer, partitions, self._decoding.function(), columns)


def _check_topic(what: str, topic: Any) -> str:
    if isinstance(topic, str) and is_pattern(topic):
        try:
            re.compile(topic)
        except re.error as error:
            raise InvalidArgumentError(
                f"{what}({topic!r}): a topic that begins with ^ is a regular expression, and this "
                f"is none: {error}"
            ) from error
        return topic
    return check_topic(what, topic)


def _decoded(
    messages: list[Message[Any, Any]], decode: Callable[[Message[Any, Any]], Any]
) -> list[Any]:
    it = iter(messages)
    try:
        return [decode(message) for message in it]
    except Exception as error:
        bad = item_at(messages, it)
        raise BadRecordError(
            f"{bad.topic()}[{bad.partition()}], offset {bad.offset()}: cannot be decoded: "
            f"{type(error).__name__}: {error}"
        ) from error


class KafkaStreamReader(StreamReader[Any]):
    """Polls a consumer for its partitions."""

    def __init__(
        self,
        consumer: KafkaConsumer,
        partitions: Sequence[KafkaPartition],
        decode: Callable[[Message[Any, Any]], Any],
        columns: JsonColumns | None = None,
    ) -> None:
        self._columns = columns
        self._consumer = consumer
        self._decode = decode
        self._indices = {partition.place: i for i, partition in enumerate(partitions)}
        self._places = [partition.place for partition in partitions]
        self._starts = {partition.place: partition.offset for partition in partitions}
        self._ended: set[Place] = set()
        """Those that were read to their end when the broker was last heard of."""
        self._is_interrupted = False

    def poll(self, limit: int) -> Sequence[Polled[Any]]:
        consumer = self._consumer
        if not consumer.positions:
            consumer.assign(self._starts)
        if self._is_interrupted:
            return ()
        found = consumer.poll(limit, POLL_TIMEOUT)
        self._ended = self._ended.difference(found) | consumer.ended
        return [
            Polled(
                self._indices[place],
                self._items(messages),
                [message.timestamp()[1] for message in messages],
            )
            for place, messages in found.items()
            if place in self._indices
        ]

    def _items(self, messages: list[Message[Any, Any]]) -> Sequence[Any]:
        """What the values are: many as a table, if somebody works on columns."""
        if self._columns is not None:
            values: list[Any] = [message.value() for message in messages]
            if None not in values:
                table = self._columns.table_of(b"\n".join(values))
                if table is not None and len(table) == len(messages):
                    return table
        return _decoded(messages, self._decode)

    def is_quiet(self, partition: int) -> bool:
        return self._places[partition] in self._ended

    def save(self) -> Sequence[int]:
        positions = {**self._starts, **self._consumer.positions}
        return [positions.get(place, OFFSET_BEGINNING) for place in self._places]

    def restore(self, positions: Sequence[int | None]) -> None:
        for place, position in zip(self._places, positions, strict=True):
            if position is not None:
                self._starts[place] = position

    def add(self, partition: KafkaPartition, position: int | None) -> None:
        place = partition.place
        self._indices[place] = len(self._places)
        self._places.append(place)
        self._starts[place] = partition.offset if position is None else position
        if self._consumer.positions:
            self._consumer.add(place, self._starts[place])

    def remove(self, partition: int) -> None:
        place = self._places[partition]
        self._starts.pop(place)
        self._consumer.remove(place)
        del self._indices[place]

    def interrupt(self) -> None:
        # The client cannot be woken; a poll that is under way does not wait for long.
        self._is_interrupted = True

    def close(self) -> None:
        self._consumer.close()
