"""Timers of members that are killed: each is due once, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter

import pytest

from jetlet import EmbeddedEngine, JobConfig, KeyedProcess, Pipeline, sinks
from jetlet.testing import END, Timed, pause, scripted_stream

pytestmark = [pytest.mark.fault, pytest.mark.cluster, pytest.mark.slow]

PROMPT = 120.0
COUNT = 1500
KEYS = 20


class Reminders(KeyedProcess[dict, tuple, list]):
    """Two timers for each item, one by events and one by the clock."""

    def create(self):
        return {}

    def on_item(self, ctx, state, item):
        number = item[1]
        state[f"clock {number}"] = number
        ctx.set_timer(f"events {number}", ctx.time + 40)
        ctx.set_timer(f"clock {number}", ctx.now + 60, processing_time=True)

    def on_timer(self, ctx, state, timer):
        if timer.is_processing_time:
            ctx.emit(["clock", ctx.key, state.pop(timer.name)])
        else:
            ctx.emit(["events", ctx.key, timer.name, timer.time])

    def on_end(self, ctx, state):
        """Nobody has waited for the last ones."""
        for number in state.values():
            ctx.emit(["clock", ctx.key, number])


def scripts():
    made = []
    for part in range(4):
        script = []
        for number in range(part, COUNT, 4):
            script.append(Timed(number, (number % KEYS, number)))
            if len(script) % 10 == 0:
                script.append(pause(60))
        made.append([*script, END])
    return made


def written(directory):
    return Counter(
        line for file in directory.glob("*.jsonl") for line in file.read_text().splitlines()
    )


def kill(job, member):
    children = job._runner._attempt._launcher._children
    os.kill(children[member]._process.pid, signal.SIGKILL)


def test_each_timer_is_due_once_though_members_are_killed(tmp_path):
    p = Pipeline("reminders")
    stream = p.read_from(scripted_stream(*scripts())).with_native_timestamps(0)
    stage = stream.grouping_key(lambda item: item[0]).process(Reminders)
    stage.write_to(sinks.json_lines(tmp_path / "out"))
    config = JobConfig(
        processing_guarantee="exactly-once",
        snapshot_dir=str(tmp_path / "state"),
        snapshot_interval=0.1,
        restart_pause=0.01,
    )
    kills = 0
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(p, config)
        until = time.monotonic() + PROMPT
        while kills < 3 and time.monotonic() < until:
            before = job.metrics().snapshots.get("taken", 0)
            while job.metrics().snapshots.get("taken", 0) < before + 3 and not job.status.is_final:
                time.sleep(0.01)
            if job.status.is_final:
                break
            kill(job, kills % 2)
            kills += 1
        job.join(PROMPT)

    assert kills == 3
    expected = [
        line
        for number in range(COUNT)
        for line in (
            ["clock", number % KEYS, number],
            ["events", number % KEYS, f"events {number}", number + 40],
        )
    ]
    assert written(tmp_path / "out") == Counter(map(json.dumps, expected))
