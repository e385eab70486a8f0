"""Options that several commands have, and what a group of commands does when none of its commands is
named."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fsm_agent.errors import ConfigError

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="<provider>:<model>; default: what is there.")
]
BaseUrl = Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible server.")]
ApiKey = Annotated[str | None, typer.Option(help="API key; better set in the environment.")]
Home = Annotated[
    str | None, typer.Option(help="Data directory; default: $FSM_AGENT_HOME, else the platform's.")
]
MaxIterations = Annotated[int | None, typer.Option(help="Iterations that the turn may use.")]
MaxCost = Annotated[
    float | None, typer.Option(metavar="USD", help="US dollars that the turn and its children may cost.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Tokens that the turn and its children may use.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Seconds that the turn may take.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as api_max_retries=5."),
]
Tools = Annotated[
    list[str] | None,
    typer.Option(
        "--tool", metavar="MODULE:NAME", help="A tool of your own, or a list of them; looked for here first."
    ),
]
Yes = Annotated[bool, typer.Option("--yes/--ask", "-y", help="Approve every tool call without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Commands(TyperGroup):
    """Without anything, help; a command that is not there is one line that says which are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help when no command is named."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; an unknown one is a ``ConfigError`` that names those that there are."""
        if args and args[0] not in self.commands:
            raise ConfigError("no such command", args[0], ", ".join(self.commands))
        return super().resolve_command(ctx, args)


class ShowUnlessTold(TyperGroup):
    """``diagram …`` is ``diagram show …``: what does not begin with the name of a command belongs to
    ``show``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what is no command for what is to be shown."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


class ShowAlone(Commands):
    """``config`` and ``config --json`` are ``config show``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show when options stand alone."""
        alone = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["show", *args] if alone else args)
