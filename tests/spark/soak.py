"""A soak: a job on Spark under a steady load for hours, with a fault every two minutes.

::

    python tests/spark/soak.py --hours 2 --report build/soak.html

The job is that of ``tests/faults/chaos.py``, exactly-once, on a master with two workers. Python
workers, executors and daemons of workers are killed in turns, and in the middle the driver. The
output must be exact at the end. The report shows what the largest process of each kind had
meanwhile of memory, threads and open files, how many there were, and the size of snapshots, with a
line at each fault.
"""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from collections import defaultdict
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import chaos
from chaos import ChaosError, processes
from hosted_chaos import EXECUTOR, PYTHON, HostedChaos

PERIOD = 5.0
"""Seconds between two looks."""
WIDTH, HEIGHT = 900, 160
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
PAGE = 4096
GROWTH = 1.5
"""More memory, threads or files than so many times what it was in the second quarter is a leak,"""
SLACK = 50
"""and so many besides."""


class Samples:
    """What was seen: for each measure and kind of process, values by time."""

    def __init__(self):
        self.lines = defaultdict(lambda: defaultdict(list))
        self.faults = []

    def add(self, at, measure, kind, value):
        self.lines[measure][kind].append((at, value))

    def leaks(self):
        """Kinds that have more of something in the last quarter than they ever should."""
        found = []
        for measure, kinds in self.lines.items():
            for kind, line in kinds.items():
                quarter = len(line) // 4
                if quarter:
                    first, last = (
                        sorted(value for _, value in part)[quarter // 2]
                        for part in (line[quarter : 2 * quarter], line[-quarter:])
                    )
                    print(
                        f"{measure}, {kind}: {first:.0f} in the second quarter, {last:.0f} at last"
                    )
                    if last > GROWTH * first + SLACK:
                        found.append(f"{measure} of {kind}: {first:.0f}, at last {last:.0f}")
        return found

    def page(self, title):
        parts = [self._chart(measure, kinds) for measure, kinds in self.lines.items()]
        head = f"<title>{html.escape(title)}</title><style>body{{font:14px sans-serif}}</style>"
        return f"<!doctype html><meta charset=utf-8>{head}<h1>{html.escape(title)}</h1>" + "".join(
            parts
        )

    def _chart(self, measure, kinds):
        end = max(at for line in kinds.values() for at, _ in line) or 1.0
        top = max(value for line in kinds.values() for _, value in line) or 1.0
        drawn = [
            f'<line x1="{at / end * WIDTH:.1f}" x2="{at / end * WIDTH:.1f}" y1="0" y2="{HEIGHT}" '
            f'stroke="#ccc"><title>{html.escape(what)}</title></line>'
            for at, what in self.faults
        ]
        legend = []
        for (kind, line), colour in zip(sorted(kinds.items()), cycle(COLOURS), strict=False):
            points = " ".join(
                f"{at / end * WIDTH:.1f},{HEIGHT - value / top * HEIGHT:.1f}" for at, value in line
            )
            drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
            legend.append(f'<span style="color:{colour}">{html.escape(kind)}</span>')
        box = f'width="{WIDTH}" height="{HEIGHT}" style="border:1px solid #999"'
        return (
            f"<h2>{html.escape(measure)}</h2><p>{', '.join(legend)}; up to {top:,.0f}, "
            f"over {end / 60:.0f} minutes</p><svg {box}>{''.join(drawn)}</svg>"
        )


class Soak(HostedChaos):
    """One run."""

    def __init__(self, options, directory, database):
        super().__init__(options, directory, database)
        self._samples = Samples()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def run(self):
        try:
            super().run()
        finally:
            self._is_over.set()
            if self._watcher.ident is not None:
                self._watcher.join()
            if self._watcher.ident is not None:
                self._report()
                self._say(f"the report is {self._options.report}")
        if leaks := self._samples.leaks():
            raise ChaosError("; ".join(leaks))

    def _report(self):
        options = self._options
        options.report.parent.mkdir(parents=True, exist_ok=True)
        title = f"{options.hours:g} hours, {options.rate} events a second"
        with self._lock:
            page = self._samples.page(title)
        options.report.write_text(page, encoding="utf-8")

    def _say(self, text):
        super()._say(text)
        if "killed" in text:
            self._samples.faults.append((time.monotonic() - self._began, text))

    def _victims(self):
        count = int(self._options.hours * 3600 / self._options.every)
        kinds = cycle([self._kill_python, self._kill_executor, self._kill_daemon])
        victims = [next(kinds) for _ in range(count)]
        if count > 1:
            victims[count // 2] = self._kill_coordinator
        return victims

    def _strike(self):
        self._await_snapshots(1)
        self._say("it runs")
        self._watcher.start()
        every, began = self._options.every, time.monotonic()
        for number, kill in enumerate(self._victims(), 1):
            # By the clock: a recovery does not put off the next fault, nor the end.
            time.sleep(max(0.0, began + number * every - time.monotonic()))
            self._await_snapshots(1)
            kill()
            self._report()
        self._await_snapshots(1)

    def _watch(self):
        while not self._is_over.wait(PERIOD):
            at, found = time.monotonic() - self._began, self._look()
            with self._lock:
                for (measure, kind), value in found.items():
                    self._samples.add(at, measure, kind, value)

    def _look(self):
        found = defaultdict(float)
        for pid, (parent, command) in processes(self._token).items():
            kind = self._kind_of(pid, parent, command)
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
                files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            except OSError:
                continue  # it has ended
            if kind is not None:
                # Of the one that has most: how many there are changes with each fault.
                for measure, value in (
                    ("memory in MB", pages * PAGE / 1e6),
                    ("threads", threads),
                    ("open files", files),
                ):
                    found[measure, kind] = max(found[measure, kind], value)
                found["processes", kind] += 1
        sizes = []
        for path in self._snapshots.glob("area-*/**/*"):
            try:
                sizes.append(path.stat().st_size)
            except OSError:
                continue  # an older one makes room
        found["kB of snapshots", "on disk"] = sum(sizes) / 1e3
        return found

    def _kind_of(self, pid, parent, command):
        if EXECUTOR in command:
            return "executors"
        if PYTHON in command:
            return "Python workers"
        if b"SparkSubmit" in command or b"pyspark-shell" in command:
            return "the driver's JVM"
        return "the driver" if b"chaos_job.py" in command else None


def main():
    parser = chaos.parser("Let a job on Spark work for hours, with a fault now and then.")
    parser.add_argument("--hours", type=float, default=2.0, help="(default: 2)")
    parser.add_argument("--every", type=float, default=120.0, help="seconds, a fault")
    parser.add_argument("--rate", type=int, default=500, help="events a second (default: 500)")
    parser.add_argument("--report", type=Path, default=Path("build/soak.html"))
    parser.set_defaults(snapshot_interval=1.0, patience=120.0)
    options = parser.parse_args()
    chaos.PAUSE = chaos.BATCH / options.rate
    # Making one goes on after the job, on a busy machine for longer than anybody waits for its end.
    os.environ["JETLET_SPARK_ARCHIVE"] = "off"
    return chaos.run(Soak, options)


if __name__ == "__main__":
    sys.exit(main())
