"""Pending items of suspended turns: questions, approvals, later results, and timers; and their answers.

Each entry has one answer, from any process. It counts while its turn is in the state that asked; a turn that
has moved, has ended, or was given up waits for nothing. Exports leave these entries out: only the home of a
turn can answer them."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.request import NotYet, Waits
from fsm_agent.sessions.store.database import Database, Job, SqlConnection
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.rows import json_with_checksum, loads
from fsm_agent.support.texts import one_line

WHAT = {
    "approval": "approval of {tool}", "question": "an answer", "result": "the result of {tool}",
    "timer": "its time",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pending:
    """One thing that a turn waits for. ``asked``: the full text shown to a person. ``choices``: the possible
    answers of an approval, or the suggested answers of a question. ``call`` and ``tool``: the call it belongs
    to. Times in seconds since the epoch: ``since``, ``due`` for a timer, ``answered``. ``digest`` of the
    subject: an answer is valid for nothing else."""

    id: str
    session: str
    turn: str
    seq: int
    call: str
    kind: Waits
    tool: str
    asked: str
    choices: tuple[str, ...]
    digest: str
    due: float | None
    since: float
    answer: Any = None
    answered: float | None = None
    answered_by: str = ""

    @property
    def said(self) -> str:
        """The answer in one line."""
        match self.answer:
            case {"granted": granted, "scope": scope, "pattern": pattern}:
                return ("yes" if granted else "no") + f" ({pattern or scope})"
            case str():
                return one_line(self.answer, 120)
        return one_line(json.dumps(self.answer, ensure_ascii=False), 120)

    @property
    def what(self) -> str:
        """The kind of wait, in a few words."""
        return WHAT[self.kind].format(tool=self.tool)

    def is_settled(self, now: float) -> bool:
        """Return whether this entry no longer blocks the turn: it was answered, or its time has come."""
        return self.answered is not None or (self.due is not None and self.due <= now)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"what": self.what}


_SELECT = (
    "SELECT p.id, t.session, p.turn, p.seq, p.call, p.kind, p.tool, p.asked, p.choices, p.digest, p.due,"
    " p.since, p.answer, p.answered, p.answered_by, p.choices_crc,"
    " p.answer_crc FROM pending p JOIN turns t ON t.id = p.turn"
)
_HERE = "t.ended IS NULL AND p.seq = t.seq"
"""The turn has not moved since the entry was written."""


def note_waits(turn_id: str, seq: int, later: NotYet, at: float) -> Job:
    """Return the job that writes a pending item of a turn after ``seq`` moves; repeated calls write it once.
    An earlier, different question about the same call is withdrawn."""
    key = f"{turn_id} {seq} {later.call} {later.kind} {later.digest}"
    item = "p-" + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:10]
    values = (
        item, turn_id, seq, later.call, later.kind, later.tool,
        later.asked.encode("utf-8", "replace").decode(), *json_with_checksum(list(later.choices)),
        later.digest, later.due, at,
    )  # fmt: skip

    def note(c: SqlConnection) -> None:
        c.execute(
            "DELETE FROM pending WHERE turn = ? AND seq = ? AND call = ? AND id != ? AND answered IS NULL",
            (turn_id, seq, later.call, item),
        )
        c.execute(
            "INSERT OR IGNORE INTO pending (id, turn, seq, call, kind, tool, asked, choices, choices_crc,"
            " digest, due, since) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )

    return note


class PendingItems:
    """All pending items of one home. ``database`` is called when first needed. Raises ``StoreError`` when it
    cannot be used."""

    def __init__(self, database: Callable[[], Database], now: Callable[[], float] = time.time) -> None:
        self._database, self._now = database, now

    def open(self) -> list[Pending]:
        """Return unanswered items, oldest first."""
        return self._select(f"WHERE {_HERE} AND p.answered IS NULL ORDER BY p.since, p.id")

    def of_turn(self, turn_id: str) -> list[Pending]:
        """Return the current items of a turn and its children, answered or not, oldest first."""
        below = (
            "WITH RECURSIVE down(id) AS (SELECT ? UNION SELECT c.id FROM turns c JOIN down ON c.parent ="
            " down.id WHERE c.forked_at IS NULL AND c.ended IS NULL) "
        )
        where = " AND p.turn IN (SELECT id FROM down) ORDER BY p.since, p.id"
        with self._database().reading() as c:
            return [_read(row) for row in c.execute(f"{below}{_SELECT} WHERE {_HERE}{where}", (turn_id,))]

    def of_call(self, turn_id: str, call: str) -> list[Pending]:
        """Return the current items of one call of a turn, answered or not."""
        return self._select(f"WHERE {_HERE} AND p.turn = ? AND p.call = ?", turn_id, call)

    def find(self, name: str) -> Pending:
        """Return the item with this id or unique beginning of an id, answered or not. Raises
        ``ConfigError``."""
        begins = "WHERE substr(p.id, 1, length(?)) = ? ORDER BY p.id"
        found = self._select(begins, name, name) if name else []
        if len(found) == 1 or (found and found[0].id == name):
            return found[0]
        there = ", ".join(one.id for one in found or self.open()) or "nothing waits for an answer"
        raise ConfigError("several begin so" if found else "nothing of this id waits", name, there)

    def ready(self, alive: Callable[[str | None], object]) -> list[str]:
        """Return the suspended turns whose answers or times have arrived and that no process runs; ``alive``
        returns whether the process of an owner lives. A child continues with its parent."""
        waits, roots = defaultdict[str, list[bool]](list), dict[str, str | None]()
        now = self._now()
        for one in self._select(f"WHERE {_HERE} ORDER BY p.since, p.id"):
            turn = one.turn
            while True:
                parent, forked_at, owner = self._database().select(
                    "SELECT t.parent, t.forked_at, t.owner FROM turns t WHERE t.id = ?", turn
                )[0]
                above = () if forked_at is not None else self._database().select(
                    "SELECT id FROM turns WHERE id = ? AND ended IS NULL", parent
                )  # fmt: skip
                if not above:
                    break
                turn = above[0][0]
            waits[turn].append(one.is_settled(now))
            roots[turn] = owner
        return [turn for turn, there in waits.items() if all(there) and not alive(roots[turn])]

    def answer(self, name: str, value: Any, by: str) -> Pending:
        """Store the answer, and return the entry. Raises ``ConfigError`` if it is answered already, even by
        another process at the same time, or if the turn no longer waits for it."""
        item = self.find(name)

        def write(c: SqlConnection) -> None:
            now = _read(c.execute(f"{_SELECT} WHERE p.id = ? /* FOR UPDATE */", (item.id,)).fetchone())
            if now.answered is not None:
                raise ConfigError(f"{item.id} was answered already", _answer_words(now))
            if c.execute(f"{_SELECT} WHERE p.id = ? AND {_HERE}", (item.id,)).fetchone() is None:
                raise ConfigError(f"{item.id} is no longer awaited: its turn has moved on, or has ended")
            _answer(c, item.id, value, by, self._now())

        self._database().write(write)
        return self.find(item.id)

    def settle(self, fence: Fence, call: str, kind: Waits, value: Any, by: str) -> Any:
        """Close the question about a call that was answered within its turn. Return the answer that counts:
        an earlier one, or this. Raises ``OwnershipLost``."""

        def write(c: SqlConnection) -> Any:
            fence.refuse(c)
            where = f"WHERE {_HERE} AND p.turn = ? AND p.call = ? AND p.kind = ? /* FOR UPDATE */"
            for one in map(_read, c.execute(f"{_SELECT} {where}", (fence.turn_id, call, kind)).fetchall()):
                if one.answered is not None:
                    return one.answer
                _answer(c, one.id, value, by, self._now())
            return value

        return self._database().write(write)

    def _select(self, where: str, *values: object) -> list[Pending]:
        return [_read(row) for row in self._database().select(f"{_SELECT} {where}", *values)]


def _answer(c: SqlConnection, item: str, value: Any, by: str, at: float) -> None:
    c.execute(
        "UPDATE pending SET answer = ?, answer_crc = ?, answered = ?, answered_by = ? WHERE id = ?",
        (*json_with_checksum({"answer": value}), at, by, item),
    )


def _read(row: tuple[Any, ...]) -> Pending:
    *values, choices, answer = row
    values[8] = tuple(loads(row[8], choices))
    values[12] = None if row[12] is None else loads(row[12], answer)["answer"]
    return Pending(*values)


def _answer_words(item: Pending) -> str:
    """Format the answer, its author, and its time."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item.answered))
    return f"{item.said}, by {item.answered_by} at {at}"
