"""ServiceLease: a service that is made anew while it is used."""

from __future__ import annotations

import threading

from jetlet import shared_service
from jetlet.core import ProcessorContext
from jetlet.processors.service_lease import ServiceLease
from jetlet.testing import ManualClock

PROMPT = 60.0


def test_services_are_made_anew_one_at_a_time():
    clock, made = ManualClock(), []
    goes_on = threading.Event()

    def create(context):
        made.append(len(made))
        if made[-1]:
            assert goes_on.wait(PROMPT)
        return made[-1]

    context = ProcessorContext(clock=clock)
    lease = ServiceLease(shared_service(create, reload=100))
    service = lease.take(context)
    for _ in range(5):  # it takes longer than its period
        clock.advance(0.2)
        service = lease.renewed(service, context)
    (thread,) = lease._threads
    assert thread.daemon, "one that hangs does not keep the process from its end"
    goes_on.set()
    thread.join(PROMPT)

    assert lease.renewed(service, context) == 1
    assert made == [0, 1]
    lease.give_back(1)
