"""A stranger at the door of a running job. ``JETLET_FUZZ_SECONDS=60`` makes it a long visit."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from jetlet.core import DAG, Processor
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import SingleTargetEdge
from jetlet.execution.queue import BoundedQueue
from jetlet.execution.shared_event_loop import SharedEventLoop
from jetlet.execution.tuning import Tuning
from jetlet.jobs.config import JobConfig
from jetlet.jobs.job import Job
from jetlet.jobs.members.launcher import ProcessLauncher
from jetlet.jobs.members.layout import Layout, LocalPlaces
from jetlet.jobs.members.runner import MembersRunner
from jetlet.network.handshake import ClientHandshake, ServerHandshake, new_secret
from jetlet.network.hub import Hub
from jetlet.network.listener import PENDING
from jetlet.network.receiver import ReceiverTasklet
from jetlet.network.sender import SenderTasklet

pytestmark = [pytest.mark.fault, pytest.mark.slow]

SECONDS = float(os.environ.get("JETLET_FUZZ_SECONDS", "2"))
PROMPT = 60.0
SECRET = new_secret()


@contextmanager
def stranger_at(address, seconds, secret=SECRET):
    """Somebody who tries everything at the address meanwhile, once at least."""
    kind, host, port = address.split(":")
    assert kind == "tcp"
    claim = ClientHandshake(secret, 1, 0).receive(ServerHandshake(secret, 0).greeting)
    script = Path(__file__).with_name("port_fuzz.py")
    process = subprocess.Popen(
        [sys.executable, str(script), host, port, str(seconds), claim.hex()],
        stdout=subprocess.PIPE,
        text=True,
    )
    visits = []
    try:
        yield visits
    finally:
        out, _ = process.communicate(timeout=seconds + PROMPT)
    assert process.returncode == 0, "it was told more than the greeting"
    visits.append(int(out))


def wait_until(condition):
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Traffic(threading.Thread):
    """Keeps an edge between two hubs busy, and checks what arrives."""

    def __init__(self, hubs):
        super().__init__()
        self.source, self.dest = BoundedQueue(4096), BoundedQueue(4096)
        inbound = InboundEdge(0, [self.source])
        self.sender = SenderTasklet(0, "a -> b", 1, inbound, hubs[0].connections[1])
        self.receiver = ReceiverTasklet("a -> b", {0: SingleTargetEdge(self.dest)})
        self.sent = self.received = 0
        self.is_wrong = False
        self.is_over = threading.Event()

    def run(self):
        while not self.is_over.is_set():
            self.sent += self.source.offer(list(range(self.sent, self.sent + 1000)))
            self.sender.call()
            self.receiver.call()
            while (batch := self.dest.poll(10_000)) is not None:
                if list(batch) != list(range(self.received, self.received + len(batch))):
                    self.is_wrong = True
                self.received += len(batch)
            time.sleep(0.001)


def test_stranger_does_no_harm_to_members_at_work(monkeypatch):
    loops = SharedEventLoop("jetlet-test")
    loop = loops.lease()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PROMPT)

    lost = []

    async def meet():
        hubs = [Hub(i, 3, SECRET, on_lost=lambda *args: lost.append(args)) for i in range(3)]
        addresses = {i: hub.listen() for i, hub in enumerate(hubs)}
        # The third is late: until it comes the doors are open.
        tasks = [asyncio.ensure_future(hub.join(addresses)) for hub in hubs[:2]]
        for _ in iter(lambda: len(hubs[0].connections) + len(hubs[1].connections), 2):
            await asyncio.sleep(0.001)
        return hubs, addresses, tasks

    hubs, addresses, tasks = call(meet())
    traffic = Traffic(hubs)

    async def carry():
        hubs[0].carry({(0, 1): traffic.sender}, {})
        hubs[1].carry({}, {0: traffic.receiver})

    call(carry())
    unpickled = []
    loads = pickle.loads

    def watched(data, **options):
        if threading.current_thread() is not traffic:
            unpickled.append(bytes(data)[:50])
        return loads(data, **options)

    monkeypatch.setattr(pickle, "loads", watched)
    traffic.start()
    try:
        with stranger_at(addresses[0], SECONDS) as visits:
            time.sleep(SECONDS / 2)
            assert len(hubs[0].listener._arrivals) <= PENDING
            halfway = traffic.received
            wait_until(lambda: traffic.received > halfway)  # in spite of the stranger
        # Whoever knows the secret still gets in.
        call(hubs[2].join(addresses))
        call(asyncio.wait_for(asyncio.gather(*tasks), PROMPT))
    finally:
        traffic.is_over.set()
        traffic.join()

    assert visits[0] > 10
    assert unpickled == []
    assert lost == []
    assert not traffic.is_wrong

    async def leave():
        for hub in hubs:
            hub.close()
        await asyncio.sleep(0.05)

    call(leave())
    loops.release()


class Nothing(Processor):
    def complete(self):
        self.context.report(self.context.member_index)
        return True


class LateLauncher(ProcessLauncher):
    """Starts the second member when it is told to."""

    def __init__(self):
        super().__init__()
        self.addresses = []
        self.started = threading.Event()
        self.late = []

    def launch(self, bootstrap, on_death):
        self.addresses.append(bootstrap)
        if bootstrap.index == 1:
            self.late.append((bootstrap, on_death))
            self.started.set()
        else:
            super().launch(bootstrap, on_death)


@pytest.mark.cluster
def test_job_starts_while_a_stranger_is_at_the_coordinators_door():
    dag = DAG("visited")
    dag.new_vertex("v", Nothing)
    launcher = LateLauncher()
    layout = Layout(dag, 1, LocalPlaces(2))
    runner = MembersRunner(layout, lambda: launcher, tuning=Tuning(1), use_tcp=True)
    job = Job(dag, JobConfig(), runner)
    job.start()
    assert launcher.started.wait(PROMPT)
    bootstrap, on_death = launcher.late[0]
    with stranger_at(bootstrap.address, 2.0, bytes.fromhex(bootstrap.secret)) as visits:
        time.sleep(1.0)
        ProcessLauncher.launch(launcher, bootstrap, on_death)
        job.join(PROMPT)
    assert sorted(job._run._messages["v"]) == [0, 1]
    assert visits[0] > 10
