"""Sessions and turns as people are shown them: in lists, and as records of what was said, moved and left in
doubt."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.fsm.journal import Step
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.pending import Pending, PendingItems
from fsm_agent.sessions.store.reports.spending import NOTHING, SUMS, UsageTotals
from fsm_agent.sessions.store.rows import loads, stored_rows
from fsm_agent.sessions.store.store import Store


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session. ``kind``: root, compression (it continues another one, ``parent``), fork, or child (of a
    delegating turn); ``successor`` continues it; ``source`` began it, such as cli, chat or python. Times in
    seconds since the epoch. ``turns`` counts all, also undone ones; ``last`` is the newest. ``unfinished``:
    the last turn was interrupted; ``running``: its process (pid, host, since); ``pending``: what it waits
    for, answered or not."""

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
    """An effect with an unknown outcome. ``status``: ``unknown``, or ``in_flight`` when its process has
    died or still runs it."""

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
    """One turn. ``steps`` are empty unless they were asked for; ``result`` is ``None`` until it has ended.
    ``agent``: the name of whose turn it is; ``children``: what its tools began, each with its own."""

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
        said = self.result or {}
        return f"{said['provider']}:{said['model']}" if "model" in said else ""

    @property
    def handed_to(self) -> str:
        """The agent that the turn handed the conversation over to; empty for none."""
        way = (self.result or {}).get("handoffs") if self.info.exit == "handed_over" else None
        return str(way[-1]["to"]) if way else ""

    @property
    def seconds(self) -> float:
        """Seconds from the turn's beginning to its end, or to its last move."""
        return (self.info.ended or self.info.moved) - self.info.began

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as JSON values."""
        told = asdict(self.info) | {"undone": self.undone, **self.spent.to_dict()}
        told["effects_in_doubt"] = [asdict(one) for one in self.doubts]
        told |= {"result": self.result, "agent": self.agent, "model": self.model, "handed_to": self.handed_to}
        told["moves"] = [asdict(step) for step in self.steps]
        told["children"] = [child.to_dict() for child in self.children]
        return told


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message. ``active`` is false when it was put aside."""

    number: int
    turn: str | None
    at: float
    active: bool
    body: dict[str, Any] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the message as JSON values: its body with what the store knows of it."""
        return {"number": self.number, "turn": self.turn, "at": self.at, "active": self.active, **self.body}


@dataclass(frozen=True, slots=True)
class Shown:
    """A session, or one turn of it: its ``turns``, oldest first, and its messages in ``rows``; ``aside``
    counts those that were put aside."""

    session: SessionInfo
    turns: tuple[TurnReport, ...]
    rows: tuple[ShownMessage, ...]
    aside: int

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
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
    """Return the sessions that were used last, newest first; with ``everything`` also those of sub-agents,
    and those that went on as another one by compaction; with ``source`` only those that it began. Raises
    ``ConfigError`` for one that began none."""
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
    """Return one session, which must be there."""
    return _info(store, store.database.select(f"{_SELECT} WHERE id = ?", session_id)[0])


def turn_usage(store: Store, turn_id: str) -> UsageTotals:
    """Return what one turn cost."""
    return UsageTotals.of(store.database.select(f"SELECT {SUMS} FROM usage u WHERE u.turn = ?", turn_id)[0])  # noqa: S608


def session_usage(store: Store, session_id: str) -> UsageTotals:
    """Return what the turns of a session cost so far; nothing for one that has none."""
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
    """Return a session as it is now; with ``everything`` also the messages that were put aside, in the
    order in which they were written."""
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
    """Return one turn with its moves and its own messages. Raises ``ConfigError`` for one that is not
    there."""
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
        " WHERE turn = ?1 AND status != 'done' AND kind IN ('RunTool', 'AskApproval', 'CallModel')"
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
    """Without what a visit wrote that was run again."""
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
    """Show a damaged message as it is stored, so that the others can be read."""
    try:
        return dict(loads(body, crc))
    except StoreError:
        return {"role": role, "content": f"(this message is damaged) {body}"}
