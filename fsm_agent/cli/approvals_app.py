"""The commands ``fsm-agent approvals …`` and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.groups import Commands
from fsm_agent.cli.options import Home, Json

approvals = typer.Typer(
    cls=Commands, rich_markup_mode=None, help="What was approved or forbidden, for good or for a session."
)


@approvals.command("list")
def list_(json: Json = False, home: Home = None) -> None:
    """The patterns of calls that are allowed or denied without asking."""
    from fsm_agent.cli.approvals import list_approvals

    raise typer.Exit(list_approvals(home, json))


@approvals.command()
def remove(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="As it is listed.")],
    session: Annotated[str, typer.Option(metavar="ID", help="Only what was answered for this session.")] = "",
    home: Home = None,
) -> None:
    """Forget one: the next such call is asked about again."""
    from fsm_agent.cli.approvals import remove_approval

    raise typer.Exit(remove_approval(home, pattern, session))
