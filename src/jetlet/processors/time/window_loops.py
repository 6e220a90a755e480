"""The inner loops of windows, compiled for an operation: events into frames, tables into results.

A frame is a table of accumulators by key; frames are known by the time at which they end. For
``all_of(counting(), summing(f))`` by ``key_fn`` the first loop is::

    def all_of_frames(frames, events, done_upto):
        late = []
        start, end = 1, 0
        for time, item in events:
            if not start <= time < end:
                start = time - (time - offset) % length
                end = start + length
                if end <= done_upto:
                    late.append(item)
                    start, end = 1, 0
                    continue
                table = frames[end]
                get = table.get
            key = key_fn(item)
            acc = get(key, missing)
            if acc is missing:
                table[key] = [1, 0 + f(item)]
            else:
                acc[0] += 1
                acc[1] = acc[1] + f(item)
        return late

It looks for another frame only where the time leaves the one it has, which for events in about the
right order is seldom. Where there are gaps between windows, it also leaves out what falls into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jetlet.pipeline.aggregates.loop import GeneratedCode, LoopBody, write_keyed_add
from jetlet.pipeline.windows import FrameWindow
from jetlet.snapshots.incremental import Table

__all__ = ["FrameLoop", "ResultLoop", "frame_loop", "result_loop"]

FrameLoop = Callable[[Mapping[int, Table], Iterable[tuple[int, Any]], int], list[Any]]
"""Called as ``add(frames, events, done_upto)``; returns the items that are late. The frames make
what is missing, as a ``defaultdict`` does."""
ResultLoop = Callable[[Iterable[tuple[Any, Any]], type, int, int], list[Any]]
"""Called as ``results(entries, kind, start, end)``; returns results of that kind, with or without
a timestamp. The time of a result is the last one that belongs to its window, so that a window over
windows has those that end where it ends.
"""


def frame_loop(
    body: LoopBody,
    key_fn: Callable[[Any], Any],
    window: FrameWindow,
    name: str,
    touched: Mapping[Any, dict[Any, Any]] | None = None,
) -> FrameLoop:
    """Compile the function that adds events to the frames they belong to, by key.

    ``touched`` gets the keys, by frame.
    """
    code = GeneratedCode()
    code.line("late = []")
    code.line("start, end = 1, 0")
    with code.block("for time, item in events:"):
        with code.block("if not start <= time < end:"):
            if window.frame_length is None:
                code.line(f"start, end = {code.bind(window.frame_at, 'frame_at')}(time)")
            else:
                length = code.bind(window.frame_length, "length")
                time = f"(time - {code.bind(window.offset, 'offset')})" if window.offset else "time"
                code.line(f"start = time - {time} % {length}")
                code.line(f"end = start + {length}")
            if window.has_gaps:
                is_in_gap = code.bind(window.is_in_gap, "is_in_gap")
                with code.block(f"if {is_in_gap}(start):"):
                    code.line("start, end = 1, 0")
                    code.line("continue")
            with code.block("if end <= done_upto:"):
                code.line("late.append(item)")
                code.line("start, end = 1, 0")
                code.line("continue")
            code.line("table = frames[end]")
            code.line("get = table.get")
            if touched is not None:
                code.line(f"touched = {code.bind(touched, 'tables')}[end]")
        code.line(f"key = {code.value(key_fn, 'item')}")
        if touched is not None:
            code.line("touched[key] = None")
        write_keyed_add(code, body)
    code.line("return late")
    return code.compile(f"{name}_frames", "frames, events, done_upto")


def result_loop(
    finish: Callable[[Any], Any], name: str, *, emits_events: bool = True
) -> ResultLoop:
    """Compile the function that makes window results of accumulators."""
    code = GeneratedCode()
    # What a named tuple's own constructor does, without its detour through Python.
    new = code.bind(tuple.__new__, "new")
    result = f"{new}(kind, (start, end, key, {code.call(finish, 'acc')}))"
    if emits_events:
        code.line("time = end - 1")
        result = f"(time, {result})"
    code.line(f"return [{result} for key, acc in entries]")
    return code.compile(f"{name}_results", "entries, kind, start, end")
