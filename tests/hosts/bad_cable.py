"""A cable that is slow, and loses and damages what goes over it.

::

    bad_cable.py ONE OTHER DELAY LOSS DAMAGE SEED SPARED
    bad_cable.py whole CARD

ONE and OTHER are network cards of this namespace. What comes in at one goes out at the other, after
DELAY seconds; LOSS and DAMAGE are the probabilities that a frame is lost, or damaged. A damaged one
has the checksum that it should have, since two words of what it carries are swapped: TCP notices
nothing. So none is damaged from or to the address SPARED, where nothing else would notice either.
``whole`` has the frames of a card come as they would go over a wire; before that the
kernel leaves it to the other end to cut them up, and to compute their checksums.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time
from itertools import count

ALL_PROTOCOLS = 3
SIOCETHTOOL = 0x8946
SET_TX_CHECKSUM, SET_TSO, SET_GSO = 0x17, 0x1F, 0x24
IPV4, TCP = b"\x08\x00", 6
ETHERNET = 14
"""Bytes of the header of a frame."""
LARGEST = 1 << 16


def make_whole(card: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in (SET_TX_CHECKSUM, SET_TSO, SET_GSO):
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sQ16x", card.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, SIOCETHTOOL, request)


def damaged(frame: bytes, rnd: random.Random, spared: bytes) -> bytes:
    """The frame with two words swapped in what TCP carries, if it carries enough."""
    if frame[12:14] != IPV4 or frame[ETHERNET + 9] != TCP or spared in frame[26:34]:
        return frame
    ip = (frame[ETHERNET] & 15) * 4
    begin = ETHERNET + ip + (frame[ETHERNET + ip + 12] >> 4) * 4
    end = ETHERNET + int.from_bytes(frame[ETHERNET + 2 : ETHERNET + 4])
    words = range(begin, end - 1, 2)
    if len(words) < 2:
        return frame
    one, other = sorted(rnd.sample(words, 2))
    return (
        frame[:one]
        + frame[other : other + 2]
        + frame[one + 2 : other]
        + frame[one : one + 2]
        + frame[other + 2 :]
    )


def connect(
    names: list[str], delay: float, loss: float, damage: float, seed: str, spared: str
) -> None:
    rnd = random.Random(seed)
    spared_bytes = socket.inet_aton(spared)
    cards = []
    for name in names:
        card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        card.bind((name, 0))
        card.setblocking(False)
        cards.append(card)
    others = dict(zip(cards, reversed(cards), strict=True))
    order = count()
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    print("ready", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for card in select.select(cards, [], [], pause)[0]:
            frame, (_, _, kind, *_) = card.recvfrom(LARGEST)
            if kind == socket.PACKET_OUTGOING or rnd.random() < loss:
                continue
            if rnd.random() < damage:
                frame = damaged(frame, rnd, spared_bytes)
            heapq.heappush(waiting, (time.monotonic() + delay, next(order), others[card], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            *_, card, frame = heapq.heappop(waiting)
            try:
                card.send(frame)
            except OSError:
                continue  # the queue is full, or the link is down: it is lost


if __name__ == "__main__":
    if sys.argv[1] == "whole":
        make_whole(sys.argv[2])
    else:
        connect(sys.argv[1:3], *map(float, sys.argv[3:6]), *sys.argv[6:])
