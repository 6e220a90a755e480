"""Run benchmarks: ``python -m benchmarks [NAME ...] [--quick]``; all of them without a name."""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(
    [p.stem for p in HERE.glob("*.py") if p.stem not in ("__init__", "__main__", "measure")]
    + [p.parent.name for p in HERE.glob("*/__main__.py")]
)


def main() -> None:
    """Each benchmark gets a process of its own, so that none warms up or litters another's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(
            f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        )
    failed = []
    for name in arguments.names or NAMES:
        summary = (inspect.getdoc(import_module(f"benchmarks.{name}")) or name).splitlines()[0]
        print(f"== {name}: {summary}", flush=True)
        options = ["--quick"] if arguments.quick else []
        if subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *options], check=False
        ).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
