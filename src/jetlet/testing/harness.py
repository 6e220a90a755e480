"""verify_processor: run a processor under every condition that an engine may put it in.

It is the one function to test a processor with; see its documentation. How a run goes is in
:mod:`jetlet.testing.verification`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jetlet.core.items import IDLE, MIN_TIMESTAMP, SpecialItem, Watermark
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.vertex import ProcessorSupplier, Vertex
from jetlet.errors import InvalidArgumentError
from jetlet.testing.verification import (
    Case,
    Compare,
    Mode,
    Verification,
    columnar_modes,
    disk_modes,
    incremental_modes,
    modes,
)


def verify_processor(
    supplier: Callable[[], Processor] | ProcessorSupplier,
    *,
    input: Sequence[Any] | None = None,
    inputs: Sequence[Sequence[Any]] | None = None,
    priorities: Sequence[int] | None = None,
    expect_output: Sequence[Any] | None = None,
    expect_outputs: Sequence[Sequence[Any]] | None = None,
    order_matters: bool = True,
    compare: Compare | None = None,
    snapshots: bool = True,
    columns: bool = True,
    may_wait: bool = False,
    may_change_items: bool = False,
    endless: bool = False,
    context: ProcessorContext | None = None,
    timeout: float = 5.0,
) -> None:
    """Check that a processor gives the expected output however it is driven::

        class Doubler(Processor):
            def process_item(self, ordinal, item):
                return self.try_emit(2 * item)


        def test_doubler():
            verify_processor(
                Doubler,
                input=[1, 2, Watermark(10), 3],
                expect_output=[2, 4, Watermark(10), 6],
            )

    The processor is run over the whole input again and again: with an inbox of 1 and of 1024
    items; with an outbox that has room, and with one that takes a single offer in a call and
    refuses all in every other call; without snapshots, and with a snapshot after every item that
    is never restored, restored each time, or every second time. To restore, a new processor is
    made and is handed the pickled state in any order. Input that can be stored as columns without
    a loss also comes as tables, with timestamps beside the items if it could be events. An
    incremental processor is also run so that each item has a processor of its own, which begins
    with the changes of those before it. Pass ``snapshots=False`` for a processor that has state
    which it does not save.

    ``AssertionError`` is raised if the output differs, or if the processor returns without having
    taken an item, emitted one or been refused; ``ProcessorContractError`` if it breaks the
    contract of the Core API, such as by offering another item than the one refused or by changing
    its input. What the processor itself raises passes through. A call over 5 ms of a cooperative
    processor is logged, one over ``timeout`` seconds is an error (by the context's clock).

    :param supplier: a ``Processor`` subclass, a function that makes a processor, or a
        ``ProcessorSupplier``.
    :param input: what comes in over edge 0, with watermarks where they occur. Without ``input``
        and ``inputs`` the processor is a source.
    :param inputs: one such list for each inbound edge. Edges of one priority take turns.
    :param priorities: one number for each inbound edge; lower ones are drained to the end first.
    :param expect_output: what must come out over edge 0, the only one, with watermarks.
    :param expect_outputs: one such list for each outbound edge; ``[]`` for a sink.
    :param order_matters: false to compare the output as a bag.
    :param compare: called as ``compare(expected, actual)`` for each outbound edge instead; it
        returns whether they agree, or asserts so and returns ``None``.
    :param snapshots: whether to run the modes with snapshots.
    :param columns: whether to run the modes with batches in columns.
    :param may_wait: true for a processor that waits for something outside of it, such as an event
        loop: a call without progress is repeated when it calls ``context.wake()`` and from time to
        time, and is an error only if there is none for ``timeout`` seconds.
    :param may_change_items: true for a processor that may change the items that come in, because
        nobody else has them.
    :param endless: true for a streaming source: stop it as soon as it has emitted as many items as
        expected.
    :param context: what the processor is initialised with.
    """
    if (input is not None and inputs is not None) or (
        expect_output is not None and expect_outputs is not None
    ):
        raise InvalidArgumentError(
            "verify_processor: write input=[...] for one edge or inputs=[[...], [...]] for "
            "several, not both; likewise expect_output and expect_outputs"
        )
    if expect_output is None and expect_outputs is None:
        raise InvalidArgumentError(
            "verify_processor: say what must come out: expect_output=[...], or for a sink "
            "expect_outputs=[]"
        )
    feed = [input] if input is not None else list(inputs or ())
    if priorities is not None and len(priorities) != len(feed):
        raise InvalidArgumentError(
            f"verify_processor: {len(priorities)} priorities for {len(feed)} inputs: write one "
            "number for each"
        )
    for items in feed:
        _check_watermarks(items)
    case = Case(
        Vertex("verified", supplier).supplier,
        feed,
        priorities if priorities is not None else [0] * len(feed),
        [expect_output] if expect_output is not None else list(expect_outputs or ()),
        compare,
        order_matters,
        may_wait,
        may_change_items,
        endless,
        context if context is not None else ProcessorContext(vertex_name="verified"),
        timeout,
    )
    for mode in modes(snapshots=snapshots):
        verified = _verify(case, mode)
    if columns:
        for mode in columnar_modes(feed, snapshots=snapshots):
            _verify(case, mode)
    if verified.is_incremental and snapshots:
        for mode in incremental_modes():
            _verify(case, mode)
    if verified.keeps_on_disk and snapshots:
        for mode in disk_modes():
            _verify(case, mode)


def _verify(case: Case, mode: Mode) -> Verification:
    """One run."""
    verification = Verification(case, mode)
    try:
        verification.run()
    except BaseException as error:
        error.add_note(f"verify_processor: {mode}")
        raise
    return verification


def _check_watermarks(items: Sequence[Any]) -> None:
    last = MIN_TIMESTAMP
    for item in items:
        if isinstance(item, SpecialItem) and not isinstance(item, Watermark):
            raise InvalidArgumentError(
                f"verify_processor: {item!r} among the input; of the special items write only "
                "watermarks, the harness adds the others"
            )
        if isinstance(item, Watermark) and item != IDLE:
            if item.timestamp <= last:
                raise InvalidArgumentError(
                    f"verify_processor: the watermarks of an input must increase, but "
                    f"{item.timestamp} follows {last}"
                )
            last = item.timestamp
