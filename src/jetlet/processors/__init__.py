"""The stock processors behind the stages of a pipeline, one file each."""
