"""Hosts with addresses of their own, a cable each, and no loopback that they share.

They are network namespaces of Linux on a bridge, in a world of its own: a program calls ``enter``
first of all, and goes on as the first process in there. Nobody outside sees any of it, so several
such programs can use the same names and addresses. However the program ends, all processes and
namespaces of its world end with it.

    enter()
    lay_cables()
    subprocess.Popen([*HOSTS[1].run, "hostname", "-I"])
    HOSTS[1].unplug()
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COUNT = 5
NAMES = Path("/run/netns")
BAD_CABLE = Path(__file__).with_name("bad_cable.py")
SWITCH = "switch"
WATCHER = "10.77.0.100"
"""The address of the program that makes the hosts."""
NOBODY = "02:00:00:00:00:00"
"""The address of a network card that no host has."""
LISTENING = "0A"
"""The state of a socket, in tables of the kernel."""
INSIDE = "JETLET_TEST_HOSTS"
WORLD = (
    *("unshare", "--net", "--mount", "--pid", "--mount-proc"),
    # Who kills this process kills all that it has started.
    *("--fork", "--kill-child"),
)


def why_not() -> str | None:
    """Why there can be no hosts here, if so."""
    if sys.platform != "linux":
        return "namespaces are a thing of Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    command = [*WORLD, "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError as error:
        return f"network namespaces need unshare and ip (Debian: iproute2): {error}"
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


def enter() -> None:
    """Run this program from its beginning in a world of its own, if it is not there yet."""
    if os.environ.get(INSIDE) is None:
        os.environ[INSIDE] = "yes"
        os.execvp(WORLD[0], [*WORLD, sys.executable, *sys.argv])


@dataclass(frozen=True)
class Host:
    """One of them, by its number."""

    number: int

    @property
    def name(self) -> str:
        return f"host-{self.number}"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def run(self) -> tuple[str, ...]:
        """What the command of a process on this host begins with."""
        return _at(self.name)

    def unplug(self) -> None:
        """Nobody reaches it, and it reaches nobody."""
        _ip("-netns", SWITCH, "link", "set", self.name, "down")

    def plug(self) -> None:
        _ip("-netns", SWITCH, "link", "set", self.name, "up")

    def lose(self, other: Host) -> None:
        """What it sends to the other gets lost from now on; what the other sends, arrives."""
        place = ("lladdr", NOBODY, "nud", "permanent", "dev", "eth0")
        _ip("-netns", self.name, "neigh", "replace", other.address, *place)

    def find(self, other: Host) -> None:
        _ip("-netns", self.name, "neigh", "del", other.address, "dev", "eth0")

    @contextmanager
    def worse(
        self, delay: float, loss: float, damage: float, seed: int, spared: Host
    ) -> Iterator[None]:
        """Its cable is slow meanwhile, or loses or damages what goes over it.

        What goes to or comes from the ``spared`` host is not damaged.
        """
        here, there = f"{self.name}-in", f"{self.name}-out"
        _ip("-netns", SWITCH, "link", "add", here, "type", "veth", "peer", "name", there)
        _ip("-netns", SWITCH, "link", "set", here, "up")
        _ip("-netns", SWITCH, "link", "set", there, "master", "bridge", "up")
        _ip("-netns", SWITCH, "link", "set", self.name, "nomaster")
        cards = (self.name, here)
        rates = map(str, (delay, loss, damage, seed))
        command = (*_at(SWITCH), sys.executable, str(BAD_CABLE), *cards, *rates, spared.address)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cable:
            try:
                assert cable.stdout is not None
                assert cable.stdout.readline() == "ready\n"
                yield
            finally:
                cable.kill()
                _ip("-netns", SWITCH, "link", "del", here)
                _ip("-netns", SWITCH, "link", "set", self.name, "master", "bridge")

    def ports(self) -> list[int]:
        """At which others could reach its processes over TCP."""
        tables = [*self.run, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
        found = set()
        for line in subprocess.check_output(tables, text=True).splitlines():
            _, local, _, state, *_ = line.split()
            if state == LISTENING:
                address, _, port = local.partition(":")
                found.add((_text(address), int(port, 16)))
        return sorted({port for address, port in found if not address.startswith("127.")})


HOSTS = [Host(number) for number in range(1, COUNT + 1)]
BY_ADDRESS = {host.address: host for host in HOSTS}


def _at(namespace: str) -> tuple[str, ...]:
    return ("nsenter", f"--net={NAMES / namespace}")


def lay_cables() -> None:
    """Make the hosts, in the world that was entered."""
    assert os.getpid() == 1, "call enter() first"
    NAMES.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(NAMES)], check=True)
    _ip("netns", "add", SWITCH)
    _ip("-netns", SWITCH, "link", "add", "bridge", "type", "bridge")
    _ip("-netns", SWITCH, "link", "set", "bridge", "up")
    _ip("link", "set", "lo", "up")
    _plug_in("watcher", WATCHER)
    for host in HOSTS:
        _ip("netns", "add", host.name)
        _ip("-netns", host.name, "link", "set", "lo", "up")
        _plug_in(host.name, host.address, inside=("-netns", host.name))
        subprocess.run([*host.run, sys.executable, BAD_CABLE, "whole", "eth0"], check=True)


def _plug_in(name: str, address: str, inside: tuple[str, ...] = ()) -> None:
    """Lay a cable from the bridge to a namespace, or to that of this process."""
    cable = ("type", "veth", "peer", "name", name, "netns", SWITCH)
    _ip(*inside, "link", "add", "eth0", *cable)
    _ip("-netns", SWITCH, "link", "set", name, "master", "bridge", "up")
    _ip(*inside, "address", "add", f"{address}/24", "dev", "eth0")
    _ip(*inside, "link", "set", "eth0", "up")


def _text(address: str) -> str:
    """An address of the kernel's tables; one of IPv6 that stands for one of IPv4 is that."""
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address[-8:])))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
