from __future__ import annotations

import pickle
import shutil

import pytest

from jetlet.errors import BadRecordError, InvalidArgumentError, JetletError
from jetlet.tasks import checkpoints, stores
from jetlet.tasks.envelope import SystemStreamPartition
from jetlet.tasks.state import kafka_state
from jetlet.tasks.state.changelog import in_kafka, restore
from jetlet.tasks.state.container_storage import Checkpoint, StoreContext
from jetlet.tasks.state.local_store import MemoryStore

QUICK = {"fetch.wait.max.ms": 10}
VIEWS = SystemStreamPartition("kafka", "views", 0)


@pytest.fixture
def topic(kafka):
    return kafka.topic()


def context(partition=0, partitions=4, position=None):
    return StoreContext("app", f"task {partition}", "views", partition, partitions, position)


class TestChangelog:
    @pytest.fixture
    def place(self, kafka, topic):
        return pickle.loads(pickle.dumps(in_kafka(kafka.servers, topic, settings=QUICK)))

    @pytest.fixture
    def changelog(self, place):
        opened = place.open(context(2))
        yield opened
        opened.close()

    def test_changes_are_records_of_the_tasks_partition(self, kafka, topic, changelog):
        assert changelog.bounds() == (0, 0)
        changes = [(b"a", b"1"), (b"b", None), (b"", b""), (b"a", b"2")]
        assert changelog.append(changes).end == 4
        assert changelog.bounds() == (0, 4)
        assert changelog.read(0, 4)[0] == changes
        assert changelog.append([(b"c", b"3")]).end == 5
        found = kafka.read(topic, 5)
        assert {message.partition() for message in found} == {2}
        assert [(m.key(), m.value()) for m in found] == [*changes, (b"c", b"3")]

    def test_a_restore_ends_where_it_should(self, changelog):
        changelog.append([(b"%d" % i, b"x") for i in range(1000)])
        local = MemoryStore()
        restore(local, changelog, 1000)
        assert len(local.page(b"", None, 2000)) == 1000
        assert local.position.end == 1000
        changelog.append([(b"0", b"uncommitted"), (b"new", b"uncommitted")])
        again = MemoryStore()
        end = restore(again, changelog, 1000)
        assert again.page(b"", None, 2000) == local.page(b"", None, 2000)
        assert end.end == 1004
        changes, position = changelog.read(1002, 1004)
        assert (changes, position.end) == ([(b"0", b"x"), (b"new", None)], 1004)

    def test_only_records_before_the_position_are_read(self, changelog):
        changelog.append([(b"%d" % i, b"x") for i in range(10)])
        at, found = 3, []
        while at < 7:
            changes, position = changelog.read(at, 7)
            found += (key for key, _ in changes)
            at = position.end
        assert found == [b"3", b"4", b"5", b"6"]
        assert at == 7
        assert changelog.read(7, 8)[0] == [(b"7", b"x")]

    def test_a_topic_with_fewer_partitions_than_tasks_is_refused(self, place):
        with pytest.raises(InvalidArgumentError, match="has 4 partitions, and there are 5 tasks"):
            place.open(context(0, 5))

    def test_a_change_that_is_too_large_is_told(self, changelog, topic):
        with pytest.raises(JetletError, match=rf"cannot be written to {topic}\[2\]"):
            changelog.append([(b"a", b"x" * 2**21)])

    def test_records_that_do_not_come_are_not_waited_for_without_end(self, changelog, monkeypatch):
        monkeypatch.setattr(kafka_state, "READ_TIMEOUT", 0.2)
        with pytest.raises(JetletError, match="did not send the records from 0 to 9"):
            changelog.read(0, 10)

    def test_a_store_is_restored_on_another_machine(self, place, tmp_path):
        declared = stores.sqlite(tmp_path / "state", key=str, value=int, changelog=place)
        store = declared.open(context())
        store.put_many({"ann": 1, "bob": 2, "eve": 3})
        store.flush()
        store.committed()
        store.delete("bob")
        position = store.flush()
        store.committed()
        store.put("eve", 99)
        store.flush()  # and no checkpoint
        store.close()
        for is_elsewhere in (False, True):
            if is_elsewhere:
                shutil.rmtree(tmp_path / "state")
            store = declared.open(context(position=position))
            assert dict(store.all()) == {"ann": 1, "eve": 3}
            store.close()


class TestCheckpoints:
    @pytest.fixture
    def place(self, kafka, topic):
        made = checkpoints.in_kafka(kafka.servers, topic, settings=QUICK)
        return pickle.loads(pickle.dumps(made))

    def test_the_latest_is_read_in_the_next_run(self, place):
        for run in range(3):
            manager = place.open("app")
            for task in ("task 0", "task 1"):
                expected = Checkpoint({VIEWS: 10 * run}, {task: run})
                assert manager.read(task) == (expected if run else None)
                for i in range(1, 11):
                    latest = Checkpoint({VIEWS: 10 * run + i}, {task: run + 1})
                    manager.write(task, latest)
                    assert manager.read(task) == latest
            manager.close()
            manager.close()

    def test_applications_share_a_topic(self, place):
        first, second = place.open("first"), place.open("second")
        first.write("task", Checkpoint({VIEWS: 1}))
        second.write("task", Checkpoint({VIEWS: 2}))
        for name, offset in (("first", 1), ("second", 2)):
            manager = place.open(name)
            assert manager.read("task") == Checkpoint({VIEWS: offset})
            manager.close()
        first.close()
        second.close()

    def test_a_record_that_is_none_is_refused(self, kafka, topic, place):
        kafka.send(topic, 0, [b"nonsense"], key=b"app\x00task")
        manager = place.open("app")
        with pytest.raises(BadRecordError):
            manager.read("task")
        manager.close()

    def test_a_name_that_cannot_be_a_topic_is_refused(self, kafka):
        with pytest.raises(InvalidArgumentError, match="write the name of a topic"):
            checkpoints.in_kafka(kafka.servers, "a b")
