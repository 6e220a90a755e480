"""A processor that does what it is told, and a bench to put it on."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest

from jetlet.core import Processor, ProcessorContext, SpecialItem
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import SingleTargetEdge
from jetlet.execution.processor_tasklet import ProcessorTasklet
from jetlet.execution.progress_state import DONE, NO_PROGRESS
from jetlet.execution.queue import BoundedQueue
from jetlet.snapshots.context import EXACTLY_ONCE, SnapshotContext
from jetlet.snapshots.state_sink import StateSink
from jetlet.snapshots.tasklet import TaskletSnapshots
from jetlet.testing.clock import ManualClock


class ScriptedProcessor(Processor):
    """Logs every callback. ``answers[name]`` is what the next calls return, then ``True``.

    Passes data on, unless told otherwise by ``on_process``.
    """

    def __init__(self, *, on_process=None, is_cooperative=True):
        self.is_cooperative = is_cooperative
        self.log = []
        self.answers = defaultdict(deque)
        self.closed = 0
        self._on_process = on_process or self.pass_on

    def pass_on(self, ordinal, inbox):
        if self.outbox.offer_batch(list(inbox.items())):
            inbox.clear()

    def _answer(self, name, *args):
        self.log.append((name, *args))
        answers = self.answers[name]
        return answers.popleft() if answers else True

    def process(self, ordinal, inbox):
        self.log.append(("process", ordinal, list(inbox.items())))
        self._on_process(ordinal, inbox)

    def try_process_watermark(self, watermark):
        if not self._answer("watermark", watermark.timestamp):
            return False
        return self.outbox.offer(watermark)

    def complete_edge(self, ordinal):
        return self._answer("complete_edge", ordinal)

    def complete(self):
        return self._answer("complete")

    def save_to_snapshot(self):
        done = self._answer("save")
        return done and self.outbox.offer_to_snapshot("state", "value")

    def snapshot_commit_prepare(self):
        return self._answer("prepare")

    def snapshot_commit_finish(self, success):
        return self._answer("finish", success)

    def restore_from_snapshot(self, inbox):
        self.log.append(("restore", list(inbox.items())))
        inbox.clear()

    def finish_snapshot_restore(self):
        return self._answer("restored")

    def close(self):
        self.closed += 1
        self.log.append(("close",))


class Bench:
    """A tasklet with one queue per inbound edge and one per outbound edge.

    ``inputs`` has a keyword dictionary per inbound edge (``priority``, ``is_restore``, ``queues``).
    """

    def __init__(
        self,
        processor,
        *,
        inputs=(),
        outputs=1,
        capacity=1024,
        guarantee=EXACTLY_ONCE,
        saves=False,
        saved_schema=None,
        **options,
    ):
        self.processor = processor
        self.clock = ManualClock()
        self.snapshots = SnapshotContext(guarantee)
        self.chunks = []
        """What was saved, if it ``saves``."""
        self.has_room = True
        state = StateSink("vertex", 0, self.chunks.append, lambda: not self.has_room)
        self.phases = []
        self.inputs = []
        edges = []
        for ordinal, keywords in enumerate(inputs):
            queues = [BoundedQueue(1024) for _ in range(keywords.get("queues", 1))]
            self.inputs.append(queues)
            edges.append(
                InboundEdge(
                    ordinal,
                    queues,
                    priority=keywords.get("priority", 0),
                    exactly_once=guarantee == EXACTLY_ONCE,
                    is_restore=keywords.get("is_restore", False),
                )
            )
        self.outputs = [BoundedQueue(capacity) for _ in range(outputs)]
        self.tasklet = ProcessorTasklet(
            processor,
            ProcessorContext(vertex_name="vertex", job_name="job", clock=self.clock),
            edges,
            [SingleTargetEdge(queue) for queue in self.outputs],
            snapshots=TaskletSnapshots(
                self.snapshots, state if saves else None, saved_schema=saved_schema
            ),
            **options,
        )
        self.tasklet.init()

    def feed(self, ordinal, *entries, queue=0):
        """Put batches and special items into an inbound queue."""
        target = self.inputs[ordinal][queue]
        for entry in entries:
            if isinstance(entry, SpecialItem):
                assert target.offer_special(entry)
            else:
                assert target.offer(entry) == len(entry)

    def run(self, limit=1000):
        """Call until there is no progress or the end; the states it was in, without repeats."""
        states = [self.tasklet.state]
        for _ in range(limit):
            progress = self.tasklet.call()
            if states[-1] is not self.tasklet.state:
                states.append(self.tasklet.state)
            if progress in (NO_PROGRESS, DONE):
                return states
        pytest.fail(f"still making progress after {limit} calls")

    def output(self, ordinal=0):
        """What came out since the last look, flat."""
        out = []
        while (entry := self.outputs[ordinal].poll(10_000)) is not None:
            out += [entry] if isinstance(entry, SpecialItem) else entry
        return out

    def saved(self):
        """The entries that were saved since the last look."""
        entries = [entry for chunk in self.chunks for entry in chunk.items()]
        self.chunks.clear()
        return entries

    def taken_log(self):
        """The callbacks since the last look."""
        log, self.processor.log = self.processor.log, []
        return log

    def begin(self, snapshot):
        self.snapshots.begin(snapshot, lambda: self.phases.append(1))

    def finish(self, snapshot_id, *, success=True):
        self.snapshots.finish(snapshot_id, success=success, on_done=lambda: self.phases.append(2))


@pytest.fixture
def bench():
    return Bench


@pytest.fixture
def scripted():
    return ScriptedProcessor
