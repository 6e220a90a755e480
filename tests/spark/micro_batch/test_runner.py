"""Streams of Spark's in micro-batches: the same results as on the embedded engine, however cut."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter

import pytest

from jetlet import (
    EmbeddedEngine,
    JobConfig,
    JobStatus,
    KeyedProcess,
    Pipeline,
    agg,
    sinks,
    sources,
    windows,
)
from jetlet.core import Processor
from jetlet.errors import (
    InvalidArgumentError,
    JobCancelledError,
    JobFailedError,
    PlanningError,
    SnapshotError,
    UnsupportedFeatureError,
)
from jetlet.jobs.engine import dag_of
from jetlet.tasks import stores
from jetlet.testing import END, scripted_stream
from jetlet.ui.job_feed import commands

pytestmark = pytest.mark.spark

SCHEMA = "time long, key string, value long"
LAG = 40


def make_events(count=90, seed=5):
    """Events that come a little out of order, but none of them late."""
    chance = random.Random(seed)
    return [
        {
            "time": 1000 + 20 * n - chance.randrange(LAG),
            "key": f"k{chance.randrange(5)}",
            "value": n,
        }
        for n in range(count)
    ]


class Inbox:
    """A directory that a stream reads, file by file."""

    def __init__(self, directory, files_per_batch=1):
        self.directory = directory
        self._files_per_batch = files_per_batch
        self._count = 0
        directory.mkdir()

    def put(self, events):
        self._count += 1
        aside = self.directory / f".{self._count}"
        aside.write_text("".join(json.dumps(event) + "\n" for event in events))
        os.utime(aside, (self._count, self._count))  # Spark takes the oldest first
        aside.rename(self.directory / f"{self._count:05}.json")

    def put_in_files(self, events, *cuts):
        for begin, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
            self.put(events[begin:end])
        return self

    def source(self, available_now=True, **options):
        directory, limit = str(self.directory), self._files_per_batch

        def read(spark):
            reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", limit)
            return reader.json(directory)

        return sources.spark_stream(read, available_now=available_now, **options)


@pytest.fixture
def inbox(tmp_path):
    return Inbox(tmp_path / "in")


def with_times(stage):
    return stage.with_timestamps(lambda event: event["time"], LAG)


class Reminders(KeyedProcess):
    """A timer for each event, and one that moves on with them."""

    def create(self):
        return []

    def on_item(self, ctx, state, item):
        state.append(item["value"])
        ctx.set_timer(str(item["value"]), ctx.time + 100)

    def on_timer(self, ctx, state, timer):
        ctx.emit((ctx.key, timer.name, timer.time))
        state.remove(int(timer.name))

    def on_end(self, ctx, state):
        ctx.emit((ctx.key, "left", len(state)))


class AllKinds:
    """A pipeline with one of everything that keeps something between batches."""

    def __init__(self, source):
        self.pipeline = p = Pipeline("all-kinds")
        self.sinks = {}
        names = p.read_from(sources.items([(f"k{n}", f"name-{n}") for n in range(4)]))
        events = with_times(p.read_from(source))
        keyed = events.grouping_key(lambda event: event["key"])
        summed = agg.all_of(agg.counting(), agg.summing(lambda event: event["value"]))
        self.collect("tumbling", keyed.window(windows.tumbling(200)).aggregate(summed))
        self.collect("sliding", keyed.window(windows.sliding(300, 100)).aggregate(summed))
        self.collect("session", keyed.window(windows.session(60)).aggregate(summed))
        self.collect("limited", keyed.window(windows.session(60, max_length=90)).aggregate(summed))
        growing = windows.cumulative(400, 100, offset=50)
        self.collect("cumulative", keyed.window(growing).aggregate(summed))
        offset = windows.tumbling(200, offset=30)
        self.collect("offset", keyed.window(offset).aggregate(summed))
        days = windows.calendar_days("Asia/Kathmandu")
        self.collect("days", keyed.window(days).aggregate(summed))
        revising = windows.sliding(300, 100).allow_lateness(LAG)
        self.collect("revising", keyed.window(revising).aggregate(summed))
        self.collect("global", events.window(windows.tumbling(200)).aggregate(agg.counting()))
        self.collect("rolling", keyed.rolling_aggregate(agg.summing(lambda e: e["value"])))
        self.collect("stateful", keyed.map_stateful(list, number_of))
        self.collect("timers", keyed.process(Reminders))
        self.collect("first", keyed.filter_stateful(list, is_first))
        twice = (
            keyed.window(windows.tumbling(100))
            .aggregate(agg.counting())
            .window(windows.tumbling(400))
            .aggregate(agg.summing(lambda window: window.result))
        )
        self.collect("windows-of-windows", twice)
        retimed = (
            events.map(lambda e: {**e, "time": e["time"] * 2})
            .add_timestamps(lambda e: e["time"], 2 * LAG)
            .window(windows.tumbling(500))
            .aggregate(agg.counting())
        )
        self.collect("retimed", retimed)
        odd = events.filter(lambda e: e["value"] % 2 == 1)
        even = events.filter(lambda e: e["value"] % 2 == 0)
        merged = odd.merge(even).grouping_key(lambda e: e["key"])
        self.collect("merged", merged.window(windows.tumbling(200)).aggregate(summed))
        pairs = odd.grouping_key(lambda e: e["key"]).interval_join(
            even.grouping_key(lambda e: e["key"]), -100, 50, lambda a, b: (a["value"], b["value"])
        )
        self.collect("pairs", pairs)
        joined = events.hash_join(
            names, lambda e: e["key"], lambda n: n[0], to_output=lambda e, n: (e["value"], n)
        )
        self.collect("joined", joined)
        self.collect("taken", events.map(lambda e: "one of the first").take(40))

    def collect(self, name, stage):
        self.sinks[name] = sinks.collect(name=name)
        stage.write_to(self.sinks[name])

    @property
    def results(self):
        return {name: sorted(map(repr, sink.items)) for name, sink in self.sinks.items()}


def number_of(seen, key, event):
    seen.append(event["value"])
    return key, len(seen), event["value"]


def is_first(seen, key, event):
    seen.append(event["value"])
    return len(seen) == 1


@pytest.fixture(scope="module")
def expected():
    kinds = AllKinds(scripted_stream([*make_events(), END]))
    with EmbeddedEngine(workers=1) as embedded:
        embedded.submit(kinds.pipeline).join()
    return kinds.results


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_results_are_those_of_the_embedded_engine_although_the_stream_is_cut(
    engine, inbox, expected, place, tmp_path
):
    # One batch has a single event, and what the others have differs tenfold.
    kinds = AllKinds(inbox.put_in_files(make_events(), 7, 8, 31, 77).source())
    dag = dag_of(kinds.pipeline, 2)
    for vertex in dag:
        if vertex.traits.keeps_on_disk:
            vertex.state = place
    disk = tmp_path / "disk"
    config = JobConfig(state="memory", state_memory=1, state_dir=disk)
    engine.submit(dag, config).join()
    assert disk.exists() is (place == "disk")
    assert kinds.results == expected


def test_several_files_in_a_batch_are_read_side_by_side(engine, tmp_path):
    inbox = Inbox(tmp_path / "in", files_per_batch=3)
    events = make_events(60)
    p = Pipeline("side-by-side")
    counts = sinks.collect()
    stage = with_times(p.read_from(inbox.put_in_files(events, 10, 20, 30, 40, 50).source()))
    keyed = stage.grouping_key(lambda e: e["key"])
    keyed.window(windows.tumbling(100)).aggregate(agg.counting()).write_to(counts)
    job = engine.submit(p)
    job.join()
    found = {(window.start, window.key): window.result for window in counts.items}
    assert found == Counter((e["time"] // 100 * 100, e["key"]) for e in events)
    assert len(found) == len(counts.items)
    assert job.metrics()["spark-stream"].emitted == 60
    assert "late_events" not in job.metrics()["window-and-aggregate"].counters


def test_events_are_late_behind_what_the_batches_before_have_closed(engine, inbox):
    """Within a batch nothing is late, whatever the order."""
    inbox.put([event(1500), event(900), event(100)])  # closes windows up to 1000
    inbox.put([event(950), event(1100), event(2600)])
    inbox.put([event(1900), event(2700)])
    p = Pipeline("late")
    counts, late = sinks.collect(name="counts"), sinks.collect(name="late")
    stage = p.read_from(inbox.source()).with_timestamps(lambda e: e["time"])
    windowed = stage.window(windows.tumbling(1000))
    windowed.aggregate(agg.counting(), late=late).write_to(counts)
    revised = sinks.collect(name="revised")
    revising = stage.window(windows.tumbling(1000).allow_lateness(700))
    revising.aggregate(agg.counting(), name="revising").write_to(revised)
    engine.submit(p).join()
    assert [(window.start, window.result) for window in sorted(counts.items)] == [
        (0, 2),
        (1000, 2),
        (2000, 2),
    ]
    assert sorted(item["time"] for item in late.items) == [950, 1900]
    assert sorted((w.start, w.result, w.revision) for w in revised.items) == [
        (0, 2, 0),
        (0, 3, 1),
        (1000, 2, 0),
        (1000, 3, 1),
        (2000, 2, 0),
    ]


def batch_up(ctx, state, event):
    state.append(event["value"])
    ctx.set_timer("flush", ctx.now + 1, processing_time=True)


def flush(ctx, state, timer=None):
    if state:
        ctx.emit((ctx.key, tuple(sorted(state)), timer is not None))
        state.clear()


def test_processing_time_moves_with_the_batch(engine, inbox):
    """In the first batch it stands still, since there is none before."""
    inbox.put_in_files([event(0, "k", n) for n in range(30)], 10, 20)
    p = Pipeline("clock")
    found = sinks.collect()
    stage = p.read_from(inbox.source()).with_timestamps(lambda e: e["time"])
    keyed = stage.grouping_key(lambda e: e["key"])
    keyed.process(batch_up, create=list, on_timer=flush, on_end=flush).write_to(found)
    engine.submit(p).join()
    assert [numbers for _, numbers, _ in found.items] == [tuple(range(20)), tuple(range(20, 30))]
    assert all(is_due for _, _, is_due in found.items)


def event(time, key="k", value=0):
    return {"time": time, "key": key, "value": value}


def test_expired_state_is_dropped_when_the_watermark_says_so(engine, inbox):
    inbox.put([event(0), event(10)])
    inbox.put([event(500, "other")])
    inbox.put([event(600)])
    p = Pipeline("expiring")
    found = sinks.collect()
    stage = p.read_from(inbox.source()).with_timestamps(lambda e: e["time"])
    keyed = stage.grouping_key(lambda e: e["key"])
    keyed.map_stateful(list, number_of, ttl=100).write_to(found)
    engine.submit(p).join()
    assert sorted(found.items) == [("k", 1, 0), ("k", 1, 0), ("k", 2, 0), ("other", 1, 0)]


class Numbering(Processor):
    """Emits each item's key with its number among those of the key."""

    def init(self, outbox, context):
        super().init(outbox, context)
        self.counts = Counter()

    def process_item(self, ordinal, item):
        if not self.try_emit((item["key"], self.counts[item["key"]])):
            return False
        self.counts[item["key"]] += 1
        return True

    def save_to_snapshot(self):
        return self.outbox.offer_batch_to_snapshot(list(self.counts.items()))

    def restore_from_snapshot(self, inbox):
        self.counts.update(dict(inbox.take()))


class NumberingTask:
    def init(self, context):
        self.counts = context.store("counts")

    def process(self, envelope, collector, coordinator):
        key = envelope.message["key"]
        count = self.counts.get(key) or 0
        collector.send("out", (key, count))
        self.counts.put(key, count + 1)


@pytest.mark.parametrize(
    "number",
    [
        lambda stage: stage.custom_transform(Numbering),
        lambda stage: stage.process_with(NumberingTask, stores={"counts": stores.in_memory()}),
    ],
    ids=["processor", "task"],
)
def test_what_users_save_is_there_in_the_next_batch(engine, inbox, number):
    events = make_events(40)
    inbox.put_in_files(events, 10, 20, 30)
    p = Pipeline("numbering")
    found = sinks.collect()
    stage = p.read_from(inbox.source()).without_timestamps().rebalance(lambda e: e["key"])
    number(stage).write_to(found)
    engine.submit(p).join()
    totals = Counter(e["key"] for e in events)
    assert sorted(found.items) == [(k, n) for k in sorted(totals) for n in range(totals[k])]


def test_calls_of_coroutines_end_with_their_batch(engine, inbox):
    inbox.put_in_files(make_events(30), 10, 20)
    p = Pipeline("async")
    found, bad = sinks.collect(name="found"), sinks.collect(name="bad")
    stage = p.read_from(inbox.source(items="tuple")).without_timestamps()
    stage.map_async(doubled, max_concurrency=4, on_error=bad).write_to(found)
    engine.submit(p).join()
    assert sorted(found.items) == [2 * n for n in range(30) if n != 13]
    assert [letter.item[2] for letter in bad.items] == [13]


def test_what_fails_on_a_build_side_is_rejected_once(engine, inbox):
    inbox.put_in_files(make_events(10), 4, 7)
    p = Pipeline("build-side")
    found, bad = sinks.collect(name="found"), sinks.collect(name="bad")
    names = p.read_from(sources.items([("k0", "zero"), None, ("k1", "one")]))
    stage = p.read_from(inbox.source()).without_timestamps()
    joined = stage.inner_hash_join(
        names,
        lambda e: e["key"],
        lambda name: name[0],
        to_output=lambda e, name: (e["value"], name[1]),
        on_error=bad,
    )
    joined.write_to(found)
    engine.submit(p).join()
    known = {"k0": "zero", "k1": "one"}
    events = make_events(10)
    assert sorted(found.items) == [
        (e["value"], known[e["key"]]) for e in events if e["key"] in known
    ]
    assert [letter.item for letter in bad.items] == [None]


async def doubled(row):
    import asyncio

    await asyncio.sleep(0.001)
    if row[2] == 13:
        raise ValueError("no luck")
    return 2 * row[2]


def test_early_results_come_with_the_first_batch_behind_each_period(engine, inbox):
    inbox.put_in_files(make_events(30), 15)
    p = Pipeline("early")
    found = sinks.collect()
    window = windows.tumbling(100_000).early_results(1)
    with_times(p.read_from(inbox.source())).window(window).aggregate(agg.counting()).write_to(found)
    engine.submit(p).join()
    assert [(w.result, w.is_early) for w in found.items] == [(30, True), (30, False)]


def test_a_writer_gets_the_rows_of_each_batch_with_its_number(engine, inbox, tmp_path):
    inbox.put_in_files(make_events(20), 5)
    p = Pipeline("frames")
    batches = {}

    def write(frame, batch):
        batches[batch] = [row.value for row in frame.collect()]

    stage = p.read_from(inbox.source(columns=["value"])).without_timestamps()
    stage.write_to(sinks.spark(write, "value long"))
    engine.submit(p).join()
    assert batches == {0: list(range(5)), 1: list(range(5, 20))}


# --- The life of a job ----------------------------------------------------------------------


def wait_for(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def numbering(source, directory, name="numbering"):
    """A pipeline that numbers the events of each key in files, and the sink that has them too."""
    p = Pipeline(name)
    stage = p.read_from(source).without_timestamps()
    numbered = stage.grouping_key(lambda e: e["key"]).map_stateful(list, number_of)
    numbered.write_to(sinks.json_lines(directory, mode="append"))
    found = sinks.collect()
    numbered.write_to(found)
    return p, found


def written(directory):
    parts = sorted(directory.glob("part-*"))
    lines = [line for part in parts for line in part.read_text().splitlines()]
    return sorted(tuple(json.loads(line)) for line in lines)


def numbered(events):
    seen = {}
    for each in events:
        seen[each["key"]] = seen.get(each["key"], 0) + 1
        yield each["key"], seen[each["key"]], each["value"]


def test_a_job_is_suspended_resumed_and_goes_on_in_another(engine, inbox, tmp_path):
    events, out = make_events(40), tmp_path / "out"
    config = JobConfig(snapshot_dir=str(tmp_path / "state"), processing_guarantee="exactly-once")
    inbox.put(events[:10])
    p, found = numbering(inbox.source(available_now=False), out)
    job = engine.submit(p, config)
    wait_for(lambda: len(written(out)) == 10)
    assert commands(job) == ["suspend", "restart", "cancel"]  # no export, which is refused
    job.suspend()
    assert job.status is JobStatus.SUSPENDED
    inbox.put(events[10:20])
    job.resume()
    wait_for(lambda: len(written(out)) == 20)
    job.cancel()
    assert job.status is JobStatus.CANCELLED
    assert sorted(found.items) == sorted(numbered(events[:20]))
    metrics = job.metrics()
    assert metrics.snapshots["taken"] >= 2
    assert [row["id"] for row in metrics.taken][:1] == [0]
    assert all(
        row["ms"] == pytest.approx(row["run_ms"] + row["record_ms"] + row["commit_ms"])
        for row in metrics.taken
    )

    inbox.put(events[20:])
    p, found = numbering(inbox.source(), out)
    engine.submit(p, config).join()
    assert written(out) == sorted(numbered(events))
    assert len(found.items) == 20
    assert not list(out.glob(".*"))
    # It has completed: the next one begins anew.
    p, found = numbering(inbox.source(), tmp_path / "again")
    engine.submit(p, config).join()
    assert written(tmp_path / "again") == sorted(numbered(events))


def test_a_fresh_start_forgets_what_was_read(engine, inbox, tmp_path):
    config = {"snapshot_dir": str(tmp_path / "state"), "name": "fresh"}
    events = make_events(10)
    inbox.put(events)
    p, _ = numbering(inbox.source(available_now=False), tmp_path / "out")
    job = engine.submit(p, JobConfig(**config))
    wait_for(lambda: len(written(tmp_path / "out")) == 10)
    job.cancel()
    changed = Pipeline("changed")
    stage = changed.read_from(inbox.source()).without_timestamps()
    stage.grouping_key(lambda e: e["key"]).filter_stateful(list, is_first).write_to(sinks.noop())
    with pytest.raises(SnapshotError, match="start_fresh=True"):
        engine.submit(changed, JobConfig(**config)).join()
    p, _ = numbering(inbox.source(), tmp_path / "again")
    engine.submit(p, JobConfig(start_fresh=True, **config)).join()
    assert written(tmp_path / "again") == sorted(numbered(events))
    assert len(list((tmp_path / "state/jobs/fresh/batches").glob("life-*"))) <= 1


def test_a_failing_function_ends_the_job_with_its_error(engine, inbox, tmp_path, capfd):
    inbox.put_in_files(make_events(20), 10)
    p = Pipeline("failing")
    stage = p.read_from(inbox.source()).without_timestamps()
    stage.map(lambda e: 1 // (e["value"] - 15)).write_to(sinks.json_lines(tmp_path / "out"))
    job = engine.submit(p)
    with pytest.raises(JobFailedError, match=r"in vertex 'map' on item .*15.*ZeroDivision") as e:
        job.join()
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert "\n" not in str(e.value)
    assert "Traceback" not in capfd.readouterr().err
    assert not engine.session.streams.active


def test_a_job_is_cancelled_in_the_middle_of_a_batch(engine, inbox, tmp_path):
    entered = tmp_path / "entered"
    inbox.put(make_events(4))
    p = Pipeline("slow")
    stage = p.read_from(inbox.source(available_now=False)).without_timestamps()
    stage.map(lambda e: (entered.touch(), time.sleep(3600))).write_to(sinks.noop())
    job = engine.submit(p)
    wait_for(entered.exists)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.join()
    assert not engine.session.streams.active


# --- Refusals -------------------------------------------------------------------------------


def refused(engine, build, match, config=None, error=UnsupportedFeatureError):
    p = Pipeline("refused")
    build(p)
    with pytest.raises(error, match=match):
        engine.submit(p, config)


def test_what_cannot_run_in_micro_batches_is_refused(engine, inbox, tmp_path):
    def stream(p, **options):
        return p.read_from(inbox.source(**options)).without_timestamps()

    refused(
        engine,
        lambda p: stream(p).write_to(sinks.noop()),
        "leave out streaming='members'",
        JobConfig(streaming="members"),
    )
    refused(
        engine,
        lambda p: (
            p.read_from(scripted_stream([1, END])).without_timestamps().write_to(sinks.noop())
        ),
        "sources.spark_stream",
        JobConfig(streaming="micro-batch"),
    )
    refused(
        engine,
        lambda p: (
            stream(p)
            .merge(p.read_from(scripted_stream([1, END])).without_timestamps())
            .write_to(sinks.noop())
        ),
        "'scripted-stream' is none",
    )
    refused(
        engine,
        lambda p: stream(p).merge(stream(p, name="other")).write_to(sinks.noop()),
        "unionByName",
    )
    refused(
        engine,
        lambda p: stream(p).merge(p.read_from(sources.items([1]))).write_to(sinks.noop()),
        "hash_join",
    )
    refused(
        engine,
        lambda p: stream(p).write_to(sinks.noop()),
        "leave it out",
        JobConfig(initial_snapshot="x", snapshot_dir=str(tmp_path / "s")),
    )
    refused(
        engine,
        lambda p: (
            p.read_from(sources.spark_stream(lambda spark: spark.range(3)))
            .without_timestamps()
            .write_to(sinks.noop())
        ),
        "readStream rather than",
        error=InvalidArgumentError,
    )


def test_a_stream_of_sparks_is_refused_elsewhere(inbox):
    p = Pipeline("elsewhere")
    p.read_from(inbox.source()).without_timestamps().write_to(sinks.noop())
    with (
        EmbeddedEngine(workers=1) as embedded,
        pytest.raises(UnsupportedFeatureError, match=r"p\.run"),
    ):
        embedded.submit(p).join()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"items": "rows"}, "'dict' or 'tuple'"),
        ({"columns": "time"}, "list of names"),
        ({"available_now": True, "interval": 5}, "leave out interval"),
    ],
)
def test_bad_arguments_are_refused(options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        sources.spark_stream(lambda spark: None, **options)
    with pytest.raises(InvalidArgumentError, match="a function of the session"):
        sources.spark_stream("events")


@pytest.mark.parametrize(
    ("version", "refusal"),
    [
        ((3, 5), "over Spark Connect from Spark 4.0 on"),
        ((4, 0), "the server of Spark Connect reach"),
    ],
)
def test_what_spark_connect_does_not_have_is_refused(engine, inbox, monkeypatch, version, refusal):
    monkeypatch.setattr("jetlet.spark.micro_batch.job.context_of", lambda spark: None)
    monkeypatch.setattr("jetlet.spark.launch.versions.spark_version", lambda spark: version)
    p = Pipeline("connect")
    p.read_from(inbox.source()).without_timestamps().write_to(sinks.noop())
    with pytest.raises(PlanningError, match=refusal):
        engine.submit(p)


def test_state_that_executors_cannot_reach_is_refused(engine, inbox, monkeypatch):
    monkeypatch.setattr("jetlet.spark.micro_batch.job.is_one_process", lambda master: False)
    p, _ = numbering(inbox.source(), inbox.directory)
    with pytest.raises(InvalidArgumentError, match="snapshot_dir"):
        engine.submit(p)
