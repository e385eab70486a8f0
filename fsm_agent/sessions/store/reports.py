"""Reports on sessions and turns for people: their usage, and lists and records of messages, moves and
doubtful effects."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.fsm.journal import Step
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.pending import Pending, PendingItems
from fsm_agent.sessions.store.rows import (
    conversation,
    conversation_begin,
    loads,
    stored_rows,
    turn_line,
    turn_tree,
)
from fsm_agent.settings import LimitScope

# ----------------------------------------------------------------------------------------------------
# Usage of model requests, by turn, tree, conversation and day: what providers reported (``usage``), and
# estimates for the rest (``unreported``).
#
# Usage before a turn begins is summed up once; after that only new rows are read. They are read in the
# writer's order, so that nothing that this process submitted before is missed. Where other machines write at
# the same time, numbers become visible out of order, and everything is summed up each time.


class Expense(NamedTuple):
    """US dollars and tokens."""

    usd: float = 0.0
    tokens: int = 0

    def plus(self, other: Expense) -> Expense:
        """Return the sum of both."""
        return Expense(self.usd + other.usd, self.tokens + other.tokens)


NOTHING_SPENT = Expense()


class Family(NamedTuple):
    """The place of a turn: the root of its tree, and the first session of its conversation."""

    root: str
    conversation: str


NO_FAMILY = Family("", "")


@dataclass(slots=True)
class Spending:
    """The stored usage in the ``scopes`` of one turn. Outside of a turn, when a person asks for a compaction,
    ``turn`` is empty, and the scopes are those of its session."""

    store: Store
    turn: str
    session: str
    scopes: Collection[LimitScope]
    family: Family = NO_FAMILY
    _before: dict[LimitScope, Expense] = field(default_factory=dict)
    _newest: tuple[int, int] | None = None
    _midnight: float = 0.0
    _families: dict[str, Family] = field(default_factory=dict)

    async def now(self) -> dict[LimitScope, Expense]:
        """Return the usage by scope. Raises ``StoreError``."""
        today = midnight(self.store.now())
        if self.store.database.shared:
            await self.store.write(lambda c: None)
            self._newest = None
        if self._newest is None or today != self._midnight:
            self._begin(today)
        spent: dict[LimitScope, Expense] = await self.store.write(self._read)
        return spent

    def _begin(self, today: float) -> None:
        with self.store.database.reading() as c:
            if self._newest is None:
                tables = ("usage", "unreported")
                last = [c.execute(f"SELECT COALESCE(MAX(id), 0) FROM {one}").fetchone()[0] for one in tables]  # noqa: S608
                self._newest, self.family = (last[0], last[1]), self._family(c, self.turn, self.session)
            self._midnight = today
            self._before = {scope: self._sum_before(c, scope) for scope in self.scopes}

    def _family(self, c: SqlConnection, turn: str, session: str | None = None) -> Family:
        if turn not in self._families:
            row = c.execute("SELECT session FROM turns WHERE id = ?", (turn,)).fetchone()
            there = row[0] if row else session or ""
            self._families[turn] = Family(turn_line(c, turn)[-1], conversation_begin(c, there))
        return self._families[turn]

    def _sum_before(self, c: SqlConnection, scope: LimitScope) -> Expense:
        """Return the usage before this turn began."""
        assert self._newest is not None, "it is asked for when that is known"
        listed, value = _IN.format(":value"), ""
        match scope:
            case "turn":
                where, value = "turn = :value", self.turn
            case "tree":
                where, value = f"turn {listed}", _list(turn_tree(c, self.family.root))
            case "session":
                where = f"turn IN (SELECT id FROM turns WHERE session {listed})"  # noqa: S608 - ours
                value = _list(conversation(c, self.family.conversation))
            case "day":
                where = "at >= :day"
        listed_rows = _ROWS.format(where=where, sign="<=")
        rows = c.execute(
            f"SELECT TOTAL(usd), COALESCE(SUM(tokens), 0) FROM ({listed_rows}) spent",  # noqa: S608
            {
                "value": value,
                "day": self._midnight,
                "usage": self._newest[0],
                "unreported": self._newest[1],
            },
        )
        return Expense(*rows.fetchone())

    def _read(self, c: SqlConnection) -> dict[LimitScope, Expense]:
        assert self._newest is not None, "it is known since the turn began"
        since = c.execute(
            _SINCE, {"usage": self._newest[0], "unreported": self._newest[1], "day": self._midnight}
        )
        spent = dict(self._before)
        for turn, today, *more in since.fetchall():
            family = self._family(c, turn)
            counts: dict[LimitScope, bool] = {
                "turn": turn == self.turn,
                "tree": family.root == self.family.root,
                "session": family.conversation == self.family.conversation,
                "day": bool(today),
            }
            for scope in self.scopes:
                if counts[scope]:
                    spent[scope] = spent[scope].plus(Expense(*more))
        return spent

    def seconds(self, scopes: Collection[LimitScope]) -> dict[LimitScope, float]:
        """Return the working time of turns before this process took this one up: of the ``turn`` itself, of
        the root of its ``tree``, whose time includes its children, and, if requested, of all other roots of
        session and day. Waiting for people does not count, nor does the work of a process after the last move
        that it wrote."""
        if self._newest is None:
            self._begin(midnight(self.store.now()))
        with self.store.database.reading() as c:
            of: dict[LimitScope, list[str]] = {"turn": [self.turn], "tree": [self.family.root]}
            if "session" in scopes:
                sessions = _list(conversation(c, self.family.conversation))
                of["session"] = self._other_roots(c, f"session {_IN.format('?')}", sessions)
            if "day" in scopes:
                of["day"] = self._other_roots(c, "began >= ?", self._midnight)
            return {scope: _at_work(c, turns) for scope, turns in of.items()}

    def _other_roots(self, c: SqlConnection, where: str, value: object) -> list[str]:
        roots = f"SELECT id FROM turns WHERE {where} AND (parent IS NULL OR forked_at IS NOT NULL)"  # noqa: S608 - ours
        return [turn for (turn,) in c.execute(roots, (value,)) if turn != self.family.root]


_IN = "IN (SELECT value FROM json_each({}))"
_TOKENS = "input + cache_read + cache_write + output"
_ROWS = (  # constants only
    f"SELECT turn, at, cost usd, {_TOKENS} tokens FROM usage WHERE id {{sign}} :usage AND {{where}} UNION ALL"  # noqa: S608
    " SELECT turn, at, cost, tokens FROM unreported WHERE id {sign} :unreported AND {where}"
)
_SINCE = (
    "SELECT turn, at >= :day, TOTAL(usd), COALESCE(SUM(tokens), 0) FROM"  # noqa: S608 - ours
    f" ({_ROWS.format(where='1 = 1', sign='>')}) spent GROUP BY 1, 2"
)


WAITED = """COALESCE((SELECT SUM(e.seconds) FROM effects e WHERE e.turn = x.turn AND e.seq = x.seq - 1
        AND (e.kind = 'AskApproval' OR (e.kind = 'RunTool' AND e.name = 'clarify'))), 0)"""
"""The seconds that a visit, which ended with the move ``x``, waited for people's answers."""
AT_WORK = f"MAX(0, x.seconds - {WAITED})"
_AT_WORK = f"SELECT TOTAL({AT_WORK}) FROM transitions x WHERE x.turn {_IN.format('?')}"  # noqa: S608 - ours
"""The seconds of all visits, without waits for a person."""


def midnight(now: float) -> float:
    """Return the start of ``now``'s local day; both in seconds since the epoch."""
    return datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def _at_work(c: SqlConnection, turns: Sequence[str]) -> float:
    row = c.execute(_AT_WORK, (_list(turns),)).fetchone()
    return float(row[0])


def _list(values: Sequence[str]) -> str:
    return json.dumps(list(values))


# ----------------------------------------------------------------------------------------------------
# Tokens and cost summed over requests. Unknown values never count as zero.


CostStatus = Literal["none", "estimated", "at_least", "included", "unknown"]
SUMS = (
    "COUNT(u.id), COALESCE(SUM(u.input), 0), COALESCE(SUM(u.output), 0), COALESCE(SUM(u.cache_read), 0),"
    " COALESCE(SUM(u.cache_write), 0), COALESCE(SUM(u.reasoning), 0), SUM(u.cost),"
    " COUNT(*) FILTER (WHERE u.cost_status = 'unknown'), COUNT(*) FILTER (WHERE u.cost_status = 'included')"
)
"""Columns for ``UsageTotals.of``, over rows of ``usage u``."""


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """``requests`` that reported their tokens, in disjoint buckets (reasoning is a part of output). ``cost``
    in US dollars, ``None`` when no cost is known. ``cost_status``: ``at_least`` when the price of some
    requests is unknown, ``included`` when nothing is billed per token, ``none`` without requests."""

    requests: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: float | None = None
    cost_status: CostStatus = "none"

    @classmethod
    def of(cls, row: Sequence[Any]) -> UsageTotals:
        """Build totals from a row with the columns of ``SUMS``."""
        *counts, cost, unknown, included = row
        requests = counts[0]
        status: CostStatus = "estimated"
        if not requests:
            status = "none"
        elif unknown:
            status = "at_least" if cost else "unknown"
        elif included == requests:
            status = "included"
        values: list[Any] = [*counts, cost if status in ("estimated", "at_least") else None, status]
        return cls(*values)

    @property
    def prompt(self) -> int:
        """Tokens of all prompts, cached or not."""
        return self.input + self.cache_read + self.cache_write

    @property
    def tokens(self) -> int:
        """Tokens of prompts and replies together."""
        return self.prompt + self.output

    @property
    def cache_hit(self) -> float | None:
        """Share of the prompt that was read from a provider's cache, 0 to 1."""
        return self.cache_read / self.prompt if self.prompt else None

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        return {
            "requests": self.requests, "input": self.input, "output": self.output,
            "cache_read": self.cache_read, "cache_write": self.cache_write, "reasoning": self.reasoning,
            "prompt": self.prompt, "tokens": self.tokens, "cache_hit": self.cache_hit, "cost_usd": self.cost,
            "cost_status": self.cost_status,
        }  # fmt: skip


NOTHING = UsageTotals()


# ----------------------------------------------------------------------------------------------------
# Lists and records.


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session. ``kind``: root, compression (it continues ``parent``), fork, or child (of a delegating
    turn); ``successor`` continues it; ``source`` started it, such as cli, chat or python. Times in seconds
    since the epoch. ``turns`` counts all turns, including undone ones; ``last`` is the newest.
    ``unfinished``: the last turn was interrupted; ``running``: its process (pid, host, since); ``pending``:
    its pending items, answered or not."""

    id: str
    title: str
    kind: str
    parent: str | None
    successor: str | None
    source: str
    model: str
    created: float
    touched: float
    turns: int
    last: TurnInfo | None
    spent: UsageTotals = NOTHING
    unfinished: bool = False
    running: dict[str, Any] | None = None
    pending: tuple[Pending, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the session as JSON values."""
        last = self.last
        return {
            "id": self.id, "title": self.title, "kind": self.kind, "parent": self.parent,
            "successor": self.successor, "source": self.source, "model": self.model, "created": self.created,
            "touched": self.touched, "turns": self.turns, "last_turn": last and last.id,
            "last_exit": last and last.exit, "last_outcome": last and last.outcome,
            "asked": last and last.asked, "unfinished": self.unfinished, "running": self.running,
            "pending": [one.to_dict() for one in self.pending],
            **_prefix_keys(self.spent),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Doubt:
    """An effect with an unknown outcome. ``status``: ``unknown``, or ``in_flight`` when its process has died
    or still runs it."""

    seq: int
    state: str
    kind: str
    name: str
    safety: Literal["pure", "idempotent", "unsafe", ""]
    status: str
    arguments: dict[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class TurnReport:
    """One turn. ``steps`` are empty unless requested; ``result`` is ``None`` until the turn has ended.
    ``agent``: the name of its agent; ``children``: the turns that its tools began, each with its own
    children."""

    info: TurnInfo
    spent: UsageTotals
    undone: float | None
    doubts: tuple[Doubt, ...]
    result: dict[str, Any] | None
    steps: tuple[Step, ...] = ()
    agent: str = ""
    children: tuple[TurnReport, ...] = ()

    @property
    def model(self) -> str:
        """The model that answered, with its provider; empty until the turn has ended."""
        result = self.result or {}
        return f"{result['provider']}:{result['model']}" if "model" in result else ""

    @property
    def handed_to(self) -> str:
        """The agent that received the conversation from this turn; empty without a handoff."""
        way = (self.result or {}).get("handoffs") if self.info.exit == "handed_over" else None
        return str(way[-1]["to"]) if way else ""

    @property
    def seconds(self) -> float:
        """Seconds from the turn's beginning to its end, or to its last move."""
        return (self.info.ended or self.info.moved) - self.info.began

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as JSON values."""
        data = asdict(self.info) | {"undone": self.undone, **self.spent.to_dict()}
        data["effects_in_doubt"] = [asdict(one) for one in self.doubts]
        data |= {"result": self.result, "agent": self.agent, "model": self.model, "handed_to": self.handed_to}
        data["moves"] = [asdict(step) for step in self.steps]
        data["children"] = [child.to_dict() for child in self.children]
        return data


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message. ``active`` is false if it was set aside."""

    number: int
    turn: str | None
    at: float
    active: bool
    body: dict[str, Any] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the message as JSON values: its body, and the fields of the store."""
        return {"number": self.number, "turn": self.turn, "at": self.at, "active": self.active, **self.body}


@dataclass(frozen=True, slots=True)
class Shown:
    """A session, or one turn of it: its ``turns``, oldest first, and its messages in ``rows``; ``aside``
    counts those that were set aside."""

    session: SessionInfo
    turns: tuple[TurnReport, ...]
    rows: tuple[ShownMessage, ...]
    aside: int

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "session": self.session.to_dict(),
            "turns": [one.to_dict() for one in self.turns],
            "messages": [row.to_dict() for row in self.rows],
            "put_aside": self.aside,
        }


_SELECT = (
    "SELECT id, title, kind, parent, successor, source, model, created, touched,"
    " (SELECT COUNT(*) FROM turns t WHERE t.session = s.id) FROM sessions s"
)


def sessions(
    store: Store, limit: int = 20, everything: bool = False, source: str | None = None
) -> list[SessionInfo]:
    """Return the most recently used sessions, newest first; with ``everything`` also those of sub-agents, and
    those that continue as another session after a compaction; with ``source`` only those that it started.
    Raises ``ConfigError`` for a source that started none."""
    where = "" if everything or source == "child" else "AND kind != 'child' AND successor IS NULL"
    query = store.database.select
    there = [
        name for (name,) in query("SELECT DISTINCT source FROM sessions WHERE source != '' ORDER BY source")
    ]
    if source is not None and source not in there:
        raise ConfigError(
            "no session was begun so", source, ", ".join(there) or "nothing yet: there are no sessions"
        )
    order = f"{where} ORDER BY touched DESC, rowid DESC LIMIT ?"
    return [
        _info(store, row)
        for row in query(f"{_SELECT} WHERE (? IS NULL OR source = ?) {order}", source, source, limit)
    ]


def session_info(store: Store, session_id: str) -> SessionInfo:
    """Return one session, which must exist."""
    return _info(store, store.database.select(f"{_SELECT} WHERE id = ?", session_id)[0])


def turn_usage(store: Store, turn_id: str) -> UsageTotals:
    """Return the usage of one turn."""
    return UsageTotals.of(store.database.select(f"SELECT {SUMS} FROM usage u WHERE u.turn = ?", turn_id)[0])  # noqa: S608


def session_usage(store: Store, session_id: str) -> UsageTotals:
    """Return the usage of a session's turns so far."""
    sums = f"SELECT {SUMS} FROM turns t JOIN usage u ON u.turn = t.id WHERE t.session = ?"  # noqa: S608 - ours
    return UsageTotals.of(store.database.select(sums, session_id)[0])


def _info(store: Store, row: tuple[Any, ...]) -> SessionInfo:
    last = next(iter(Turns(store.database).recent(1, row[0])), None)
    unfinished = last is not None and last.ended is None
    running = store.owners.alive(last.owner) if last is not None and unfinished else None
    waits = PendingItems(lambda: store.database).of_turn(last.id) if last is not None and unfinished else ()
    values: list[Any] = [*row, last, session_usage(store, row[0]), unfinished and running is None, running]
    return replace(SessionInfo(*values), pending=tuple(waits))


def _prefix_keys(spent: UsageTotals) -> dict[str, Any]:
    tokens = spent.tokens if spent.requests else None
    return {"tokens": tokens, "cost_usd": spent.cost, "cost_status": spent.cost_status}


def session_record(store: Store, session_id: str, *, moves: bool = False, everything: bool = False) -> Shown:
    """Return a session in its current state; with ``everything`` also the messages that were set aside, in
    the order of writing."""
    records = [
        _record(store, info, moves) for info in reversed(Turns(store.database).recent(1_000_000, session_id))
    ]
    with store.database.reading() as c:
        version = c.execute("SELECT version FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]
        order = {number: place for place, (number, *_) in enumerate(stored_rows(c, session_id, version))}
    rows = _rows(store, "session = ?", session_id)
    current = sorted((row for row in rows if row.number in order), key=lambda row: order[row.number])
    shown = tuple(rows if everything else current)
    return Shown(session_info(store, session_id), tuple(records), shown, len(rows) - len(current))


def turn_record(store: Store, turn_id: str) -> Shown:
    """Return one turn with its moves and its own messages. Raises ``ConfigError`` for an unknown turn."""
    info = Turns(store.database).info(turn_id)
    rows = tuple(_rows(store, "turn = ?", turn_id))
    record = _record(store, info, True)
    return Shown(session_info(store, info.session), (record,), rows, sum(not row.active for row in rows))


def _record(store: Store, info: TurnInfo, moves: bool) -> TurnReport:
    turns = Turns(store.database)
    [(undone,)] = store.database.select("SELECT undone FROM turns WHERE id = ?", info.id)
    steps = tuple(turns.steps(info.id)) if moves else ()
    return TurnReport(
        info,
        turn_usage(store, info.id),
        undone,
        _doubts(store, info.id),
        turns.result(info.id),
        steps,
        turns.agent(info.id),
        tuple(_record(store, turns.info(child), False) for child in turns.children(info.id)),
    )


def _doubts(store: Store, turn_id: str) -> tuple[Doubt, ...]:
    rows = store.database.select(
        "SELECT seq, state, kind, name, class, status, at, request, request_crc FROM effects"
        " WHERE turn = ? AND status != 'done' AND kind IN ('RunTool', 'AskApproval', 'CallModel')"
        " AND COALESCE(json_extract(request, '$.call_id'), '') NOT IN"
        " (SELECT call FROM pending WHERE turn = ?)"
        " ORDER BY seq, ordinal, place",
        turn_id,
        turn_id,
    )
    return tuple(
        Doubt(seq, state, kind, name, safety, status, loads(*request).get("arguments", {}), at)
        for seq, state, kind, name, safety, status, at, *request in rows
    )


def _rows(store: Store, where: str, value: str) -> list[ShownMessage]:
    """Return messages, except those of a visit that was run again."""
    rows = store.database.select(
        f"SELECT number, turn, at, active, role, body, body_crc FROM messages WHERE {where}"  # noqa: S608 - ours
        " AND NOT (active = 0 AND version < 0) ORDER BY id",
        value,
    )
    return [
        ShownMessage(number, turn, at, bool(active), _format_message(role, *body))
        for number, turn, at, active, role, *body in rows
    ]


def _format_message(role: str, body: str, crc: int | None) -> dict[str, Any]:
    """Decode a message; show a damaged one as it is stored, so that the others can be read."""
    try:
        return dict(loads(body, crc))
    except StoreError:
        return {"role": role, "content": f"(this message is damaged) {body}"}
