from __future__ import annotations

import pickle
import sys
import types
from weakref import WeakKeyDictionary, WeakValueDictionary

import pytest

from jetlet.spark.micro_batch.state_pickle import _copy, dump_state

cloudpickle = pytest.importorskip("pyspark.cloudpickle")

SOURCE = """
class Basket:
    def __init__(self):
        self.items = []
    def count(self):
        return {}
"""


def program(text):
    """The code of a program, pickled by its driver as executors get it."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    try:
        exec(SOURCE.format(text), vars(module))
        cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps(module.Basket)
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    finally:
        del sys.modules["program"]


@pytest.fixture
def new_process(monkeypatch):
    """A function that makes cloudpickle forget the classes that have come."""

    def forget():
        monkeypatch.setattr(
            cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", WeakValueDictionary()
        )
        monkeypatch.setattr(
            cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", WeakKeyDictionary()
        )
        _copy.cache_clear()

    forget()
    return forget


def filled(kind):
    basket = kind()
    basket.items.append(3)
    return basket


def test_plain_values_are_pickled_plainly():
    value = {"a": [1, 2.5, None]}
    assert dump_state(value) == pickle.dumps(value, protocol=5)


def test_state_is_of_the_class_that_came_to_the_worker(new_process):
    code = program("len(self.items)")
    new_process()
    data = dump_state({"k": filled(pickle.loads(code))})
    new_process()
    kind = pickle.loads(code)
    basket = pickle.loads(data)["k"]
    assert type(basket) is kind
    assert basket.count() == 1


def test_state_is_of_the_class_that_the_program_has_now(new_process):
    code = program("len(self.items)")
    new_process()
    data = dump_state({"k": filled(pickle.loads(code))})
    new_process()
    changed = program("1000 + len(self.items)")
    new_process()
    kind = pickle.loads(changed)
    basket = pickle.loads(data)["k"]
    assert type(basket) is kind
    assert basket.count() == 1001


def test_state_can_be_read_where_its_class_has_not_come(new_process):
    code = program("len(self.items)")
    new_process()
    data = dump_state([filled(pickle.loads(code))] * 2)
    new_process()
    first, second = pickle.loads(data)
    assert first.count() == 1
    assert first is second
    assert type(pickle.loads(code)) is type
    assert type(first) is pickle.loads(code)


def test_a_class_within_a_function_goes_by_value(new_process):
    class Local:
        pass

    value = Local()
    value.number = 7
    data = dump_state(value)
    new_process()
    assert pickle.loads(data).number == 7
