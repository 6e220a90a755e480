"""Stages with timers, on every engine.

On bounded input all timers in event time are due at the end; on a stream when the watermark comes
to them. Here it makes no difference to what comes out.
"""

from __future__ import annotations

from collections import Counter

from jetlet import KeyedProcess, Pipeline, agg, sinks, sources, windows
from jetlet.testing import END, Timed, pause, scripted_stream

EVENTS = [(n * 13 % 2000, (f"k{n % 7}", n)) for n in range(600)]
STEP = 50


def key_of(item):
    return item[0]


class Escalation(KeyedProcess[dict, tuple, tuple]):
    """A timer for each item; the first of a key sets another one, and the last word has the sum."""

    def __init__(self, delay):
        self.delay = delay

    def create(self):
        return {"items": 0, "due": 0}

    def on_item(self, ctx, state, item):
        state["items"] += 1
        ctx.set_timer(f"item {item[1]}", ctx.time + self.delay)
        ctx.set_timer("cancelled", ctx.time)
        ctx.cancel_timer("cancelled")
        if item[1] % 5 == 0:
            ctx.emit(("item", ctx.key, item[1]))

    def on_timer(self, ctx, state, timer):
        state["due"] += 1
        ctx.emit((timer.name, ctx.key, timer.time))

    def on_end(self, ctx, state):
        ctx.emit(("end", ctx.key, state["items"], state["due"]))


def expected():
    counts = Counter(name for _, (name, _) in EVENTS)
    return Counter(
        [
            *(("item", name, n) for _, (name, n) in EVENTS if n % 5 == 0),
            *((f"item {n}", name, time + 70) for time, (name, n) in EVENTS),
            *(("end", name, count, count) for name, count in counts.items()),
        ]
    )


def due_in_windows():
    return Counter((time + 70) // 100 * 100 for time, _ in EVENTS)


def build(stage, out, **options):
    timed = stage.grouping_key(key_of).process(Escalation(70), **options)
    timed.write_to(out["all"])
    due = timed.filter(lambda each: each[0].startswith("item "))
    due.window(windows.tumbling(100)).aggregate(agg.counting()).write_to(out["windows"])


def collectors():
    return {name: sinks.collect(name=name) for name in ("all", "windows")}


def check(out):
    assert Counter(out["all"].items) == expected()
    assert {w.start: w.result for w in out["windows"].items} == due_in_windows()


def test_timers_of_bounded_input_are_due_at_its_end(engine):
    p, out = Pipeline("bounded"), collectors()
    events = p.read_from(sources.items(EVENTS)).add_timestamps(lambda event: event[0])
    build(events.map(lambda event: event[1]), out, local_parallelism=2)
    engine.run(p)
    check(out)


def test_timers_of_a_stream_are_due_when_the_watermark_comes_to_them(streaming_engine):
    p, out = Pipeline("stream"), collectors()
    scripts = [[*(Timed(*e) for e in sorted(EVENTS)[part::3]), END] for part in range(3)]
    build(p.read_from(scripted_stream(*scripts)).with_native_timestamps(100), out)
    job = streaming_engine.run(p)
    check(out)
    assert job.metrics()["process"].counters.get("late_events", 0) == 0


def count(ctx, state, item):
    state.append(item)
    if len(state) == 4:
        ctx.emit((ctx.key, sum(state)))
        ctx.drop_state()
    else:
        ctx.set_timer("never", ctx.now + 3_600_000, processing_time=True)


def test_a_process_of_functions_without_timestamps(engine):
    p, out, failed = Pipeline("functions"), sinks.collect(), sinks.collect(name="failed")
    numbers = p.read_from(sources.items(range(-1, 602)))
    numbers.grouping_key(lambda n: n % 6).process(
        lambda ctx, state, n: count(ctx, state, n) if n >= 0 else 1 / 0,
        create=list,
        on_end=lambda ctx, state: ctx.emit((ctx.key, "left", len(state))),
        on_error=failed,
    ).write_to(out)

    engine.run(p)

    batches = [each for each in out.items if len(each) == 2]
    left = [each for each in out.items if len(each) == 3]
    assert Counter(name for name, _ in batches) == dict.fromkeys(range(6), 25)
    assert sorted(left) == [(0, "left", 1), (1, "left", 1)]
    total = sum(range(602)) - sum(batch for _, batch in batches)
    assert 0 <= total <= 2 * 601
    assert [(each.item, each.error_type) for each in failed.items] == [(-1, "ZeroDivisionError")]


def test_so_many_items_of_a_key_at_a_time(engine):
    p, out, timed = Pipeline("batches"), sinks.collect(), sinks.collect(name="timed")
    numbers = p.read_from(sources.items(range(100)))
    numbers.grouping_key(lambda n: n % 3).batch_by_key(10, "1h").write_to(out)
    events = numbers.add_timestamps(lambda n: n * 10).grouping_key(lambda n: n % 3)
    counts = events.batch_by_key(10, local_parallelism=2).window(windows.tumbling(1000))
    counts.aggregate(agg.counting()).write_to(timed)

    engine.run(p)

    sizes = Counter((key, len(batch)) for key, batch in out.items)
    assert sizes == {(0, 10): 3, (1, 10): 3, (2, 10): 3, (0, 4): 1, (1, 3): 1, (2, 3): 1}
    for key in range(3):
        found = [n for name, batch in out.items if name == key for n in batch]
        assert sorted(found) == list(range(key, 100, 3))
    assert sum(window.result for window in timed.items) == 12


def test_a_batch_of_a_stream_does_not_wait_for_ever(streaming_engine):
    p, out = Pipeline("waiting"), sinks.collect()
    script = [("a", 1), ("b", 2), ("a", 3), pause(100), ("a", 4), ("b", 5), ("b", 6), END]
    stream = p.read_from(scripted_stream(script)).without_timestamps()
    stream.grouping_key(key_of).batch_by_key(3, max_wait=1).write_to(out)
    streaming_engine.run(p)
    # On a busy machine it may take the timer so long that more has come.
    found = sorted((n, key) for key, batch in out.items for _, n in batch)
    assert found == [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b"), (6, "b")]
    assert all(len(batch) <= 3 for _, batch in out.items)
