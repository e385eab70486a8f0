"""The program: its commands by name, each loaded when it runs or shows its help, its entry, and its exit.

Wrong use is one line on standard error and exit code 2, never a traceback."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fsm_agent.cli.options import Json
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy, StoreError, near

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""The root of typer's own errors, which has no public name."""
_PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


@dataclass(frozen=True, slots=True)
class Group:
    """A command with subcommands. With ``alone`` the command ``first`` runs when only options are given, with
    ``default`` also when no subcommand is named."""

    help: str
    commands: Mapping[str, tuple[str, str] | Group]
    alone: bool = False
    default: bool = False
    first: str = "show"


SESSIONS: Mapping[str, tuple[str, str]] = {
    "list": ("sessions:list_sessions", "List the sessions that were used last."),
    "show": ("transcript:show", "Read a session, or a turn with its moves."),
    "search": ("transcript:search_sessions", "Find messages by their words."),
    "export": ("session_files:export", "Write a session or a turn as lines of JSON, or a turn as a test."),
    "import": ("session_files:import_file", "Store an export: all of it, or nothing."),
    "resume": ("run:resume", "Continue a turn that was left unfinished."),
    "fork": ("run:fork", "Run a turn again from one of its moves, in a session of its own."),
    "prune": ("session_files:prune", "Remove old conversations for good; unfinished ones stay."),
    "archive": ("session_files:archive", "Move old conversations into a file; unfinished ones stay."),
    "vacuum": ("session_files:vacuum_file", "Give free space in the file back to the disk."),
    "copy": ("session_files:copy", "Copy all sessions into a PostgreSQL database, or back into a file."),
    "rename": ("sessions:rename", "Give a session a title."),
    "undo": ("sessions:undo", "Take back the last turns of a session."),
}  # fmt: skip
COMMANDS: Mapping[str, tuple[str, str] | Group] = {
    "run": ("run:run", "Run one turn."),
    "chat": ("chat:chat", "Talk with the agent, turn after turn."),
    "worker": ("remote:worker", "Run queued turns until a signal comes."),
    "acp": ("serve:acp", "Serve an editor (Agent Client Protocol)."),
    "mcp": Group(
        "The agent as an MCP server, and logins to servers of others.",
        {
            "serve": ("mcp:serve", "Serve the agent, and tools of it, to MCP clients."),
            "login": ("mcp:login", "Log in to an MCP server of others, in the browser."),
            "logout": ("mcp:logout", "Forget the login to an MCP server of others."),
        },
    ),
    "serve": Group(
        'Serve programs and browsers over HTTP. "serve" alone is short for "serve start".',
        {
            "start": ("serve:start", "Serve until a signal comes."),
            "keys": Group(
                "Keys of this server: who may do what.",
                {
                    "add": ("serve:add_key", "Make a key, and print it once."),
                    "list": ("serve:list_keys", "List the keys, without their secrets."),
                    "remove": ("serve:remove_key", "Forget a key: it is refused from then on."),
                },
            ),
        },
        alone=True, first="start",
    ),
    "verify": ("app:verify", "Prove that every turn ends, and print the verdict and the bounds."),
    "simulate": ("simulate:simulate", "Run a turn against a provider that fails."),
    "backtest": ("backtest:backtest", "Play recorded turns under a change, and compare."),
    "predict": ("predict:predict", "Predict requests, tokens, cost, and exits under other limits."),
    "eval": Group(
        "Ask an agent cases, score its answers, and compare runs.",
        {
            "run": ("eval:run", "Ask an agent cases, and score its answers."),
            "show": ("eval:show", "Show a run, or one of its answers."),
            "compare": ("eval:compare_runs", "Compare two runs over the cases of both."),
            "cases": ("eval:cases", "Write cases to a file, by default those of recorded turns."),
        },
    ),
    "report": ("turn_report:report", "Write one masked file about a turn, from which others can replay it."),
    "insights": ("insights:report", "Report what recent turns did and cost."),
    "debug": ("debug:debug", "Step through a turn in the browser."),
    "undo": ("session_files:undo_files", "Take back what tools did to the files here."),
    "examples": ("simulate:copy_examples", "Write the example programs into a folder."),
    "doctor": ("doctor:doctor", "Check that this machine has what a turn needs."),
    "diagram": Group(
        'Draw a table, a turn, a coverage, a difference. "diagram …" is short for "diagram show …".',
        {
            "show": ("diagram:show", "Print a table as a diagram or text."),
            "diff": ("diagram:diff", "Compare two versions of a table: rows, proofs, bounds."),
        },
        alone=True, default=True,
    ),
    "sessions": Group("Past conversations: show, search, continue, export.", SESSIONS),
    "pending": Group(
        "Questions of suspended turns: list, answer, continue.",
        {
            "list": ("pending:list_pending", "List what turns wait for."),
            "show": ("pending:show_pending", "Show a question in full, and how to answer it."),
            "answer": ("pending:answer_pending", "Answer a question."),
            "run": ("pending:run_pending", "Continue all turns that are answered or due."),
        },
    ),
    "approvals": Group(
        "Remembered answers to approvals.",
        {
            "list": ("pending:list_approvals", "List the calls that are allowed or denied without asking."),
            "remove": ("pending:remove_approval", "Forget one, so that the next such call asks again."),
        },
    ),
    "config": Group(
        'Settings and their sources. "config" alone is short for "config show".',
        {
            "show": ("config:show", "Show the config file, and every setting that differs from its default."),
            "list": ("config:list_settings", "List every setting: value, allowed values, source."),
            "get": ("config:get", "Print one value; a list or table as JSON."),
            "set": ("config:put", "Write one value to the config file."),
            "unset": ("config:drop", "Remove one value from the config file."),
            "path": ("config:path", "Print the path of the config file."),
        },
        alone=True,
    ),
    "models": Group(
        'Models: which there are, and what is known of each. "models" alone is short for "models show".',
        {
            "show": ("models:show", "Show what is known of a model, and its source."),
            "list": ("models:list_models", "List the models that can be named here."),
            "forget": ("models:forget", "Forget what refusals taught of a model."),
        },
        alone=True,
    ),
}  # fmt: skip
"""Function and short help of each command. A help text lists commands without loading them."""


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, in the order of their table; each is made on first use."""

    def __init__(self, table: Mapping[str, tuple[str, str] | Group]) -> None:
        self._table = table
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _build(name, self._table[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._table, *self._made)))

    def __len__(self) -> int:
        return len(self._table.keys() | self._made.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._table or name in self._made

    def summaries(self) -> list[tuple[str, str]]:
        """Return (name, first sentence of its help) of each command."""
        helps = {name: one.help if isinstance(one, Group) else one[1] for name, one in self._table.items()}
        return [(name, help.partition(". ")[0].rstrip(".") + ".") for name, help in helps.items()]


def _build(name: str, entry: tuple[str, str] | Group) -> Any:
    if isinstance(entry, Group):
        kind = Commands if not entry.alone else ShowByDefault if entry.default else ShowAlone
        group = kind(name=name, help=entry.help, table=entry.commands, rich_markup_mode=None)
        group.first = entry.first
        return group
    module, _, function = entry[0].partition(":")
    single = typer.Typer(add_completion=False, **_PLAIN)
    single.command(name, cls=Command)(getattr(import_module(f"fsm_agent.cli.{module}"), function))
    return typer.main.get_command(single)


WIDEST = 110
"""Columns of help that a line can have and still be read at a glance."""


_HelpFormatter: Any = typer.Context.formatter_class


class HelpFormatter(_HelpFormatter):  # type: ignore[misc]
    """Fits the help to the terminal: no wider, up to ``WIDEST``, with most of it for what options do."""

    def __init__(self) -> None:
        super().__init__(width=max(20, min(get_terminal_size().columns, WIDEST) - 2))

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names beside what they mean; a long name has a line of its own."""
        super().write_dl(rows, min(col_max, self.width * 2 // 5), col_spacing)


class HelpContext(typer.Context):
    """A command line whose help fits the terminal."""

    def make_formatter(self) -> HelpFormatter:
        """Return the formatter of the help."""
        return HelpFormatter()


class Command(TyperCommand):
    """One command."""

    context_class = HelpContext


class Commands(TyperGroup):
    """Shows help when no command is named; an unknown command is an error that lists the known ones."""

    context_class = HelpContext
    first = "show"

    def __init__(
        self, *, table: Mapping[str, tuple[str, str] | Group] = COMMANDS, commands: Any = None, **attrs: Any
    ) -> None:
        super().__init__(**attrs)
        self.commands: LazyCommands = LazyCommands(table)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the whole first sentence of its help, wrapped."""
        with formatter.section("Commands"):
            formatter.write_dl(self.commands.summaries())
        if ctx.parent is None and (installed := sorted(_installed_commands())):
            with formatter.section("Installed extensions"):
                formatter.write_dl([(name, f"See fsm-agent {name} --help.") for name in installed])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help when no command is named."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. Raises ``ConfigError`` for an unknown one."""
        if args and args[0] not in self.commands:
            extension = extension_commands(args[0]) if ctx.parent is None else None
            if extension is None:
                raise self._unknown(args[0])
            self.commands[args[0]] = typer.main.get_command(extension)
        return super().resolve_command(ctx, args)

    def _unknown(self, name: str) -> ConfigError:
        return ConfigError("no such command", name, near(name, self.commands))


class ShowByDefault(Commands):
    """``diagram …`` is ``diagram show …`` unless the first word is a command of the group."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treat an unknown subcommand as the argument of the first one."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [self.first, *args]
        return super().parse_args(ctx, args)


class ShowAlone(Commands):
    """``config`` and ``config --json`` are ``config show``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Run the first subcommand when only options are given."""
        alone = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, [self.first, *args] if alone else args)


app = typer.Typer(
    add_completion=True, cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, **_PLAIN
)


TableName = Annotated[
    str | None, typer.Argument(metavar="MODULE:TABLE", help="A transition table; default: the turn's.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from fsm_agent import __version__

        typer.echo(f"fsm-agent {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An agent engine whose turn is an explicit finite-state machine. Without a model it runs
    offline:demo."""


def verify(
    table: TableName = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=N", help="A setting (max_iterations=9) or a maximum (fallbacks=2)."
        ),
    ] = None,
    promela: Annotated[str | None, typer.Option(metavar="FILE", help="Write a model for spin there.")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="<provider>:<model>, to bound what a turn costs with it."),
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Another model that a turn may continue with; repeatable."),
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Bound the visits of it; default: what a cap counts, or all."),
    ] = None,
    counterexample: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a run that shows a fault, as a script."),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write what the proof rests on, for check_certificate.py."),
    ] = None,
    time: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Processor time for the bounds; those not refined in it say so."
        ),
    ] = 20.0,
    long: Annotated[bool, typer.Option("--long", help="Print the proof too.")] = False,
    json: Json = False,
) -> None:
    """Prove that every turn ends, and print the verdict and the bounds. Exit codes: 0 proved, 1 a check
    failed, 2 wrong use."""
    from fsm_agent.cli.verify import verify

    models = (*((model,) if model else ()), *(fallback or ()))
    watched = tuple(watch or ())
    raise typer.Exit(
        verify(table, set or (), json, promela, watched, time, counterexample, models, certificate, long)
    )


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 completed, 1 failed, 2 wrong use, 3 partial, 4 suspended,
    130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a replaced stream may not have it
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _root()(args=words, prog_name="fsm-agent", standalone_mode=False)
        sys.stdout.flush()
    except (ConfigError, SessionBusy, StoreError) as error:
        return _complain(str(error))
    except FsmAgentError as error:
        return _complain(str(error), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # otherwise Python complains again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except _UsageError as error:
        return _complain(usage_error(error, words))
    finally:
        _send_telemetry()
    return code if isinstance(code, int) else 0


def _installed_commands() -> Mapping[str, Any]:
    from fsm_agent.support.installation import installed_extensions  # loads importlib.metadata

    return installed_extensions()


def extension_commands(name: str) -> typer.Typer | None:
    """Return the commands of an installed extension, which is loaded only when it is called by its name."""
    if not name or name.startswith("-") or name not in _installed_commands():
        return None
    from fsm_agent.extension import load_extension

    commands = load_extension(name).commands()
    if commands is None:
        return None
    if not isinstance(commands, typer.Typer):
        raise ConfigError(
            f"commands of extension {name} cannot be used", type(commands).__name__, "a typer.Typer"
        )
    return commands


def _send_telemetry() -> None:
    """Send the remaining telemetry at the end of a command, and print a failure."""
    export = sys.modules.get("fsm_agent.telemetry.export")
    if export is not None and (trouble := export.finish()):
        print(f"fsm-agent: {trouble}", file=sys.stderr)


def _complain(message: str, code: int = USAGE) -> int:
    from fsm_agent.cli.screen import clean

    line = " ".join(clean(message).split())
    if line:
        print(f"fsm-agent: {line}", file=sys.stderr)
    return code


# The parser's own errors, in the common form: what, given, allowed.


_EXTRA = re.compile(r"Got unexpected extra argument\S* \((.*)\)", re.DOTALL)
_EXPECTED = re.compile(r"Input should be (.+?)(?:, unable to .*)?$", re.DOTALL)
_BRACES = re.compile(r"\{(\w+)\}")
"""The parser's marks around the names of required arguments."""


def usage_error(error: Any, words: Sequence[str]) -> str:
    """Return the line for a parser's ``error`` in the command line ``words``."""
    return str(_config_error(error, words) or error.format_message())


def _config_error(error: Any, words: Sequence[str]) -> ConfigError | None:
    context: Any = getattr(error, "ctx", None)
    message = str(getattr(error, "message", ""))
    form = _form(context) if context is not None else ""
    match type(error).__name__:
        case "MissingParameter":
            name, kind = _name(error.param), error.param.param_type_name
            allowed = form if kind == "argument" else f"{name} VALUE"
            return ConfigError(f"{kind} {name} is missing", context.command_path, allowed)
        case "NoSuchOption":
            known = [name for one in context.command.get_params(context) for name in one.opts]
            options = [name for name in known if name.startswith("-")]
            return ConfigError("no such option", error.option_name, near(error.option_name, options))
        case "BadOptionUsage":
            option = error.option_name
            if "requires" in message:
                return ConfigError("option has no value", option, f"{option} VALUE")
            given = next((word for word in words if word.startswith(f"{option}=")), option)
            return ConfigError("option takes no value", given, option)
        case "BadParameter" if error.param is not None:
            found: list[Any] = getattr(error.__cause__, "errors", list)()
            expected = _EXPECTED.match(message)
            allowed = expected[1] if expected else message
            return ConfigError(
                f"{_name(error.param)} cannot be used", found[0]["input"] if found else None, allowed
            )
    extra = _EXTRA.match(message)
    return ConfigError("too many arguments", extra[1], form) if extra else None


def _form(context: Any) -> str:
    """Return the command with its arguments on one line."""
    return " ".join(_BRACES.sub(r"\1", context.get_usage().removeprefix("Usage: ")).split())


def _name(parameter: Any) -> str:
    """Return the parameter as a person types it."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())
