"""A session or a turn as one record: what was said, how it moved, and what nobody knows the end of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fsm_agent.errors import StoreError
from fsm_agent.fsm.journal import Step
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.reports.listing import SessionInfo, session_info, spent_by
from fsm_agent.sessions.store.reports.usage_totals import Spent
from fsm_agent.sessions.store.rows import stored
from fsm_agent.sessions.store.sealed import loads
from fsm_agent.sessions.store.store import Store


@dataclass(frozen=True, slots=True)
class Doubt:
    """An effect whose end nobody knows. ``status``: ``unknown``, or ``in_flight`` when its process is gone or still at it."""

    seq: int
    state: str
    kind: str
    name: str
    safety: Literal["pure", "idempotent", "unsafe", ""]
    status: str
    arguments: dict[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class Record:
    """One turn. ``steps`` are empty unless they were asked for; ``result`` is ``None`` until it has ended."""

    info: TurnInfo
    spent: Spent
    undone: float | None
    doubts: tuple[Doubt, ...]
    result: dict[str, Any] | None
    steps: tuple[Step, ...] = ()

    @property
    def seconds(self) -> float:
        return (self.info.ended or self.info.moved) - self.info.began

    def to_dict(self) -> dict[str, Any]:
        told = asdict(self.info) | {"undone": self.undone, **self.spent.to_dict()}
        told["effects_in_doubt"] = [asdict(one) for one in self.doubts]
        told["result"] = self.result
        told["moves"] = [asdict(step) for step in self.steps]
        return told


@dataclass(frozen=True, slots=True)
class Row:
    """One message. ``active`` is false when it was put aside."""

    number: int
    turn: str | None
    at: float
    active: bool
    body: dict[str, Any] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        return {"number": self.number, "turn": self.turn, "at": self.at, "active": self.active, **self.body}


@dataclass(frozen=True, slots=True)
class Shown:
    """``session`` with its ``turns``, oldest first, and the ``rows`` of its transcript; ``aside`` counts those that were put
    aside."""

    session: SessionInfo
    turns: tuple[Record, ...]
    rows: tuple[Row, ...]
    aside: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "session": self.session.to_dict(),
            "turns": [one.to_dict() for one in self.turns],
            "messages": [row.to_dict() for row in self.rows],
            "put_aside": self.aside,
        }


def session_record(store: Store, session_id: str, *, moves: bool = False, everything: bool = False) -> Shown:
    """A session as it is now; ``everything`` with the rows that were put aside, in the order in which they were written."""
    turns = Turns(store.database)
    records = [_record(store, info, moves) for info in reversed(turns.recent(1_000_000, session_id))]
    with store.database.reading() as c:
        version = c.execute("SELECT version FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]
        order = {number: place for place, (number, _) in enumerate(stored(c, session_id, version))}
    rows = _rows(store, "session = ?", session_id)
    current = sorted((row for row in rows if row.number in order), key=lambda row: order[row.number])
    return Shown(
        session_info(store, session_id), tuple(records), tuple(rows if everything else current), len(rows) - len(current)
    )


def turn_record(store: Store, turn_id: str) -> Shown:
    """One turn with its moves and its own rows. Raises ``ConfigError`` for one that is not there."""
    info = Turns(store.database).info(turn_id)
    rows = _rows(store, "turn = ?", turn_id)
    return Shown(
        session_info(store, info.session), (_record(store, info, True),), tuple(rows), sum(not row.active for row in rows)
    )


def _record(store: Store, info: TurnInfo, moves: bool) -> Record:
    turns = Turns(store.database)
    with store.database.reading() as c:
        undone = c.execute("SELECT undone FROM turns WHERE id = ?", (info.id,)).fetchone()[0]
    steps = tuple(turns.steps(info.id)) if moves else ()
    spent = spent_by(store, info.id)
    return Record(info, spent, undone, _doubts(store, info.id), turns.result(info.id), steps)


def _doubts(store: Store, turn_id: str) -> tuple[Doubt, ...]:
    with store.database.reading() as c:
        rows = c.execute(
            "SELECT seq, state, kind, name, class, status, request, at FROM effects WHERE turn = ? AND status != 'done'"
            " AND kind IN ('RunTool', 'AskApproval', 'CallModel') ORDER BY seq, ordinal, place",
            (turn_id,),
        ).fetchall()
    return tuple(
        Doubt(seq, state, kind, name, safety, status, loads(request).get("arguments", {}), at)
        for seq, state, kind, name, safety, status, request, at in rows
    )


def _rows(store: Store, where: str, value: str) -> list[Row]:
    """Without what a visit wrote that was run again."""
    with store.database.reading() as c:
        rows = c.execute(
            f"SELECT number, turn, at, active, role, body FROM messages WHERE {where}"  # noqa: S608
            " AND NOT (active = 0 AND version < 0) ORDER BY id",
            (value,),
        ).fetchall()
    return [Row(number, turn, at, bool(active), _shown(role, body)) for number, turn, at, active, role, body in rows]


def _shown(role: str, body: str) -> dict[str, Any]:
    """A damaged message is shown as it stands there, and does not keep the others from being read."""
    try:
        said: dict[str, Any] = loads(body)
    except StoreError:
        return {"role": role, "content": f"(this message is damaged) {body.strip()}"}
    return said
