"""State on disk: a table does what a dict does, whatever fits in memory."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlet.core.state_on_disk import StateOnDisk
from jetlet.errors import JetletError
from jetlet.storage import disk_store, record_index
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import DiskTable, subscripted
from jetlet.storage.private_directory import PrivateDirectory

KEYS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from(["a", "b", "ab", 1.0, True, None, (-1,), (-2,), (1, "a"), b"a"]),
    st.integers(0, 3).map(lambda n: n + n * sys.hash_info.modulus),
)
"""Few, so that they come again, and some of them with the same hash."""

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), KEYS, st.integers(0, 9)),
        st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
        st.tuples(st.just("update"), st.lists(KEYS, max_size=5), st.integers(0, 9)),
        st.tuples(st.just("load"), st.lists(KEYS, max_size=5), st.integers(0, 9)),
        st.tuples(st.just("get"), KEYS, st.none()),
        st.tuples(st.just("in"), KEYS, st.none()),
        st.tuples(st.just("pop"), KEYS, st.none()),
        st.tuples(st.just("del"), KEYS, st.none()),
        st.tuples(st.just("items"), st.none(), st.none()),
        st.tuples(st.just("frozen"), st.none(), st.none()),
        st.tuples(st.just("keys"), st.none(), st.none()),
        st.tuples(st.just("prepare"), st.lists(KEYS, max_size=5), st.integers(0, 9)),
        st.tuples(st.just("peek"), st.lists(KEYS, max_size=5), st.none()),
        st.tuples(st.just("clear"), st.integers(0, 9), st.none()),
    ),
    max_size=120,
)


def apply(table, name, key, value):
    """An operation on a table of lists; what it gives."""
    if name == "append":
        found = table.get(key)
        if found is None or not isinstance(found, list):
            found = table[key] = []
        found.append(value)  # in place, after it was handed out
        return list(found)
    if name == "set":
        table[key] = value
    elif name == "update":
        table.update([(each, value) for each in key])
    elif name == "load":
        entries = [(each, value) for each in key]
        table.load(iter(entries)) if isinstance(table, DiskTable) else table.update(entries)
    elif name == "get":
        return table.get(key, "nothing")
    elif name == "in":
        return key in table
    elif name == "pop":
        return table.pop(key, "nothing")
    elif name == "del":
        try:
            del table[key]
        except KeyError:
            return "nothing"
    elif name == "items":
        return sorted(table.items(), key=repr), len(table), bool(table)
    elif name == "frozen":
        return dict(table.frozen() if isinstance(table, DiskTable) else table)
    elif name == "keys":
        return set(table) <= set(table.keys_in_turn() if isinstance(table, DiskTable) else table)
    elif name == "peek":
        found = table.peek(key) if isinstance(table, DiskTable) else table
        return {each: found[each] for each in key if each in found}
    elif name == "prepare":
        if isinstance(table, DiskTable):
            table.prepare(key, len(key))
        states = subscripted(table)
        for each in key:
            if each in table and isinstance(states[each], list):
                states[each].append(value)
        return [table.get(each) for each in key]
    elif name == "clear" and key == 0:
        table.clear()
    return None


@pytest.fixture(params=[7, 12])
def store(tmp_path, monkeypatch, request):
    """One that writes nearly all, to segments in which there is room for few or for some."""
    monkeypatch.setattr(disk_store, "SEGMENTS", (request.param, 26))
    monkeypatch.setattr(DiskStore, "most_at_once", 5)
    with_little = DiskStore(StateOnDisk(1, str(tmp_path)))
    yield with_little
    with_little.close()


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(record_index, "MOST", 2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(OPERATIONS)
def test_table_does_what_a_dict_does(store, operations):
    table, oracle = store.table(), {}
    for operation in operations:
        assert apply(table, *operation) == apply(oracle, *operation)
    assert dict(table) == oracle
    table.drop()


def write(table):
    table.let_go(table.fresh, list(table.fresh))
    table.let_go(table.young, list(table.young))


def let_all_be_written(table):
    table.update(dict.fromkeys(range(20, 60), "others"))


@pytest.mark.parametrize("between", range(6))
def test_keys_of_one_hash_stay_apart_when_one_is_written_before_the_other_comes(store, between):
    assert hash(-1) == hash(-2)
    table = store.table()
    table.update({-1: "first", **dict.fromkeys(range(between)), -2: "second"})
    let_all_be_written(table)
    assert (table.get(-1), table.get(-2)) == ("first", "second")
    table.drop()


def test_keys_of_one_hash_stay_apart_when_a_snapshot_has_written_one(tmp_path):
    store = DiskStore(StateOnDisk(10_000, str(tmp_path)))
    table = store.table()
    table["one"] = 1
    write(table)
    assert table.is_on_disk
    assert -1 not in table
    table[-2] = "second"
    assert dict(table.frozen())[-2] == "second"
    table[-1] = "first"
    write(table)
    assert (table.get(-1), table.get(-2)) == ("first", "second")
    store.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(KEYS, min_size=1, max_size=disk_store.LEAST), max_size=60))
def test_objects_may_be_changed_while_others_are_looked_up(store, turns):
    tables, oracles = [store.table(list) for _ in range(3)], [{}, {}, {}]
    for number, keys in enumerate(turns):
        for state in [tables[hash(key) % 3][key] for key in keys]:
            state.append(number)
        for key in keys:
            oracles[hash(key) % 3].setdefault(key, []).append(number)
    assert list(map(dict, tables)) == oracles
    for table in tables:
        table.drop()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), KEYS, st.integers(0, 9)), max_size=80))
def test_tables_of_a_store_do_not_meet(store, operations):
    tables, oracles = [store.table(list) for _ in range(3)], [{}, {}, {}]
    for number, key, value in operations:
        tables[number][key].append(value)
        oracles[number].setdefault(key, []).append(value)
    assert list(map(dict, tables)) == oracles
    for table in tables:
        table.drop()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.integers(-5, 40) | st.none(), max_size=120))
def test_deadlines_come_in_order(store, times):
    """``None`` takes the first one out."""
    far, near, oracle = store.deadlines(), [], []
    for number, time in enumerate(times):
        if time is not None:
            heappush(near, (time, number, str(number)))
            heappush(oracle, (time, number, str(number)))
            far.park(near)
            assert len(near) <= 8
        elif oracle:
            far.bring(near)
            assert heappop(near) == heappop(oracle)
    while oracle:
        far.bring(near)
        assert heappop(near) == heappop(oracle)
    far.bring(near)
    assert not near


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(KEYS, max_size=30), st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=60))
def test_keys_come_in_turn_whatever_becomes_of_others(store, small_steps, keys, meanwhile):
    table = store.table()
    table.update(dict.fromkeys(keys, "first"))
    staying = set(keys)
    found, rest = [], table.keys_in_turn()
    for key, what in meanwhile:
        if what == 0:
            table.pop(key, None)
            staying.discard(key)
        elif what == 1:
            table[key] = "second"
        elif what == 2:
            table.get(key)
        else:
            found += islice(rest, 1)
    found += rest
    assert staying <= set(found)
    assert len(found) == len(set(found))
    table.drop()


def test_iterating_shows_what_was_there_when_it_began(store):
    table = store.table()
    table.update({key: [key] for key in range(100)})
    keys = iter(table)
    seen = [next(keys)]
    for key in range(100):
        table.pop(key)
    table["new"] = 1
    seen += keys
    assert sorted(seen) == list(range(100))
    assert dict(table) == {"new": 1}


def test_nothing_is_on_disk_as_long_as_memory_suffices(tmp_path):
    store = DiskStore(StateOnDisk(64 << 20, str(tmp_path)))
    table = store.table()
    table.update({key: key for key in range(1000)})
    assert not table.is_on_disk
    assert not list(tmp_path.iterdir())


def test_memory_is_what_entries_take(tmp_path):
    """Larger entries, fewer of them."""
    young = []
    for size in (10, 20_000):
        store = DiskStore(StateOnDisk(16 << 20, str(tmp_path)))
        table = store.table()
        for key in range(5_000):
            table[key] = [bytes(size)]
        young.append(len(table.fresh) + len(table.stale))
        store.close()
    assert young[0] == 5_000  # all of them fit
    assert young[1] * 20_000 < 16 << 20


def test_what_cannot_be_pickled_is_named(store):
    table = store.table()
    with pytest.raises(JetletError, match="the state of key 'file' cannot be pickled"):
        for key in ["file", *range(20)]:
            table[key] = sys.stdout


def test_directory_is_private_and_removed(store, tmp_path):
    table = store.table()
    table.update({key: key for key in range(100)})
    (base,) = tmp_path.iterdir()
    assert stat.S_IMODE(base.stat().st_mode) == 0o700
    assert len(list(base.iterdir())) == 2  # with a lock
    store.close()
    assert [path.name for path in base.iterdir()] == ["lock"]


def test_nothing_is_left_where_there_was_no_room(tmp_path):
    code = f"""
import resource, signal
from jetlet.core.state_on_disk import StateOnDisk
from jetlet.errors import RestartableError
from jetlet.storage.disk_store import DiskStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))  # as if the disk were full
store = DiskStore(StateOnDisk(1 << 20, {str(tmp_path)!r}))
table = store.table()
try:
    for key in range(1 << 16):
        table[key] = str(key) * 1000
except RestartableError as error:
    print(error)
store.close()
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"state cannot be written to {tmp_path}: [Errno 27]")
    (base,) = tmp_path.iterdir()
    assert [path.name for path in base.iterdir()] == ["lock"]


def test_directory_of_somebody_else_is_refused(tmp_path):
    base = tmp_path / f"jetlet-state-{os.getuid()}"
    base.mkdir(mode=0o755)
    base.chmod(0o755)
    with pytest.raises(JetletError, match="state_dir"):
        PrivateDirectory(str(tmp_path), "state")


def test_what_a_killed_process_has_left_is_removed(tmp_path):
    code = f"""
import os, signal
from jetlet.core.state_on_disk import StateOnDisk
from jetlet.storage import disk_store, record_index
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import DiskTable
table = DiskStore(StateOnDisk(1, {str(tmp_path)!r})).table()
table.update({{key: key for key in range(100)}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    (base,) = tmp_path.iterdir()
    (left,) = [path for path in base.iterdir() if path.name != "lock"]
    assert (left / "records").is_file()

    mine = PrivateDirectory(str(tmp_path), "state")
    other = PrivateDirectory(str(tmp_path), "state")  # leaves mine alone

    assert not left.exists()
    assert mine.path.is_dir() and other.path.is_dir()
    for each in (mine, other):
        each.close()
    assert not Path(mine.path).exists()
