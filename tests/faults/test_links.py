"""Links between members that stall, or lose or change bytes: noticed, told, and got over."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading

import pytest

from jetlet import JobConfig
from jetlet.core import DAG, Processor, Vertex, between
from jetlet.errors import RestartableError
from jetlet.execution.tuning import Tuning
from jetlet.jobs.job import Job
from jetlet.jobs.members.attempt import MembersAttempt
from jetlet.jobs.members.launcher import ProcessLauncher
from jetlet.jobs.members.layout import Layout, LocalPlaces
from jetlet.jobs.members.runner import MembersRunner
from jetlet.processors.ends.write import ClientSinkHook, ClientSinkProcessor
from jetlet.sinks import client

pytestmark = [pytest.mark.fault, pytest.mark.cluster, pytest.mark.slow]

LIMIT = 60.0
"""Seconds that end a test which hangs."""
TIMEOUT = 2.0


class Numbers(Processor):
    """A source without an end."""

    def complete(self):
        self.outbox.offer_batch([self.context.member_index] * 10)
        return False


def endless(sink):
    dag = DAG("endless")
    source = dag.new_vertex("source", Numbers, 1)
    out = dag.vertex(
        Vertex("out", ClientSinkProcessor, 1, hook=ClientSinkHook(client(sink, name="out")))
    )
    dag.edge(between(source, out).partitioned(lambda item: 1 - item).distributed())
    return dag


class Proxy:
    """Stands between two members; from some time on it spoils what goes in one direction."""

    def __init__(self, target, spoil, *, spoils_answers):
        self._target = target
        self._spoil = spoil
        self._spoils_answers = spoils_answers
        self.is_spoiling = threading.Event()
        self._sockets = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "tcp:{}:{}".format(*self._listening.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                _, host, port = self._target.split(":")
                server = socket.create_connection((host, int(port)))
                self._sockets += [client, server]
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, one, other, is_answer):
        with contextlib.suppress(OSError):
            while data := one.recv(4096):
                if self.is_spoiling.is_set() and is_answer == self._spoils_answers:
                    data = self._spoil(data)
                other.sendall(data)
            other.close()

    def close(self):
        for each in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def stall(data):
    return b""


class Once:
    """Does something to the bytes once."""

    def __init__(self, change):
        self._change = change
        self._is_done = False

    def __call__(self, data):
        if self._is_done:
            return data
        self._is_done = True
        return self._change(data)


def drop(data):
    return data[: len(data) // 2]


def damage(data):
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def double(data):
    return data + data


@pytest.fixture
def run_spoiled(monkeypatch):
    """Run on two members whose link goes through a proxy; returns the error of the job."""
    proxies = []

    def run(spoil, *, spoils_answers, caplog, of_coordinator=False):
        send_plan, bootstrap = MembersAttempt._send_plan, MembersAttempt._bootstrap

        def proxy(address):
            proxies.append(Proxy(address, spoil, spoils_answers=spoils_answers))
            return proxies[0].address

        def plan_through_a_proxy(attempt, addresses):
            # The member with the higher index connects to the other.
            send_plan(attempt, {**addresses, 0: proxy(addresses[0])})

        def bootstrap_through_a_proxy(attempt, index, address):
            return bootstrap(attempt, index, proxy(address) if index == 1 else address)

        if of_coordinator:
            monkeypatch.setattr(MembersAttempt, "_bootstrap", bootstrap_through_a_proxy)
        else:
            monkeypatch.setattr(MembersAttempt, "_send_plan", plan_through_a_proxy)
        seen = set()

        def sink(item):
            seen.add(item)
            if len(seen) == 2:
                proxies[0].is_spoiling.set()

        dag = endless(sink)
        layout = Layout(dag, 1, LocalPlaces(2))
        runner = MembersRunner(layout, ProcessLauncher, tuning=Tuning(1), use_tcp=True)
        job = Job(dag, JobConfig(link_timeout=TIMEOUT), runner)
        with caplog.at_level(logging.INFO):
            job.start()
            with pytest.raises(RestartableError) as caught:
                job.join(LIMIT)
        return str(caught.value)

    yield run
    for proxy in proxies:
        proxy.close()


@pytest.mark.parametrize("spoils_answers", [False, True], ids=["there", "back"])
def test_a_link_that_stalls_is_noticed_and_both_its_ends_are_named(
    run_spoiled, spoils_answers, caplog, capfd
):
    error = run_spoiled(stall, spoils_answers=spoils_answers, caplog=caplog)
    assert re.search(r"member [01] is not heard by member [01]: nothing came for [0-9.]+ s", error)
    ends = r"member [01] \(127\.0\.0\.1:\d+\) with member [01] \(127\.0\.0\.1:\d+\)"
    assert re.search(ends, error)
    assert re.search(ends, capfd.readouterr().err + caplog.text)


@pytest.mark.parametrize("spoils_answers", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("change", [drop, damage, double])
def test_bytes_that_are_lost_changed_or_doubled_are_noticed(
    run_spoiled, change, spoils_answers, caplog, capfd
):
    error = run_spoiled(Once(change), spoils_answers=spoils_answers, caplog=caplog)
    # The other end, whose connection is closed then, may be the first to fail the job.
    told = error + caplog.text + capfd.readouterr().err
    assert re.search("damaged on the way|is missing|nothing came", told)


def test_a_member_that_does_not_hear_the_coordinator_any_more_is_lost(run_spoiled, caplog):
    error = run_spoiled(stall, spoils_answers=True, caplog=caplog, of_coordinator=True)
    assert re.search(r"member 1 does not hear the coordinator: nothing came for [0-9.]+ s", error)
