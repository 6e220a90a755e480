"""Services for coroutines: made, entered, used and closed on one loop, whatever happens."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import cloudpickle
import pytest

from jetlet.core import ProcessorContext
from jetlet.errors import ItemFailedError
from jetlet.pipeline.service_factory import ServiceFactory, service, shared_service
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.coroutines.async_map import AsyncMapSupplier
from jetlet.processors.coroutines.loop_service import LoopService
from jetlet.testing import verify_processor

FAIL = ErrorPolicy("step")


class Client:
    """Like one of asyncio's: belongs to the loop and the task that entered it."""

    def __init__(self, log):
        self.loop = asyncio.get_running_loop()
        self.task = None
        self.is_closed = False
        self.log = log

    async def __aenter__(self):
        assert asyncio.get_running_loop() is self.loop
        self.task = asyncio.current_task()
        self.log.append("entered")
        return self

    async def __aexit__(self, *error):
        assert asyncio.current_task() is self.task
        await asyncio.sleep(0)
        self.is_closed = True
        self.log.append("left")

    async def aclose(self):
        await asyncio.sleep(0)
        self.is_closed = True
        self.log.append("closed")

    async def double(self, item):
        assert asyncio.get_running_loop() is self.loop
        assert not self.is_closed
        await asyncio.sleep(0)
        return 2 * item


async def double(client, item):
    return await client.double(item)


async def twice(client, item):
    for _ in range(2):
        yield await client.double(item)


def supplier(fn, factory, **options):
    return AsyncMapSupplier(fn, policy=FAIL, service=factory, **options)


def async_factory(log, make):
    async def create(context):
        await asyncio.sleep(0)
        return make(log)

    return create


def yielding(log):
    @asynccontextmanager
    async def create(context):
        client = Client(log)
        async with asyncio.timeout(60):  # has to be left by the task that entered it
            log.append("made")
            yield client
            log.append("unmade")

    return create


WAYS = {
    "a context manager": (lambda log: lambda context: Client(log), ["entered", "left"]),
    "a coroutine function": (
        lambda log: async_factory(log, Client),
        ["entered", "left"],
    ),
    "a function with a yield": (yielding, ["made", "unmade"]),
}


@pytest.mark.parametrize("how", [service, shared_service])
@pytest.mark.parametrize("way", WAYS)
def test_service_is_made_used_and_closed_on_its_loop(way, how):
    make, expected = WAYS[way]
    log = []

    verify_processor(
        supplier(double, how(make(log))),
        input=[1, 2, 3],
        expect_outputs=[[2, 4, 6]],
        may_wait=True,
    )

    assert log
    assert log == expected * (len(log) // 2)


def test_generator_gets_the_service_too():
    verify_processor(
        supplier(twice, service(lambda context: Client([])), flat=True),
        input=[1, 2],
        expect_outputs=[[2, 2, 4, 4]],
        may_wait=True,
    )


@pytest.mark.parametrize("destroy", [lambda c: c.aclose(), lambda c: c.log.append("closed")])
def test_service_with_a_goodbye_of_its_own_is_not_entered(destroy):
    log = ["made"]
    verify_processor(
        supplier(double, service(lambda context: Client(log), destroy)),
        input=[1],
        expect_outputs=[[2]],
        snapshots=False,
        may_wait=True,
    )
    assert set(log) == {"made", "closed"}


def test_lock_is_there_to_be_entered_by_the_coroutines():
    most = []

    async def one_at_a_time(lock, item):
        async with lock:
            most.append(item)
            try:
                await asyncio.sleep(0)
                assert most == [item]
            finally:
                most.remove(item)
        return item

    verify_processor(
        supplier(one_at_a_time, shared_service(lambda context: asyncio.Semaphore(1))),
        input=[1, 2, 3],
        expect_outputs=[[1, 2, 3]],
        may_wait=True,
    )


@pytest.mark.parametrize("how", [service, shared_service])
def test_service_that_cannot_be_made_fails_the_start_and_leaves_no_thread(how):
    async def refuse(context):
        raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match="no server"):
        verify_processor(supplier(double, how(refuse)), input=[], expect_output=[])
    assert not [each for each in threading.enumerate() if each.name == "jetlet-asyncio"]


def test_service_is_closed_when_an_item_fails():
    log = []

    async def fail(client, item):
        raise ValueError(item)

    with pytest.raises(ItemFailedError):
        verify_processor(
            supplier(fail, service(lambda context: Client(log))),
            input=[1],
            expect_output=[],
            may_wait=True,
        )
    assert log[-1] == "left"


def test_error_of_the_end_is_raised_by_close():
    @asynccontextmanager
    async def create(context):
        yield 1
        raise OSError("not flushed")

    made = LoopService(ServiceFactory(create), ProcessorContext())
    assert made.value == 1
    with pytest.raises(OSError, match="not flushed"):
        made.close()
    assert not [each for each in threading.enumerate() if each.name == "jetlet-asyncio"]


def test_supplier_that_travelled_makes_a_service_of_its_own():
    made = supplier(double, shared_service(lambda context: Client([])))
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    verify_processor(copy, input=[1], expect_outputs=[[2]], may_wait=True)
