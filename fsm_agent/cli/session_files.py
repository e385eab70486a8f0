"""Sessions as files: export, import, archive, copies, checkpoints of the working directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fsm_agent.cli.options import Home, HomeFolder, Json
from fsm_agent.cli.screen import clean, count, preview, put, say, screen, since
from fsm_agent.cli.sessions import AnyName, none_yet, store_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.properties import Property
from fsm_agent.providers.config_file import config_of
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.sessions.checkpoints import Checkpoint, Checkpoints
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.export import (
    export_session,
    export_sessions,
    export_turn,
    session_trajectory,
    turn_trajectory,
)
from fsm_agent.sessions.store.importing import MAX_LINE, copy_store, import_lines
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.retention import Old, old, remove, vacuum
from fsm_agent.sessions.store.rows import compaction_chain
from fsm_agent.sessions.store.stored_sessions import find_session, one_of
from fsm_agent.settings import Settings, Storage
from fsm_agent.support.files import home_of, private_file, workdir_of

FORMATS = ("jsonl", "sharegpt", "pytest")


OlderThan = Annotated[
    float, typer.Option("--older-than", metavar="DAYS", help="Only what was not used for this many days.")
]
Keep = Annotated[int, typer.Option(help="Conversations to keep in any case: those used last.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")]
Sure = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing.")]


def prune(
    older_than: OlderThan,
    keep: Keep = 0,
    dry_run: DryRun = False,
    yes: Sure = False,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Remove old conversations for good; unfinished ones stay."""
    return _remove(home, older_than, keep, dry_run, yes, as_json)


def archive(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file, which import can read.")],
    older_than: OlderThan,
    keep: Keep = 0,
    dry_run: DryRun = False,
    yes: Sure = False,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Move old conversations into a file; unfinished ones stay. Secrets are in it, too."""
    return _remove(home, older_than, keep, dry_run, yes, as_json, archive=file)


def _remove(
    home: str | None,
    days: float,
    keep: int,
    dry: bool,
    yes: bool,
    as_json: bool,
    archive: str | None = None,
) -> int:
    store = store_of(home)
    found = old(store, days, keep)
    if not dry and found.groups:
        if not yes:
            _ask(found, archive)
        if archive is not None:
            _carry_out(store, found, Path(archive))
        found = remove(store, found.sessions, days, keep)
    if as_json:
        counts = {"sessions": found.sessions, "turns": found.turns, "messages": found.messages}
        print(json.dumps({**counts, "unfinished": found.unfinished, "removed": not dry}))
        return 0
    if not found.groups:
        say("nothing is that old")
    elif dry:
        say(f"{_count_files(found)} would be removed")
    else:
        say(f"{_count_files(found)} removed{f', they are in {archive}' if archive else ''}")
        say("the room in the file is used again; fsm-agent sessions vacuum gives it back to the disk")
    if found.unfinished:
        say(f"as old, but left alone: {count(found.unfinished, 'conversation')} with an unfinished turn")
    return 0


def _count_files(found: Old) -> str:
    sizes = f"{count(found.turns, 'turn')} and {count(found.messages, 'message')}"
    return f"{count(len(found.groups), 'conversation')} with {sizes}"


def _ask(found: Old, archive: str | None) -> None:
    """Ask for consent. Raises ``ConfigError`` if the answer is not yes, or no person can be asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            "removing them needs a person's consent", _count_files(found), "--yes, or --dry-run"
        )
    where = f", after they were written to {archive}" if archive else " for good"
    print(f"Remove {_count_files(found)}{where}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was removed", "no", "y or yes")


def _carry_out(store: Store, found: Old, path: Path) -> None:
    if path.exists():
        raise ConfigError("the file is there already", str(path), "a new one: an archive replaces nothing")
    write_lines(path, export_sessions(store.database, found.sessions))


def vacuum_file(as_json: Json = False, home: Home = None) -> int:
    """Give free space in the file back to the disk."""
    store = store_of(home)
    if not store.database.select("SELECT 1 FROM sessions LIMIT 1"):
        raise none_yet(store)
    before, after = vacuum(store)
    if as_json:
        print(json.dumps({"before": before, "after": after}))
    else:
        say(f"{before:,} bytes before, {after:,} after")
    return 0


def copy(
    to: Annotated[
        str, typer.Option(help="postgresql://… of an empty database, or a folder without sessions.")
    ],
    as_json: Json = False,
    home: HomeFolder = None,
) -> int:
    """Copy all sessions into a PostgreSQL database, or back into a file."""
    source = _source(home)
    is_url = to.startswith(("postgresql://", "postgres://"))
    target = Store(source.home if is_url else Path(to), database_url=to if is_url else None)
    try:
        name = target.database.name
        if _resolve_name(name) == _resolve_name(source.database.name):
            raise ConfigError(
                "source and target are the same store",
                name,
                "another source (--home) or another target (--to)",
            )
        if not source.database.select("SELECT 1 FROM sessions LIMIT 1"):
            raise ConfigError(
                "there are no sessions to copy", source.database.name, "a home with sessions (--home)"
            )
        copied = copy_store(source, target.database, _show_progress if sys.stderr.isatty() else _ignore)
    finally:
        target.close()
    if as_json:
        print(json.dumps({"to": name, "rows": copied.rows, "sha256": copied.digest}))
        return 0
    rows, use = sum(copied.rows.values()), "store.database_url names it" if is_url else f"--home is {to}"
    sessions = count(copied.rows["sessions"], "session")
    say(f"{sessions} in {rows:,} rows copied into {name}, read back, and the same; used when {use}")
    return 0


def _resolve_name(name: str) -> str:
    """Return the name of a database; of a file, the same for all paths to it."""
    return name if "://" in name else str(Path(name).resolve())


def _source(home: str | None) -> Store:
    """Return the store in use; with ``--home`` the one that this home itself names, since the address in the
    environment may be the target of the copy."""
    if home is None:
        return store_of(None)
    folder = home_of(home, os.environ)
    given = config_of(folder).settings
    Settings.of(None, given)  # raises for invalid settings
    own = Storage.model_validate(given.get("store", {}))
    return store_for(folder, own.durability, own.database)


def _show_progress(table: str, done: int, of: int) -> None:
    print(f"\r\033[K{table}: {done:,} of {of:,}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def _ignore(table: str, done: int, of: int) -> None:
    pass


def export(
    name: AnyName,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Default: standard output.")
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="jsonl (all), sharegpt (a trajectory), pytest (a test of a turn).",
        ),
    ] = "jsonl",
    raw: Annotated[bool, typer.Option("--raw", help="Do not mask secrets.")] = False,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Of a test: only the replies that its end needs.")
    ] = False,
    breaks: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="With --shrink: only those that break this property."),
    ] = None,
    home: Home = None,
) -> int:
    """Write a session or a turn as lines of JSON, or a turn as a test. Secrets are masked."""
    if format not in FORMATS:
        raise ConfigError("unknown export format", format, ", ".join(FORMATS))
    if shrink and format != "pytest":
        raise ConfigError("only a test can be shrunk", format, "--format pytest")
    broken = None if breaks is None else _property_of(breaks)
    if broken is not None and not shrink:
        raise ConfigError("a property is for a test that is shrunk", breaks, f"--shrink --breaks {breaks}")
    store = store_of(home)
    kind, found = one_of(store, name)
    secrets = [os.environ.get(profile.key_env or "", "") for profile in PROFILES.values()]
    if format == "sharegpt":
        trajectory = session_trajectory if kind == "session" else turn_trajectory
        lines: Iterator[str] = iter([json.dumps(trajectory(store.database, found, raw=raw, secrets=secrets))])
    elif format == "pytest":
        from fsm_agent.backtest.replay import make_test

        if kind == "session":
            raise ConfigError(
                "a test is made of one turn", f"session {found}", "the id of a turn: fsm-agent sessions show"
            )
        lines = iter(make_test(store, found, shrink=shrink, broken=broken).splitlines())
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


def _property_of(name: str) -> Property:
    from fsm_agent.cli.arguments import attribute_of

    allowed = "module:attribute of a property, as never(…) makes it"
    found = attribute_of(name, "the property", allowed)
    if not isinstance(found, Property):
        raise ConfigError("this is not a property", name, allowed)
    return found


def _is_of_the_store(path: Path, store: Store) -> bool:
    own = [Path(f"{store.database.path}{end}") for end in ("", "-wal", "-shm")]
    return store.database.path is not None and any(
        path.exists() and one.exists() and path.samefile(one) for one in own
    )


def write_lines(path: Path, lines: Iterator[str]) -> int:
    """Write a file that only the user may read, and return the number of its lines. Raises
    ``ConfigError``."""
    try:
        with open(path, "w", encoding="utf-8", opener=private_file) as file:
            written = sum(file.write(line + "\n") > 0 for line in lines)
            file.flush()
            with contextlib.suppress(OSError):  # a pipe cannot be synced to a disk
                os.fsync(file.fileno())
            return written
    except OSError as error:
        raise ConfigError(f"the file cannot be written ({error.strerror})", str(path)) from None


def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help='An export; "-" reads standard input.')],
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Store an export: all of it, or nothing."""
    store = store_of(home)
    try:
        with Path(file).open("rb") if file != "-" else sys.stdin.buffer as stream:
            lines = iter(partial(stream.readline, MAX_LINE + 1), b"")
            name = "standard input" if file == "-" else file
            done = import_lines(store, (line.decode("utf-8") for line in lines), name)
    except OSError as error:
        raise ConfigError(f"the file cannot be read ({error.strerror})", file) from None
    if as_json:
        counts = {
            "of": done.of,
            "id": done.id,
            "sessions": done.sessions,
            "turns": done.turns,
            "messages": done.messages,
        }
        print(json.dumps({**counts, "copied": done.copied, "unfinished": done.unfinished}))
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
            "It continues under the rules of this home, and asks before every call that does more than read"
            " here."
        )
    return 0


SHOWN = 20
"""Maximum files to name; the others are counted."""


def undo_files(
    session: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="Its id, the beginning of one, or its title; default: any."),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--turn", metavar="N", help="A number of --list; default: the newest."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the checkpoints, newest first.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show the changes since then, and change nothing.")
    ] = False,
    home: Home = None,
) -> int:
    """Take back what tools did to the files here.

    Restores the files of this folder to their state before a turn's tools changed them. The conversation
    stays as it is. The present state is kept first, so that this can be undone, too.
    """
    folder = home_of(home, os.environ)
    settings = Settings.of(None, config_of(folder).settings)
    checkpoints = Checkpoints(folder, workdir_of(None), settings.checkpoints)
    store = store_of(home, settings)
    found = _of_session(store, checkpoints.all(), session)
    if not found:
        why = checkpoints.trouble or "they are made before the first tool of a turn that may change files"
        raise ConfigError(f"there is no checkpoint of {checkpoints.workdir} to go back to ({why})", session)
    if listed:
        put(screen(), *(Text(_line(store, at, one)) for at, one in enumerate(found, 1)))
        return 0
    chosen = _choose_checkpoint(found, number)
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
    """Return the checkpoints of one session, of the sessions that it continues, and of their children."""
    if name is None:
        return found
    newest = find_session(store, name)
    with store.database.reading() as c:
        line = compaction_chain(c, newest)
    ours = "|".join(map(re.escape, line))
    mine = re.compile(rf"({ours})|(c-)+({ours})-[0-9a-f]{{8}}\..*")
    return [one for one in found if mine.fullmatch(one.session)]


def _choose_checkpoint(found: Sequence[Checkpoint], number: int | None) -> Checkpoint:
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
