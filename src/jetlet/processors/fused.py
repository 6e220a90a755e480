"""FusedProcessor: a run of map, filter and flat_map as one compiled function over a batch.

The steps are written out as the source of nested loops and compiled once. The engine so adds
nothing per item: what runs is what one would write by hand. For ``flat_map(split).filter(bool)``
it is::

    def fused(batch, reject):
        out = []
        for x0 in batch:
            for x1 in f0(x0):
                if x1:
                    out.append(x1)
        return out

Each step has lines of its own, and its input has a variable of its own. After an error the line
says which step failed, and the variable on which item. Tracebacks show the generated lines between
the engine's and the user's.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from jetlet.core.outbox import Ordinals
from jetlet.errors import ItemFailedError
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import BatchProcessor, ErrorPolicy

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Step:
    """One stateless step."""

    kind: str
    fn: Callable[[Any], Any]
    policy: ErrorPolicy


class FusedFunction:
    """The compiled function of a run of steps. It pickles as its steps and is compiled anew."""

    __slots__ = ("_inputs", "_owners", "call", "filename", "steps")

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        writer = _Writer()
        source = writer.write(self.steps)
        self._owners, self._inputs = writer.owners, writer.inputs
        # The same text under the same name, so that two functions can share an entry for tracebacks.
        self.filename = f"<fused {zlib.crc32(source.encode()):08x}>"
        linecache.cache[self.filename] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            self.filename,
        )
        namespace: dict[str, Any] = {f"f{i}": step.fn for i, step in enumerate(self.steps)}
        exec(compile(source, self.filename, "exec"), namespace)  # noqa: S102 - our own source
        self.call: Callable[[Sequence[Any], Callable[..., None]], list[Any]] = namespace["fused"]

    def __reduce__(self) -> tuple[object, ...]:
        return (FusedFunction, (self.steps,))

    def locate(self, error: BaseException) -> tuple[Any, str] | None:
        """Item and step name that ``error``, raised by :attr:`call`, is about."""
        traceback: TracebackType | None = error.__traceback__
        found = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self.filename:
                found = traceback
            traceback = traceback.tb_next
        if found is None:
            return None
        index = self._owners[found.tb_lineno]
        return found.tb_frame.f_locals[self._inputs[index]], self.steps[index].policy.step


class _Writer:
    """Writes the source, and notes which step each line belongs to."""

    def __init__(self) -> None:
        self.lines = ["def fused(batch, reject):", "    out = []", "    for x0 in batch:"]
        self.owners: dict[int, int] = {}
        self.inputs: list[str] = []
        """The variable that holds the input of each step."""
        self._depth = 2

    def add(self, text: str) -> None:
        self.lines.append(_INDENT * self._depth + text)
        self.owners[len(self.lines)] = len(self.inputs) - 1

    def open(self, text: str) -> None:
        """A line that the following ones belong under."""
        self.add(text)
        self._depth += 1

    def guard(self, text: str) -> None:
        """A line whose errors are dealt with by the step's policy."""
        index = len(self.inputs) - 1
        self.add("try:")
        self.add(f"{_INDENT}{text}")
        self.add("except Exception as error:")
        self.add(f"{_INDENT}reject({index}, {self.inputs[index]}, error)")
        self.add(f"{_INDENT}continue")

    def write(self, steps: Sequence[Step]) -> str:
        item = "x0"
        emit = "out.append({})"
        for i, step in enumerate(steps):
            self.inputs.append(item)
            is_last = i == len(steps) - 1
            result, call = f"x{i + 1}", f"f{i}({item})"
            if step.kind == "map" and step.fn is whole_item:
                continue
            if step.kind == "filter":
                test = item if step.fn is bool else call
                if not step.policy.fails:
                    self.guard(f"keep = {test}")
                    test = "keep"
                self.open(f"if {test}:")
                continue
            if not step.policy.fails:
                # All of an iterable is taken before any of it goes on: an item counts either as
                # processed, with all of its results, or as failed, with none.
                taken = call if step.kind == "map" else f"list({call})"
                self.guard(f"r{i} = {taken}")
                call = f"r{i}"
            if step.kind == "flat_map" and is_last:
                item, emit = call, "out.extend({})"
            elif step.kind == "flat_map":
                self.open(f"for {result} in {call}:")
                item = result
            elif is_last:
                item = call
            else:
                self.add(f"{result} = {call}")
                item = result
        self.add(emit.format(item))
        self.lines.append("    return out")
        return "\n".join(self.lines) + "\n"


class FusedProcessor(BatchProcessor):
    """Runs the compiled function over each batch."""

    def __init__(self, function: FusedFunction, data_ordinals: Ordinals = None) -> None:
        super().__init__(data_ordinals)
        self._function = function
        self._call = function.call
        self._policies = [step.policy for step in function.steps]

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        try:
            out = self._call(batch, self._reject)
        except Exception as error:
            located = self._function.locate(error)
            if located is None:
                raise
            raise ItemFailedError(*located) from error
        self.send(out)

    def _reject(self, index: int, item: Any, error: Exception) -> None:
        self.reject(self._policies[index], item, error)


class IdentityProcessor(BatchProcessor):
    """Passes batches on as they are; behind ``merge``."""

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        self.send(batch)
