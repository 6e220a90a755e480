"""SQL databases as sources and sinks."""
