"""What holds a job back, in one sentence: a pure function of what its vertices did with their time.

A vertex holds the job back if those before it wait for room in its queues, and it does not wait for
those behind it. Where its own calls do not take long, it waits for something outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jetlet.metrics.shares import Shares

STUCK_NS: Final = 5_000_000_000
"""A call that has been under way for so long is told of before anything else."""
PRESSURE: Final = 0.1
"""Who waits for room for this share of the time is held up."""
FULL: Final = 0.25
"""Of several that a vertex feeds, those whose queues are fuller than this hold it up."""
BUSY: Final = 0.5
"""Who takes this share of a core is busy."""
STILL: Final = 0.1
"""Who was blamed before is still to blame with so much less, lest two take turns."""
SATURATED: Final = 0.15
"""A core that is idle for less than this share of the time has all that it can do."""

NO_TASK: Final = "No task has ended so far; the figures of its vertices come when one has."


@dataclass(frozen=True, slots=True)
class Load:
    """What a vertex did in a stretch of time."""

    name: str
    shares: Shares
    """The mean over its processors."""
    inputs: tuple[str, ...] = ()
    """The vertices that feed it."""
    fill: float | None = None
    """How full its queues are, from 0 to 1; ``None`` without queues."""
    core: float = 0.0
    """The share that its calls take of the cores on which its processors are, from 0 to 1."""
    busiest: float = 0.0
    """The share of its time that its busiest processor is busy."""
    processors: int = 1
    busy_ns: int = 0
    call_ns: int = 0
    """For how long a call has been under way; 0 if none has been for long."""
    may_block: bool = False
    """True if its calls may wait for something: then they need not take a core."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds the job back."""

    sentence: str
    vertex: str | None = None
    """Whom the sentence blames; ``None`` if nobody is to blame."""


def bottleneck(
    loads: Sequence[Load],
    idle: Sequence[float] = (),
    *,
    is_over: bool = False,
    has_stages: bool = False,
    before: str | None = None,
) -> Verdict:
    """Name what holds the job back.

    ``idle`` is the share of the time that each cooperative worker was asleep; empty for a job whose
    vertices run one after the other in tasks of Spark's, where nobody waits for anybody: then the
    one that takes the most time is named. ``is_over`` speaks of what was; ``has_stages`` is true
    for a job whose figures come with its tasks. ``before`` was blamed at the last look.
    """
    if not loads:
        return Verdict(NO_TASK if has_stages else "Nothing has run so far.")
    words = _Words(is_over)
    stuck = max(loads, key=lambda load: load.call_ns)
    if stuck.call_ns >= STUCK_NS and not is_over:
        return Verdict(
            f"`{stuck.name}` has been in one call for {stuck.call_ns / 1e9:.0f} s, and does "
            f"nothing else until that returns.",
            stuck.name,
        )
    if not idle:
        return _most_time(loads, words)
    by_name = {load.name: load for load in loads}
    held_up = [_Held(load, *_waiter(load, loads, by_name)) for load in loads]

    def slack(load: Load) -> float:
        return STILL if load.name == before else 0.0

    def weight(held: _Held) -> float:
        return max(held.load.core, held.load.busiest) + slack(held.load)

    for held in sorted(held_up, key=weight, reverse=True):
        load = held.load
        is_first = not load.inputs
        # Who reads is to blame only if it hardly ever waits for those behind it.
        most = PRESSURE if is_first else max(PRESSURE, load.shares.busy)
        is_busy = max(load.core, load.busiest) >= BUSY - slack(load)
        if is_busy and load.shares.blocked < most + slack(load) and (held.by or is_first):
            if is_first and load.may_block:
                continue  # it may well wait for its items itself
            return Verdict(_busy(held, words), load.name)
    # Those that may block have threads of their own, and may well be waiting there.
    sharing = [load for load in loads if not load.may_block]
    if min(idle) < SATURATED and sum(load.core for load in sharing) >= BUSY:
        first, *others = sorted(sharing, key=lambda load: -load.core)
        most_busy = [first, *(load for load in others[:1] if load.core >= PRESSURE)]
        return _shared_core(sorted(most_busy, key=lambda load: -load.core - slack(load)), words)
    pressed = [held for held in held_up if held.by and held.load.shares.blocked < PRESSURE]
    if pressed:
        held = max(pressed, key=lambda held: held.waits)
        return Verdict(
            f"`{held.load.name}` {words.is_} the bottleneck, though its calls {words.take} only "
            f"{held.load.core:.0%} of its core: it {words.waits} for something outside, and "
            f"`{held.by}` {words.waits} for it {held.waits:.0%} of the time.",
            held.load.name,
        )
    reader = next((load for load in loads if load.may_block and not load.inputs), None)
    if reader is not None and reader.shares.busy >= BUSY:
        return Verdict(
            f"Nothing {words.holds} the job back but `{reader.name}`, which {words.is_} reading, "
            f"or waiting for something to read, {reader.shares.busy:.0%} of the time."
        )
    idlest = next((load for load in loads if not load.inputs), loads[0])
    return Verdict(
        f"Nothing {words.holds} the job back: `{idlest.name}` {words.waits} for items "
        f"{idlest.shares.waiting:.0%} of the time."
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """A vertex, and who waits for it the most."""

    load: Load
    by: str | None
    waits: float


@dataclass(frozen=True, slots=True)
class _Words:
    is_over: bool

    @property
    def is_(self) -> str:
        return "was" if self.is_over else "is"

    @property
    def take(self) -> str:
        return "took" if self.is_over else "take"

    @property
    def takes(self) -> str:
        return "took" if self.is_over else "takes"

    @property
    def waits(self) -> str:
        return "waited" if self.is_over else "waits"

    @property
    def holds(self) -> str:
        return "held" if self.is_over else "holds"


def _waiter(
    load: Load, loads: Sequence[Load], by_name: dict[str, Load]
) -> tuple[str | None, float]:
    """Who waits for room in the vertex's queues the most, and which share of the time."""
    fed = {
        name: sum(name in other.inputs for other in loads)
        for name in load.inputs
        if name in by_name
    }
    waits = [
        (by_name[name].shares.blocked, name)
        for name, count in fed.items()
        # Who feeds several waits for the one that is full.
        if by_name[name].shares.blocked >= PRESSURE and (count == 1 or (load.fill or 0.0) >= FULL)
    ]
    if not waits:
        return None, 0.0
    share, name = max(waits)
    return name, share


def _busy(held: _Held, words: _Words) -> str:
    load = held.load
    if load.processors > 1 and load.busiest >= BUSY and load.shares.busy < 0.6 * load.busiest:
        rest = (load.shares.busy * load.processors - load.busiest) / (load.processors - 1)
        return (
            f"One of the {load.processors} processors of `{load.name}` {words.is_} the bottleneck: "
            f"its calls {words.take} {load.busiest:.0%} of the time, those of the others "
            f"{max(0.0, rest):.0%}."
        )
    cores = "its core" if load.processors == 1 else "its cores"
    if load.may_block:
        cores = "the time, though some of them may be waiting"
    sentence = (
        f"`{load.name}` {words.is_} the bottleneck: its calls {words.take} {load.core:.0%} of "
        f"{cores}"
    )
    if held.by is not None:
        return f"{sentence}, and `{held.by}` {words.waits} for it {held.waits:.0%} of the time."
    return f"{sentence}, and all behind it can only wait for its items."


def _shared_core(loads: Sequence[Load], words: _Words) -> Verdict:
    names = " and ".join(f"`{load.name}`" for load in loads)
    shares = " and ".join(f"{load.core:.0%}" for load in loads)
    verb = words.take if len(loads) > 1 else words.takes
    return Verdict(
        f"{names} {verb} the most of a busy core, {shares}: more members, or less to do for each "
        f"item, would help.",
        loads[0].name,
    )


def _most_time(loads: Sequence[Load], words: _Words) -> Verdict:
    total = sum(load.busy_ns for load in loads)
    if not total:
        return Verdict(NO_TASK)
    most = max(loads, key=lambda load: load.busy_ns)
    tasks = "all tasks" if words.is_over else "the tasks that have ended"
    return Verdict(
        f"`{most.name}` {words.takes} the most time: {most.busy_ns / total:.0%} of what the "
        f"vertices had in {tasks}.",
        most.name,
    )
