"""Window definitions: ``from jetlet import windows``, ``stage.window(windows.tumbling(1000))``.

See :mod:`jetlet.pipeline.windows`.
"""

from __future__ import annotations

from jetlet.pipeline.windows import (
    SessionWindow,
    SlidingWindow,
    Window,
    WindowResult,
    session,
    sliding,
    tumbling,
)

__all__ = [
    "SessionWindow",
    "SlidingWindow",
    "Window",
    "WindowResult",
    "session",
    "sliding",
    "tumbling",
]
