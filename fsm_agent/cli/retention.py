"""``fsm-agent sessions prune|archive|vacuum``: what is old goes, into a file or for good, when it is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fsm_agent.cli.figures import count
from fsm_agent.cli.sessions import none_yet, say, store_of, write_lines
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.retention import Old, old, remove, vacuum
from fsm_agent.sessions.store.transfer.export import export_sessions


def prune(
    home: str | None,
    days: float,
    keep: int,
    dry: bool,
    yes: bool,
    as_json: bool = False,
    archive: str | None = None,
) -> int:
    """Remove old sessions, after they were written to the file ``archive`` if there is one; returns the exit
    code."""
    store = store_of(home)
    found = old(store, days, keep)
    if not dry and found.groups:
        if not yes:
            _ask(found, archive)
        if archive is not None:
            _carry_out(store, found, Path(archive))
        found = remove(store, found.sessions, days, keep)
    if as_json:
        told = {"sessions": found.sessions, "turns": found.turns, "messages": found.messages}
        print(json.dumps({**told, "unfinished": found.unfinished, "removed": not dry}))
        return 0
    if not found.groups:
        say("nothing is that old")
    elif dry:
        say(f"{_counted(found)} would be removed")
    else:
        say(f"{_counted(found)} removed{f', they are in {archive}' if archive else ''}")
        say("the room in the file is used again; fsm-agent sessions vacuum gives it back to the disk")
    if found.unfinished:
        say(f"as old, but left alone: {count(found.unfinished, 'conversation')} with an unfinished turn")
    return 0


def _counted(found: Old) -> str:
    sizes = f"{count(found.turns, 'turn')} and {count(found.messages, 'message')}"
    return f"{count(len(found.groups), 'conversation')} with {sizes}"


def _ask(found: Old, archive: str | None) -> None:
    """Raises ``ConfigError`` when the answer is not yes, or nobody can be asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            "nobody can be asked whether to remove them", _counted(found), "--yes, or --dry-run"
        )
    where = f", after they were written to {archive}" if archive else " for good"
    print(f"Remove {_counted(found)}{where}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was removed", "no", "y or yes")


def _carry_out(store: Store, found: Old, path: Path) -> None:
    if path.exists():
        raise ConfigError("the file is there already", str(path), "a new one: an archive replaces nothing")
    write_lines(path, export_sessions(store.database, found.sessions))


def make_smaller(home: str | None, as_json: bool) -> int:
    """Give free room back to the disk; returns the exit code. Raises ``ConfigError`` when there are no
    sessions."""
    store = store_of(home)
    if not store.database.select("SELECT 1 FROM sessions LIMIT 1"):
        raise none_yet(store)
    before, after = vacuum(store)
    if as_json:
        print(json.dumps({"before": before, "after": after}))
    else:
        say(f"{before:,} bytes before, {after:,} after")
    return 0
