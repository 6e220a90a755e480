"""Versions of what Jetlet runs on here, for ``jetlet --version -v`` and ``jetlet doctor``."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jetlet._version import __version__
from jetlet.interpreter import has_gil


def package_version(name: str) -> str | None:
    """The version of an installed package; ``None`` if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def install_command(extra: str) -> str:
    """What brings an extra here: from an index of packages, or from where Jetlet is from."""
    try:
        noted = json.loads(distribution("jetlet").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        noted = {}
    url = urlsplit(noted.get("url", ""))
    checkout = unquote(url.path)
    if url.scheme != "file" or not Path(checkout, "pyproject.toml").is_file():
        return f"pip install 'jetlet[{extra}]'"
    option = "-e " if noted.get("dir_info", {}).get("editable") else ""
    return f"pip install {option}'{checkout}[{extra}]'"


def python_version() -> str:
    """The version of this Python, and whether its threads share a lock."""
    lock = "with the GIL" if has_gil() else "without the GIL"
    return f"{platform.python_version()} ({platform.python_implementation()}, {lock})"


def versions() -> dict[str, str]:
    """Names and versions of Jetlet, of Python, and of what is installed that matters to it."""
    found = {"jetlet": __version__, "python": python_version(), "system": platform.platform()}
    for name in ("pyspark", "pyarrow", "pandas", "numpy"):
        installed = package_version(name)
        if installed is not None:
            found[name] = installed
    return found
