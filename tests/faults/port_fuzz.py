"""A stranger who tries everything at a port: ``python port_fuzz.py HOST PORT SECONDS CLAIM``.

``CLAIM`` is a message of a genuine handshake, in hexadecimal, as somebody might have overheard it.
Prints how many connections it made, and fails if the other side ever said more than its greeting.
"""

from __future__ import annotations

import os
import pickle
import random
import socket
import struct
import sys
import time
import zlib

GREETING = 40
"""Bytes that a server sends before the client has said anything."""


class Bomb:
    def __reduce__(self):
        return (os.system, ("kill -9 $PPID",))


def message(kind, body, length=None):
    fields = struct.pack("!IBII", length or len(body), kind, 0, zlib.crc32(body))
    return fields + struct.pack("!I", zlib.crc32(fields)) + body


def payloads(rnd, claim):
    """What a connection may begin with."""
    bomb = pickle.dumps(Bomb())
    yield rnd.randbytes(rnd.randint(0, 5000))
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"JETLET01" + rnd.randbytes(rnd.randint(0, 200))
    yield claim
    yield claim[: rnd.randint(0, len(claim))]
    changed = bytearray(claim)
    changed[rnd.randrange(len(changed))] ^= 1 << rnd.randrange(8)
    yield bytes(changed)
    yield bomb
    yield message(0x10, bomb)
    yield (
        claim + message(0x80, bomb) + message(0x10, b"", 2**31 - 1) + message(0xFF, b"", 2**32 - 1)
    )
    yield struct.pack("!I", 2**32 - 1) * 100
    yield b""


def main(host, port, seconds, claim):
    rnd = random.Random(1)
    claim = bytes.fromhex(claim)
    end = time.monotonic() + float(seconds)
    idle, made, leaked = [], 0, 0
    while time.monotonic() < end:
        for payload in payloads(rnd, claim):
            raw = socket.socket()
            raw.settimeout(0.5)
            try:
                raw.connect((host, int(port)))
                made += 1
                raw.sendall(payload)
                if rnd.random() < 0.3:
                    raw.shutdown(socket.SHUT_WR)
                if rnd.random() < 0.3:
                    raw.settimeout(0.05)
                    while data := raw.recv(4096):
                        leaked = max(leaked, len(data))
            except OSError:
                pass
            # Some stay, and say nothing more.
            idle.append(raw)
            while len(idle) > 300:
                idle.pop(rnd.randrange(len(idle))).close()
    print(made)
    return 1 if leaked > GREETING else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
