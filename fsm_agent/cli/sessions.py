"""``fsm-agent sessions``: what was talked about, found, renamed, taken back, carried elsewhere."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table as Grid
from rich.text import Text

from fsm_agent.cli.figures import ago, cost, count, since, tokens
from fsm_agent.cli.screen import clean, console_of, preview
from fsm_agent.errors import ConfigError
from fsm_agent.home import home_of
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.settings import Settings
from fsm_agent.store import Store, store_for
from fsm_agent.store.export import export_session, export_turn
from fsm_agent.store.find import find_session, one_of
from fsm_agent.store.importing import import_lines
from fsm_agent.store.listing import SessionInfo, sessions
from fsm_agent.store.search import Among, Found, Hit, search
from fsm_agent.store.titles import rename as renamed
from fsm_agent.store.trajectory import session_trajectory, turn_trajectory
from fsm_agent.store.undo import undo as undone
from fsm_agent.threads import LOOP

WIDE = 110
"""Columns from which a list has room for models."""
SHORT = 8
"""Characters of an id where there is no room for all of it."""
PLAIN = 140
"""Columns of a table where there is no terminal to ask."""
FORMATS = ("jsonl", "sharegpt")
OUTCOMES = {"completed": "green", "failed": "red", "partial": "yellow", "interrupted": "magenta"}


def store_of(home: str | None) -> Store:
    return store_for(home_of(home, os.environ), Settings().store.durability)


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


def list_sessions(home: str | None, limit: int, everything: bool, as_json: bool) -> int:
    """The sessions that were used last."""
    store = store_of(home)
    found = sessions(store, _positive("--limit", limit), everything)
    if as_json:
        print(json.dumps([one.to_dict() for one in found]))
    elif not found:
        raise ConfigError("there are no sessions yet", str(store.home), 'a home with sessions; fsm-agent run "…" begins one')
    else:
        put(console := screen(), _grid(found, console.width, store.now()))
    return 0


def _grid(found: Sequence[SessionInfo], width: int, now: float) -> Grid:
    """With models and whole ids where there is room for them; the beginning of an id is enough to name a session."""
    wide = width >= WIDE
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    exits = 22 if wide else 13
    columns = (
        ("id", 14 if wide else SHORT),
        ("title", 0),
        *((("model", 20),) if wide else ()),
        ("turns", 5),
        ("last exit", exits),
    )
    columns += (("tokens", 7), ("cost", 8), ("used", 6))
    room = width - sum(size + 2 for _, size in columns)
    for name, size in columns:
        right = name in ("turns", "tokens", "cost", "used")
        grid.add_column(
            name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis", max_width=size or max(12, room)
        )
    for one in found:
        kind = "" if one.kind in ("root", "compression") else f"({one.kind}) "
        title = Text.assemble((kind, "dim"), preview(one.title or (one.last.asked if one.last else ""), 100))
        cells: list[Text | str] = [clean(one.id) if wide else clean(one.id)[:SHORT], title]
        if wide:
            cells.append(clean(one.model))
        cells += [str(one.turns), last_exit(one), tokens(one.spent), cost(one.spent), since(one.touched, now)]
        grid.add_row(*cells)
    return grid


def last_exit(one: SessionInfo) -> Text:
    """How the last turn ended, or that it did not."""
    if one.running is not None:
        return Text("running", "bold cyan")
    if one.unfinished:
        return Text("unfinished", "bold yellow")
    if one.last is None:
        return Text("no turn yet", "dim")
    return Text(clean(one.last.exit or ""), OUTCOMES.get(one.last.outcome or "", ""))


# Search


def search_sessions(
    words: Sequence[str], home: str | None, limit: int, session: str | None, roles: Sequence[str], days: float | None,
    children: bool, newest: bool, as_json: bool,
) -> int:  # fmt: skip
    """Messages with these words, the best of the newest hits."""
    store, text = store_of(home), " ".join(words)
    among = Among(None if session is None else find_session(store, session), roles, days, children)
    with _indexing() as progress:
        task = progress.add_task("indexing messages", total=None, visible=False)
        found = search(
            store.database, text, among, limit=_positive("--limit", limit), newest=newest, now=store.now,
            progress=lambda done, total: progress.update(task, completed=done, total=total, visible=total > 5_000),
        )  # fmt: skip
    if as_json:
        print(json.dumps(found_json(text, found)))
    else:
        _show_found(store, text, found)
    return 0


def found_json(text: str, found: Found) -> dict[str, object]:
    return {
        "query": text, "looked_at": found.looked_at, "more": found.more, "relaxed": found.relaxed, "waiting": found.waiting,
        "hits": [
            {
                "message": hit.id, "session": hit.session, "lineage": hit.lineage, "title": hit.title, "turn": hit.turn,
                "number": hit.number, "role": hit.role, "at": hit.at, "standing": hit.standing, "score": round(hit.score, 4),
                "snippet": hit.snippet.text, "marks": hit.snippet.marks,
            }
            for hit in found.hits
        ],
    }  # fmt: skip


def _indexing() -> Progress:
    """Shown only while many messages are indexed, and only on a terminal."""
    console = console_of(sys.stderr)
    return Progress(
        TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _show_found(store: Store, text: str, found: Found) -> None:
    console = screen()
    if not found.hits:
        console.print(Text(f"nothing found for {preview(text, 60)}"))
        return
    if found.relaxed:
        console.print(Text("no message has all of these words; with some of them:", "yellow"))
    before = ""
    for hit in found.hits:
        put(console, _heading(hit, store.now(), same=hit.session == before))
        put(
            console,
            Padding(highlighted(hit), (0, 0, 0, 4), expand=False) if console.is_terminal else Text("    ") + highlighted(hit),
        )
        before = hit.session
    if found.more:
        console.print(Text(f"the best of the newest {count(found.looked_at, 'hit')}; there are more", "dim"))


def _heading(hit: Hit, now: float, same: bool) -> Text:
    """Whose message it is; of which session only where that changes."""
    line = Text()
    if not same:
        line = Text.assemble((clean(hit.session), "bold"), "  ", preview(hit.title, 60), "\n")
    line.append(f"  {hit.role}, {ago(hit.at, now)}", "dim")
    return line if hit.standing == "current" else line.append(f"  ({hit.standing})", "yellow")


def highlighted(hit: Hit) -> Text:
    """The snippet with its words in bold; between stars where there is no bold."""
    if not console_of(sys.stdout).is_terminal:
        return Text(clean(hit.snippet.marked()))
    line, place = Text("…" if hit.snippet.cut[0] else ""), 0
    for start, end in hit.snippet.marks:
        line.append(clean(hit.snippet.text[place:start])).append(clean(hit.snippet.text[start:end]), "bold yellow")
        place = end
    return line.append(clean(hit.snippet.text[place:])).append("…" if hit.snippet.cut[1] else "")


# Changing


def rename(home: str | None, name: str, title: str) -> int:
    store = store_of(home)
    session = store.newest(find_session(store, name)).id
    _say(f"{session} is called “{renamed(store, session, title)}” now")
    return 0


def undo(home: str | None, name: str, turns: int) -> int:
    """Take back the last turns of a session."""
    store = store_of(home)
    done = LOOP.run(undone(store, find_session(store, name), turns))
    _say(
        f"{count(len(done.turns), 'turn')} of {done.session} taken back, from “{preview(done.asked, 60)}” on; the transcript has "
        f"{count(done.rows, 'message')} now. What tools did stays done."
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
    else:
        lines = (export_session if kind == "session" else export_turn)(store.database, found, raw=raw, secrets=secrets)
    if output is None or output == "-":
        for line in lines:
            print(line)
        return 0
    written = _write(Path(output), lines)
    print(f"{kind} {found}: {count(written, 'line')} in {output}{'' if raw else ', secrets masked'}", file=sys.stderr)
    return 0


def _write(path: Path, lines: Iterator[str]) -> int:
    """Only the user may read it."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            return sum(file.write(line + "\n") > 0 for line in lines)
    except OSError as error:
        raise ConfigError(f"the file cannot be written ({error.strerror})", str(path)) from None


def import_file(home: str | None, file: str, as_json: bool) -> int:
    """Store what ``export`` wrote."""
    store = store_of(home)
    try:
        with Path(file).open("rb") if file != "-" else sys.stdin.buffer as stream:
            done = import_lines(store, (line.decode("utf-8") for line in stream), "standard input" if file == "-" else file)
    except OSError as error:
        raise ConfigError(f"the file cannot be read ({error.strerror})", file) from None
    if as_json:
        told = {"of": done.of, "id": done.id, "sessions": done.sessions, "turns": done.turns, "messages": done.messages}
        print(json.dumps({**told, "copied": done.copied, "unfinished": done.unfinished}))
        return 0
    new = ", under new ids, because it was here already" if done.copied else ""
    _say(f"{done.of} {done.id}: {count(done.turns, 'turn')} and {count(done.messages, 'message')} imported{new}")
    for turn in done.unfinished:
        _say(f"it was left unfinished: fsm-agent sessions resume {turn}")
    return 0


def _say(line: str) -> None:
    screen().print(Text(clean(line)))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} is out of range", value, "1 or more")
    return value
