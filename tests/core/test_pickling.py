"""What travels to members by name, what by value, and what not at all."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass, replace

import cloudpickle
import pytest

from jetlet.core import DAG, Processor, Vertex, between
from jetlet.core.edge import Routing
from jetlet.core.pickling import (
    FOR_SAME_PATH,
    check_picklable,
    dump,
    stray_classes,
    unimportable_modules,
    user_modules,
)
from jetlet.core.remote_failure import RemoteFailure
from jetlet.errors import (
    JobFailedError,
    RemoteError,
    RestartableError,
    UnpicklableFunctionError,
)
from jetlet.jobs.members.runner import dump_dag


@pytest.fixture
def stray(tmp_path):
    """A module that was loaded from a file which is nowhere on the path."""
    path = tmp_path / "elsewhere" / "stray_module.py"
    path.parent.mkdir()
    path.write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Thing:\n    n: int\n"
        "Alias = Thing\n"
        "def make(n):\n    return Thing(n)\n"
    )
    spec = importlib.util.spec_from_file_location("stray_module", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["stray_module"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["stray_module"]


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A module that is on the path."""
    (tmp_path / "beside_module.py").write_text("def f(n):\n    return n\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import beside_module

    yield beside_module
    del sys.modules["beside_module"]


def test_modules_on_the_path_travel_by_name_and_others_by_value(stray, beside):
    users = {module.__name__ for module in user_modules()}
    assert {"stray_module", "beside_module"} <= users
    assert "jetlet.core.pickling" not in users
    assert "cloudpickle" not in users
    unimportable = {module.__name__ for module in unimportable_modules()}
    assert "stray_module" in unimportable
    assert "beside_module" not in unimportable


def test_registration_ends_with_the_block(stray):
    before = set(cloudpickle.list_registry_pickle_by_value())
    with FOR_SAME_PATH.by_value(), FOR_SAME_PATH.by_value():
        assert "stray_module" in cloudpickle.list_registry_pickle_by_value()
    assert set(cloudpickle.list_registry_pickle_by_value()) == before


CHILD = """
import pickle, sys
from jetlet.core.pickling import adopt_classes
make, names = pickle.loads(sys.stdin.buffer.read())
things = [make(n) for n in range(3)]
try:
    pickle.dumps(things)
    print("by name before", file=sys.stderr)
except (pickle.PicklingError, ImportError):
    pass
from jetlet.core.pickling import dump
slow = dump(things)
adopt_classes(names)
quick = pickle.dumps(things)
sys.stdout.buffer.write(pickle.dumps((slow, quick)))
"""


def test_instances_come_back_as_what_they_were_and_soon_by_name(stray):
    names = stray_classes()
    assert ("stray_module", "Thing") in names
    assert ("stray_module", "Alias") not in names
    with FOR_SAME_PATH.by_value():
        data = cloudpickle.dumps((stray.make, names))
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=data, capture_output=True, check=True
    )
    assert done.stderr == b""
    slow, quick = pickle.loads(done.stdout)
    for each in (slow, quick):
        things = pickle.loads(each)
        assert things == [stray.Thing(n) for n in range(3)]
        assert all(type(thing) is stray.Thing for thing in things)
    assert len(quick) < 200 < len(slow)


def test_dump_falls_back_to_sending_by_value():
    @dataclass
    class Local:
        n: int

    assert pickle.loads(dump(Local(3))) == Local(3)
    with pytest.raises(TypeError):
        dump(threading.Lock())


# --- DAGs -----------------------------------------------------------------------------------


class Nothing(Processor):
    pass


def sample():
    dag = DAG("sample")
    a = dag.new_vertex("a", Nothing, 2)
    b = dag.vertex(Vertex("b", Nothing, preferred_parallelism=1, is_single=True, hook=object()))
    dag.edge(between(a, b).partitioned(len).distributed().priority(3).queue_size(7))
    return dag


def test_dag_travels_without_its_hooks():
    copy = pickle.loads(dump_dag(sample()))
    assert copy["b"].hook is None
    assert (copy["a"].local_parallelism, copy["b"].is_single) == (2, True)
    assert copy["b"].preferred_parallelism == 1
    (edge,) = copy.edges
    assert (edge.routing, edge.key_fn, edge.is_distributed) == (Routing.PARTITIONED, len, True)
    assert (edge.priority_value, edge.queue_capacity) == (3, 7)


def test_dag_that_cannot_travel_is_refused_with_the_name_of_its_stage():
    lock = threading.Lock()
    dag = DAG()
    dag.new_vertex("fine", Nothing)
    dag.new_vertex("guard", lambda: lock and Nothing())
    with pytest.raises(UnpicklableFunctionError, match="stage 'guard'"):
        dump_dag(dag)
    with pytest.raises(UnpicklableFunctionError, match="stage 'guard'"):
        check_picklable(dag, FOR_SAME_PATH)


# --- Failures -------------------------------------------------------------------------------


def raised(error, cause):
    try:
        try:
            raise cause
        except Exception as e:
            raise error from e
    except JobFailedError as e:
        return e


def test_failure_arrives_with_cause_and_traceback():
    error = raised(JobFailedError("it broke", vertex="v", item="7"), ValueError("bad"))
    back = pickle.loads(dump(RemoteFailure.pack(error))).unpack()
    assert (type(back), str(back), back.vertex, back.item) == (JobFailedError, "it broke", "v", "7")
    assert isinstance(back.__cause__, ValueError)
    assert "raise cause" in back.__cause__.__notes__[0]


def test_restartable_failure_stays_restartable():
    error = raised(RestartableError("lost"), OSError("gone"))
    assert type(RemoteFailure.pack(error).unpack()) is RestartableError


class Shifty(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one, two):
        super().__init__(one)


class Locked(Exception):
    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


class Large(Exception):
    pass


@pytest.mark.parametrize("cause", [Shifty("shift", 2), Locked(), Large("x" * 100_000)])
def test_a_cause_comes_with_its_class_and_what_else_can_travel(cause):
    error = raised(JobFailedError("x"), cause)
    back = RemoteFailure.pack(error, limit=10_000).unpack()
    assert type(back.__cause__) is type(cause)
    assert str(cause).startswith(str(back.__cause__))
    assert not hasattr(back.__cause__, "lock")


def test_attributes_of_a_cause_come_along():
    cause = Shifty("shift", 2)
    cause.code = 7
    back = RemoteFailure.pack(raised(JobFailedError("x"), cause)).unpack()
    assert (back.__cause__.code, back.__cause__.args) == (7, ("shift",))


def test_a_cause_whose_class_is_not_there_is_replaced_by_its_text():
    packed = RemoteFailure.pack(raised(JobFailedError("x"), Large("large")))
    back = replace(packed, cause=b"of a module that is not here").unpack()
    assert isinstance(back.__cause__, RemoteError)
    assert "large" in str(back.__cause__)


def test_failure_without_a_cause():
    back = RemoteFailure.pack(JobFailedError("alone")).unpack()
    assert str(back) == "alone"
    assert back.__cause__ is None


def test_a_function_with_a_cache_travels_with_its_settings_and_an_empty_cache():
    @functools.lru_cache(maxsize=5, typed=True)
    def tripled(number):
        return 3 * number

    assert tripled(2) == 6
    back = pickle.loads(FOR_SAME_PATH.dumps([tripled, tripled]))
    assert back[0] is back[1]
    assert back[0](2) == 6
    assert back[0].cache_parameters() == {"maxsize": 5, "typed": True}
    assert back[0].cache_info().hits == 0


def test_a_function_with_a_cache_that_can_be_imported_travels_by_name():
    assert pickle.loads(FOR_SAME_PATH.dumps(functools.cache)) is functools.cache
    from jetlet.core.pickling import _installation

    assert pickle.loads(FOR_SAME_PATH.dumps(_installation)) is _installation
