"""A directory to write pipelines in, and the command, in this process or in another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result

from jetlet.cli import main

# A process that was started in the background ignores Ctrl-C, behind nohup the end of its terminal,
# and so would its children.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL);"
    "from jetlet.cli import main; main(prog_name='jetlet')"
)


class Project:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> str:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return name

    def jetlet(self, *args: str) -> Result:
        """The command in this process."""
        return CliRunner().invoke(main, args)

    def start(self, *args: str, **options) -> subprocess.Popen[str]:
        """The command in a process of its own."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        process = subprocess.Popen(
            [sys.executable, "-c", START, *args], cwd=self.directory, **options
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what a failed test has left behind."""
        for process in self._started:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setenv("JETLET_RUNTIME_DIR", str(tmp_path / "runtime"))
    modules = set(sys.modules)
    project = Project(tmp_path)
    yield project
    project.close()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name not in modules and file.startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]
