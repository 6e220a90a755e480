"""Tell which sensors have gone silent: nothing for half a minute, by the times of the readings.

Each reading moves a timer of its sensor. The timer is due when event time has come to it, and then
nothing has been heard. A reading that is late enough itself, and comes before that, tells of the
silence as well. When the stream ends, nobody is heard any more. The five minutes pass in event time
only: the readings follow each other as fast as a script has them.
"""

import argparse
from dataclasses import dataclass
from typing import NamedTuple

from jetlet import KeyedProcess, Pipeline, ProcessContext, Timer, sinks
from jetlet.testing import END, Timed, pause, scripted_stream

SILENCE = 30_000
"""Milliseconds."""


class Reading(NamedTuple):
    sensor: str
    celsius: float


@dataclass
class Seen:
    last: int | None = None


class SilenceAlert(KeyedProcess[Seen, Reading, str]):
    def __init__(self, silence: int) -> None:
        self.silence = silence

    def create(self) -> Seen:
        return Seen()

    def on_item(self, ctx: ProcessContext[str], state: Seen, item: Reading) -> None:
        if state.last is not None and ctx.time > state.last + self.silence:
            ctx.emit(self.alert(ctx, state))
        state.last = max(ctx.time, state.last or 0)
        ctx.set_timer("silence", state.last + self.silence)

    def on_timer(self, ctx: ProcessContext[str], state: Seen, timer: Timer) -> None:
        ctx.emit(self.alert(ctx, state))
        state.last = None  # told once; the next reading begins anew

    def alert(self, ctx: ProcessContext[str], state: Seen) -> str:
        assert state.last is not None
        return f"{ctx.key} is silent since {state.last / 1000:.0f} s"


def readings() -> list[object]:
    """Each sensor sends one every ten seconds for five minutes, but for when it is silent."""
    silent = {"cellar": range(60, 120), "kitchen": range(0), "roof": range(200, 300)}
    script: list[object] = []
    for second in range(0, 300, 10):
        for sensor, pauses in silent.items():
            if second not in pauses:
                script.append(Timed(second * 1000, Reading(sensor, 20 + second % 7)))
        script.append(pause(10))
    return [*script, END]


p = Pipeline("silence-alert")
(
    p.read_from(scripted_stream(readings()))
    .with_native_timestamps(allowed_lag=0)
    .grouping_key(lambda reading: reading.sensor)
    .process(SilenceAlert(SILENCE), local_parallelism=1)
    .write_to(sinks.client(print, name="print"))
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=["spark", "embedded"], default="spark")
    p.run(on=parser.parse_args().on)
