"""What the turns of the last days did, what it took, and what it cost (USE-04). All of it is counted by the database.

A turn counts with the day it began on; tokens with the moment they came in. A forked turn counts with its own moves only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Any

from fsm_agent.sessions.store.reports.insight_values import (
    Attempts,
    Compactions,
    Exit,
    Insights,
    Model,
    Overview,
    Recovery,
    SessionUse,
    SourceUse,
    State,
    ToolUse,
)
from fsm_agent.sessions.store.reports.usage_totals import NOTHING, SUMS, Spent
from fsm_agent.sessions.store.search.text_analysis import DAY
from fsm_agent.sessions.store.store import Store

TOP = 5
"""Sessions that are named."""


def insights(store: Store, days: float, recoveries: Collection[str] = ()) -> Insights:
    """About the last ``days``. ``recoveries`` are the ids of the table's rows that count as such."""
    until = store.now()
    since = until - days * DAY
    with store.database.reading() as c:
        c.execute("BEGIN")  # one picture, whatever running turns write meanwhile
        try:
            rows = _rows(c, since)
            return Insights(
                since, until, _overview(c, since, sum(one[4] for one in rows)), _exits(c, since), _states(rows),
                sorted((Recovery(*one[:6]) for one in rows if one[0] in recoveries), key=lambda one: -one.taken),
                _compactions(c, since), _total(c, since), _models(c, since), _tools(c, since), _sources(c, since),
                _sessions(c, since), _days(c, since), _hours(c, since), _attempts(c, since),
            )  # fmt: skip
        finally:
            c.execute("COMMIT")


def _overview(c: sqlite3.Connection, since: float, moves: int) -> Overview:
    row = c.execute(
        "SELECT COUNT(DISTINCT session), COUNT(*), TOTAL(outcome = 'completed'), TOTAL(outcome = 'failed'),"
        " TOTAL(outcome = 'partial'), TOTAL(outcome = 'interrupted'), TOTAL(ended IS NULL), TOTAL(undone IS NOT NULL),"
        " TOTAL(forked_at IS NOT NULL), TOTAL(parent IS NOT NULL AND forked_at IS NULL), TOTAL(ended - began)"
        " FROM turns WHERE began >= ?",
        (since,),
    ).fetchone()
    values: list[Any] = [*map(int, row[:10]), moves, row[10]]
    return Overview(*values)


def _exits(c: sqlite3.Connection, since: float) -> list[Exit]:
    rows = c.execute(
        "SELECT exit, outcome, COUNT(*) FROM turns WHERE began >= ? AND ended IS NOT NULL GROUP BY 1, 2 ORDER BY 3 DESC, 1",
        (since,),
    )
    return [Exit(*row) for row in rows]


def _rows(c: sqlite3.Connection, since: float) -> list[tuple[Any, ...]]:
    """(row, source, event, dest, taken, turns, seconds, longest) for each row of the table that was taken."""
    return c.execute(
        "SELECT m.row, m.source, m.event, m.dest, COUNT(*), COUNT(DISTINCT m.turn), SUM(m.seconds), MAX(m.seconds)"
        " FROM turns t CROSS JOIN transitions m ON m.turn = t.id WHERE t.began >= ? GROUP BY 1, 2, 3, 4",
        (since,),
    ).fetchall()


def _states(rows: list[tuple[Any, ...]]) -> list[State]:
    found: dict[str, State] = {}
    for _, source, _, _, taken, _, seconds, longest in rows:
        one = found.get(source, State(source, 0, 0.0, 0.0))
        found[source] = State(source, one.visits + taken, one.seconds + seconds, max(one.longest, longest))
    return sorted(found.values(), key=lambda one: -one.seconds)


def _compactions(c: sqlite3.Connection, since: float) -> Compactions:
    row = c.execute(
        "SELECT COUNT(*), TOTAL(json_extract(value, '$.trigger') = 'overflow'), TOTAL(json_extract(value, '$.fallback_used')),"
        " TOTAL(json_extract(value, '$.tokens_before')), TOTAL(json_extract(value, '$.tokens_after')),"
        " TOTAL(json_extract(value, '$.seconds')) FROM turns t, json_each(t.result, '$.compressions')"
        " WHERE t.began >= ? AND t.result IS NOT NULL",
        (since,),
    ).fetchone()
    values: list[Any] = [*map(int, row[:5]), row[5]]
    return Compactions(*values)


def _total(c: sqlite3.Connection, since: float) -> Spent:
    return Spent.of(c.execute(f"SELECT {SUMS} FROM usage u WHERE u.at >= ?", (since,)).fetchone())  # noqa: S608 - ours


def _models(c: sqlite3.Connection, since: float) -> list[Model]:
    rows = c.execute(
        f"SELECT u.provider, u.model, u.purpose, {SUMS} FROM usage u WHERE u.at >= ?"  # noqa: S608 - ours
        " GROUP BY 1, 2, 3 ORDER BY SUM(u.input + u.output) DESC",
        (since,),
    )
    return [Model(provider, model, purpose, Spent.of(spent)) for provider, model, purpose, *spent in rows]


def _tools(c: sqlite3.Connection, since: float) -> list[ToolUse]:
    """What did not end well, but is known, has failed: errors, and calls that were not run or cancelled."""
    rows = c.execute(
        "SELECT e.name, COUNT(*), TOTAL(e.status = 'done' AND json_extract(e.reply, '$.status') != 'ok'),"
        " TOTAL(e.status = 'unknown'), TOTAL(e.status = 'in_flight'), AVG(e.seconds)"
        " FROM turns t CROSS JOIN effects e ON e.turn = t.id WHERE t.began >= ?"
        " AND e.kind = 'RunTool' AND e.origin = '' GROUP BY 1 ORDER BY 2 DESC, 1",
        (since,),
    )
    return [
        ToolUse(name, calls, int(failed), int(unknown), int(flying), seconds)
        for name, calls, failed, unknown, flying, seconds in rows
    ]


def _sources(c: sqlite3.Connection, since: float) -> list[SourceUse]:
    """Platforms, as others call it. Turns that reported no tokens count too."""
    turns = c.execute(
        "SELECT s.source, COUNT(DISTINCT s.id), COUNT(*) FROM turns t JOIN sessions s ON s.id = t.session WHERE t.began >= ?"
        " GROUP BY 1 ORDER BY 3 DESC, 1",
        (since,),
    ).fetchall()
    spent = c.execute(
        f"SELECT s.source, {SUMS} FROM turns t JOIN sessions s ON s.id = t.session JOIN usage u ON u.turn = t.id"  # noqa: S608
        " WHERE t.began >= ? GROUP BY 1",
        (since,),
    )
    tokens = {source: Spent.of(sums) for source, *sums in spent}
    return [SourceUse(source, sessions, count, tokens.get(source, NOTHING)) for source, sessions, count in turns]


def _sessions(c: sqlite3.Connection, since: float) -> list[SessionUse]:
    """Those with the most tokens, then those with the most turns."""
    rows = c.execute(
        f"SELECT s.id, s.title, COUNT(DISTINCT t.id), {SUMS} FROM turns t JOIN sessions s ON s.id = t.session"  # noqa: S608 - ours
        " LEFT JOIN usage u ON u.turn = t.id WHERE t.began >= ? GROUP BY s.id"
        " ORDER BY COALESCE(SUM(u.input + u.cache_read + u.cache_write + u.output), 0) DESC, 3 DESC LIMIT ?",
        (since, TOP),
    )
    return [SessionUse(session, title, turns, Spent.of(spent)) for session, title, turns, *spent in rows]


def _days(c: sqlite3.Connection, since: float) -> list[tuple[str, int, int]]:
    rows = c.execute(
        "WITH spent AS (SELECT date(at, 'unixepoch', 'localtime') day, SUM(input + cache_read + cache_write + output) tokens"
        " FROM usage WHERE at >= :since GROUP BY 1),"
        " busy AS (SELECT date(began, 'unixepoch', 'localtime') day, COUNT(*) turns FROM turns WHERE began >= :since GROUP BY 1)"
        " SELECT busy.day, turns, COALESCE(tokens, 0) FROM busy LEFT JOIN spent ON spent.day = busy.day ORDER BY 1",
        {"since": since},
    )
    return [(day, turns, tokens) for day, turns, tokens in rows]


def _hours(c: sqlite3.Connection, since: float) -> list[int]:
    rows = c.execute(
        "SELECT CAST(strftime('%H', began, 'unixepoch', 'localtime') AS INTEGER), COUNT(*) FROM turns"
        " WHERE began >= ? GROUP BY 1",
        (since,),
    )
    found = dict(rows.fetchall())
    return [found.get(hour, 0) for hour in range(24)]


def _attempts(c: sqlite3.Connection, since: float) -> Attempts:
    found = c.execute(
        "SELECT CAST(json_extract(result, '$.attempts') AS INTEGER), COUNT(*) FROM turns WHERE began >= ?"
        " AND json_extract(result, '$.attempts') IS NOT NULL GROUP BY 1 ORDER BY 1",
        (since,),
    ).fetchall()
    if not found:
        return Attempts(0.0, 0, 0, 0)
    turns = sum(count for _, count in found)
    mean = sum(value * count for value, count in found) / turns
    return Attempts(mean, _quantile(found, turns, 0.5), _quantile(found, turns, 0.95), found[-1][0])


def _quantile(found: list[tuple[int, int]], turns: int, share: float) -> int:
    """From how often each value occurs, values ascending."""
    passed = 0
    for value, count in found:
        passed += count
        if passed >= turns * share:
            return value
    return found[-1][0]
