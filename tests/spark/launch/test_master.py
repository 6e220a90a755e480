from __future__ import annotations

import socket

import pytest

from jetlet.errors import InvalidArgumentError, ServerUnreachableError
from jetlet.spark.launch.master import check_master


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[4]", "local[*]", "local[2,4]", "local[2, 4]", "local[*,3]"),
        *("local-cluster[2,1,1024]", "yarn", "k8s://https://host:443"),
    ],
)
def test_masters_that_spark_knows(master):
    check_master(master)


@pytest.mark.parametrize("master", ["", "local[two]", "local[2", "host:7077", "mesos://host", "sc"])
def test_any_other_is_refused(master):
    with pytest.raises(InvalidArgumentError, match="is none that Spark knows"):
        check_master(master)


@pytest.fixture
def closed():
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("kind", ["spark", "sc"])
def test_an_address_without_spark_is_told_at_once(kind, closed):
    master = f"{kind}://127.0.0.1:{closed}"
    with pytest.raises(ServerUnreachableError, match=f"no Spark at {master}"):
        check_master(master, {})


@pytest.mark.parametrize("port", ["x", "99999999"])
def test_a_port_that_is_none(port):
    with pytest.raises(ServerUnreachableError):
        check_master(f"spark://127.0.0.1:{port}", {})


def test_one_of_several_masters_is_enough(closed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_ = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{closed},127.0.0.1:{open_}")
        check_master(f"sc://127.0.0.1:{open_}/;token=secret", {})


def test_what_is_behind_a_proxy_is_not_tried(closed):
    check_master(f"sc://127.0.0.1:{closed}", {"https_proxy": "http://proxy:3128"})
