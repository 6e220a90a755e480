"""What happens to items on which user code fails, on every engine and in every kind of stage."""

from __future__ import annotations

import math
import threading
import traceback
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from jetlet import (
    DeadLetter,
    EmbeddedEngine,
    JobStatus,
    Pipeline,
    agg,
    service,
    sinks,
    sources,
    whole_item,
    windows,
)
from jetlet.errors import JobFailedError, UnpicklableFunctionError, UnstableKeyError

NUMBERS = range(60)
BAD = [x for x in NUMBERS if x % 20 == 7]
GOOD = [x for x in NUMBERS if x % 20 != 7]


def bag(items):
    return sorted(map(repr, items))


def check(x):
    """Fails on the bad ones."""
    if x % 20 == 7:
        raise ValueError(f"bad {x}")
    return x


def check_lazily(x):
    yield x
    yield check(x)


async def check_async(x):
    return check(x)


async def check_with(check, x):
    return check(x)


async def check_async_flat(x):
    yield check(x)


def check_all_with(check, items):
    return [check(x) for x in items]


async def check_all_async(items):
    return [check(x) for x in items]


def check_all(items):
    return [check(x) for x in items]


class Ambiguous:
    """What a filter may be given instead of a truth value."""

    def __init__(self, x):
        self.x = x

    def __bool__(self):
        return bool(check(self.x)) or True


MAKER = service(lambda context: check)

COUNTED_LIST = agg.all_of(agg.counting(), agg.to_list(check))


def counted(result):
    count, items = result
    assert count == len(items)
    return items


STAGES = {
    "map": lambda s, e: s.map(check, on_error=e),
    "filter": lambda s, e: s.filter(lambda x: check(x) >= 0, on_error=e),
    "filter-truth": lambda s, e: s.filter(Ambiguous, on_error=e),
    "flat-map": lambda s, e: s.flat_map(lambda x: [check(x)], on_error=e),
    "flat-map-lazy": lambda s, e: s.flat_map(check_lazily, on_error=e).filter(lambda x: True),
    "first": lambda s, e: s.map(check, on_error=e).filter(lambda x: x >= 0).map(abs),
    "middle": lambda s, e: s.map(abs).map(check, on_error=e).flat_map(lambda x: [x]),
    "last": lambda s, e: s.flat_map(lambda x: [x]).filter(lambda x: x >= 0).map(check, on_error=e),
    "service-map": lambda s, e: s.map_using_service(MAKER, lambda f, x: f(x), on_error=e),
    "service-filter": lambda s, e: s.filter_using_service(
        MAKER, lambda f, x: f(x) >= 0, on_error=e
    ),
    "service-flat-map": lambda s, e: s.flat_map_using_service(
        MAKER, lambda f, x: [f(x)], on_error=e
    ),
    "async": lambda s, e: s.map_async(check_async, on_error=e),
    "async-unordered": lambda s, e: s.map_async(check_async, ordered=False, on_error=e),
    "async-flat": lambda s, e: s.flat_map_async(check_async_flat, on_error=e),
    "async-retried": lambda s, e: s.map_async(check_async, retries=1, backoff=0.001, on_error=e),
    "async-service": lambda s, e: s.map_async(check_with, service=MAKER, on_error=e),
    "blocking": lambda s, e: s.map(check, blocking=True, threads=4, on_error=e),
    "batched": lambda s, e: s.map_batched(check_all, max_batch=1, on_error=e),
    "batched-service": lambda s, e: s.map_batched(
        check_all_with, max_batch=1, service=MAKER, on_error=e
    ),
    "batched-async": lambda s, e: s.map_batched(check_all_async, max_batch=1, on_error=e),
    "stateful": lambda s, e: s.map_stateful(list, lambda state, x: check(x), on_error=e),
    "stateful-filter": lambda s, e: s.filter_stateful(
        list, lambda state, x: check(x) >= 0, on_error=e
    ),
    "stateful-keyed": lambda s, e: s.grouping_key(lambda x: x % 5).flat_map_stateful(
        list, lambda state, key, x: [check(x)], on_error=e
    ),
    "stateful-key-fn": lambda s, e: s.grouping_key(check).map_stateful(
        list, lambda state, key, x: x, on_error=e
    ),
    "stateful-unstable-key": lambda s, e: s.grouping_key(
        lambda x: [x] if x in BAD else x
    ).map_stateful(list, lambda state, key, x: x, on_error=e),
    "rolling": lambda s, e: s.rolling_aggregate(agg.mapping(check, agg.counting()), on_error=e).map(
        lambda count: GOOD[count - 1]
    ),
    "rolling-key-fn": lambda s, e: (
        s.grouping_key(check)
        .rolling_aggregate(agg.counting(), on_error=e)
        .map(lambda entry: entry[0])
    ),
    # An item that fails leaves nothing behind, not even in the count.
    "aggregate": lambda s, e: s.aggregate(COUNTED_LIST, on_error=e).flat_map(counted),
    "aggregate-in-one-stage": lambda s, e: s.aggregate(
        agg.of(create=list, accumulate=lambda acc, x: [*acc, check(x)]), on_error=e
    ).flat_map(list),
    "aggregate-keyed": lambda s, e: (
        s.grouping_key(lambda x: x % 5)
        .aggregate(COUNTED_LIST, on_error=e)
        .flat_map(lambda entry: counted(entry[1]))
    ),
    "aggregate-key-fn": lambda s, e: (
        s.grouping_key(check).aggregate(agg.to_list(), on_error=e).flat_map(lambda entry: entry[1])
    ),
    "aggregate-two": lambda s, e: s.aggregate2(
        COUNTED_LIST, s.filter(lambda x: x < 0), agg.counting(), on_error=e
    ).flat_map(lambda results: counted(results[0])),
    "window": lambda s, e: (
        s.add_timestamps(abs)
        .window(windows.sliding(20, 20))
        .aggregate(COUNTED_LIST, on_error=e)
        .flat_map(lambda window: counted(window.result))
    ),
    "session": lambda s, e: (
        s.add_timestamps(abs)
        .grouping_key(lambda x: x % 5)
        .window(windows.session(7))
        .aggregate(COUNTED_LIST, on_error=e)
        .flat_map(lambda window: counted(window.result))
    ),
    "process": lambda s, e: s.grouping_key(lambda x: x % 5).process(
        lambda ctx, state, x: ctx.emit(check(x)), on_error=e
    ),
    "distinct": lambda s, e: s.grouping_key(check).distinct(on_error=e),
    "sort": lambda s, e: s.sort(check, on_error=e),
    "join-probe": lambda s, e: s.hash_join(s, check, lambda y: y, on_error=e).map(
        lambda pair: pair[0]
    ),
    "join-output": lambda s, e: s.hash_join(
        s, lambda x: x, lambda y: y, to_output=lambda x, y: check(x), on_error=e
    ),
    "join-build": lambda s, e: s.inner_hash_join(s, lambda x: x, check, on_error=e).map(
        lambda pair: pair[0]
    ),
}
TWICE = {"flat-map-lazy"}
"""Emit every good item twice."""
UNSTABLE = {"stateful-unstable-key"}


def make_pipeline(kinds, on_error):
    p = Pipeline("bad-records")
    numbers = p.read_from(sources.items(NUMBERS))
    out = {kind: sinks.collect(name=f"{kind} results") for kind in kinds}
    for kind, sink in out.items():
        STAGES[kind](numbers, on_error(kind)).write_to(sink)
    return p, out


def results(kind):
    # What was emitted before the error stands.
    return bag(GOOD * 2 + BAD if kind in TWICE else GOOD)


@pytest.mark.parametrize("kind", ["csv", "csv-lines", "json-lines"])
def test_bad_records_of_a_source_are_skipped_or_sent_to_a_sink(engine, tmp_path, kind):
    csv = kind.startswith("csv")
    for name in ("a", "b"):
        rows = [f"{x}" if x % 20 != 7 else '"bad"x' for x in NUMBERS]
        (tmp_path / name).write_text("\n".join(["n"] * csv + rows) + "\n")
    read = {
        "csv": lambda e: sources.csv(tmp_path, types={"n": int}, on_error=e),
        "csv-lines": lambda e: sources.csv(
            tmp_path, types={"n": int}, on_error=e, multiline=False, split_size=40
        ),
        "json-lines": lambda e: sources.json_lines(tmp_path, on_error=e, split_size=40),
    }[kind]
    letters, out, skipping = (sinks.collect(name=name) for name in ("letters", "out", "skipping"))
    p = Pipeline("bad-input")
    p.read_from(read(letters), name="sent").write_to(out)
    p.read_from(read("skip"), name="skipped").write_to(skipping)

    job = engine.run(p)

    items = [{"n": x} if csv else x for x in GOOD * 2]
    assert bag(out.items) == bag(skipping.items) == bag(items)
    places = [(str(tmp_path / name), x + 1 + csv) for name in ("a", "b") for x in BAD]
    assert bag((each.item.origin, each.item.line) for each in letters.items) == bag(places)
    assert {each.item.raw.strip() for each in letters.items} == {'"bad"x'}
    assert {each.stage for each in letters.items} == {"sent"}
    metrics = job.metrics()
    assert metrics["sent"].counters["dead_letters"] == len(places)
    assert metrics["skipped"].counters["skipped"] == len(places)


def test_skipped_items_are_counted_and_all_others_pass(engine):
    p, out = make_pipeline(STAGES, lambda kind: "skip")

    job = engine.run(p)

    assert {kind: bag(sink.items) for kind, sink in out.items()} == {
        kind: results(kind) for kind in STAGES
    }
    skipped = sum(vertex.counters.get("skipped", 0) for vertex in job.metrics().values())
    assert skipped == len(BAD) * len(STAGES)


def test_dead_letters_carry_item_stage_and_error(engine):
    letters = {kind: sinks.collect(name=f"{kind} letters") for kind in STAGES}
    p, out = make_pipeline(STAGES, lambda kind: letters[kind])

    job = engine.run(p)

    assert {kind: bag(sink.items) for kind, sink in out.items()} == {
        kind: results(kind) for kind in STAGES
    }
    for kind, sink in letters.items():
        assert sorted(letter.item for letter in sink.items) == BAD, kind
        assert all(isinstance(letter, DeadLetter) for letter in sink.items)
        if kind not in UNSTABLE:
            assert {(letter.error_type, letter.error) for letter in sink.items} == {
                ("ValueError", f"bad {x}") for x in BAD
            }, kind
    assert {letter.error_type for letter in letters["stateful-unstable-key"].items} == {
        "UnstableKeyError"
    }
    # The stage is named as the user knows it, not as the vertex that it became a part of.
    assert {letter.stage for letter in letters["stateful-key-fn"].items} == {"map-stateful-2"}
    assert {letter.stage for letter in letters["sort"].items} == {"sort"}
    counted = sum(vertex.counters.get("dead_letters", 0) for vertex in job.metrics().values())
    assert counted == len(BAD) * len(STAGES)


def test_several_stages_share_a_dead_letter_sink_that_gets_ordinary_items_too(engine):
    p = Pipeline("shared-letters")
    letters, out = sinks.collect(name="letters"), sinks.collect()
    numbers = p.read_from(sources.items(NUMBERS))
    (
        numbers.map(check, on_error=letters, name="one")
        .map(lambda x: check(x + 1), on_error=letters, name="two")
        .rebalance()
        .map(lambda x: check(x - 2), on_error=letters, name="three")
        .write_to(out)
    )
    numbers.filter(lambda x: x < 3).write_to(letters)

    engine.run(p)

    stages = [x if isinstance(x, int) else (x.stage, x.item) for x in letters.items]
    assert bag(stages) == bag(
        [0, 1, 2]
        + [("one", x) for x in (7, 27, 47)]
        + [("two", x) for x in (6, 26, 46)]
        + [("three", x) for x in (9, 29, 49)]
    )
    assert bag(out.items) == bag(x - 1 for x in NUMBERS if x % 20 not in (6, 7, 8))


def test_a_failed_batch_is_rejected_item_by_item(engine):
    p = Pipeline("bad-batch")
    letters, out = sinks.collect(name="letters"), sinks.collect()
    p.read_from(sources.items(range(10))).map_batched(
        lambda items: [1 // (len(items) - 10)], 10, on_error=letters
    ).write_to(out)

    engine.run(p)

    if letters.items:  # one batch of ten; engines may make smaller ones
        assert sorted(letter.item for letter in letters.items) == list(range(10))
    assert len(letters.items) in (0, 10)


# --- Failing --------------------------------------------------------------------------------


@pytest.mark.elsewhere("map", "last", "async", "stateful-key-fn")
@pytest.mark.parametrize("kind", STAGES)
def test_failure_names_vertex_stage_item_and_cause(engine, kind):
    p, _ = make_pipeline([kind], lambda kind: "fail")

    with pytest.raises(JobFailedError) as caught:
        engine.run(p)

    error = caught.value
    first = str(error).splitlines()[0]
    assert first.startswith("job 'bad-records' failed in vertex ")
    assert error.vertex is not None and repr(error.vertex) in first
    assert error.item in {str(x) for x in BAD}
    assert f"on item {error.item}: " in first
    expected = UnstableKeyError if kind in UNSTABLE else ValueError
    assert isinstance(error.__cause__, expected)
    assert f"{expected.__name__}: " in first


class Refused(Exception):
    """Cannot be pickled as it is: its class asks for other arguments than it keeps."""

    def __init__(self, code, reason):
        super().__init__(f"{reason} ({code})")
        self.code = code


class Unreadable:
    """Can be pickled, and fails when it is to be made again."""

    def __reduce__(self):
        return refuse, (27,)


def refuse(x):
    if x == 27:
        raise Refused(404, "not this one")
    return x


FAILING = {
    "map": lambda s: s.map(refuse),
    "behind": lambda s: s.rebalance().map(refuse, name="check"),
    "key": lambda s: s.grouping_key(refuse).aggregate(agg.counting()),
    "rebalance": lambda s: s.rebalance(refuse).map(abs, name="behind"),
    "stateful": lambda s: s.grouping_key(refuse).map_stateful(list, lambda state, k, x: x),
    "unstable": lambda s: s.rebalance(lambda x: [x] if x == 27 else x).map(abs, name="behind"),
}


def failure_of(submit, kind):
    """Everything that is said of it; ``None`` if there is none."""
    p = Pipeline("same")
    FAILING[kind](p.read_from(sources.items(NUMBERS))).write_to(sinks.collect())
    try:
        submit(p)
    except JobFailedError as error:
        cause, first = error.__cause__, str(error).splitlines()[0]
        return first, error.vertex, error.item, type(cause), str(cause), vars(cause).get("code")
    return None


@pytest.mark.parametrize("kind", FAILING)
def test_a_failure_is_the_same_wherever_it_happens(engine, kind):
    """Only whether items move between processors makes a difference, here as there."""
    expected = []
    for workers in (1, 2):
        with EmbeddedEngine(workers=workers) as here:
            expected.append(failure_of(lambda p: here.submit(p).join(60), kind))

    found = failure_of(engine.run, kind)

    assert found in expected
    assert found is not None or engine.name == "embedded-1"


def test_an_item_that_cannot_be_read_is_that_of_the_stage_that_reads_it(engine):
    if not engine.name.startswith("spark"):
        pytest.skip("items are not written down")
    p = Pipeline("unreadable")
    made = p.read_from(sources.items([1])).map(lambda x: Unreadable(), name="make")
    made.rebalance().map(id, name="read").write_to(sinks.noop())

    with pytest.raises(JobFailedError, match="in vertex 'read'") as caught:
        engine.run(p)

    assert isinstance(caught.value.__cause__, Refused)


def test_fused_failure_names_the_stage_among_several(engine):
    p = Pipeline("fused")
    p.read_from(sources.items([3, 27])).map(abs, name="absolute").map(check, name="check").filter(
        bool, name="some"
    ).write_to(sinks.noop())

    with pytest.raises(JobFailedError) as caught:
        engine.run(p)

    assert str(caught.value) == (
        "job 'fused' failed in vertex 'fused(absolute, check, some)' (stage 'check') on item 27: "
        "ValueError: bad 27"
    )
    assert caught.value.vertex == "fused(absolute, check, some)"


class MuteError(Exception):
    """Cannot say what it is about, nor what it is."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def mute(x):
    raise MuteError


@pytest.mark.parametrize("on_error", ["fail", "letters"])
def test_an_error_without_a_text_is_told_all_the_same(engine, on_error):
    p, letters = Pipeline("mute"), sinks.collect(name="letters")
    p.read_from(sources.items([1])).map(
        mute, on_error=letters if on_error == "letters" else "fail"
    ).write_to(sinks.noop())

    if on_error == "letters":
        engine.run(p)
        assert [(x.item, x.error_type) for x in letters.items] == [(1, "MuteError")]
        return
    with pytest.raises(JobFailedError, match="on item 1: MuteError: <no text: RuntimeError>"):
        engine.run(p)


def test_long_items_are_shortened(engine):
    p = Pipeline("long")
    p.read_from(sources.items(["x" * 5000])).map(int).write_to(sinks.noop())

    with pytest.raises(JobFailedError) as caught:
        engine.run(p)

    assert len(caught.value.item) <= 120 and caught.value.item.startswith("'xxx")
    assert f"on item {caught.value.item}" in str(caught.value)


def test_aggregation_failures_name_the_item(engine):
    words = ["a", "b", None, "c"]
    stages = {
        "global": lambda s: s.aggregate(agg.summing(len)),
        "keyed": lambda s: s.grouping_key(lambda w: 0).aggregate(agg.summing(len)),
        "key-fn": lambda s: s.grouping_key(len).aggregate(agg.counting()),
        "one-stage": lambda s: s.grouping_key(lambda w: 0).aggregate(
            agg.of(create=int, accumulate=lambda acc, w: acc + len(w))
        ),
        "co-aggregated": lambda s: s.aggregate2(agg.counting(), s, agg.summing(len)),
    }
    for kind, stage in stages.items():
        if not engine.runs_here and kind != "keyed":
            continue
        p = Pipeline(kind)
        stage(p.read_from(sources.items(words))).write_to(sinks.collect())

        with pytest.raises(JobFailedError) as caught:
            engine.run(p)

        assert caught.value.item == "None", kind
        assert isinstance(caught.value.__cause__, TypeError)


def test_traceback_of_the_cause_ends_in_the_users_function(engine):
    p = Pipeline("traceback")
    p.read_from(sources.items([7])).map(abs).map(check).write_to(sinks.noop())

    with pytest.raises(JobFailedError) as caught:
        engine.run(p)

    if engine.runs_here:  # a remote traceback is in the log only
        frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
        assert frames[-1].name == "check"
        assert frames[-1].filename == __file__
        assert frames[-1].line == 'raise ValueError(f"bad {x}")'
        assert "f1(x1)" in frames[-2].line  # the generated code has lines, too


def test_failed_job_keeps_its_status_and_leaves_no_output(engine, tmp_path):
    p = Pipeline("no-output")
    p.read_from(sources.items(range(5000))).map(lambda x: 1 // (4999 - x)).write_to(
        sinks.text(tmp_path / "out")
    )
    job = engine.submit(p)

    with pytest.raises(JobFailedError):
        job.join(60)

    assert job.status is JobStatus.FAILED
    assert isinstance(job.error, JobFailedError)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_failing_client_sink_fails_the_job(engine):
    def refuse(item):
        raise RuntimeError("not at home")

    p = Pipeline("client")
    p.read_from(sources.items([1, 2, 3])).write_to(sinks.client(refuse, name="door"))

    with pytest.raises(JobFailedError) as caught:
        engine.run(p)

    assert caught.value.vertex == "door"
    assert "RuntimeError: not at home" in str(caught.value)


@pytest.mark.parametrize(
    "key", [list, lambda x: object(), lambda x: float("nan")], ids=["list", "object", "nan"]
)
def test_unstable_keys_fail_on_every_engine(engine, key):
    def key_fn(x):
        return key([x]) if x == 500 else x

    stages = {
        "aggregate": lambda s: s.aggregate(agg.counting()),
        "rolling": lambda s: s.rolling_aggregate(agg.counting()),
        "stateful": lambda s: s.map_stateful(list, lambda state, key, x: x),
        "distinct": lambda s: s.distinct(),
    }
    for kind, stage in stages.items():
        if not engine.runs_here and kind != "aggregate":
            continue
        p = Pipeline(kind)
        keyed = p.read_from(sources.items(range(1000))).grouping_key(key_fn)
        stage(keyed).write_to(sinks.collect())

        with pytest.raises(JobFailedError) as caught:
            engine.run(p)

        assert isinstance(caught.value.__cause__, UnstableKeyError), kind
        assert caught.value.item is not None


BY_KEY = {
    "probe": lambda s, key: s.hash_join(few(s), key, whole_item),
    "build": lambda s, key: few(s).hash_join(s, whole_item, key),
    "inner": lambda s, key: s.inner_hash_join(few(s), key, whole_item),
    "several": lambda s, key: s.hash_join(few(s).merge(few(s)), key, whole_item),
    "rebalance": lambda s, key: s.rebalance(key),
    "rebalance to one": lambda s, key: s.rebalance(key).map_stateful(list, lambda state, x: x),
    "rebalance to an aggregate": lambda s, key: s.rebalance(key).aggregate(
        agg.of(create=list, accumulate=lambda acc, item: acc)
    ),
}


def few(stage):
    return stage._pipeline.read_from(sources.items([1, 2, 3]))


@pytest.mark.parametrize("kind", BY_KEY)
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(
    "key",
    [object(), math.nan, (1, math.nan), Decimal("nan")],
    ids=["object", "nan", "nan-in-tuple", "decimal"],
)
def test_unstable_keys_of_joins_and_rebalance_fail_on_every_engine(engine, kind, parallelism, key):
    if not engine.runs_here and (parallelism == 1 or not isinstance(key, float)):
        pytest.skip("the same code as on the embedded engine")
    p = Pipeline("unstable")
    numbers = p.read_from(sources.items(range(1000)))
    stage = BY_KEY[kind](numbers, lambda x: key if x == 500 else x)
    stage.map(lambda x: x, local_parallelism=parallelism).write_to(sinks.collect())

    with pytest.raises(JobFailedError) as caught:
        engine.run(p)

    assert isinstance(caught.value.__cause__, UnstableKeyError)
    assert caught.value.item == "500"


@pytest.mark.parametrize("action", ["skip", "sink"])
def test_items_with_unstable_keys_are_rejected_by_joins(engine, action):
    p, out, letters = Pipeline("rejected"), sinks.collect(), sinks.collect()
    numbers = p.read_from(sources.items(range(10)))
    on_error = letters if action == "sink" else "skip"
    joined = numbers.hash_join(
        few(numbers), lambda x: math.nan if x == 5 else x, whole_item, on_error=on_error
    )
    joined.write_to(out)

    engine.run(p)

    expected = [(x, x if x in (1, 2, 3) else None) for x in range(10) if x != 5]
    assert sorted(out.items, key=lambda row: row[0]) == expected
    assert [letter.item for letter in letters.items] == ([5] if action == "sink" else [])


def test_numbers_that_are_equal_are_one_key_whatever_their_type(engine):
    ones = [1, 1.0, True, Fraction(1), np.int64(1), np.int8(1), np.float32(1), np.bool_(True)]
    p, groups, pairs = Pipeline("numbers"), sinks.collect(), sinks.collect()
    numbers = p.read_from(sources.items(ones))
    numbers.grouping_key(whole_item).aggregate(agg.counting()).write_to(groups)
    numbers.inner_hash_join(numbers, whole_item, whole_item).write_to(pairs)

    engine.run(p)

    assert [count for _, count in groups.items] == [len(ones)]
    assert len(pairs.items) == len(ones) ** 2


def test_decimals_and_numpy_integers_are_never_two_keys(engine):
    """Python can compare the two if it asks numpy first, so it depends on who comes first."""
    p, out = Pipeline("mixed"), sinks.collect()
    numbers = p.read_from(sources.items([Decimal(1), np.int64(1)]))
    numbers.grouping_key(whole_item).aggregate(agg.counting()).write_to(out)

    said = ""
    try:
        engine.run(p)
    except JobFailedError as error:
        said = str(error)
    if said:
        assert "argument must be" in said or "make them one type" in said
    else:
        assert [count for _, count in out.items] == [2]


def test_unpicklable_function_is_refused_where_it_would_have_to_travel(engine):
    lock = threading.Lock()
    p = Pipeline("unpicklable")
    out = sinks.collect()
    p.read_from(sources.items([1])).map(lambda x: (x, lock.locked()), name="ask").write_to(out)
    if engine.runs_here:
        engine.run(p)
        assert out.items == [(1, False)]
        return

    with pytest.raises(UnpicklableFunctionError) as caught:
        engine.submit(p)

    assert "stage 'ask'" in str(caught.value)
    assert ".map_using_service(jetlet.service(" in str(caught.value)
