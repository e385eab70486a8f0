"""Statistics of the turns of the last days: what they did, the time they took, and their cost (USE-04). The
database computes all of it.

A turn counts on the day it began; tokens count when they were reported. A forked turn counts with its own
moves only."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.reports import AT_WORK, SUMS, WAITED, UsageTotals

DAY = 86_400
"""Seconds."""
TOP = 5
"""Number of sessions listed."""


@dataclass(frozen=True, slots=True)
class Overview:
    """``turns`` = completed + failed + partial + interrupted + unfinished. ``seconds``: the sum of all turns'
    durations, from beginning to end; ``undone`` turns were undone by their users, but count; ``turns``
    includes ``forks`` and ``children`` (delegated turns).

    Of ``seconds``, turns spent ``work`` in their states, waited ``people`` seconds for answers, in a state or
    suspended, and ``later`` seconds for results and timers. The rest is ``idle``: paused between moves, or no
    process ran the turn. A pause within a state counts as work."""

    sessions: int
    turns: int
    completed: int
    failed: int
    partial: int
    interrupted: int
    unfinished: int
    undone: int
    forks: int
    children: int
    moves: int
    seconds: float
    work: float
    people: float
    later: float

    @property
    def idle(self) -> float:
        """Seconds in which turns neither worked nor waited for anything."""
        return max(0.0, self.seconds - self.work - self.people - self.later)


@dataclass(frozen=True, slots=True)
class Exit:
    """The number of turns that ended for one exit reason."""

    exit: str
    outcome: str
    turns: int


@dataclass(frozen=True, slots=True)
class State:
    """``seconds`` of work in a state over all visits, and in the ``longest`` one; ``people``: additional
    seconds of waiting for people's answers."""

    state: str
    visits: int
    seconds: float
    longest: float
    people: float


@dataclass(frozen=True, slots=True)
class RecoveryCount:
    """How often a row of the table was taken, and by how many turns."""

    row: str
    source: str
    event: str
    dest: str
    taken: int
    turns: int


@dataclass(frozen=True, slots=True)
class RowCost:
    """The usage of requests made in visits that ended with this row of the table: replies that were cut off,
    for instance, or those that called tools."""

    row: str
    spent: UsageTotals


@dataclass(frozen=True, slots=True)
class Day:
    """Turns that began on one day, local time: ``turns``, those ``completed`` and ``failed`` among them, and
    the sum of their ``seconds`` from beginning to end. ``requests``, ``tokens`` and ``cost`` (US dollars,
    ``None``: unknown) count when they were reported."""

    date: str
    turns: int
    completed: int
    failed: int
    requests: int
    tokens: int
    cost: float | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Compactions:
    """Compactions of ended turns. ``without_model``: the summary used no model. Tokens are estimates."""

    count: int
    forced: int
    without_model: int
    tokens_before: int
    tokens_after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Model:
    """Usage of one model for one purpose (``turn``, ``summary`` …)."""

    provider: str
    model: str
    purpose: str
    spent: UsageTotals


@dataclass(frozen=True, slots=True)
class ToolUse:
    """``unknown``: calls with an unknown effect. ``seconds``: the mean duration of a call, ``None`` if none
    has ended."""

    name: str
    calls: int
    failed: int
    unknown: int
    open: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class SessionUse:
    """Usage of one session in this period."""

    id: str
    title: str
    turns: int
    spent: UsageTotals


@dataclass(frozen=True, slots=True)
class SourceUse:
    """``source``: what started the sessions of these turns, such as cli, chat, python or child."""

    source: str
    sessions: int
    turns: int
    spent: UsageTotals


@dataclass(frozen=True, slots=True)
class Attempts:
    """Model requests per turn. All 0 when no turn has ended."""

    mean: float
    median: int
    p95: int
    most: int


@dataclass(frozen=True, slots=True)
class Insights:
    """``since`` and ``until`` in seconds since the epoch. ``days``: those on which turns began; ``hours``:
    the number of turns that began in each of the 24 local hours."""

    since: float
    until: float
    overview: Overview
    exits: list[Exit]
    states: list[State]
    recoveries: list[RecoveryCount]
    compactions: Compactions
    total: UsageTotals
    models: list[Model]
    rows: list[RowCost]
    tools: list[ToolUse]
    sources: list[SourceUse]
    sessions: list[SessionUse]
    days: list[Day]
    hours: list[int]
    attempts: Attempts

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, with usage merged into the other fields."""
        data = asdict(self) | {"total": self.total.to_dict()}
        data["overview"]["idle"] = self.overview.idle
        for name in ("models", "rows", "sessions", "sources"):
            for one, fields in zip(getattr(self, name), data[name], strict=True):
                del fields["spent"]
                fields |= one.spent.to_dict()
        return data


def rows_by_turn(store: Store, days: float, digest: str, most: int) -> dict[str, list[str]]:
    """Return the rows taken by the newest ended turns that began in the last ``days`` and ran the table with
    this ``digest``, by turn, oldest first. Forks are left out."""
    query = """
        SELECT x.turn, x.row FROM transitions x JOIN (
            SELECT id, began FROM turns
            WHERE began >= ? AND digest = ? AND ended IS NOT NULL AND forked_at IS NULL
            ORDER BY began DESC, id LIMIT ?) t ON t.id = x.turn
        ORDER BY t.began, x.turn, x.seq"""
    found: dict[str, list[str]] = defaultdict(list)
    for turn, row in store.database.select(query, store.now() - days * DAY, digest, most):
        found[turn].append(row)
    return dict(found)


def insights(store: Store, days: float, recoveries: Collection[str] = ()) -> Insights:
    """Compute the statistics of the last ``days``. ``recoveries``: ids of the table's recovery rows."""
    until = store.now()
    since = until - days * DAY
    with store.database.reading() as c:

        def ask(sql: str) -> list[Any]:
            return c.execute(sql, {"since": since, "top": TOP}).fetchall()

        c.execute("BEGIN")  # one snapshot, whatever running turns write meanwhile
        try:
            moves, by_quarter = ask(_MOVES), ask(_TURNS_BY_QUARTER)
            *counts, seconds = ask(_OVERVIEW)[0]
            work, waited = ask(_WORK)[0]
            answers, later = ask(_SUSPENDED)[0]
            overview = [*counts, sum(row[4] for row in moves), seconds, work, waited + answers, later]
            return Insights(
                since, until, Overview(*overview), [Exit(*row) for row in ask(_EXITS)], _states(moves),
                [RecoveryCount(*row[:6]) for row in moves if row[0] in recoveries],
                Compactions(*ask(_COMPACTIONS)[0]),
                UsageTotals.of(ask(_TOTAL)[0]),
                [Model(provider, model, use, UsageTotals.of(sums))
                 for provider, model, use, *sums in ask(_MODELS)],
                [RowCost(row, UsageTotals.of(sums)) for row, *sums in ask(_ROWS)],
                [ToolUse(*row) for row in ask(_TOOLS)],
                [SourceUse(source, sessions, turns, UsageTotals.of(sums))
                 for source, sessions, turns, *sums in ask(_SOURCES)],
                [SessionUse(session, title, turns, UsageTotals.of(sums))
                 for session, title, turns, *sums in ask(_SESSIONS)],
                _days(by_quarter, ask(_TOKENS_BY_QUARTER)), _hours(by_quarter), _attempts(ask(_ATTEMPTS)),
            )  # fmt: skip
        finally:
            c.execute("COMMIT")


_OVERVIEW = """
    SELECT COUNT(DISTINCT session), COUNT(*), COUNT(*) FILTER (WHERE outcome = 'completed'),
        COUNT(*) FILTER (WHERE outcome = 'failed'), COUNT(*) FILTER (WHERE outcome = 'partial'),
        COUNT(*) FILTER (WHERE outcome = 'interrupted'), COUNT(*) FILTER (WHERE ended IS NULL), COUNT(undone),
        COUNT(forked_at), COUNT(*) FILTER (WHERE parent IS NOT NULL AND forked_at IS NULL),
        TOTAL(ended - began)
    FROM turns WHERE began >= :since"""
_EXITS = """
    SELECT exit, COALESCE(outcome, ''), COUNT(*) FROM turns WHERE began >= :since AND ended IS NOT NULL
    GROUP BY 1, 2 ORDER BY 3 DESC, 1"""
_MOVES = f"""
    SELECT m.row, m.source, m.event, m.dest, COUNT(*), COUNT(DISTINCT m.turn),
        SUM(m.work), MAX(m.work), SUM(m.waited)
    FROM (SELECT x.row, x.source, x.event, x.dest, x.turn, {AT_WORK} work, {WAITED} waited
        FROM turns t CROSS JOIN transitions x ON x.turn = t.id WHERE t.began >= :since) m
    GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 1, 2, 3, 4"""  # noqa: S608 - ours, like all of these
_WORK = f"""
    SELECT TOTAL({AT_WORK}), TOTAL({WAITED}) FROM turns t CROSS JOIN transitions x ON x.turn = t.id
    WHERE t.began >= :since AND t.ended IS NOT NULL"""  # noqa: S608
# the questions of one move are asked together, and waited for together
_SUSPENDED = """
    SELECT TOTAL(CASE WHEN people = 1 THEN seconds END), TOTAL(CASE WHEN people = 0 THEN seconds END) FROM (
        SELECT CASE WHEN p.kind IN ('approval', 'question') THEN 1 ELSE 0 END people,
            MAX(COALESCE(p.answered, p.due)) - MIN(p.since) seconds
        FROM turns t CROSS JOIN pending p ON p.turn = t.id WHERE t.began >= :since AND t.ended IS NOT NULL
        GROUP BY p.turn, p.seq, 1) w"""
_COMPACTIONS = """
    SELECT COUNT(*), COUNT(*) FILTER (WHERE json_extract(value, '$.trigger') = 'overflow'),
        COUNT(*) FILTER (WHERE CAST(json_extract(value, '$.fallback_used') AS TEXT) IN ('1', 'true')),
        COALESCE(SUM(CAST(json_extract(value, '$.tokens_before') AS INTEGER)), 0),
        COALESCE(SUM(CAST(json_extract(value, '$.tokens_after') AS INTEGER)), 0),
        TOTAL(CAST(json_extract(value, '$.seconds') AS REAL))
    FROM turns t, json_each(t.result, '$.compressions') WHERE t.began >= :since AND t.result IS NOT NULL"""
_TOTAL = f"SELECT {SUMS} FROM usage u WHERE u.at >= :since"  # noqa: S608
_MODELS = f"""
    SELECT u.provider, u.model, u.purpose, {SUMS} FROM usage u WHERE u.at >= :since
    GROUP BY 1, 2, 3 ORDER BY SUM(u.input + u.output) DESC"""  # noqa: S608
_ROWS = f"""
    SELECT m.row, {SUMS} FROM usage u JOIN transitions m ON m.turn = u.turn AND m.seq =
        (SELECT MIN(x.seq) FROM transitions x WHERE x.turn = u.turn AND x.at >= u.at)
    WHERE u.at >= :since GROUP BY 1 ORDER BY COALESCE(SUM(u.cost), 0) DESC, 2 DESC, 1"""  # noqa: S608
# a bad end with a known effect is a failure: errors, and calls that were not run or were canceled
_TOOLS = """
    SELECT e.name, COUNT(*),
    COUNT(*) FILTER (WHERE e.status = 'done' AND json_extract(e.reply, '$.status') != 'ok'),
        COUNT(*) FILTER (WHERE e.status = 'unknown'), COUNT(*) FILTER (WHERE e.status = 'in_flight'),
        AVG(e.seconds)
    FROM turns t CROSS JOIN effects e ON e.turn = t.id
    WHERE t.began >= :since AND e.kind = 'RunTool' AND e.origin = '' GROUP BY 1 ORDER BY 2 DESC, 1"""
_SOURCES = f"""
    SELECT s.source, COUNT(DISTINCT s.id), COUNT(DISTINCT t.id), {SUMS}
    FROM turns t JOIN sessions s ON s.id = t.session LEFT JOIN usage u ON u.turn = t.id
    WHERE t.began >= :since
    GROUP BY 1 ORDER BY 3 DESC, 1"""  # noqa: S608
_SESSIONS = f"""
    SELECT s.id, s.title, COUNT(DISTINCT t.id), {SUMS}
    FROM turns t JOIN sessions s ON s.id = t.session LEFT JOIN usage u ON u.turn = t.id
    WHERE t.began >= :since
    GROUP BY s.id ORDER BY COALESCE(SUM(u.input + u.cache_read + u.cache_write + u.output), 0) DESC, 3 DESC
    LIMIT :top"""  # noqa: S608
_TURNS_BY_QUARTER = """
    SELECT CAST(began / 900 AS INTEGER), COUNT(*), COUNT(*) FILTER (WHERE outcome = 'completed'),
        COUNT(*) FILTER (WHERE outcome = 'failed'), TOTAL(ended - began)
    FROM turns WHERE began >= :since GROUP BY 1"""
_TOKENS_BY_QUARTER = """
    SELECT CAST(at / 900 AS INTEGER), COUNT(*), SUM(input + cache_read + cache_write + output), SUM(cost)
    FROM usage WHERE at >= :since GROUP BY 1"""
QUARTER = 900
"""Seconds of a quarter of an hour, which lies within one day and hour in every time zone."""
_ATTEMPTS = """
    SELECT CAST(json_extract(result, '$.attempts') AS INTEGER) FROM turns
    WHERE began >= :since AND json_extract(result, '$.attempts') IS NOT NULL ORDER BY 1"""


def _days(turns: list[Any], usage: list[Any]) -> list[Day]:
    """Return each day on which turns began."""
    days: dict[str, Day] = {}
    for quarter, *numbers in turns:
        one = days.get(date := _date(quarter), Day(date, 0, 0, 0, 0, 0, None))
        began, completed, failed, seconds = numbers
        days[date] = replace(
            one,
            turns=one.turns + began,
            completed=one.completed + completed,
            failed=one.failed + failed,
            seconds=one.seconds + seconds,
        )
    for quarter, requests, tokens, cost in usage:
        if (known := days.get(date := _date(quarter))) is not None:
            paid = known.cost if cost is None else (known.cost or 0.0) + cost
            days[date] = replace(
                known, requests=known.requests + requests, tokens=known.tokens + tokens, cost=paid
            )
    return [days[date] for date in sorted(days)]


def _date(quarter: int) -> str:
    return datetime.fromtimestamp(quarter * QUARTER).date().isoformat()


def _hours(turns: list[Any]) -> list[int]:
    """Return the number of turns that began in each local hour of the day."""
    hours = [0] * 24
    for quarter, count, *_ in turns:
        hours[datetime.fromtimestamp(quarter * QUARTER).hour] += count
    return hours


def _states(moves: list[Any]) -> list[State]:
    found: dict[str, State] = {}
    for _, source, _, _, taken, _, seconds, longest, waited in moves:
        one = found.get(source, State(source, 0, 0.0, 0.0, 0.0))
        all_, most = one.seconds + seconds, max(one.longest, longest)
        found[source] = State(source, one.visits + taken, all_, most, one.people + waited)
    return sorted(found.values(), key=lambda one: -one.seconds)


def _attempts(rows: list[tuple[int]]) -> Attempts:
    """Compute the median and p95 by nearest rank; ``rows`` has one number per turn, ascending."""
    if not rows:
        return Attempts(0.0, 0, 0, 0)
    each = [attempts for (attempts,) in rows]
    median, p95 = (each[math.ceil(len(each) * share) - 1] for share in (0.5, 0.95))
    return Attempts(sum(each) / len(each), median, p95, each[-1])
