"""Stores as tasks use them, each kind against a dict, with commits, crashes and lost disks."""

from __future__ import annotations

import pickle
import shutil
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jetlet.errors import BadRecordError, InvalidArgumentError, MissingDependencyError
from jetlet.tasks import stores
from jetlet.tasks.state import changelog
from jetlet.tasks.state.changelog import in_log
from jetlet.tasks.state.container_storage import StoreContext
from jetlet.tasks.state.ordered_keys import decode_key, encode_key

KINDS = ["in_memory", "sqlite", "rocksdb"]


def declare(kind, directory, **options):
    where = () if kind == "in_memory" else (directory,)
    return getattr(stores, kind)(*where, **options)


def context(position=None, count=lambda name, amount: None):
    return StoreContext("app", "task 0", "views", 0, 2, position, count)


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    opened = declare(request.param, tmp_path, cache_size=2).open(context())
    yield opened
    opened.close()


class TestEntries:
    def test_are_put_got_and_deleted(self, store):
        assert store.get("a") is None
        assert store.get("a", 0) == 0
        store.put("a", 1)
        store.put("a", 2)
        store.put("b", [3])
        assert (store.get("a"), store.get("b"), "b" in store, "c" in store) == (2, [3], True, False)
        store.delete("a")
        store.delete("c")
        assert store.get("a") is None
        assert "a" not in store
        store.flush()
        store.committed()
        assert list(store.all()) == [("b", [3])]

    def test_are_ordered_by_key(self, store):
        keys = [("b", 1), ("a", 10), ("a", 9), ("a", 9.5), "z", 3, ("a\x00",), ("a",)]
        store.put_many((key, str(key)) for key in keys)
        store.flush()
        store.committed()
        store.put(("a", 9.7), "new")
        store.delete(("b", 1))
        expected = [3, "z", ("a",), ("a", 9), ("a", 9.5), ("a", 9.7), ("a", 10), ("a\x00",)]
        assert [key for key, _ in store.all()] == expected
        of_a = [("a",), ("a", 9), ("a", 9.5), ("a", 9.7), ("a", 10)]
        assert [key for key, _ in store.range(("a",), ("a\x00",))] == of_a
        assert [key for key, _ in store.range(stop="z")] == [3]
        assert [key for key, _ in store.range(("a", 10))] == [("a", 10), ("a\x00",)]
        assert list(store.range("z", 3)) == []

    def test_many_are_got_together(self, store):
        store.put_many({i: i * i for i in range(10)})
        store.flush()
        store.put_many({3: "three"})
        store.delete(4)
        assert store.get_many(range(2, 12)) == {
            **{i: i * i for i in range(5, 10)},
            2: 4,
            3: "three",
        }
        assert store.get_many([]) == {}

    def test_may_be_changed_while_they_are_iterated_over(self, store):
        store.put_many((i, "old") for i in range(2000))
        store.flush()
        store.committed()
        seen = []
        for key, _ in store.all():
            seen.append(key)
            store.delete(key)
            store.put(-key - 1, "behind")
            if key == 1500:
                store.flush()
                store.committed()
        assert seen == list(range(2000))
        assert [key for key, _ in store.all()] == list(range(-2000, 0))

    def test_several_are_deleted_at_once(self, store):
        store.put_many((i, i) for i in range(100))
        store.flush()
        store.put(100, 100)
        store.delete_many([1, 100, 7, 1000])
        store.delete_many(key for key, _ in store.range(50, 60))
        kept = [i for i in range(100) if i not in (1, 7) and not 50 <= i < 60]
        assert [key for key, _ in store.all()] == kept
        assert store.get(55) is None

    def test_are_as_they_were_put(self, store):
        value = ["a"]
        store.put("key", value)
        value.append("b")
        store.put_many({"other": 1, "another": 2})  # the cache has room for two
        assert store.get("key") == ["a"]

    def test_none_is_no_value(self, store):
        with pytest.raises(InvalidArgumentError, match=r"write delete\(key\)"):
            store.put("a", None)

    @pytest.mark.parametrize("key", [["a"], {"a"}, object()])
    def test_a_key_without_an_order_is_refused(self, store, key):
        for use in (store.get, store.delete, store.range, lambda key: store.put(key, 1)):
            with pytest.raises(InvalidArgumentError, match=r"store 'views'.*cannot be a key"):
                use(key)

    def test_a_value_that_cannot_be_stored_is_refused_where_it_is_put(self, store):
        store.put("a", 1)
        with pytest.raises(BadRecordError, match=r"store 'views': the value of 'a'.*cannot be"):
            store.put("a", threading.Lock())
        assert store.get("a") == 1

    def test_many_threads_use_them_at_once(self, store):
        def work(thread):
            for i in range(300):
                store.put((thread, i % 50), i)
                assert store.get((thread, i % 50)) == i
                if i % 100 == 0:
                    counts.append(sum(1 for _ in store.range((thread,), (thread + 1,))))

        counts = []
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(counts) == [1] * 4 + [50] * 8
        assert len(list(store.all())) == 200


class TestDeclaration:
    def test_types_choose_the_serdes(self, tmp_path):
        declared = stores.sqlite(tmp_path, key=int, value=dict[str, int])
        store = pickle.loads(pickle.dumps(declared)).open(context())
        store.put(-1, {"a": 1})
        store.flush()
        with pytest.raises(InvalidArgumentError, match="expected an int"):
            store.put("a", {})
        store.close()
        other = stores.sqlite(tmp_path, key=int, value=dict[str, str]).open(context())
        with pytest.raises(BadRecordError, match="written with another type"):
            other.get(-1)
        other.close()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "options",
        [{"key": dict}, {"value": 5}, {"changelog": 5}, {"cache_size": 0}, {"write_buffer": 1.5}],
    )
    def test_mistakes_are_refused_at_once(self, tmp_path, kind, options):
        with pytest.raises(InvalidArgumentError, match=f"stores.{kind}: {next(iter(options))}="):
            declare(kind, tmp_path, **options)

    def test_rocksdb_is_asked_for_when_it_is_missing(self, tmp_path, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)
        with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[rocksdb\]'"):
            stores.rocksdb(tmp_path).open(context())

    @pytest.mark.parametrize("kind", KINDS[1:])
    def test_tasks_and_stores_with_any_name_do_not_meet(self, tmp_path, kind):
        names = ["..", ".", "a/b", "a%2fb", "a.b", "ä", "a b", "A"]
        opened = []
        for task in names:
            for name in names:
                store = declare(kind, tmp_path / "state").open(StoreContext("/", task, name))
                assert list(store.all()) == []
                store.put("name", (task, name))
                store.flush()
                opened.append(store)
        for store in opened:
            store.close()
        assert [path.name for path in tmp_path.iterdir()] == ["state"]

    def test_counts_what_it_does(self, tmp_path):
        counts = Counter()

        def count(name, amount):
            counts[name] += amount

        declared = stores.in_memory(changelog=tmp_path)
        store = declared.open(context(count=count))
        store.put_many({1: 1, 2: 2})
        position = store.flush()
        store.close()
        declared.open(context(position, count)).close()
        assert counts == {"views.flushed": 2, "views.restored": 2}


# --- Against a dict -------------------------------------------------------------------------

KEYS = st.one_of(
    st.integers(-3, 30),
    st.sampled_from(["", "a", "a\x00", "b", 0.5, None, b"a", ("a",), ("a", 1), ("a", 2)]),
)
VALUES = st.one_of(st.integers(0, 9), st.text(max_size=3), st.lists(st.integers(), max_size=2))


def order(entries):
    return sorted(entries, key=lambda entry: encode_key(entry[0]))


class StoreMachine(RuleBasedStateMachine):
    """Subclasses say what kind, and whether it has a changelog."""

    kind = "sqlite"
    has_changelog = True
    options: dict = {}

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        log = self.directory / "changelog" if self.has_changelog else None
        self.declared = declare(
            self.kind, self.directory / "state", changelog=log, cache_size=4, **self.options
        )
        self.oracle = {}
        self.committed = {}
        self.position = None
        self.store = self.declared.open(context())

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.store.put(key, value)
        self.oracle[key] = value

    @rule(key=KEYS)
    def delete(self, key):
        self.store.delete(key)
        self.oracle.pop(key, None)

    @rule(key=KEYS)
    def get(self, key):
        assert self.store.get(key, "none") == self.oracle.get(key, "none")
        assert (key in self.store) is (key in self.oracle)

    @rule(keys=st.lists(KEYS, max_size=10))
    def get_many(self, keys):
        found = self.store.get_many(keys)
        assert found == {key: self.oracle[key] for key in keys if key in self.oracle}

    @rule(start=KEYS, stop=KEYS)
    def range(self, start, stop):
        expected = [
            entry
            for entry in order(self.oracle.items())
            if encode_key(start) <= encode_key(entry[0])
            and (stop is None or encode_key(entry[0]) < encode_key(stop))
        ]
        assert list(self.store.range(start, stop)) == expected

    @rule()
    def all(self):
        assert list(self.store.all()) == order(self.oracle.items())

    @rule(steps=st.sampled_from(["all", "all", "no checkpoint", "not told"]))
    def commit(self, steps):
        position = self.store.flush()
        if steps == "no checkpoint":
            self.reopen()
            self.check_replay()
            return
        self.position = position
        self.committed = dict(self.oracle)
        if steps == "not told":
            self.reopen()
        else:
            self.store.committed()
        self.check_replay()

    @rule()
    def crash(self):
        self.reopen()
        self.check_replay()

    @rule()
    def crash_and_lose_the_disk(self):
        if self.has_changelog:
            self.store.close()
            shutil.rmtree(self.directory / "state", ignore_errors=True)
        self.reopen()

    def reopen(self):
        if not self.has_changelog:
            # What was flushed stays, with or without a checkpoint; in memory, nothing does.
            self.store.flush()
            self.committed = {} if self.kind == "in_memory" else dict(self.oracle)
        self.store.close()
        self.store = self.declared.open(context(self.position))
        self.oracle = dict(self.committed)

    def check_replay(self):
        """The store is what a replay of the whole changelog gives."""
        if not self.has_changelog:
            return
        log = in_log(self.directory / "changelog").open(context())
        at, end = log.bounds()
        replayed = {}
        while at < end:
            changes, position = log.read(at, end)
            replayed.update(changes)
            at = position.end
        log.close()
        found = {
            decode_key(key): pickle.loads(value)
            for key, value in replayed.items()
            if value is not None
        }
        assert found == self.committed

    @invariant()
    def lengths_agree(self):
        assert len(self.store._cache) <= 4

    def teardown(self):
        assert list(self.store.all()) == order(self.oracle.items())
        self.store.close()
        shutil.rmtree(self.directory)


def machine(kind, has_changelog=True, examples=25, **options):
    class Machine(StoreMachine):
        pass

    Machine.kind, Machine.has_changelog, Machine.options = kind, has_changelog, options
    case = Machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=25)
    return case


TestMemoryAlone = type("TestMemoryAlone", (machine("in_memory", has_changelog=False),), {})
TestSqliteAlone = type("TestSqliteAlone", (machine("sqlite", has_changelog=False),), {})
TestRocksDbAlone = type("TestRocksDbAlone", (machine("rocksdb", False, examples=10),), {})
TestMemoryLogged = type("TestMemoryLogged", (machine("in_memory"),), {})
TestSqliteLogged = type("TestSqliteLogged", (machine("sqlite"),), {})
TestRocksDbLogged = type("TestRocksDbLogged", (machine("rocksdb", examples=10),), {})
TestSqliteSpilling = type("TestSqliteSpilling", (machine("sqlite", write_buffer=600),), {})
TestRocksDbSpilling = type(
    "TestRocksDbSpilling", (machine("rocksdb", examples=10, write_buffer=600),), {}
)


class TestCleaned(machine("sqlite", examples=40, write_buffer=600)):
    """With a changelog that is rewritten as often as it can be, in segments of few records."""

    def runTest(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changelog, "CLEAN_FROM", 10)
            patch.setattr(changelog, "OUTDATED_SHARE", 2)
            patch.setattr(changelog, "SEGMENT_BYTES", 100)
            super().runTest()


@pytest.mark.parametrize("kind", ["in_memory", "sqlite"])
@pytest.mark.parametrize("buffer", [1 << 20, 1], ids=["kept", "spilled"])
def test_what_is_put_between_a_flush_and_its_commit_waits_for_the_next(kind, buffer, tmp_path):
    """As happens if messages go on beside a commit."""

    def opened(position):
        changes = in_log(tmp_path / "changes")
        return declare(kind, tmp_path, changelog=changes, write_buffer=buffer).open(
            context(position)
        )

    store = opened(None)
    store.put_many({"a": 1, "b": 1, "c": 1})
    first = store.flush()
    store.put("a", 2)
    store.delete("b")
    store.put("d", 2)
    store.committed()
    assert dict(store.all()) == {"a": 2, "c": 1, "d": 2}
    store.close()

    store = opened(first)
    assert dict(store.all()) == {"a": 1, "b": 1, "c": 1}
    store.put("a", 3)
    second = store.flush()
    store.put("a", 4)
    store.committed()
    third = store.flush()
    store.committed()
    store.close()
    for position, a in ((third, 4), (second, 3)):
        store = opened(position)
        assert dict(store.all()) == {"a": a, "b": 1, "c": 1}
        store.close()
