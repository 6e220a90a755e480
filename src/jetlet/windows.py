"""Window definitions: ``from jetlet import windows``, ``stage.window(windows.tumbling(1000))``.

See :mod:`jetlet.pipeline.windows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetlet.pipeline import idioms
from jetlet.pipeline.windows import (
    CalendarDayWindow,
    CumulativeWindow,
    RevisedWindowResult,
    SessionWindow,
    SlidingWindow,
    Window,
    WindowResult,
    calendar_days,
    cumulative,
    session,
    sliding,
    tumbling,
)

__all__ = [
    "CalendarDayWindow",
    "CumulativeWindow",
    "RevisedWindowResult",
    "SessionWindow",
    "SlidingWindow",
    "Window",
    "WindowResult",
    "calendar_days",
    "cumulative",
    "session",
    "sliding",
    "tumbling",
]

if not TYPE_CHECKING:  # to a type checker there are no such functions, which is right

    def __getattr__(name: str) -> Any:
        hint = idioms.module_hint(__name__, name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
