"""What processors and pipelines are tested with.

:func:`verify_processor` runs a processor under every condition that an engine may put it in and
compares what it emits. :func:`scripted_stream` is a stream that does what a test says, and
:func:`assert_collected_eventually` waits for what comes of it. :class:`VirtualClock` makes hours
pass in a moment; :class:`ManualClock` is moved by the test.

With pytest there is a fixture ``engine``, see :mod:`jetlet.testing.plugin`. As that is loaded in
every run of pytest, names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "END": "streams",
    "ManualClock": "clock",
    "Timed": "streams",
    "VirtualClock": "virtual_clock",
    "assert_collected_eventually": "streams",
    "idle": "streams",
    "pause": "streams",
    "scripted_stream": "streams",
    "verify_processor": "harness",
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jetlet.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"jetlet.testing.{home}"), name)
    return value
