import subprocess
import sys
import threading

import pytest

from jetlet.log import Log
from jetlet.log import watch as log_watch
from jetlet.log.segments import partition_directory

PROMPT = 60.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is only polling")


class Wakes:
    def __init__(self):
        self._count = threading.Semaphore(0)

    def __call__(self):
        self._count.release()

    def took_place(self):
        return self._count.acquire(timeout=PROMPT)

    def is_there(self):
        return self._count.acquire(blocking=False)


@pytest.fixture
def wakes():
    return Wakes()


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "in", partitions=2) as log:
        yield log


@pytest.fixture
def watched(tmp_path, log, wakes):
    directories = [partition_directory(str(tmp_path / "in"), i) for i in range(2)]
    watch = log_watch.watch(directories, wakes)
    assert watch is not None
    yield watch
    watch.close()


def test_a_write_wakes_once_for_each_time_it_was_armed(watched, log, wakes):
    for partition in (0, 1):
        watched.arm()
        log.append(["a"], partition=partition)
        assert wakes.took_place()
    log.append(["b"], partition=0)
    log.append(["c"], partition=0)
    assert not wakes.is_there()


def test_what_was_written_before_it_was_armed_counts(watched, log, wakes):
    log.append(["a"], partition=0)
    watched.arm()
    assert wakes.took_place()


def test_a_write_by_another_process_wakes(watched, tmp_path, wakes):
    watched.arm()
    code = f"from jetlet.log.log import Log; Log({str(tmp_path / 'in')!r}).append([1])"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert wakes.took_place()


def test_it_ends_its_thread_and_closing_twice_is_fine(watched):
    watched.arm()
    watched.close()
    watched.close()
    assert "jetlet-log-watch" not in {thread.name for thread in threading.enumerate()}


def test_where_the_kernel_cannot_watch_there_is_no_watch(tmp_path, wakes, monkeypatch):
    assert log_watch.watch([str(tmp_path / "missing")], wakes) is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert log_watch.watch([str(tmp_path)], wakes) is None
