"""What can get better is tried again, as restarts are configured: a full disk, an absent server."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks
from jetlet.errors import JobFailedError, RestartableError, kind_of_failure
from jetlet.storage.file_systems import LocalStorage
from jetlet.testing import END, scripted_stream

PROMPT = 60.0


@pytest.fixture
def config(tmp_path):
    def make(**settings):
        settings.setdefault("processing_guarantee", "exactly-once")
        return JobConfig(
            snapshot_dir=str(tmp_path / "state"),
            snapshot_interval=0.01,
            restart_pause=0.01,
            max_restart_pause=0.1,
            **{"max_restarts": 1000, **settings},
        )

    return make


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RestartableError),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), RestartableError),
        (OSError(errno.EIO, "Input/output error"), RestartableError),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), RestartableError),
        (ConnectionResetError(), RestartableError),
        (RestartableError("lost"), RestartableError),
        (FileNotFoundError(errno.ENOENT, "No such file"), JobFailedError),
        (PermissionError(errno.EACCES, "Permission denied"), JobFailedError),
        (ValueError("bad"), JobFailedError),
        (TimeoutError(), JobFailedError),
    ],
)
def test_errors_of_the_system_that_pass_are_curable(error, kind):
    assert kind_of_failure(error) is kind
    wrapped = ValueError("while writing")
    wrapped.__cause__ = error
    assert kind_of_failure(wrapped) is kind


def lines(steps, target, on_item=lambda item: item):
    p = Pipeline("lines")
    stream = p.read_from(scripted_stream(steps)).without_timestamps()
    stream.map(on_item).write_to(sinks.text(target))
    return p


def written(target):
    return sorted(line for f in Path(target).glob("part-*") for line in f.read_text().splitlines())


def failing(times, error):
    """A function that fails at an item so many times."""
    left = [error] * times

    def check(item):
        if item == 50 and left:
            raise left.pop()
        return item

    return check


@pytest.mark.parametrize("members", [1, 2])
def test_server_that_refuses_a_connection_is_tried_again(config, tmp_path, members):
    mark = tmp_path / "mark"

    def call(item):
        if item == 50:
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return item
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return item

    with EmbeddedEngine(members=members, workers=1) as engine:
        job = engine.submit(lines([*range(100), END], tmp_path / "out", call), config())
        job.join(PROMPT)
    assert written(tmp_path / "out") == sorted(map(str, range(100)))
    assert job.metrics().snapshots["restarts"] == 1


def test_restarts_are_limited_and_need_a_guarantee(config, tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    steps = [*range(100), END]
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(lines(steps, tmp_path / "a", failing(9, full)), config(max_restarts=2))
        with pytest.raises(RestartableError, match="No space left on device"):
            job.join(PROMPT)
        assert job.metrics().snapshots["restarts"] == 2
        check = failing(1, full)
        none = JobConfig(name="none")
        with pytest.raises(JobFailedError, match="No space left on device"):
            engine.submit(lines(steps, tmp_path / "b", check), none).join(PROMPT)


def test_disk_that_is_full_at_the_very_end_is_tried_again(config, tmp_path, monkeypatch):
    """When all processors have ended, and only the output is to be made visible."""
    move, calls = LocalStorage.move, []

    def full(self, source, target):
        if Path(target).name.startswith("part-") and len(calls) < 3:
            calls.append(target)
            raise OSError(errno.ENOSPC, "No space left on device")
        move(self, source, target)

    monkeypatch.setattr(LocalStorage, "move", full)
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(lines([*range(100), END], tmp_path / "out"), config())
        job.join(PROMPT)
    assert len(calls) == 3
    assert written(tmp_path / "out") == sorted(map(str, range(100)))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of half a megabyte."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.fault
@pytest.mark.parametrize("members", [1, 2])
def test_full_disk_at_a_sink_is_waited_for(config, small_disk, members):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(384 * 1024))
    steps = [f"{n:0100d}" for n in range(3000)]  # 300 kB, and there is room for 128
    with EmbeddedEngine(members=members, workers=1) as engine:
        job = engine.submit(lines([*steps, END], small_disk / "out"), config())
        while job.metrics().snapshots["restarts"] < 2:
            assert not job.status.is_final, job.error
        ballast.unlink()
        job.join(PROMPT)
    assert written(small_disk / "out") == steps
