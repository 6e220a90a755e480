"""What is drawn from an iterator on a thread of its own, so that nobody else has to wait for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Final, Generic, TypeVar

from jetlet.pipeline.source import BATCH_SIZE

T = TypeVar("T")

PATIENCE: Final = 0.1
"""Seconds after which somebody who waits is told that there is nothing yet."""
CLOSE_TIMEOUT: Final = 0.05
"""Seconds that closing waits for the thread, which may be stuck in what it draws from."""
MOST_AHEAD: Final = 4 * BATCH_SIZE
"""Things that are drawn before anybody wants them."""

logger = logging.getLogger("jetlet.sources")


def drawn_apart(
    name: str, opened: Callable[[], AbstractContextManager[Iterator[T]]]
) -> Generator[list[T]]:
    """What is in an iterator, in lists of what has come; an empty one if nothing does for a moment.

    Closing it does not wait for the iterator for long; the thread ends when that has given its
    next, and closes it.
    """
    drawing = _Drawing(opened)
    thread = threading.Thread(target=drawing.run, name=f"jetlet-batch-{name}", daemon=True)
    thread.start()
    try:
        while (things := drawing.take()) is not None:
            yield things
    finally:
        if not drawing.close():
            logger.warning(
                "%s: read_fn still waits for something; its thread ends when that returns", name
            )


class _Drawing(Generic[T]):
    """What one thread draws and another takes."""

    def __init__(self, opened: Callable[[], AbstractContextManager[Iterator[T]]]) -> None:
        self._opened = opened
        self._drawn: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_wanted = False
        """Somebody waits for a thing to come."""
        self._is_closed = self._has_ended = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """The thread's work."""
        drawn, changed = self._drawn, self._changed
        try:
            with self._opened() as things:
                for thing in things:
                    drawn.append(thing)
                    if self._is_wanted or len(drawn) >= MOST_AHEAD:
                        with changed:
                            changed.notify_all()
                            changed.wait_for(lambda: len(drawn) < MOST_AHEAD or self._is_closed)
                    if self._is_closed:
                        return
        except BaseException as error:  # raised where the things are wanted
            self._error = error
        finally:
            with changed:
                self._has_ended = True
                changed.notify_all()

    def take(self) -> list[T] | None:
        """What has come; ``None`` at the end."""
        drawn, changed = self._drawn, self._changed
        with changed:
            has_ended = self._has_ended
            if not drawn and not has_ended:
                self._is_wanted = True  # before looking again: what comes now is told
                changed.wait_for(lambda: drawn or self._has_ended, PATIENCE)
                self._is_wanted = False
                has_ended = self._has_ended and not drawn
            things = [drawn.popleft() for _ in range(min(len(drawn), BATCH_SIZE))]
            changed.notify_all()
        if things or not has_ended:
            return things
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> bool:
        """Let the thread end; false if it does not at once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._has_ended, CLOSE_TIMEOUT)
