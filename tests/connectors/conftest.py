"""What an engine does with a source and a sink, without an engine."""

from __future__ import annotations

import pickle
from pathlib import Path

import cloudpickle
import pytest

from jetlet.errors import BadRecordError
from jetlet.pipeline.source import BATCH_SIZE


def _read_all(source, target=1):
    """All items, split by split; the source and its splits travel as they would to a member."""
    splits = source.splits(target)
    there = pickle.loads(cloudpickle.dumps(source))
    items = []
    for split in splits:
        for batch in there.read(pickle.loads(pickle.dumps(split))):
            assert type(batch) in (list, tuple, range)
            assert 0 < len(batch) <= BATCH_SIZE
            items.extend(batch)
    return items


def _write_all(sink, *parts, run_id="run"):
    """Write each part with a writer of its own, and commit."""
    sink.begin(run_id)
    there = pickle.loads(cloudpickle.dumps(sink))
    messages = []
    for i, part in enumerate(parts):
        writer = there.open(run_id, f"writer-{i}")
        for start in range(0, len(part), 100):
            writer.write(part[start : start + 100])
        messages.append(writer.finish())
    sink.commit(run_id, pickle.loads(pickle.dumps(messages)))


def _refused_by(sink, batch):
    """The error that writing the batch raises; ends the run as an engine would."""
    sink.begin("run")
    writer = sink.open("run", "writer")
    try:
        with pytest.raises(BadRecordError) as refused:
            writer.write(batch)
            writer.finish()
    finally:
        writer.abort()
        sink.abort("run")
    return str(refused.value)


def _tree(directory: Path) -> dict[str, bytes]:
    """Every file below the directory, hidden ones too."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def read_all():
    return _read_all


@pytest.fixture(scope="session")
def write_all():
    return _write_all


@pytest.fixture(scope="session")
def refused_by():
    return _refused_by


@pytest.fixture(scope="session")
def tree():
    return _tree


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """A directory for the examples of hypothesis, which overwrite each other's files."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture
def memory_url():
    """A URL of an empty directory in fsspec's file system in memory."""
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield "memory://data"
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


# --- Servers --------------------------------------------------------------------------------


class KafkaCluster:
    """A cluster that librdkafka plays, reached over TCP. Each topic has four partitions."""

    def __init__(self):
        from confluent_kafka import Producer

        self._host = Producer(
            {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0}
        )
        brokers = self._host.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        self._producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        self._topics = 0

    def topic(self):
        """A new topic."""
        self._topics += 1
        name = f"topic-{self._topics}"
        while not self._producer.list_topics(name, timeout=10).topics[name].partitions:
            pass
        return name

    def send(self, topic, partition, values, *, timestamps=None, **options):
        for i, value in enumerate(values):
            at = timestamps[i] if timestamps is not None else 0
            self._producer.produce(topic, value, partition=partition, timestamp=at, **options)
        assert self._producer.flush(10) == 0

    def consumer(self, **options):
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "test",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
                **options,
            }
        )

    def read(self, topic, count):
        """So many messages of a topic."""
        from confluent_kafka import TopicPartition

        consumer = self.consumer()
        consumer.assign([TopicPartition(topic, i, 0) for i in range(4)])
        found = consumer.consume(count, timeout=10)
        consumer.close()
        assert len(found) == count
        assert all(message.error() is None for message in found)
        return found


@pytest.fixture(scope="session")
def kafka():
    return KafkaCluster()
