"""Expressions as plans of Spark's own, in which there is no Python."""
