"""Masters: what may be written for one, and whether there is anybody at its address.

    check_master("spark://host:7077")

Spark itself would tell of a mistake with a page of Java, and of a wrong address after a minute of
attempts, or ten over Spark Connect.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

from jetlet.errors import InvalidArgumentError, ServerUnreachableError

__all__ = ["check_master"]

_KNOWN = re.compile(
    r"local(\[(\d+|\*)(,\s*\d+)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|yarn|(spark|k8s|sc)://.+"
)
_CONNECT_PORT = 15002
_PATIENCE = 10.0
"""Seconds in which a server has to take a connection."""


def check_master(master: str, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse what no Spark understands, and an address at which nobody listens."""
    if _KNOWN.fullmatch(master) is None:
        raise InvalidArgumentError(
            f"master={master!r} is none that Spark knows: write local[4] or local[*] for this "
            f"machine, spark://host:7077, yarn or k8s://... for a cluster, sc://host:15002 for "
            f"Spark Connect"
        )
    kind, _, rest = master.partition("://")
    if kind == "sc" and not any(name.lower().endswith("_proxy") for name in environ):
        _check_reachable(master, [rest.partition("/")[0]])
    elif kind == "spark":
        _check_reachable(master, rest.split(","))


def _check_reachable(master: str, addresses: list[str]) -> None:
    """Several are one master and those that stand by for it."""
    failed = ""
    for address in addresses:
        host, _, port = address.rpartition(":") if ":" in address else (address, "", _CONNECT_PORT)
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            return
        except (OSError, ValueError, OverflowError) as error:
            failed = str(error)
    raise ServerUnreachableError(
        f"no Spark at {master}: {failed}. Is it running, and is this its address?"
    )
