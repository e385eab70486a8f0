"""``fsm-agent sessions search``: messages by their words."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from fsm_agent.cli.figures import ago, count
from fsm_agent.cli.screen import clean, console_of, preview
from fsm_agent.cli.sessions import none_yet, positive, put, screen, store_of
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.names import find_session
from fsm_agent.sessions.store.reports.records import sessions
from fsm_agent.sessions.store.search.messages import Among, Found, SearchHit, search
from fsm_agent.support.redaction import mask


def search_sessions(
    words: Sequence[str], home: str | None, limit: int, session: str | None, roles: Sequence[str],
    days: float | None, children: bool, newest: bool, as_json: bool,
) -> int:  # fmt: skip
    """Messages with these words, the best of the newest hits."""
    store, text = store_of(home), " ".join(words)
    among = Among(None if session is None else find_session(store, session), roles, days, children)
    with _indexing() as progress:
        task = progress.add_task("indexing messages", total=None, visible=False)
        found = search(
            store.database, text, among, limit=positive("--limit", limit), newest=newest, now=store.now,
            progress=lambda done, total: progress.update(
                task, completed=done, total=total, visible=total > 5_000
            ),
        )  # fmt: skip
    found = replace(found, hits=tuple(map(_masked, found.hits)))
    if as_json:
        print(json.dumps(found_json(text, found)))
    elif not found.hits and not sessions(store, 1, True):
        raise none_yet(store)
    else:
        _show_found(store, text, found)
    return 0


def _masked(hit: SearchHit) -> SearchHit:
    """Without keys; the marks of a text that has any are lost."""
    words, title = mask(hit.snippet.text), mask(hit.title)
    snippet = hit.snippet if words == hit.snippet.text else replace(hit.snippet, text=words, marks=())
    return replace(hit, snippet=snippet, title=title)


def found_json(text: str, found: Found) -> dict[str, object]:
    """Return what a search found as JSON values."""
    return {
        "query": text, "looked_at": found.looked_at, "more": found.more, "relaxed": found.relaxed,
        "waiting": found.waiting,
        "hits": [
            {
                "message": hit.id, "session": hit.session, "lineage": hit.lineage, "title": hit.title,
                "turn": hit.turn, "number": hit.number, "role": hit.role, "at": hit.at,
                "standing": hit.standing, "score": round(hit.score, 4), "snippet": hit.snippet.text,
                "marks": hit.snippet.marks,
            }
            for hit in found.hits
        ],
    }  # fmt: skip


def _indexing() -> Progress:
    """Shown only while many messages are indexed, and only on a terminal."""
    console = console_of(sys.stderr)
    return Progress(
        TextColumn("{task.description}"), BarColumn(30),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
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
            (
                Padding(highlighted(hit), (0, 0, 0, 4), expand=False)
                if console.is_terminal
                else Text("    ") + highlighted(hit)
            ),
        )
        before = hit.session
    if found.more:
        console.print(Text(f"the best of the newest {count(found.looked_at, 'hit')}; there are more", "dim"))


def _heading(hit: SearchHit, now: float, same: bool) -> Text:
    """Whose message it is; of which session only where that changes."""
    line = Text()
    if not same:
        line = Text.assemble((clean(hit.session), "bold"), "  ", preview(hit.title, 60), "\n")
    line.append(f"  {hit.role}, {ago(hit.at, now)}", "dim")
    return line if hit.standing == "current" else line.append(f"  ({hit.standing})", "yellow")


def highlighted(hit: SearchHit) -> Text:
    """The snippet with its words in bold; between stars where there is no bold."""
    if not console_of(sys.stdout).is_terminal:
        return Text(clean(hit.snippet.marked()))
    line, place = Text("…" if hit.snippet.cut[0] else ""), 0
    for start, end in hit.snippet.marks:
        line.append(clean(hit.snippet.text[place:start])).append(
            clean(hit.snippet.text[start:end]), "bold yellow"
        )
        place = end
    return line.append(clean(hit.snippet.text[place:])).append("…" if hit.snippet.cut[1] else "")
