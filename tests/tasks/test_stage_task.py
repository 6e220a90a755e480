"""Tasks as a stage of a pipeline."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, windows
from jetlet.core import Inbox, ProcessorContext
from jetlet.errors import InvalidArgumentError, JobFailedError, SnapshotError
from jetlet.tasks import TaskConfig, TaskWrapper, stores
from jetlet.tasks.stage_task import TaskStageSupplier
from jetlet.testing import verify_processor
from jetlet.testing.outbox import CheckedOutbox

PROMPT = 60.0


class Doubling:
    def process(self, envelope, collector, coordinator):
        collector.send("anywhere", envelope.message)
        collector.send("anywhere", -envelope.message)


async def doubling(envelope, collector, coordinator):
    await asyncio.sleep(0)
    collector.send("anywhere", envelope.message)
    collector.send("anywhere", -envelope.message)


class DoublingLater:
    def process_async(self, envelope, collector, coordinator, callback):
        def work():
            collector.send("anywhere", envelope.message)
            collector.send("anywhere", -envelope.message)
            callback.complete()

        threading.Thread(target=work).start()


@pytest.mark.parametrize("task", [Doubling, doubling, DoublingLater])
@pytest.mark.parametrize("config", [TaskConfig(), TaskConfig(thread_pool_size=2)])
def test_a_task_keeps_the_contract_of_a_processor(task, config):
    items = list(range(1, 20))
    verify_processor(
        TaskStageSupplier("double", task, None, config),
        input=items,
        expect_output=[x for item in items for x in (item, -item)],
        may_wait=task is not Doubling or config.thread_pool_size > 0,
    )


class CountingItems:
    """Sends how often each item has come, and at the end all that is in the store."""

    def init(self, context):
        self.store = context.store("counts")

    def process(self, envelope, collector, coordinator):
        self.store.put(envelope.message, self.store.get(envelope.message, 0) + 1)
        collector.send("out", (envelope.offset, envelope.message, self.store.get(envelope.message)))

    def end_of_stream(self, collector, coordinator):
        collector.send("out", sorted(self.store.all()))


def test_stores_are_saved_and_restored_with_the_snapshot():
    expected = []
    seen = Counter()
    for offset, item in enumerate("abcabbc"):
        seen[item] += 1
        expected.append((offset, item, seen[item]))
    verify_processor(
        TaskStageSupplier(
            "count", CountingItems, {"counts": stores.in_memory(key=str, value=int)}, None
        ),
        input="abcabbc",
        expect_output=[*expected, sorted(seen.items())],
    )


def started_task(directory, index=0, parallelism=1):
    store = stores.sqlite(directory, key=str, value=int)
    processor = TaskStageSupplier("count", CountingItems, {"counts": store}, None).get()
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, ProcessorContext(local_index=index, local_parallelism=parallelism))
    return processor, outbox


def process(processor, outbox, items):
    outbox.begin_call()
    inbox = Inbox(list(items))
    while inbox:
        processor.process(0, inbox)
    while not processor._is_idle():
        pass
    outbox.end_call()
    return outbox.outputs[0]


def saved(processor, outbox):
    outbox.begin_snapshot()
    done = False
    while not done:
        outbox.begin_call()
        done = processor.save_to_snapshot()
        outbox.end_call()
    return outbox.end_snapshot()


def restored_task(entries, *args):
    processor, outbox = started_task(*args)
    processor.restore_from_snapshot(Inbox(entries))
    assert processor.finish_snapshot_restore()
    return processor, outbox


def test_a_store_on_disk_goes_back_to_the_snapshot(tmp_path):
    first, outbox = started_task(tmp_path)
    process(first, outbox, "aab")
    entries = saved(first, outbox)
    process(first, outbox, "abc")
    saved(first, outbox)  # commits, but the job goes on from the one before
    first.close()

    second, outbox = restored_task(entries, tmp_path)
    assert process(second, outbox, "ac")[-2:] == [(3, "a", 3), (4, "c", 1)]
    second.close()


def test_a_store_of_a_task_that_is_no_more_is_not_dropped_silently(tmp_path):
    task, outbox = started_task(tmp_path, 1, 2)
    process(task, outbox, "ab")
    entries = saved(task, outbox)
    task.close()

    more, outbox = restored_task(entries, tmp_path, 0, 3)
    assert process(more, outbox, "a") == [(0, "a", 1)]
    more.close()
    fewer, _ = started_task(tmp_path)
    with pytest.raises(SnapshotError, match="had more tasks"):
        fewer.restore_from_snapshot(Inbox(entries))
    fewer.close()


def run(build, items=range(50)):
    p = Pipeline("tasks")
    out = sinks.collect()
    build(p.read_from(sources.items(items))).write_to(out)
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        job.join(PROMPT)
    return out.items, job


def test_items_are_messages_and_what_is_sent_goes_on():
    items, _ = run(lambda stage: stage.process_with(Doubling, local_parallelism=1))
    assert items == [x for i in range(50) for x in (i, -i)]


def test_with_concurrency_all_results_arrive():
    items, _ = run(lambda s: s.process_with(doubling, config=TaskConfig(max_concurrency=16)))
    assert sorted(items) == sorted([*range(50), *(-i for i in range(50))])


def test_hooks_stores_and_counters_work():
    class Counting:
        def init(self, context):
            self.store = context.store("counts")
            self.count = context.count

        def process(self, envelope, collector, coordinator):
            self.count("seen", 1)
            self.store.put(envelope.message, (self.store.get(envelope.message) or 0) + 1)

        def end_of_stream(self, collector, coordinator):
            for entry in self.store.all():
                collector.send("out", entry)

    items, job = run(
        lambda stage: stage.process_with(
            Counting,
            stores={"counts": stores.in_memory(key=str, value=int)},
            name="count",
            local_parallelism=1,
        ),
        items=list("abcab"),
    )
    assert sorted(items) == [("a", 2), ("b", 2), ("c", 1)]
    assert job.metrics()["count"].counters["seen"] == 5


@pytest.mark.parametrize("task", [Doubling, doubling, DoublingLater])
def test_timestamps_are_in_the_envelope_and_pass_to_what_is_sent(task):
    items, _ = run(
        lambda stage: (
            stage.add_timestamps(lambda item: item, 0)
            .process_with(task)
            .window(windows.tumbling(10))
            .aggregate(agg.counting())
        )
    )
    assert [(w.start, w.result) for w in items] == [(i, 20) for i in range(0, 50, 10)]


def test_a_message_can_be_given_another_timestamp():
    class Later:
        def process(self, envelope, collector, coordinator):
            assert envelope.timestamp == envelope.message
            collector.send("out", envelope.message, timestamp=envelope.timestamp + 100)

        def end_of_stream(self, collector, coordinator):
            collector.send("out", "end")

    items, _ = run(
        lambda stage: (
            stage.add_timestamps(lambda item: item, 0)
            .process_with(Later, local_parallelism=1)
            .window(windows.tumbling(100))
            .aggregate(agg.to_list())
        )
    )
    assert {w.start: w.result for w in items} == {0: ["end"], 100: list(range(50))}


def test_a_task_that_fails_names_the_stage_and_the_item():
    class Failing(TaskWrapper):
        def process(self, envelope, collector, coordinator):
            raise ValueError("no")

    with pytest.raises(JobFailedError, match=r"'risky'.*item 0: ValueError: no"):
        run(lambda stage: stage.process_with(lambda: Failing(Doubling()), name="risky"))


def test_what_is_not_a_task_is_refused_when_the_pipeline_is_built():
    stage = Pipeline("p").read_from(sources.items([1]))
    with pytest.raises(InvalidArgumentError, match="is not a task"):
        stage.process_with(42)
