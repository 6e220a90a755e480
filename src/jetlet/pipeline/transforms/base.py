"""What all transforms have in common: their facts, as far as they do not say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from jetlet.columns.arrow import fields_of, tree_of
from jetlet.core.dag import PREPARE_SUFFIX
from jetlet.core.state_on_disk import StateKind
from jetlet.pipeline.expressions.data_types import ANY, DataType
from jetlet.pipeline.expressions.nodes import Node as ExpressionNode
from jetlet.pipeline.functions import has_stable_key
from jetlet.pipeline.sink import AnySink, ClientSink, OnError, Sink

if TYPE_CHECKING:
    from jetlet.pipeline.transforms.stateless import RebalanceTransform, StatelessTransform

Kind = Literal["map", "filter", "flat_map"]
KeyFn = Callable[[Any], Any]
Trial = Callable[[Any], bool]
"""Raises for an item that would fail."""


class Asked(NamedTuple):
    """What is asked of items."""

    fields: frozenset[str]
    go_on: bool
    """Whether the items go on as they are, to others, who may ask for more."""


@dataclass(eq=False, kw_only=True)
class Transform:
    """A step of a pipeline; ``inputs`` are the steps it reads from, by ordinal.

    The facts below say what holds for a stage that looks at one item after the other, in the order
    in which they come, and emits what it makes of each. Who is different says so.
    """

    name: str
    inputs: list[Transform] = field(default_factory=list)
    local_parallelism: int | None = None
    on_error: OnError = "fail"
    late: AnySink | None = None
    """Where items go that come too late; they are dropped and counted if it is ``None``."""
    state: StateKind | None = None
    """Where its state by key is kept; ``None`` leaves that to the job."""

    is_end: ClassVar[bool] = False
    """True for a transform that nothing follows."""
    makes_order: ClassVar[bool] = False
    """Its items come out in an order of its own, which those behind it have to keep."""
    breaks_order: ClassVar[bool] = False
    """The order of its input ends here, as its user asked for."""
    makes_times: ClassVar[bool] = False
    """Its items get timestamps, and watermarks, that have nothing to do with those before it."""
    passes_times: ClassVar[bool] = False
    """It is all the same to it whether items have timestamps, though not to those behind it."""
    bounded_hint: ClassVar[str] = (
        "write .window(windows.tumbling(1000)) before it, or use .rolling_aggregate(...)"
    )
    """What to do where an input that needs to be bounded is not."""

    @cached_property
    def is_stream(self) -> bool:
        """True if its items never end."""
        return any(each.is_stream for each in self.inputs)

    @cached_property
    def has_timestamps(self) -> bool:
        """True if its items carry timestamps."""
        return bool(self.inputs) and all(each.has_timestamps for each in self.inputs)

    @cached_property
    def item_type(self) -> DataType:
        """What is known of the type of its items."""
        return ANY

    @property
    def keeps_tables(self) -> bool:
        """True if it keeps something for each key in memory, or might."""
        return False

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        """Its functions of an item, each with the ordinal of the input that the item is from."""
        return list(enumerate(self.checked_keys))

    @property
    def first_filters(self) -> Sequence[ExpressionNode]:
        """The expressions that it keeps items by, before it does anything else with them."""
        return ()

    # --- Order ------------------------------------------------------------------------------

    def keeps_order(self, ordinal: int) -> bool:
        """True if what it makes of the items of that input comes out in the order of these."""
        return True

    def reads_in_order(self, ordinal: int) -> bool:
        """True if items that are in order have to reach it so, over an edge without a key."""
        return self.keeps_order(ordinal)

    @property
    def reads_isolated(self) -> bool:
        """True if each of its processors reads from processors of its own, ordered or not."""
        return False

    @property
    def reorders(self) -> bool:
        """True if its user wants results in any order."""
        return False

    # --- Taking items -----------------------------------------------------------------------

    def needs_items(self, ordinal: int) -> bool:
        """True if it takes the items of that input without their timestamps."""
        return False

    def emits_events(self, takes_events: bool, are_times_wanted: bool) -> bool:
        """True if what it emits has timestamps; ``are_times_wanted`` by those behind it."""
        return takes_events

    def check_events(self, name: str, takes: Sequence[bool]) -> None:
        """Refuse inputs of which only some have timestamps, where that matters."""

    def needs_bounded(self, ordinal: int) -> bool:
        """True if that input has to end."""
        return False

    def reads_first(self, ordinal: int) -> bool:
        """True if that input is read to its end before any item of those that are not."""
        return False

    def absorbs(self, ordinal: int) -> bool:
        """True if it takes all of that input, even while nobody takes what it emits."""
        return self.reads_first(ordinal)

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        """By input: the key that is looked at before an item comes here, if ``on_error`` is to
        cover it.
        """
        return ()

    @property
    def trials(self) -> Sequence[Trial | None]:
        """By input: what is tried with an item before it comes here, where errors are not to end
        the job.
        """
        return [
            None if key_fn is None else partial(has_stable_key, key_fn)
            for key_fn in self.checked_keys
        ]

    @property
    def watermark_step(self) -> int:
        """How many ms apart the watermarks that it needs may be; 0 if it needs none."""
        return 0

    # --- Columns ----------------------------------------------------------------------------

    def takes_columns(self, ordinal: int) -> bool:
        """True if it can work on columns of that input without making its items."""
        return False

    def gives_columns(self, are_taken: bool) -> bool:
        """True if what it emits may be stored as columns; ``are_taken`` if what it takes is."""
        return False

    def asks_for(self, ordinal: int) -> Asked | None:
        """What it asks of the items of that input, on columns; ``None`` if that is all of them."""
        return None

    # --- Vertices ---------------------------------------------------------------------------

    @property
    def has_two_stages(self) -> bool:
        """True if it becomes two vertices; late and failed items then leave the first."""
        return False

    @property
    def vertex_suffixes(self) -> tuple[str, ...]:
        """What its name is followed by in the names of its vertices."""
        return ("", PREPARE_SUFFIX) if self.has_two_stages else ("",)

    def wanted_parallelism(self, default: int, before: int) -> int:
        """Processors per member, if nothing limits them; ``before`` is that of its first input."""
        return default if self.local_parallelism is None else self.local_parallelism

    def output_parallelism(self, parallelism: int) -> int:
        """How many of its processors, per member, items come out of."""
        return parallelism

    @property
    def steps_on_error(self) -> Sequence[tuple[str | None, OnError]]:
        """What it does about errors, for each of its steps that has a name of its own."""
        return ((None, self.on_error),)

    @property
    def sinks(self) -> Sequence[AnySink]:
        """All sinks that it sends something to."""
        on_errors = [on_error for _, on_error in self.steps_on_error]
        return [each for each in (*on_errors, self.late) if isinstance(each, Sink | ClientSink)]

    @property
    def shared_vertex(self) -> object | None:
        """What stages have in common that become the same vertex."""
        return None

    @property
    def routing(self) -> RebalanceTransform | None:
        """Itself, if it is no vertex but says how items get to the one behind it."""
        return None

    def as_step(self, name: str) -> StatelessTransform | None:
        """Itself under that name, if runs of its kind can be fused into one vertex."""
        return None


def asked_by(*fns: Callable[..., Any] | None, go_on: bool) -> Asked | None:
    """What these functions ask of items; ``None`` if one is a function of all of it, or unknown."""
    found: frozenset[str] = frozenset()
    for fn in fns:
        tree = None if fn is None else tree_of(fn)
        fields = None if tree is None else fields_of(tree)
        if fields is None:
            return None
        found |= fields
    return Asked(found, go_on)


def type_before(transform: Transform) -> DataType:
    return transform.inputs[0].item_type if transform.inputs else ANY


def tenth(kept: int | None) -> int:
    """The step of watermarks by which to drop what is kept for so long."""
    return max(1, kept // 10) if kept else 0
