"""``jetlet cache``: what Jetlet keeps in the user's cache directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from jetlet.cli.failures import Refused
from jetlet.ui.progress_display import size

MEANINGS = {
    "archives": "Java classes of Spark, ready to be mapped, so that it starts in half the time",
    "java": "the wrapper around the Java of the java extra",
    "logs": "Spark's logs",
}
"""What the folders of the cache are for."""


@click.group(invoke_without_command=True)
@click.pass_context
def cache(ctx: click.Context) -> None:
    """Show what Jetlet keeps in your cache directory, or clear it.

    All of it is made again when it is needed. There is an archive of some 100 MB for each Java and
    each environment with Spark; one that was not used for two months is removed.

    \b
    Examples:
      jetlet cache
      jetlet cache clear
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if ctx.invoked_subcommand is not None:
        return
    directory = _directory()
    if directory is None:
        click.echo("there is no cache")
        return
    click.echo(f"{directory}: {size(bytes_below(directory))}")
    for path in sorted(directory.iterdir()):
        meaning = f"  {MEANINGS[path.name]}" if path.name in MEANINGS else ""
        click.echo(f"  {path.name:<10} {size(bytes_below(path)):>9}{meaning}")


@cache.command()
def clear() -> None:
    """Remove all of it. Sessions of Spark that run now are not harmed."""
    directory = _directory()
    if directory is None:
        click.echo("there is no cache")
        return
    freed = bytes_below(directory)
    try:
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise Refused(f"cannot clear {directory}: {error}") from error
    click.echo(f"{directory}: {size(freed)} freed")


def bytes_below(path: Path) -> int:
    """The size of a file, or of all files in a directory."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(each.lstat().st_size for each in files if each.is_file() and not each.is_symlink())


def _directory() -> Path | None:
    from jetlet.spark.launch.cache import cache_directory

    return cache_directory(create=False)
