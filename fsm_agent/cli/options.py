"""Options that several commands have, and what a group of commands does when none of its commands is
named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from fsm_agent.errors import ConfigError
from fsm_agent.support.installation import installed_extensions


def _models(incomplete: str) -> list[str]:
    from fsm_agent.cli.completions import models

    return models(incomplete)


def complete_session(incomplete: str) -> list[tuple[str, str]]:
    """Ids of sessions that begin so, each with its title, for a shell."""
    from fsm_agent.cli.completions import sessions_of

    return sessions_of(None, incomplete)


Model = Annotated[
    str | None,
    typer.Option("--model", "-m", autocompletion=_models, help="<provider>:<model>; default: what is there."),
]
BaseUrl = Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible server.")]
ApiKey = Annotated[str | None, typer.Option(help="API key; better set in the environment.")]


def _with_one_store(ctx: typer.Context, home: str | None) -> str | None:
    """Refuse a home beside a database of the environment: they name different sessions, and whichever won, a
    command would do nothing where it was meant to."""
    if home is None or ctx.resilient_parsing:
        return home
    from fsm_agent.settings.model import DATABASE_VARIABLE, from_environment

    store = from_environment().get("store")
    if isinstance(store, dict) and store.get("database_url"):
        allowed = f"one of the two, or FSM_AGENT_HOME beside {DATABASE_VARIABLE} for what is no session"
        what = f"--home and {DATABASE_VARIABLE} name different sessions"
        raise ConfigError(what, home, allowed)
    return home


_ANY_LENGTH = 1_000
_HOME = "Data directory; default: $FSM_AGENT_HOME, else the platform's."
Home = Annotated[str | None, typer.Option(help=_HOME, callback=_with_one_store)]
HomeFolder = Annotated[str | None, typer.Option("--home", help=_HOME)]
"""Of a command that reads no sessions, or the home's own whatever the environment says."""
MaxIterations = Annotated[int | None, typer.Option(help="Iterations that the turn may use.")]
MaxCost = Annotated[
    float | None, typer.Option(metavar="USD", help="US dollars that the turn and its children may cost.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Tokens that the turn and its children may use.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Seconds that the turn may take.")]
Sets = Annotated[
    list[str],
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as api_max_retries=5."),
]
Tools = Annotated[
    list[str],
    typer.Option(
        "--tool", metavar="MODULE:NAME", help="A tool of your own, or a list of them; looked for here first."
    ),
]
Yes = Annotated[bool, typer.Option("--yes/--ask", "-y", help="Approve every tool call without asking.")]
Session = Annotated[
    str | None,
    typer.Option(
        autocompletion=complete_session,
        help="Go on in this session: its id, the beginning of one, or its title.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but the answer.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every move from state to state.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@dataclass(frozen=True, slots=True)
class CliOptions:
    """The options from which an agent is made. ``sets`` are ``nested.name=value`` texts; ``yes`` approves
    every tool; ``session`` is the one to go on in, as its user calls it; ``tools`` are ``module:name`` of the
    user's own; ``source`` names the command in lists of sessions."""

    model: Model = None
    base_url: BaseUrl = None
    api_key: ApiKey = None
    home: Home = None
    max_iterations: MaxIterations = None
    max_cost: MaxCost = None
    max_tokens: MaxTokens = None
    max_seconds: MaxSeconds = None
    sets: Sets = ()  # type: ignore[assignment]
    tools: Tools = ()  # type: ignore[assignment]
    yes: Yes = False
    session: Session = None
    quiet: Quiet = False
    verbose: Verbose = False
    source: str = "cli"


SHOWN = ("quiet", "verbose")
LIMITS = ("max_cost", "max_tokens", "max_seconds")
RUNNING = ("max_iterations", *LIMITS, "sets", "session")
"""What a turn that was begun before has already."""


def with_agent(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all options of ``CliOptions`` but some; it gets them as one value, ``given``."""
    hints = get_type_hints(CliOptions, include_extras=True)
    options = [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name]
        )
        for one in fields(CliOptions)
        if one.name not in (*without, "source")
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.name != "given"]

        @wraps(command)
        def called(**words: Any) -> None:
            command(given=CliOptions(**{one.name: words.pop(one.name) for one in options}), **words)

        every = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *options]
        called.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in every}
        return called

    return decorate


class _Listing(TyperGroup):
    """Lists each command with the whole first sentence of its help, where a group of click crops it to a
    row."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and the sentences, wrapped."""
        shown = ((name, one) for name, one in self.commands.items() if not one.hidden)
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_ANY_LENGTH)) for name, one in shown])
        installed = sorted(installed_extensions()) if ctx.parent is None else ()
        if installed:
            with formatter.section("Installed extensions"):
                formatter.write_dl([(name, f"See fsm-agent {name} --help.") for name in installed])


class Commands(_Listing):
    """Without anything, help; a command that is not there is one line that says which are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help when no command is named."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; an unknown one is a ``ConfigError`` that names those that there are."""
        if args and args[0] not in self.commands:
            from difflib import get_close_matches  # seldom needed

            alike = get_close_matches(args[0], self.commands, 1)
            perhaps = f"{alike[0]}, perhaps; " if alike else ""
            raise ConfigError("no such command", args[0], perhaps + ", ".join(self.commands))
        return super().resolve_command(ctx, args)


class ShowUnlessTold(_Listing):
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
