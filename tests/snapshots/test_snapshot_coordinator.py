"""The snapshot coordinator, stepped through ordinary snapshots and through anything at all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.snapshots.snapshot_coordinator import (
    Begin,
    Finish,
    GiveUp,
    Over,
    Overdue,
    Phase,
    Prepare,
    Record,
    Refuse,
    Snapshot,
    SnapshotCoordinator,
    Terminate,
)

INTERVAL = 10.0


def ready(members=2, **options):
    """All members are drained; nothing is due."""
    options.setdefault("interval", INTERVAL)
    coordinator = SnapshotCoordinator(members, 0.0, **options)
    for member in range(members):
        assert coordinator.drained(member, 0.0) == []
    return coordinator


def saving(coordinator, now=INTERVAL):
    """The snapshot that is due then has begun."""
    (prepare,) = coordinator.tick(now)
    assert isinstance(prepare, Prepare)
    (begin,) = coordinator.prepared(prepare.snapshot.id, None, now)
    assert begin.snapshot == prepare.snapshot
    return prepare.snapshot


def recording(coordinator, now=INTERVAL, members=2):
    snapshot = saving(coordinator, now)
    commands = [coordinator.saved(m, snapshot.id, None, now) for m in range(members)]
    assert commands[-1] == [Record(snapshot)]
    assert not any(commands[:-1])
    return snapshot


def take(coordinator, now=INTERVAL, members=2):
    """Take a whole snapshot."""
    snapshot = recording(coordinator, now, members)
    assert coordinator.recorded(snapshot.id, None, now) == [
        Finish(snapshot, success=True, members=tuple(range(members)))
    ]
    commands = [coordinator.committed(m, snapshot.id, now) for m in range(members)]
    assert commands[-1][0] == Over(snapshot, None)
    return snapshot


# --- Ordinary snapshots -----------------------------------------------------------------------


def test_snapshot_goes_through_its_phases():
    coordinator = ready()
    assert coordinator.due == INTERVAL
    assert coordinator.tick(9.9) == []
    first = Snapshot(1, area=0)
    assert coordinator.tick(10.0) == [Prepare(first)]
    assert coordinator.due is None, "nothing is due while one is taken"
    assert coordinator.prepared(1, None, 10.1) == [Begin(first, (0, 1))]
    assert coordinator.saved(1, 1, None, 10.2) == []
    assert coordinator.saved(0, 1, None, 10.3) == [Record(first)]
    assert coordinator.recorded(1, None, 10.4) == [Finish(first, success=True, members=(0, 1))]
    assert coordinator.committed(0, 1, 10.5) == []
    assert coordinator.committed(1, 1, 10.6) == [Over(first, None)]
    assert coordinator.due == 20.6
    assert coordinator.tick(20.6) == [Prepare(Snapshot(2, area=1))]


def test_nothing_begins_while_a_member_drains_an_edge_of_higher_priority():
    coordinator = SnapshotCoordinator(2, 0.0, interval=INTERVAL)
    coordinator.drained(0, 1.0)
    assert coordinator.due is None
    assert coordinator.tick(100.0) == []
    assert coordinator.export("early", 101.0) == []
    (prepare,) = coordinator.drained(1, 102.0)
    assert prepare.snapshot.export == "early"


def test_without_an_interval_snapshots_are_taken_on_request_only():
    coordinator = ready(interval=None)
    assert coordinator.due is None
    assert coordinator.tick(1e9) == []
    (prepare,) = coordinator.export("now", 1e9)
    assert prepare == Prepare(Snapshot(1, export="now"))


def test_areas_alternate_on_success_only():
    coordinator = ready()
    assert take(coordinator).area == 0
    failed = saving(coordinator, 20.0)
    assert failed.area == 1
    coordinator.saved(0, failed.id, "disk full", 20.0)
    (finish,) = coordinator.saved(1, failed.id, None, 20.0)
    assert not finish.success
    coordinator.committed(0, failed.id, 20.0)
    assert coordinator.committed(1, failed.id, 20.0) == [Over(failed, "disk full")]
    assert take(coordinator, 30.0).area == 1
    assert take(coordinator, 40.0).area == 0


def test_restored_area_is_not_written_to():
    coordinator = ready(good_areas=[1, 0], next_id=8)
    assert take(coordinator) == Snapshot(8, area=0)
    assert take(coordinator, 20.0) == Snapshot(9, area=1)
    assert take(ready(good_areas=[2, 0, 1], keep=2)).area == 1


def test_as_many_as_wanted_are_kept():
    coordinator = ready(keep=3)
    assert [take(coordinator, 10.0 * n).area for n in range(1, 7)] == [0, 1, 2, 3, 0, 1]


# --- Snapshots that take too long -------------------------------------------------------------


def test_overdue_snapshot_is_told_and_waited_for():
    coordinator = ready(timeout=60.0, max_overdue=3)
    snapshot = saving(coordinator)
    assert coordinator.due == INTERVAL + 60.0
    assert coordinator.saved(1, snapshot.id, None, 30.0) == []
    assert coordinator.tick(69.9) == []
    assert coordinator.tick(70.0) == [Overdue(snapshot, (0,), 60.0)]
    assert coordinator.tick(129.0) == []
    assert coordinator.tick(130.0) == [Overdue(snapshot, (0,), 120.0)]
    assert coordinator.saved(0, snapshot.id, None, 131.0) == [Record(snapshot)], "late, but whole"
    assert coordinator.recorded(snapshot.id, None, 131.0) != []
    for member in (0, 1):
        coordinator.committed(member, snapshot.id, 131.0)
    assert coordinator.due == 131.0 + INTERVAL
    again = saving(coordinator, 141.0)
    assert coordinator.tick(201.0) == [Overdue(again, (0, 1), 60.0)], "counted anew"


def test_snapshot_that_is_overdue_too_often_ends_the_attempt():
    coordinator = ready(timeout=60.0, max_overdue=2)
    snapshot = saving(coordinator)
    coordinator.tick(70.0)
    overdue, over, give_up = coordinator.tick(130.0)
    assert overdue == Overdue(snapshot, (0, 1), 120.0)
    assert over == Over(snapshot, give_up.reason)
    assert "snapshot 1 is not complete after 120 s" in give_up.reason
    assert isinstance(give_up, GiveUp)
    assert coordinator.due is None


def test_storage_and_commits_can_be_overdue_too():
    coordinator = ready(timeout=60.0, max_overdue=3)
    (prepare,) = coordinator.tick(INTERVAL)
    assert coordinator.tick(100.0) == [Overdue(prepare.snapshot, (), 60.0)]
    coordinator = ready(timeout=60.0, max_overdue=3)
    snapshot = recording(coordinator)
    assert coordinator.tick(100.0) == [Overdue(snapshot, (), 60.0)]
    coordinator.recorded(snapshot.id, None, 101.0)
    coordinator.committed(0, snapshot.id, 101.0)
    assert coordinator.tick(161.0) == [Overdue(snapshot, (1,), 120.0)]


def test_without_a_guarantee_an_export_may_take_for_ever():
    coordinator = ready(interval=None, timeout=60.0)
    coordinator.export("mine", 0.0)
    for n in range(1, 10):
        (overdue,) = coordinator.tick(60.0 * n)
        assert overdue.seconds == 60.0 * n


# --- Requests ---------------------------------------------------------------------------------


def test_exports_wait_for_the_snapshot_under_way_and_for_each_other():
    coordinator = ready()
    snapshot = recording(coordinator)
    assert coordinator.export("one", 10.0) == []
    assert coordinator.export("two", 10.0) == []
    coordinator.recorded(snapshot.id, None, 10.0)
    coordinator.committed(0, snapshot.id, 10.0)
    over, prepare = coordinator.committed(1, snapshot.id, 10.0)
    assert over == Over(snapshot, None)
    one = prepare.snapshot
    assert one == Snapshot(2, export="one")
    coordinator.prepared(2, None, 10.0)
    coordinator.saved(0, 2, None, 10.0)
    coordinator.saved(1, 2, None, 10.0)
    coordinator.recorded(2, None, 10.0)
    coordinator.committed(0, 2, 10.0)
    assert coordinator.committed(1, 2, 10.0) == [
        Over(one, None),
        Prepare(Snapshot(3, export="two")),
    ]


def test_terminal_snapshot_is_the_last():
    coordinator = ready()
    coordinator.export("first", 1.0)
    assert coordinator.export("never", 1.0) == []
    assert coordinator.terminate(2.0) == [Refuse("never", "the job is about to end")]
    assert coordinator.export("late", 2.0) == [Refuse("late", "the job is about to end")]
    assert coordinator.terminate(2.0) == [Refuse(None, "the job is about to end")]
    coordinator.prepared(1, "no", 3.0)
    terminal = Snapshot(2, area=0, is_terminal=True)
    assert coordinator.current == terminal
    coordinator.prepared(2, None, 3.0)
    coordinator.saved(0, 2, None, 3.0)
    coordinator.saved(1, 2, None, 3.0)
    coordinator.recorded(2, None, 3.0)
    coordinator.ended(0, 3.0)
    assert coordinator.ended(1, 3.0) == [Over(terminal, None)]
    assert coordinator.phase is Phase.STOPPED
    assert coordinator.tick(1000.0) == []


def test_terminal_snapshot_that_fails_still_ends_the_attempt():
    coordinator = ready()
    coordinator.terminate(1.0)
    terminal = coordinator.current
    coordinator.prepared(1, None, 1.0)
    coordinator.saved(0, 1, "disk full", 1.0)
    assert coordinator.saved(1, 1, None, 1.0) == [Finish(terminal, success=False, members=(0, 1))]
    coordinator.ended(0, 1.0)
    assert coordinator.ended(1, 1.0) == [Over(terminal, "disk full")]


def test_terminal_snapshot_that_cannot_begin_ends_the_attempt_by_force():
    coordinator = ready()
    coordinator.terminate(1.0)
    terminal = coordinator.current
    assert coordinator.prepared(1, "gone", 1.0) == [Over(terminal, "gone"), Terminate()]
    assert coordinator.phase is Phase.STOPPED


# --- Failures ---------------------------------------------------------------------------------


def test_snapshot_without_room_for_its_files_disturbs_nobody():
    coordinator = ready()
    coordinator.tick(10.0)
    assert coordinator.prepared(1, "denied", 10.0) == [Over(Snapshot(1, area=0), "denied")]
    assert take(coordinator, 20.0) == Snapshot(2, area=0)


def test_record_that_cannot_be_written_is_rolled_back():
    coordinator = ready()
    snapshot = recording(coordinator)
    assert coordinator.recorded(snapshot.id, "denied", 10.0) == [
        Finish(snapshot, success=False, members=(0, 1))
    ]
    coordinator.committed(0, snapshot.id, 10.0)
    assert coordinator.committed(1, snapshot.id, 10.0) == [Over(snapshot, "denied")]


def test_record_in_doubt_ends_the_attempt_without_an_outcome():
    coordinator = ready()
    snapshot = recording(coordinator)
    assert coordinator.in_doubt(snapshot.id, "who knows") == [
        Over(snapshot, "who knows"),
        GiveUp("who knows"),
    ]
    assert coordinator.phase is Phase.STOPPED


def test_end_of_the_job_answers_all_who_wait():
    coordinator = ready()
    snapshot = saving(coordinator)
    coordinator.export("one", 10.0)
    assert coordinator.stop("cancelled") == [
        Over(snapshot, "cancelled"),
        Refuse("one", "cancelled"),
    ]
    assert coordinator.stop("cancelled") == []
    assert coordinator.saved(0, snapshot.id, None, 10.0) == []


def test_snapshot_with_a_record_counts_even_if_the_job_fails_before_its_end():
    coordinator = ready()
    snapshot = recording(coordinator)
    coordinator.recorded(snapshot.id, None, 10.0)
    assert coordinator.stop("member 1 was lost") == [Over(snapshot, None)]


def test_member_that_has_ended_is_not_waited_for():
    coordinator = ready()
    coordinator.ended(0, 5.0)
    (prepare,) = coordinator.tick(10.0)
    assert coordinator.prepared(1, None, 10.0) == [Begin(prepare.snapshot, (1,))]
    assert coordinator.ended(1, 10.0) == [Record(prepare.snapshot)]
    assert coordinator.recorded(1, None, 10.0) == [Over(prepare.snapshot, None)]
    assert coordinator.tick(100.0) == [], "nobody is left, and the record says so"


# --- The end ----------------------------------------------------------------------------------


def test_last_snapshot_is_taken_when_all_members_have_ended():
    coordinator = ready()
    taken = take(coordinator)
    assert coordinator.ended(1, 11.0) == []
    last = Snapshot(2, area=1)
    assert taken.area == 0
    assert coordinator.ended(0, 12.0) == [Prepare(last)]
    assert coordinator.prepared(2, None, 12.0) == [Record(last)]
    assert coordinator.recorded(2, None, 12.0) == [Over(last, None)]
    assert coordinator.phase is Phase.IDLE
    assert coordinator.tick(100.0) == []


def test_record_that_does_not_know_of_the_end_is_followed_by_one_that_does():
    coordinator = ready()
    snapshot = recording(coordinator)
    coordinator.recorded(snapshot.id, None, 10.0)
    coordinator.ended(0, 10.0)
    assert coordinator.ended(1, 10.0) == [Over(snapshot, None), Prepare(Snapshot(2, area=1))]


def test_export_is_not_the_last_snapshot():
    coordinator = ready(members=1)
    coordinator.export("mine", 1.0)
    export = Snapshot(1, export="mine")
    coordinator.ended(0, 1.0)
    assert coordinator.prepared(1, None, 1.0) == [Record(export)]
    assert coordinator.recorded(1, None, 1.0) == [Over(export, None), Prepare(Snapshot(2, area=0))]


def test_last_snapshot_that_fails_is_not_repeated():
    coordinator = ready(members=1)
    coordinator.ended(0, 1.0)
    last = Snapshot(1, area=0)
    assert coordinator.prepared(1, "no room", 1.0) == [Over(last, "no room")]
    assert coordinator.tick(100.0) == []
    coordinator = ready(members=1)
    coordinator.ended(0, 1.0)
    coordinator.prepared(1, None, 1.0)
    assert coordinator.recorded(1, "no room", 1.0) == [Over(last, "no room")]
    assert coordinator.tick(100.0) == []


def test_terminal_snapshot_has_no_successor():
    coordinator = ready(members=1)
    coordinator.terminate(1.0)
    coordinator.prepared(1, None, 1.0)
    coordinator.saved(0, 1, None, 1.0)
    coordinator.recorded(1, None, 1.0)
    assert coordinator.ended(0, 1.0) == [Over(Snapshot(1, area=0, is_terminal=True), None)]


def test_without_an_interval_there_is_no_last_snapshot():
    coordinator = ready(members=1, interval=None)
    assert coordinator.ended(0, 1.0) == []
    assert coordinator.phase is Phase.IDLE


# --- Anything at all --------------------------------------------------------------------------

members = st.integers(0, 2)
near = st.integers(-1, 1)
"""Which snapshot a message is about, relative to the one under way."""
errors = st.sampled_from([None, None, None, "error"])
events = st.one_of(
    st.tuples(st.just("drained"), members),
    st.tuples(st.just("tick")),
    st.tuples(st.just("export"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("terminate")),
    st.tuples(st.just("prepared"), near, errors),
    st.tuples(st.just("saved"), members, near, errors),
    st.tuples(st.just("recorded"), near, errors),
    st.tuples(st.just("in_doubt"), near, st.just("doubt")),
    st.tuples(st.just("committed"), members, near),
    st.tuples(st.just("ended"), members),
    st.tuples(st.just("stop"), st.just("stopped")),
)


class Watched:
    """A coordinator whose commands are checked as they come."""

    def __init__(self, count, keep, good):
        self.count, self.keep = count, keep
        self.now = 0.0
        self.coordinator = SnapshotCoordinator(count, 0.0, interval=1.0, keep=keep, good_areas=good)
        self.current = None
        self.ids = []
        self.has_begun = self.has_record = self.has_record_asked = self.is_doubtful = False
        self.saved, self.failed = set(), False
        self.alive, self.draining = set(range(count)), set(range(count))
        self.good = [*reversed(good)]
        """Areas, the newest last."""
        self.asked, self.answered = 0, 0
        self.is_stopped = False

    def step(self, name, *args):
        coordinator = self.coordinator
        current = coordinator.current.id if coordinator.current else 0
        if name in {"prepared", "recorded", "in_doubt"}:
            args = (current + args[0], *args[1:])
        elif name in {"saved", "committed"}:
            args = (args[0], current + args[1], *args[2:])
        self.note(name, args, current)
        timed = args if name in {"stop", "in_doubt"} else (*args, self.now)
        for command in getattr(coordinator, name)(*timed):
            self.check(command)

    def note(self, name, args, current):
        phase = self.coordinator.phase
        if name == "drained":
            self.draining.discard(args[0])
        elif name == "ended":
            self.alive.discard(args[0])
            self.draining.discard(args[0])
            self.saved.add(args[0])
        elif name == "saved" and args[1] == current and phase is Phase.SAVING:
            if args[0] not in self.saved:
                self.saved.add(args[0])
                self.failed = self.failed or args[2] is not None
        elif name == "recorded" and args[0] == current and phase is Phase.RECORDING:
            self.has_record = args[1] is None
            if self.has_record and self.current.area is not None:
                self.good.append(self.current.area)
        elif name == "in_doubt" and args[0] == current and phase is Phase.RECORDING:
            self.is_doubtful = True
        elif name in {"export", "terminate"}:
            self.asked += 1

    def check(self, command):
        assert not self.is_stopped, f"{command} after the end"
        if isinstance(command, Prepare):
            assert self.current is None, "never two at once"
            assert not self.draining
            self.current = command.snapshot
            assert command.snapshot.id not in self.ids
            self.ids.append(command.snapshot.id)
            area = command.snapshot.area
            assert (area is None) == (command.snapshot.export is not None)
            assert area not in self.good[-self.keep :], "the last good ones are not written over"
            assert area is None or area <= self.keep
            self.has_begun = self.has_record = self.has_record_asked = self.failed = False
            self.saved = set(range(self.count)) - self.alive
        elif isinstance(command, Begin):
            assert command.snapshot == self.current
            assert set(command.members) == self.alive
            self.has_begun = True
        elif isinstance(command, Record):
            assert command.snapshot == self.current
            assert self.saved == set(range(self.count)), "recorded only if all have saved"
            assert not self.failed
            assert not self.has_record_asked
            self.has_record_asked = True
        elif isinstance(command, Finish):
            assert command.snapshot == self.current
            assert command.success == self.has_record, "success means that the record is there"
            assert set(command.members) == self.alive
        elif isinstance(command, Over):
            assert command.snapshot == self.current
            if not self.is_doubtful:
                assert (command.error is None) == self.has_record
            if self.current.export is not None or self.current.is_terminal:
                self.answered += 1
            self.current = None
        elif isinstance(command, Refuse):
            self.answered += 1
        else:
            assert isinstance(command, Terminate | GiveUp)
            assert isinstance(command, Terminate) or self.is_doubtful
            self.is_stopped = True


@given(st.integers(1, 3), st.integers(1, 2), st.lists(events, max_size=60), st.data())
@settings(max_examples=500)
def test_no_order_of_events_breaks_it(count, keep, history, data):
    areas = data.draw(st.permutations(range(keep + 1)))
    watched = Watched(count, keep, areas[: data.draw(st.integers(0, keep + 1))])
    for name, *args in history:
        watched.now += data.draw(st.sampled_from([0.0, 0.5, 2.0]))
        if name in {"drained", "saved", "committed", "ended"} and args[0] >= count:
            continue
        watched.step(name, *args)
    watched.step("stop", "the end")
    assert watched.asked == watched.answered, "whoever asks gets exactly one answer"
    assert watched.current is None
    assert watched.coordinator.phase is Phase.STOPPED


class World:
    """Members and a store that answer each command in the end, in any order."""

    def __init__(self, count, draw):
        self.coordinator = SnapshotCoordinator(count, 0.0, interval=1.0)
        self.now = 0.0
        self.draw = draw
        self.pending = [("drained", member) for member in range(count)]
        self.alive = set(range(count))
        self.over = []
        self.is_ended = False

    def obey(self, commands):
        for command in commands:
            if isinstance(command, Prepare):
                self.pending.append(("prepared", command.snapshot.id, self.error()))
            elif isinstance(command, Begin):
                for member in command.members:
                    self.pending.append(("saved", member, command.snapshot.id, self.error()))
            elif isinstance(command, Record):
                self.pending.append(("recorded", command.snapshot.id, self.error()))
            elif isinstance(command, Finish):
                for member in command.members:
                    self.pending.append(("committed", member, command.snapshot.id))
                    if command.snapshot.is_terminal:
                        self.pending.append(("ended", member))
            elif isinstance(command, Over):
                self.over.append(command)
                if command.snapshot.is_terminal:
                    self.is_ended = True

    def error(self):
        return self.draw(errors)

    def step(self):
        """One of the answers that are due arrives."""
        self.now += 0.1
        if not self.pending:
            self.now += 1.0
            self.obey(self.coordinator.tick(self.now))
            return
        name, *args = self.pending.pop(self.draw(st.integers(0, len(self.pending) - 1)))
        self.obey(getattr(self.coordinator, name)(*args, self.now))


@given(st.integers(1, 4), st.data())
@settings(max_examples=300)
def test_every_snapshot_comes_to_an_end_whatever_fails(count, data):
    world = World(count, data.draw)
    for _ in range(200):
        world.step()
        if len(world.over) >= 4:
            break
    assert len(world.over) >= 4


@given(st.integers(1, 4), st.integers(0, 40), st.data())
@settings(max_examples=300)
def test_terminal_snapshot_always_ends_the_attempt(count, before, data):
    world = World(count, data.draw)
    for _ in range(before):
        world.step()
    world.obey(world.coordinator.terminate(world.now))
    for _ in range(100):
        if world.is_ended:
            break
        world.step()
    assert world.is_ended
    assert world.coordinator.phase is Phase.STOPPED


@given(st.integers(1, 4), st.integers(0, 40), st.data())
@settings(max_examples=300)
def test_end_of_all_members_is_recorded_unless_that_fails(count, before, data):
    world = World(count, data.draw)
    records = []
    obey = world.obey

    def watch(commands):
        commands = list(commands)
        records.extend(set(world.alive) for c in commands if isinstance(c, Record))
        obey(commands)

    world.obey = watch
    for _ in range(before):
        world.step()
    while world.alive:
        if data.draw(st.booleans()):
            world.step()
            continue
        # Who takes part in a snapshot does not end before it has heard the outcome.
        busy = {e[1] for e in world.pending if e[0] in {"saved", "committed"}}
        if world.coordinator.phase is Phase.RECORDING or not world.alive - busy:
            world.step()
            continue
        member = min(world.alive - busy)
        world.alive.discard(member)
        world.pending = [e for e in world.pending if e != ("drained", member)]
        world.obey(world.coordinator.ended(member, world.now))
    while world.pending:
        world.step()
    assert world.coordinator.phase is Phase.IDLE
    assert any(not alive for alive in records) or world.over[-1].error is not None
