"""Collector: what tasks send, on its way to the producers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from jetlet.errors import InvalidArgumentError
from jetlet.tasks.envelope import OutgoingEnvelope, SystemStream
from jetlet.tasks.systems.system import SystemProducer, TransactionalProducer


class Lane:
    """Messages of one output that wait to be handed over."""

    __slots__ = ("box", "producer", "sent", "stream")

    def __init__(self, stream: SystemStream, producer: SystemProducer) -> None:
        self.stream = stream
        self.producer = producer
        self.box: list[OutgoingEnvelope] = []
        self.sent = 0
        """Messages that were handed to the producer."""


class Collector:
    """One for a container, shared by its tasks; with transactions, one for each task.

    ``send`` only puts the message into a list, from any thread. The event loop hands the lists over
    after each turn, and a commit before it flushes: producers get batches, in the order sent.
    """

    def __init__(
        self, producers: Mapping[str, SystemProducer], outputs: Iterable[SystemStream]
    ) -> None:
        self._producers = dict(producers)
        self.lanes = tuple(Lane(stream, producers[stream.system]) for stream in outputs)
        self._lane_of: dict[str | SystemStream, Lane] = {lane.stream: lane for lane in self.lanes}
        self._lane_of |= {str(lane.stream): lane for lane in self.lanes}
        self._lock = threading.Lock()

    def send(
        self,
        stream: str | SystemStream,
        message: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Send a message; see :class:`~jetlet.tasks.task.MessageCollector`."""
        lane = self._lane_of.get(stream)
        if lane is None:
            known = ", ".join(repr(str(lane.stream)) for lane in self.lanes)
            raise InvalidArgumentError(
                f"collector.send({stream!r}, ...): the application has no such output (it has: "
                f"{known or 'none'}); write TaskApplication(..., outputs=[{str(stream)!r}])"
            )
        lane.box.append(OutgoingEnvelope(message, key, partition, timestamp))

    def sent(self) -> dict[SystemStream, int]:
        """Messages that were handed over so far, by stream."""
        return {lane.stream: lane.sent for lane in self.lanes}

    def hand_over(self) -> bool:
        """Give the producers what was sent until now; true if there was anything."""
        found = False
        for lane in self.lanes:
            if not lane.box:
                continue
            found = True
            # One thread at a time, so that the order stays what it was.
            with self._lock:
                count = len(lane.box)
                if count:
                    lane.producer.send(lane.stream.stream, lane.box[:count])
                    # Others may have added to it meanwhile.
                    del lane.box[:count]
                    lane.sent += count
        return found

    def flush(self) -> None:
        """Return when all that was sent until now is safe."""
        self.hand_over()
        for producer in self._producers.values():
            producer.flush()

    def prepare(self) -> dict[str, dict[str, Any]]:
        """The same, and what is to be shown by :meth:`commit`, by system."""
        self.flush()
        prepared = {
            name: producer.prepare()
            for name, producer in self._producers.items()
            if isinstance(producer, TransactionalProducer)
        }
        return {name: each for name, each in prepared.items() if each}

    def commit(self, prepared: Mapping[str, Mapping[str, Any]]) -> None:
        """Show it."""
        for name, each in prepared.items():
            producer = self._producers[name]
            assert isinstance(producer, TransactionalProducer)
            producer.commit(each)
