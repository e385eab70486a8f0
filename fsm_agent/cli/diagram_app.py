"""The commands ``fsm-agent diagram …`` and their options. The work is in ``cli.diagrams``, loaded when a
command is called."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.options import Json, ShowUnlessTold

FORMATS_OF_DIFF = "md, comment, mermaid, svg, png or json."
FORMAT = "mermaid, dot, svg, png (the extra of that name), md or json."
Dark = Annotated[bool, typer.Option("--dark", help="A PNG in the dark theme.")]


diagram = typer.Typer(
    cls=ShowUnlessTold,
    rich_markup_mode=None,
    help='Draw a table, a turn, a coverage, a difference. "diagram …" is short for "diagram show …".',
)


@diagram.command()
def show(
    table: Annotated[
        str | None, typer.Argument(metavar="[MODULE:TABLE]", help="Default: the turn's.")
    ] = None,
    format: Annotated[str, typer.Option("--format", "-f", help=FORMAT)] = "mermaid",
    state: Annotated[
        str | None, typer.Option(metavar="NAME", help="One state from near: each row with its guard.")
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw a turn over it: an export (JSON lines), or a turn's id."),
    ] = None,
    coverage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Count rows: exports, counts of tests, or store; never taken is red."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="What lays the SVG out: own, or graphviz (the extra of that name).")
    ] = "own",
    map: Annotated[bool, typer.Option("--map", help="The small picture for a README.")] = False,
    html: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write one page of everything: with --overlay a player of runs."),
    ] = None,
    dark: Dark = False,
) -> None:
    """Print a table as a diagram or text. The word "show" may be left out."""
    from fsm_agent.cli.diagrams import page, show

    if html is not None:
        raise typer.Exit(page(table, html, overlay, coverage or ()))
    raise typer.Exit(show(table, format, state, overlay, coverage or (), engine, map=map, dark=dark))


@diagram.command()
def diff(
    old: Annotated[
        str,
        typer.Argument(metavar="OLD", help="A git revision, . (the working tree), a file, or module:table."),
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same.")] = ".",
    format: Annotated[str, typer.Option("--format", "-f", help=FORMATS_OF_DIFF)] = "md",
    table: Annotated[
        str | None, typer.Option(metavar="MODULE:TABLE", help="The table of revisions; default: the turn's.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LIMIT=N", help="A limit that figures are worked out for."),
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when something changed, as git diff does.")
    ] = False,
    json: Json = False,
    dark: Dark = False,
) -> None:
    """Compare two versions of a table: rows, proofs, and the bound on model calls."""
    from fsm_agent.cli.diagrams import diff

    raise typer.Exit(diff(old, new, "json" if json else format, table, set or (), exit_code, dark))
