"""Where something ran, for reports: the versions of all that matters."""

from __future__ import annotations

import sys

from jetlet.versions import versions

_NOT_TOLD = ("system", "pandas", "numpy")


def where_it_ran() -> str:
    """The versions that a report has to tell, in one line; those of the session of Spark, too."""
    found = {name: text for name, text in versions().items() if name not in _NOT_TOLD}
    if "pyspark.sql" in sys.modules:
        from jetlet.spark.launch.session import active_session
        from jetlet.spark.launch.versions import versions_of

        found |= versions_of(active_session())
    return ", ".join(f"{name} {text}" for name, text in found.items())
