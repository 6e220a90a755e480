"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TEST = """
from jetlet import Pipeline, agg, sinks, windows
from jetlet.testing import Timed, assert_collected_eventually, pause, scripted_stream


def test_windows(engine, virtual_clock):
    p, out = Pipeline("p"), sinks.collect()
    stream = scripted_stream([Timed(5, "a"), pause(60_000), Timed(20, "b")])
    stage = p.read_from(stream).with_native_timestamps().window(windows.tumbling(10))
    stage.aggregate(agg.counting()).write_to(out)
    job = engine.submit(p)
    assert_collected_eventually(job, out, [(0, 10, None, 1)])
    assert virtual_clock.time_ms() >= 60_000
"""
ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "jetlet.testing.plugin")


@pytest.fixture
def run(tmp_path):
    """Runs pytest on a file with the given text."""

    def run(text, *arguments):
        path = tmp_path / "test_it.py"
        path.write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return subprocess.run(
            [*command, *arguments, str(path)],
            cwd=tmp_path,
            # Where it is installed as a plugin it would be loaded twice.
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_the_fixture_is_an_engine_on_a_virtual_clock(run):
    done = run(TEST, *PLUGIN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_nothing_is_imported_before_it_is_asked_for(run):
    text = (
        "import sys\n"
        "def test_imports():\n"
        "    mine = {name for name in sys.modules if name.startswith('jetlet')}\n"
        "    assert mine == {'jetlet', 'jetlet._lazy', 'jetlet._version', 'jetlet.testing', "
        "'jetlet.testing.plugin'}\n"
        "    assert 'pyspark' not in sys.modules\n"
    )
    done = run(text, *PLUGIN)
    assert done.returncode == 0, done.stdout


def test_it_is_declared_where_pytest_looks_for_plugins():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["pytest11"] == {"jetlet": PLUGIN[1]}
