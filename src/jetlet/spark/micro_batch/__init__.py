"""Streams in micro-batches of Structured Streaming."""
