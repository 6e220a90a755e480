"""Storages to keep snapshots in, and jobs to take them of."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from jetlet.core import DAG, BroadcastKey, Processor, RunHook, State, Traits, Vertex, between
from jetlet.storage.file_systems import locate


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path, memory_url):
    """A storage and a root in it: a local directory, or an in-memory file system by URL."""
    return locate(str(tmp_path / "state") if request.param == "local" else memory_url)


# --- Jobs -------------------------------------------------------------------------------------

PROMPT = 60.0
"""Seconds that nothing here should come near, however busy the machine."""


class Tap:
    """How far the sources of a test may go; shared with them, and with nobody else."""

    def __init__(self, limit=None):
        self.limit = limit
        self.failing_at = {}
        """Errors to raise, once, by the number that they come with."""
        self.seen = []

    def open(self):
        self.limit = None


class Numbers(Processor):
    """Emits 0, 1, ... ``count`` in partitions, each in order, for as far as the tap allows.

    It can be replayed: the position in each partition is saved.
    """

    def __init__(self, count, tap=None, partitions=4, batch=7):
        self._count, self._tap, self._batch = count, tap or Tap(), batch
        self._partitions = partitions
        self._positions = {}
        self._pending = []
        self._entries = None

    def init(self, outbox, context):
        super().init(outbox, context)
        mine = range(context.global_index, self._partitions, context.total_parallelism)
        self._positions = dict.fromkeys(mine, 0)

    def complete(self):
        tap = self._tap
        limit = self._count if tap.limit is None else min(tap.limit, self._count)
        if not self._pending:
            for partition, position in self._positions.items():
                numbers = range(partition, limit, self._partitions)
                self._pending += [
                    (partition, n) for n in numbers[position : position + self._batch]
                ]
        while self._pending:
            partition, number = self._pending[0]
            if not self.outbox.offer(number):
                return False
            self._pending.pop(0)
            self._positions[partition] += 1
        return all(
            position == len(range(partition, self._count, self._partitions))
            for partition, position in self._positions.items()
        )

    def save_to_snapshot(self):
        return self.outbox.offer_batch_to_snapshot(
            [(BroadcastKey(p), position) for p, position in sorted(self._positions.items())]
        )

    def restore_from_snapshot(self, inbox):
        for key, position in inbox:
            if key.key in self._positions:
                self._positions[key.key] = position


class CountByKey(Processor):
    """Emits (key, how many items of this key there were, the item); fails where the tap says so."""

    def __init__(self, modulus=5, tap=None):
        self._modulus, self._tap = modulus, tap or Tap()
        self._counts = {}

    def process_item(self, ordinal, item):
        failure = self._tap.failing_at.pop(item, None)
        if failure is not None:
            raise failure
        key = item % self._modulus
        if not self.try_emit((key, self._counts.get(key, 0) + 1, item)):
            return False
        self._counts[key] = self._counts.get(key, 0) + 1
        return True

    def save_to_snapshot(self):
        return self.outbox.offer_batch_to_snapshot(list(self._counts.items()))

    def restore_from_snapshot(self, inbox):
        for key, count in inbox:
            assert key not in self._counts
            self._counts[key] = count


class Ledger(RunHook):
    """Where a transactional sink writes. A transaction counts once, however often it is written."""

    def __init__(self):
        self.transactions = {}
        self.last = []
        self.calls = []

    @property
    def items(self):
        return [item for items in self.transactions.values() for item in items] + self.last

    def write(self, transaction, items):
        assert self.transactions.setdefault(transaction, items) == items

    def begin(self, run_id):
        self.calls.append("begin")

    def resume(self, run_id):
        self.calls.append("resume")

    def stop(self, run_id, error):
        self.calls.append("stop")

    def abort(self, run_id, error):
        self.calls.append("abort")

    def commit(self, run_id, messages):
        self.calls.append("commit")
        self.last = [item for message in messages for item in message]


class LedgerFiles(RunHook):
    """A ledger for sinks in other processes: a file for each transaction."""

    def __init__(self, path):
        self._path = Path(path)
        self._path.mkdir(exist_ok=True)

    @property
    def items(self):
        files = sorted(self._path.glob("*.json"))
        return [tuple(item) for file in files for item in json.loads(file.read_text())]

    def write(self, transaction, items):
        name = "-".join(map(str, transaction))
        aside = self._path / f"{name}.{uuid.uuid4()}"
        aside.write_text(json.dumps(items))
        aside.rename(self._path / f"{name}.json")

    def resume(self, run_id):
        pass

    def commit(self, run_id, messages):
        self.write((run_id, "last"), [item for message in messages for item in message])


class LedgerSink(Processor):
    """Commits to a ledger in two phases; what is left at the end, with the job."""

    def __init__(self, ledger):
        self._ledger = ledger
        self._items = []
        self._prepared = None
        self._number = 0

    def process(self, ordinal, inbox):
        self._items += inbox.take()

    def save_to_snapshot(self):
        # For an export this is all: the transaction goes on.
        return self.outbox.offer_to_snapshot(BroadcastKey(self._name()), self._items)

    def _name(self):
        context = self.context
        return (context.run_id, context.attempt, context.global_index, self._number)

    def snapshot_commit_prepare(self):
        self._prepared = (self._name(), self._items)
        self._number += 1
        self._items = []
        return True

    def snapshot_commit_finish(self, success):
        name, items = self._prepared
        self._prepared = None
        if success:
            self._ledger.write(name, items)
        else:
            self._items = items + self._items
        return True

    def restore_from_snapshot(self, inbox):
        for key, items in inbox:
            self._ledger.write(key.key, items)

    def complete(self):
        if self._prepared is not None:
            return False  # if that snapshot fails, these items are among the last
        self.context.report(self._items)
        return True


class Bag(Processor):
    """A sink without transactions: puts all it gets into a list."""

    traits = Traits(state=State.NONE)

    def __init__(self, items):
        self._items = items

    def process(self, ordinal, inbox):
        self._items += inbox.take()


def counting_dag(count, sink, *, tap=None, hook=None, name="counting"):
    """Numbers, counted by key; each goes by another partition than its source's."""
    dag = DAG(name)
    numbers = dag.new_vertex("numbers", lambda: Numbers(count, tap))
    counts = dag.new_vertex("counts", lambda: CountByKey(tap=tap))
    write = dag.vertex(Vertex("write", sink, hook=hook))
    dag.edge(between(numbers, counts).partitioned(lambda n: n % 5).distributed())
    dag.edge(between(counts, write))
    return dag


def counted(count):
    """What it must write, sorted: each number once, and each key counted without a gap."""
    return [(key, n) for key in range(5) for n in range(1, len(range(key, count, 5)) + 1)]


def eventually(condition):
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def kit():
    return SimpleNamespace(
        Tap=Tap,
        Numbers=Numbers,
        CountByKey=CountByKey,
        Ledger=Ledger,
        LedgerFiles=LedgerFiles,
        LedgerSink=LedgerSink,
        Bag=Bag,
        counting_dag=counting_dag,
        counted=counted,
        eventually=eventually,
        PROMPT=PROMPT,
    )
