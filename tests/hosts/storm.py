"""A storm over several hosts: faults of all kinds, drawn by a seed, while a job runs on them.

::

    python tests/hosts/storm.py --faults 100 --seed 7

The job is that of ``tests/faults/chaos.py``; its coordinator, its two members and its database have
a host each, see ``network.py``. Hosts lose their link for a while, or what one sends another gets
lost; the cable of a host is slow, or loses or damages some of what goes over it. Members are
stopped and go on, or are killed, and so is the coordinator. Wall clocks jump, and the disk of a
sink is full for a while. The output must be exact at the end: whoever was given up
commits nothing afterwards. The same seed draws the same faults again; what is told says who has
noticed what, and when.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import chaos
from chaos import Chaos, Coordinator, eventually
from lab import DRIVER, ONE, OTHER, TWO

from network import enter, lay_cables

KINDS = {
    "unplug": 4,
    "lose": 4,
    "worsen": 4,
    "stop": 4,
    "member": 3,
    "coordinator": 2,
    "clock": 2,
    "disk": 2,
}
"""How often each kind is drawn, relative to the others."""
CABLES = {
    "slow": (0.1, 0.0, 0.0),
    "lossy": (0.0, 0.1, 0.0),
    "noisy": (0.0, 0.0, 0.02),
}
"""Seconds that a bad cable takes, and how much of what goes over it is lost, and is damaged."""
DISK = "64m"
LAST_WORDS = 1000
"""Characters of its output that tell why a coordinator has ended."""
DURATIONS = (0.2, 1.0, 5.0)
"""Seconds for which a link is down, or a process stopped."""
LONGEST, RARE = 60.0, 20
"""Instead of those, in one of so many cases."""


class Supervised(Coordinator):
    """It is started again if it comes when its host has no link.

    A job whose database does not answer when it is submitted is refused, which ends its program.
    """

    def check(self):
        if (
            not self.is_alive()
            and "ServerUnreachableError: " in self.said.read_text()[-LAST_WORDS:]
        ):
            print("the coordinator does not reach the database; started it again", flush=True)
            self.start()
        super().check()


class Storm(Chaos):
    """One run."""

    COORDINATOR = Supervised

    COMMAND = (*DRIVER.run, sys.executable, str(Path(__file__).with_name("storm_job.py")))
    DATABASE = (OTHER.address, OTHER.run)

    def __init__(self, options, directory, database):
        super().__init__(options, directory, database)
        self._mischief = directory / "mischief"
        self._disk = directory / "disk"
        for path in (self._mischief, self._disk):
            path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(self._disk)]
        subprocess.run(mount, check=True)
        self._settings |= {
            "mischief": str(self._mischief),
            "files": str(self._disk / "files"),
            "link_timeout": 2.0,
            "tls": True,
        }
        self._number = 0

    def _victims(self):
        deeds = {
            "unplug": self._unplug,
            "lose": self._lose,
            "worsen": self._worsen,
            "stop": self._stop,
            "member": self._kill_member,
            "coordinator": self._kill_coordinator,
            "clock": self._clock,
            "disk": self._fill_disk,
        }
        names = [*KINDS][: self._options.faults]
        rest = self._options.faults - len(names)
        names += self._random.choices([*KINDS], [*KINDS.values()], k=rest)
        return [deeds[name] for name in names]

    def _strike(self):
        self._await_snapshots(1)
        self._say("it runs")
        super()._strike()

    def _judge(self, sinks, expected):
        for line in self._coordinator.said.read_text().splitlines():
            if "it is restarted" in line:
                print(line)
        super()._judge(sinks, expected)

    @contextmanager
    def _for_a_while(self, what):
        is_rare = self._random.randrange(RARE) == 0
        seconds = self._random.choice(DURATIONS)
        if is_rare:
            seconds = min(LONGEST, self._options.longest)
        self._say(f"{what} for {seconds:g} s, from {time.strftime('%H:%M:%S')} on")
        yield
        time.sleep(seconds)

    def _unplug(self):
        host = self._random.choice([ONE, TWO, DRIVER])
        with self._for_a_while(f"{host.address} has no link"):
            host.unplug()
        host.plug()

    def _lose(self):
        one, other = self._random.sample([ONE, TWO, DRIVER], 2)
        with self._for_a_while(f"what {one.address} sends {other.address} gets lost"):
            one.lose(other)
        one.find(other)

    def _worsen(self):
        host = self._random.choice([ONE, TWO, DRIVER])
        kind = self._random.choice([*CABLES])
        seed = self._random.randrange(1 << 32)
        with (
            # A database that is spoken to without TLS cannot notice what is damaged.
            host.worse(*CABLES[kind], seed, spared=OTHER),
            self._for_a_while(f"the cable of {host.address} is {kind}"),
        ):
            pass

    def _stop(self):
        members = eventually(self._coordinator.members, self._options.patience, "a member")
        pid = self._random.choice(members)
        with suppress(ProcessLookupError):
            with self._for_a_while(f"member process {pid} is stopped"):
                os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)

    def _clock(self):
        self._number += 1
        path = self._mischief / f"clock-{self._number}.fault"
        path.touch()
        patience = self._options.patience
        eventually(lambda: self._coordinator.check() or not path.exists(), patience, "a jump")
        self._say("the clock of a member has jumped")

    def _fill_disk(self):
        ballast = self._disk / "ballast"
        with (
            self._for_a_while("the disk is full"),
            suppress(OSError),
            ballast.open("wb", buffering=0) as file,
        ):
            while file.write(bytes(65536)):
                pass
        ballast.unlink()


def main():
    enter()
    parser = chaos.parser("Let faults of all kinds loose on a job on several hosts.")
    parser.add_argument("--faults", type=int, default=100, help="(default: 100)")
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds that one may take")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="over which they are spread, see chaos.py"
    )
    parser.set_defaults(patience=180.0)
    options = parser.parse_args()
    lay_cables()
    return chaos.run(Storm, options)


if __name__ == "__main__":
    sys.exit(main())
