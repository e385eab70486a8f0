"""The commands ``fsm-agent pending …`` and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.options import LIMITS, SHOWN, CliOptions, Commands, Home, Json, with_agent

pending = typer.Typer(
    cls=Commands, rich_markup_mode=None, help="What suspended turns wait for: list, answer, go on."
)
Item = Annotated[str, typer.Argument(metavar="ID", help="As it is listed, or its beginning.")]


@pending.command("list")
def list_(json: Json = False, home: Home = None) -> None:
    """What is waited for: approvals, questions, results that come later, times."""
    from fsm_agent.cli.pending import list_pending

    raise typer.Exit(list_pending(home, json))


@pending.command()
def show(id: Item, json: Json = False, home: Home = None) -> None:
    """What is asked, whole, and how it may be answered."""
    from fsm_agent.cli.pending import show_pending

    raise typer.Exit(show_pending(home, id, json))


@pending.command()
def answer(
    id: Item,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[VALUE]",
            help="once, session, always, deny or never; the answer to a question, or the number of a choice.",
        ),
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="TEXT|@FILE", help="The result of a call that comes later.")
    ] = None,
    pattern: Annotated[
        str, typer.Option(metavar="PATTERN", help="Calls that session, always or never is for.")
    ] = "",
    home: Home = None,
) -> None:
    """Answer, once. The turn goes on with pending run, or sessions resume."""
    from fsm_agent.cli.pending import answer_pending

    raise typer.Exit(answer_pending(home, id, value, result, pattern))


@pending.command()
@with_agent("max_iterations", *LIMITS, "yes", "session", *SHOWN)
def run(given: CliOptions, json: Json = False) -> None:
    """Go on with all turns whose answers are there, or whose time has come.

    The exit code is the greatest of theirs; 4: one was suspended again.
    """
    from fsm_agent.cli.pending import run_pending

    raise typer.Exit(run_pending(given, json))
