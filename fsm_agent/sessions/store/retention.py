"""Retention of old conversations: found, counted, exported to a file, and removed.

Linked sessions are removed together or not at all: a session, its successors, its sub-agents and its forks,
because a fork begins with the moves of its parent."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.kept_values import OF_SESSIONS, OF_TURNS
from fsm_agent.sessions.store.rows import forget_unused
from fsm_agent.sessions.store.search.indexes import full_text

DAY = 86_400.0
MOST_DAYS = 100_000
_IN = "IN (SELECT value FROM json_each(?))"
_OF_TURNS = (
    "given", "transitions", "effects", "usage", "unreported", "outbox", "controls", "pending",
)  # fmt: skip
_OF_SESSIONS = ("messages", "transcripts", "session_grants", "delegations", "queued")


@dataclass(frozen=True, slots=True)
class Old:
    """``groups`` of linked sessions that were not used for the given time, most recently used session first
    in each; ``turns`` and ``messages``: their number in all groups. ``unfinished``: the number of groups of
    the same age that stay, because one of their turns is running or can be resumed."""

    groups: tuple[tuple[str, ...], ...]
    turns: int
    messages: int
    unfinished: int

    @property
    def sessions(self) -> tuple[str, ...]:
        """The ids of the sessions in all groups."""
        return tuple(one for group in self.groups for one in group)


def old(store: Store, days: float, keep: int = 0) -> Old:
    """Return the conversations not used for ``days``, except the ``keep`` most recently used ones. Raises
    ``ConfigError`` for numbers that are negative or too large."""
    if not 0 <= days < MOST_DAYS:
        raise ConfigError("--older-than is out of range", days, f"0 or more, less than {MOST_DAYS:,}")
    if keep < 0:
        raise ConfigError("--keep is out of range", keep, "0 or more")
    with store.database.reading() as c:
        return _old(c, store.now() - days * DAY, keep)


def _old(c: SqlConnection, before: float, keep: int) -> Old:
    open_turns = (
        "SELECT session FROM turns WHERE ended IS NULL UNION SELECT session FROM queued WHERE begun IS NULL"
    )
    busy = {one for (one,) in c.execute(f"{open_turns} AND withdrawn IS NULL")}
    touched: dict[str, float] = {}
    for session, last, holder in c.execute("SELECT id, touched, holder FROM sessions"):
        touched[session] = last
        if holder is not None:
            busy.add(session)
    groups = sorted(_groups(c, touched), key=lambda group: -touched[group[0]])
    aged = [group for group in groups[keep:] if touched[group[0]] < before]
    found = tuple(group for group in aged if busy.isdisjoint(group))
    ids = json.dumps([one for group in found for one in group])
    turns, messages = (
        c.execute(f"SELECT COUNT(*) FROM {table} WHERE session {_IN}", (ids,)).fetchone()[0]  # noqa: S608 - ours
        for table in ("turns", "messages")
    )
    return Old(found, turns, messages, len(aged) - len(found))


def _groups(c: SqlConnection, touched: dict[str, float]) -> Iterator[tuple[str, ...]]:
    beside = defaultdict[str, set[str]](set)
    for one, other in c.execute(
        "SELECT id, parent FROM sessions WHERE parent IS NOT NULL"
        " UNION SELECT id, successor FROM sessions WHERE successor IS NOT NULL"
        " UNION SELECT t.session, p.session FROM turns t JOIN turns p ON p.id = t.parent"
        " UNION SELECT d.session, t.session FROM delegations d JOIN turns t ON t.id = d.turn"
    ):
        beside[one].add(other)
        beside[other].add(one)
    left = set(touched)
    while left:
        group, waiting = set[str](), [left.pop()]
        while waiting:
            one = waiting.pop()
            group.add(one)
            waiting += (beside[one] & set(touched)) - group
        left -= group
        yield tuple(sorted(group, key=lambda one: -touched[one]))


def remove(store: Store, chosen: Iterable[str], days: float, keep: int = 0) -> Old:
    """Delete those of the ``chosen`` sessions that are still old enough, in one transaction, and return them.
    Sessions used meanwhile are kept."""
    before, wanted = store.now() - days * DAY, frozenset(chosen)

    def write(c: SqlConnection) -> Old:
        now = _old(c, before, keep)
        going = tuple(group for group in now.groups if wanted.issuperset(group))
        ids = [one for group in going for one in group]
        messages, turns = _delete(store.database, c, ids)
        return Old(going, turns, messages, now.unfinished)

    # in its own transaction: it deletes many rows and rebuilds the index
    removed: Old = store.database.submit(write, alone=True).result()
    return removed


def _delete(database: Database, c: SqlConnection, ids: Collection[str]) -> tuple[int, int]:
    """Delete the sessions; return the number of (messages, turns) deleted."""
    sessions = json.dumps(list(ids))
    begun_or_not = f"SELECT id FROM turns WHERE session {_IN} UNION SELECT id FROM queued WHERE session {_IN}"  # noqa: S608 - ours
    turns = json.dumps([turn for (turn,) in c.execute(begun_or_not, (sessions, sessions))])
    c.execute("PRAGMA defer_foreign_keys = ON")
    deleted: dict[str, int] = {}
    of_sessions = [(table, "session", sessions) for table in _OF_SESSIONS]
    whole: list[tuple[str, str, Any]] = [("turns", "id", turns), ("sessions", "id", sessions)]
    for table, key, chosen in [*((table, "turn", turns) for table in _OF_TURNS), *of_sessions, *whole]:
        done = c.execute(f"DELETE FROM {table} WHERE {key} {_IN}", (chosen,))  # noqa: S608 - ours
        deleted[table] = done.rowcount
    for ending, chosen in ((OF_SESSIONS, sessions), (OF_TURNS, turns)):
        c.execute(f"DELETE FROM kept_values WHERE extension LIKE ? AND key {_IN}", (f"%{ending}", chosen))  # noqa: S608 - ours
    if ids:
        forget_unused(c)
        full_text(database).forget_message(c)
    return deleted["messages"], deleted["turns"]


def vacuum(store: Store) -> tuple[int, int]:
    """Give free space back to the disk; return the bytes before and after. Raises ``StoreError``."""
    return store.database.rebuild()
