"""Processors to build small DAGs from."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from jetlet.core import DAG, Processor, between
from jetlet.errors import JobFailedError
from jetlet.jobs.embedded import EmbeddedEngine

PROMPT = 60.0
"""Seconds that nothing here should come near, however busy the machine."""


class Numbers(Processor):
    """Emits 0, 1, 2, ... ``count`` in batches; each of several instances emits its share."""

    def __init__(self, count, batch=100, is_cooperative=True):
        self.is_cooperative = is_cooperative
        self._count = count
        self._batch_size = batch
        self._batches = None
        self._batch = None

    def init(self, outbox, context):
        super().init(outbox, context)
        mine = range(context.global_index, self._count, context.total_parallelism)
        size = self._batch_size
        self._batches = (list(mine[i : i + size]) for i in range(0, len(mine), size))

    def complete(self):
        if self._batch is None:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return True
        if self.outbox.offer_batch(self._batch):
            self._batch = None
        return False


class Idle(Processor):
    """A source that never has anything."""

    def __init__(self, is_cooperative=True):
        self.is_cooperative = is_cooperative

    def complete(self):
        return False


class Map(Processor):
    """Passes batches on through a function of one item."""

    def __init__(self, fn=lambda item: item, is_cooperative=True):
        self.is_cooperative = is_cooperative
        self._fn = fn

    def process(self, ordinal, inbox):
        if self.outbox.offer_batch([self._fn(item) for item in inbox.items()]):
            inbox.clear()


class MapEach(Processor):
    """Passes items on one by one through a function."""

    def __init__(self, fn=lambda item: item):
        self._fn = fn

    def process_item(self, ordinal, item):
        return self.try_emit(self._fn(item))


class Collect(Processor):
    """Adds what comes to a list, which its makers share."""

    def __init__(self, items, is_cooperative=True):
        self.is_cooperative = is_cooperative
        self._items = items

    def process(self, ordinal, inbox):
        self._items.extend(inbox.take())


class Bin:
    """Takes everything and keeps nothing."""

    def extend(self, items):
        pass


def chain(*suppliers, parallelism=1, queue_size=1024, name="dag"):
    """A DAG of the suppliers one after the other; the vertices are v0, v1, ..."""
    dag = DAG(name)
    vertices = [dag.new_vertex(f"v{i}", s, parallelism) for i, s in enumerate(suppliers)]
    for a, b in itertools.pairwise(vertices):
        dag.edge(between(a, b).queue_size(queue_size))
    return dag


def run(engine, dag, config=None):
    """Run a job to its end."""
    job = engine.submit(dag, config)
    job.join(PROMPT)
    return job


def failure_of(job):
    """The error that a job ends with."""
    with pytest.raises(JobFailedError) as caught:
        job.join(PROMPT)
    return caught.value


@pytest.fixture
def kit():
    return SimpleNamespace(
        Numbers=Numbers,
        Idle=Idle,
        Map=Map,
        MapEach=MapEach,
        Collect=Collect,
        Bin=Bin,
        chain=chain,
        run=run,
        failure_of=failure_of,
    )


@pytest.fixture(params=[1, 2, 4], ids=["1 worker", "2 workers", "4 workers"])
def engine(request):
    with EmbeddedEngine(workers=request.param) as made:
        yield made


@pytest.fixture
def one_worker():
    with EmbeddedEngine(workers=1) as made:
        yield made
