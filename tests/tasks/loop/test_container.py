"""Container: what is started and stopped in which order; outputs; metrics; where reading begins."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jetlet.errors import InvalidArgumentError
from jetlet.log import Log
from jetlet.tasks import Input, systems
from jetlet.tasks.state.container_storage import Checkpoint
from jetlet.tasks.systems.system import Polled, System, SystemConsumer, SystemProducer


class NotedSystem(System):
    """Notes when its consumers and producers are made and closed; has one message."""

    def __init__(self, log, *, fails=False):
        self.log = log
        self.fails = fails

    def partition_count(self, stream):
        return 1

    def consumer(self, starts):
        system = self

        class Consumer(SystemConsumer):
            def start(self, wake):
                if system.fails:
                    raise ConnectionError("no")
                system.log.append(("start", "consumer"))

            def poll(self, wanted, limit):
                return []

            def close(self):
                system.log.append(("close", "consumer"))

        return Consumer()

    def producer(self):
        log = self.log

        class Producer(SystemProducer):
            def send(self, stream, batch): ...

            def flush(self): ...

            def close(self):
                log.append(("close", "producer"))

        log.append(("start", "producer"))
        return Producer()


class NotedStores:
    def __init__(self, log):
        self.log = log

    def open(self, context):
        log = self.log
        log.append(("start", "store"))

        class Store:
            def flush(self): ...

            def committed(self): ...

            def close(self):
                log.append(("close", "store"))

        return Store()


def noted(log, **options):
    class Task:
        def init(self, context):
            log.append(("start", "task"))

        def process(self, envelope, collector, coordinator): ...

        def close(self):
            log.append(("close", "task"))

    return Task, {
        "log": log,
        "extra_systems": {"x": NotedSystem(log, **options)},
        "inputs": ["x.in"],
        "outputs": ["x.out"],
        "stores": {"s": NotedStores(log)},
    }


def test_start_is_offsets_producers_stores_tasks_consumers_and_stop_the_opposite(bench, log):
    task, options = noted(log)
    b = bench(task, **options)
    assert b.taken() == [("start", what) for what in ("producer", "store", "task", "consumer")]
    b.close()
    closed = ("consumer", "task", "store", "producer", "checkpoints")
    assert b.taken() == [("close", what) for what in closed]
    b.close()
    assert b.taken() == []


def test_a_start_that_fails_closes_what_was_opened(bench, log):
    task, options = noted(log, fails=True)
    with pytest.raises(ConnectionError):
        bench(task, **options)
    closed = ("consumer", "task", "store", "producer", "checkpoints")
    assert log[-5:] == [("close", what) for what in closed]


def test_a_task_that_fails_to_close_does_not_keep_the_rest_open(bench, log, caplog):
    class Task:
        def process(self, envelope, collector, coordinator): ...

        def close(self):
            raise ValueError("no")

    b = bench(Task, log=log, partitions=2)
    b.close()
    assert log == [("close", "checkpoints")]
    assert caplog.text.count("failed to close") == 2


# --- Outputs ------------------------------------------------------------------------------------


def test_what_is_sent_is_handed_over_in_the_same_turn_in_order(bench, log):
    def task(envelope, collector, coordinator):
        for i in range(3):
            collector.send("m.out", (envelope.message, i))

    b = bench(task, log=log)
    b.send("a", "b")
    b.run()
    assert b.memory.messages("out") == [(m, i) for m in "ab" for i in range(3)]


def test_an_output_that_was_not_declared_is_refused(bench, log):
    def task(envelope, collector, coordinator):
        collector.send("m.other", 1)

    b = bench(task, log=log)
    b.send(1)
    with pytest.raises(Exception) as caught:
        b.run()
    assert isinstance(caught.value.__cause__, InvalidArgumentError)
    assert "outputs=['m.other']" in str(caught.value.__cause__)


def test_messages_go_to_the_partition_of_their_key(bench, log):
    def task(envelope, collector, coordinator):
        collector.send("m.wide", envelope.message, key=envelope.message % 5)

    memory = systems.in_memory()
    memory.create("wide", partitions=4)
    b = bench(task, log=log, memory=memory, outputs=["m.wide"])
    b.send(*range(100))
    b.run()
    parts = [{m % 5 for m in memory.messages("wide", p)} for p in range(4)]
    assert sum(map(len, parts)) == 5
    assert sorted(memory.messages("wide")) == list(range(100))


def test_a_partition_can_be_named_and_is_checked(bench, log):
    def task(envelope, collector, coordinator):
        collector.send("m.wide", envelope.message, partition=envelope.message)

    memory = systems.in_memory()
    memory.create("wide", partitions=2)
    b = bench(task, log=log, memory=memory, outputs=["m.wide"])
    b.send(1)
    b.run()
    assert memory.messages("wide", 1) == [1]
    b.send(2)
    with pytest.raises(InvalidArgumentError, match="partitions from 0 to 1"):
        b.run()


# --- Where reading begins -----------------------------------------------------------------------


def test_without_a_checkpoint_reading_begins_where_the_input_says(bench, recorder, log):
    memory = systems.in_memory()
    memory.create("in")
    memory.send_all("in", ["old"])
    b = bench(recorder, log=log, memory=memory, inputs=[Input("m.in", start="latest")])
    b.send("new")
    b.run()
    assert log == [("process", "new")]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 1, 2, 3, 4]),
        ({0: 3}, [3, 4]),
        ({0: 0}, [0, 1, 2, 3, 4]),
        ({7: 3}, [0, 1, 2, 3, 4]),
        (1020, [2, 3, 4]),
        (datetime.fromtimestamp(1.021, UTC), [3, 4]),
        (0, [0, 1, 2, 3, 4]),
        (5000, []),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["memory", "log"])
def test_reading_begins_at_an_offset_or_a_time(
    bench, recorder, log, tmp_path, kind, start, expected
):
    if kind == "memory":
        system = systems.in_memory()
        system.create("old")
        for i in range(5):
            system.send("old", i, timestamp=1000 + 10 * i)
    else:
        system = systems.log(tmp_path)
        with Log(tmp_path / "old", partitions=1) as written:
            for i in range(5):
                written.append([i], timestamps=1000 + 10 * i)
    given = Input("old.old", start=start)
    b = bench(recorder, log=log, inputs=[given], extra_systems={"old": system})
    b.run()
    assert [what for _, what in log] == expected


def test_a_start_is_for_partitions_without_a_checkpoint(bench, recorder, log):
    memory = systems.in_memory()
    memory.create("in")
    memory.send_all("in", range(5))
    first = bench(recorder, log=log, memory=memory, inputs=[Input("m.in", start={0: 3})])
    first.run()
    first.close()
    second = bench(
        recorder,
        log=log,
        memory=memory,
        saved=first.checkpoints,
        inputs=[Input("m.in", start={0: 1})],
    )
    second.send(5)
    second.run()
    assert [what for name, what in log if name == "process"] == [3, 4, 5]


def test_one_input_can_be_reset_despite_its_checkpoint(bench, recorder, log):
    memory = systems.in_memory()
    memory.create("in")
    memory.create("other")
    memory.send_all("in", ["a", "b"])
    memory.send_all("other", ["x", "y"])
    options = {"log": log, "memory": memory, "inputs": ["m.in", Input("m.other", start={0: 1})]}
    first = bench(recorder, **options)
    first.run()
    first.close()
    first.app.reset("m.other")
    second = bench(recorder, saved=first.checkpoints, **options)
    second.send("c")
    second.run()
    done = sorted(what for name, what in log if name == "process")
    assert done == ["a", "b", "c", "y", "y"]
    with pytest.raises(InvalidArgumentError, match=r"write one of its inputs \(m.in, m.other\)"):
        second.app.reset("m.else")


def test_after_a_restart_each_task_gets_what_it_has_not_had_of_a_broadcast_partition(
    bench, recorder, log
):
    first = bench(
        recorder,
        log=log,
        partitions=2,
        inputs=["m.in", Input("m.out", broadcast=True)],
        outputs=(),
    )
    first.memory.send_all("out", range(10))
    shared = first.task().context.partitions[-1]
    manager = first.checkpoints
    manager.write("partition 0", Checkpoint({shared: 7}))
    manager.write("partition 1", Checkpoint({shared: 4}))
    log.clear()
    second = bench(
        recorder,
        log=log,
        partitions=2,
        memory=first.memory,
        saved=manager,
        inputs=["m.in", Input("m.out", broadcast=True)],
        outputs=(),
    )
    second.loop._max_batch = 1
    second.read()
    offsets = []
    while second.turn().made_progress:
        offsets.append(second.worker("partition 0").instance.offsets()[shared])
    assert [what for _, what in log] == [5, 6, 7, 8, 8, 9, 9]
    assert offsets[0] == 7
    assert offsets == sorted(offsets)


def test_a_bootstrap_input_is_read_to_its_end_first(bench, recorder, log):
    memory = systems.in_memory()
    memory.create("in")
    memory.create("table")
    memory.send_all("in", ["x", "y"])
    memory.send_all("table", range(5))
    b = bench(recorder, log=log, memory=memory, inputs=["m.in", Input("m.table", bootstrap=True)])
    memory.send_all("table", [5])
    b.run()
    seen = [what for _, what in log]
    assert seen[:5] == [0, 1, 2, 3, 4]
    assert sorted(map(str, seen[5:])) == ["5", "x", "y"]


def test_a_bootstrap_input_that_is_empty_or_read_before_holds_nothing_up(bench, recorder, log):
    memory = systems.in_memory()
    memory.create("table")
    b = bench(recorder, log=log, memory=memory, inputs=["m.in", Input("m.table", bootstrap=True)])
    b.send("x")
    b.run()
    assert log == [("process", "x")]


# --- Metrics ------------------------------------------------------------------------------------


def test_metrics_of_the_container_and_its_streams(bench, log):
    callbacks = []

    class Task:
        def init(self, context):
            self.count = context.count

        def process_async(self, envelope, collector, coordinator, callback):
            self.count("seen", 1)
            collector.send("m.out", envelope.message)
            callbacks.append(callback)

        def window(self, collector, coordinator): ...

    b = bench(Task, log=log, max_concurrency=2, window_interval=1.0, commit_interval=1.0)
    b.send(*range(5))
    b.run()
    callbacks[0].complete()
    callbacks[1].complete()
    b.advance(1.0)
    b.tasklet.record_call(1_000_000)
    rows = dict(b.tasklet.metrics_rows())
    assert rows["app"]["counters"] == {"seen": 4}
    counters = rows["app"]["container"]
    assert counters["process_calls"] == 2
    assert counters["process_ns"] == 2_000_000_000  # two of them were in flight for a second
    assert counters["window_calls"] == counters["commit_calls"] == 1
    assert counters["chosen_envelopes"] == 5
    assert counters["null_envelopes"] > 0
    assert counters["in_flight"] == 2
    assert counters["pending"] == 0
    assert counters["lag"] == {"m.in[0]": 3}
    assert counters["committed"] == {"m.in[0]": 1}
    assert counters["utilisation"] == pytest.approx(0.001)
    assert rows["app"]["received"] == rows["app"]["outputs"][0] == 4
    assert rows["m.in"]["emitted"] == rows["m.in"]["outputs"][0] == 5
    assert rows["m.out"]["received"] == 4


def test_gauges_and_timers_of_tasks(bench, log):
    class Task:
        def init(self, context):
            self.context = context

        def process(self, envelope, collector, coordinator):
            self.context.gauge("latest", envelope.message)
            with self.context.timer("lookup"):
                b.clock.advance(envelope.message)

    b = bench(Task, log=log, partitions=2, window_interval=None)
    b.send(1, 3, partition=0)
    b.send(2, partition=1)
    b.run()
    container = dict(b.tasklet.metrics_rows())["app"]["container"]
    assert container["gauges"] == {"partition 0": {"latest": 3}, "partition 1": {"latest": 2}}
    second = 1_000_000_000
    assert container["timers"] == {
        "lookup": {"count": 3, "ns": 6 * second, "longest_ns": 3 * second}
    }


def test_polled_has_no_end_by_default():
    assert Polled(None, []).is_end is False
