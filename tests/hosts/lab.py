"""A cluster of Spark on hosts of their own: ``lab.py DIRECTORY SCENARIO...``.

The scenarios are those of ``driver.py``, which runs on a host that has nothing else. What each
returns is printed as a line of JSON: its name and the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "spark"))

from clusters import Standalone

from network import BY_ADDRESS, HOSTS, enter, lay_cables

PORTS = "ports.json"
"""The file with the ports of the cluster's own processes, by address."""
MASTER, ONE, TWO, DRIVER, OTHER = HOSTS


def standalone(directory: Path) -> Standalone:
    """A master on one host and workers on two."""
    addresses = [host.address for host in (MASTER, ONE, TWO)]
    return Standalone(directory, addresses, lambda address: BY_ADDRESS[address].run)


def main() -> int:
    enter()
    directory, scenarios = Path(sys.argv[1]), sys.argv[2:]
    lay_cables()
    with standalone(directory) as cluster:
        found = {host.address: host.ports() for host in (ONE, TWO)}
        (directory / PORTS).write_text(json.dumps(found))
        command = [*DRIVER.run, sys.executable, Path(__file__).with_name("driver.py")]
        done = subprocess.run(
            [*command, cluster.address, directory, *scenarios],
            check=False,
            cwd=directory,
            env={**os.environ, "SPARK_LOCAL_IP": DRIVER.address},
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
