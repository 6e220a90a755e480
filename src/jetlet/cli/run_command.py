"""``jetlet run``: run a pipeline to its end, and say how it goes and how it went."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jetlet.cli.arguments import TakesArguments, arguments_behind, arguments_option
from jetlet.cli.failures import Refused, describe, format_cause, in_flags
from jetlet.cli.loading import Loaded, load
from jetlet.cli.logs import LEVELS, logs_on_terminal
from jetlet.cli.settings import PREFIX, is_from_outside, with_project
from jetlet.cli.signals import Stopped, StopSignals
from jetlet.cli.snapshot_options import (
    check_restart,
    snapshot_options,
    snapshot_settings,
)
from jetlet.cli.stopping import GRACE, Stop
from jetlet.core.dag import DAG
from jetlet.errors import (
    JetletError,
    JobCancelledError,
    JobFailedError,
    PlanningError,
    SnapshotError,
)
from jetlet.jobs.config import ALL, MEMBERS, MICRO_BATCH, JobConfig
from jetlet.metrics.log_book import LogBook
from jetlet.running import ENGINES, make_engine, planned_for_spark
from jetlet.ui.job_view import JobView, JobWatch
from jetlet.ui.progress_display import (
    LINE_PERIOD,
    LONG_RUN,
    REFRESH_PERIOD,
    Progress,
    is_live,
    open_progress,
    seconds,
)

if TYPE_CHECKING:
    from jetlet.cli.control_server import ControlServer
    from jetlet.jobs.engine import Plannable
    from jetlet.jobs.job import Job
    from jetlet.metrics import MetricsServer

BELONGS_TO = {
    "master": "spark",
    "spark_conf": "spark",
}
"""Options that only one of the engines has."""
PATIENCE = 1.0
"""Seconds after which a job that is being cancelled gets a word of explanation."""


class _Members(click.IntRange):
    """A number of members, or all that there can be."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return ALL if value == ALL else super().convert(value, param, ctx)


class _Run(TakesArguments):
    """Reads settings of the project and of the environment before those of the command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_project(ctx)
        return super().parse_args(ctx, args)


@click.command(cls=_Run, context_settings={"auto_envvar_prefix": PREFIX})
@click.argument("target", metavar="FILE[:NAME]")
@arguments_option
@click.option(
    "--on",
    type=click.Choice(ENGINES),
    default="spark",
    show_default=True,
    help="The engine: Spark, or the one inside this process.",
)
@click.option(
    "--members",
    type=_Members(),
    metavar="N",
    help="embedded: processes. spark: tasks of a stream; by default as many as there can be. "
    "all: also those that there can be later.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cooperative threads of a process, or of a task on Spark.",
)
@click.option(
    "--master",
    metavar="URL",
    help="spark: where it runs, such as local[4] or spark://host:7077; by default this machine.",
)
@click.option(
    "--spark-conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="spark: a setting, such as spark.executor.memory=4g; may be repeated.",
)
@click.option(
    "--streaming",
    type=click.Choice((MEMBERS, MICRO_BATCH)),
    help="spark: how a stream runs; by default on members, unless Spark reads it.",
)
@click.option(
    "--parallelism",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processors per vertex where a stage does not say.",
)
@snapshot_options
@click.option("-q", "--quiet", is_flag=True, help="Show no progress; errors only.")
@click.option(
    "--interval",
    type=click.FloatRange(min=REFRESH_PERIOD),
    default=LINE_PERIOD,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two lines of progress where there is no terminal.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve metrics for Prometheus at this port; 0 for a free one, which is told.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Where to serve them; by default to this machine alone.",
)
@click.option("--ui", "shows_page", is_flag=True, help="Serve a page that shows the job at work.")
@click.option(
    "--ui-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Where to serve the page; by default at a free port.",
)
@click.option(
    "--ui-host",
    metavar="ADDRESS",
    help="To whom to serve the page; by default to this machine alone.",
)
@click.option("--ui-read-only", is_flag=True, help="A page without buttons.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write what the page shows in the end into one HTML file.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0.0),
    default=GRACE,
    show_default=True,
    metavar="SECONDS",
    help="After SIGTERM: how long the job may take to stop with a snapshot.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Log records to show; by default warnings.",
)
@click.option("--traceback", is_flag=True, help="Show whole tracebacks, not only your own code.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    target: str,
    pairs: tuple[str, ...],
    on: str,
    streaming: str | None,
    parallelism: int | None,
    quiet: bool,
    interval: float,
    metrics_port: int | None,
    metrics_host: str,
    grace: float,
    shows_page: bool,
    ui_port: int | None,
    ui_host: str | None,
    ui_read_only: bool,
    report: Path | None,
    log_level: str | None,
    traceback: bool,
    **engine_options: Any,
) -> None:
    """Run a pipeline to its end.

    FILE is a Python file, or a module that can be imported. NAME is a Pipeline in it, or a function
    that returns one; it can be left out where it is clear. Arguments of the function are given by
    -P NAME=VALUE, or behind -- as --NAME VALUE, which the file also sees as sys.argv. What is under
    if __name__ == "__main__": in the file does not run.

    Progress and errors are on standard error, the output of sinks.logger() on standard output. On a
    terminal progress is a table, elsewhere a line now and then, in JSON if the pipeline reads a
    stream. The exit code is 0 if the job completed, 1 if it failed, 2 if something is wrong with
    the command or the pipeline, 130 after Ctrl-C or 'jetlet cancel', which cancel the job. A second
    Ctrl-C ends at once. After SIGTERM a job with snapshots stops with one, and tasks when what they
    have read is done; the exit code is then 0, and the next run goes on from there. Any other job
    is cancelled, and the exit code is 143.

    With --guarantee the job takes snapshots, and goes on from the last one after a failure; and so
    does the next 'jetlet run' with the same --snapshot-dir, however this one has ended, unless it
    completed. 'jetlet jobs' lists the jobs that run.

    Every option can also be set by the environment, such as JETLET_ON=embedded, or in the table
    [tool.jetlet] of the nearest pyproject.toml, such as on = "embedded". The command line counts
    before the environment, and that before the file.

    \b
    Examples:
      jetlet run word_count.py
      jetlet run word_count.py --on embedded
      jetlet run jobs.py:daily -P date=2026-11-16
      jetlet run jobs.py:daily --on embedded -- --date 2026-11-16
      jetlet run jobs.py:daily --master 'local[4]' --spark-conf spark.driver.memory=4g
      jetlet run package.jobs:daily --on embedded --quiet > results.txt
      jetlet run clicks.py --on embedded --metrics-port 9464 --interval 60
      jetlet run clicks.py --guarantee exactly-once --snapshot-dir state
      jetlet run clicks.py --on embedded --ui
      jetlet run word_count.py --report report.html
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    with StopSignals() as signals, ExitStack() as resources:
        runner = _Runner(
            signals, quiet=quiet, interval=interval, whole_traceback=traceback, grace=grace
        )
        try:
            if report is not None:
                _check_report(report)
            if metrics_port is not None:
                runner.metrics = resources.enter_context(_serve(metrics_host, metrics_port))
            loaded = load(target, pairs, arguments_behind(ctx))
            what = _planned(loaded, on)
            is_batch = _is_batch_on_spark(what, on, streaming)
            restart_from = engine_options.get("restart_from")
            settings = snapshot_settings(engine_options, loaded.what, is_batch_on_spark=is_batch)
            options = _options(ctx, on, engine_options, is_batch_on_spark=is_batch)
            config = JobConfig(default_parallelism=parallelism, streaming=streaming, **settings)
            check_restart(restart_from, config, loaded.what.name)
            if os.name == "posix":
                from jetlet.cli.control_server import ControlServer

                runner.control = resources.enter_context(
                    ControlServer(loaded.what.name, None if is_batch else config.snapshot_dir)
                )
            if shows_page or ui_port is not None or ui_host is not None or ui_read_only:
                host = ui_host or "127.0.0.1"
                runner.page = {"port": ui_port or 0, "host": host, "read_only": ui_read_only}
            if report is not None:
                runner.report = report
                runner.log_book = resources.enter_context(LogBook())
            with logs_on_terminal(log_level):
                code = runner.run(loaded, what, on, options, config, target)
        except Stopped:
            _say("cancelled before it ran")
            code = signals.exit_code
        except Refused as refusal:
            if traceback:
                refusal.show_traceback()
            raise
    ctx.exit(code)


def _check_report(path: Path) -> None:
    """Refuse before anything runs what could not be written in the end."""
    directory = path.parent
    if not directory.is_dir():
        raise Refused(f"cannot write the report to {path}: there is no directory {directory}")
    if not path.exists() and not os.access(directory, os.W_OK | os.X_OK):
        raise Refused(f"cannot write the report to {path}: you may not write to {directory}")


def _serve(host: str, port: int) -> MetricsServer:
    """Listen before anything runs: if the port is taken, nothing has."""
    from jetlet.metrics import MetricsServer

    try:
        server = MetricsServer(port, host)
    except PlanningError as error:
        raise Refused(f"--metrics-port {port}: {error}") from error
    _say(f"metrics at {server.url}")
    return server


def _planned(loaded: Loaded, on: str) -> DAG | Plannable:
    """What is submitted: planned where the engine takes long to start and mistakes come first."""
    if on != "spark":
        return loaded.what
    try:
        return planned_for_spark(loaded.what)
    except PlanningError as error:
        raise Refused(in_flags(str(error))) from error
    except OSError as error:  # of a source that was looked at
        raise Refused(f"{loaded.what.name} did not start: {describe(error)}") from error


def _is_batch_on_spark(what: DAG | Plannable, on: str, streaming: str | None) -> bool:
    """True if it is to run as a batch job of Spark's, which is not controlled while it runs."""
    if on != "spark" or not isinstance(what, DAG):
        if streaming is not None:
            raise Refused(f"--streaming {streaming} is for Spark: leave it out, or --on {on}")
        return False
    from jetlet.spark import mode

    try:
        return mode(what, JobConfig(streaming=streaming)).is_batch
    except PlanningError as error:
        raise Refused(in_flags(str(error))) from error


def _options(
    ctx: click.Context, on: str, given: dict[str, Any], *, is_batch_on_spark: bool
) -> dict[str, Any]:
    """The engine's options, by the names it has for them."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value == ():
            continue
        # A batch job has tasks, and no members.
        fits = "embedded" if name == "members" and is_batch_on_spark else on
        engine = BELONGS_TO.get(name, fits)
        flag = f"--{name.replace('_', '-')}"
        if engine != on:
            if is_from_outside(ctx, name):
                continue
            if on == "spark":
                instead = (
                    f"write --on embedded {flag} {value}, or --master 'local[{value}]' on Spark"
                )
            else:
                instead = f"leave it out, or leave out --on {on} to run on Spark"
            raise Refused(f"{flag} is for the {engine} engine, and this is --on {on}: {instead}")
        if name == "members" and value == ALL and on != "spark":
            raise Refused(f"{flag} {ALL} is for Spark: write the number of processes, {flag} 2")
        if name == "spark_conf":
            options["config"] = spark_settings(value)
        else:
            options[name] = value
    return options


def spark_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Settings of Spark, each written as ``KEY=VALUE``."""
    settings = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise Refused(
                f"--spark-conf takes KEY=VALUE, such as spark.executor.memory=4g, not {pair!r}"
            )
        settings[key.strip()] = value
    return settings


class _Runner:
    """Runs one job, from making the engine to saying how it ended."""

    def __init__(
        self,
        signals: StopSignals,
        *,
        quiet: bool,
        interval: float,
        whole_traceback: bool,
        grace: float,
    ) -> None:
        self._signals = signals
        self._grace = grace
        self._stop: Stop | None = None
        self._quiet = quiet
        self._interval = interval
        self.metrics: MetricsServer | None = None
        """The server of metrics, which is told of the job when it has been submitted."""
        self.control: ControlServer | None = None
        """The control socket, which is told of the job when it has been submitted."""
        self.page: dict[str, Any] | None = None
        """How to serve a page of the job, if it is to have one."""
        self.report: Path | None = None
        """Where to write what the page would show in the end."""
        self.log_book: LogBook | None = None
        self._whole_traceback = whole_traceback

    def run(
        self,
        loaded: Loaded,
        what: DAG | Plannable,
        on: str,
        options: dict[str, Any],
        config: JobConfig,
        target: str,
    ) -> int:
        """Run to the end and return the exit code."""
        try:
            with self._waiting(on):
                engine = make_engine(on, **options)
        except PlanningError as error:
            raise Refused(in_flags(str(error))) from error
        except Exception as error:
            self._tell(f"cannot start the {on} engine: {describe(error)}", error, loaded)
            return 1
        with engine:
            # From here on there may be a job, and it is not to be left alone half started.
            self._signals.defer()
            started = time.monotonic()
            try:
                if self.page is not None:
                    _say(f"page at {engine.ui(**self.page).url}")
                with self._waiting(on):
                    job = engine.submit(what, config)
            except (PlanningError, SnapshotError) as error:
                raise Refused(in_flags(str(error))) from error
            except Exception as error:
                text = f"{loaded.what.name} did not start: {describe(error)}"
                self._tell(str(error) if isinstance(error, JobFailedError) else text, error, loaded)
                return 1
            if self.metrics is not None:
                self.metrics.add(job)
            if self.control is not None:
                self.control.serve(job, target)
            watch = JobWatch(job, started=started)
            with open_progress(watch, quiet=self._quiet, period=self._interval) as progress:
                self._wait(job, progress)
                view = watch.look(final=True)
                progress.finish(view, job.status.value)
            code = self._conclude(job, view, loaded)
            return self._write_report(job) or code

    def _write_report(self, job: Job) -> int:
        if self.report is None:
            return 0
        from jetlet.ui.report import write_report

        try:
            write_report(job, self.report, lambda: self.log_book.rows if self.log_book else ())
        except JetletError as error:
            _say(str(error))
            return 1
        return 0

    def _waiting(self, on: str) -> Any:
        """Tell that something happens that takes a few seconds, if it does."""
        if on == "embedded" or self._quiet or not is_live(sys.stderr):
            return nullcontext()
        from rich.console import Console

        return Console(file=sys.stderr).status(f"starting {on}")

    def _wait(self, job: Job, progress: Progress) -> None:
        """Watch the job to its end; stop it if a signal comes."""
        has_told = False
        while not _has_ended(job, REFRESH_PERIOD):
            if self._signals.signum is not None and self._stop is None:
                grace = self._grace if self._signals.signum == signal.SIGTERM else 0.0
                self._stop = Stop(job, grace)
            if self._stop is None:
                progress.show(job.status.value)
                continue
            progress.show(self._stop.tick())
            if not has_told and self._stop.cancelled_for() > PATIENCE:
                _say("waiting for calls under way to return; Ctrl-C again ends at once")
                has_told = True

    def _conclude(self, job: Job, view: JobView, loaded: Loaded) -> int:
        """Say how the job ended, and return the exit code."""
        error = job.error
        elapsed = seconds(view.elapsed)
        stop = self._stop
        if stop is not None and stop.is_orderly:
            _say(f"{job.name} stopped after {elapsed}, to go on from there: {view.summary()}")
            self._say_what_held_it_back(view)
            return 0
        if error is None:
            if not self._quiet:
                _say(f"{job.name} completed in {elapsed}: {view.summary()}")
                self._say_what_held_it_back(view)
            return 0
        if isinstance(error, JobCancelledError):
            if stop is not None and stop.why_not is not None:
                _say(f"{job.name} did not stop in order: {stop.why_not}")
            _say(f"{job.name} cancelled after {elapsed}: {view.summary()}")
            self._say_what_held_it_back(view)
            return self._signals.exit_code
        if isinstance(error.__cause__, BrokenPipeError) and _is_unread():
            # As with head, which has read enough. What is still in the buffer has to go somewhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _say(f"{job.name} ended after {elapsed}: nobody reads its output any more")
            return 141
        self._tell(str(error), error, loaded)
        return 1

    def _say_what_held_it_back(self, view: JobView) -> None:
        if view.elapsed > LONG_RUN and not self._quiet:
            _say(view.verdict.sentence)

    def _tell(self, message: str, error: BaseException, loaded: Loaded) -> None:
        click.secho(message.splitlines()[0], err=True, fg="red")
        cause = format_cause(error, loaded.home, whole=self._whole_traceback)
        if cause:
            click.echo(cause, err=True, nl=False)
        from jetlet.ui.where import where_it_ran

        more = "" if self._whole_traceback else "; --traceback shows all of the traceback"
        click.echo(f"({where_it_ran()}{more})", err=True)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _has_ended(job: Job, timeout: float) -> bool:
    try:
        job.join(timeout)
    except TimeoutError:
        return job.status.is_final
    except Exception:
        return True
    return True


def _is_unread() -> bool:
    """True if standard output is a pipe that nobody reads from."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError, ValueError):
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
