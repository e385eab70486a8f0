"""Analysis of a recorded turn: where time went, which rows were possible, how two runs differ."""

# The page asks the turn's own machinery. The guards in the table decide which row other budgets would have
# taken; nothing is computed a second time. Conditions on data are evaluated on the requests and replies in
# the journal, only if a condition names them. A request to the model may be edited before it leaves, a tool
# call may not: approval covered what was shown. The program parses Markdown into a tree, and the page creates
# elements from a closed list. A click counts by its time, measured from the second frame in which the button
# was in place.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any, Literal, get_args

from fsm_agent.conversation.effects import KINDS as REQUEST_KINDS
from fsm_agent.conversation.messages import NO_USAGE, Usage
from fsm_agent.debug.core.record import Record, price_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table
from fsm_agent.sessions.store.rows import loads

# ----------------------------------------------------------------------------------------------------
# A turn on a time axis: its state at every moment, and what it waited for: a person, the model, a tool, or a
# deadline. The axis sums the time spent in states, so a night without a running process takes no space.


Waited = Literal["people", "model", "tools", "pauses"]
WAITS: tuple[Waited, ...] = get_args(Waited)
KINDS: dict[str, Waited] = {
    "AskApproval": "people",
    "CallModel": "model",
    "RunTool": "tools",
    "Wait": "pauses",
}
"""What a request of this kind waits for; all other time is the engine's own."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The state of a turn after ``at`` moves, and its duration in seconds. ``waits`` follows the order of
    ``WAITS``; its sum never exceeds the duration."""

    at: int
    state: str
    seconds: float
    waits: tuple[float, ...]


def stays(record: Record) -> Iterator[Stay]:
    """Yield every visit of a turn that a move ended, in order."""
    waited = _wait_seconds(record)
    states = record.path()
    for at, seconds in enumerate(_seconds(record)):
        left, shares = seconds, []
        for wait in WAITS:
            share = min(left, waited.get((at, wait), 0.0))
            left -= share
            shares.append(share)
        yield Stay(at, states[at], seconds, tuple(shares))


def columns(record: Record, buckets: int, states: Sequence[str]) -> dict[str, Any]:
    """Divide the turn into at most ``buckets`` equal spans of time: ``positions`` where they begin, ``masks``
    of their states as bits, ``waits``: seconds of waiting in each by kind, ``seconds`` of the whole, and
    ``sums`` of waiting by kind. A visit shows its waits in the order of ``WAITS``."""
    found = list(stays(record))
    total = sum(one.seconds for one in found)
    count = max(1, min(buckets, 4000))
    span = total / count or 1.0
    bit = {state: 1 << number for number, state in enumerate(states)}
    masks, positions = [0] * count, [-1] * count
    waits = [[0.0] * len(WAITS) for _ in range(count)]
    now = 0.0
    for one in found:
        first, last = _spans(now, one.seconds, span, count)
        for column in range(first, last + 1):
            masks[column] |= bit.get(one.state, 0)
            if positions[column] < 0:
                positions[column] = one.at
        begin = now
        for number, seconds in enumerate(one.waits):
            _spread(waits, number, begin, seconds, span)
            begin += seconds
        now += one.seconds
    for column in range(1, count):
        positions[column] = max(positions[column], positions[column - 1])
    sums = {wait: sum(one.waits[number] for one in found) for number, wait in enumerate(WAITS)}
    return {
        "seconds": total, "masks": masks, "positions": positions, "waits": waits,
        "sums": {**sums, "engine": total - sum(sums.values())},
    }  # fmt: skip


def waits_of(record: Record, at: int) -> dict[str, float]:
    """Return the seconds that the visit at a position waited, by kind."""
    found: dict[str, float] = {}
    for one in record.visit(at):
        if one["kind"] in KINDS:
            kind = KINDS[one["kind"]]
            found[kind] = found.get(kind, 0.0) + (one["seconds"] or 0.0)
    return found


def _spans(now: float, seconds: float, span: float, count: int) -> tuple[int, int]:
    first = min(count - 1, int(now / span))
    return first, max(first, min(count - 1, int((now + seconds) / span - 1e-9)))


def _spread(waits: list[list[float]], number: int, begin: float, seconds: float, span: float) -> None:
    if seconds <= 0:
        return
    first, last = _spans(begin, seconds, span, len(waits))
    for column in range(first, last + 1):
        inside = min(begin + seconds, (column + 1) * span) - max(begin, column * span)
        waits[column][number] += max(0.0, inside)


def _seconds(record: Record) -> Iterator[float]:
    with record.reading() as c:
        for part in record.within(1, None):
            rows = c.execute(
                "SELECT seconds FROM transitions WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq <= ?)"
                " ORDER BY seq",
                (part.turn, part.first, part.last, part.last),
            ).fetchall()
            yield from (seconds for (seconds,) in rows)


def _wait_seconds(record: Record) -> dict[tuple[int, Waited], float]:
    """Return seconds by (position, kind of wait). Concurrent requests add up."""
    found: dict[tuple[int, Waited], float] = {}
    kinds = ", ".join("?" * len(KINDS))
    sql = f"SELECT seq, kind, SUM(seconds) FROM effects {_SPAN} AND kind IN ({kinds}) GROUP BY seq, kind"  # noqa: S608
    with record.reading() as c:
        for part in record.within(1, None):
            span = (part.turn, part.first - 1, part.last, part.last)
            for seq, kind, seconds in c.execute(sql, (*span, *KINDS)):
                key = (seq, KINDS[kind])
                found[key] = found.get(key, 0.0) + (seconds or 0.0)
    return found


_SPAN = "WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq < ?)"


# ----------------------------------------------------------------------------------------------------
# The alternatives at a move: the rows of its state, how much of each budget remains, and the budgets that
# would take another row. The table's own guards decide; nothing runs.


MOST = 64
"""Maximum number of ways to open a guard that are examined."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Counters and limits, as guards read them. An unknown limit is 0, that of a flag 1."""

    counters: Mapping[str, int]
    limits: Mapping[str, int]

    def count(self, counter: str) -> int:
        """Return the value of a counter, 0 if it is unknown."""
        return self.counters.get(counter, 0)

    def limit(self, name: str) -> int:
        """Return the value of a limit, 0 if it is unknown."""
        return self.limits.get(name, 0)

    def with_values(self, counters: Mapping[str, int], limits: Mapping[str, int]) -> Budgets:
        """Return a copy with these values replaced."""
        return Budgets({**self.counters, **counters}, {**self.limits, **limits})


@dataclass(frozen=True, slots=True)
class Left:
    """A budget that a row's guard reads: ``count`` of ``limit`` are spent."""

    counter: str
    limit: str
    count: int
    most: int


@dataclass(frozen=True, slots=True)
class Change:
    """Limits and flags that would open a guard."""

    limits: Mapping[str, int]
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RowChoice:
    """One row. ``taken``: these budgets take it. ``opens``: the smallest change of budgets that would take
    it, ``None`` if it is taken or no such change exists."""

    row: str
    rung: str
    dest: str
    exit: str | None
    guard: str
    taken: bool
    left: tuple[Left, ...]
    opens: Change | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def choices(table: Table, state: str, event: str, budgets: Budgets) -> list[RowChoice]:
    """Return the rows for an event of a state, in order. Raises ``ConfigError`` if it has no such event."""
    rows = table.by_event.get((state, event))
    if rows is None:
        raise ConfigError(f"{state} has no line for such an event", event, ", ".join(table.events(state)))
    flags = frozenset(counter.name for counter in table.counters if counter.flag)
    known = budgets.with_values({}, {flag: budgets.limits.get(flag, 1) for flag in flags})
    return [_choice(row, known, flags) for row in rows]


def _choice(row: Row, budgets: Budgets, flags: frozenset[str]) -> RowChoice:
    taken = row.guard.holds(budgets)
    atoms = dict.fromkeys(row.guard.atoms())
    left = tuple(
        Left(one.counter, one.limit, budgets.count(one.counter), budgets.limit(one.limit)) for one in atoms
    )
    opens = None if taken else _smallest_change(row.guard, budgets, flags)
    return RowChoice(row.id, row.rung, row.dest, row.exit, row.guard.label, taken, left, opens)


def _smallest_change(guard: Guard, budgets: Budgets, flags: frozenset[str]) -> Change | None:
    """Return the smallest change that opens the guard."""
    found = [
        change
        for _, atoms in zip(range(MOST), _ways(guard), strict=False)
        if (change := _change(atoms, budgets, flags)) is not None
        and guard.holds(budgets.with_values(change.counters, change.limits))
    ]
    return min(found, key=lambda one: len(one.limits) + len(one.counters), default=None)


def _ways(guard: Guard) -> Iterator[tuple[Below | Spent, ...]]:
    """Yield each set of comparisons that is sufficient to open the guard."""
    match guard:
        case Below() | Spent():
            yield (guard,)
        case AllOf(parts=()):
            yield ()
        case AllOf(parts=(first, *rest)):
            for one in _ways(first):
                yield from ((*one, *others) for others in _ways(AllOf(tuple(rest))))
        case AnyOf(parts=parts):
            for part in parts:
                yield from _ways(part)


def _change(atoms: tuple[Below | Spent, ...], budgets: Budgets, flags: frozenset[str]) -> Change | None:
    """Return new limits for the comparisons that fail; for a flag, whose limit is 1, a new count."""
    limits: dict[str, int] = {}
    counters: dict[str, int] = {}
    for atom in (one for one in atoms if not one.holds(budgets)):
        below = atom if isinstance(atom, Below) else atom.atom
        is_open = isinstance(atom, Below)
        if below.counter in flags:
            counters[below.counter] = 0 if is_open else budgets.limit(below.limit)
        else:
            count = budgets.count(below.counter)
            wanted = count + 1 if is_open else count
            before = limits.get(below.limit, wanted)
            limits[below.limit] = max(before, wanted) if is_open else min(before, wanted)
    return Change(limits, counters)


# ----------------------------------------------------------------------------------------------------
# Two runs side by side: where they diverge, and how their moves align after that.


Tag = Literal["same", "changed", "only_left", "only_right"]
_TAGS: dict[str, Tag] = {"equal": "same", "replace": "changed", "delete": "only_left", "insert": "only_right"}
ALIGNED = 2_000
"""Moves after the divergence that are aligned with each other; later ones are shown as changed."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Moves ``left`` of one run and ``right`` of the other, as (first, last); empty when last is below
    first."""

    tag: Tag
    left: tuple[int, int]
    right: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``parted``: the number of the first move that differs, ``None`` when all moves are the same; ``said``:
    the first move whose visit differs in requests or replies. ``shared``: the number of moves inherited from
    the same ancestor."""

    left: str
    right: str
    parted: int | None
    said: int | None
    shared: int
    stretches: tuple[Stretch, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def compare(left: Record, right: Record) -> Comparison:
    """Compare two runs by the rows taken. The replies in the visits determine ``said``."""
    rows = [[step.row for step in record.steps()] for record in (left, right)]
    same = _common(*rows)
    shared = _shared_moves(left, right)
    parted = same + 1 if same < max(map(len, rows)) else None
    stretches = [Stretch("same", (1, same), (1, same))] if same else []
    tails = [one[same : same + ALIGNED] for one in rows]
    for tag, a, b, c, d in SequenceMatcher(None, tails[0], tails[1], autojunk=False).get_opcodes():
        stretches.append(Stretch(_TAGS[tag], (same + a + 1, same + b), (same + c + 1, same + d)))
    rest = [(same + len(tail) + 1, len(one)) for tail, one in zip(tails, rows, strict=True)]
    if any(first <= last for first, last in rest):
        stretches.append(Stretch("changed", rest[0], rest[1]))
    return Comparison(
        left.turn_id,
        right.turn_id,
        parted,
        _first_different_text(left, right, shared, same),
        shared,
        tuple(stretches),
    )


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))


def _shared_moves(left: Record, right: Record) -> int:
    """Count the moves that are the same database rows in both."""
    count = 0
    for one, other in zip(left.parts, right.parts, strict=False):
        if (one.turn, one.first) != (other.turn, other.first):
            break
        ends = [part.last for part in (one, other) if part.last is not None]
        count = min(ends) if ends else min(left.count, right.count)
        if one.last != other.last:
            break
    return min(count, left.count, right.count)


def _first_different_text(left: Record, right: Record, shared: int, same: int) -> int | None:
    for at in range(shared, min(same + 1, left.count, right.count)):
        if _answers(left, at) != _answers(right, at):
            return at + 1
    return None


def _answers(record: Record, at: int) -> list[tuple[str, str]]:
    found = []
    for effect in record.visit(at):
        kind = REQUEST_KINDS.get(effect["kind"])
        if kind is None or kind.intent:  # in another table, every request goes to the outside world
            reply = {k: v for k, v in (effect["reply"] or {}).items() if k not in ("seconds", "usage")}
            found.append((effect["kind"], repr(reply)))
    return found


# ----------------------------------------------------------------------------------------------------
#

Cost = Callable[[Usage], float | None]
LONGEST_ARGUMENTS = 200
"""Maximum characters of the arguments of one call."""
MOST_CALLS = 8
"""Maximum calls listed for one move."""


def note_of(entries: Iterable[Mapping[str, Any]], cost: Cost) -> dict[str, Any]:
    """Return the note of a move from the requests of the visit that it ended: ``calls`` [[tool, arguments]],
    which the model requested or the state ran, ``tokens``, and ``cost`` in US dollars, ``None`` if a price is
    unknown."""
    calls: list[list[str]] = []
    used = NO_USAGE
    for one in entries:
        reply = one["reply"] or {}
        if one["kind"] == "RunTool":
            calls.append(
                [one["name"], dumps((one["request"] or {}).get("arguments", {}))[:LONGEST_ARGUMENTS]]
            )
        elif one["kind"] == "CallModel":
            asked = reply.get("tool_calls") or ()
            calls += [[call["name"], str(call["arguments"])[:LONGEST_ARGUMENTS]] for call in asked]
            used += Usage(**(reply.get("usage") or {}))
    spent = cost(used) if used.total else 0.0
    return {
        "calls": calls[:MOST_CALLS],
        "more": max(0, len(calls) - MOST_CALLS),
        "tokens": used.total,
        "cost": spent,
    }


def noted_moves(record: Record, first: int, last: int) -> list[dict[str, Any]]:
    """Return the moves ``first`` to ``last``, each with its note."""
    visits: dict[int, list[dict[str, Any]]] = {}
    with record.reading() as c:
        for part in record.within(first, last):
            rows = c.execute(
                "SELECT seq, kind, name, request, request_crc, reply, reply_crc FROM effects WHERE turn = ?"
                " AND seq BETWEEN ? AND ? AND kind IN ('CallModel', 'RunTool') ORDER BY seq, ordinal, place",
                (part.turn, part.first - 1, (last if part.last is None else part.last) - 1),
            )
            for seq, kind, name, request, request_crc, reply, reply_crc in rows:
                entry = {"kind": kind, "name": name, "request": loads(request, request_crc)}
                entry["reply"] = None if reply is None else loads(reply, reply_crc)
                visits.setdefault(seq + 1, []).append(entry)
    cost = price_of(record)
    return [move | note_of(visits.get(move["seq"], ()), cost) for move in record.moves(first, last)]


def count_tools(record: Record) -> list[tuple[str, int]]:
    """Return the tools that a turn called, with the number of calls by name."""
    found: dict[str, int] = {}
    with record.reading() as c:
        for part in record.within(1, None):
            rows = c.execute(
                "SELECT name, COUNT(*) FROM effects WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq < ?)"
                " AND kind = 'RunTool' GROUP BY name",
                (part.turn, part.first - 1, part.last, part.last),
            )
            for name, count in rows:
                found[name] = found.get(name, 0) + count
    return sorted(found.items())


def moves_of_tool(record: Record, tool: str) -> list[int]:
    """Return the moves whose visit called a tool."""
    found: list[int] = []
    with record.reading() as c:
        for part in record.within(1, None):
            rows = c.execute(
                "SELECT DISTINCT seq + 1 FROM effects WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq < ?)"
                " AND kind = 'RunTool' AND name = ? ORDER BY seq",
                (part.turn, part.first - 1, part.last, part.last, tool),
            )
            found += [seq for (seq,) in rows]
    return found
