"""Requests that are answered at once and touch nothing outside: most of what a state asks for. All of one
visit are one text in the table ``visits``, beside the few that have a row of their own in ``effects``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsm_agent.sessions.store.checksum import loads, with_checksum
from fsm_agent.sessions.store.connection import SqlConnection

EffectRow = tuple[Any, ...]
"""As in the table ``effects``: turn, seq, ordinal, place, state, kind, name, class, key, status, request,
reply, at, seconds, origin; request and reply read."""


DONE = '{"is":"Done"}'
WHEN, TOOK = 1e-4, 1e-5
"""Seconds: as exact as anybody wants to know it of such requests."""


class Small(NamedTuple):
    """One of them; request and reply as JSON, ``at`` in seconds since the epoch."""

    ordinal: int
    place: int
    name: str
    effect: str
    request: str
    reply: str
    at: float
    seconds: float

    def text(self, first: float) -> str:
        """As it stands among others, the first of which was at ``first``: when it was in tenths of a
        millisecond after that, how long it took in hundredths, 0 for ``Done``."""
        named = f",{json.dumps(self.name)},{json.dumps(self.effect)}" if self.name or self.effect else ""
        times = f"{round((self.at - first) / WHEN)},{round(self.seconds / TOOK)}"
        reply = 0 if self.reply == DONE else self.reply
        return f"[{self.ordinal},{self.place},{times},{self.request},{reply}{named}]"


@dataclass(frozen=True, slots=True)
class SmallTalk:
    """The job that writes those of one visit so far, in place of what it wrote before. ``epoch``: who goes on
    with a visit writes beside what there was."""

    turn: str
    seq: int
    epoch: int
    state: str
    said: tuple[Small, ...]

    def __call__(self, connection: SqlConnection) -> None:
        first = round(self.said[0].at, 3)
        asked = ",".join(one.text(first) for one in self.said)
        connection.execute(
            "INSERT OR REPLACE INTO visits VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self.turn, self.seq, self.epoch, self.state, first, *with_checksum(f"[{asked}]")),
        )


def effects_of(c: SqlConnection, turn_id: str, seq: int | None = None) -> list[EffectRow]:
    """Return all requests of a turn, or of its visit after ``seq`` moves, in order."""
    within = "turn = ? AND (? IS NULL OR seq = ?)" if seq is None else "turn = ? AND seq = ? AND ? = seq"
    given = (turn_id, seq, seq)
    own = c.execute(f"SELECT * FROM effects WHERE {within}", given)  # noqa: S608 - ours
    found = {row[1:4]: _read(row) for row in own}
    visits = c.execute(
        f"SELECT seq, state, at, asked, asked_crc FROM visits WHERE {within} ORDER BY epoch",  # noqa: S608 - ours
        given,
    )
    for at_seq, state, at, *asked in visits:
        found |= {row[1:4]: row for row in _rows(turn_id, at_seq, state, at, loads(*asked))}
    return [found[key] for key in sorted(found)]


def _read(row: tuple[Any, ...]) -> EffectRow:
    *before, request, request_crc, reply, reply_crc, at, seconds, origin = row
    answer = None if reply is None else loads(reply, reply_crc)
    return (*before, loads(request, request_crc), answer, at, seconds, origin)


def _rows(turn_id: str, seq: int, state: str, at: float, asked: Sequence[list[Any]]) -> Iterator[EffectRow]:
    for ordinal, place, after, seconds, request, reply, *named in asked:
        name, effect = named or ("", "")
        yield (
            turn_id, seq, ordinal, place, state, request["is"], name, effect, "", "done",
            request, reply or {"is": "Done"}, at + after * WHEN, seconds * TOOK, "",
        )  # fmt: skip
