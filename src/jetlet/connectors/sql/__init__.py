"""SQL databases as sinks."""
