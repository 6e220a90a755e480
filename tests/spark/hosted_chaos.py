"""Chaos on Spark: a job on hosted members, of which everything is killed at random.

::

    python tests/spark/hosted_chaos.py --kills 20 --seed 7

The job is that of ``tests/faults/chaos.py``, on a master with two workers. Killed are, in turns at
random: a Python worker, which is a member; an executor; the daemon of a worker, which is started
again; the driver, which is started again and goes on from its directory.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import chaos
from chaos import TOKEN, Chaos, eventually, processes
from clusters import Standalone

ORPHANED = 5.0
"""Seconds that members may outlive their driver."""
PYTHON, EXECUTOR, SPARK = b"pyspark.daemon", b"CoarseGrainedExecutorBackend", b"spark.deploy."
"""What the commands of workers, of executors and of the cluster's own processes have in them."""


class HostedChaos(Chaos):
    """One run."""

    def run(self):
        os.environ[TOKEN] = self._token  # of what Spark starts as well
        with self._make_cluster() as self._cluster:
            self._settings["master"] = self._cluster.address
            self._say(f"the cluster is at {self._cluster.address}")
            super().run()

    def _make_cluster(self):
        return Standalone(self._directory)

    def _strike(self):
        self._await_snapshots(1)  # it takes a while to start
        self._say("it runs")
        super()._strike()

    def _victims(self):
        kinds = [self._kill_python, self._kill_executor, self._kill_daemon, self._kill_coordinator]
        # Each kind at least once, if there are enough.
        rest = self._random.choices(kinds, k=max(0, self._options.kills - len(kinds)))
        return [*kinds, *rest][: self._options.kills]

    def _found(self, what):
        """The processes of a sort: parents by number."""
        self._coordinator.check()
        return {
            pid: parent
            for pid, (parent, command) in processes(self._token).items()
            if what in command
        }

    def _python(self):
        """Workers, without those that they were forked from."""
        found = self._found(PYTHON)
        return sorted(pid for pid, parent in found.items() if parent in found)

    def _kill_one(self, name, choices):
        pid = self._random.choice(eventually(choices, self._options.patience, f"some {name}"))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._say(f"killed {name} {pid}")
        eventually(lambda: pid not in choices(), self._options.patience, "its death")

    def _kill_python(self):
        self._kill_one("Python worker", self._python)

    def _kill_executor(self):
        self._kill_one("executor", lambda: sorted(self._found(EXECUTOR)))

    def _kill_daemon(self):
        number = self._random.choice(self._cluster.WORKERS)
        self._cluster.await_worker(number)
        self._cluster.kill_worker(number)
        self._cluster.start_worker(number)
        self._say(f"killed the daemon of worker {number}, and started it again")

    def _kill_coordinator(self):
        members = set(self._python())
        self._coordinator.kill()
        self._say("killed the driver")
        eventually(
            lambda: not members & processes(self._token).keys(), ORPHANED, "the end of its members"
        )
        self._coordinator.start()
        self._say("its members have ended; started it again")

    def _await_end(self):
        """Of all but the cluster itself, whose end is for the cluster to see to."""
        eventually(
            lambda: all(SPARK in command for _, command in processes(self._token).values()),
            self._options.patience,
            "the end of all processes",
        )


def main(arguments=None):
    parser = chaos.parser("Kill whatever a job on Spark runs in, and check its output.")
    parser.add_argument("--kills", type=int, default=20, help="(default: 20)")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="over which the kills are spread, see chaos.py"
    )
    options = parser.parse_args(arguments)
    return chaos.run(HostedChaos, options)


if __name__ == "__main__":
    sys.exit(main())
