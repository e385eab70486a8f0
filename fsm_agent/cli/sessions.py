"""``fsm-agent sessions list|rename|undo``, and the store and names of sessions for all commands."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from fsm_agent.cli.options import Home, Json
from fsm_agent.cli.screen import (
    OUTCOMES,
    WholeTable,
    clean,
    cost,
    count,
    grid_of,
    preview,
    put,
    say,
    screen,
    since,
    tokens,
)
from fsm_agent.errors import ConfigError, FsmAgentError
from fsm_agent.providers.config_file import config_of
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.reports import SessionInfo, sessions
from fsm_agent.sessions.store.stored_sessions import find_session
from fsm_agent.sessions.store.stored_sessions import rename as renamed
from fsm_agent.settings import Settings
from fsm_agent.support.files import home_of
from fsm_agent.support.redaction import mask, mask_json
from fsm_agent.support.threads import LOOP

MOST = 1_000_000
"""Maximum lines of a list."""
OFFERED = 50
"""Sessions that Tab offers."""
WIDE = 110
"""Minimum columns of a list that has room for models."""
SHORT = 8
"""Characters of an id that has no room for all of them."""


def complete_session(begun: str) -> list[tuple[str, str]]:
    """Return (id, title) of the most recently used sessions that begin with this text, for a shell."""
    return matching_sessions(None, begun)


SessionName = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", autocompletion=complete_session, help="Its id, the beginning of one, or its title."
    ),
]
AnyName = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        autocompletion=complete_session,
        help="A session (id, its beginning, title), or a turn.",
    ),
]


def matching_sessions(home: str | None, begun: str) -> list[tuple[str, str]]:
    """Return (id, title) of the most recently used sessions whose id or title begins with this text; none if
    the home cannot be read."""
    with contextlib.suppress(FsmAgentError):
        found = sessions(store_of(home), OFFERED, False, None)
        titled = [(one.id, preview(one.title or (one.last.asked if one.last else ""), 60)) for one in found]
        return [(id, title) for id, title in titled if id.startswith(begun) or title.startswith(begun)]
    return []


def store_of(home: str | None, settings: Settings | None = None) -> Store:
    """Return the store of a home directory, by default the usual one. ``settings``: by default those of its
    file."""
    folder = home_of(home, os.environ)
    kept = (settings or Settings.of(None, config_of(folder).settings)).store
    return store_for(folder, kept.durability, kept.database)


def list_sessions(
    limit: Annotated[int, typer.Option(help="Sessions at most.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those of sub-agents, and those that another one continues.")
    ] = False,
    source: Annotated[
        str | None, typer.Option(help="Only those begun by cli, chat, debugger, python, fork or child.")
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """List the sessions that were used last."""
    store = store_of(home)
    found = sessions(store, positive("--limit", limit), everything, source)
    if as_json:
        print(json.dumps(mask_json([one.to_dict() for one in found])))
    elif not found:
        print(f"fsm-agent: {nothing_yet(store)}", file=sys.stderr)
    else:
        put(console := screen(), _grid(found, console.width, store.now()))
    return 0


def nothing_yet(store: Store) -> str:
    """Return the message of a command that reports on sessions, for a store without any."""
    return clean(f'there are no sessions yet in {_place(store)}; fsm-agent run "…" begins one')


def none_yet(store: Store) -> ConfigError:
    """Return the error of a command that needs sessions, for a store without any."""
    allowed = 'a home with sessions; fsm-agent run "…" begins one'
    return ConfigError("there are no sessions yet", _place(store), allowed)


def _place(store: Store) -> str:
    return str(store.home) if store.database.path is not None else store.database.name


def recent(store: Store, width: int) -> WholeTable:
    """Return the most recently used sessions as a table. Raises ``ConfigError`` if there are none."""
    found = sessions(store, 20, False, None)
    if not found:
        raise none_yet(store)
    return _grid(found, width, store.now())


def _grid(found: Sequence[SessionInfo], width: int, now: float) -> WholeTable:
    """Return a table of sessions, with models and whole ids if there is room; the beginning of an id suffices
    to name a session."""
    wide = width >= WIDE
    columns = (("id", 14 if wide else SHORT), ("title", 0), *((("by", 8), ("model", 20)) if wide else ()))
    columns += (("turns", 5), ("last exit", 22 if wide else 13), ("tokens", 7), ("cost", 8), ("used", 6))
    room = max(12, width - sum(size + 2 for _, size in columns))
    grid = grid_of((name for name, _ in columns), right=("turns", "tokens", "cost", "used"), breaks=24)
    for one in found:
        kind = "" if one.kind in ("root", "compression") else f"({one.kind}) "
        title = Text.assemble(
            (kind, "dim"), preview(mask(one.title or (one.last.asked if one.last else "")), 100)
        )
        title.truncate(room, overflow="ellipsis")
        cells: list[Text | str] = [clean(one.id) if wide else clean(one.id)[:SHORT], title]
        if wide:
            cells += [clean(one.source), clean(one.model)]
        cells += [str(one.turns), last_exit(one), tokens(one.spent), cost(one.spent), since(one.touched, now)]
        grid.add_row(*cells)
    return grid


def last_exit(one: SessionInfo) -> Text:
    """Return how the last turn ended, or its state if it has not."""
    if one.running is not None:
        return Text("running", "bold cyan")
    if one.unfinished:
        return Text("suspended" if one.pending else "unfinished", "bold yellow")
    if one.last is None:
        return Text("no turn yet", "dim")
    return Text(clean(one.last.exit or ""), OUTCOMES.get(one.last.outcome or "", ""))


def rename(
    name: SessionName, title: Annotated[str, typer.Argument(metavar="TITLE")], home: Home = None
) -> int:
    """Give a session a title."""
    store = store_of(home)
    session = store.newest(find_session(store, name)).id
    say(f"{session} is called “{renamed(store, session, title)}” now")
    return 0


def undo(
    name: SessionName, turns: Annotated[int, typer.Option(help="How many.")] = 1, home: Home = None
) -> int:
    """Take back the last turns of a session. Nothing is deleted, and effects of tools stay (see undo)."""
    from fsm_agent.sessions.store.edits import undo as undone  # loads the checkpoints of files

    store = store_of(home)
    done = LOOP.run(undone(store, find_session(store, name), turns))
    say(
        f"{count(len(done.turns), 'turn')} of {done.session} taken back, from “{preview(done.asked, 60)}” on;"
        f" the transcript has {count(done.rows, 'message')} now. What tools did stays done."
    )
    return 0


def positive(name: str, value: int) -> int:
    """Return the value. Raises ``ConfigError`` if it is below 1, or above ``MOST``."""
    if not 1 <= value <= MOST:
        raise ConfigError(f"{name} is out of range", value, f"1 to {MOST:,}")
    return value
