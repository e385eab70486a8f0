"""The stack of a turn: the move that was made last, in the table; the state it led to; and the moves before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fsm_agent.debug.dap.breakpoints import place
from fsm_agent.debug.dap.client import Client
from fsm_agent.debug.dap.table_map import StateSource, TableMap
from fsm_agent.debug.dap.threads import Lane
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.table import Table

Card = tuple[Literal["move", "state"], int]
"""A frame: the move to a position, or the state at it."""
_POSITIONS = 20
"""Bits of a frame's number that are its position."""


class Frames:
    """Where the frames of every turn are in the sources."""

    def __init__(self, table: Table, map: TableMap, states: Mapping[str, StateSource]) -> None:
        self._rungs = {row.id: row.rung for row in table.rows}
        self._map, self._states = map, states

    def stack(self, lane: Lane, client: Client, start: int = 0, levels: int = 0) -> dict[str, Any]:
        """The body of ``stackTrace``; ``levels`` 0 are all."""
        at = lane.at
        total = at + 2 if at else 1
        last = total if not levels else min(total, start + levels)
        inside = lane.inside
        cards = [_card(at, number, inside) for number in range(start, last)]
        positions = [position for _, position in cards]
        steps = {step.seq: step for step in self._steps(lane, positions)}
        frames = [self._frame(lane, card, steps, client, card[1] < at) for card in cards]
        return {"stackFrames": frames, "totalFrames": total}

    def _steps(self, lane: Lane, positions: list[int]) -> list[Step]:
        newest = max(positions, default=0)
        return lane.debugger.record.steps(max(1, min(positions)), newest) if newest else []

    def _frame(self, lane: Lane, card: Card, steps: Mapping[int, Step], client: Client, past: bool) -> dict[str, Any]:
        kind, at = card
        made: dict[str, Any] = {"id": frame_id(lane.id, card), "line": 0, "column": 0}
        if kind == "state":
            state = steps[at].dest if at else lane.debugger.record.path()[0]
            made["name"] = state
            if (where := self._states.get(state)) is not None:
                made |= {"source": client.source(where.path), "line": client.line(where.line), "column": client.column(1)}
            return made
        step = steps[at]
        rung = self._rungs.get(step.row, "")
        made["name"] = f"{at}: {step.source} –{step.event}→ {step.dest}" + (f" · {rung}" if rung and rung[0] not in "→⇥" else "")
        if step.exit:
            made["name"] += f" · {step.exit}"
        if (spot := self._map.rows.get(step.row)) is not None:
            made |= {"source": client.source(self._map.path)} | place(spot, client)
        return made | ({"presentationHint": "subtle"} if past else {})

    def where(self, row: str, client: Client) -> dict[str, Any]:
        """Source, line and column of a row, for output; empty for a row of another table."""
        spot = self._map.rows.get(row)
        if spot is None:
            return {}
        return {"source": client.source(self._map.path), "line": client.line(spot.line), "column": client.column(spot.column)}


def _card(at: int, number: int, inside: bool) -> Card:
    if number <= (1 if at else 0):
        return ("state", at) if at == 0 or (number == 0) == inside else ("move", at)
    position = at + 1 - number
    return ("move", position) if position else ("state", 0)


def frame_id(lane: int, card: Card) -> int:
    """One number for a turn, a position and which of its two frames."""
    kind, at = card
    return (lane << (_POSITIONS + 1)) | (at << 1) | (kind == "state")


def frame_of(number: Any) -> tuple[int, int]:
    """(lane, position) of a frame's number. Raises ``ConfigError``."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1 << (_POSITIONS + 1):
        raise ConfigError("no such frame", number, "one of the stack trace")
    return number >> (_POSITIONS + 1), (number >> 1) & ((1 << _POSITIONS) - 1)
