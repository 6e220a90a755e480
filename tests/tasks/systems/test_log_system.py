import sys
import threading
from pathlib import Path

import pytest

from jetlet.errors import InputNotFoundError, JetletError
from jetlet.log import Log
from jetlet.log.segments import partition_directory, segment_path
from jetlet.tasks import systems
from jetlet.tasks.envelope import SystemStreamPartition
from jetlet.tasks.systems.system import Start

PROMPT = 60.0
KEY = SystemStreamPartition("s", "in", 0)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is only polling")


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "in", partitions=2) as log:
        yield log


@pytest.fixture
def wakes():
    return threading.Event()


@pytest.fixture
def consumer(tmp_path, log, wakes):
    consumer = systems.log(tmp_path).consumer({KEY: Start(None)})
    consumer.start(wakes.set)
    yield consumer
    consumer.close()


def poll(consumer):
    polled = consumer.poll([KEY], 10)
    return polled and [envelope.message for each in polled for envelope in each.envelopes]


def test_a_consumer_at_the_end_waits_to_be_woken(consumer, log, wakes):
    assert poll(consumer) is None
    log.append(["a"], partition=0)
    assert wakes.wait(PROMPT)
    assert poll(consumer) == ["a"]


def test_a_consumer_without_a_watch_asks_to_be_polled(consumer, log):
    consumer._watch.close()
    consumer._watch = None
    assert poll(consumer) == []


def test_a_consumer_does_not_wait_for_the_rest_of_a_block(consumer, log, tmp_path):
    log.append(["a"], partition=0)
    assert poll(consumer) == ["a"]
    path = Path(segment_path(partition_directory(str(tmp_path / "in"), 0), 0))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert poll(consumer) == []


def test_a_log_that_is_removed_is_noticed_at_once(consumer, tmp_path, wakes):
    assert poll(consumer) is None
    for path in sorted((tmp_path / "in").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert wakes.wait(PROMPT)
    with pytest.raises(JetletError, match="removed"):
        poll(consumer)


def test_a_stream_that_is_missing_is_refused_with_how_to_make_it(tmp_path):
    with pytest.raises(
        InputNotFoundError, match=r"'nothing'.*Log\('.*nothing', partitions=\.\.\.\)"
    ):
        systems.log(tmp_path).partition_count("nothing")
