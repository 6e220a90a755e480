"""Work on batches that are stored as columns. Nothing here imports pyarrow when it is imported."""
