"""Settings of ``jetlet run`` from outside of its command line.

In this order, the first that says something counts: the command line; the environment
(``JETLET_ON``, ``JETLET_MASTER``, ``JETLET_LOG_LEVEL``, ... one for each option); the table
``[tool.jetlet]`` of the nearest ``pyproject.toml``, in the working directory or above it; the
default. An option that is not for the engine which is chosen counts only on the command line.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from jetlet.cli.failures import Refused

PREFIX = "JETLET"
"""The environment variable of an option is called so, and then as the option."""


def with_project(ctx: click.Context) -> None:
    """Take defaults for the command from the project's file."""
    found = _project_file(Path.cwd())
    if found is None:
        return
    table = _table(found)
    options = {p.name: p for p in ctx.command.params if isinstance(p, click.Option) and p.name}
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in options:
            close = difflib.get_close_matches(name, options, n=1)
            hint = f": did you mean {close[0].replace('_', '-')!r}?" if close else ""
            raise Refused(f"{found}: [tool.jetlet] has {key!r}, which is no option{hint}")
        defaults[name] = _as_option(value, options[name])
    ctx.default_map = defaults


def is_from_outside(ctx: click.Context, name: str) -> bool:
    """True if an option was given by the environment or the project's file."""
    source = ctx.get_parameter_source(name)
    return source in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def _project_file(start: Path) -> Path | None:
    for directory in (start, *start.parents):
        path = directory / "pyproject.toml"
        if path.is_file():
            return path
    return None


def _table(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            tools = tomllib.load(file).get("tool", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Refused(f"cannot read {path}: {error}") from error
    table = tools.get("jetlet", {})
    if not isinstance(table, dict):
        raise Refused(f"{path}: tool.jetlet is a table: write [tool.jetlet] and options below it")
    return table


def _as_option(value: Any, option: click.Option) -> Any:
    if not option.multiple:
        return value
    if isinstance(value, dict):
        return [f"{key}={each}" for key, each in value.items()]
    return value if isinstance(value, list) else [value]
