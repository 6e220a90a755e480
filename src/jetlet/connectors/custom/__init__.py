"""Sources and sinks that users make of a few functions."""
