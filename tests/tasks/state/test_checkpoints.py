from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.errors import BadRecordError, JetletError
from jetlet.log import Log
from jetlet.tasks import checkpoints
from jetlet.tasks.envelope import SystemStreamPartition
from jetlet.tasks.state.checkpoints import decode_checkpoint, encode_checkpoint
from jetlet.tasks.state.container_storage import Checkpoint

VIEWS = SystemStreamPartition("kafka", "views", 0)
CLICKS = SystemStreamPartition("redis", "clicks", 1)


def at(offset):
    return Checkpoint({VIEWS: offset, CLICKS: f"{offset}-0"}, {"counts": offset * 2})


@pytest.fixture(params=["in_memory", "in_directory", "in_log"])
def place(request, tmp_path):
    where = () if request.param == "in_memory" else (tmp_path,)
    return getattr(checkpoints, request.param)(*where)


@pytest.fixture(params=["in_directory", "in_log"])
def on_disk(request, tmp_path):
    return getattr(checkpoints, request.param)(tmp_path)


class TestAnywhere:
    def test_the_latest_is_read_in_the_next_run(self, place):
        for run in range(3):
            manager = place.open("app")
            assert manager.read("task 0") == (at(run * 3) if run else None)
            for i in (1, 2, 3):
                manager.write("task 0", at(run * 3 + i))
                assert manager.read("task 0") == at(run * 3 + i)
            manager.close()
            manager.close()

    def test_tasks_and_applications_have_their_own(self, place):
        names = ["a", "b", "a/b", "..", "a.lock", "a.0.checkpoint"]
        for run in range(2):
            for application in names:
                manager = place.open(application)
                for task in names:
                    expected = Checkpoint({}, {application: 1, task: 2})
                    assert manager.read(task) == (expected if run else None)
                    manager.write(task, expected)
                manager.close()

    def test_what_is_written_is_as_it_was_then(self, place):
        offsets = {VIEWS: 1}
        manager = place.open("app")
        manager.write("task", Checkpoint(offsets))
        offsets[VIEWS] = 2
        manager.close()
        manager = place.open("app")
        assert manager.read("task") == Checkpoint({VIEWS: 1})
        manager.close()


class TestOnDisk:
    def test_the_place_travels(self, on_disk):
        manager = pickle.loads(pickle.dumps(on_disk)).open("app")
        manager.write("task", at(5))
        manager.close()
        manager = on_disk.open("app")
        assert manager.read("task") == at(5)
        manager.close()

    def test_a_task_has_one_container(self, on_disk, monkeypatch):
        monkeypatch.setattr(checkpoints, "TAKEOVER_SECONDS", 0.02)
        first, second = on_disk.open("app"), on_disk.open("app")
        first.write("task", at(5))
        for use in (lambda: second.read("task"), lambda: second.write("task", at(1))):
            with pytest.raises(JetletError, match="task 'task' runs in another container already"):
                use()
        second.write("other task", at(1))
        first.close()
        assert second.read("task") == at(5)
        second.close()

    def test_a_task_waits_for_the_container_that_closes_it(self, on_disk):
        first, second = on_disk.open("app"), on_disk.open("app")
        first.write("task", at(5))
        closing = threading.Timer(0.05, first.close)
        closing.start()
        assert second.read("task") == at(5)
        closing.join()
        second.close()

    def test_a_container_that_was_killed_holds_nothing(self, on_disk):
        code = (
            "import os, pickle, sys; manager = pickle.loads(bytes.fromhex(sys.argv[1])).open('app')"
            "; manager.read('task'); os.kill(os.getpid(), 9)"
        )
        killed = subprocess.run(
            [sys.executable, "-c", code, pickle.dumps(on_disk).hex()], check=False
        )
        assert killed.returncode == -9
        manager = on_disk.open("app")
        assert manager.read("task") is None
        manager.close()

    @pytest.mark.parametrize("kind", ["in_directory", "in_log"])
    def test_it_can_wait_for_the_disk(self, kind, tmp_path, monkeypatch):
        manager = getattr(checkpoints, kind)(tmp_path, fsync=True).open("app")
        manager.write("task", at(1))
        synced = []
        monkeypatch.setattr("os.fsync", synced.append)
        manager.write("task", at(2))
        assert synced
        monkeypatch.undo()
        manager.close()


class TestInDirectory:
    @pytest.fixture
    def files(self, tmp_path):
        place = checkpoints.in_directory(tmp_path)
        manager = place.open("app")
        for i in (1, 2, 3):
            manager.write("task", at(i))
        manager.close()
        return place, sorted(tmp_path.rglob("*.checkpoint"))

    def test_of_a_damaged_one_the_one_before_is_used(self, files, caplog):
        place, (older, latest) = files
        whole = latest.read_bytes()
        for damage in (b"", whole[:-1], whole[:40], whole.replace(b"3", b"4"), b"\x00" * 100):
            latest.write_bytes(damage)
            manager = place.open("app")
            assert manager.read("task") == at(2)
            manager.close()
            assert f"{latest} is damaged" in caplog.text
            caplog.clear()
        assert older.exists()

    def test_what_follows_a_damaged_one_is_read(self, files, caplog):
        place, (_, latest) = files
        latest.write_bytes(b"")
        manager = place.open("app")
        manager.write("task", at(7))
        manager.close()
        caplog.clear()
        manager = place.open("app")
        assert manager.read("task") == at(7)
        manager.close()

    def test_without_a_whole_one_it_is_not_forgotten(self, files):
        place, paths = files
        for path in paths:
            path.write_bytes(b"x")
        manager = place.open("app")
        with pytest.raises(JetletError, match="remove it to begin anew"):
            manager.read("task")
        for path in paths:
            path.unlink()
        assert manager.read("task") is None
        manager.close()

    def test_a_later_format_is_refused(self, files):
        place, (_, latest) = files
        data = encode_checkpoint(at(9), 9).replace(b'"format": 1', b'"format": 8')
        text = data[9:-1]
        latest.write_bytes(b"%08x %s\n" % (checkpoints.crc32(text), text))
        manager = place.open("app")
        with pytest.raises(JetletError, match=r"format 8.*update jetlet"):
            manager.read("task")
        manager.close()


class TestInLog:
    @pytest.mark.parametrize(("limit", "value"), [("_DISCARD_EVERY", 10), ("_DISCARD_BYTES", 300)])
    def test_others_can_follow_and_old_ones_go(self, tmp_path, monkeypatch, limit, value):
        monkeypatch.setattr(checkpoints, limit, value)
        monkeypatch.setattr(checkpoints, "_SEGMENT_BYTES", 1000)
        manager = checkpoints.in_log(tmp_path).open("app")
        for i in range(1, 101):
            manager.write("task", at(i))
        with Log(tmp_path / "app" / "task") as log:
            start, end = log.start_offsets()[0], log.end_offsets()[0]
            assert end == 100
            assert start > 90
            assert decode_checkpoint(log.read(0, end - 1).items[0]) == (at(100), 100)
        manager.close()


class TestBytes:
    @given(
        st.dictionaries(
            st.builds(SystemStreamPartition, st.text(), st.text(), st.integers(0, 9)),
            st.integers() | st.text(),
        ),
        st.dictionaries(st.text(), st.integers(0)),
        st.integers(1),
    )
    def test_come_back(self, offsets, stores, version):
        checkpoint = Checkpoint(offsets, stores)
        assert decode_checkpoint(encode_checkpoint(checkpoint, version)) == (checkpoint, version)

    def test_are_readable(self):
        content = json.loads(encode_checkpoint(at(3), 1)[9:])
        assert content["offsets"] == [["kafka", "views", 0, 3], ["redis", "clicks", 1, "3-0"]]
        assert content["stores"] == {"counts": 6}

    @given(st.data())
    def test_any_changed_byte_is_noticed(self, data):
        encoded = bytearray(encode_checkpoint(at(3), 1))
        place = data.draw(st.integers(0, len(encoded) - 2))
        encoded[place] ^= data.draw(st.integers(1, 255))
        with pytest.raises(BadRecordError):
            decode_checkpoint(bytes(encoded))
