from __future__ import annotations

import http.client
import socket
import sys
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jetlet import EmbeddedEngine, Pipeline, sinks, sources
from jetlet.errors import InvalidArgumentError, MissingDependencyError
from jetlet.metrics import MetricsServer


@pytest.fixture
def server():
    before = set(threading.enumerate())
    with MetricsServer() as server:
        yield server
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread


def fetch(url, **options):
    with urllib.request.urlopen(urllib.request.Request(url, **options), timeout=60) as response:
        return response.read().decode()


def test_serves_the_jobs_it_was_told_of(server):
    p = Pipeline("p")
    p.read_from(sources.items(range(5))).write_to(sinks.noop())
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(p)
        server.add(job)
        job.join(60)
        families = {f.name: f for f in text_string_to_metric_families(fetch(server.url))}
        received = families["jetlet_vertex_received_items"].samples
        labels = {"job_name": "p", "job_id": job.id, "vertex": "noop-sink"}
        assert [s.value for s in received if s.labels == labels] == [5]
        server.remove(job)
        assert fetch(server.url) == ""


def test_only_this_machine_is_served(server):
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    assert server._server.socket.getsockname()[0] == "127.0.0.1"


def test_missing_package_is_told_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingDependencyError, match=r"jetlet\[prometheus\]"):
        MetricsServer()


def test_busy_port_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidArgumentError, match=rf"port {port} of 127.0.0.1: .*in use"):
            MetricsServer(port)


def test_host_that_is_not_ours_is_refused():
    with pytest.raises(InvalidArgumentError, match="cannot serve metrics"):
        MetricsServer(0, "203.0.113.1")


def test_job_that_cannot_be_looked_at_is_an_error_of_the_server(server, capfd):
    class Broken:
        name = "broken"
        submitted_at = 0.0
        id = "1"
        status = None

        def metrics(self):
            raise RuntimeError("not today")

    server.add(Broken())
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(server.url)
    assert caught.value.code == 500
    caught.value.close()
    assert "not today" in capfd.readouterr().err


def test_client_that_says_nothing_holds_nobody_up(server):
    with socket.create_connection(("127.0.0.1", server.port)):
        assert fetch(server.url) == ""
        server.close()
        with pytest.raises(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.connect()
