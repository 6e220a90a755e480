"""Looking into snapshots: what a job has saved is what is read, whoever wrote it."""

from __future__ import annotations

import json
import secrets

import fsspec
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, snapshots, sources, windows
from jetlet.cli import main
from jetlet.errors import InvalidArgumentError, SnapshotError
from jetlet.log import Log
from jetlet.snapshots import StateEntry


class Guarded(MemoryFileSystem):
    """A store that wants to know who is there."""

    protocol = "guarded"

    def __init__(self, key=None, **options):
        super().__init__(**options)
        if key != "secret":
            raise PermissionError("who is there?")


COUNT, KEYS = 700, 50
KEY = secrets.token_bytes(32)
EXPECTED = {(f"k{key}", COUNT // KEYS) for key in range(KEYS)}


def key_of(number):
    return f"k{number % KEYS}"


def counting(tmp_path, name):
    p = Pipeline(name)
    keyed = p.read_from(sources.log(tmp_path / "in")).without_timestamps().grouping_key(key_of)
    keyed.rolling_aggregate(agg.counting(), name="counts").write_to(sinks.log(tmp_path / name))
    return p


class Jobs:
    """Runs jobs until they have saved what they know of all numbers."""

    def __init__(self, tmp_path, kit):
        self._tmp_path, self._kit = tmp_path, kit
        self.state = tmp_path / "state"
        with Log(tmp_path / "in", partitions=2) as log:
            log.append(range(COUNT))

    def run(self, name="counts-of-keys", members=1, *, export=None, **settings):
        config = JobConfig(
            processing_guarantee="exactly-once",
            snapshot_dir=self.state,
            snapshot_interval=0.02,
            **settings,
        )
        with EmbeddedEngine(members=members, workers=1) as engine:
            job = engine.submit(counting(self._tmp_path, name), config)
            self._kit.eventually(lambda: self._written(name) >= COUNT or job.status.is_final)
            if export is not None:
                job.export_snapshot(export)
            taken = job.metrics().snapshots["taken"]
            self._kit.eventually(lambda: job.metrics().snapshots["taken"] > taken + 1)
            assert not job.status.is_final, job.error

    def _written(self, name):
        if not (self._tmp_path / name).exists():
            return 0
        with Log(self._tmp_path / name, partitions=1) as log:
            return len(log.read(0, 0, COUNT + 1).items)


@pytest.fixture
def jobs(tmp_path, kit):
    return Jobs(tmp_path, kit)


def show(*args):
    return CliRunner().invoke(main, ["snapshots", "show", *map(str, args)])


def by_key(entries):
    return {(entry.key, entry.value) for entry in entries if not entry.is_shared}


@pytest.mark.parametrize(
    "members", [1, pytest.param(2, marks=[pytest.mark.cluster, pytest.mark.slow])]
)
def test_what_is_read_is_what_was_saved(jobs, members):
    jobs.run(members=members)
    contents = snapshots.read(jobs.state)
    assert contents.job_name == "counts-of-keys"
    assert set(contents.vertices) > {"counts"}
    assert len(list(snapshots.read(jobs.state, "counts"))) == KEYS
    assert by_key(snapshots.read(jobs.state, "counts")) == EXPECTED
    # The source has told how far it has read.
    assert any(entry.is_shared for entry in contents if entry.vertex != "counts")

    one = snapshots.read(jobs.state, "counts", key="k7")
    assert list(one) == [StateEntry("counts", "k7", COUNT // KEYS)]
    assert list(one) == list(one)  # each time anew
    assert list(snapshots.read(jobs.state, key="nobody")) == []


def test_state_on_disk_is_read_the_same(jobs, tmp_path):
    jobs.run(state="disk", state_memory=1, state_dir=tmp_path / "disk")
    assert by_key(snapshots.read(jobs.state, "counts")) == EXPECTED


def test_as_a_table(jobs):
    jobs.run()
    table = snapshots.read(jobs.state, "counts").to_arrow()
    assert table.column_names == ["vertex", "key", "value"]
    assert {(row["key"], row["value"]) for row in table.to_pylist()} == EXPECTED
    contents = snapshots.read(jobs.state, "counts")
    assert contents.to_arrow(str)["value"].to_pylist() == [str(COUNT // KEYS)] * KEYS
    with pytest.raises(InvalidArgumentError, match="no type for this value"):
        contents.to_arrow(lambda value: object())


def test_one_of_several_jobs_and_of_their_snapshots(jobs):
    jobs.run("one", export="monday")
    jobs.run("two", keep_snapshots=3)
    with pytest.raises(InvalidArgumentError, match="'one', 'two'"):
        snapshots.read(jobs.state)
    with pytest.raises(InvalidArgumentError, match="no snapshots of job 'three'"):
        snapshots.read(jobs.state, job="three")
    with pytest.raises(InvalidArgumentError, match=r"of a stage 'count'; it has.*'counts'"):
        snapshots.read(jobs.state, "count", job="one")
    with pytest.raises(SnapshotError, match="no snapshot 7000"):
        snapshots.read(jobs.state, job="one", snapshot=7000)
    with pytest.raises(SnapshotError, match="monday"):
        snapshots.read(jobs.state, snapshot="tuesday")
    number = int(snapshots.read(jobs.state, job="two").name)
    assert by_key(snapshots.read(jobs.state, "counts", job="two", snapshot=number - 1)) == EXPECTED
    for exported in (
        snapshots.read(jobs.state, "counts", snapshot="monday"),
        snapshots.read(jobs.state / "exports" / "monday", "counts"),
    ):
        assert (exported.job_name, exported.name) == ("one", "monday")
        assert by_key(exported) == EXPECTED


def test_a_place_without_any_is_told(tmp_path):
    with pytest.raises(SnapshotError, match="no snapshots of any job"):
        snapshots.read(tmp_path)


def test_signed_ones_take_their_key(jobs, tmp_path):
    jobs.run(snapshot_key=KEY)
    assert by_key(snapshots.read(jobs.state, "counts", snapshot_key=KEY)) == EXPECTED
    with pytest.raises(SnapshotError, match="signed"):
        snapshots.read(jobs.state)
    with pytest.raises(SnapshotError, match=r"not signed by this key|changed"):
        list(snapshots.read(jobs.state, snapshot_key=bytes(32)))
    # What was changed is refused before it is unpickled.
    files = [p for p in jobs.state.rglob("*") if p.is_file() and "chain" in p.parts]
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[-40] ^= 1
        file.write_bytes(data)
    with pytest.raises(SnapshotError):
        list(snapshots.read(jobs.state, "counts", snapshot_key=KEY))


def test_windows_tell_which_frame_it_is(tmp_path, kit):
    with Log(tmp_path / "in", partitions=1) as log:
        log.append([(5, "a"), (7, "a"), (12, "b")])
    p = Pipeline("windowed")
    events = p.read_from(sources.log(tmp_path / "in")).with_timestamps(lambda e: e[0], 0)
    keyed = events.grouping_key(lambda e: e[1])
    keyed.window(windows.tumbling(1000)).aggregate(agg.counting(), name="w").write_to(sinks.noop())
    keyed.window(windows.session(1000)).aggregate(agg.counting(), name="s").write_to(sinks.noop())
    keyed.map_stateful(list, lambda s, k, e: s.append(e[0]), ttl=1000, name="t").write_to(
        sinks.noop()
    )
    config = JobConfig(
        processing_guarantee="at-least-once",
        snapshot_dir=tmp_path / "state",
        snapshot_interval=0.02,
    )
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(p, config)
        kit.eventually(
            lambda: (
                (job.metrics().snapshots["taken"] and len(by_name(tmp_path, "t")) == 2)
                or job.status.is_final
            )
        )
    assert by_name(tmp_path, "w") == {"a": (1000, 2), "b": (1000, 1)}
    assert by_name(tmp_path, "s") == {"a": [[5, 1007, 2]], "b": [[12, 1012, 1]]}
    assert by_name(tmp_path, "t") == {"a": [[5, 7], 7], "b": [[12], 12]}


def by_name(tmp_path, vertex):
    try:
        entries = list(snapshots.read(tmp_path / "state", vertex))
    except (SnapshotError, InvalidArgumentError):
        return {}
    return {entry.key: entry.value for entry in entries if not entry.is_shared}


# --- The command ------------------------------------------------------------------------------


def test_command_shows_stages_and_what_they_hold(jobs, tmp_path):
    jobs.run(snapshot_key=KEY)
    (tmp_path / "key").write_bytes(KEY.hex().encode())
    signed = ("--snapshot-key-file", tmp_path / "key")
    refused = show(jobs.state)
    assert refused.exit_code == 1 and "signed" in refused.output

    (tmp_path / "key").write_bytes(KEY)
    names = show(jobs.state, *signed)
    assert names.exit_code == 0, names.output
    assert "counts" in names.output.splitlines()

    one = show(jobs.state, *signed, "--vertex", "counts", "--key", "k7")
    assert one.output == f"counts  'k7'  {COUNT // KEYS}\n"
    few = show(jobs.state, *signed, "--vertex", "counts", "--limit", "3", "--json")
    lines = list(map(json.loads, few.output.splitlines()))
    assert len(lines) == 3
    assert {(line["key"], line["value"]) for line in lines} < EXPECTED

    nothing = show(jobs.state, *signed, "--vertex", "counts", "--key", "7")
    assert nothing.output == """nothing is kept for the key 7; for the text write --key "'7'"\n"""

    wrong = show(jobs.state, *signed, "--vertex", "count")
    assert wrong.exit_code == 2 and "'counts'" in wrong.output


def test_command_lists_as_before(jobs):
    jobs.run(export="monday")
    listed = CliRunner().invoke(main, ["snapshots", str(jobs.state)])
    assert listed.exit_code == 0
    assert "monday" in listed.output


def test_options_of_the_store_are_used_wherever_snapshots_are(tmp_path, kit):
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    jobs = Jobs(tmp_path, kit)
    jobs.state = f"guarded://{secrets.token_hex(8)}"
    options = {"key": "secret"}
    jobs.run(export="known", storage_options=options)
    for which in (None, "known"):
        found = snapshots.read(jobs.state, "counts", snapshot=which, storage_options=options)
        assert {(entry.key, entry.value) for entry in found} == EXPECTED
    with pytest.raises(PermissionError):
        snapshots.read(jobs.state, "counts")
    again = {"storage_options": options, "initial_snapshot": f"{jobs.state}/exports/known"}
    assert "secret" not in repr(JobConfig(**again))
    with EmbeddedEngine() as engine:
        p = counting(tmp_path, "counts-of-keys")
        config = JobConfig(name="again", snapshot_dir=tmp_path / "other", **again)
        engine.submit(p, config).export_snapshot("copied")
    found = snapshots.read(tmp_path / "other", "counts", snapshot="copied")
    assert {(entry.key, entry.value) for entry in found} == EXPECTED
