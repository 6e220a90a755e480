"""ProcessLauncher: starts processes, listens to them, and lets none get away."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from jetlet.jobs.members import launcher as module
from jetlet.jobs.members.launcher import Bootstrap, ProcessLauncher
from jetlet.network.tls import Credentials

pytestmark = pytest.mark.cluster

PROMPT = 60.0
SECRET = "5ec2e7" * 10


def bootstrap(index=0, **options):
    return Bootstrap("unix:/nowhere", SECRET, index, 2, [*sys.path], **options)


class Deaths:
    """Who has died, with which words."""

    def __init__(self):
        self.words = {}
        self._event = threading.Event()

    def __call__(self, member, words):
        self.words[member] = words
        self._event.set()

    def wait(self):
        assert self._event.wait(PROMPT)
        return self.words


@contextmanager
def launched(code, count=1):
    """Members that run this code instead of theirs."""
    launcher, deaths = ProcessLauncher(), Deaths()
    before = module.COMMAND
    module.COMMAND = "import sys; sys.stdin.readline(); " + code
    try:
        for index in range(count):
            launcher.launch(bootstrap(index), deaths)
        yield launcher, deaths
    finally:
        module.COMMAND = before
        launcher.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("jetlet-launcher")]


def pid_of(launcher, index=0):
    return launcher._children[index]._process.pid


def until(condition):
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_bootstrap_survives_the_journey_and_does_not_show_its_secret():
    one = bootstrap(1, directory="/d", tls=Credentials("a", "b", "c"))
    import json

    assert Bootstrap.from_dict(json.loads(one.to_json())) == one
    assert SECRET not in repr(one)
    assert SECRET not in str(one)


def test_secret_is_neither_in_the_command_line_nor_in_the_environment():
    with launched("import time; print('up', flush=True); time.sleep(60)") as (launcher, _):
        pid = pid_of(launcher)
        for name in ("cmdline", "environ"):
            assert SECRET.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_what_members_say_appears_line_by_line(capsys):
    code = "print('one'); print('two', file=sys.stderr); sys.stdout.write('no newline')"
    with launched(code, 2) as (_, deaths):
        deaths.wait()
        until(lambda: len(deaths.words) == 2)
    out, err = capsys.readouterr()
    assert sorted(out.replace("no newline", "").split()) == ["one", "one"]
    assert out.count("no newline") == 2
    assert err.split() == ["two", "two"]


def test_death_is_told_with_the_reason_and_the_last_words():
    with launched("print('oh no', file=sys.stderr); sys.exit(3)") as (_, deaths):
        assert deaths.wait() == {0: "exited with code 3; its last words:\noh no"}
    code = "import os; print('bye', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    with launched(code) as (_, deaths):
        assert deaths.wait() == {0: "was ended by SIGKILL; its last words:\nbye"}


def test_only_the_last_lines_are_kept():
    with launched("[print(f'line {i}', file=sys.stderr) for i in range(1000)]") as (_, deaths):
        lines = deaths.wait()[0].splitlines()
    assert lines[1:] == [f"line {i}" for i in range(1000 - module.LAST_WORDS, 1000)]


def test_killed_member_takes_what_it_started_with_it():
    code = (
        "import subprocess, time; c = subprocess.Popen(['sleep', '3600']); "
        "print('child', c.pid, flush=True); time.sleep(3600)"
    )
    read, out = io.StringIO(), sys.stdout
    sys.stdout = read
    try:
        with launched(code) as (launcher, deaths):
            until(lambda: "child" in read.getvalue())
            child = int(read.getvalue().split()[1])
            assert is_running(child)
            launcher.kill(0)
            assert "SIGKILL" in deaths.wait()[0]
            until(lambda: not is_running(child))
    finally:
        sys.stdout = out


def test_child_that_a_member_leaves_behind_ends_with_it():
    code = "import subprocess; c = subprocess.Popen(['sleep', '3600']); print('child', c.pid)"
    read, out = io.StringIO(), sys.stdout
    sys.stdout = read
    try:
        with launched(code) as (_, deaths):
            assert deaths.wait() == {0: "exited with code 0"}
            child = int(read.getvalue().split()[1])
            until(lambda: not is_running(child))
    finally:
        sys.stdout = out


def test_close_lets_members_exit_by_themselves(tmp_path):
    mark = tmp_path / "exited"
    code = (
        f"import atexit, pathlib; atexit.register(pathlib.Path({str(mark)!r}).touch); "
        "print('up', flush=True); sys.stdin.read()"
    )
    with launched(code):
        pass
    assert mark.exists()


def test_close_kills_those_that_do_not():
    with launched("import time; time.sleep(3600)") as (launcher, deaths):
        pid = pid_of(launcher)
        launcher.close()
        assert not is_running(pid)
        assert "SIGKILL" in deaths.wait()[0]
        launcher.close()
        launcher.kill(0)


def test_nobody_listening_does_not_block_a_member(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(sys, "stdout", Closed())
    with launched("print('x' * 100_000, flush=True); print('y' * 100_000); sys.exit(4)") as (
        _,
        deaths,
    ):
        assert deaths.wait() == {0: "exited with code 4"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_busy_member_is_told_from_a_stopped_one():
    code = "print('up', flush=True)\nwhile True: pass"
    launcher, deaths = ProcessLauncher(), Deaths()
    before = module.COMMAND
    module.COMMAND = "import sys; sys.stdin.readline()\n" + code
    try:
        launcher.launch(bootstrap(), deaths)
        until(lambda: launcher.is_busy(0))
        os.kill(pid_of(launcher), signal.SIGSTOP)
        until(lambda: not launcher.is_busy(0))
        assert not launcher.is_busy(0)
        assert not launcher.is_busy(7)
    finally:
        module.COMMAND = before
        launcher.close()


def test_member_that_finds_nobody_dies_with_the_reason(capsys):
    launcher, deaths = ProcessLauncher(), Deaths()
    launcher.launch(bootstrap(), deaths)
    words = deaths.wait()[0]
    launcher.close()
    assert words.startswith("exited with code 1")
    assert "FileNotFoundError" in words
    assert SECRET not in words
    assert SECRET not in capsys.readouterr().err


def test_member_that_finds_nobody_removes_the_directory_of_the_sockets():
    """Whoever has made it was killed."""
    directory = Path(tempfile.mkdtemp(prefix="jetlet-"))
    launcher, deaths = ProcessLauncher(), Deaths()
    launcher.launch(bootstrap(directory=str(directory)), deaths)
    deaths.wait()
    launcher.close()
    assert not directory.exists()


def test_member_outside_of_python_path_finds_jetlet(tmp_path):
    """Members have the ``sys.path`` of their parent, but their children's environment is clean."""
    code = "import os, jetlet; print(os.environ.get('PYTHONPATH'), len(sys.path))"
    script = (
        "from jetlet.jobs.members import launcher as m\n"
        f"m.COMMAND = m.COMMAND.split('from jetlet')[0] + {code!r}\n"
        "import sys, threading\n"
        "sys.path.append('/somewhere')\n"
        "l, done = m.ProcessLauncher(), threading.Event()\n"
        "l.launch(m.Bootstrap('', '', 0, 1, sys.path), lambda *_: done.set())\n"
        "done.wait(60); l.close(); print(len(sys.path))\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    lines = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        check=True,
    ).stdout.split()
    assert lines[0] == "None"
    assert lines[1] == lines[2]
