"""A cluster of Spark on hosts of their own: ``lab.py DIRECTORY SCENARIO...``.

The scenarios are those of ``driver.py``, which runs on a host that has nothing else. For
``connected`` it has a server of Spark Connect on the host of the master. ``supervised`` submits a
driver from there, see ``supervised.py``. What each returns is printed as a line of JSON: its name
and the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "spark"))

from clusters import Standalone, connect_server

from network import BY_ADDRESS, HOSTS, enter, lay_cables

PORTS = "ports.json"
"""The file with the ports of the cluster's own processes, by address."""
MASTER, ONE, TWO, DRIVER, OTHER = HOSTS
CONNECTED, SUPERVISED = "connected", "supervised"
THIRD = 3
"""The worker on the host of the driver."""


def standalone(directory: Path) -> Standalone:
    """A master on one host and workers on two; a third one can be started."""
    addresses = [host.address for host in (MASTER, ONE, TWO, DRIVER)]
    return Standalone(directory, addresses, lambda address: BY_ADDRESS[address].run)


def main() -> int:
    enter()
    directory, scenarios = Path(sys.argv[1]), sys.argv[2:]
    lay_cables()
    names = [name for name in scenarios if name not in (CONNECTED, SUPERVISED)]
    with standalone(directory) as cluster:
        found = {host.address: host.ports() for host in (ONE, TWO)}
        (directory / PORTS).write_text(json.dumps(found))
        if names:
            drive("driver.py", cluster.address, directory, *names)
        if CONNECTED in scenarios:
            with connect_server(directory, cluster.address, MASTER.address, MASTER.run) as server:
                drive("driver.py", server, directory, CONNECTED)
        if SUPERVISED in scenarios:
            cluster.start_worker(THIRD)  # the driver takes a slot for itself
            cluster.await_worker(THIRD)
            drive("supervised.py", cluster.address, directory)
    return 0


def drive(program: str, master: str, directory: Path, *scenarios: str) -> None:
    """Run a program on the host of the driver."""
    command = [*DRIVER.run, sys.executable, Path(__file__).with_name(program)]
    subprocess.run(
        [*command, master, directory, *scenarios],
        check=True,
        cwd=directory,
        env={**os.environ, "SPARK_LOCAL_IP": DRIVER.address},
    )


if __name__ == "__main__":
    sys.exit(main())
