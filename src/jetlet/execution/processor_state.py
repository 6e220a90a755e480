"""State: the stations in the life of a processor."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Where in its life a processor is; in the order in which the states are passed."""

    PROCESS_WATERMARK = enum.auto()
    NULLARY_PROCESS = enum.auto()
    PROCESS_INBOX = enum.auto()
    COMPLETE_EDGE = enum.auto()
    COMPLETE = enum.auto()
    SAVE_SNAPSHOT = enum.auto()
    SNAPSHOT_COMMIT_PREPARE = enum.auto()
    EMIT_BARRIER = enum.auto()
    SNAPSHOT_COMMIT_FINISH_PROCESS = enum.auto()
    SNAPSHOT_COMMIT_FINISH_COMPLETE = enum.auto()
    SNAPSHOT_COMMIT_FINISH_FINAL = enum.auto()
    SAVE_FINAL_STATE = enum.auto()
    WAITING_FOR_SNAPSHOT_COMPLETED = enum.auto()
    EMIT_DONE_ITEM = enum.auto()
    CLOSE = enum.auto()
    END = enum.auto()
