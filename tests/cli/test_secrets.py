"""A password in a URL, and the key of snapshots, are nowhere where others could read them."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from redis import Redis

from jetlet.log import Log

pytestmark = [pytest.mark.process, pytest.mark.server]

PASSWORD = "canary-in-the-url"
KEY = "canary-in-the-key-file"
CANARIES = [PASSWORD.encode(), KEY.encode(), KEY.encode().hex().encode()]

FILE = "secretive.py"
JOB = """
    from jetlet import Pipeline, agg, sinks, sources

    clicks = Pipeline("clicks")
    (clicks.read_from(sources.log("clicks.log")).without_timestamps()
       .grouping_key(lambda n: n % 3).rolling_aggregate(agg.counting())
       .map(lambda entry: {"key": entry[0], "count": entry[1]})
       .write_to(sinks.redis_stream("counts", "REDIS")))
"""


@pytest.fixture
def guarded(redis):
    """A client of the server, which lets nobody in who does not know the password."""
    redis.client.config_set("requirepass", PASSWORD)
    client = Redis(port=redis.port, password=PASSWORD)
    yield client
    client.config_set("requirepass", "")
    client.close()


def processes_below(pid):
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue

    def is_below(each):
        while each and each != pid:
            each = parents.get(each)
        return each == pid

    return [each for each in parents if is_below(each)]


def places(process, directory):
    """All that others could read of the job: what its processes are called with, and its files."""
    for pid in processes_below(process.pid):
        for name in ("cmdline", "environ"):
            path = Path(f"/proc/{pid}/{name}")
            try:
                yield str(path), path.read_bytes()
            except OSError:
                continue
    for path in directory.rglob("*"):
        if path.name in (FILE, "key") or path.suffix == ".pyc":
            continue
        try:
            yield str(path), path.read_bytes()
        except OSError:  # a directory, a socket, or a snapshot that another has taken the place of
            continue


def test_secrets_are_nowhere_to_be_read(project, guarded):
    port = guarded.connection_pool.connection_kwargs["port"]
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    project.write(FILE, JOB.replace("REDIS", url))
    (project.directory / "key").write_text(KEY + "\n")
    with Log(project.directory / "clicks.log", partitions=2) as log:
        log.append(list(range(30)))
    plan = project.jetlet("plan", FILE, "--on", "embedded")
    dot = project.jetlet("plan", FILE, "--on", "embedded", "--dot")
    log, said = project.directory / "stderr", project.directory / "stdout"
    with log.open("w") as err, said.open("w") as out:
        process = project.start(
            *("run", FILE, "--on", "embedded", "--members", "2", "--log-level", "debug"),
            *("--guarantee", "at-least-once", "--snapshot-dir", "state"),
            *("--snapshot-key-file", "key", "--snapshot-interval", "0.1"),
            *("--metrics-port", "0", "--interval", "0.2"),
            stdout=out,
            stderr=err,
        )

    def wait_for(look):
        while not (found := look()):
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)
        return found

    metrics = wait_for(lambda: re.search(r"metrics at (http\S+)\n", log.read_text()))[1]
    wait_for(lambda: guarded.xlen("counts") >= 30)
    wait_for(lambda: list(project.directory.rglob("*.state")))
    found = [("plan", plan.output.encode()), ("dot", dot.output.encode())]
    found += [("jobs", project.jetlet("jobs", "--json").output.encode())]
    found += [("snapshots", project.jetlet("snapshots", "state").output.encode())]
    with urllib.request.urlopen(metrics, timeout=60) as answer:
        found.append(("metrics", answer.read()))
    found += places(process, project.directory)
    process.send_signal(signal.SIGTERM)
    process.wait(100)
    found += [(path.name, path.read_bytes()) for path in (log, said)]

    assert process.returncode == 0
    assert len(found) > 15, "processes and files were looked at"
    assert any(name.endswith(".state") for name, _ in found)
    leaks = [name for name, data in found if any(canary in data for canary in CANARIES)]
    assert leaks == []


def test_an_error_of_the_server_does_not_tell_the_password(project, guarded):
    port = guarded.connection_pool.connection_kwargs["port"]
    wrong = f"redis://:{PASSWORD}-wrong@127.0.0.1:{port}/0"
    project.write(FILE, JOB.replace("REDIS", wrong))
    with Log(project.directory / "clicks.log", partitions=1):
        pass
    refused = project.jetlet("run", FILE, "--on", "embedded", "--traceback")
    assert refused.exit_code in (1, 2)
    assert PASSWORD not in refused.output
