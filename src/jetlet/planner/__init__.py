"""Turns a pipeline into a Core DAG, in small passes."""
