"""A turn on an axis of time: the state at every moment, and what it waited for then: a person, the model, a
tool, or until a time. Time is the sum of the seconds that the states took, so that what nobody ran for a
night takes no room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fsm_agent.debug.core.record import Record
from fsm_agent.sessions.store.checksum import loads
from fsm_agent.sessions.store.journal.small_talk import TOOK

Waited = Literal["people", "model", "tools", "pauses"]
WAITS: tuple[Waited, ...] = get_args(Waited)
KINDS: dict[str, Waited] = {
    "AskApproval": "people",
    "CallModel": "model",
    "RunTool": "tools",
    "Wait": "pauses",
}
"""What is waited for, by the kind of the request; everything else is the engine's own time."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The state that a turn was in after ``at`` moves, for so many seconds; ``waits`` in the order of
    ``WAITS``, together not more than that."""

    at: int
    state: str
    seconds: float
    waits: tuple[float, ...]


def stays(record: Record) -> Iterator[Stay]:
    """Every visit of a turn that was ended by a move, in order."""
    waited = _waited(record)
    states = record.path()
    for at, seconds in enumerate(_seconds(record)):
        left, shares = seconds, []
        for wait in WAITS:
            share = min(left, waited.get((at, wait), 0.0))
            left -= share
            shares.append(share)
        yield Stay(at, states[at], seconds, tuple(shares))


def columns(record: Record, buckets: int, states: Sequence[str]) -> dict[str, Any]:
    """The whole turn in at most ``buckets`` equal spans of time: ``positions`` at which they begin, ``masks``
    of the states in each as bits, ``waits``: of each span the seconds that were waited for what, ``seconds``
    of the whole, and ``sums`` by what was waited for. A visit shows its waits in the order of ``WAITS``."""
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
    """Seconds that the visit at a position waited, by what for."""
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


def _waited(record: Record) -> dict[tuple[int, Waited], float]:
    """Seconds by (position, what was waited for). Requests that were made at once are added up."""
    found: dict[tuple[int, Waited], float] = {}
    kinds = ", ".join("?" * len(KINDS))
    own = f"SELECT seq, kind, SUM(seconds) FROM effects {_SPAN} AND kind IN ({kinds}) GROUP BY seq, kind"  # noqa: S608
    named = " OR ".join(["asked LIKE ?"] * len(KINDS))
    small = f"SELECT seq, asked, asked_crc FROM visits {_SPAN} AND ({named})"  # noqa: S608
    with record.reading() as c:
        for part in record.within(1, None):
            span = (part.turn, part.first - 1, part.last, part.last)
            took = list(c.execute(own, (*span, *KINDS)))
            for seq, *asked in c.execute(small, (*span, *(f'%"is":"{kind}"%' for kind in KINDS))):
                took += [(seq, one[4]["is"], one[3] * TOOK) for one in loads(*asked) if one[4]["is"] in KINDS]
            for seq, kind, seconds in took:
                key = (seq, KINDS[kind])
                found[key] = found.get(key, 0.0) + (seconds or 0.0)
    return found


_SPAN = "WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq < ?)"
