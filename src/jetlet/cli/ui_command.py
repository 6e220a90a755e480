"""``jetlet ui``: a page that shows the jobs that run."""

from __future__ import annotations

import click

from jetlet.cli.failures import Refused
from jetlet.cli.remote_jobs import RemoteJobs
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
            if opens:
                click.launch(server.url)
            try:
                server.wait()
            except KeyboardInterrupt:
                click.echo("no page any more; the jobs go on", err=True)
        _ = signals
