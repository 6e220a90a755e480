"""Each file of a job's snapshots is deleted, cut off and changed; then the job is submitted again.

Either it gives the exact result, or an error that names the file, and then it has written nothing.
"""

from __future__ import annotations

import random
import shutil

import pytest

from jetlet import EmbeddedEngine, JobConfig
from jetlet.errors import JetletError

pytestmark = pytest.mark.usefixtures("no_thread_left")

COUNT = 400
FLIPS = 6
"""Bits that are flipped in each file, one at a time."""


def run(kit, directory, ledger, tap, **settings):
    """Submit the job; the engine is closed when the tap gives no more, or the job has ended."""
    config = JobConfig(
        processing_guarantee="exactly-once",
        snapshot_dir=str(directory),
        snapshot_interval=0.002,
        restart_pause=0.001,
        max_restarts=2,
        # So that there are two whenever the job is interrupted.
        keep_snapshots=2,
        **settings,
    )
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(dag, config)
        if tap.limit is None:
            job.join(kit.PROMPT)
            return
        kit.eventually(
            lambda: len(ledger.items) == tap.limit and job.metrics().snapshots["taken"] >= 3
        )


@pytest.fixture(params=[1, 2], ids=["first attempt", "second attempt"])
def interrupted(request, kit, tmp_path):
    """A directory of a job that was ended in the middle, and what it has written until then."""
    ledger = kit.Ledger()
    for limit in (100, 200)[: request.param]:
        run(kit, tmp_path / "state", ledger, kit.Tap(limit))
    return tmp_path / "state", ledger.transactions


def faults(directory):
    """By name: what may happen to a file, as a function from its content to another, or ``None``"""

    def flip(seed):
        def flipped(data):
            changed = bytearray(data)
            spot = random.Random(seed).randrange(len(data) * 8)
            changed[spot // 8] ^= 1 << spot % 8
            return bytes(changed)

        return flipped

    yield "deleted", lambda data: None
    for end in (0, 1, -1):
        yield f"cut off at {end}", lambda data, end=end: data[:end]
    for seed in range(FLIPS):
        yield f"flip {seed}", flip(seed)


def go_on(kit, directory, transactions):
    """Run to the end; the error, or ``None``, and everything that is written then."""
    ledger = kit.Ledger()
    ledger.transactions = dict(transactions)
    try:
        run(kit, directory, ledger, kit.Tap())
    except JetletError as error:
        return str(error), ledger
    return None, ledger


def is_exact(ledger, kit):
    return sorted((key, n) for key, n, _ in ledger.items) == kit.counted(COUNT)


def test_damage_to_any_file_is_told_or_makes_no_difference(kit, tmp_path, interrupted):
    directory, transactions = interrupted
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    kinds = {path.suffix for path in files}
    assert kinds == {".claim", ".json", ".commit", ".state"}
    copy = tmp_path / "copy"
    told = 0
    for file in files:
        data = file.read_bytes()
        for fault, change in faults(directory):
            changed = change(data) if data else None
            if changed == data:
                continue
            shutil.copytree(directory, copy)
            victim = copy / file.relative_to(directory)
            if changed is None:
                victim.unlink()
            else:
                victim.write_bytes(changed)
            error, ledger = go_on(kit, copy, transactions)
            if error is None:
                assert is_exact(ledger, kit), f"{victim} {fault}"
            else:
                told += 1
                assert str(victim) in error, f"{victim} {fault}: {error}"
                assert "JobConfig(" in error
                assert ledger.transactions == transactions, f"{victim} {fault}"
                victim.write_bytes(data)  # as the message says: a copy is put back
                error, ledger = go_on(kit, copy, transactions)
                assert error is None
                assert is_exact(ledger, kit)
            shutil.rmtree(copy)
    assert told > 2 * FLIPS


@pytest.mark.parametrize("gone", ["area-*", "area-*/*.json", "area-*/*.state"])
def test_all_snapshots_that_are_gone_are_missed(kit, interrupted, gone):
    directory, transactions = interrupted
    for path in directory.glob(f"jobs/*/{gone}"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    error, ledger = go_on(kit, directory, transactions)
    assert "is missing" in error
    assert "start_fresh=True" in error
    assert ledger.transactions == transactions


def test_older_snapshot_repeats_what_was_committed_since_if_that_is_allowed(kit, interrupted):
    directory, transactions = interrupted
    records = sorted(directory.glob("jobs/*/area-*/*.json"))
    max(records).unlink()
    ledger = kit.Ledger()
    ledger.transactions = dict(transactions)
    run(kit, directory, ledger, kit.Tap(), allow_older_snapshot=True)
    assert {item for _, _, item in ledger.items} == set(range(COUNT))
