"""``fsm-agent sessions``: what was talked about, found, renamed, taken back, carried elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from fsm_agent.cli.figures import cost, count, since, tokens
from fsm_agent.cli.screen import clean, console_of, preview
from fsm_agent.cli.table import WholeTable
from fsm_agent.errors import ConfigError
from fsm_agent.providers.config_file import config_of
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.names import find_session, one_of
from fsm_agent.sessions.store.names import rename as renamed
from fsm_agent.sessions.store.reports.records import SessionInfo, sessions
from fsm_agent.sessions.store.rewind import undo as undone
from fsm_agent.sessions.store.transfer.export import export_session, export_turn
from fsm_agent.sessions.store.transfer.importing import MAX_LINE, import_lines
from fsm_agent.sessions.store.transfer.trajectory import session_trajectory, turn_trajectory
from fsm_agent.settings.model import Settings
from fsm_agent.support.files import private_file
from fsm_agent.support.home import home_of
from fsm_agent.support.redaction import mask, mask_json
from fsm_agent.support.threads import LOOP

MOST = 1_000_000
"""Lines of a list."""
WIDE = 110
"""Columns from which a list has room for models."""
SHORT = 8
"""Characters of an id where there is no room for all of it."""
PLAIN = 140
"""Columns of a table where there is no terminal to ask."""
FORMATS = ("jsonl", "sharegpt", "pytest")
OUTCOMES = {"completed": "green", "failed": "red", "partial": "yellow", "interrupted": "magenta"}


def store_of(home: str | None) -> Store:
    """Return the store of a home directory, or of the usual one."""
    folder = home_of(home, os.environ)
    kept = Settings.of(None, config_of(folder).settings).store
    return store_for(folder, kept.durability, kept.database)


def screen() -> Console:
    """Standard output; wide enough for whole lines where it is no terminal."""
    console = console_of(sys.stdout)
    if not console.is_terminal:
        console.width = PLAIN
    return console


def put(console: Console, *parts: RenderableType) -> None:
    """Print, without blanks at the ends of lines where it is no terminal."""
    for part in parts:
        if console.is_terminal:
            console.print(part, soft_wrap=False)
            continue
        with console.capture() as captured:
            console.print(part, soft_wrap=isinstance(part, Text))
        console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def list_sessions(home: str | None, limit: int, everything: bool, source: str | None, as_json: bool) -> int:
    """The sessions that were used last."""
    store = store_of(home)
    found = sessions(store, positive("--limit", limit), everything, source)
    if as_json:
        print(json.dumps(mask_json([one.to_dict() for one in found])))
    elif not found:
        raise none_yet(store)
    else:
        put(console := screen(), _grid(found, console.width, store.now()))
    return 0


def none_yet(store: Store) -> ConfigError:
    """Return the error of a command that needs sessions in a store that has none."""
    where = str(store.home) if store.database.path is not None else store.database.name
    return ConfigError(
        "there are no sessions yet", where, 'a home with sessions; fsm-agent run "…" begins one'
    )


def recent(store: Store, width: int) -> WholeTable:
    """The sessions that were used last, as a table. Raises ``ConfigError`` when there are none."""
    found = sessions(store, 20, False, None)
    if not found:
        raise none_yet(store)
    return _grid(found, width, store.now())


def _grid(found: Sequence[SessionInfo], width: int, now: float) -> WholeTable:
    """With models and whole ids where there is room for them; the beginning of an id is enough to name a
    session."""
    wide = width >= WIDE
    grid = WholeTable(breaks=24, box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    columns = (("id", 14 if wide else SHORT), ("title", 0), *((("by", 8), ("model", 20)) if wide else ()))
    columns += (("turns", 5), ("last exit", 22 if wide else 13), ("tokens", 7), ("cost", 8), ("used", 6))
    room = max(12, width - sum(size + 2 for _, size in columns))
    for name, _ in columns:
        grid.add_column(name, justify="right" if name in ("turns", "tokens", "cost", "used") else "left")
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
    """How the last turn ended, or that it did not."""
    if one.running is not None:
        return Text("running", "bold cyan")
    if one.unfinished:
        return Text("suspended" if one.pending else "unfinished", "bold yellow")
    if one.last is None:
        return Text("no turn yet", "dim")
    return Text(clean(one.last.exit or ""), OUTCOMES.get(one.last.outcome or "", ""))


# Changing


def rename(home: str | None, name: str, title: str) -> int:
    """Give a session a title; returns the exit code."""
    store = store_of(home)
    session = store.newest(find_session(store, name)).id
    say(f"{session} is called “{renamed(store, session, title)}” now")
    return 0


def undo(home: str | None, name: str, turns: int) -> int:
    """Take back the last turns of a session."""
    store = store_of(home)
    done = LOOP.run(undone(store, find_session(store, name), turns))
    say(
        f"{count(len(done.turns), 'turn')} of {done.session} taken back, from “{preview(done.asked, 60)}” on;"
        f" the transcript has {count(done.rows, 'message')} now. What tools did stays done."
    )
    return 0


# Carrying elsewhere


def export(home: str | None, name: str, output: str | None, format: str, raw: bool) -> int:
    """Write a session or a turn as lines of JSON."""
    if format not in FORMATS:
        raise ConfigError("unknown export format", format, ", ".join(FORMATS))
    store = store_of(home)
    kind, found = one_of(store, name)
    secrets = [os.environ.get(profile.key_env or "", "") for profile in PROFILES.values()]
    if format == "sharegpt":
        told = session_trajectory if kind == "session" else turn_trajectory
        lines: Iterator[str] = iter([json.dumps(told(store.database, found, raw=raw, secrets=secrets))])
    elif format == "pytest":
        from fsm_agent.debug.core.replay import make_test

        if kind == "session":
            raise ConfigError(
                "a test is made of one turn", f"session {found}", "the id of a turn: fsm-agent sessions show"
            )
        lines = iter(make_test(store, found).splitlines())
    else:
        lines = (export_session if kind == "session" else export_turn)(
            store.database, found, raw=raw, secrets=secrets
        )
    if output is None or output == "-":
        for line in lines:
            print(line)
        return 0
    if _is_of_the_store(Path(output), store):
        raise ConfigError("the store would be written over", output, "a file that is not the store's own")
    written = write_lines(Path(output), lines)
    print(
        f"{kind} {found}: {count(written, 'line')} in {output}{'' if raw else ', secrets masked'}",
        file=sys.stderr,
    )
    return 0


def _is_of_the_store(path: Path, store: Store) -> bool:
    own = [Path(f"{store.database.path}{end}") for end in ("", "-wal", "-shm")]
    return store.database.path is not None and any(
        path.exists() and one.exists() and path.samefile(one) for one in own
    )


def write_lines(path: Path, lines: Iterator[str]) -> int:
    """Write a file that only the user may read, and return how many lines are safe in it. Raises
    ``ConfigError``."""
    try:
        with open(path, "w", encoding="utf-8", opener=private_file) as file:
            written = sum(file.write(line + "\n") > 0 for line in lines)
            file.flush()
            with contextlib.suppress(OSError):  # a pipe cannot be flushed to a disk
                os.fsync(file.fileno())
            return written
    except OSError as error:
        raise ConfigError(f"the file cannot be written ({error.strerror})", str(path)) from None


def import_file(home: str | None, file: str, as_json: bool) -> int:
    """Store what ``export`` wrote."""
    store = store_of(home)
    try:
        with Path(file).open("rb") if file != "-" else sys.stdin.buffer as stream:
            lines = iter(partial(stream.readline, MAX_LINE + 1), b"")
            name = "standard input" if file == "-" else file
            done = import_lines(store, (line.decode("utf-8") for line in lines), name)
    except OSError as error:
        raise ConfigError(f"the file cannot be read ({error.strerror})", file) from None
    if as_json:
        told = {
            "of": done.of,
            "id": done.id,
            "sessions": done.sessions,
            "turns": done.turns,
            "messages": done.messages,
        }
        print(json.dumps({**told, "copied": done.copied, "unfinished": done.unfinished}))
        return 0
    new = ", under new ids, because it was here already" if done.copied else ""
    say(
        f"{done.of} {done.id}: {count(done.turns, 'turn')} and {count(done.messages, 'message')}"
        f" imported{new}"
    )
    for turn in done.unfinished:
        say(f"it was left unfinished: fsm-agent sessions resume {turn}")
    if done.unfinished:
        say(
            "It goes on under the rules of this home, and asks before every call that does more than read"
            " here."
        )
    return 0


def say(line: str) -> None:
    """Print one line."""
    screen().print(Text(clean(line)))


def positive(name: str, value: int) -> int:
    """Return the value, or raise ``ConfigError`` when it is below 1, or more than a database counts."""
    if not 1 <= value <= MOST:
        raise ConfigError(f"{name} is out of range", value, f"1 to {MOST:,}")
    return value
