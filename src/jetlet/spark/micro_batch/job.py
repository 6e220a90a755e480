"""The job of a pipeline that reads a stream of Spark's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetlet.core.dag import DAG
from jetlet.errors import InvalidArgumentError, UnsupportedFeatureError
from jetlet.execution.tuning import Tuning
from jetlet.jobs.config import JobConfig
from jetlet.jobs.job import Job
from jetlet.snapshots.job_snapshots import absolute
from jetlet.spark.batch.runner import Width
from jetlet.spark.launch.versions import check_remote_batches
from jetlet.spark.members.slots import context_of
from jetlet.spark.micro_batch.batch_log import BatchLog
from jetlet.spark.micro_batch.history import BatchHistory
from jetlet.spark.micro_batch.plan import BatchPlan
from jetlet.spark.micro_batch.runner import MicroBatchRunner
from jetlet.spark.shipping import is_one_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def micro_batch_job(
    spark: SparkSession,
    dag: DAG,
    plan: BatchPlan,
    width: Width,
    tuning: Tuning,
    config: JobConfig,
    on_done: Callable[[Job], None],
) -> Job:
    """A job in micro-batches; refuses what cannot be run so."""
    name = config.name or dag.name
    config.check_directory()
    context = context_of(spark)
    if context is None:
        check_remote_batches(spark, plan.stream_vertex)
    if config.snapshot_key is not None:
        raise UnsupportedFeatureError(
            "snapshot_key: the state of micro-batches is not signed; keep snapshot_dir where only "
            "the job can write, or run the pipeline on members"
        )
    if config.storage_options is not None:
        raise UnsupportedFeatureError(
            "storage_options: Spark writes to the snapshot_dir, too, with settings of its own "
            "(spark.hadoop.fs.s3a.*): leave them out, and tell fsspec by the environment, such as "
            "FSSPEC_S3_KEY, FSSPEC_S3_SECRET and FSSPEC_S3_ENDPOINT_URL"
        )
    if config.initial_snapshot is not None:
        raise UnsupportedFeatureError(
            f"initial_snapshot={config.initial_snapshot!r}: a job in micro-batches begins with "
            f"what Spark knows of its stream: leave it out"
        )
    is_temporary = config.snapshot_dir is None
    if config.snapshot_dir is not None:
        directory = absolute(config.snapshot_dir)
    elif context is None:
        raise InvalidArgumentError(
            f"job {name!r} reads a stream of Spark's, which keeps notes where this process and the "
            f'server of Spark Connect reach them: write JobConfig(snapshot_dir="s3://..."), or any '
            f"directory that they share"
        )
    elif is_one_process(context.master or "") or not plan.has_state:
        directory = tempfile.mkdtemp(prefix="jetlet-batches-")
    else:
        raise InvalidArgumentError(
            f"job {name!r} keeps state between its batches, which all executors must reach: write "
            f'JobConfig(snapshot_dir="s3://..."), or any directory that they share'
        )

    def ended(job: Job) -> None:
        if is_temporary:
            shutil.rmtree(directory, ignore_errors=True)
        on_done(job)

    history = BatchHistory(BatchLog(directory, name), name, config)
    recovery = None if is_temporary else history
    try:
        runner = MicroBatchRunner(spark, plan, width, tuning, history)
    except BaseException:
        if is_temporary:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    job = Job(dag, config, runner, ended, snapshots=recovery)
    runner.expect(job.id)
    history.on_attempt = runner.expect
    return job
