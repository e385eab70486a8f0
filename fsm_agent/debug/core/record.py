"""What a turn did, from the journal: moves by ranges, the snapshot at any move, what each visit asked for.
All plain values.

A position ``n`` is "after n moves"; the visit at position ``n`` is what the state did that the turn was in
then, so that move ``n + 1`` ends it. A forked turn has the moves of the turn it comes from before its own.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from fsm_agent.conversation.messages import NO_USAGE, Usage
from fsm_agent.debug.core.breakpoints import TurnCost
from fsm_agent.debug.core.commands import step_dict
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.journal import Step, apply_deltas
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.rows import delta_of, inline, transcript
from fsm_agent.settings import Settings

# ----------------------------------------------------------------------------------------------------
# What a turn had taken by a move: requests, tokens and money, from the fields that are stored of it.


def cost_in(snapshot: Mapping[str, Any], settings: Settings) -> TurnCost:
    """Of a snapshot of a turn that talks to a model; nothing of any other. ``settings``: with the prices that
    a person gave."""
    usages = {
        tuple(json.loads(model)): Usage(**tokens) for model, tokens in snapshot.get("usages", {}).items()
    }
    if "usages" not in snapshot:
        return TurnCost()
    return _cost_of(snapshot.get("attempts", 0), usages, settings)


def cost_of_turn(turn: Any) -> TurnCost:
    """Of a turn that runs here."""
    accounting = getattr(turn, "accounting", None)
    if accounting is None:
        return TurnCost()
    return _cost_of(turn.count("attempts"), dict(accounting.usages), turn.settings)


def price_of(record: Record) -> Callable[[Usage], float | None]:
    """Return what tokens of the turn cost, in US dollars; ``None`` when a price is not known, or when the
    turn asked several models."""
    models = [tuple(json.loads(model)) for model in record.snapshot(record.count).get("usages", {})]
    return _price_of(models, record.settings)


def price_by(turn: Any) -> Callable[[Usage], float | None]:
    """The same of a turn that runs here."""
    accounting = getattr(turn, "accounting", None)
    return _price_of([] if accounting is None else list(accounting.usages), getattr(turn, "settings", None))


def _price_of(models: Sequence[Any], settings: Any) -> Callable[[Usage], float | None]:
    return lambda usage: _cost_of(1, {models[0]: usage}, settings).cost if len(models) == 1 else None


def _cost_of(requests: int, usages: Mapping[tuple[str, str], Usage], settings: Settings) -> TurnCost:
    from fsm_agent.providers.catalog import total_cost  # the list of prices takes its time to load

    tokens = sum(usages.values(), NO_USAGE).total
    if not usages:
        return TurnCost(requests)
    cost = total_cost(usages, settings.cache.ttl, settings.prices)
    return TurnCost(requests, tokens, 0.0 if cost.status == "included" else cost.usd)


EVERY = 256
"""Moves between two cached snapshots. It bounds the number of deltas applied to reach a position."""
KEPT = 64
"""Snapshots that are kept at most."""
WINDOW = 1_000
"""Moves or messages that are given at once at most."""
FINAL_WORDS = (
    "error",
    "failure_class",
    "turn_exit_reason",
    "final_response",
    "attempts",
    "total_tokens",
    "model",
    "provider",
)


@dataclass(frozen=True, slots=True)
class ForkPart:
    """Moves ``first`` to ``last`` of a line of forks are rows of ``turn``; ``last`` is open for the
    newest."""

    turn: str
    first: int
    last: int | None


class Record:
    """One turn's. Raises ``ConfigError`` for a turn, or a position in it, that is not there."""

    def __init__(self, store: Store, turn_id: str) -> None:
        self.turn_id = turn_id
        self._store, self._turns = store, Turns(store.database)
        self.parts = self._line(self._turns.info(turn_id))
        self._lock = threading.Lock()
        self._snapshots: dict[int, dict[str, Any]] = {}
        self._path: list[str] = []
        self._settings: Settings | None = None

    @property
    def info(self) -> TurnInfo:
        """Return what is known of the turn."""
        return self._turns.info(self.turn_id)

    def reading(self) -> AbstractContextManager[SqlConnection]:
        """Return a look into the store that the record is in."""
        return self._store.database.reading()

    @property
    def count(self) -> int:
        """Moves made so far."""
        return self.info.seq

    def overview(self) -> dict[str, Any]:
        """The turn as lists and the head of a page show it, with its result when it has ended."""
        info = asdict(self.info)
        result = self._turns.result(self.turn_id)
        info["result"] = None if result is None else {name: result.get(name) for name in FINAL_WORDS}
        return info

    def steps(self, first: int = 1, last: int | None = None) -> list[Step]:
        """The moves ``first`` to ``last``, both included."""
        return self._turns.steps(self.turn_id, first, last)

    def moves(self, first: int, last: int) -> list[dict[str, Any]]:
        """The moves ``first`` to ``last`` as JSON with their times; at most ``WINDOW``."""
        first, last = max(1, first), min(last, first + WINDOW - 1)
        steps, found = self.steps(first, last), dict[int, float]()
        with self.reading() as c:
            for part in self.within(first, last):
                found |= c.execute(
                    "SELECT seq, at FROM transitions WHERE turn = ? AND seq BETWEEN ? AND ?",
                    (part.turn, part.first, part.last if part.last is not None else last),
                ).fetchall()
        return [step_dict(step, found.get(step.seq)) for step in steps]

    def path(self) -> Sequence[str]:
        """The state at every position, from 0 on. Read once, and then only what is new."""
        with self._lock:
            if not self._path:
                self._path = [self._snapshot_of(0)["state"]]
            known = len(self._path) - 1
            with self.reading() as c:
                for part in self.within(known + 1, None):
                    rows = c.execute(
                        "SELECT dest FROM transitions WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq <= ?)"
                        " ORDER BY seq",
                        (part.turn, part.first, part.last, part.last),
                    )
                    self._path += [dest for (dest,) in rows]
            return self._path

    def count_rows(self) -> list[tuple[str, str, str, int, float]]:
        """(source, dest, row, how often it was taken, seconds spent in the source before) of every row that
        was taken so far."""
        summed: dict[tuple[str, str, str], tuple[int, float]] = {}
        with self.reading() as c:
            for part in self.parts:
                rows = c.execute(
                    "SELECT source, dest, row, COUNT(*), SUM(seconds) FROM transitions WHERE turn = ? AND"
                    " seq >= ? AND (? IS NULL OR seq <= ?) GROUP BY source, dest, row",
                    (part.turn, part.first, part.last, part.last),
                )
                for *key, count, took in rows:
                    before = summed.get((*key,), (0, 0.0))
                    summed[*key,] = (before[0] + count, before[1] + took)
        return [(*key, *both) for key, both in summed.items()]

    def lanes(self, first: int, last: int, buckets: int, states: Sequence[str]) -> list[int]:
        """The positions ``first`` to ``last`` in at most ``buckets`` equal parts: the ``states`` of each
        part, as bits."""
        path = self.path()
        first, last = max(0, first), min(last, len(path) - 1)
        if last < first:
            return []
        bit = {state: 1 << number for number, state in enumerate(states)}
        size = last - first + 1
        masks = [0] * min(size, max(1, buckets))
        for offset, state in enumerate(path[first : last + 1]):
            masks[offset * len(masks) // size] |= bit.get(state, 0)
        return masks

    def snapshot(self, at: int) -> dict[str, Any]:
        """Every stored field and counter of the turn at a position."""
        count = self.count
        if not 0 <= at <= count:
            raise ConfigError(f"turn {self.turn_id} has no position of that number", at, f"0 to {count}")
        with self._lock:
            found = dict(self._snapshot_of(at))
        return {**found.pop("counts", {}), **found}

    def counters(self, at: int, names: Sequence[str]) -> dict[str, int]:
        """The counters at a position."""
        snapshot = self.snapshot(at)
        return {name: snapshot.get(name, 0) for name in names}

    @property
    def settings(self) -> Settings:
        """Return the settings of the turn, with the prices that a person gave."""
        if self._settings is None:
            with self.reading() as c:
                settings = "SELECT settings, settings_crc FROM turns WHERE id = ?"
                self._settings = Settings.of(
                    dict(inline(c, *c.execute(settings, (self.turn_id,)).fetchone()))
                )
        return self._settings

    def cost_at(self, at: int) -> TurnCost:
        """What the turn had taken by a position; children have their own."""
        return cost_in(self.snapshot(at), self.settings)

    def changes_at(self, at: int) -> list[dict[str, Any]]:
        """Fields that the visit before a position and the move to it changed: {field, before, after}."""
        if at == 0:
            return []
        before, after = self.snapshot(at - 1), self.snapshot(at)
        names = [name for name in after if name not in ("seq", "state") and after[name] != before.get(name)]
        return [{"field": name, "before": before.get(name), "after": after[name]} for name in names]

    def visit(self, at: int) -> list[dict[str, Any]]:
        """What the state at a position asked for, with the replies and the seconds they took. In the first
        visit of a fork also the answers that were there already: ``status`` is ``by hand`` or ``taken over``
        for those."""
        found = [asdict(effect) for effect in self._turns.effects(self.turn_id, at)]
        return [{**one, "status": one["origin"] or one["status"]} for one in found]

    def message_count(self, at: int) -> int:
        """Return the length of the transcript at a position."""
        return int(self._history(at)[2])

    def messages(self, at: int, first: int = 0, last: int | None = None) -> list[dict[str, Any]]:
        """The transcript at a position, rows ``first`` to ``last`` counted from 0; at most ``WINDOW`` of
        them."""
        session, version, length, _ = self._history(at)
        with self.reading() as c:
            rows = transcript(c, session, version, length)
        last = len(rows) - 1 if last is None else last
        return [json.loads(body) for _, body in rows[max(0, first) : min(last, first + WINDOW - 1) + 1]]

    def _history(self, at: int) -> list[Any]:
        """Which transcript, and how much of it. The last state makes no move any more, but may have written
        the answer."""
        info = self.info
        whole = info.ended is not None and at == info.seq
        found: list[Any] = (self._turns.snapshot(self.turn_id) if whole else self.snapshot(at))["history"]
        return found

    def before_read(self, at: int, index: int) -> int:
        """Return the first position whose transcript has message ``index`` of the transcript at ``at``: the
        model reads the message after it."""
        session, version, _, _ = self._history(at)

        def has(position: int) -> bool:
            known, its, length, _ = self.snapshot(position)["history"]
            return (known, its) == (session, version) and int(length) > index

        low, high = 0, at
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if has(middle) else (middle + 1, high)
        return low

    def find(self, text: str, after: int = 0, limit: int = 50) -> list[int]:
        """Numbers of moves after ``after`` in which ``text`` occurs: in the row, event, states, exit, or in a
        request or reply of the visit that the move ended; what the last state of an ended turn asked for is
        seen at its last move."""
        like, found = f"%{_escape_path(dumps(text)[1:-1])}%", set[int]()
        with self.reading() as c:
            for part in self.within(after + 1, None):
                span = (part.turn, part.first, part.last, part.last, like)
                found |= {seq for (seq,) in c.execute(_FIND_MOVES, (*span, *[like] * 3, limit))}
                spans = (part.turn, part.first - 1, part.last, part.last, like, like, limit)
                found |= {seq + 1 for (seq,) in c.execute(_FIND_EFFECTS, spans)}
        last = self.count if self.info.ended is not None else max(found, default=0)
        return sorted({min(seq, last) for seq in found})[:limit]

    def within(self, first: int, last: int | None) -> list[ForkPart]:
        """The parts that hold the moves ``first`` to ``last``, cut to them."""
        cut = []
        for part in self.parts:
            begin = max(part.first, first)
            end = part.last if last is None else last if part.last is None else min(part.last, last)
            if end is None or begin <= end:
                cut.append(ForkPart(part.turn, begin, end))
        return cut

    def _line(self, info: TurnInfo) -> list[ForkPart]:
        if info.parent is None or info.forked_at is None:
            return [ForkPart(info.id, 1, None)]
        before = [
            ForkPart(
                part.turn, part.first, info.forked_at if part.last is None else min(part.last, info.forked_at)
            )
            for part in self._line(self._turns.info(info.parent))
            if part.first <= info.forked_at
        ]
        return [*before, ForkPart(info.id, info.forked_at + 1, None)]

    def _snapshot_of(self, at: int) -> dict[str, Any]:
        """From the nearest snapshot before that is kept. The caller holds the lock."""
        if at in self._snapshots:
            return self._snapshots[at]
        base = at - at % EVERY
        if base and base != at:
            self._snapshot_of(base)
        start = max((n for n in self._snapshots if n <= at), default=None)
        if start is None or self._own_start(at) > start:
            snapshot: dict[str, Any] = self._turns.snapshot(self.turn_id, at)
        else:
            snapshot = self._patch_between(start, at)
        if len(self._snapshots) >= KEPT:
            self._snapshots.pop(next(iter(self._snapshots)))
        self._snapshots[at] = snapshot
        return snapshot

    def _own_start(self, at: int) -> int:
        """Where the turn of the line that has this position begins: a fork's start is a snapshot of its own,
        with its edits."""
        return max((part.first - 1 for part in self.parts if part.first - 1 <= at), default=0)

    def _patch_between(self, start: int, at: int) -> dict[str, Any]:
        deltas: list[Mapping[str, Any]] = []
        with self.reading() as c:
            for part in self.within(start + 1, at):
                rows = c.execute(
                    "SELECT delta, delta_crc FROM transitions WHERE turn = ? AND seq BETWEEN ? AND ?"
                    " ORDER BY seq",
                    (part.turn, part.first, part.last),
                )
                deltas += [delta_of(c, *delta) for delta in rows.fetchall()]
        return apply_deltas(self._snapshots[start], deltas) | {"seq": at}


_SPAN = "WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq <= ?)"
_FIND_MOVES = (
    f"SELECT seq FROM transitions {_SPAN} AND (row LIKE ? ESCAPE '\\' OR source LIKE ? ESCAPE '\\'"  # noqa: S608
    " OR dest LIKE ? ESCAPE '\\' OR exit LIKE ? ESCAPE '\\') ORDER BY seq LIMIT ?"
)
_FIND_EFFECTS = (
    f"SELECT seq FROM effects {_SPAN} AND kind <> 'OpenTurn'"  # noqa: S608
    " AND (request LIKE ? ESCAPE '\\' OR reply LIKE ? ESCAPE '\\') ORDER BY seq LIMIT ?"
)


def _escape_path(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


# ----------------------------------------------------------------------------------------------------
# Where a text occurs in what a turn did: moves, requests and replies, with the words around it.


AROUND = 60
"""Characters before and after a text that are shown with it."""
MOST = 200
"""Hits that one search gives at most."""


@dataclass(frozen=True, slots=True)
class Hit:
    """``at``: the position at which it is seen. ``where``: ``move``, ``request`` or ``reply``. ``kind``: of
    the request, with the name of its tool; of a move its row. ``text``: the words around it."""

    at: int
    where: str
    kind: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def search(record: Record, text: str, limit: int = MOST) -> list[Hit]:
    """The first ``limit`` hits in order. What the last state asked for is seen at the last move, because
    there is no other after it."""
    count, found = record.count, list[Hit]()
    for at in record.find(text, limit=limit):
        found += [hit for hit in _hits(record, at, text) if hit.at <= count]
        if at == count and record.info.ended is not None:
            found += list(_search_visit(record, count, count, text))
    return list(dict.fromkeys(found))[:limit]


def _hits(record: Record, at: int, text: str) -> Iterator[Hit]:
    for move in record.moves(at, at):
        words = " ".join(str(move[name] or "") for name in ("source", "event", "dest", "row", "exit"))
        if text.lower() in words.lower():
            yield Hit(at, "move", move["row"], around(words, text))
    yield from _search_visit(record, at - 1, at, text)


def _search_visit(record: Record, visit: int, at: int, text: str) -> Iterator[Hit]:
    for one in record.visit(visit):
        if one["kind"] == "OpenTurn":
            continue
        kind = f"{one['kind']} {one['name']}".strip()
        for where in ("request", "reply"):
            for found in strings(one[where]):
                if text.lower() in found.lower():
                    yield Hit(at, where, kind, around(found, text))
                    break


def strings(value: Any) -> Iterator[str]:
    """Every text and number in a JSON value, as text."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield str(name)
            yield from strings(part)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from strings(part)
    elif value is not None:
        yield str(value)


def around(said: str, text: str) -> str:
    """The words around the first place of ``text``, in one line."""
    place = said.lower().find(text.lower())
    first, last = max(0, place - AROUND), place + len(text) + AROUND
    cut = re.sub(r"\s+", " ", said[first:last]).strip()
    return ("…" if first else "") + cut + ("…" if last < len(said) else "")
