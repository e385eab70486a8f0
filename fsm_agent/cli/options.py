"""Options shared by several commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from fsm_agent.errors import ConfigError


def complete_model(incomplete: str) -> list[str]:
    """Return the names of models that begin with this text, for a shell."""
    from fsm_agent.cli.models import matching_models

    return matching_models(None, incomplete)


def complete_session(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of sessions that begin with this text, each with its title, for a shell."""
    from fsm_agent.cli.sessions import matching_sessions

    return matching_sessions(None, incomplete)


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        autocompletion=complete_model,
        help="<provider>:<model>; default: the first available provider's.",
    ),
]
BaseUrl = Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible server.")]
ApiKey = Annotated[str | None, typer.Option(help="API key; better set in the environment.")]


def _with_one_store(ctx: typer.Context, home: str | None) -> str | None:
    """Refuse a home beside a database in the environment: they name different sessions, and whichever won, a
    command might miss those that were meant."""
    if home is None or ctx.resilient_parsing:
        return home
    from fsm_agent.settings import DATABASE_VARIABLE, from_environment

    store = from_environment().get("store")
    if isinstance(store, dict) and store.get("database_url"):
        allowed = f"one of the two, or FSM_AGENT_HOME beside {DATABASE_VARIABLE} for what is not a session"
        what = f"--home and {DATABASE_VARIABLE} name different sessions"
        raise ConfigError(what, home, allowed)
    return home


_HOME = "Data directory; default: $FSM_AGENT_HOME, else the platform's."
Home = Annotated[str | None, typer.Option(help=_HOME, callback=_with_one_store)]
HomeFolder = Annotated[str | None, typer.Option("--home", help=_HOME)]
"""For a command that reads no sessions, or the home's own whatever the environment says."""
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
        help="Continue this session: its id, the beginning of one, or its title.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but the answer.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every move from state to state.")]
Remote = Annotated[
    bool, typer.Option("--remote", help="Let a worker run it (`fsm-agent worker`), and show its progress.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

RecordedSession = Annotated[
    str | None, typer.Option("--session", help="Only recorded turns of this session.")
]
RecordedExit = Annotated[
    str | None, typer.Option("--exit", metavar="REASON", help="Only recorded turns that ended so.")
]
RecordedDays = Annotated[float | None, typer.Option("--days", help="Only recorded turns of the last days.")]
Sample = Annotated[int | None, typer.Option(metavar="N", help="Use N recorded turns, chosen at random.")]
Seed = Annotated[int, typer.Option(help="Seed of what is drawn at random.")]
TableVersion = Annotated[
    str | None,
    typer.Option("--table", metavar="VERSION", help="A table: a git revision, a file, module:table."),
]
MarkdownFile = Annotated[
    str | None, typer.Option("--markdown", metavar="FILE", help="Write the report for a pull request.")
]


@dataclass(frozen=True, slots=True)
class CliOptions:
    """Options of an agent. ``sets`` are ``nested.name=value`` texts; ``yes`` approves every tool; ``session``
    is the one to continue, by id or title; ``tools`` are ``module:name`` of the user's own; ``source`` names
    the command in lists of sessions."""

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
"""Options that an existing turn already has."""


def with_agent(*without: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command all options of ``CliOptions`` except some; it receives them as one value, ``given``."""
    hints = get_type_hints(CliOptions, include_extras=True)
    options = [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name]
        )
        for one in fields(CliOptions)
        if one.name not in (*without, "source")
    ]

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.name != "given"]

        @wraps(command)
        def called(**words: Any) -> int:
            return command(given=CliOptions(**{one.name: words.pop(one.name) for one in options}), **words)

        every = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *options]
        called.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in every}
        return called

    return decorate
