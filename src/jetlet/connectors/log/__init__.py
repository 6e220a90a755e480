"""The embedded log as a source and as a sink of pipelines."""
