"""Files as sources and sinks: text, CSV, JSON Lines, Parquet, and files that grow."""
