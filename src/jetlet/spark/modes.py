"""Modes: how Spark can run a DAG, and which one it will be.

    mode = mode_of(dag, config)
    mode.kind            # BATCH, MEMBERS or MICRO_BATCH
    mode.reason          # why, in a few words, for people

A bounded pipeline is a batch job: stages and shuffles of Spark. A stream, or an application of
tasks, runs on members: long-lived tasks of one stage. What reads a stream of Spark's runs in
micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from jetlet.core.dag import DAG
from jetlet.errors import UnsupportedFeatureError
from jetlet.execution.tasklet_supplier import TaskletSupplier
from jetlet.jobs.config import MEMBERS, MICRO_BATCH, JobConfig
from jetlet.spark.frame_sink import frame_sink
from jetlet.spark.frames import frame_source
from jetlet.spark.stream_frames import spark_stream

__all__ = ["BATCH", "HOW", "MEMBERS", "MICRO_BATCH", "SparkMode", "mode_of"]

BATCH = "batch"
HOW = {
    BATCH: "as a batch job",
    MEMBERS: "on members, tasks that live as long as the job does",
    MICRO_BATCH: "in micro-batches",
}
"""The ways in which Spark runs a pipeline, for people."""


@dataclass(frozen=True, slots=True)
class SparkMode:
    """How Spark runs a DAG."""

    kind: str
    reason: str

    @property
    def is_batch(self) -> bool:
        """True if the job comes to its end by itself, stage by stage."""
        return self.kind == BATCH


def mode_of(dag: DAG, config: JobConfig) -> SparkMode:
    """Choose; refuse what cannot be."""
    mode = _choose(dag, config)
    if mode.kind == MEMBERS:
        _check_members(dag, mode)
        return mode
    merging = next((edge for edge in dag.edges if edge.sort_key is not None), None)
    if merging is not None:
        raise UnsupportedFeatureError(
            f"{merging}: a shuffle of Spark's does not merge what is sorted: sort behind it, or "
            f"write streaming={MEMBERS!r}"
        )
    return mode


def _choose(dag: DAG, config: JobConfig) -> SparkMode:
    stream = next((vertex for vertex in dag if vertex.traits.is_stream), None)
    if any(isinstance(vertex.supplier, TaskletSupplier) for vertex in dag):
        if config.streaming == MICRO_BATCH:
            raise UnsupportedFeatureError(
                f"{dag.name!r} has tasks, which run on members: write streaming={MEMBERS!r}"
            )
        return SparkMode(MEMBERS, "it has tasks")
    spark_streams = [vertex.name for vertex in dag if spark_stream(vertex) is not None]
    if spark_streams:
        if config.streaming == MEMBERS:
            raise UnsupportedFeatureError(
                f"{spark_streams[0]!r} is a stream of Spark's, which comes in micro-batches: leave "
                f"out streaming={MEMBERS!r}, or read it with sources.kafka(...) or the like"
            )
        return SparkMode(MICRO_BATCH, f"{spark_streams[0]!r} is a stream of Spark's")
    if config.streaming == MICRO_BATCH:
        raise UnsupportedFeatureError(
            f"streaming={MICRO_BATCH!r} is for pipelines that read sources.spark_stream(...)"
            + (f", and {stream.name!r} is none: write streaming={MEMBERS!r}" if stream else "")
        )
    if stream is not None:
        return SparkMode(MEMBERS, f"{stream.name!r} is a stream")
    if config.streaming == MEMBERS:
        return SparkMode(MEMBERS, f"streaming={MEMBERS!r} says so")
    return SparkMode(BATCH, "all that it reads comes to an end")


def _check_members(dag: DAG, mode: SparkMode) -> None:
    """Refuse DataFrames, which only a batch job has."""
    for vertex in dag:
        if frame_source(vertex) is not None:
            what, instead = "reads a DataFrame", "read its files with sources.parquet(...)"
        elif frame_sink(vertex) is not None:
            what, instead = "writes a DataFrame", "write files with sinks.parquet(...)"
        else:
            continue
        raise UnsupportedFeatureError(
            f"{vertex.name!r} {what}, and {dag.name!r} runs on members, because {mode.reason}, "
            f"which have none: {instead} or the like"
        )
