"""Tables of SQL databases as sinks: what items become, and what the database may say to it."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.connectors.sql import database as module
from jetlet.connectors.sql.database import SqlClient, SqlDatabase
from jetlet.connectors.sql.transactions import KEPT_MARKS, MARKS
from jetlet.errors import (
    BadRecordError,
    InvalidArgumentError,
    ItemFailedError,
    JetletError,
    MissingDependencyError,
    RestartableError,
    ServerUnreachableError,
    UnsupportedFeatureError,
)
from jetlet.pipeline.sink import TransactionId, WriterPlace
from jetlet.testing import END, scripted_stream


@dataclass
class Sale:
    item: str
    id: int


class Named(NamedTuple):
    item: str
    id: int


class Database:
    """A database with a table of sales."""

    def __init__(self, url):
        self.url = url
        self.engine = SqlDatabase.of("test", url).engine()
        self.run("CREATE TABLE sales (id INTEGER PRIMARY KEY, item VARCHAR(10), n INTEGER)")
        self.run("CREATE TABLE events (item VARCHAR(10) NOT NULL)")

    def run(self, statement):
        from sqlalchemy import text

        with self.engine.begin() as connection:
            result = connection.execute(text(statement))
            return sorted(map(tuple, result)) if result.returns_rows else None

    def rows(self, table="sales"):
        return self.run(f"SELECT * FROM {table}")


@pytest.fixture
def sqlite(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/test.db")
    yield database
    database.engine.dispose()


@pytest.fixture
def postgresql(postgres):
    database = Database(postgres.database())
    yield database
    database.engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    return request.getfixturevalue(request.param)


def transaction(number, writer=0, attempt="1"):
    return TransactionId("run", "sink", number, writer, attempt)


def transactional(sink, index=0, attempt="1"):
    return sink.open_transactional(WriterPlace("run", "sink", attempt, index, 1))


def prepared(writer, number, items):
    writer.begin(transaction(number))
    writer.write(items)
    return writer.prepare()


class TestItems:
    @pytest.mark.parametrize(
        "item",
        [
            {"id": 1, "item": "tea"},
            {"item": "tea", "id": 1},
            Sale("tea", 1),
            Named("tea", 1),
            (1, "tea", None),
            [1, "tea", None],
        ],
        ids=repr,
    )
    def test_item_becomes_a_row(self, database, write_all, item):
        write_all(sinks.sql(database.url, "sales"), [item])
        assert database.rows() == [(1, "tea", None)]

    def test_columns_say_what_is_written_and_in_which_order(self, database, write_all):
        sink = sinks.sql(database.url, "sales", columns=["item", "id"])
        write_all(sink, [("tea", 1), Sale("cup", 2), {"id": 3, "item": "pot", "other": 0}])
        assert database.rows() == [(1, "tea", None), (2, "cup", None), (3, "pot", None)]

    def test_missing_name_is_null(self, database, write_all):
        write_all(sinks.sql(database.url, "sales"), [{"id": 1, "item": "tea"}, {"id": 2}])
        assert database.rows() == [(1, "tea", None), (2, None, None)]

    def test_item_that_is_no_row_is_the_value_of_the_only_column(self, database, write_all):
        write_all(sinks.sql(database.url, "events"), ["tea", "cup"])
        assert database.rows("events") == [("cup",), ("tea",)]

    def test_name_of_a_schema_may_precede_that_of_the_table(self, postgresql, write_all):
        postgresql.run("CREATE SCHEMA shop")
        postgresql.run("CREATE TABLE shop.items (name VARCHAR(10) PRIMARY KEY)")
        write_all(sinks.sql(postgresql.url, "shop.items", key="name"), ["tea"], ["tea"])
        assert postgresql.rows("shop.items") == [("tea",)]

    @pytest.mark.parametrize(
        ("items", "message"),
        [
            ([(1, 2)], "has 2 values for the 3 columns"),
            ([{"id": 1}, {"id": 2, "item": "x"}], "has 'item', which is not among the columns"),
            ([{"id": 1, "color": "red"}], "table 'sales' has no column 'color'"),
        ],
    )
    def test_item_that_does_not_fit_is_refused(self, sqlite, refused_by, items, message):
        assert message in refused_by(sinks.sql(sqlite.url, "sales"), items)

    def test_statement_takes_items_as_parameters(self, database, write_all):
        database.run("INSERT INTO sales VALUES (1, 'tea', 10), (2, 'cup', 10)")
        statement = "UPDATE sales SET n = n - :sold WHERE id = :id"
        sink = sinks.sql(database.url, statement=statement)
        write_all(sink, [{"id": 1, "sold": 3, "by": "me"}, (4, 1), {"id": 2, "sold": 1}])
        assert database.rows() == [(1, "tea", 3), (2, "cup", 9)]


class TestKey:
    def test_row_that_is_there_is_replaced(self, database, write_all):
        database.run("INSERT INTO sales VALUES (1, 'tea', 10)")
        sink = sinks.sql(database.url, "sales", columns=["id", "item"], key="id")
        write_all(sink, [(1, "cup"), (2, "pot"), (2, "can")], [(3, "jar")])
        assert database.rows() == [(1, "cup", 10), (2, "can", None), (3, "jar", None)]

    def test_row_that_is_all_key_is_left_alone(self, database, write_all):
        database.run("CREATE UNIQUE INDEX of_items ON events (item)")
        write_all(sinks.sql(database.url, "events", key=["item"]), ["tea", "tea"], ["tea"])
        assert database.rows("events") == [("tea",)]

    def test_key_must_be_unique(self, database):
        with pytest.raises(InvalidArgumentError, match="create a unique index"):
            sinks.sql(database.url, "sales", key=["item"]).begin("run")

    def test_database_without_upserts_is_refused(self, sqlite, monkeypatch):
        from sqlalchemy.dialects.sqlite.base import SQLiteDialect

        monkeypatch.setattr(SQLiteDialect, "name", "oracle")
        with pytest.raises(UnsupportedFeatureError, match=r"key=\.\.\. is not known for oracle"):
            sinks.sql(sqlite.url, "sales", key=["id"]).begin("run")


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            (("file.db", "t"), {}, "write the URL of a database"),
            ((3, "t"), {}, "write the URL of a database"),
            (("sqlite://", "t"), {}, "a database in memory is nobody else's"),
            (("sqlite:///:memory:", "t"), {}, "a database in memory is nobody else's"),
            (("sqlite:///f",), {}, "write the name of a table"),
            (("sqlite:///f", "t"), {"statement": "x"}, "write the name of a table"),
            (("sqlite:///f",), {"statement": "x", "key": "k"}, "are for tables"),
            (("sqlite:///f", "t"), {"columns": []}, "write a list of columns"),
            (("sqlite:///f", "t"), {"columns": ["a", "a"]}, "each once"),
            (("sqlite:///f", "t"), {"columns": ["a"], "key": "b"}, "'b' is not among columns"),
            (("sqlite:///f", "t"), {"settings": 3}, "write a dict"),
            (("sqlite:///f", "t"), {"name": ""}, "write a string"),
        ],
    )
    def test_wrong_argument_is_refused(self, arguments, options, message):
        with pytest.raises(InvalidArgumentError, match=message):
            sinks.sql(*arguments, **options)

    def test_missing_table_is_refused_before_the_job_runs(self, database):
        with pytest.raises(InvalidArgumentError, match=r"no table 'sale'.*'events', 'sales'"):
            sinks.sql(database.url, "sale").begin("run")

    def test_missing_column_is_refused_before_the_job_runs(self, database):
        with pytest.raises(InvalidArgumentError, match="no column 'color'"):
            sinks.sql(database.url, "sales", columns=["color"]).begin("run")

    def test_unknown_kind_of_database_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="as SQLAlchemy knows them"):
            sinks.sql("nosuch://host/db", "t").begin("run")

    def test_missing_driver_is_named(self):
        with pytest.raises(MissingDependencyError, match="needs the driver"):
            sinks.sql("mysql+pymysql://host/db", "t").begin("run")

    def test_unreachable_server_is_reported_without_its_password(self):
        sink = sinks.sql("postgresql://me:secret@127.0.0.1:1/db", "t")
        with pytest.raises(ServerUnreachableError, match="does not answer") as refused:
            sink.begin("run")
        assert "secret" not in str(refused.value)


class TestWriting:
    def test_batches_are_visible_as_they_come(self, database):
        writer = sinks.sql(database.url, "events").open("run", "w")
        writer.write(["tea"])
        assert database.rows("events") == [("tea",)]
        writer.write(["cup"])
        writer.abort()
        assert database.rows("events") == [("cup",), ("tea",)]

    def test_batch_with_a_bad_row_leaves_nothing_and_the_row_is_named(self, database):
        writer = sinks.sql(database.url, "events").open("run", "w")
        with pytest.raises(ItemFailedError) as failed:
            writer.write(["tea", None, "cup"])
        writer.abort()
        assert failed.value.item == {"item": None}
        assert database.rows("events") == []

    def test_second_row_with_a_key_of_the_batch_is_the_bad_one(self, database):
        writer = sinks.sql(database.url, "sales", columns=["id", "n"]).open("run", "w")
        with pytest.raises(ItemFailedError) as failed:
            writer.write([(1, 1), (2, 2), (1, 3)])
        writer.abort()
        assert failed.value.item == {"id": 1, "n": 3}

    def test_failure_of_the_server_is_one_that_a_restart_may_cure(self, postgres):
        database = Database(postgres.database())
        database.engine.dispose()
        writer = sinks.sql(database.url, "events").open("run", "w")
        writer.write(["tea"])
        postgres.stop()
        try:
            with pytest.raises(RestartableError, match="has failed"):
                writer.write(["cup"])
            writer.abort()
        finally:
            postgres.start()

    def test_writers_that_block_each_other_take_turns(self, postgresql):
        """Each locks a row and then wants the other's; the database lets one of them fail."""
        barrier = threading.Barrier(2)
        tries = []

        def write(first, second):
            from sqlalchemy import text

            def action(connection):
                tries.append(first)
                update = text(
                    "INSERT INTO sales VALUES (:id, 'x', 1) ON CONFLICT (id) DO UPDATE "
                    "SET n = sales.n + 1"
                )
                connection.execute(update, {"id": first})
                if len(tries) <= 2:
                    barrier.wait(60)
                connection.execute(update, {"id": second})
                return True

            client = SqlClient(SqlDatabase.of("test", postgresql.url), "test")
            client.run(action)
            client.close()

        threads = [threading.Thread(target=write, args=pair) for pair in ((1, 2), (2, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tries) > 2
        assert postgresql.rows() == [(1, "x", 2), (2, "x", 2)]

    def test_writer_that_hangs_in_a_transaction_does_not_keep_its_locks(
        self, postgresql, monkeypatch
    ):
        """Another one takes its place; what the first has not committed, it never does."""
        from sqlalchemy import text

        monkeypatch.setattr(module, "IDLE_LIMIT_MS", 100)
        is_locked, has_ended = threading.Event(), threading.Event()

        def run(action):
            client = SqlClient(SqlDatabase.of("test", postgresql.url), "test")
            with closing(client):
                client.run(action)

        def insert(connection, number):
            connection.execute(text(f"INSERT INTO sales VALUES (1, 'x', {number})"))

        def hang(connection):
            insert(connection, 1)
            is_locked.set()
            return has_ended.wait(60)

        def take_over():
            assert is_locked.wait(60)
            run(lambda connection: insert(connection, 2) or True)
            has_ended.set()

        thread = threading.Thread(target=take_over)
        thread.start()
        with pytest.raises(RestartableError, match="idle-in-transaction timeout"):
            run(hang)
        thread.join()
        assert postgresql.rows() == [(1, "x", 2)]

    def test_writer_that_waits_is_interrupted(self, postgresql):
        postgresql.run("INSERT INTO sales VALUES (1, 'tea', 1)")
        writer = sinks.sql(postgresql.url, "sales", columns=["id", "n"], key="id").open("run", "w")
        writer.write([(1, 1)])
        with postgresql.engine.begin() as connection:
            from sqlalchemy import text

            connection.execute(text("LOCK TABLE sales"))
            timer = threading.Timer(0.1, writer.interrupt)
            timer.start()
            with pytest.raises(JetletError, match="has failed") as failed:
                writer.write([(1, 2)])
            timer.join()
        writer.abort()
        assert not isinstance(failed.value, RestartableError)

    def test_pipeline_writes_to_a_table(self, sqlite):
        p = Pipeline()
        p.read_from(sources.items([(i, f"item-{i}", i) for i in range(100)])).write_to(
            sinks.sql(sqlite.url, "sales")
        )
        with EmbeddedEngine() as engine:
            engine.submit(p).join()
        assert sqlite.rows() == [(i, f"item-{i}", i) for i in range(100)]


class TestTransactions:
    def test_rows_are_visible_when_they_are_committed(self, database):
        writer = transactional(sinks.sql(database.url, "events"))
        first = prepared(writer, 0, ["tea"])
        second = prepared(writer, 1, ["cup"])
        assert database.rows("events") == []
        writer.commit(first)
        assert database.rows("events") == [("tea",)]
        writer.commit(second)
        writer.close()
        assert database.rows("events") == [("cup",), ("tea",)]

    def test_repeated_commit_writes_nothing(self, database):
        sink = sinks.sql(database.url, "events")
        writer = transactional(sink)
        first = prepared(writer, 0, ["tea"])
        writer.commit(first)
        writer.commit(first)
        writer.close()
        other = transactional(sink, attempt="2")
        other.recover([first])
        other.close()
        sink.commit_last("run", "sink", [first])
        assert database.rows("events") == [("tea",)]

    def test_another_attempt_may_count_as_the_first_did(self, database):
        sink = sinks.sql(database.url, "events")
        for attempt in ("1", "2"):
            writer = transactional(sink, attempt=attempt)
            writer.begin(transaction(0, attempt=attempt))
            writer.write([attempt])
            writer.commit(writer.prepare())
            writer.close()
        assert database.rows("events") == [("1",), ("2",)]

    def test_what_the_database_refuses_cannot_be_prepared(self, database):
        writer = transactional(sinks.sql(database.url, "events"))
        with pytest.raises(ItemFailedError) as failed:
            prepared(writer, 0, ["tea", None])
        writer.close()
        assert failed.value.item == {"item": None}
        assert database.rows("events") == []

    def test_item_that_does_not_fit_is_refused_when_it_comes(self, database):
        writer = transactional(sinks.sql(database.url, "sales"))
        writer.begin(transaction(0))
        with pytest.raises(BadRecordError, match="2 values for the 3 columns"):
            writer.write([(1, 2)])
        writer.close()

    def test_only_the_latest_marks_are_kept(self, sqlite):
        writer = transactional(sinks.sql(sqlite.url, "events"))
        for number in range(KEPT_MARKS + 5):
            writer.commit(prepared(writer, number, [str(number)]))
        writer.close()
        numbers = [row[3] for row in sqlite.rows(MARKS)]
        assert numbers == list(range(4, KEPT_MARKS + 5))

    def test_writers_may_begin_at_the_same_time(self, postgresql):
        sink = sinks.sql(postgresql.url, "events")
        barrier = threading.Barrier(4)
        failures = []

        def open_one(index):
            barrier.wait(60)
            try:
                transactional(sink, index).close()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=open_one, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_rows_with_equal_keys_are_replaced_in_order(self, database):
        sink = sinks.sql(database.url, "sales", columns=["id", "n"], key="id")
        writer = transactional(sink)
        first = prepared(writer, 0, [(1, 1), (1, 2)])
        second = prepared(writer, 1, [(1, 3)])
        writer.commit(first)
        writer.commit(second)
        writer.close()
        assert database.rows() == [(1, None, 3)]


class TestDeletes:
    """Changes by key: rows are written, replaced and deleted in the order of the items."""

    CHANGES = (
        {"op": "c", "id": 1, "item": "tea"},
        {"op": "c", "id": 2, "item": "cup"},
        {"op": "d", "id": 1},
        {"op": "u", "id": 2, "item": "pot"},
        {"op": "d", "id": 3},
        {"op": "c", "id": 1, "item": "milk"},
        {"op": "c", "id": 4, "item": "jug"},
        {"op": "d", "id": 4},
    )
    RESULT = [(1, "milk", None), (2, "pot", None)]

    def sink(self, database):
        return sinks.sql(database.url, "sales", key="id", delete=lambda change: change["op"] == "d")

    @pytest.mark.parametrize("size", [1, 2, 3, 8])
    def test_changes_are_applied_in_their_order(self, database, write_all, size):
        changes = list(self.CHANGES)
        parts = [changes[i : i + size] for i in range(0, len(changes), size)]
        for part in parts:
            write_all(self.sink(database), part)
        assert database.rows() == self.RESULT
        write_all(self.sink(database), changes)  # again does no harm
        assert database.rows() == self.RESULT

    def test_first_item_may_be_a_deletion(self, database, write_all):
        write_all(self.sink(database), [{"op": "d", "id": 7}, {"op": "c", "id": 7, "n": 1}])
        assert database.rows() == [(7, None, 1)]

    def test_transaction_has_them_when_it_is_committed_and_once(self, database):
        writer = transactional(self.sink(database))
        one = prepared(writer, 1, list(self.CHANGES))
        assert database.rows() == []
        writer.commit(one)
        assert database.rows() == self.RESULT
        database.run("DELETE FROM sales")
        writer.commit(one)  # done before
        writer.close()
        assert database.rows() == []

    def test_keys_may_have_several_columns(self, database, write_all):
        database.run("CREATE TABLE stock (shop INTEGER, item VARCHAR(9), PRIMARY KEY (shop, item))")
        sink = sinks.sql(
            database.url, "stock", key=["shop", "item"], delete=lambda row: row["gone"]
        )
        rows = [{"shop": n, "item": item, "gone": 0} for n in (1, 2) for item in "ab"]
        write_all(sink, [*rows, {"shop": 1, "item": "b", "gone": 1}])
        assert database.rows("stock") == [(1, "a"), (2, "a"), (2, "b")]

    def test_deleting_needs_a_key(self, database):
        with pytest.raises(InvalidArgumentError, match="key='id'"):
            sinks.sql(database.url, "sales", delete=bool)
        with pytest.raises(InvalidArgumentError, match="delete"):
            sinks.sql(database.url, "sales", key="id", delete=True)

    def test_stream_of_changes_is_applied_exactly_once(self, database, tmp_path):
        changes = [{"op": "d" if n % 5 == 4 else "c", "id": n % 37, "n": n} for n in range(2000)]
        expected = {}
        for change in changes:
            if change["op"] == "d":
                expected.pop(change["id"], None)
            else:
                expected[change["id"]] = change["n"]
        p = Pipeline("changes")
        stream = p.read_from(scripted_stream([*changes, END])).without_timestamps()
        stream.write_to(self.sink(database))
        config = JobConfig(
            processing_guarantee="exactly-once",
            snapshot_interval=0.005,
            snapshot_dir=str(tmp_path / "state"),
        )
        p.run(on="embedded", config=config, workers=1)
        assert database.rows() == sorted((id, None, n) for id, n in expected.items())
