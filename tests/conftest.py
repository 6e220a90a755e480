"""Settings and servers that all tests share."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from jetlet.errors import MissingDependencyError
from jetlet.execution.garbage import MIDDLE_AGE, OLD_AGE, YOUNG_OBJECTS
from jetlet.jobs.members import members_coordinator
from jetlet.testing import verify_processor

# The same examples in every run, and nobody looks at how long it takes to make or try them: on a
# busy machine time says nothing about the code. `pytest --hypothesis-profile=explore` looks for new
# examples instead, `quick` is for the inner loop.
TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("jetlet", TIMELESS, derandomize=True)
settings.register_profile("quick", TIMELESS, derandomize=True, max_examples=10)
settings.register_profile("explore", TIMELESS, max_examples=1000)
settings.load_profile("jetlet")

# Nor does it if a call of a processor takes five seconds, as it may beside other tests.
verify_processor.__kwdefaults__["timeout"] = 60.0

SERVERS = {"kafka", "redis_process", "postgres"}
"""Fixtures that are servers."""

# What a shell starts in the background ignores it, and hands that on to what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# --- Running in parallel -------------------------------------------------------------------

DRIVERS = re.compile(
    r"tests/spark/(?:launch/\w+|micro_batch/test_crashes"
    r"|test_(?:cluster|connect|restrictions|submit|interrupt|hosted_\w+))\.py"
)
"""Tests that have Spark in other processes than their own."""


def share_of(test):
    """What is run by one process: tests on the session of Spark in it, else those of a file."""
    file = test.partition("::")[0]
    on_spark = file.startswith("tests/spark/") or "[spark" in test
    return "spark" if on_spark and not DRIVERS.match(file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """For ``pytest -n 4``."""
    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return share_of(nodeid)

    config.option.loadscopereorder = False
    return Shares(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Tests that need a server are marked so before -m looks; what takes long begins first."""
    for item in items:
        if SERVERS & set(item.fixturenames) or "[postgres" in item.name:
            item.add_marker(pytest.mark.server)
    yield
    if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        items.sort(key=_turn)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Do not look for garbage among what is collected: modules, and ten thousand tests.

    Looking at all of it takes a third of a second, each time. The threshold is that of a job, so
    that none asks how many objects are left out of the search: Python would count them, one by one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_AGE, OLD_AGE)


def _turn(item):
    if share_of(item.nodeid) == "spark":
        return 0
    marks = {mark.name for mark in item.iter_markers()}
    return 1 if "spark" in marks else 2 if marks & {"cluster", "fault", "slow"} else 3


# --- Pythons that not all libraries are made for ----------------------------------------------

LACKS_LIBRARIES = bool(sysconfig.get_config_var("Py_GIL_DISABLED")) or sys.version_info >= (3, 14)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skip what needs a library that is not made for such a Python yet, and is not installed."""
    report = yield
    if LACKS_LIBRARIES and report.failed:
        error = call.excinfo.value
        while error is not None and not isinstance(error, MissingDependencyError):
            error = error.__cause__
        if error is not None:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {error}")
    return report


@pytest.fixture(scope="session", autouse=True)
def _members_have_time():
    """However busy the machine, no member is taken for dead, or killed before it has tidied up.

    Tests that are about one of these limits set it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members_coordinator, "HEARTBEAT_LIMIT", 60.0)
        patch.setattr(members_coordinator, "STOP_LIMIT", 60.0)
        patch.setattr(members_coordinator, "KILL_LIMIT", 30.0)
        yield


# --- Spark ------------------------------------------------------------------------------------


SPARK_ENGINE = pytest.StashKey()


@pytest.fixture(scope="session")
def spark_engine(request):
    """An engine with two cores of this machine. There can be one session in a process."""
    from jetlet import SparkEngine

    with SparkEngine("local[2]") as engine:
        request.config.stash[SPARK_ENGINE] = engine
        yield engine


@pytest.fixture(autouse=True)
def _no_job_outlives_its_test(request):
    """The session has few slots: a job that a failed test has left there would fail all others."""
    engine = request.config.stash.get(SPARK_ENGINE, None)
    before = engine.jobs if engine is not None else []
    yield
    engine = request.config.stash.get(SPARK_ENGINE, None)
    for job in engine.jobs if engine is not None else ():
        if job not in before:
            job.cancel()


@pytest.fixture(scope="session")
def short_lived(tmp_path_factory):
    """Variables for processes that run Spark for a few seconds, and may be killed."""
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # half the processor time
    return {
        "CI": "yes",  # no archive of classes is made in the background
        "JDK_JAVA_OPTIONS": f"{options} -Djava.io.tmpdir={tmp_path_factory.mktemp('java')}",
    }


# --- Servers --------------------------------------------------------------------------------


class KafkaCluster:
    """A cluster that librdkafka plays, reached over TCP. Each topic has four partitions."""

    def __init__(self):
        from confluent_kafka import Producer

        self._host = Producer(
            {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0}
        )
        brokers = self._host.list_topics(timeout=60).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        self._producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        self._topics = 0

    def topic(self):
        """A new topic."""
        self._topics += 1
        name = f"topic-{self._topics}"
        while not self._producer.list_topics(name, timeout=60).topics[name].partitions:
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
        found = consumer.consume(count, timeout=60)
        consumer.close()
        assert len(found) == count
        assert all(message.error() is None for message in found)
        return found


@pytest.fixture(scope="session")
def kafka():
    return KafkaCluster()


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


class RedisProcess:
    """A server of our own, which keeps nothing; it can be stopped and started again."""

    def __init__(self, directory):
        self._directory = directory
        with socket.create_server(("127.0.0.1", 0)) as unused:
            self.port = unused.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process = None
        self.start()

    def start(self):
        import redis

        arguments = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._directory,
            "save": "",
            "appendonly": "no",
        }
        # It must not outlive a test run that is killed.
        command = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command += ["redis-server"]
        for name, value in arguments.items():
            command += [f"--{name}", str(value)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port, decode_responses=True)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert self._process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def stop(self):
        self.client.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory):
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield process
    process.stop()


@pytest.fixture
def redis(redis_process):
    """A server without data: its ``url``, and a ``client``."""
    redis_process.client.flushall()
    return redis_process


class PostgresProcess:
    """A server of our own, in a directory of its own; it can be stopped and started again.

    It listens at an address; ``run`` is what the command of a process there begins with.
    """

    def __init__(self, programs, address="127.0.0.1", run=()):
        self._programs = programs
        self._address = address
        self._run = run
        # The server refuses to run as root, and its user cannot enter the directories of a test.
        self._user = "postgres" if os.geteuid() == 0 else None
        self._directory = tempfile.mkdtemp(prefix="jetlet-postgres-")
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        with socket.create_server(("127.0.0.1", 0)) as unused:
            self.port = unused.getsockname()[1]
        self._databases = 0
        options = ["--username=jetlet", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        self._popen("initdb", "--no-sync", *options, "--pgdata", f"{self._directory}/data").wait()
        with Path(self._directory, "data/pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {address}/24 trust\n")
        self.start()

    def _popen(self, program, *arguments, prefix=()):
        command = [*prefix, self._programs / program, *arguments]
        user = self._user
        if self._run:  # only root may go there
            whose = ["--reuid", user, "--regid", user, "--init-groups"] if user else []
            command, user = [*self._run, "setpriv", *whose, *command], None
        return subprocess.Popen(
            command,
            user=user,
            cwd=self._directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def start(self):
        import psycopg

        settings = {
            "listen_addresses": self._address,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
        }
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        # It must not outlive a test run that is killed.
        mortal = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        self._process = self._popen(
            "postgres", "-D", f"{self._directory}/data", *arguments, prefix=mortal
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def connect(self, database):
        import psycopg

        return psycopg.connect(
            host=self._address, port=self.port, user="jetlet", dbname=database, autocommit=True
        )

    def database(self):
        """The URL of a new, empty database."""
        self._databases += 1
        name = f"database_{self._databases}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://jetlet@{self._address}:{self.port}/{name}"

    def stop(self):
        """As if the machine had gone down."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def remove(self):
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres():
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    process = PostgresProcess(programs[-1].parent)
    yield process
    process.remove()


@pytest.fixture
def no_thread_left():
    """Fails a test after which more threads run than before."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        # A job that was cancelled on a busy machine may leave what ends a moment later.
        thread.join(60)
    left = [thread for thread in left if thread.is_alive()]
    assert not left, f"left behind: {left}"


# --- Places for files -------------------------------------------------------------------------


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
