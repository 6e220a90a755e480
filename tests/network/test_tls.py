"""Tls: connections that nobody can read or join without the certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources
from jetlet.errors import InvalidArgumentError, JetletError
from jetlet.network.handshake import new_secret
from jetlet.network.hub import Hub
from jetlet.network.tls import Credentials, Tls, credentials_for

SECRET = new_secret()


@pytest.fixture(scope="module")
def tls():
    return Credentials.made_for_job()


def in_files(credentials, directory):
    paths = [directory / name for name in ("certificate.pem", "key.pem", "ca.pem")]
    for path, text in zip(
        paths, (credentials.certificate, credentials.key, credentials.ca), strict=True
    ):
        path.write_text(text)
    return Tls(*map(str, paths))


def hub(index, tls, secret=SECRET):
    return Hub(index, 2, secret, on_lost=lambda *_: None, tls=tls)


def test_members_meet_over_tls(tls):
    async def main():
        one, two = hub(0, tls), hub(1, tls)
        addresses = {0: one.listen(), 1: two.listen()}
        assert addresses[0].startswith("tcp:127.0.0.1:")
        async with asyncio.timeout(60):
            await asyncio.gather(one.join(addresses), two.join(addresses))
        transport = one.connections[1]._transport
        assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        one.close()
        two.close()
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_other_certificate_is_refused(tls):
    async def main():
        one, two = hub(0, tls), hub(1, Credentials.made_for_job())
        addresses = {0: one.listen(), 1: two.listen()}
        with pytest.raises(JetletError):
            async with asyncio.timeout(60):
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
            async with asyncio.timeout(60):
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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_nothing_is_encrypted_that_stays_on_this_machine(host):
    assert credentials_for(None, host) is None


@pytest.mark.parametrize("host", ["10.1.2.3", "worker-1", "fd00::1"])
def test_what_leaves_this_machine_is_encrypted_unless_somebody_says_otherwise(host):
    assert credentials_for(None, host) is not None
    assert credentials_for(False, host) is None


def test_every_job_has_a_certificate_of_its_own():
    one, other = credentials_for(True, "127.0.0.1"), credentials_for(True, "127.0.0.1")
    assert one.certificate != other.certificate
    assert one.key not in repr(one)


def test_files_of_ones_own_are_read_where_the_job_is_submitted(tls, tmp_path):
    assert credentials_for(in_files(tls, tmp_path), "127.0.0.1") == tls


def test_files_that_do_not_fit_are_refused_by_name(tls, tmp_path):
    files = in_files(tls, tmp_path)
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        replace(files, key=str(tmp_path / "nowhere.pem")).read()
    (tmp_path / "key.pem").write_text(Credentials.made_for_job().key)
    with pytest.raises(InvalidArgumentError, match=r"key\.pem"):
        files.read()


def test_no_key_is_left_in_a_file(tls, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tls.server_context()
    tls.client_context()
    assert not list(tmp_path.iterdir())


@pytest.mark.cluster
def test_job_runs_over_tls(tls, tmp_path):
    p, out = Pipeline("encrypted"), sinks.collect()
    p.read_from(sources.items(range(10_000))).grouping_key(lambda x: x % 10).aggregate(
        agg.counting()
    ).write_to(out)
    with EmbeddedEngine(members=2) as engine:
        engine.submit(p, JobConfig(tls=in_files(tls, tmp_path))).join(60)
    assert sorted(out.items) == [(i, 1000) for i in range(10)]
