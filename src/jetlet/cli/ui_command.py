"""``jetlet ui``: a page that shows the jobs that run."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click

from jetlet.cli.failures import Refused
from jetlet.cli.remote_jobs import RemoteJobs
from jetlet.cli.running_jobs import runtime_directory
from jetlet.cli.signals import StopSignals
from jetlet.errors import InvalidArgumentError


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    metavar="PORT",
    help="Where to serve it; 0 is a free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="To whom; by default to this machine alone.",
)
@click.option("--read-only", is_flag=True, help="Show no buttons, and take no orders.")
@click.option("--open", "opens", is_flag=True, help="Open it in your browser.")
def ui(port: int, host: str, read_only: bool, opens: bool) -> None:
    """Show the jobs that run, on a page in the browser.

    These are the jobs that 'jetlet jobs' lists: started with 'jetlet run', by you and on this
    machine. The address has a token in it: who knows it can look at the jobs, and stop them unless
    it is --read-only. It ends with Ctrl-C; the jobs go on.

    \b
    Examples:
      jetlet ui
      jetlet ui --port 8000 --read-only
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from jetlet.ui.page_server import PageServer

    with StopSignals() as signals:
        try:
            server = PageServer(RemoteJobs(), port, host, read_only=read_only)
        except InvalidArgumentError as error:
            raise Refused(str(error)) from error
        with server:
            click.echo(server.url)
            try:
                with _opened(server.url) if opens else nullcontext():
                    server.wait()
            except KeyboardInterrupt:
                click.echo("no page any more; the jobs go on", err=True)
        _ = signals


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open it in the browser, by way of a file that only this user may read.

    Everybody on this machine can see the arguments of processes, and the address is a secret.
    """
    descriptor, name = tempfile.mkstemp(prefix="page-", suffix=".html", dir=runtime_directory())
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">\n')
        if not webbrowser.open(Path(name).as_uri()):
            click.echo("there is no browser to open it in: open the address yourself", err=True)
        yield
    finally:
        Path(name).unlink(missing_ok=True)
