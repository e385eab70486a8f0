"""``fsm-agent sessions show`` and ``sessions search``: messages and turns to read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text
from rich.tree import Tree

from fsm_agent.cli.arguments import value_of
from fsm_agent.cli.options import Home, Json
from fsm_agent.cli.screen import (
    OUTCOMES,
    WholeTable,
    ago,
    clean,
    console_of,
    cost,
    count,
    grid_of,
    moment,
    preview,
    put,
    screen,
    seconds,
    spell,
    tokens,
)
from fsm_agent.cli.sessions import AnyName, last_exit, nothing_yet, positive, store_of
from fsm_agent.conversation.messages import AGENT_NAME
from fsm_agent.conversation.parts import text_only
from fsm_agent.conversation.vendors import hosted_lines
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.reports import (
    Doubt,
    Shown,
    ShownMessage,
    TurnReport,
    session_record,
    sessions,
    turn_record,
)
from fsm_agent.sessions.store.search import Among, Found, SearchHit, search
from fsm_agent.sessions.store.stored_sessions import find_session, one_of
from fsm_agent.support.redaction import mask, mask_json

LINES = 8
"""Maximum lines to show of a tool's result."""
LONG = 600
"""Maximum characters of each of them."""
_IN_DOUBT = {
    "unknown": "it may or may not have taken effect",
    "in_flight": "it was running when the turn was last seen",
}


def show(
    name: AnyName,
    moves: Annotated[
        bool, typer.Option("--moves", help="Every move of every turn, with its row and the reason for it.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also messages that were put aside.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Whole results of tools.")] = False,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Read a session, or a turn with its moves."""
    store = store_of(home)
    kind, found = one_of(store, name)
    shown = (
        session_record(store, found, moves=moves or as_json, everything=everything)
        if kind == "session"
        else turn_record(store, found)
    )
    if as_json:
        print(json.dumps(mask_json(shown.to_dict())))
        return 0
    console = screen()
    put(console, *_parts(shown, console, full))
    return 0


def _parts(shown: Shown, console: Console, full: bool) -> Iterator[RenderableType]:
    yield from _head(shown)
    turns = {record.info.id: record for record in shown.turns}
    texts: set[str] = set()
    here: str | None = None
    for row in shown.rows:
        if row.turn != here and row.turn in turns and row.turn not in texts:
            yield from _turn(turns[row.turn], console.width)
            texts.add(row.turn)
        here = row.turn
        yield from _message(row, full)
    for turn_id, record in turns.items():
        if turn_id not in texts:
            yield from _turn(record, console.width)
    if shown.aside and not any(not row.active for row in shown.rows):
        yield Text(
            f"\n{count(shown.aside, 'message')} put aside by compaction or undo; --all shows them", "dim"
        )


def _head(shown: Shown) -> Iterator[Text]:
    one = shown.session
    yield Text.assemble((clean(one.id), "bold"), f"  {preview(one.title, 100)}")
    facts = [count(one.turns, "turn"), f"{tokens(one.spent)} tokens", f"cost {cost(one.spent)}"]
    yield Text("  " + " · ".join([clean(one.model) or "no model yet", *facts]), "dim")
    by = f" by {clean(one.source)}" if one.source else ""
    yield Text(f"  begun {moment(one.created)}{by} · used {moment(one.touched)}", "dim")
    if one.parent:
        how = {"compression": "continues", "fork": "was forked from", "child": "was delegated by"}.get(
            one.kind, "follows"
        )
        yield Text(f"  {how} {clean(one.parent)}", "dim")
    if one.successor:
        yield Text(f"  continues as {clean(one.successor)}", "dim")
    if one.unfinished and one.last is not None:
        yield Text.assemble(
            "  ", last_exit(one), (f": fsm-agent sessions resume {clean(one.last.id)}", "yellow")
        )
    for item in one.pending:
        waits = "waits for" if item.answered is None else f"has its answer ({item.said}) to"
        yield Text(f"  {waits} {item.id}: {clean(item.what)}", "yellow")
    if one.running is not None:
        yield Text(
            f"  a turn is running in process {one.running.get('pid')} on"
            f" {clean(str(one.running.get('host')))}",
            "cyan",
        )


def _turn(record: TurnReport, width: int) -> Iterator[RenderableType]:
    info = record.info
    outcome = info.outcome or ("unfinished" if info.ended is None else "ended")
    line = Text.assemble(
        "\n── ", (clean(info.id), "bold"), "  ", (clean(outcome), OUTCOMES.get(outcome, "yellow"))
    )
    if record.agent not in ("", AGENT_NAME):
        line.append(f"  {clean(record.agent)}", "cyan")
    facts = [clean(info.exit or f"in {info.state}"), count(info.seq, "move"), spell(record.seconds)]
    facts += [f"{tokens(record.spent)} tokens", f"cost {cost(record.spent)}"]
    if info.parent is not None:
        at = "" if info.forked_at is None else f" at {info.forked_at}"
        facts.append(f"{'forked from' if at else 'delegated by'} {clean(info.parent)}{at}")
    if record.undone is not None:
        facts.append("undone")
    yield line.append("\n   " + " · ".join(facts), "dim")
    if record.children or record.handed_to:
        yield Padding(_below(record), (0, 0, 0, 3), expand=False)
    for doubt in record.doubts:
        yield _doubt(doubt)
    if record.steps:
        yield Padding(_moves(record), (0, 0, 0, 2), expand=False)


def _below(record: TurnReport) -> Tree:
    """Return the tree below a turn: the turns of its tools, and the agent that continues after it."""
    tree = Tree(Text("agents", "dim"), guide_style="dim")
    _add_below(tree, record)
    return tree


def _add_below(tree: Tree, record: TurnReport) -> None:
    for child in record.children:
        outcome = child.info.outcome or "unfinished"
        line = Text.assemble((clean(child.agent), "cyan"), f"  {preview(mask(child.info.asked), 60)}  ")
        line.append(clean(child.info.exit or f"in {child.info.state}"), OUTCOMES.get(outcome, "yellow"))
        facts = [clean(child.model), f"{tokens(child.spent)} tokens", f"cost {cost(child.spent)}"]
        line.append(" · " + " · ".join([*filter(None, facts), clean(child.info.id)]), "dim")
        _add_below(tree.add(line), child)
    if record.handed_to:
        tree.add(Text.assemble(("→ ", "magenta"), (clean(record.handed_to), "cyan"), " continues"))


def _doubt(doubt: Doubt) -> Text:
    name = clean(doubt.name or doubt.kind)
    line = Text.assemble(
        ("   ! ", "bold yellow"), (name, "bold"), f"  {preview(mask_json(doubt.arguments), 60)}\n"
    )
    return line.append(
        f"     {_IN_DOUBT[doubt.status]} ({clean(doubt.safety or 'request')}, after move {doubt.seq})",
        "yellow",
    )


def _moves(record: TurnReport) -> WholeTable:
    grid = grid_of(("#", "row", "→ state", "why", "seconds"), right=("#", "seconds"), breaks=24)
    for step in record.steps:
        why = Text(" ").join(_guard(label, value) for label, value in step.guards)
        dest = Text(step.dest, "cyan")
        if step.exit:
            dest = Text(f"⇥ {clean(step.exit)}", "bold")
        grid.add_row(str(step.seq), clean(step.row), dest, why, seconds(step.seconds))
    return grid


def _guard(label: str, value: bool) -> Text:
    return Text(f"{'✓' if value else '✗'} {clean(label)}", "green" if value else "red")


def _message(row: ShownMessage, full: bool) -> Iterator[RenderableType]:
    body = row.body
    aside = "" if row.active else "  (put aside)"
    text = mask(clean(text_only(body.get("content")))).strip("\n")
    match body["role"]:
        case "tool":
            yield from _result(body, text, aside, full)
            return
        case "user":
            yield Text("\nyou" + aside, "bold cyan")
        case "assistant":
            notes = [
                word
                for word, there in (
                    ("interrupted", body.get("interrupted")),
                    ("not sent", body.get("wire") is False),
                )
                if there
            ]
            yield Text("\nagent" + (f"  ({', '.join(notes)})" if notes else "") + aside, "bold green")
        case role:
            yield Text(f"\n{role}{aside}", "bold")
    if body.get("summary"):
        yield Text("  (a summary of earlier messages)", "dim")
    if text:
        yield Padding(Text(text), (0, 0, 0, 2), expand=False)
    for words in hosted_lines(body.get("blocks", ())):
        yield Text(f"  ⋯ {mask(clean(words))}", "dim")
    for call in body.get("tool_calls", ()):
        function = call["function"]
        yield Text.assemble(
            ("  → ", "magenta"),
            (preview(function["name"], 60), "bold"),
            f"  {preview(mask_json(value_of(function['arguments'])), 200)}",
        )


def _result(body: Mapping[str, Any], text: str, aside: str, full: bool) -> Iterator[RenderableType]:
    lines = text.split("\n")
    name = f"{preview(body['name'], 40)}: " if body.get("name") else ""
    yield Text.assemble(("  ← ", "magenta"), (f"{name}{count(len(lines), 'line')}{aside}", "dim"))
    shown: Sequence[str] = lines if full else [_short(line) for line in lines[:LINES]]
    yield Padding(Text("\n".join(shown), "dim"), (0, 0, 0, 4), expand=False)
    if len(shown) < len(lines):
        yield Text(f"    … {count(len(lines) - len(shown), 'line')} more; --full shows them", "dim")
    elif any(line is not whole for line, whole in zip(shown, lines, strict=True)):
        yield Text("    … long lines are cut; --full shows them", "dim")


def _short(line: str) -> str:
    return line if len(line) <= LONG else line[: LONG - 1] + "…"


def search_sessions(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help='Words; "a phrase", begin*, OR, NOT.')],
    limit: Annotated[int, typer.Option(help="Hits at most.")] = 10,
    session: Annotated[str | None, typer.Option(help="Only in this session.")] = None,
    roles: Annotated[
        list[str] | None, typer.Option("--role", help="Only messages of user, assistant or tool.")
    ] = None,
    days: Annotated[float | None, typer.Option(help="Only the last days.")] = None,
    children: Annotated[bool, typer.Option("--children", help="Also sessions of sub-agents.")] = False,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first instead of best first.")] = False,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Find messages by their words."""
    store, text = store_of(home), " ".join(words)
    among = Among(None if session is None else find_session(store, session), roles or (), days, children)
    with _indexing() as progress:
        task = progress.add_task("indexing messages", total=None, visible=False)
        found = search(
            store.database, text, among, limit=positive("--limit", limit), newest=newest, now=store.now,
            progress=lambda done, total: progress.update(
                task, completed=done, total=total, visible=total > 5_000
            ),
        )  # fmt: skip
    found = replace(found, hits=tuple(map(_mask_hit, found.hits)))
    if as_json:
        print(json.dumps(found_json(text, found)))
    elif not found.hits and not sessions(store, 1, True):
        print(f"fsm-agent: {nothing_yet(store)}", file=sys.stderr)
    else:
        _show_found(store, text, found)
    return 0


def _mask_hit(hit: SearchHit) -> SearchHit:
    """Mask keys in a hit; a text that contains any loses its marks."""
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
    """Return a progress bar, shown only while many messages are indexed, and only on a terminal."""
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
                Padding(highlight(hit), (0, 0, 0, 4), expand=False)
                if console.is_terminal
                else Text("    ") + highlight(hit)
            ),
        )
        before = hit.session
    if found.more:
        console.print(Text(f"the best of the newest {count(found.looked_at, 'hit')}; there are more", "dim"))


def _heading(hit: SearchHit, now: float, same: bool) -> Text:
    """Return the role and age of a message; its session only if that changes."""
    line = Text()
    if not same:
        line = Text.assemble((clean(hit.session), "bold"), "  ", preview(hit.title, 60), "\n")
    line.append(f"  {hit.role}, {ago(hit.at, now)}", "dim")
    return line if hit.standing == "current" else line.append(f"  ({hit.standing})", "yellow")


def highlight(hit: SearchHit) -> Text:
    """Return the snippet with matches in bold, if available: other marks would look like its text."""
    line, place = Text("…" if hit.snippet.cut[0] else ""), 0
    for start, end in hit.snippet.marks:
        line.append(clean(hit.snippet.text[place:start])).append(
            clean(hit.snippet.text[start:end]), "bold yellow"
        )
        place = end
    return line.append(clean(hit.snippet.text[place:])).append("…" if hit.snippet.cut[1] else "")
