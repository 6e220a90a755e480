"""A storm: faults of all kinds, drawn by a seed, while the job of ``chaos_job.py`` runs.

::

    python tests/faults/storm.py --faults 40 --seed 7

Members and the coordinator are killed, members are stopped for a while, links between them go down
or carry bytes that nobody sent, wall clocks jump, the disk of a sink is full for a while, and files
of snapshots are deleted, cut off or changed while the job is down. A damaged file either makes no
difference, or the job refuses to go on and names it; then a copy is put back, as the error says.
With exactly-once the output must be exact at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import chaos
from chaos import Chaos, ChaosError, eventually

KINDS = {
    "member": 4,
    "coordinator": 2,
    "stop": 3,
    "cut": 3,
    "garble": 3,
    "clock": 2,
    "disk": 2,
    "damage": 4,
}
"""How often each kind is drawn, relative to the others."""
DISK = "16m"


class Storm(Chaos):
    """One run."""

    def __init__(self, options, directory, database):
        super().__init__(options, directory, database)
        self._mischief = directory / "mischief"
        self._mischief.mkdir()
        self._settings["mischief"] = str(self._mischief)
        self._settings["files"] = str(directory / "disk/files")
        self._disk = directory / "disk"
        self._number = 0

    def run(self):
        with ExitStack() as stack:
            self._disk.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(self._disk)]
            self._is_mounted = (
                os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
            )
            if self._is_mounted:
                stack.callback(subprocess.run, ["umount", "--lazy", str(self._disk)], check=True)
            else:
                self._say("no disk can be mounted here: none will be full")
            super().run()

    def _victims(self):
        kinds = [kind for kind in KINDS if kind != "disk" or self._is_mounted]
        weights = [KINDS[kind] for kind in kinds]
        rest = max(0, self._options.faults - len(kinds))
        drawn = kinds[: self._options.faults] + self._random.choices(kinds, weights, k=rest)
        deeds = {
            "member": self._kill_member,
            "coordinator": self._kill_coordinator,
            "stop": self._stop_member,
            "disk": self._fill_disk,
            "damage": self._damage,
        }
        return [deeds.get(kind) or (lambda kind=kind: self._commit(kind)) for kind in drawn]

    def _commit(self, kind):
        """Let a member bring a fault upon itself."""
        self._number += 1
        path = self._mischief / f"{kind}-{self._number}.fault"
        path.touch()
        eventually(
            lambda: self._coordinator.check() or not path.exists(), self._options.patience, kind
        )
        self._say(f"{kind} in a member")

    def _stop_member(self):
        members = eventually(self._coordinator.members, self._options.patience, "a member")
        pid = self._random.choice(members)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._random.uniform(0.1, 1.0))
            os.kill(pid, signal.SIGCONT)
            self._say(f"stopped member process {pid} for a while")

    def _fill_disk(self):
        ballast = self._disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(65536)):
                pass
        time.sleep(self._random.uniform(0.1, 0.5))
        ballast.unlink()
        self._say("the disk was full for a while")

    def _damage(self):
        """Damage a file while the job is down, and see that it is told or makes no difference."""
        coordinator, rnd = self._coordinator, self._random
        coordinator.check()
        coordinator.kill()
        eventually(
            lambda: not chaos.processes(self._token), self._options.patience, "the end of members"
        )
        files = sorted(path for path in self._snapshots.rglob("*") if path.is_file())
        how = rnd.choice(["deleted", "cut off", "changed"])
        if not files:
            coordinator.start()
            return
        path = rnd.choice(files)
        data = path.read_bytes()
        if how == "deleted" or not data:
            path.unlink()
        elif how == "cut off":
            path.write_bytes(data[: rnd.randrange(len(data))])
        else:
            changed = bytearray(data)
            spot = rnd.randrange(len(data) * 8)
            changed[spot // 8] ^= 1 << spot % 8
            path.write_bytes(changed)
        before = self._records()
        said = len(coordinator.said.read_text())
        coordinator.start()
        eventually(
            lambda: not coordinator.is_alive() or self._records() - before,
            self._options.patience,
            "a snapshot or an error",
        )
        verdict = "which made no difference"
        if not coordinator.is_alive():
            if str(path) not in coordinator.said.read_text()[said:]:
                raise ChaosError(f"{path} was {how}, and the job has ended without naming it")
            path.write_bytes(data)
            coordinator.start()
            verdict = "which was told, and a copy is put back"
        self._say(f"{path.relative_to(self._snapshots)} was {how}, {verdict}")


def main(arguments=None):
    options = chaos.parser("Let faults of all kinds loose on a job, and check its output.")
    options.add_argument("--faults", type=int, default=40, help="(default: 40)")
    options.add_argument("--seconds", type=float, help="to spread them over (default: 1 for each)")
    options = options.parse_args(arguments)
    if options.seconds is None:
        options.seconds = 1.0 * options.faults
    return chaos.run(Storm, options)


if __name__ == "__main__":
    sys.exit(main())
