from __future__ import annotations

import pickle
import threading
from itertools import count

import cloudpickle
import pytest

from jetlet import EmbeddedEngine, sources
from jetlet.connectors.custom import stream_builder
from jetlet.connectors.custom.stream_builder import MAX_WAITING
from jetlet.core import DAG, Processor, Vertex, between
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError, JobCancelledError, ProcessorContractError
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.testing import verify_processor


def open_reader(source, partitions=None):
    there = pickle.loads(
        cloudpickle.dumps(source.partitions() if partitions is None else partitions)
    )
    return source.open(there, ProcessorContext())


def read_to_end(reader, limit=100):
    """All items by partition, and the timestamps if there are any."""
    found = {}
    while (polled := reader.poll(limit)) is not None:
        for each in polled:
            items = each.items
            if each.timestamps is not None:
                items = list(zip(items, each.timestamps, strict=True))
            found.setdefault(each.partition, []).extend(items)
    return found


class Counter:
    """A source of numbers, which remembers what it was asked."""

    def __init__(self, context=None):
        self.partition = context and context.partition
        self.next = 0
        self.is_destroyed = False

    def fill(self, buffer):
        for _ in range(min(3, buffer.room, 10 - self.next)):
            buffer.add(self.next)
            self.next += 1
        if self.next >= 10:
            buffer.close()

    def generate(self):
        while self.next < 10:
            self.next += 1
            yield self.next - 1
            if self.next % 3 == 0:
                yield None

    def restore(self, saved):
        self.next = saved

    def destroy(self):
        self.is_destroyed = True


def counter_source(way, **options):
    functions = {"fill": Counter.fill} if way == "fill" else {"generator": Counter.generate}
    return sources.stream(
        "numbers",
        **{
            "create": Counter,
            **functions,
            "save": lambda state: state.next,
            "restore": Counter.restore,
            "destroy": Counter.destroy,
            **options,
        },
    )


every_way = pytest.mark.parametrize(
    ("way", "blocking"),
    [("fill", False), ("fill", True), ("generator", False), ("generator", True)],
)


@every_way
class TestEveryWay:
    def test_reads_to_the_end(self, way, blocking):
        reader = open_reader(counter_source(way, blocking=blocking))
        assert read_to_end(reader) == {0: list(range(10))}
        assert reader.poll(10) is None
        reader.close()

    def test_partitions_have_a_state_each(self, way, blocking):
        seen = []

        def create(context):
            seen.append(context.partition)
            return Counter(context)

        options = {"create": create, "partitions": ["x", "y", "z"], "blocking": blocking}
        reader = open_reader(counter_source(way, **options))
        found = read_to_end(reader)
        assert sorted(seen) == ["x", "y", "z"]
        expected = list(range(10))
        assert found == {0: expected, 1: expected, 2: expected}
        reader.close()
        assert counter_source(way, partitions=2).partitions() == [0, 1]

    def test_the_end_of_a_partition_is_said_before_that_of_all(self, way, blocking):
        goes_on = threading.Event()

        def fill(partition, buffer):
            if partition == "short" or goes_on.is_set():
                buffer.add(partition)
                buffer.close()

        def generate(partition):
            while partition == "long" and not goes_on.is_set():
                yield None
            yield partition

        function = {"fill": fill} if way == "fill" else {"generator": generate}
        source = sources.stream(
            "s",
            create=lambda context: context.partition,
            partitions=["long", "short"],
            blocking=blocking,
            **function,
        )
        reader = source.open(["long", "short"], ProcessorContext())
        polled = []
        while not any(each.is_end for each in polled):
            polled += reader.poll(10)
        assert {each.partition for each in polled} == {1}
        goes_on.set()
        assert read_to_end(reader) == {0: ["long"]}
        reader.close()

    def test_timestamps(self, way, blocking):
        def fill(state, buffer):
            buffer.add("a", 10)
            buffer.add_all(["b", "c"], [30, 20])
            buffer.close()

        def generate(state):
            yield "a", 10
            yield None
            yield "b", 30
            yield "c", 20

        function = {"fill": fill} if way == "fill" else {"generator": generate}
        source = sources.stream(
            "s", create=lambda _: None, timestamps=True, blocking=blocking, **function
        )
        assert source.has_native_timestamps
        reader = open_reader(source)
        assert read_to_end(reader) == {0: [("a", 10), ("b", 30), ("c", 20)]}
        reader.close()

    def test_saved_position_is_behind_what_was_polled(self, way, blocking):
        found = []
        saved = None
        while True:
            reader = open_reader(counter_source(way, blocking=blocking))
            if saved is not None:
                reader.restore(saved)
            polled = ()
            while polled is not None and not polled:
                polled = reader.poll(2)
            saved = pickle.loads(pickle.dumps(reader.save()))
            reader.close()
            if polled is None:
                break
            found += polled[0].items
        assert found == list(range(10))

    def test_none_begins_anew(self, way, blocking):
        reader = open_reader(counter_source(way, blocking=blocking))
        reader.restore([None])
        assert read_to_end(reader)[0][0] == 0
        reader.close()

    def test_state_is_destroyed_once_and_the_generator_closed(self, way, blocking):
        events = []

        def generate(state):
            try:
                while True:
                    yield 1
            finally:
                events.append("closed")

        function = (
            {"fill": lambda state, buffer: buffer.add(1)}
            if way == "fill"
            else {"generator": generate}
        )
        source = sources.stream(
            "s",
            create=lambda _: "state",
            destroy=events.append,
            blocking=blocking,
            **function,
        )
        reader = source.open(source.partitions(), ProcessorContext())
        while not reader.poll(10):
            pass
        reader.close()
        for thread in getattr(reader, "_threads", []):
            thread.join()
        reader.close()
        assert events == (["state"] if way == "fill" else ["closed", "state"])

    def test_failure_is_the_polls(self, way, blocking):
        def fill(state, buffer):
            raise OSError("the cable")

        def generate(state):
            yield 1
            raise OSError("the cable")

        function = {"fill": fill} if way == "fill" else {"generator": generate}
        source = sources.stream("s", create=lambda _: None, blocking=blocking, **function)
        reader = open_reader(source)
        with pytest.raises(OSError, match="the cable"):
            read_to_end(reader)
        reader.close()

    def test_as_a_processor(self, way, blocking):
        supplier = StreamReadSupplier(counter_source(way, blocking=blocking), Timestamps())
        supplier.prepare(1)
        verify_processor(
            supplier,
            expect_output=list(range(10)),
            may_wait=True,
        )

    def test_stream_without_save_cannot_be_resumed(self, way, blocking):
        source = counter_source(way, blocking=blocking, save=None, restore=None)
        assert not source.is_replayable
        reader = open_reader(source)
        with pytest.raises(NotImplementedError):
            reader.save()
        with pytest.raises(NotImplementedError):
            reader.restore([1])
        reader.close()


class TestFill:
    def test_is_told_how_much_room_there_is(self):
        rooms = []
        source = sources.stream(
            "s", create=lambda _: None, fill=lambda state, buffer: rooms.append(buffer.room)
        )
        reader = source.open([0], ProcessorContext())
        assert reader.poll(17) == []
        assert rooms == [17]

    @pytest.mark.parametrize(
        ("per_item", "per_call", "most"),
        [(0, 0, 1024), (1_000_000, 0, 4), (0, 10_000_000, 1024), (10_000, 0, 64)],
        ids=["fast", "slow items", "slow calls", "medium"],
    )
    def test_room_is_what_can_be_filled_in_a_turn(self, monkeypatch, per_item, per_call, most):
        now = [0]
        monkeypatch.setattr(stream_builder, "perf_counter_ns", lambda: now[0])
        rooms = []

        def fill(state, buffer):
            rooms.append(buffer.room)
            buffer.add_all(range(buffer.room))
            now[0] += per_call + per_item * buffer.room

        reader = open_reader(sources.stream("s", create=lambda _: None, fill=fill))
        for _ in range(100):
            reader.poll(1024)
        assert rooms[0] == 32
        assert most // 2 <= max(rooms[20:]) <= most

    def test_other_partitions_go_on_when_one_has_ended(self):
        def fill(state, buffer):
            buffer.add(state)
            if state == "short":
                buffer.close()

        source = sources.stream(
            "s", create=lambda c: c.partition, fill=fill, partitions=["short", "long"]
        )
        reader = open_reader(source)
        first = reader.poll(10)
        assert sorted(each.items[0] for each in first) == ["long", "short"]
        assert [(each.partition, each.items) for each in reader.poll(10)] == [(1, ["long"])]

    def test_partitions_take_turns(self):
        source = sources.stream(
            "s",
            create=lambda c: c.partition,
            fill=lambda state, buffer: buffer.add_all([state] * buffer.room),
            partitions=3,
        )
        reader = open_reader(source)
        polls = [reader.poll(5) for _ in range(3)]
        assert sorted(each.partition for polled in polls for each in polled) == [0, 1, 2]

    @pytest.mark.parametrize(
        ("timestamps", "call"),
        [
            (True, lambda buffer: buffer.add(1)),
            (False, lambda buffer: buffer.add(1, 2)),
            (True, lambda buffer: buffer.add_all([1])),
            (False, lambda buffer: buffer.add_all([1], [2])),
            (True, lambda buffer: buffer.add_all([1], [2, 3])),
        ],
    )
    def test_misuse_of_timestamps_is_told(self, timestamps, call):
        source = sources.stream(
            "s", create=lambda _: None, fill=lambda _, buffer: call(buffer), timestamps=timestamps
        )
        reader = open_reader(source)
        with pytest.raises(ProcessorContractError, match="s"):
            reader.poll(1)

    def test_states_that_were_made_are_destroyed_if_another_fails(self):
        destroyed = []

        def create(context):
            if context.partition == 1:
                raise OSError("no")
            return context.partition

        source = sources.stream(
            "s", create=create, fill=print, destroy=destroyed.append, partitions=3
        )
        with pytest.raises(OSError, match="no"):
            source.open([0, 1, 2], ProcessorContext())
        assert destroyed == [0]

    def test_all_states_are_destroyed_even_if_one_fails(self):
        destroyed = []

        def destroy(state):
            destroyed.append(state)
            raise OSError(f"no {state}")

        source = sources.stream(
            "s", create=lambda c: c.partition, fill=print, destroy=destroy, partitions=3
        )
        reader = source.open([0, 1, 2], ProcessorContext())
        with pytest.raises(OSError, match="no"):
            reader.close()
        assert destroyed == [0, 1, 2]


class TestGenerator:
    def test_items_do_not_wait_for_others_that_are_slow(self, monkeypatch):
        now = [0]
        monkeypatch.setattr(stream_builder, "perf_counter_ns", lambda: now[0])

        def generate(state):
            for number in count():
                now[0] += 1_000_000
                yield number

        reader = open_reader(sources.stream("s", create=lambda _: None, generator=generate))
        assert [each.items for each in reader.poll(1024)] == [[0]]
        assert [each.items for each in reader.poll(1024)] == [[1]]

    def test_must_be_one(self):
        reader = open_reader(sources.stream("s", create=lambda _: 1, generator=lambda _: [1, 2]))
        with pytest.raises(ProcessorContractError, match="generator returned"):
            reader.poll(1)

    def test_must_yield_pairs_if_there_are_timestamps(self):
        source = sources.stream(
            "s", create=lambda _: 1, generator=lambda _: iter(["abc"]), timestamps=True
        )
        with pytest.raises(ProcessorContractError, match=r"yield \(item, timestamp\)"):
            open_reader(source).poll(1)

    def test_limit_is_kept(self):
        source = sources.stream("s", create=lambda _: 1, generator=lambda _: iter(range(1, 100)))
        reader = open_reader(source)
        assert reader.poll(7)[0].items == [1, 2, 3, 4, 5, 6, 7]
        assert reader.poll(2)[0].items == [8, 9]


class TestBlocking:
    @pytest.fixture
    def gate(self):
        """What functions wait for."""
        event = threading.Event()
        yield event
        event.set()

    def stuck(self, gate, entered, destroyed=None):
        def fill(state, buffer):
            entered.set()
            gate.wait()
            buffer.close()

        return sources.stream(
            "stuck", create=lambda _: 1, fill=fill, destroy=destroyed, blocking=True
        )

    def test_each_partition_lives_on_one_thread(self):
        threads = set()

        def note(*_):
            threads.add(threading.get_ident())

        source = sources.stream(
            "s",
            create=note,
            fill=lambda _, buffer: (note(), buffer.close()),
            destroy=note,
            blocking=True,
        )
        reader = source.open([0], ProcessorContext())
        assert read_to_end(reader) == {}
        reader.close()
        assert len(threads) == 1 and threading.get_ident() not in threads

    def test_interrupted_poll_returns_at_once(self, gate, monkeypatch):
        monkeypatch.setattr(stream_builder, "POLL_TIMEOUT", 1000)
        entered = threading.Event()
        reader = self.stuck(gate, entered).open([0], ProcessorContext())
        results = []
        poller = threading.Thread(target=lambda: results.append(reader.poll(1)))
        poller.start()
        entered.wait()
        reader.interrupt()
        poller.join()
        assert results == [()]
        assert reader.poll(1) == ()
        gate.set()
        reader.close()

    def test_closing_does_not_wait_and_the_state_is_destroyed_later(self, gate, caplog):
        entered, destroyed = threading.Event(), threading.Event()
        source = self.stuck(gate, entered, lambda _: destroyed.set())
        reader = source.open([0], ProcessorContext())
        reader.poll(1)
        entered.wait()
        reader.close()
        assert not destroyed.is_set()
        assert "still wait" in caplog.text
        gate.set()
        assert destroyed.wait(60)

    def test_functions_do_not_run_ahead_without_bound(self):
        source = sources.stream(
            "s",
            create=lambda _: iter(range(10**9)),
            fill=lambda numbers, buffer: buffer.add_all([next(numbers) for _ in range(1000)]),
            blocking=True,
        )
        reader = source.open([0], ProcessorContext())
        found = []
        for _ in range(20):
            found += (item for each in reader.poll(1000) for item in each.items)
        with reader._changed:
            assert reader._waiting < MAX_WAITING + 1000
        assert found == list(range(len(found)))
        reader.close()

    def test_reader_that_was_never_polled_closes(self):
        made = []
        source = sources.stream("s", create=made.append, fill=print, blocking=True)
        source.open([0], ProcessorContext()).close()
        assert made == []

    def test_job_can_be_cancelled_whatever_the_function_waits_for(self, gate):
        class Ignore(Processor):
            def process(self, ordinal, inbox):
                inbox.clear()

        entered = threading.Event()
        source = self.stuck(gate, entered)
        dag = DAG()
        read = dag.vertex(Vertex("read", StreamReadSupplier(source, Timestamps()), 1))
        ignore = dag.vertex(Vertex("ignore", Ignore, 1))
        dag.edge(between(read, ignore))
        with EmbeddedEngine() as engine:
            job = engine.submit(dag)
            entered.wait()
            job.cancel()
            assert not gate.is_set()
            with pytest.raises(JobCancelledError):
                job.join()


@pytest.mark.parametrize(
    "options",
    [
        {"create": 5, "fill": print},
        {"create": print},
        {"create": print, "fill": print, "generator": print},
        {"create": print, "fill": 3},
        {"create": print, "fill": print, "save": print},
        {"create": print, "fill": print, "restore": print},
        {"create": print, "fill": print, "destroy": 3},
        {"create": print, "fill": print, "partitions": 0},
        {"create": print, "fill": print, "partitions": []},
        {"create": print, "fill": print, "partitions": "ab"},
        {"create": print, "fill": print, "partitions": None},
        {"create": print, "fill": print, "local_parallelism": 0},
        {"name": "", "create": print, "fill": print},
        {"name": None, "create": print, "fill": print},
    ],
)
def test_arguments_that_cannot_work_are_refused(options):
    with pytest.raises(InvalidArgumentError, match=r"sources\.stream.*write"):
        sources.stream(**{"name": "s", **options})
