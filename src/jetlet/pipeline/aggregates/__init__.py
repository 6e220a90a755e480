"""Aggregate operations: what they are, those that there are, how they are put together."""
