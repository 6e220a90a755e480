"""Look every reading's sensor up over HTTP, two hundred at a time.

The example starts the server that it asks, on a free port of this machine. The server takes 20 ms
for an answer, is overloaded now and then, and does not know all sensors: `retries` deals with the
second, `on_error` with the third.
"""

import argparse
import asyncio
import json
import threading

from jetlet import Pipeline, agg, sinks, sources

READINGS = [{"sensor": number % 300, "celsius": 10 + number % 25} for number in range(1000)]
ROOMS = ("attic", "cellar", "kitchen", "study")


async def get_json(port, path):
    """A small HTTP client; with a library such as httpx or aiohttp it would be a line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    finally:
        writer.close()
    status = head.split()[1]
    if status != "200":
        raise LookupError(f"{path}: the server says {status}")
    return json.loads(body)


def pipeline() -> Pipeline:
    port = start_server()

    async def with_room(reading):
        sensor = await get_json(port, f"/sensors/{reading['sensor']}")
        return {**reading, "room": sensor["room"]}

    p = Pipeline("enrich")
    (
        p.read_from(sources.items(READINGS))
        .map_async(
            with_room,
            max_concurrency=200,
            timeout=5,
            retries=2,
            backoff=0.01,
            on_error=sinks.json_lines("out/enrich/unknown"),
        )
        .grouping_key(lambda reading: reading["room"])
        .aggregate(agg.averaging(lambda reading: reading["celsius"]))
        .sort()
        .write_to(sinks.logger(formatter=lambda entry: f"{entry[0]:8} {entry[1]:5.2f} °C"))
    )
    return p


# --- The server -------------------------------------------------------------------------------


def room_of(sensor):
    return ROOMS[sensor % len(ROOMS)] if sensor < 290 else None


class Server:
    def __init__(self):
        self.asked = set()

    async def answer(self, reader, writer):
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        sensor = int(path.rpartition("/")[2])
        await asyncio.sleep(0.02)
        if sensor % 50 == 7 and sensor not in self.asked:
            self.asked.add(sensor)
            status, body = "503 Service Unavailable", {}
        elif room := room_of(sensor):
            status, body = "200 OK", {"sensor": sensor, "room": room}
        else:
            status, body = "404 Not Found", {}
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{json.dumps(body)}".encode())
        writer.close()


def start_server() -> int:
    """Serve in a thread of its own for as long as this process lives; returns the port."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncio.start_server(Server().answer, "127.0.0.1", 0, backlog=1000)
    )
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return server.sockets[0].getsockname()[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("spark", "embedded"), default="spark")
    pipeline().run(on=parser.parse_args().on)
