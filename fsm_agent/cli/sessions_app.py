"""The commands ``fsm-agent sessions …`` and their options. The work is in modules that are loaded when a
command is called."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.options import (
    RUNNING,
    CliOptions,
    Commands,
    Home,
    HomeFolder,
    Json,
    complete_session,
    with_agent,
)

sessions = typer.Typer(
    cls=Commands, rich_markup_mode=None, help="What was said and done: show, find, go on, carry elsewhere."
)

Session = Annotated[
    str,
    typer.Argument(
        metavar="SESSION",
        autocompletion=complete_session,
        help="Its id, the beginning of one, or its title.",
    ),
]
Either = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        autocompletion=complete_session,
        help="A session (id, beginning of one, title), or a turn.",
    ),
]


@sessions.command("list")
def list_(
    limit: Annotated[int, typer.Option(help="Sessions at most.")] = 20,
    all: Annotated[
        bool, typer.Option("--all", help="Also those of sub-agents, and those that went on as another one.")
    ] = False,
    source: Annotated[
        str | None, typer.Option(help="Only those begun by cli, chat, debugger, python, fork or child.")
    ] = None,
    json: Json = False,
    home: Home = None,
) -> None:
    """The sessions that were used last."""
    from fsm_agent.cli.sessions import list_sessions

    raise typer.Exit(list_sessions(home, limit, all, source, json))


@sessions.command()
def show(
    id: Either,
    moves: Annotated[
        bool, typer.Option("--moves", help="Every move of every turn, with the row that was taken and why.")
    ] = False,
    all: Annotated[bool, typer.Option("--all", help="Also messages that were put aside.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Whole results of tools.")] = False,
    json: Json = False,
    home: Home = None,
) -> None:
    """Read a session, or a turn with its moves."""
    from fsm_agent.cli.transcript import show

    raise typer.Exit(show(home, id, moves, all, full, json))


@sessions.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help='Words; "a phrase", begin*, OR, NOT.')],
    limit: Annotated[int, typer.Option(help="Hits at most.")] = 10,
    session: Annotated[str | None, typer.Option(help="Only in this session.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="Only messages of user, assistant or tool.")] = None,
    days: Annotated[float | None, typer.Option(help="Only the last days.")] = None,
    children: Annotated[bool, typer.Option("--children", help="Also sessions of sub-agents.")] = False,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first instead of best first.")] = False,
    json: Json = False,
    home: Home = None,
) -> None:
    """Find messages by their words."""
    from fsm_agent.cli.search import search_sessions

    raise typer.Exit(search_sessions(words, home, limit, session, role or (), days, children, newest, json))


@sessions.command()
def export(
    id: Either,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Default: standard output.")
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="jsonl (all), sharegpt (a trajectory), pytest (a test that plays a turn again).",
        ),
    ] = "jsonl",
    raw: Annotated[bool, typer.Option("--raw", help="Do not mask secrets.")] = False,
    home: Home = None,
) -> None:
    """Write a session or a turn as lines of JSON, or a turn as a test; secrets are masked."""
    from fsm_agent.cli.sessions import export

    raise typer.Exit(export(home, id, output, format, raw))


@sessions.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help='What export wrote; "-" reads standard input.')],
    json: Json = False,
    home: Home = None,
) -> None:
    """Store what export wrote: all of it, or nothing."""
    from fsm_agent.cli.sessions import import_file

    raise typer.Exit(import_file(home, file, json))


@sessions.command()
@with_agent(*RUNNING)
def resume(
    given: CliOptions,
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A turn, or a session; default: the newest unfinished turn."),
    ] = None,
    json: Json = False,
) -> None:
    """Go on with a turn that was left unfinished. Exit codes as for run."""
    from fsm_agent.cli.continued import resume

    raise typer.Exit(resume(id, given, json))


@sessions.command()
@with_agent(*RUNNING)
def fork(
    given: CliOptions,
    turn: Annotated[
        str, typer.Argument(metavar="TURN", help="A turn, or a session, whose newest turn it is then.")
    ],
    at: Annotated[
        int,
        typer.Option("--at", metavar="SEQ", help="After how many of its moves; sessions show lists them."),
    ],
    edit: Annotated[
        str | None, typer.Option(metavar="JSON", help='What is different, such as {"user_message": "…"}.')
    ] = None,
    json: Json = False,
) -> None:
    """Run a turn again from one of its moves, in a session of its own. Exit codes as for run."""
    from fsm_agent.cli.continued import fork

    raise typer.Exit(fork(turn, at, edit, given, json))


OlderThan = Annotated[
    float, typer.Option("--older-than", metavar="DAYS", help="What was not used for so many days.")
]
Keep = Annotated[int, typer.Option(help="Conversations that stay in any case: those used last.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")]
Sure = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing.")]


@sessions.command()
def prune(
    older_than: OlderThan,
    keep: Keep = 0,
    dry_run: Dry = False,
    yes: Sure = False,
    json: Json = False,
    home: Home = None,
) -> None:
    """Remove old conversations for good; what is unfinished stays."""
    from fsm_agent.cli.retention import prune

    raise typer.Exit(prune(home, older_than, keep, dry_run, yes, json))


@sessions.command()
def archive(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file, which import reads again.")],
    older_than: OlderThan,
    keep: Keep = 0,
    dry_run: Dry = False,
    yes: Sure = False,
    json: Json = False,
    home: Home = None,
) -> None:
    """Move old conversations into a file, secrets and all; what is unfinished stays."""
    from fsm_agent.cli.retention import prune

    raise typer.Exit(prune(home, older_than, keep, dry_run, yes, json, archive=file))


@sessions.command()
def vacuum(json: Json = False, home: Home = None) -> None:
    """Give room that is free in the file back to the disk."""
    from fsm_agent.cli.retention import make_smaller

    raise typer.Exit(make_smaller(home, json))


@sessions.command()
def copy(
    to: Annotated[
        str, typer.Option(help="postgresql://… of an empty database, or a folder without sessions.")
    ],
    json: Json = False,
    home: HomeFolder = None,
) -> None:
    """Copy all sessions into a database of PostgreSQL, or back into a file."""
    from fsm_agent.cli.copying import copy

    raise typer.Exit(copy(home, to, json))


@sessions.command()
def rename(id: Session, title: Annotated[str, typer.Argument(metavar="TITLE")], home: Home = None) -> None:
    """Give a session a title."""
    from fsm_agent.cli.sessions import rename

    raise typer.Exit(rename(home, id, title))


@sessions.command()
def undo(id: Session, turns: Annotated[int, typer.Option(help="How many.")] = 1, home: Home = None) -> None:
    """Take back the last turns of a session. Nothing is deleted; what tools did stays done (see undo)."""
    from fsm_agent.cli.sessions import undo

    raise typer.Exit(undo(home, id, turns))
