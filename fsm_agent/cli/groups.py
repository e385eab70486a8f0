"""What a group of commands does when none of its commands is named."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from fsm_agent.errors import ConfigError


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
