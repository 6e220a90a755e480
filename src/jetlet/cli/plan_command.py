"""``jetlet plan``: what a pipeline becomes, as a tree, in DOT or as a drawing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jetlet.cli.arguments import TakesArguments, arguments_behind, arguments_option
from jetlet.cli.failures import Refused, in_flags
from jetlet.running import ENGINES

if TYPE_CHECKING:
    from jetlet.cli.loading import Runnable

FORMATS = {".svg": "svg", ".dot": "dot", ".gv": "dot"}
"""What the ending of the output file says about its format."""


@click.command(cls=TakesArguments)
@click.argument("target", metavar="FILE[:NAME]")
@arguments_option
@click.option("--tree", "format_", flag_value="tree", help="Lines of text; the default.")
@click.option("--dot", "format_", flag_value="dot", help="The DOT language of Graphviz.")
@click.option("--svg", "format_", flag_value="svg", help="A drawing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file; its ending (.svg, .dot) says the format.",
)
@click.option(
    "--on",
    type=click.Choice(ENGINES),
    help="As this engine would run it: 'spark' shows its stages.",
)
@click.option(
    "--parallelism",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processors per vertex where a stage does not say; by default as many as --on has, or "
    "without that one per core.",
)
@click.option("--traceback", is_flag=True, help="Show whole tracebacks.")
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    target: str,
    pairs: tuple[str, ...],
    format_: str | None,
    output: Path | None,
    on: str | None,
    parallelism: int | None,
    traceback: bool,
) -> None:
    """Show what a pipeline becomes, without running it.

    FILE is a Python file, or a module that can be imported. NAME is a Pipeline in it, or a function
    that returns one; it can be left out where it is clear. Arguments of the function are given by
    -P NAME=VALUE, or behind -- as --NAME VALUE.

    \b
    Examples:
      jetlet plan word_count.py
      jetlet plan word_count.py -o plan.svg
      jetlet plan jobs.py:daily --on spark
      jetlet plan word_count.py --dot | dot -Tpng > plan.png
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if format_ is None:
        format_ = FORMATS.get(output.suffix if output else "", "tree")
    if on == "spark" and format_ != "tree":
        raise Refused(f"the stages of --on spark are shown as text: leave out --{format_}")
    from jetlet.cli.loading import load

    try:
        what = load(target, pairs, arguments_behind(ctx)).what
        text = _text(what, format_, on, parallelism)
    except Refused as refusal:
        if traceback:
            refusal.show_traceback()
        raise
    if output is None:
        # A terminal that has no arrows gets question marks rather than an error.
        encoding = sys.stdout.encoding or "utf-8"
        click.echo(text.encode(encoding, "replace").decode(encoding), nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {output}: {error.strerror}") from error


def _text(what: Runnable, format_: str, on: str | None, parallelism: int | None) -> str:
    from jetlet.errors import PlanningError
    from jetlet.jobs.engine import dag_of
    from jetlet.running import parallelism_on

    if parallelism is None:
        parallelism = (os.cpu_count() or 1) if on is None else parallelism_on(on)
    try:
        dag = dag_of(what, parallelism)
        if format_ == "dot":
            return dag.to_dot(parallelism) + "\n"
        if format_ == "svg":
            from jetlet.ui.svg import draw

            return draw(dag, parallelism)
        from jetlet.ui.plan_view import stage_list, tree

        if on != "spark":
            return tree(dag, parallelism)
        from jetlet.jobs.config import MEMBERS, JobConfig
        from jetlet.spark import mode, own_vertices, passes
        from jetlet.spark.modes import HOW

        chosen = mode(dag, JobConfig())
        is_on_members = chosen.kind == MEMBERS
        if is_on_members:
            plan = tree(dag, parallelism)
        else:
            plan = stage_list(dag, passes(dag), own_vertices(dag))
        return f"{dag.name} runs on Spark {HOW[chosen.kind]}, because {chosen.reason}\n\n{plan}"
    except PlanningError as error:
        raise Refused(in_flags(str(error))) from error
