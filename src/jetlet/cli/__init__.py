"""The ``jetlet`` command.

:data:`main` is the group of commands; each is in a module of its own and, with what it needs, is
imported when it is called, so that ``jetlet --version`` is quick. Exit codes are the same for all:

======  ==========================================================
0       done
1       the job failed, or something failed that is not a mistake of the caller
2       a mistake in the command line, in the file, or in the pipeline; nothing has run
130     cancelled by Ctrl-C, or by ``jetlet cancel``
141     nobody reads the output any more
143     cancelled by SIGTERM
======  ==========================================================
"""

from __future__ import annotations

import importlib
import os
from typing import ClassVar

import click

from jetlet._version import __version__
from jetlet.errors import JetletError

__all__ = ["main"]


JOBS = "jetlet.cli.jobs_commands"


class _Commands(click.Group):
    """Finds a command in its module."""

    MODULES: ClassVar[dict[str, tuple[str, str]]] = {
        "plan": ("jetlet.cli.plan_command", "Show what a pipeline becomes, without running it."),
        "run": ("jetlet.cli.run_command", "Run a pipeline and watch it."),
        "ui": ("jetlet.cli.ui_command", "Show the jobs that run, on a page."),
        "top": ("jetlet.cli.top_command", "Show the jobs that run, in this terminal."),
        "jobs": (JOBS, "List the jobs that run."),
        "suspend": (JOBS, "Stop a job with a snapshot, until it is resumed."),
        "resume": (JOBS, "Let a suspended job go on from its last snapshot."),
        "restart": (JOBS, "Stop a job with a snapshot and start it again from there."),
        "rescale": (JOBS, "Let a job go on with another number of members."),
        "cancel": (JOBS, "End a job."),
        "drain": (JOBS, "Let a job of tasks finish what it has read, and end."),
        "snapshot": (JOBS, "Save the state of a job under a name, while it goes on."),
        "snapshots": ("jetlet.cli.snapshots_command", "List snapshots, or show what is in one."),
        "doctor": ("jetlet.cli.doctor_command", "Say whether what is installed here fits."),
        "cache": ("jetlet.cli.cache_command", "Show or clear what is kept in your cache."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.MODULES:
            return None
        command: click.Command = getattr(
            importlib.import_module(self.MODULES[cmd_name][0]), cmd_name
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and ".py" in args[0] and args[0] not in self.MODULES:
            ctx.fail(f"{args[0]!r} is a file: write {ctx.command_path} run {args[0]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.MODULES.items()])


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", "shows_version", is_flag=True, help="Show the version and exit.")
@click.option("-v", "--verbose", is_flag=True, help="With --version: of all that matters.")
@click.pass_context
def main(ctx: click.Context, /, shows_version: bool, verbose: bool) -> None:
    """Run data pipelines written with Jetlet, or look at how they would run.

    A pipeline is named by the Python file that it is in.

    \b
    Examples:
      jetlet run word_count.py                 run on Spark, on this machine
      jetlet run word_count.py --on embedded   run in this process
      jetlet plan word_count.py                show its steps
      jetlet jobs                              what runs now

    'jetlet run --help' tells more.
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if shows_version:
        _show_version(verbose=verbose)
        ctx.exit()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit(2)


def _show_version(*, verbose: bool) -> None:
    click.echo(f"jetlet, version {__version__}")
    if verbose:
        from jetlet.versions import versions

        for name, version in {**versions(), "spark": _spark(), "java": _java()}.items():
            if name != "jetlet":
                click.echo(f"{name}, {version}")


def _spark() -> str:
    """The Spark that jobs run on where they are not told otherwise, which is not started."""
    from jetlet.spark.launch.gateway import spark_home
    from jetlet.spark.launch.versions import installed_version

    if remote := os.environ.get("SPARK_REMOTE"):
        return f"what the server at {remote} has: jetlet doctor asks it"
    try:
        home = spark_home()
    except JetletError:
        return "none"
    return installed_version(home) or f"unknown, in {home}"


def _java() -> str:
    from jetlet.spark.launch.java import find_java, parse_version

    try:
        java = find_java()
    except JetletError:
        return "none that Spark can use"
    found = parse_version(java.version)
    return str(java.major) if found is None else found[0]
