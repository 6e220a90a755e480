"""Look every reading's sensor up in tasks that wait for a slow service, 256 messages at a time.

`process` is a coroutine function: while one message waits for the service, others are on their way.
They may end in any order, but no commit passes a message that is not done. Retrying is left to a
task around the task, which any other task could use as well.
"""

import argparse
import asyncio
from collections import Counter

from jetlet.tasks import (
    EndOfStreamTask,
    InitableTask,
    Scope,
    StreamTask,
    TaskApplication,
    TaskConfig,
    TaskWrapper,
    systems,
)

READINGS = [{"sensor": number % 300, "celsius": 10 + number % 25} for number in range(2000)]
ROOMS = ("attic", "cellar", "kitchen", "study")


class Service:
    """Takes 20 ms for an answer, and refuses the first question for some of the sensors."""

    def __init__(self):
        self.asked = set()

    async def room_of(self, sensor):
        await asyncio.sleep(0.02)
        if sensor % 50 == 7 and sensor not in self.asked:
            self.asked.add(sensor)
            raise ConnectionError("the service is overloaded")
        return ROOMS[sensor % len(ROOMS)]


class Enrich(StreamTask, InitableTask, EndOfStreamTask):
    async def init(self, context):
        self.service = Service()
        self.rooms = Counter()

    async def process(self, envelope, collector, coordinator):
        reading = envelope.message
        room = await self.service.room_of(reading["sensor"])
        self.rooms[room] += 1
        collector.send("memory.enriched", {**reading, "room": room})

    async def end_of_stream(self, collector, coordinator):
        for room, count in sorted(self.rooms.items()):
            print(f"{room:8} {count:5,} readings")
        coordinator.commit(Scope.ALL_TASKS)


class Retry(TaskWrapper):
    """Any coroutine task, tried again when it loses its connection."""

    async def process(self, envelope, collector, coordinator):
        for pause in (0.01, 0.02, 0.04):
            try:
                return await self.task.process(envelope, collector, coordinator)
            except ConnectionError:
                await asyncio.sleep(pause)
        return await self.task.process(envelope, collector, coordinator)


memory = systems.in_memory()
memory.create("readings")
memory.send_all("readings", READINGS)
memory.end("readings")

app = TaskApplication(
    "enrich",
    lambda: Retry(Enrich()),
    systems={"memory": memory},
    inputs=["memory.readings"],
    outputs=["memory.enriched"],
    config=TaskConfig(max_concurrency=256),
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("embedded",), default="embedded")
    parser.parse_args()
    app.run(on="embedded")
