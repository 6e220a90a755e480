"""The job that chaos is let loose on: ``python chaos_job.py SETTINGS``, a JSON object.

Submits a windowed, keyed pipeline from an embedded log to files and a database, and runs until its
standard input is closed. If it was killed, the same command goes on from the last snapshot.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections import defaultdict

from mischief import Mischief

from jetlet import EmbeddedEngine, JobConfig, Pipeline, SparkEngine, agg, sinks, sources, windows
from jetlet.errors import JobCancelledError
from jetlet.jobs.config import ALL

NAME = "chaos"
MEMBERS = 2
PARTITIONS = 4
KEYS = 10
LAG = 20
"""Milliseconds that an event may be late."""
SIZE, SLIDE = 200, 100
"""Milliseconds of the windows."""
END = 1 << 40
"""The time of the last event in each partition, which no window holds."""
TABLE = "CREATE TABLE results (window_start BIGINT, event_key BIGINT, ids TEXT)"


def pipeline(log, files, database, mischief=None):
    """Events are (id, key, timestamp); results (start, key, ids of the events in the window)."""
    p = Pipeline(NAME)
    events = p.read_from(sources.log(log, serializer="json"))
    does_nothing = (lambda event: True) if mischief is None else Mischief(mischief)
    results = (
        # By the clock no partition is ever idle: restarts take as long as they take.
        events.with_timestamps(lambda event: event[2], LAG, idle_timeout=3_600_000)
        .filter(does_nothing)
        .filter(lambda event: event[2] != END)
        .grouping_key(lambda event: event[1])
        .window(windows.sliding(SIZE, SLIDE))
        .aggregate(agg.to_list(lambda event: event[0]))
        .map(lambda window: (window.start, window.key, json.dumps(sorted(window.result))))
    )
    results.write_to(sinks.json_lines(files))
    results.write_to(sinks.sql(database, "results"))
    return p


def expected(events):
    """What the pipeline makes of the events, as (start, key) to sorted ids."""
    results = defaultdict(list)
    for id, key, timestamp in events:
        last = timestamp - timestamp % SLIDE
        for start in range(last, last - SIZE, -SLIDE):
            results[start, key].append(id)
    return {place: sorted(ids) for place, ids in results.items()}


def make_engine(settings):
    """On members of this process, or on those that a cluster of Spark has slots for."""
    if "master" not in settings:
        return EmbeddedEngine(members=MEMBERS, workers=1)
    return SparkEngine(settings["master"], members=ALL)


def cancel_at_end_of_input(job):
    # Not by sys.stdin, whose lock must be free when the interpreter ends.
    while os.read(0, 1):
        pass
    job.cancel()


def main(settings):
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    config = JobConfig(
        processing_guarantee=settings["guarantee"],
        snapshot_interval=settings["interval"],
        snapshot_dir=settings["snapshots"],
        # Chaos does not wait for a snapshot before it strikes again.
        max_restarts=1000,
        restart_pause=0.01,
        max_restart_pause=0.1,
        link_timeout=settings.get("link_timeout", 10.0),
        tls=settings.get("tls"),
    )
    job_pipeline = pipeline(
        settings["log"], settings["files"], settings["database"], settings.get("mischief")
    )
    with make_engine(settings) as engine:
        job = engine.submit(job_pipeline, config)
        threading.Thread(target=cancel_at_end_of_input, args=[job], daemon=True).start()
        try:
            job.join()
        except JobCancelledError:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
