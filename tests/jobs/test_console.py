"""Ctrl-C while a job is waited for."""

from __future__ import annotations

import signal
import threading

import pytest

from jetlet.jobs.console import in_notebook, plain_interrupts

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="signals come to the main thread",
)


@pytest.fixture
def handle():
    """Puts a handler in place that seems to be of a module; the list has its calls."""
    before = signal.getsignal(signal.SIGINT)

    def put(module):
        calls = []

        def handler(signum, frame):
            calls.append(signum)

        handler.__module__ = module
        signal.signal(signal.SIGINT, handler)
        return handler, calls

    yield put
    signal.signal(signal.SIGINT, before)


def test_pysparks_handler_has_to_wait(handle):
    handler, calls = handle("pyspark.core.context")
    with plain_interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert calls == []
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_of_the_users_own_stays(handle):
    _, calls = handle("__main__")
    with plain_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert calls == [signal.SIGINT]


def test_this_is_no_notebook():
    assert not in_notebook()
