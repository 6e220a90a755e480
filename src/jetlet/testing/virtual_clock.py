"""VirtualClock: time that passes only while an engine has nothing to do, and then at once.

    with EmbeddedEngine(clock=VirtualClock()) as engine:
        engine.submit(pipeline).join()  # an hour of pauses takes a moment

Whenever no worker of the engine finds anything to do, the clock jumps: by ``step_ms``, or less if
something is known to happen before. Timeouts, early results and the pauses of a scripted stream so
come in the right order, and nobody sleeps.

Coroutines go by the clock too: ``asyncio.sleep``, timeouts and the pauses between retries take no
time. While one computes or waits for a connection of its own, time stands still for a moment. What
blocks in a thread of its own is not waited for: there, hours may pass in a second.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from math import ceil
from typing import TypeVarTuple

from jetlet.errors import InvalidArgumentError
from jetlet.execution.idle import IdleStrategy
from jetlet.execution.shared_event_loop import SharedEventLoop

Arguments = TypeVarTuple("Arguments")

SETTLING_PASSES = 3
"""Passes without any progress before time passes: others may be about to hand something over."""
SETTLING_PAUSE = 20e-6
"""Seconds between these passes; what is handed over ends the pause."""
IO_PATIENCE = 0.05
"""Seconds that an event loop with connections waits for them before time may pass."""
WAIT = 0.05
"""Seconds that a worker waits at the most for the others to be idle too."""


class VirtualClock:
    """A clock for engines in tests. Safe to use from any thread."""

    def __init__(self, time_ms: int = 0, *, step_ms: int = 10) -> None:
        if step_ms < 1:
            raise InvalidArgumentError(f"step_ms must be at least 1, not {step_ms}")
        self._now_ns = time_ms * 1_000_000
        self._start_ns = self._now_ns
        self._step_ns = step_ms * 1_000_000
        self._appointments: list[int] = []
        self._condition = threading.Condition()
        self._workers: list[_Worker | _Sleeper] = []
        self.event_loop = SharedEventLoop("jetlet-asyncio", lambda: _VirtualEventLoop(self))
        """Where coroutines run that are to sleep by this clock."""

    def monotonic_ns(self) -> int:
        """Nanoseconds that have passed so far."""
        return self._now_ns - self._start_ns

    def time_ms(self) -> int:
        """The time it was made with, in milliseconds since 1970, plus what has passed since."""
        return self._now_ns // 1_000_000

    def wake_at(self, time_ms: int) -> None:
        """Something happens at ``time_ms``: no jump goes past it."""
        with self._condition:
            if time_ms * 1_000_000 not in self._appointments:
                heappush(self._appointments, time_ms * 1_000_000)

    def make_idle_strategy(self) -> IdleStrategy:
        """What a worker does when it is idle; engines ask for one per worker."""
        with self._condition:
            worker = _Worker(self)
            self._workers.append(worker)
            return worker

    def __repr__(self) -> str:
        return f"VirtualClock(time_ms={self.time_ms()})"

    def _idle(self, worker: _Worker, *, is_parked: bool, pause: float) -> None:
        """Called by an idle worker: wait for the others, or let time pass if they wait already."""
        with self._condition:
            worker.thread = threading.current_thread()
            if not worker.is_signalled:
                worker.is_idle, worker.is_parked = pause >= WAIT, is_parked
                if self._may_pass():
                    self._pass()
                else:
                    self._condition.wait(pause)
            worker.is_idle = worker.is_signalled = False

    def _wake(self, worker: _Worker | _Sleeper) -> None:
        with self._condition:
            worker.is_signalled = True
            if worker.is_idle:
                worker.is_idle = False
                self._condition.notify_all()

    def _may_pass(self) -> bool:
        """True if all workers are idle; time stands still where none has any tasklets."""
        live = [worker for worker in self._workers if worker.is_alive]
        return all(worker.is_idle for worker in live) and not all(w.is_parked for w in live)

    def _pass(self) -> None:
        target = self._now_ns + self._step_ns
        while self._appointments and self._appointments[0] <= self._now_ns:
            heappop(self._appointments)
        if self._appointments:
            target = min(target, self._appointments[0])
        self._now_ns = target
        for worker in self._workers:
            worker.look_again(target)
        self._condition.notify_all()

    def _sleep(self, sleeper: _Sleeper, seconds: float | None) -> bool:
        """Called by an event loop that has nothing to do for so long; false if that has passed."""
        with self._condition:
            if sleeper.is_signalled:
                sleeper.is_signalled = False
                return False
            sleeper.due_ns = None if seconds is None else self._now_ns + ceil(seconds * 1e9)
            sleeper.is_idle, sleeper.is_parked = True, seconds is None
            while sleeper.is_idle and self._may_pass():
                self._pass()
            return sleeper.is_idle

    def _forget(self, sleeper: _Sleeper) -> None:
        with self._condition:
            self._workers.remove(sleeper)
            self._condition.notify_all()


class _Worker:
    """The idle strategy of one worker."""

    idle_ns = 0

    def __init__(self, clock: VirtualClock) -> None:
        self.thread: threading.Thread | None = None
        self.is_idle = False
        """Waiting, with nothing to do; all three are guarded by the clock's condition."""
        self.is_parked = False
        """True if the worker has no tasklets at all."""
        self.is_signalled = False
        self._clock = clock

    @property
    def is_alive(self) -> bool:
        return self.thread is None or self.thread.is_alive()

    def look_again(self, now_ns: int) -> None:
        """Time has passed: anything may be due."""
        self.is_idle = False

    def idle(self, count: int) -> None:
        pause = SETTLING_PAUSE if count < SETTLING_PASSES else WAIT
        self._clock._idle(self, is_parked=False, pause=pause)

    def rest(self) -> None:
        self.idle(SETTLING_PASSES)

    def park(self) -> None:
        self._clock._idle(self, is_parked=True, pause=WAIT)

    def wake(self) -> None:
        self._clock._wake(self)


# --- Coroutines -----------------------------------------------------------------------------


class _Sleeper:
    """An event loop, as far as the clock knows it. All is guarded by the clock's condition."""

    is_alive = True

    def __init__(self, loop: _VirtualEventLoop) -> None:
        self.is_idle = False
        self.is_parked = False
        """True if it waits for nothing but to be called."""
        self.is_signalled = False
        self.due_ns: int | None = None
        self._loop = loop

    def look_again(self, now_ns: int) -> None:
        """Time has passed: wake the loop if it waits for that."""
        if self.is_idle and self.due_ns is not None and now_ns >= self.due_ns:
            self.is_idle = False
            self._loop.nudge()


class _VirtualSelector(selectors.DefaultSelector):
    """Lets the clock know when the loop has nothing to do."""

    def __init__(self, clock: VirtualClock, sleeper: _Sleeper) -> None:
        super().__init__()
        self._clock = clock
        self._sleeper = sleeper

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if len(self.get_map()) > 1 and (found := super().select(IO_PATIENCE)):
            return found
        if not self._clock._sleep(self._sleeper, timeout):
            return []
        try:
            return super().select(None)
        finally:
            self._clock._wake(self._sleeper)


class _VirtualEventLoop(asyncio.SelectorEventLoop):
    """A loop whose timers go by the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._virtual_clock = clock
        self._sleeper = _Sleeper(self)
        super().__init__(_VirtualSelector(clock, self._sleeper))
        with clock._condition:
            clock._workers.append(self._sleeper)

    def time(self) -> float:
        return self._virtual_clock.monotonic_ns() / 1e9

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        # Before its thread knows: no time passes until what was handed over is done.
        self._virtual_clock._wake(self._sleeper)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def nudge(self) -> None:
        """Let its thread look at the time."""
        super().call_soon_threadsafe(lambda: None)

    def close(self) -> None:
        if not self.is_closed():
            self._virtual_clock._forget(self._sleeper)
        super().close()
