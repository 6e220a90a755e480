from __future__ import annotations

import itertools
import threading

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.connectors.custom import builders
from jetlet.connectors.custom.builders import TURN_NS
from jetlet.errors import InvalidArgumentError, ProcessorContractError


class TestBatchSource:
    def test_one_split_by_default(self, read_all):
        source = sources.batch("numbers", lambda split: [split, 1, 2])
        assert source.name == "numbers"
        assert source.splits(5) == [None]
        assert read_all(source) == [None, 1, 2]

    def test_splits_from_a_list_or_a_function(self, read_all):
        assert read_all(sources.batch("a", range, [2, 3])) == [0, 1, 0, 1, 2]
        source = sources.batch("b", lambda s: [s], range)
        assert read_all(source, 3) == [0, 1, 2]

    def test_batches_have_the_right_size(self, read_all):
        assert read_all(sources.batch("a", lambda _: iter(range(5000)))) == list(range(5000))
        lists = [[], list(range(3000)), (3000,), [3001]]
        assert read_all(sources.batch("b", lambda _: lists, batched=True)) == list(range(3002))

    def test_slow_generator_is_not_waited_for_until_a_batch_is_full(self, monkeypatch):
        now = itertools.count(0, TURN_NS // 8)
        monkeypatch.setattr(builders, "perf_counter_ns", lambda: next(now))
        pauses = [0] * 3000 + [TURN_NS] * 500 + [0] * 3000

        def read(split):
            for n, pause in enumerate(pauses):
                for _ in range(pause // (TURN_NS // 8)):
                    next(now)
                yield n

        sizes, items = [], []
        for batch in sources.batch("source", read).read(None):
            sizes.append(len(batch))
            items += batch
        assert items == list(range(len(pauses)))
        assert max(sizes) > 100
        assert sizes.count(1) > 400

    @pytest.mark.parametrize("blocking", [False, True])
    def test_error_comes_behind_the_items_before_it(self, blocking):
        def read(_):
            yield 1
            raise KeyError("broken")

        reading = sources.batch("broken", read, blocking=blocking).read(None)
        with pytest.raises(KeyError, match="broken"):
            assert [next(reading) for _ in range(1000)] == [[1]]

    def test_what_waits_for_its_items_holds_up_neither_snapshots_nor_the_end(self, tmp_path):
        """It goes on where the snapshot was taken."""
        goes_on, waits = threading.Event(), threading.Event()

        def read(_):
            for number in range(5):
                if number == 3:
                    waits.set()
                    goes_on.wait(60)
                yield number

        def job(out):
            p = Pipeline("waiting")
            p.read_from(sources.batch("waits", read, blocking=True)).write_to(out)
            return engine.submit(p, JobConfig(snapshot_dir=str(tmp_path)))

        first, second = sinks.collect(), sinks.collect()
        with EmbeddedEngine(workers=1) as engine:
            running = job(first)
            assert waits.wait(60)
            running.suspend()  # takes a snapshot
            running.cancel()
            goes_on.set()
            job(second).join(60)
        assert first.items + second.items == [0, 1, 2, 3, 4]

    def test_thread_that_waits_is_left_behind_and_ends_by_itself(self, caplog):
        goes_on, waits, ended = threading.Event(), threading.Event(), threading.Event()

        def read(_):
            try:
                waits.set()
                goes_on.wait(60)
                yield 1
            finally:
                ended.set()

        reading = sources.batch("waits", read, blocking=True).read(None)
        assert not next(reading)
        reading.close()
        assert "waits: read_fn still waits for something" in caplog.text
        goes_on.set()
        assert ended.wait(60)

    @pytest.mark.parametrize("blocking", [False, True])
    @pytest.mark.parametrize("batched", [False, True])
    def test_generator_is_closed_when_reading_stops(self, batched, blocking):
        events = []

        def read(_):
            events.append("open")
            try:
                while True:
                    yield [1] if batched else 1
            finally:
                events.append("close")

        source = sources.batch("endless", read, batched=batched, blocking=blocking)
        reading = source.read(None)
        next(reading)
        assert events == ["open"]
        reading.close()
        assert events == ["open", "close"]

    def test_open_file_is_closed(self, tmp_path):
        path = tmp_path / "x.txt"
        path.write_text("a\nb\n")
        opened = []

        def read(_):
            opened.append(path.open())
            return opened[0]

        assert list(sources.batch("file", read).read(None)) == [["a\n", "b\n"]]
        assert opened[0].closed

    def test_function_that_returns_nothing_is_told(self):
        with pytest.raises(ProcessorContractError, match=r"numbers.*returned None"):
            list(sources.batch("numbers", lambda _: None).read(None))

    def test_says_how_it_wants_to_be_read(self):
        source = sources.batch("a", lambda _: [], blocking=True, local_parallelism=4)
        assert (source.is_blocking, source.preferred_local_parallelism) == (True, 4)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: sources.batch("a", 5),
            lambda: sources.batch(None, lambda _: []),
            lambda: sources.batch("", lambda _: []),
            lambda: sources.batch("a", lambda _: [], splits=5),
            lambda: sources.batch("a", lambda _: [], splits="ab"),
            lambda: sources.batch("a", lambda _: [], local_parallelism=0),
        ],
    )
    def test_arguments_that_cannot_work_are_refused(self, make):
        with pytest.raises(InvalidArgumentError, match=r"sources\.batch.*write"):
            make()


class TestSink:
    @pytest.fixture
    def events(self):
        return []

    def test_calls_its_functions_in_order(self, events):
        sink = sinks.builder(
            "mine",
            create=lambda context: events.append((context.run_id, context.writer_id)) or "state",
            receive=lambda state, item: events.append((state, item)),
            flush=lambda state: events.append("flush"),
            destroy=lambda state: events.append("destroy"),
        )
        sink.begin("run")
        writer = sink.open("run", "w-3")
        writer.write([1, None])
        writer.write([2])
        sink.commit("run", [writer.finish()])
        assert events == [
            ("run", "w-3"),
            ("state", 1),
            ("state", None),
            "flush",
            ("state", 2),
            "flush",
            "destroy",
        ]

    def test_takes_batches(self, events):
        sink = sinks.builder("mine", create=lambda _: events, receive_batch=list.extend)
        writer = sink.open("run", "w")
        writer.write([1, 2])
        writer.write([3])
        assert events == [1, 2, 3]

    def test_destroys_its_state_once_however_it_ends(self, events):
        sink = sinks.builder(
            "mine", create=lambda _: None, receive=lambda *_: 1 / 0, destroy=events.append
        )
        writer = sink.open("run", "w")
        with pytest.raises(ZeroDivisionError):
            writer.write([1])
        writer.abort()
        writer.abort()
        sink.abort("run")
        assert events == [None]

    def test_says_how_it_wants_to_be_run(self):
        sink = sinks.builder(
            "mine",
            create=lambda _: None,
            receive=lambda *_: None,
            blocking=True,
            preferred_local_parallelism=3,
        )
        assert (sink.name, sink.is_blocking, sink.preferred_local_parallelism) == ("mine", True, 3)

    @pytest.mark.parametrize(
        "options",
        [
            {"create": None, "receive": print},
            {"create": print},
            {"create": print, "receive": print, "receive_batch": print},
            {"create": print, "receive": print, "flush": 3},
            {"create": print, "receive": print, "preferred_local_parallelism": 0},
        ],
    )
    def test_arguments_that_cannot_work_are_refused(self, options):
        with pytest.raises(InvalidArgumentError, match=r"sinks\.builder.*write"):
            sinks.builder("mine", **options)
