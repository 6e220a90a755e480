"""Accessors: functions that do no more than take a part of their argument, as source text.

Keys, timestamps and what is summed up are mostly given as ``lambda event: event.user`` or the like.
In a generated loop the call of such a function costs more than all that it does, so the loop has
``item.user`` instead. Whatever is not recognised is called.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

_OTHER_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
"""Code flags of functions that are more than an expression."""
_MAX_LENGTH = 64
"""Longer code (in bytes) is not looked at."""
# Each version of Python has instructions of its own; the later ones here are those of 3.14.
_ARGUMENT = ("LOAD_FAST", "LOAD_FAST_BORROW")
_CONSTANT = ("LOAD_CONST", "LOAD_SMALL_INT")
_SUBSCRIPT = (("BINARY_SUBSCR", ""), ("BINARY_OP", "[]"))


def accessor_text(fn: Callable[[Any], Any], item: str) -> str | None:
    """``item[1]`` for ``lambda x: x[1]``, ``item.a.b`` for ``lambda x: x.a.b``; else ``None``."""
    path = _path(fn.__code__) if type(fn) is FunctionType else None
    return None if path is None else item + path


@functools.lru_cache(maxsize=1024)
def _path(code: CodeType) -> str | None:
    """What follows the argument. Each processor of a vertex asks for that of the same functions."""
    if (
        code.co_argcount != 1
        or code.co_kwonlyargcount
        or code.co_flags & _OTHER_FLAGS
        or code.co_freevars
        or code.co_cellvars
        or len(code.co_code) > _MAX_LENGTH
    ):
        return None
    text, constant = "", None
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "NOP")]
    if len(steps) < 3 or steps[0].opname not in _ARGUMENT or steps[-1].opname != "RETURN_VALUE":
        return None
    for step in steps[1:-1]:
        if constant is not None:
            if (step.opname, step.argrepr) not in _SUBSCRIPT:
                return None
            text, constant = f"{text}[{constant}]", None
        elif step.opname in _CONSTANT and type(step.argval) in (int, str):
            constant = repr(step.argval)
        elif step.opname == "LOAD_ATTR" and str(step.argval).isidentifier():
            text += f".{step.argval}"
        else:
            return None
    return text if constant is None else None
