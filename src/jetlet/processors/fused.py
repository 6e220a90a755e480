"""FusedProcessor: a run of map, filter and flat_map as one compiled function over a batch.

The steps are written out as the source of nested loops and compiled once. The engine so adds
nothing per item: what runs is what one would write by hand. For ``flat_map(split).filter(bool)``
it is::

    def fused(batch, reject, expand):
        return [
            x1
            for x0 in batch
            for r0 in (f0(x0),)
            for x1 in (r0 if r0.__class__ is list or ... else expand(r0, x0))
            if x1
        ]

or the same as loops, where errors of single items are dealt with. ``expand`` is that of an
:class:`~jetlet.processors.expansion.Expansion`.

An expression is not called but written out, in its fast form; where that raises, the exact one is
asked, and what it raises is the error.

Each step has lines of its own, and its input has a variable of its own. After an error the line
says which step failed, and the variable on which item. Tracebacks show the generated lines between
the engine's and the user's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import CodeType, TracebackType
from typing import Any

from jetlet.columns.steps import ColumnSteps
from jetlet.core.outbox import Ordinals
from jetlet.core.table import Table
from jetlet.errors import ItemFailedError
from jetlet.pipeline.expressions.expression import Expression, node_of
from jetlet.pipeline.expressions.nodes import Tuple
from jetlet.pipeline.expressions.python_source import Source, exact_function_of, recalculate
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.generated import compiled
from jetlet.processors.base import STATELESS, BatchProcessor, ErrorPolicy, Output
from jetlet.processors.expansion import AT_HAND, Expansion, returns_display
from jetlet.processors.item_failure import item_at

COMPREHENDS = True
"""Whether a comprehension is written where one will do: it takes some percent less time than loops.
"""
KEEPS_VARIABLES = sys.version_info < (3, 12)
"""Whether the variables of a comprehension are there after an error. Later versions of Python make
it a part of the function and forget them. Then the item that the batch is at goes through the steps
once more, up to the one that failed; not through a flat map, which may give something else then, or
no end of it, so that loops are written for these."""

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Step:
    """One stateless step."""

    kind: str
    fn: Callable[[Any], Any]
    policy: ErrorPolicy


class FusedFunction:
    """The compiled function of a run of steps. It pickles as its steps and is compiled anew."""

    __slots__ = (
        "_behind",
        "_code",
        "_inputs",
        "_owners",
        "call",
        "filename",
        "steps",
        "takes_events",
    )

    def __init__(self, steps: Sequence[Step], *, takes_events: bool = False) -> None:
        self.steps = tuple(steps)
        self.takes_events = takes_events
        writer = _Writer(takes_events)
        source = writer.write(self.steps)
        self._owners, self._inputs = writer.owners, writer.inputs
        code = compiled(source, "fused")
        self.filename = code.co_filename
        namespace: dict[str, Any] = {f"f{i}": step.fn for i, step in enumerate(self.steps)}
        namespace |= writer.names
        exec(code, namespace)
        self.call: Callable[..., list[Any]] = namespace["fused"]
        self._behind: FusedFunction | None = None
        self._code = _innermost(namespace["fused"].__code__)

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(FusedFunction, takes_events=self.takes_events), (self.steps,))

    def behind(self, index: int) -> FusedFunction:
        """The function of the steps behind the flat map, which has this index."""
        if self._behind is None:
            self._behind = FusedFunction(self.steps[index + 1 :], takes_events=self.takes_events)
        return self._behind

    def locate(self, error: BaseException, at_hand: Callable[[], Any]) -> tuple[Any, str] | None:
        """Item and step name that ``error``, raised by :attr:`call`, is about.

        ``at_hand`` gives what was taken last from the batch.
        """
        traceback: TracebackType | None = error.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_code is self._code:
                index = self._owner(traceback.tb_lasti)
                if index is None:
                    return None
                name, known = self._inputs[index], frame.f_locals
                item = known[name] if name in known else self._input_again(index, at_hand())
                return item, self.steps[index].policy.step
            traceback = traceback.tb_next
        return None

    def _input_again(self, index: int, item: Any) -> Any:
        """What a step gets of an item of the batch, where there is no flat map."""
        value = item[1] if self.takes_events else item
        for step in self.steps[:index]:
            if step.kind == "map":
                value = step.fn(value)
        return value

    def _owner(self, offset: int) -> int | None:
        """The step that an instruction belongs to.

        In a comprehension those that iterate, or ask whether something is true, have the line of
        the whole; they belong with what is before them.
        """
        before = islice(self._code.co_positions(), offset // 2 + 1)
        known = [self._owners[line] for line, *_ in before if line in self._owners]
        return known[-1] if known else None


def _innermost(code: CodeType) -> CodeType:
    """The code that has the variables: that of the comprehension, if there is one."""
    return next((const for const in code.co_consts if isinstance(const, CodeType)), code)


class _Writer:
    """Writes the source, and notes which step each line belongs to.

    Where items carry timestamps the loop is over both, and the results get that of their item.
    """

    def __init__(self, takes_events: bool) -> None:
        loop = "for time, x0 in batch:" if takes_events else "for x0 in batch:"
        self.lines = ["def fused(batch, reject, expand):", "    out = []", f"    {loop}"]
        self._takes_events = takes_events
        self.owners: dict[int, int] = {}
        self.inputs: list[str] = []
        """The variable that holds the input of each step."""
        self._depth = 2
        self._expressions = Source(is_fast=True)

    @property
    def names(self) -> dict[str, Any]:
        """What the source refers to, but for the functions of the steps."""
        return self._expressions.names

    def add(self, *lines: str) -> None:
        for line in lines:
            self.lines.append(_INDENT * self._depth + line)
            self.owners[len(self.lines)] = len(self.inputs) - 1

    def guard(self, *lines: str) -> None:
        """Lines whose errors are dealt with by the step's policy."""
        index = len(self.inputs) - 1
        self.add(
            "try:",
            *(f"{_INDENT}{line}" for line in lines),
            "except Exception as error:",
            f"{_INDENT}reject({index}, {self.inputs[index]}, error)",
            f"{_INDENT}continue",
        )

    def written_out(self, step: Step, item: str, *lines: str) -> None:
        """Lines of a step, with an expression where ``{}`` is; in its exact form if the fast one
        raises.
        """
        source, node = self._expressions, node_of(step.fn)
        exact = f"{source.bind(recalculate)}({source.bind(exact_function_of(node))}, {item})"
        self.add("try:", *(_INDENT + line for line in source.lines(node, item, *lines)))
        self.add("except Exception:")
        self._depth += 1
        add = self.add if step.policy.fails else self.guard
        add(*(line.replace("{}", exact) for line in lines))
        self._depth -= 1

    def write(self, steps: Sequence[Step]) -> str:
        """The source of a function that takes these steps."""
        # What the last step has made a list of is faster added as a whole.
        extends = steps[-1].kind == "flat_map" and not self._takes_events
        calls = all(s.policy.fails and not isinstance(s.fn, Expression) for s in steps)
        is_located = KEEPS_VARIABLES or all(s.kind != "flat_map" for s in steps)
        if COMPREHENDS and not extends and calls and is_located:
            return self._write_comprehension(steps)
        return self._write_loops(steps)

    def _expanded(self, index: int, item: str) -> str:
        """The results of a flat map that are at hand."""
        return f"r{index} if {AT_HAND.format(f'r{index}')} else {self._expand(index, item)}"

    def _expand(self, index: int, item: str) -> str:
        return f"expand(r{index}, {item}{', time' if self._takes_events else ''})"

    def _expand_whole(self, index: int, item: str) -> None:
        """Put what is at hand of the results of a flat map in their place."""
        # To ask for the kind that the last one had is the cheapest.
        self.lines.insert(1, f"{_INDENT}kind = list")
        self.owners = {line + 1: owner for line, owner in self.owners.items()}
        self.add(
            f"if r{index}.__class__ is not kind:",
            f"    if {AT_HAND.format(f'r{index}')}:",
            f"        kind = r{index}.__class__",
            "    else:",
            f"        r{index} = {self._expand(index, item)}",
        )

    def _write_comprehension(self, steps: Sequence[Step]) -> str:
        item = "x0"
        clauses: list[str] = []
        owners = []
        for i, step in enumerate(steps):
            self.inputs.append(item)
            result, call = f"x{i + 1}", f"f{i}({item})"
            if step.kind == "map" and (step.fn is whole_item or i == len(steps) - 1):
                item = item if step.fn is whole_item else call
                continue
            if step.kind == "filter":
                clauses.append(f"if {item if step.fn is bool else call}")
            elif step.kind == "map":
                # A loop over a tuple of one is compiled as an assignment.
                clauses.append(f"for {result} in ({call},)")
                item = result
            elif returns_display(step.fn):
                clauses.append(f"for {result} in {call}")
                item = result
            else:
                clauses.append(f"for r{i} in ({call},)")
                owners.append(i)
                clauses.append(f"for {result} in ({self._expanded(i, item)})")
                item = result
            owners.append(i)
        loop = self.lines[-1].strip(" :")
        element = f"(time, {item})" if self._takes_events else item
        self.lines[1:] = ["    return [", *(f"{_INDENT * 2}{c}" for c in (element, loop, *clauses))]
        self.owners = {3: len(steps) - 1} | {5 + n: owner for n, owner in enumerate(owners)}
        self.lines.append("    ]")
        return "\n".join(self.lines) + "\n"

    def _write_loops(self, steps: Sequence[Step]) -> str:
        item = "x0"
        emit = "out.append((time, {}))" if self._takes_events else "out.append({})"
        for i, step in enumerate(steps):
            self.inputs.append(item)
            is_last = i == len(steps) - 1
            result, call = f"x{i + 1}", f"f{i}({item})"
            if step.kind == "map" and step.fn is whole_item:
                continue
            is_expression = isinstance(step.fn, Expression)
            if is_expression and step.kind == "map":
                if is_last:
                    self.written_out(step, item, emit)
                    emit = ""
                else:
                    self.written_out(step, item, f"{result} = {{}}")
                    item = result
                continue
            if is_expression and step.kind == "filter":
                self.written_out(step, item, "if not {}:", f"{_INDENT}continue")
                continue
            if step.kind == "filter":
                # No deeper for each: Python has a limit on how deep code is nested.
                lines = f"if not {item if step.fn is bool else call}:", f"{_INDENT}continue"
                if step.policy.fails:
                    self.add(*lines)
                else:
                    self.guard(*lines)
                continue
            if is_expression and isinstance(node_of(step.fn), Tuple) and is_last:
                many = "out.extend([(time, each) for each in {}])"
                self.written_out(step, item, many if self._takes_events else "out.extend({})")
                emit = ""
                continue
            if is_expression:
                self.written_out(step, item, f"r{i} = {{}}")
            elif not step.policy.fails:
                if step.kind == "map":
                    self.guard(f"{result} = {call}")
                    item = result
                    continue
                self.guard(f"r{i} = {call}")
                call = f"r{i}"
            if step.kind == "flat_map":
                extends = is_last and not self._takes_events
                if is_expression and isinstance(node_of(step.fn), Tuple):
                    call = f"r{i}"
                elif not returns_display(step.fn):
                    if step.policy.fails and not is_expression:
                        self.add(f"r{i} = {call}")
                    call = self._expanded(i, item)
                    if extends:
                        self._expand_whole(i, item)
                        call = f"r{i}"
                if extends:
                    item, emit = call, "out.extend({})"
                    continue
                self.add(f"for {result} in ({call}):")
                self._depth += 1
                item = result
            elif is_last:
                item = call
            else:
                self.add(f"{result} = {call}")
                item = result
        if emit:
            self.add(emit.format(item))
        self.lines.append("    return out")
        return "\n".join(self.lines) + "\n"


def fuse(steps: Sequence[Step], *, takes_events: bool = False) -> tuple[FusedFunction, ...]:
    """The functions that take these steps, one on the results of the other.

    Each has one flat map at the most, so that one place in it is where it can be left.
    """
    runs: list[list[Step]] = [[]]
    for step in steps:
        if step.kind == "flat_map" and any(other.kind == "flat_map" for other in runs[-1]):
            runs.append([])
        runs[-1].append(step)
    return tuple(FusedFunction(run, takes_events=takes_events) for run in runs)


class FusedProcessor(BatchProcessor):
    """Runs the compiled functions over each batch.

    The first steps, as far as they are expressions, are done over columns where a batch is stored
    so. Then only the others are done to its items.
    """

    traits = STATELESS

    def __init__(self, functions: Sequence[FusedFunction], data_ordinals: Ordinals = None) -> None:
        super().__init__(data_ordinals)
        self._runs = self._runs_of(functions)
        steps = [step for function in functions for step in function.steps]
        self._columns = ColumnSteps([(step.kind, step.fn) for step in steps])
        rest = steps[len(self._columns) :]
        self._takes_events = takes_events = functions[0].takes_events
        self._rest = (
            self._runs_of(fuse(rest, takes_events=takes_events)) if self._columns and rest else []
        )
        """What is done to items behind the columns."""

    def _runs_of(self, functions: Sequence[FusedFunction]) -> list[Run]:
        return [Run(self, function) for function in functions]

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        runs = self._runs
        if batch.__class__ is Table and self._columns:
            table = None
            if (batch.times is not None) == self._takes_events:
                table = self._columns.apply(batch)
            if table is not None:
                batch, runs = table, self._rest
        if not runs:
            self.send(batch)
        elif not runs[0].expands:
            self.send(runs[0].apply(batch))
        elif len(runs) == 1:
            runs[0].send(batch)
        else:
            self.send_bit_by_bit(self._results(batch, runs))

    def _results(self, batch: Sequence[Any], runs: Sequence[Run]) -> Output:
        """What comes of a batch behind these functions."""
        results = runs[0].results(batch)
        if len(runs) == 1:
            return results
        return (
            each
            for part in results
            for each in ((None,) if part is None else self._results(part, runs[1:]))
        )

    def close(self) -> None:
        for run in (*self._runs, *self._rest):
            run.expansion.close()


class Run:
    """One compiled function, as one processor calls it."""

    def __init__(self, processor: BatchProcessor, function: FusedFunction) -> None:
        self._processor = processor
        self._function = function
        self._policies = [step.policy for step in function.steps]
        kinds = [step.kind for step in function.steps]
        self.expands = "flat_map" in kinds
        self._flat = kinds.index("flat_map") if self.expands else len(kinds) - 1
        self.expansion = Expansion(processor, self._policies[self._flat])

        has_tail = bool(function.steps[self._flat + 1 :])
        self._tail = self._apply_behind if has_tail else None

    def send(self, batch: Sequence[Any]) -> None:
        self.expansion.send(self.apply, batch, self._tail)

    def results(self, batch: Sequence[Any]) -> Output:
        return self.expansion.run(self.apply, batch, self._tail)

    def apply(self, items: Sequence[Any] | Iterator[Any]) -> list[Any]:
        return self._call(self._function, items, 0)

    def _apply_behind(self, results: Sequence[Any]) -> list[Any]:
        return self._call(self._function.behind(self._flat), results, self._flat + 1)

    def _at_hand(self, items: Sequence[Any] | Iterator[Any], position: Iterator[Any]) -> Any:
        """What was taken last from a batch, or from what the expansion has made of one."""
        if isinstance(items, Sequence):
            return item_at(items, position)
        return self.expansion.at_hand()

    def _call(
        self, function: FusedFunction, items: Sequence[Any] | Iterator[Any], first: int
    ) -> list[Any]:
        def reject(index: int, item: Any, error: Exception) -> None:
            self._processor.reject(self._policies[first + index], item, error)

        position = iter(items)
        try:
            return function.call(position, reject, self.expansion.expand)
        except ItemFailedError:
            raise
        except Exception as error:
            located = function.locate(error, lambda: self._at_hand(items, position))
            if located is None:
                raise
            item, step = located
            raise ItemFailedError(self._policies[0].reported(item), step) from error


class IdentityProcessor(BatchProcessor):
    """Passes batches on as they are; behind ``merge``."""

    traits = STATELESS

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        self.send(batch)
