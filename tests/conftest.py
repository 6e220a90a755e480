"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples in every run, and no deadline: on a busy machine time says nothing about the
# code. `pytest --hypothesis-profile=explore` looks for new examples instead.
settings.register_profile("jetlet", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("jetlet")
