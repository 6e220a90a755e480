"""The job of ``tests/faults/chaos.py``, with each of its members on a host of its own.

``storm_job.py SETTINGS`` is the coordinator, which nothing but the network joins with its members:
it can kill none of them, and does not hear of their death, as on a cluster of which it is cut off.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import chaos_job
from lab import DRIVER, ONE, TWO

from jetlet.jobs.members import launcher, runner
from jetlet.jobs.members.launcher import COMMAND
from jetlet.spark.members import hosted

HOSTS = (ONE, TWO)


class HostLauncher:
    """Starts members on their hosts."""

    def __init__(self):
        self._processes = {}
        self._silent_since = {}

    def launch(self, bootstrap, on_death):
        host = HOSTS[bootstrap.index]
        command = [*host.run, sys.executable, "-P", "-c", COMMAND]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        with suppress(BrokenPipeError):  # somebody has killed it already
            process.stdin.write(replace(bootstrap, host=host.address).to_json() + "\n")
            process.stdin.close()
        self._processes[bootstrap.index] = process

        def await_start():
            """One that never comes may have ended; of others the network will tell."""
            process.wait()
            on_death(bootstrap.index, f"has ended with {process.returncode}")

        threading.Thread(target=await_start, daemon=True).start()

    def kill(self, member):
        pass

    def is_busy(self, member):
        return hosted.HostedMembers.is_busy(self, member)

    def close(self):
        deadline = time.monotonic() + launcher.EXIT_LIMIT
        while time.monotonic() < deadline:
            if all(process.poll() is not None for process in self._processes.values()):
                return
            time.sleep(0.01)


def main(settings):
    launcher.ProcessLauncher = HostLauncher
    runner.MembersRunner = partial(runner.MembersRunner, host=DRIVER.address, use_tcp=True)
    hosted.SILENCE_LIMIT = 3.0
    return chaos_job.main(settings)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
