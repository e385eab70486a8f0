"""``fsm-agent undo``: files as they were before a turn's tools changed them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from rich.text import Text

from fsm_agent.cli.figures import since
from fsm_agent.cli.screen import clean, preview
from fsm_agent.cli.sessions import put, screen
from fsm_agent.errors import ConfigError
from fsm_agent.providers.config_file import config_of
from fsm_agent.sessions.checkpoints import Checkpoint, Checkpoints
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.names import find_session
from fsm_agent.sessions.store.rows import compacted_line
from fsm_agent.settings.model import Settings
from fsm_agent.support.home import home_of, workdir_of

SHOWN = 20
"""Files that are named; of more the number is told."""


def undo(given: str | None, session: str | None, number: int | None, *, listed: bool, diff: bool) -> int:
    """Put files back, or only show what there is; returns the exit code."""
    home = home_of(given, os.environ)
    settings = Settings.of(None, config_of(home).settings)
    checkpoints = Checkpoints(home, workdir_of(None), settings.checkpoints)
    store = store_for(home, settings.store.durability, settings.store.database)
    found = _of_session(store, checkpoints.all(), session)
    if not found:
        why = checkpoints.trouble or "they are made before the first tool of a turn that may change files"
        raise ConfigError(f"there is no checkpoint of {checkpoints.workdir} to go back to ({why})", session)
    if listed:
        put(screen(), *(Text(_line(store, at, one)) for at, one in enumerate(found, 1)))
        return 0
    chosen = _chosen(found, number)
    if diff:
        sys.stdout.write(clean(checkpoints.diff(chosen)))
        return 0
    if chosen.turn and (known := store.database.select("SELECT id FROM turns WHERE id = ?", chosen.turn)):
        store.refuse_if_run(Turns(store.database).info(known[0][0]))
    done = checkpoints.put_back(chosen)
    lines = [
        *(f"  as it was  {name}" for name in done.restored),
        *(f"  deleted    {name}" for name in done.deleted),
    ]
    more = [f"  and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    again = (
        ["What was there until now is kept: fsm-agent undo --turn 1 brings it back."] if done.before else []
    )
    put(screen(), *(Text(clean(line)) for line in (str(done), *lines[:SHOWN], *more, *again)))
    return 0


def _of_session(store: Store, found: Sequence[Checkpoint], name: str | None) -> Sequence[Checkpoint]:
    """Those of one session, of those that it goes on from, and of their children."""
    if name is None:
        return found
    newest = find_session(store, name)
    with store.database.reading() as c:
        line = compacted_line(c, newest)
    ours = "|".join(map(re.escape, line))
    mine = re.compile(rf"({ours})|(c-)+({ours})-[0-9a-f]{{8}}\..*")
    return [one for one in found if mine.fullmatch(one.session)]


def _chosen(found: Sequence[Checkpoint], number: int | None) -> Checkpoint:
    if number is None:
        return next((one for one in found if one.tool), found[0])
    if not 1 <= number <= len(found):
        raise ConfigError("there is no such checkpoint", number, f"1 to {len(found)}; --list shows them")
    return found[number - 1]


def _line(store: Store, number: int, one: Checkpoint) -> str:
    asked = store.database.select("SELECT asked FROM turns WHERE id = ?", one.turn)
    what = f"before {one.tool}" if one.tool else "before an undo"
    words = preview(asked[0][0], 60) if asked else ""
    return f"{number:3}  {since(one.at, store.now()):>6}  {what:<20}  {words}".rstrip()
