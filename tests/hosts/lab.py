"""A cluster of Spark on hosts of their own: ``lab.py DIRECTORY SCENARIO...``.

The scenarios are those of ``driver.py``, which runs on a host that has nothing else, and
``supervised``, which submits a driver from there, see ``supervised.py``. What each returns is
printed as a line of JSON: its name and the result.
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
SUPERVISED = "supervised"
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
    with standalone(directory) as cluster:
        found = {host.address: host.ports() for host in (ONE, TWO)}
        (directory / PORTS).write_text(json.dumps(found))
        names = [name for name in scenarios if name != SUPERVISED]
        programs = [("driver.py", *names)] if names else []
        if SUPERVISED in scenarios:
            programs.append(("supervised.py",))
        for name, *arguments in programs:
            if name == "supervised.py":
                cluster.start_worker(THIRD)  # it takes a slot for itself
                cluster.await_worker(THIRD)
            program = Path(__file__).with_name(name)
            done = subprocess.run(
                [*DRIVER.run, sys.executable, program, cluster.address, directory, *arguments],
                check=False,
                cwd=directory,
                env={**os.environ, "SPARK_LOCAL_IP": DRIVER.address},
            )
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
