"""Edges between members: who gets what, for every policy and layout.

All members live in this process, on one thread that calls their tasklets in random order; what
would be a socket is a function call. So every layout takes milliseconds and can be tried.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import DAG, Processor, Vertex, Watermark, between, from_
from jetlet.core.partitioning import Partitioner, assign
from jetlet.errors import InvalidDagError
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.progress_state import NO_PROGRESS
from jetlet.network.receive_window import ACK_PERIOD_NS
from jetlet.network.receiver import ReceiverTasklet
from jetlet.network.sender import SenderTasklet

COUNT = 300


class Pipe:
    """A connection that is never slow."""

    def __init__(self, fabric, source, dest, edge):
        self.backlog = 0
        self._fabric, self._source, self._dest, self._edge = fabric, source, dest, edge

    def send(self, kind, *parts):
        receiver = self._fabric.receivers[self._dest, self._edge]
        receiver.receive(self._source, memoryview(b"".join(parts)))


class Fabric:
    """What joins the members."""

    def __init__(self):
        self.senders, self.receivers = {}, {}

    def of(self, member):
        return _Edges(self, member)

    def acknowledge(self, now_ns):
        for (source, dest, edge), sender in self.senders.items():
            lane = self.receivers[dest, edge].lanes[source]
            sender.acknowledge(lane.limit(now_ns), lane.window.size)


class _Edges:
    def __init__(self, fabric, member):
        self._fabric, self._member = fabric, member

    def sender(self, edge, member, name, inbound):
        pipe = Pipe(self._fabric, self._member, member, edge)
        tasklet = SenderTasklet(edge, name, member, inbound, pipe)
        self._fabric.senders[self._member, member, edge] = tasklet
        return tasklet

    def receiver(self, edge, name, outbound):
        tasklet = self._fabric.receivers[self._member, edge] = ReceiverTasklet(name, outbound)
        return tasklet


def run(dag, members, default_parallelism=1, seed=0):
    """Run a DAG on simulated members to its end."""
    fabric = Fabric()
    tasklets = []
    for index in range(members):
        plan = ExecutionPlan(
            dag,
            default_parallelism=default_parallelism,
            member_index=index,
            member_count=members,
        )
        tasklets += plan.build(RunContext(network=fabric.of(index)))
    for tasklet in tasklets:
        tasklet.init()
    rnd = random.Random(seed)
    idle = now = 0
    while tasklets:
        rnd.shuffle(tasklets)
        now += ACK_PERIOD_NS
        fabric.acknowledge(now)
        states = [(tasklet, tasklet.call()) for tasklet in tasklets]
        idle = 0 if any(state is not NO_PROGRESS for _, state in states) else idle + 1
        assert idle < 10, f"nothing moves: {[tasklet.name for tasklet in tasklets]}"
        tasklets = [tasklet for tasklet, state in states if not state.is_done]
    return fabric


class Numbers(Processor):
    """Each of the processors of the whole job emits its share, ``n * step + start``."""

    def __init__(self, count=COUNT, start=0):
        self._count, self._start = count, start
        self._left = None

    def complete(self):
        if self._left is None:
            context = self.context
            mine = range(context.global_index, self._count, context.total_parallelism)
            self._left = [self._start + n for n in mine]
        while self._left:
            if not self.outbox.offer(self._left[-1]):
                return False
            self._left.pop()
        return True


class Seen:
    """What each processor got: ``by[member, index]`` is a list of (ordinal, item)."""

    def __init__(self):
        self.by = defaultdict(list)
        self.watermarks = defaultdict(list)

    def processor(self):
        return _Sink(self)

    def items(self, ordinal=0):
        return {who: [item for o, item in got if o == ordinal] for who, got in self.by.items()}

    def total(self, ordinal=0):
        return Counter(item for got in self.items(ordinal).values() for item in got)


class _Sink(Processor):
    def __init__(self, seen):
        self._seen = seen

    def init(self, outbox, context):
        super().init(outbox, context)
        self._got = self._seen.by[context.member_index, context.local_index]
        self._watermarks = self._seen.watermarks[context.member_index, context.local_index]

    def process(self, ordinal, inbox):
        self._got += [(ordinal, item) for item in inbox.take()]

    def try_process_watermark(self, watermark):
        self._watermarks.append(watermark.timestamp)
        return True


layouts = {
    "members": st.integers(1, 4),
    "up": st.integers(1, 3),
    "down": st.integers(1, 3),
    "queue": st.sampled_from([1, 3, 1024]),
    "seed": st.integers(0, 10**6),
}


def two_vertices(seen, up, down, configure, queue=1024):
    dag = DAG()
    source = dag.new_vertex("source", Numbers, up)
    sink = dag.new_vertex("sink", seen.processor, down)
    dag.edge(configure(between(source, sink)).queue_size(queue))
    return dag


@given(**layouts)
@settings(max_examples=60)
def test_unicast_delivers_each_item_once(members, up, down, queue, seed):
    seen = Seen()
    dag = two_vertices(seen, up, down, lambda edge: edge.distributed(), queue)
    run(dag, members, seed=seed)
    assert seen.total() == Counter(range(COUNT))
    assert len(seen.by) == members * down


def test_unicast_reaches_every_member():
    seen = Seen()
    run(two_vertices(seen, 1, 2, lambda edge: edge.distributed()), 3)
    assert all(len(got) > COUNT / 12 for got in seen.by.values())


@given(**layouts)
@settings(max_examples=60)
def test_partitioned_delivers_each_item_once_to_the_owner_of_its_key(
    members, up, down, queue, seed
):
    seen = Seen()
    key = lambda n: n % 50
    dag = two_vertices(seen, up, down, lambda edge: edge.partitioned(key).distributed(), queue)
    run(dag, members, seed=seed)
    assert seen.total() == Counter(range(COUNT))
    owners = assign(271, members, down)
    for who, items in seen.items().items():
        assert {owners[p] for p in Partitioner(key).partition_ids(items)} <= {who}


@given(**layouts)
@settings(max_examples=60)
def test_broadcast_delivers_every_item_to_every_processor(members, up, down, queue, seed):
    seen = Seen()
    dag = two_vertices(seen, up, down, lambda edge: edge.broadcast().distributed(), queue)
    run(dag, members, seed=seed)
    assert len(seen.by) == members * down
    for items in seen.items().values():
        assert Counter(items) == Counter(range(COUNT))


@given(**layouts)
@settings(max_examples=60)
def test_fanout_delivers_every_item_once_on_every_member(members, up, down, queue, seed):
    seen = Seen()
    dag = two_vertices(seen, up, down, lambda edge: edge.fanout().distributed(), queue)
    run(dag, members, seed=seed)
    for member in range(members):
        here = Counter(
            item for (m, _), items in seen.items().items() if m == member for item in items
        )
        assert here == Counter(range(COUNT))


@given(**layouts)
@settings(max_examples=40)
def test_local_edges_stay_on_their_member(members, up, down, queue, seed):
    seen = Seen()
    dag = two_vertices(seen, up, down, lambda edge: edge, queue)
    fabric = run(dag, members, seed=seed)
    assert seen.total() == Counter(range(COUNT))
    assert not fabric.senders
    for (member, _), items in seen.items().items():
        assert all(n % (members * up) // up == member for n in items)


@given(**layouts)
@settings(max_examples=40)
def test_everything_meets_in_a_single_processor_and_leaves_it(members, up, down, queue, seed):
    first, last = Seen(), Seen()
    dag = DAG()
    source = dag.new_vertex("source", Numbers, up)
    single = dag.vertex(Vertex("single", lambda: _PassOn(first), is_single=True))
    sink = dag.new_vertex("sink", last.processor, down)
    dag.edge(between(source, single).all_to_one().queue_size(queue))
    dag.edge(between(single, sink).distributed().queue_size(queue))
    run(dag, members, seed=seed)
    assert list(first.by) == [(0, 0)]
    assert first.total() == last.total() == Counter(range(COUNT))


class _PassOn(Processor):
    def __init__(self, seen):
        self._seen = seen

    def process(self, ordinal, inbox):
        batch = list(inbox.items())
        if self.outbox.offer_batch(batch):
            self._seen.by[self.context.member_index, self.context.local_index] += [
                (ordinal, item) for item in batch
            ]
            inbox.clear()


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("is_distributed", [False, True])
def test_single_source_has_all_of_its_splits(members, is_distributed):
    seen = Seen()
    dag = DAG()
    source = dag.vertex(Vertex("source", Numbers, is_single=True))
    sink = dag.new_vertex("sink", seen.processor)
    edge = between(source, sink)
    dag.edge(edge.distributed() if is_distributed else edge)
    run(dag, members, default_parallelism=2)
    assert seen.total() == Counter(range(COUNT))
    used = {member for (member, _), got in seen.by.items() if got}
    assert used == (set(range(members)) if is_distributed else {0})


@given(**layouts)
@settings(max_examples=40)
def test_higher_priority_is_drained_first_also_over_the_network(members, up, down, queue, seed):
    seen = Seen()
    dag = DAG()
    build = dag.new_vertex("build", Numbers, up)
    probe = dag.new_vertex("probe", lambda: Numbers(start=10_000), up)
    join = dag.new_vertex("join", seen.processor, down)
    dag.edge(from_(probe).to(join, 0).queue_size(queue))
    dag.edge(from_(build).to(join, 1).broadcast().distributed().priority(-1).queue_size(queue))
    run(dag, members, seed=seed)
    assert seen.total(0) == Counter(range(10_000, 10_000 + COUNT))
    for got in seen.by.values():
        ordinals = [ordinal for ordinal, _ in got]
        assert ordinals == sorted(ordinals, reverse=True), "an item of the probe side came first"
        assert ordinals.count(1) == COUNT


class _Ticking(Processor):
    """Emits events with their timestamps and a watermark after each."""

    def __init__(self, speed):
        self._speed = speed
        self._time = 0
        self._left = []

    def complete(self):
        while True:
            while self._left:
                if not self.outbox.offer(self._left[0]):
                    return False
                self._left.pop(0)
            if self._time >= 100:
                return True
            # Each of the sources has a pace of its own, so that there is something to merge.
            self._time += 1 + (self.context.global_index * 7 + self._speed) % 5
            self._left = [self._time, Watermark(self._time)]


@given(**layouts, speed=st.integers(0, 4))
@settings(max_examples=40)
def test_watermarks_over_the_network_hold_what_they_promise(members, up, down, queue, seed, speed):
    late = []

    class Checking(_Sink):
        def init(self, outbox, context):
            super().init(outbox, context)
            self._top = 0

        def process(self, ordinal, inbox):
            late.extend(item for item in inbox.items() if item <= self._top)
            super().process(ordinal, inbox)

        def try_process_watermark(self, watermark):
            self._top = watermark.timestamp
            return super().try_process_watermark(watermark)

    seen = Seen()
    dag = DAG()
    source = dag.new_vertex("source", lambda: _Ticking(speed), up)
    sink = dag.new_vertex("sink", lambda: Checking(seen), down)
    dag.edge(between(source, sink).partitioned().distributed().queue_size(queue))
    run(dag, members, seed=seed)
    assert not late
    for timestamps in seen.watermarks.values():
        assert timestamps == sorted(set(timestamps))
        assert timestamps[-1] >= 100


def test_edges_that_cannot_work_on_several_members_are_refused():
    dag = DAG()
    source = dag.new_vertex("source", Numbers)
    dag.edge(between(source, dag.vertex(Vertex("one", Seen().processor, is_single=True))))
    with pytest.raises(InvalidDagError, match=r"write \.all_to_one\(\)"):
        ExecutionPlan(dag, member_count=2)
