"""The coordinator, stepped through ordinary lives and through anything at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.jobs.members import members_coordinator
from jetlet.jobs.members.members_coordinator import (
    HEARTBEAT_LIMIT,
    HERE,
    JOIN_LIMIT,
    KILL_LIMIT,
    LINK_LIMIT,
    STOP_LIMIT,
    Finish,
    Kill,
    MemberLost,
    MembersCoordinator,
    Phase,
    SendPlan,
    Start,
    Stop,
)

TICK = 0.1


@pytest.fixture(scope="module", autouse=True)
def _limits_of_every_day():
    """Other tests have longer ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members_coordinator, "HEARTBEAT_LIMIT", HEARTBEAT_LIMIT)
        patch.setattr(members_coordinator, "STOP_LIMIT", STOP_LIMIT)
        patch.setattr(members_coordinator, "KILL_LIMIT", KILL_LIMIT)
        yield


def joined(count, now=0.0):
    """All have joined; the plan is out."""
    coordinator = MembersCoordinator(count, now)
    for member in range(count - 1):
        assert coordinator.joined(member, f"at {member}", now) == []
    addresses = {m: f"at {m}" for m in range(count)}
    assert coordinator.joined(count - 1, f"at {count - 1}", now) == [SendPlan(addresses)]
    return coordinator


def running(count, now=0.0):
    coordinator = joined(count, now)
    for member in range(count - 1):
        assert coordinator.ready(member, now) == []
    assert coordinator.ready(count - 1, now) == [Start()]
    assert coordinator.phase is Phase.RUNNING
    return coordinator


def tick(coordinator, start, end, *alive):
    """Let time pass; ``alive`` are heard of all the while."""
    actions = []
    steps = round((end - start) / TICK)
    for step in range(1, steps + 1):
        now = start + step * TICK
        for member in alive:
            coordinator.heard(member, now)
        actions += coordinator.tick(now)
    return actions


# --- Links ----------------------------------------------------------------------------------


def test_a_member_that_another_does_not_hear_is_cut_off_if_it_was_awake_all_the_time():
    coordinator = running(3)
    assert tick(coordinator, 0.0, LINK_LIMIT, 0, 1, 2) == []
    assert coordinator.unheard(0, 2, "stalled", LINK_LIMIT) == [Stop((0, 1, 2))]
    for member in range(2):
        assert coordinator.completed(member, LINK_LIMIT) == []
    (finish,) = coordinator.completed(2, LINK_LIMIT)
    assert finish == Finish(MemberLost(2, "is not heard by member 0: stalled"))


def test_a_member_that_nobody_hears_since_it_is_busy_keeps_its_links():
    coordinator = running(2)
    tick(coordinator, 0.0, 10.0, 0, 1)
    for step in range(1, 200):
        now = 10.0 + step * TICK
        coordinator.heard(0, now)
        coordinator.excused(1, now)
        assert coordinator.tick(now) == []
        # Told when it has been so for long, and again and again.
        if step > 80:
            assert coordinator.unheard(0, 1, "busy", now) == []
    # Awake again, it says something here first; what it says there may be on its way.
    coordinator.heard(1, 30.0)
    assert coordinator.unheard(0, 1, "busy until now", 30.1) == []
    assert tick(coordinator, 30.0, 30.0 + LINK_LIMIT, 0, 1) == []
    # But not for ever.
    assert coordinator.unheard(0, 1, "still nothing", 30.1 + LINK_LIMIT) == [Stop((0, 1))]


def test_a_member_that_does_not_hear_the_coordinator_is_lost():
    coordinator = running(2)
    assert tick(coordinator, 0.0, LINK_LIMIT, 0, 1) == []
    actions = coordinator.unheard(1, HERE, "stalled", LINK_LIMIT)
    assert actions == [Kill((1,)), Stop((0,))]
    (finish,) = coordinator.completed(0, LINK_LIMIT)
    assert finish == Finish(MemberLost(1, "does not hear the coordinator: stalled"))


def test_a_coordinator_that_was_asleep_itself_does_not_give_members_up_for_it():
    coordinator = running(2)
    tick(coordinator, 0.0, 10.0, 0, 1)
    # Stopped for a minute; what members said meanwhile is read before anything else.
    assert coordinator.unheard(1, HERE, "asleep", 70.0) == []
    coordinator.tick(70.0)
    assert coordinator.unheard(1, HERE, "asleep", 70.1) == []


# --- Ordinary lives -------------------------------------------------------------------------


def test_job_ends_when_all_have_completed():
    coordinator = running(3)
    assert coordinator.completed(1, 1.0) == []
    assert coordinator.completed(0, 1.1) == []
    assert coordinator.completed(2, 1.2) == [Finish()]
    assert coordinator.phase is Phase.ENDED


def test_failure_stops_the_others_and_wins_over_what_follows():
    coordinator = running(3)
    assert coordinator.failed(1, "first", 1.0) == [Stop((0, 2))]
    assert coordinator.failed(0, "second", 1.1) == []
    assert coordinator.completed(2, 1.2) == [Finish("first")]


def test_failure_while_preparing_stops_those_who_wait():
    coordinator = joined(2)
    coordinator.ready(0, 0.1)
    assert coordinator.failed(1, "cannot build", 0.2) == [Stop((0,))]
    assert coordinator.ready(1, 0.3) == []
    assert coordinator.completed(0, 0.3) == [Finish("cannot build")]


def test_lost_member_is_a_restartable_failure():
    coordinator = running(2)
    assert coordinator.lost(0, "was ended by SIGKILL", 1.0) == [Stop((1,))]
    lost = MemberLost(0, "was ended by SIGKILL")
    assert coordinator.completed(1, 1.1) == [Finish(lost)]


def test_member_that_has_completed_may_vanish():
    coordinator = running(2)
    coordinator.completed(0, 1.0)
    assert coordinator.lost(0, "exited with code 0", 1.1) == []
    assert coordinator.completed(1, 1.2) == [Finish()]


def test_member_that_another_cannot_reach_is_told_to_stop_too():
    coordinator = running(2)
    assert coordinator.cut_off(1, "cannot be reached", 1.0) == [Stop((0, 1))]
    coordinator.completed(0, 1.1)
    assert coordinator.completed(1, 1.2) == [Finish(MemberLost(1, "cannot be reached"))]


def test_failure_in_the_submitting_process_stops_all():
    coordinator = running(2)
    assert coordinator.failed_here("sink", 1.0) == [Stop((0, 1))]
    coordinator.completed(0, 1.1)
    assert coordinator.completed(1, 1.1) == [Finish("sink")]


def test_member_that_ends_before_it_was_told_to_begin_is_a_failure():
    coordinator = joined(2)
    actions = coordinator.completed(0, 0.5)
    assert actions == [Stop((1,))]
    (finish,) = coordinator.completed(1, 0.6)
    assert finish.failure.member == 0


# --- Cancelling -----------------------------------------------------------------------------


def test_cancel_before_anybody_has_come_kills_those_on_their_way():
    coordinator = MembersCoordinator(2, 0.0)
    assert coordinator.cancel(0.1) == [Kill((0, 1))]
    assert coordinator.lost(0, "gone", 0.2) == []
    assert coordinator.lost(1, "gone", 0.2) == [Finish(was_cancelled=True)]


def test_cancel_while_joining_stops_some_and_kills_the_rest():
    coordinator = MembersCoordinator(3, 0.0)
    coordinator.joined(1, "here", 0.1)
    assert coordinator.cancel(0.2) == [Stop((1,)), Kill((0, 2))]
    # One of them was faster than the signal.
    assert coordinator.joined(0, "here", 0.3) == [Stop((0,))]


def test_cancel_while_running_and_again():
    coordinator = running(2)
    assert coordinator.cancel(1.0) == [Stop((0, 1))]
    assert coordinator.cancel(1.1) == []
    coordinator.completed(0, 1.2)
    assert coordinator.completed(1, 1.3) == [Finish(was_cancelled=True)]
    assert coordinator.cancel(1.4) == []


# --- Time -----------------------------------------------------------------------------------


def test_silent_member_is_killed_and_lost():
    coordinator = running(2)
    actions = tick(coordinator, 0.0, HEARTBEAT_LIMIT + 2 * TICK, 1)
    assert actions == [Kill((0,)), Stop((1,))]
    (finish,) = coordinator.completed(1, 2.5)
    assert finish.failure.member == 0
    assert "silent for 2." in finish.failure.reason


def test_members_that_are_heard_of_live_forever():
    coordinator = running(2)
    assert tick(coordinator, 0.0, 100.0, 0, 1) == []


def test_silence_counts_while_others_still_join():
    coordinator = MembersCoordinator(2, 0.0)
    coordinator.joined(0, "here", 0.0)
    assert tick(coordinator, 0.0, HEARTBEAT_LIMIT + 2 * TICK) == [Kill((0,)), Kill((1,))]


def test_time_in_which_the_coordinator_was_asleep_does_not_count():
    coordinator = running(2)
    tick(coordinator, 0.0, 1.0, 0, 1)
    assert coordinator.tick(60.0) == []
    assert coordinator.silent(60.0, 0.5) == []
    assert tick(coordinator, 60.0, 60.0 + HEARTBEAT_LIMIT + 2 * TICK, 0) == [
        Kill((1,)),
        Stop((0,)),
    ]


def test_members_that_never_come_are_given_up():
    coordinator = MembersCoordinator(3, 0.0)
    coordinator.joined(1, "here", 0.0)
    actions = tick(coordinator, 0.0, JOIN_LIMIT + TICK, 1)
    assert actions == [Stop((1,)), Kill((0, 2))]
    assert coordinator.phase is Phase.STOPPING


def test_members_that_do_not_stop_are_killed_once():
    coordinator = running(2)
    coordinator.cancel(0.0)
    assert tick(coordinator, 0.0, STOP_LIMIT - TICK) == []
    assert tick(coordinator, STOP_LIMIT - TICK, STOP_LIMIT + TICK) == [Kill((0, 1))]
    assert coordinator.lost(0, "gone", 2.2) == []
    assert coordinator.lost(1, "gone", 2.2) == [Finish(was_cancelled=True)]


def test_end_comes_even_if_nobody_tells_of_the_killed():
    coordinator = running(2)
    coordinator.cancel(0.0)
    actions = tick(coordinator, 0.0, STOP_LIMIT + KILL_LIMIT + 3 * TICK)
    assert actions == [Kill((0, 1)), Finish(was_cancelled=True)]


# --- Anything at all ------------------------------------------------------------------------

members = st.integers(0, 3)
events = st.one_of(
    st.tuples(st.just("joined"), members, st.just("somewhere")),
    st.tuples(st.just("ready"), members),
    st.tuples(st.just("heard"), members),
    st.tuples(st.just("completed"), members),
    st.tuples(st.just("failed"), members, st.just("failure")),
    st.tuples(st.just("lost"), members, st.just("gone")),
    st.tuples(st.just("cut_off"), members, st.just("far")),
    st.tuples(st.just("excused"), members),
    st.tuples(st.just("unheard"), members, st.sampled_from([HERE, 0, 1, 2, 3]), st.just("far")),
    st.tuples(st.just("failed_here"), st.just("sink")),
    st.tuples(st.just("cancel")),
    st.tuples(st.just("tick")),
)
histories = st.lists(st.tuples(events, st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0, 3.0])))


class Watched:
    """A coordinator whose actions are checked as they come."""

    def __init__(self, count):
        self.count = count
        self.now = 0.0
        self.coordinator = MembersCoordinator(count, 0.0)
        self.joined, self.ready, self.gone = set(), set(), set()
        self.plans = self.starts = 0
        self.finishes = []

    def step(self, name, *args):
        method = getattr(self.coordinator, name)
        before = self.coordinator.phase
        if name == "joined":
            self.joined.add(args[0])
        if name == "ready" and before is Phase.PREPARING:
            self.ready.add(args[0])
        timed = (*args, self.now)
        actions = method(*timed) or []
        if name in {"completed", "failed", "lost"}:
            self.gone.add(args[0])
        for action in actions:
            self.check(action)
        if before is Phase.ENDED:
            assert actions == []
        assert (self.coordinator.phase is Phase.ENDED) == bool(self.finishes)

    def check(self, action):
        assert not self.finishes, f"{action} after the end"
        everybody = set(range(self.count))
        if isinstance(action, SendPlan):
            self.plans += 1
            assert self.plans == 1
            assert set(action.addresses) == everybody <= self.joined
        elif isinstance(action, Start):
            self.starts += 1
            assert self.starts == self.plans == 1
            assert self.ready == everybody
            assert self.coordinator.phase is Phase.RUNNING
        elif isinstance(action, Stop | Kill):
            assert action.members
            assert set(action.members) <= everybody
            assert not (isinstance(action, Stop) and set(action.members) & self.gone)
        else:
            assert isinstance(action, Finish)
            self.finishes.append(action)


@given(st.integers(1, 4), histories)
@settings(max_examples=400)
def test_no_order_of_events_breaks_it_and_it_always_ends(count, history):
    watched = Watched(count)
    for (name, *args), pause in history:
        watched.now += pause
        if args and isinstance(args[0], int) and args[0] >= count:
            continue
        watched.step(name, *args)
    # Nothing more is heard of anybody, and the user has had enough.
    watched.step("cancel")
    for _ in range(200):
        watched.now += TICK
        watched.step("tick")
    assert len(watched.finishes) == 1


@given(st.integers(1, 4), histories)
def test_without_the_user_it_ends_as_well_once_all_fall_silent(count, history):
    watched = Watched(count)
    for (name, *args), pause in history:
        watched.now += pause
        if name != "cancel" and not (args and isinstance(args[0], int) and args[0] >= count):
            watched.step(name, *args)
    for _ in range(round((JOIN_LIMIT + HEARTBEAT_LIMIT + STOP_LIMIT + KILL_LIMIT + 5) / TICK)):
        watched.now += TICK
        watched.step("tick")
    assert len(watched.finishes) == 1


@given(st.permutations([("failed", 0), ("lost", 1), ("cancel", None)]))
def test_first_cause_of_the_end_is_the_one_reported(order):
    coordinator = running(3)
    finish = []
    for name, member in order:
        if name == "failed":
            finish += coordinator.failed(member, "failure", 1.0)
        elif name == "lost":
            finish += coordinator.lost(member, "gone", 1.0)
        else:
            finish += coordinator.cancel(1.0)
    finish += coordinator.completed(2, 1.0)
    (end,) = [action for action in finish if isinstance(action, Finish)]
    expected = {
        "failed": Finish("failure"),
        "lost": Finish(MemberLost(1, "gone")),
        "cancel": Finish(was_cancelled=True),
    }
    assert end == expected[order[0][0]]
