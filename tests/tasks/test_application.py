"""TaskApplication: what it refuses, what it plans, how tasks are divided."""

from __future__ import annotations

import pickle

import pytest

from jetlet.errors import InputNotFoundError, InvalidArgumentError
from jetlet.tasks import (
    Input,
    Output,
    TaskApplication,
    TaskConfig,
    checkpoints,
    stores,
    systems,
)
from jetlet.tasks.assignment import assign_tasks
from jetlet.tasks.envelope import SystemStreamPartition


def noop(envelope, collector, coordinator):
    pass


@pytest.fixture
def memory():
    memory = systems.in_memory()
    memory.create("in", partitions=3)
    memory.create("side", partitions=2)
    return memory


def application(memory, **options):
    options = {"systems": {"m": memory}, "inputs": ["m.in"]} | options
    return TaskApplication("app", noop, **options)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"inputs": []}, "has no inputs"),
        ({"inputs": "m.in"}, "a list of streams"),
        ({"inputs": ["in"]}, "write 'system.stream'"),
        ({"inputs": ["x.in"]}, "one of its systems"),
        ({"inputs": ["m.in", "m.in"]}, "there twice"),
        ({"outputs": ["nowhere.out"]}, "one of its systems"),
        ({"systems": {"a.b": None}}, "without a dot"),
    ],
)
def test_mistakes_are_refused_when_it_is_made(memory, options, instead):
    with pytest.raises(InvalidArgumentError, match=instead):
        application(memory, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"thread_pool_size": -1},
        {"max_concurrency": 0},
        {"max_concurrency": True},
        {"window_interval": 0},
        {"commit_interval": -1.0},
        {"callback_timeout": "1"},
        {"poll_interval": None},
        {"queue_capacity": 0},
        {"batch_size": 0},
        {"grouping": "key"},
        {"chooser": 1},
        {"processing_guarantee": "none"},
    ],
)
def test_settings_that_cannot_work_are_refused(options):
    (name,) = options
    with pytest.raises(InvalidArgumentError, match=name):
        TaskConfig(**options)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"checkpoints": None}, "only one container at a time"),
        ({"checkpoints": checkpoints.in_memory()}, "only one container at a time"),
        ({"outputs": ["m.side"]}, r"write to systems\.log"),
        ({"stores": {"s": stores.in_memory()}}, "give it a changelog"),
    ],
)
def test_exactly_once_is_refused_where_it_cannot_be(memory, tmp_path, options, instead):
    exact = {
        "checkpoints": checkpoints.in_directory(tmp_path),
        "config": TaskConfig(processing_guarantee="exactly-once"),
    }
    application(memory, **exact)
    with pytest.raises(InvalidArgumentError, match=instead):
        application(memory, **exact | options)


def test_exactly_once_does_not_go_with_commits_beside_messages():
    with pytest.raises(InvalidArgumentError, match="cannot tell what they have sent"):
        TaskConfig(processing_guarantee="exactly-once", async_commit=True)


def test_defaults_are_those_of_the_reference():
    config = TaskConfig()
    assert (config.thread_pool_size, config.max_concurrency) == (0, 1)
    assert config.commit_interval == 60.0
    assert config.window_interval is config.callback_timeout is None
    assert config.poll_interval == 0.05


def test_a_window_that_would_never_be_called_is_refused(memory):
    class Windowed:
        def process(self, envelope, collector, coordinator): ...

        def window(self, collector, coordinator): ...

    with pytest.raises(InvalidArgumentError, match="window_interval"):
        TaskApplication("app", Windowed, systems={"m": memory}, inputs=["m.in"])


def test_a_start_that_is_neither_earliest_nor_latest_is_refused():
    with pytest.raises(InvalidArgumentError, match="earliest"):
        Input("m.in", start="yesterday")


# --- Tasks --------------------------------------------------------------------------------------


def test_a_task_for_each_partition_number(memory):
    app = application(memory, inputs=["m.in", "m.side"])
    tasks = app.assignments()
    assert [task.name for task in tasks] == ["partition 0", "partition 1", "partition 2"]
    assert [[str(p) for p in task.partitions] for task in tasks] == [
        ["m.in[0]", "m.side[0]"],
        ["m.in[1]", "m.side[1]"],
        ["m.in[2]"],
    ]


def test_a_task_for_each_partition_of_each_stream(memory):
    app = application(
        memory,
        inputs=["m.in", Input("m.side", partitions=[1])],
        config=TaskConfig(grouping="stream-partition"),
    )
    names = [task.name for task in app.assignments()]
    assert names == ["m.in[0]", "m.in[1]", "m.side[1]", "m.in[2]"]


def test_broadcast_partitions_go_to_all_tasks(memory):
    app = application(memory, inputs=["m.in", Input("m.side", broadcast=True)])
    for task in app.assignments():
        assert [str(p) for p in task.partitions][1:] == ["m.side[0]", "m.side[1]"]


def test_only_broadcast_inputs_make_no_task(memory):
    app = application(memory, inputs=[Input("m.in", broadcast=True)])
    with pytest.raises(InvalidArgumentError, match="there are none"):
        app.assignments()


def test_a_partition_that_is_not_there_is_refused(memory):
    with pytest.raises(InvalidArgumentError, match="no partition 3"):
        application(memory, inputs=[Input("m.in", partitions=[0, 3])]).assignments()


def test_a_stream_that_is_not_there_is_refused(memory):
    with pytest.raises(InputNotFoundError, match="create"):
        application(memory, inputs=["m.nothing"]).assignments()


def test_names_of_tasks_do_not_depend_on_the_order_of_inputs():
    partitions = [SystemStreamPartition("s", name, i) for name in "ab" for i in range(3)]
    for grouping in ("partition", "stream-partition"):
        assert assign_tasks(partitions, grouping) == assign_tasks(partitions[::-1], grouping)


# --- The plan -----------------------------------------------------------------------------------


def test_the_plan_shows_the_streams_around_the_container(memory):
    app = application(memory, inputs=["m.in", "m.side"], outputs=["m.out", "m.in"])
    dag = app.plan(default_parallelism=4)
    dag.validate()
    assert [(edge.source.name, edge.dest.name) for edge in dag.edges] == [
        ("m.in", "app"),
        ("m.side", "app"),
        ("app", "m.out"),
        ("app", "m.in (out)"),
    ]


def test_outputs_are_made_with_as_many_partitions_as_there_are_tasks(memory):
    app = application(memory, outputs=["m.out", Output("m.narrow", partitions=1)])
    for vertex in app.plan():
        vertex.supplier.prepare(1)
    assert memory.partition_count("out") == 3
    assert memory.partition_count("narrow") == 1


def test_an_application_over_logs_can_travel(tmp_path):
    app = TaskApplication(
        "app", noop, systems={"log": systems.log(tmp_path)}, inputs=["log.in"], config=TaskConfig()
    )
    copy = pickle.loads(pickle.dumps(app))
    assert copy.config == app.config
    assert copy.make_task().process is noop


def test_streams_in_memory_cannot_travel(memory):
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(application(memory))
