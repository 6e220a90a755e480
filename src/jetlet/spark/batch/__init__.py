"""Batch jobs on Spark: fragments of a DAG, their tasks, and what moves between them."""
