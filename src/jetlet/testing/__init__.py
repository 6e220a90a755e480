"""What processors and pipelines are tested with.

:func:`verify_processor` runs a processor under every condition that an engine may put it in and
compares what it emits. :func:`scripted_stream` is a stream that does what a test says, and
:func:`assert_collected_eventually` waits for what comes of it. :class:`VirtualClock` makes hours
pass in a moment; :class:`ManualClock` is moved by the test.

With pytest there is a fixture ``engine``, see :mod:`jetlet.testing.plugin`. As that is loaded in
every run of pytest, names are imported when they are first used.
"""

from typing import TYPE_CHECKING, Final

from jetlet._lazy import lazy

if TYPE_CHECKING:
    from jetlet.testing.clock import ManualClock
    from jetlet.testing.harness import verify_processor
    from jetlet.testing.streams import (
        END,
        Timed,
        assert_collected_eventually,
        idle,
        pause,
        scripted_stream,
    )
    from jetlet.testing.virtual_clock import VirtualClock

_HOMES: Final = {
    "END": "jetlet.testing.streams",
    "ManualClock": "jetlet.testing.clock",
    "Timed": "jetlet.testing.streams",
    "VirtualClock": "jetlet.testing.virtual_clock",
    "assert_collected_eventually": "jetlet.testing.streams",
    "idle": "jetlet.testing.streams",
    "pause": "jetlet.testing.streams",
    "scripted_stream": "jetlet.testing.streams",
    "verify_processor": "jetlet.testing.harness",
}

__all__ = [
    "END",
    "ManualClock",
    "Timed",
    "VirtualClock",
    "assert_collected_eventually",
    "idle",
    "pause",
    "scripted_stream",
    "verify_processor",
]

__getattr__, __dir__ = lazy(__name__, _HOMES)
