"""The commands ``fsm-agent config …`` and their options. The work is in ``cli.config``, loaded when a command
is called."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.options import HomeFolder, Json, ShowAlone

config = typer.Typer(
    cls=ShowAlone,
    rich_markup_mode=None,
    help='What is set, and where. "config" alone is short for "config show".',
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="For example max_iterations, compression.threshold, or model.")
]


@config.command()
def show(home: HomeFolder = None, json: Json = False) -> None:
    """The config file, and every setting that differs from its default, with where it comes from."""
    from fsm_agent.cli.config import show

    raise typer.Exit(show(home, json))


@config.command("list")
def list_(home: HomeFolder = None, json: Json = False) -> None:
    """Every setting: its value, what is allowed, and where the value comes from."""
    from fsm_agent.cli.config import list_settings

    raise typer.Exit(list_settings(home, json))


@config.command()
def get(name: Name, home: HomeFolder = None) -> None:
    """Print one value; a list or table as JSON."""
    from fsm_agent.cli.config import get

    raise typer.Exit(get(home, name))


@config.command("set")
def set_(
    name: Name,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="JSON where it can be read as such, else a text.")
    ],
    home: HomeFolder = None,
) -> None:
    """Write one value to the config file. Its comments stay, and nothing is written that could not be
    used."""
    from fsm_agent.cli.config import put

    raise typer.Exit(put(home, name, value))


@config.command()
def unset(name: Name, home: HomeFolder = None) -> None:
    """Take one value out of the config file."""
    from fsm_agent.cli.config import drop

    raise typer.Exit(drop(home, name))


@config.command()
def path(home: HomeFolder = None) -> None:
    """Print where the config file is, or would be."""
    from fsm_agent.cli.config import path

    raise typer.Exit(path(home))
