"""What users write: pipelines, stages, aggregate operations, windows and joins."""
