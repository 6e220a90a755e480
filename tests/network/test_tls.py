"""Tls: connections that nobody can read or join without the certificate."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess

import pytest

from jetlet import Pipeline, agg, sinks, sources, whole_item
from jetlet.errors import JetletError
from jetlet.execution.tuning import Tuning
from jetlet.jobs.config import JobConfig
from jetlet.jobs.job import Job
from jetlet.jobs.members.launcher import ProcessLauncher
from jetlet.jobs.members.layout import Layout
from jetlet.jobs.members.runner import MembersRunner
from jetlet.network.handshake import new_secret
from jetlet.network.hub import Hub
from jetlet.network.tls import Tls

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")

SECRET = new_secret()


def make_tls(directory):
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
        f"-subj /CN=jetlet -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    return Tls(str(certificate), str(key), str(certificate))


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return make_tls(tmp_path_factory.mktemp("tls"))


def hub(index, tls, secret=SECRET):
    return Hub(index, 2, secret, on_lost=lambda *_: None, tls=tls)


def test_members_meet_over_tls(tls):
    async def main():
        one, two = hub(0, tls), hub(1, tls)
        addresses = {0: one.listen(), 1: two.listen()}
        assert addresses[0].startswith("tcp:127.0.0.1:")
        async with asyncio.timeout(10):
            await asyncio.gather(one.join(addresses), two.join(addresses))
        transport = one.connections[1]._transport
        assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        one.close()
        two.close()
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_other_certificate_is_refused(tls, tmp_path):
    async def main():
        one, two = hub(0, tls), hub(1, make_tls(tmp_path))
        addresses = {0: one.listen(), 1: two.listen()}
        with pytest.raises(JetletError):
            async with asyncio.timeout(10):
                await two.join(addresses)
        assert not one.connections
        one.close()
        two.close()
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_certificate_without_the_secret_is_refused(tls):
    async def main():
        one, two = hub(0, tls), hub(1, tls, new_secret())
        addresses = {0: one.listen(), 1: two.listen()}
        with pytest.raises(JetletError, match="did not take the connection"):
            async with asyncio.timeout(10):
                await two.join(addresses)
        assert not one.connections
        one.close()
        two.close()
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_stranger_without_a_certificate_gets_nothing(tls):
    async def main():
        one = hub(0, tls)
        host, _, port = one.listen().removeprefix("tcp:").rpartition(":")

        def knock():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            with (
                socket.create_connection((host, int(port)), 5) as raw,
                context.wrap_socket(raw) as stranger,
            ):
                return stranger.recv(1000)

        try:
            data = await asyncio.to_thread(knock)
        except OSError:
            data = b""
        assert data == b""
        one.close()
        await asyncio.sleep(0.05)

    asyncio.run(main())


@pytest.mark.cluster
def test_job_runs_over_tls(tls):
    p, out = Pipeline("encrypted"), sinks.collect()
    p.read_from(sources.items(range(10_000))).grouping_key(lambda x: x % 10).aggregate(
        agg.counting()
    ).write_to(out)
    p.read_from(sources.items(["a", "b", "a"])).grouping_key(whole_item).aggregate(
        agg.counting()
    ).write_to(out)
    dag = p.plan(default_parallelism=1)
    runner = MembersRunner(Layout(dag, 1, lambda: 2), ProcessLauncher, tuning=Tuning(1), tls=tls)
    job = Job(dag, JobConfig(), runner)
    job.start()
    job.join(60)
    assert sorted(out.items, key=str) == sorted(
        [("a", 2), ("b", 1), *((i, 1000) for i in range(10))], key=str
    )
