"""What an engine does with a source and a sink, without an engine."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

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


# --- A model of Kafka's transactions --------------------------------------------------------


class KafkaModel:
    """What Kafka promises of transactions, which the cluster that librdkafka plays does not keep.

    Records and offsets of a transaction count together, when it is committed. A producer that
    begins aborts what another of its name has begun, which then cannot do anything any more.
    """

    def __init__(self):
        self.records = []
        self.offsets = {}
        self.producers = {}

    def install(self, patch):
        """Be what clients talk to."""
        import confluent_kafka

        patch.setattr(confluent_kafka, "Producer", lambda settings: ModelProducer(self, settings))
        patch.setattr(confluent_kafka, "Consumer", lambda settings: ModelConsumer(self, settings))


class ModelProducer:
    def __init__(self, model, settings):
        self._model = model
        self._name = settings["transactional.id"]
        self._records = None

    def init_transactions(self, timeout):
        self._model.producers[self._name] = self

    def begin_transaction(self):
        assert self._records is None
        self._records, self._offsets = [], {}

    def produce(self, topic, value, key, partition, timestamp):
        self._records.append(value)

    def send_offsets_to_transaction(self, offsets, group, timeout):
        self._offsets.update({(group, o.topic, o.partition): o.offset for o in offsets})

    def commit_transaction(self, timeout):
        from confluent_kafka import KafkaError, KafkaException

        if self._model.producers[self._name] is not self:
            raise KafkaException(KafkaError(KafkaError._FENCED))
        self._model.records += self._records
        self._model.offsets.update(self._offsets)
        self._records = None

    def poll(self, timeout):
        pass

    def flush(self, timeout):
        return 0

    def purge(self):
        pass


class ModelConsumer:
    def __init__(self, model, settings):
        self._model = model
        self._group = settings["group.id"]

    def list_topics(self, topic, timeout):
        found = SimpleNamespace(error=None, partitions={0: None})
        return SimpleNamespace(topics={topic: found})

    def committed(self, places, timeout):
        for place in places:
            key = (self._group, place.topic, place.partition)
            place.offset = self._model.offsets.get(key, -1001)
        return places

    def consumer_group_metadata(self):
        return self._group

    def close(self):
        pass


@pytest.fixture(scope="session")
def kafka_model():
    return KafkaModel
