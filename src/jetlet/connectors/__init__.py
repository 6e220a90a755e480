"""Sources and sinks, one file per system; users reach them by ``jetlet.sources`` and ``sinks``."""
