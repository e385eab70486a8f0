"""The commands ``fsm-agent models …`` and their options. The work is in ``cli.models``, loaded when a command
is called."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.options import BaseUrl, HomeFolder, Json, ShowAlone

models = typer.Typer(
    cls=ShowAlone,
    rich_markup_mode=None,
    help='What is known of models. "models" alone is short for "models show".',
)


@models.command()
def show(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="<provider>:<model>; default: the one in use.")
    ] = None,
    base_url: BaseUrl = None,
    home: HomeFolder = None,
    json: Json = False,
) -> None:
    """What is known of a model and where it is from, and what refusals have taught of all."""
    from fsm_agent.cli.models import show

    raise typer.Exit(show(home, model, base_url, json))


@models.command()
def forget(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="<provider>:<model> or its name; default: all.")
    ] = "",
    home: HomeFolder = None,
) -> None:
    """Take back what refusals have taught of a model."""
    from fsm_agent.cli.models import forget

    raise typer.Exit(forget(home, model))
