from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from pyspark import cloudpickle

from jetlet.core import DAG, Processor, Vertex
from jetlet.core.pickling import check_picklable, user_modules
from jetlet.errors import UnpicklableFunctionError
from jetlet.spark.shipping import (
    BY_VALUE,
    dump_splits,
    dumps,
    is_one_process,
    write_package,
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's, in a directory that nothing knows of."""
    file = tmp_path / "shipped_module.py"
    file.write_text(
        "FACTOR = 3\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "def triple(x): return helper(x)\n"
        "def helper(x): return FACTOR * x\n"
    )
    spec = importlib.util.spec_from_file_location("shipped_module", file)
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shipped_module", loaded)
    spec.loader.exec_module(loaded)
    return loaded


def in_another_process(data, code):
    """Run code there with what was pickled as ``value``; return what it prints."""
    script = f"import pickle, sys; value = pickle.loads(sys.stdin.buffer.read()); {code}"
    done = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_a_function_of_a_module_of_the_user_brings_what_it_needs(module):
    assert in_another_process(dumps(module.triple), "print(value(7))") == b"21\n"


def test_instances_come_back_as_those_of_the_same_class(module):
    code = "from pyspark import cloudpickle;sys.stdout.buffer.write(cloudpickle.dumps(value(5)))"
    back = pickle.loads(in_another_process(dumps(module.Point), code))
    assert type(back) is module.Point
    assert back.x == 5


def test_modules_of_the_user_are_those_that_are_not_installed(module):
    names = {m.__name__ for m in user_modules()}
    assert "shipped_module" in names
    assert not names & {"os", "pytest", "hypothesis", "pyspark", "jetlet", "jetlet.agg", "__main__"}


def test_what_is_installed_goes_by_name():
    assert len(dumps(pytest.fixture)) < 200


def test_the_setting_of_the_process_is_left_as_it_was(module):
    before = set(cloudpickle.list_registry_pickle_by_value())
    cloudpickle.register_pickle_by_value(module)
    try:
        with BY_VALUE.by_value(), BY_VALUE.by_value():
            pass
        assert "shipped_module" in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    with BY_VALUE.by_value():
        assert "shipped_module" in cloudpickle.list_registry_pickle_by_value()
    assert set(cloudpickle.list_registry_pickle_by_value()) == before


def test_jobs_submitted_at_once_do_not_undo_each_others_setting(module):
    inside, go = threading.Event(), threading.Event()

    def other():
        with BY_VALUE.by_value():
            inside.set()
            go.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    threading.Timer(0.05, go.set).start()
    data = dumps(module.triple)
    thread.join()
    assert in_another_process(data, "print(value(1))") == b"3\n"


def test_a_function_that_cannot_travel_is_refused_by_its_stage():
    lock = threading.Lock()
    dag = DAG("test")
    dag.vertex(Vertex("locked", lambda: lock and Processor(), 1))
    with pytest.raises(UnpicklableFunctionError, match=r"stage 'locked'.*map_using_service"):
        check_picklable(dag, BY_VALUE)


def test_input_that_cannot_travel_is_refused_by_its_stage():
    with pytest.raises(UnpicklableFunctionError, match=r"input of stage 'items'.*plain values"):
        dump_splits(Vertex("items", Processor), [[threading.Lock()]])


def test_the_package_can_be_imported_from_its_archive(tmp_path):
    archive = tmp_path / "jetlet.zip"
    write_package(archive)
    with zipfile.ZipFile(archive) as file:
        names = file.namelist()
    assert "jetlet/spark/batch/task.py" in names
    assert all(name.startswith("jetlet/") for name in names)
    # -I: neither this installation of Jetlet nor the current directory is on the path.
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if 'src' not in p];"
        f"sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)];"
        f"sys.path.insert(0, {str(archive)!r});"
        "import jetlet.spark.batch.task; print(jetlet.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).is_relative_to(archive)


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2, 3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
    ],
)
def test_only_a_local_master_shares_its_process(master, expected):
    assert is_one_process(master) is expected
