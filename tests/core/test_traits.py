"""What a vertex says of itself, and what is assumed of those that say nothing."""

from __future__ import annotations

import pickle
from functools import partial

import pytest

from jetlet.core import Processor, ProcessorSupplier, Repeats, State, Traits, Vertex
from jetlet.core.vertex import check_saves
from jetlet.errors import UnsupportedFeatureError


class Silent(Processor):
    pass


class Saving(Processor):
    def save_to_snapshot(self):
        return True

    def restore_from_snapshot(self, inbox):
        inbox.clear()


class HalfSaving(Processor):
    def save_to_snapshot(self):
        return True


class Declaring(Processor):
    traits = Traits(state=State.NONE, repeats=Repeats.IN_ORDER)


class Depending(Processor):
    def __init__(self, *, keeps):
        self.traits = Traits(state=State.SAVED if keeps else State.NONE)


class Failing(Processor):
    def __init__(self):
        raise OSError("not here")


def test_a_stranger_is_the_inconvenient_case():
    traits = Vertex("v", Silent).traits

    assert traits.state is State.UNSAVED
    assert traits.repeats is Repeats.NO
    assert traits.spans_batches
    assert traits.needs_index
    assert traits.emits_at_end


@pytest.mark.parametrize(
    ("supplier", "state"),
    [
        (Silent, State.UNSAVED),
        (Saving, State.SAVED),
        (HalfSaving, State.UNSAVED),
        (Declaring, State.NONE),
        (lambda: Declaring(), State.NONE),  # noqa: PLW0108 - a function, not a class
        (partial(Depending, keeps=True), State.SAVED),
        (partial(Depending, keeps=False), State.NONE),
        (Failing, State.UNSAVED),
    ],
)
def test_state_is_what_is_declared_or_else_what_is_saved(supplier, state):
    assert Vertex("v", supplier).traits.state is state


def test_a_supplier_may_declare_for_its_processors():
    class Shared(ProcessorSupplier):
        def traits(self):
            return Traits(state=State.NONE)

        def get(self):
            raise AssertionError("it is not asked")

    assert Vertex("v", Shared()).traits.state is State.NONE


def test_a_vertex_is_asked_once_and_again_when_it_gets_another_supplier():
    made = []
    vertex = Vertex("v", lambda: made.append(1) or Declaring())

    assert vertex.traits is vertex.traits
    assert made == [1]

    vertex.supplier = Vertex("v", Silent).supplier
    assert vertex.traits.state is State.UNSAVED


def test_traits_travel():
    vertex = Vertex("v", Declaring)

    assert pickle.loads(pickle.dumps(vertex.traits)) == vertex.traits == Declaring.traits


@pytest.mark.parametrize("make", [Silent, HalfSaving, Failing])
def test_what_may_lose_its_state_is_refused_where_it_has_to_be_saved(make):
    with pytest.raises(UnsupportedFeatureError, match=r"'mine' saves nothing.*State\.NONE"):
        check_saves([Vertex("mine", make)], "when the job restarts")


@pytest.mark.parametrize("make", [Saving, Declaring])
def test_what_saves_or_keeps_nothing_is_not(make):
    check_saves([Vertex("mine", make)], "when the job restarts")
