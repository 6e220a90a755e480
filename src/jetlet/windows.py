"""Window definitions: ``from jetlet import windows``, ``stage.window(windows.tumbling(1000))``.

See :mod:`jetlet.pipeline.windows`.
"""

from __future__ import annotations

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
