"""What processors and pipelines are tested with.

:func:`verify_processor` runs a processor under every condition that an engine may put it in and
compares what it emits; :class:`ManualClock` is a clock that only a test moves.
"""

from jetlet.testing.clock import ManualClock
from jetlet.testing.harness import verify_processor

__all__ = ["ManualClock", "verify_processor"]
