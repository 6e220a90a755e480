"""The stock processors say what they keep: hosts take those that do not for strangers."""

from __future__ import annotations

import importlib
import pkgutil

import jetlet.processors
from jetlet.core import Processor, State
from jetlet.core.vertex import traits_of

BY_SUPPLIER = {"BatchProcessor", "WriteProcessor"}
"""The base of the others, and one for which its supplier speaks."""


def stock():
    for module in pkgutil.walk_packages(jetlet.processors.__path__, "jetlet.processors."):
        home = importlib.import_module(module.name)
        for kind in vars(home).values():
            if isinstance(kind, type) and kind.__module__ == home.__name__:
                if issubclass(kind, Processor):
                    yield kind


def test_every_stock_processor_saves_what_it_keeps_or_keeps_nothing():
    made = [kind.__new__(kind) for kind in stock()]

    lost = {type(each).__name__ for each in made if traits_of(each).state is State.UNSAVED}

    assert lost == BY_SUPPLIER
