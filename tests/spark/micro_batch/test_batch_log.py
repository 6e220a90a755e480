"""The record of batches: what an attempt goes on from, whatever became of the ones before."""

from __future__ import annotations

import pickle
import random
import shutil

import pytest

from jetlet.errors import SnapshotError
from jetlet.snapshots.epochs import SupersededError
from jetlet.spark.micro_batch.batch_log import BatchInput, BatchLog, BatchRecord


def attempt(directory, run_id="run", **options):
    log = BatchLog(str(directory), "my job")
    log.begin_attempt(run_id, **options)
    return log


def record(log, batch, **values):
    return BatchRecord(
        batch=batch, epoch=log.epoch, run_id=log.run_id, time_ms=batch, tasks={}, **values
    )


def test_an_attempt_goes_on_from_the_last_record_with_the_same_run(tmp_path):
    first = attempt(tmp_path)
    assert (first.epoch, first.last, first.run_id) == (1, None, "run")
    for batch in range(3):
        first.write(record(first, batch, prepared={"sink": [batch]}))
        first.clean()
    second = attempt(tmp_path, "another")
    assert (second.epoch, second.run_id) == (2, "run")
    assert second.last == record(first, 2, prepared={"sink": [2]})
    assert second.state == first.state
    assert second.checkpoint == first.checkpoint == f"file://{first.directory}/life-0001/spark"


def test_an_attempt_that_recorded_nothing_passes_on_its_run(tmp_path):
    attempt(tmp_path)
    assert attempt(tmp_path, "another").run_id == "run"


def test_only_the_last_records_are_kept(tmp_path):
    log = attempt(tmp_path)
    for batch in range(5):
        log.write(record(log, batch))
        log.clean()
    assert [batch for batch, _, _ in sorted(log._names())] == [3, 4]


def test_a_fresh_start_has_a_life_of_its_own(tmp_path):
    first = attempt(tmp_path)
    first.write(record(first, 0))
    second = attempt(tmp_path, "new", fresh=True)
    assert (second.last, second.run_id) == (None, "new")
    assert second.checkpoint != first.checkpoint
    assert attempt(tmp_path).state == second.state
    assert [path.name for path in (tmp_path / "jobs/my job/batches").glob("life-*")] == [
        "life-0002"
    ]


def test_a_job_that_has_completed_begins_anew(tmp_path):
    first = attempt(tmp_path)
    first.write(record(first, 0))
    first.complete()
    assert attempt(tmp_path, "new").run_id == "new"


def test_what_a_superseded_attempt_records_does_not_count(tmp_path):
    first = attempt(tmp_path)
    first.write(record(first, 0))
    second = attempt(tmp_path)
    with pytest.raises(SupersededError, match="another attempt"):
        first.write(record(first, 1))
    third = attempt(tmp_path)
    assert third.last == record(first, 0)
    third.write(record(third, 1))
    assert attempt(tmp_path).last == record(third, 1)
    assert second.epoch < third.epoch


def flip(seed):
    def flipped(data):
        changed = bytearray(data)
        spot = random.Random(seed).randrange(len(data) * 8)
        changed[spot // 8] ^= 1 << spot % 8
        return bytes(changed)

    return flipped


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("suffix", [".batch", ".json", ".commit", ".claim"])
@pytest.mark.parametrize(
    "damage",
    [None, lambda data: b"", lambda data: data[:-3], *map(flip, range(10))],
    ids=["gone", "emptied", "cut off", *(f"flip {n}" for n in range(10))],
)
def test_damage_is_told_or_makes_no_difference(tmp_path, attempts, suffix, damage):
    for _ in range(attempts):
        log = attempt(tmp_path)
        batch = 0 if log.last is None else log.last.batch + 1
        log.write(record(log, batch))
    path = max(tmp_path.rglob(f"*{suffix}"))
    data = path.read_bytes()
    if damage is None:
        path.unlink()
    elif data:
        path.write_bytes(damage(data))
    told = None
    try:
        again = attempt(tmp_path, "another")
    except SnapshotError as error:
        told = str(error)
    if told is None:
        assert (again.last, again.run_id) == (log.last, "run")
    else:
        assert str(path) in told.replace("*", path.stem)
        assert "start_fresh=True" in told
        assert attempt(tmp_path, "another", fresh=True).last is None
        assert attempt(tmp_path, "third").run_id == "another"


def test_records_that_are_gone_are_missed(tmp_path):
    log = attempt(tmp_path)
    log.write(record(log, 0))
    shutil.rmtree(log._records)
    with pytest.raises(SnapshotError, match=r"00000000-0001\.batch is missing.*start_fresh=True"):
        attempt(tmp_path)


def test_what_spark_has_noted_of_a_batch_is_known(tmp_path):
    log = attempt(tmp_path)
    assert log.input_of(3) == BatchInput()
    offsets = tmp_path / "jobs/my job/batches/life-0001/spark/offsets"
    offsets.mkdir()
    noted = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":123456,"conf":{}}\n{"offset":5}'
    (offsets / "3").write_text(noted)
    (offsets / "4").write_text(noted.replace("5}", "6}"))
    assert log.input_of(3).time_ms == 123456
    assert log.input_of(3) == log.input_of(3) != log.input_of(4)


def test_checkpoints_go_where_spark_reaches_them(tmp_path):
    log = BatchLog("memory://bucket/state", "job")
    log.begin_attempt("run")
    assert log.checkpoint == "memory://bucket/state/jobs/job/batches/life-0001/spark"
    log._location = "s3://bucket/state"
    assert log.checkpoint.startswith("s3a://bucket/state/jobs/job")
    assert log.state.startswith("s3://bucket/state/jobs/job")


def test_a_record_of_an_earlier_version_has_no_definitions(tmp_path):
    now = record(attempt(tmp_path), 0, definitions={"sums": {"size": 1}})
    assert pickle.loads(pickle.dumps(now)) == now
    make, args, state = now.__reduce_ex__(2)[:3]
    earlier = make(*args)
    earlier.__setstate__(state[:-1])
    assert earlier == record(attempt(tmp_path / "other"), 0)
