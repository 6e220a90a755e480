"""Local stores, each against a dict; and the table that sorts lazily."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jetlet.errors import JetletError
from jetlet.tasks.state.local_store import MemoryStore, Position, SortedTable
from jetlet.tasks.state.rocksdb_store import RocksDbStore
from jetlet.tasks.state.sqlite_store import SqliteStore

KEYS = st.one_of(st.binary(max_size=2), st.sampled_from([b"", b"\x00", b"\xff\xff", b"k" * 300]))
VALUES = st.binary(max_size=3)
CHANGES = st.dictionaries(KEYS, st.none() | VALUES, max_size=8)


def entries_of(oracle, start, stop):
    return sorted((k, v) for k, v in oracle.items() if k >= start and (stop is None or k < stop))


class TableMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = SortedTable()
        self.oracle = {}

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.table.put(key, value)
        self.oracle[key] = value

    @rule(keys=st.lists(st.integers(0, 3000), max_size=2500), removed=st.booleans())
    def put_and_remove_many(self, keys, removed):
        for number in keys:
            key = b"%d" % number
            self.table.put(key, b"")
            self.oracle[key] = b""
            if removed:
                self.table.remove(key)
                del self.oracle[key]

    @rule(key=KEYS)
    def remove(self, key):
        self.table.remove(key)
        self.oracle.pop(key, None)

    @rule()
    def clear(self):
        self.table.clear()
        self.oracle.clear()

    @rule(start=KEYS, stop=st.none() | KEYS, limit=st.none() | st.integers(1, 5))
    def page(self, start, stop, limit):
        assert self.table.page(start, stop, limit) == entries_of(self.oracle, start, stop)[:limit]

    @invariant()
    def is_the_dict(self):
        assert self.table.data == self.oracle


TestSortedTable = TableMachine.TestCase
TestSortedTable.settings = settings(max_examples=30, stateful_step_count=30)


def test_a_table_forgets_keys_that_were_removed():
    table = SortedTable()
    for i in range(20_000):
        table.put(b"%d" % i, b"")
        table.remove(b"%d" % i)
        if i % 3000 == 0:
            table.page(b"", None)
    assert len(table._keys) + len(table._new) < 5000


class LocalStoreMachine(RuleBasedStateMachine):
    """Subclasses say how to open one."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.store = self.open()
        self.oracle = {}
        self.settled = {}, None
        self.has_unsettled = False

    def open(self):
        raise NotImplementedError

    @rule(changes=CHANGES, end=st.integers(0, 2**40), mark=st.integers(0, 2**32 - 1))
    def write_settled(self, changes, end, mark):
        self.store.write(changes.items(), Position(end, mark))
        self.apply(changes)
        self.settled = dict(self.oracle), (end, mark)
        self.has_unsettled = False
        assert self.store.position == (end, mark)

    @rule(changes=CHANGES)
    def write_unsettled(self, changes):
        self.store.write(changes.items(), None)
        self.apply(changes)
        self.has_unsettled = True

    def apply(self, changes):
        self.oracle.update(changes)
        self.oracle = {k: v for k, v in self.oracle.items() if v is not None}

    @rule()
    def clear(self):
        self.store.clear()
        self.oracle = {}
        self.settled = {}, None
        self.has_unsettled = False
        assert self.store.position is None

    @rule()
    def reopen(self):
        self.store.close()
        self.store.close()
        self.store = self.open()
        assert self.store.position in (self.settled[1], None)
        if self.store.position is None and self.has_unsettled:
            self.store.clear()
            self.settled = {}, None
        self.has_unsettled = False
        self.oracle = dict(self.settled[0])
        assert self.store.position == self.settled[1]

    @rule(key=KEYS)
    def get(self, key):
        assert self.store.get(key) == self.oracle.get(key)

    @rule(keys=st.lists(KEYS, max_size=10))
    def get_many(self, keys):
        assert self.store.get_many(keys) == [self.oracle.get(key) for key in keys]

    @rule(start=KEYS, stop=st.none() | KEYS, limit=st.integers(1, 5))
    def page(self, start, stop, limit):
        assert self.store.page(start, stop, limit) == entries_of(self.oracle, start, stop)[:limit]

    def teardown(self):
        assert self.store.page(b"", None, 1000) == sorted(self.oracle.items())
        self.store.close()
        shutil.rmtree(self.directory)


class MemoryMachine(LocalStoreMachine):
    def open(self):
        self.settled = {}, None
        return MemoryStore()


class SqliteMachine(LocalStoreMachine):
    def open(self):
        return SqliteStore(self.directory / "store")


class RocksDbMachine(LocalStoreMachine):
    def open(self):
        return RocksDbStore(self.directory / "store")


TestMemoryStore = MemoryMachine.TestCase
TestSqliteStore = SqliteMachine.TestCase
TestRocksDbStore = RocksDbMachine.TestCase
TestMemoryStore.settings = settings(max_examples=50, stateful_step_count=25)
TestSqliteStore.settings = settings(max_examples=40, stateful_step_count=25)
TestRocksDbStore.settings = settings(max_examples=12, stateful_step_count=25)


@pytest.mark.parametrize("kind", [SqliteStore, RocksDbStore])
class TestOnDisk:
    def test_many_keys_at_once(self, kind, tmp_path):
        store = kind(tmp_path / "store")
        store.write([(b"%d" % i, b"v%d" % i) for i in range(2000)], Position(1))
        keys = [b"%d" % i for i in range(3000)]
        assert store.get_many(keys) == [b"v%d" % i for i in range(2000)] + [None] * 1000
        store.close()

    def test_only_one_has_it_open(self, kind, tmp_path, monkeypatch):
        monkeypatch.setattr("jetlet.tasks.state.sqlite_store.TAKEOVER_SECONDS", 0.02)
        store = kind(tmp_path / "store")
        with pytest.raises(JetletError, match="open in one process at a time"):
            kind(tmp_path / "store")
        store.close()
        kind(tmp_path / "store").close()

    def test_what_is_not_settled_has_no_position(self, kind, tmp_path):
        store = kind(tmp_path / "store")
        store.write([(b"a", b"1")], Position(1))
        store.write([(b"a", b"2")], None)
        store.close()
        store = kind(tmp_path / "store")
        assert (store.position, store.get(b"a")) in [(Position(1), b"1"), (None, b"2")]
        store.close()


class TestSqliteFile:
    def test_a_file_that_is_none_of_ours_is_refused(self, tmp_path):
        (tmp_path / "store").write_bytes(b"not a database" * 100)
        with pytest.raises(JetletError, match="is damaged"):
            SqliteStore(tmp_path / "store")

    def test_a_damaged_copy_is_made_anew(self, tmp_path, caplog):
        (tmp_path / "store").write_bytes(b"not a database" * 100)
        store = SqliteStore(tmp_path / "store", replace_if_damaged=True)
        assert store.position is None
        assert store.page(b"", None, 10) == []
        assert "made anew" in caplog.text
        store.close()

    def test_a_later_format_is_refused(self, tmp_path):
        store = SqliteStore(tmp_path / "store")
        store._connection.execute("PRAGMA user_version = 9")
        store.close()
        with pytest.raises(JetletError, match=r"has format 9.*update jetlet"):
            SqliteStore(tmp_path / "store")
