"""Looks at the transcript of a real turn at every move: is its shape one that is proved, and is what the visit
did declared?"""

from __future__ import annotations

from functools import cache
from typing import Any

from fsm_agent.conversation.messages import Message
from fsm_agent.fsm.proof import examine
from fsm_agent.fsm.properties import Promises
from fsm_agent.fsm.table import Row
from fsm_agent.fsm.verify.properties import Induction, induct
from fsm_agent_states.logic.shapes import TRANSCRIPT, Shape, shape_of
from fsm_agent_states.table import TURN


def proof(promises: Promises = TRANSCRIPT) -> Induction:
    return induct(examine(TURN).with_caps.graph, promises)


@cache
def proved(state: str) -> frozenset[Any]:
    """The shapes with which a state can be entered; of ``""``, those at the end."""
    return proof().values(state)


class ShapeWatch:
    """One turn. ``seen``: (state, event, shape after) of every visit so far."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn
        self._sent: tuple[Message, ...] = ()
        self._entered: tuple[Message, ...] = ()
        self._shape = Shape()
        self._came: Row | None = None
        self.seen: list[tuple[str, str, Shape]] = []

    def moved(self, row_id: str) -> None:
        """A visit ended and this row was taken."""
        row = TURN.row(row_id)
        if row.source == "CallLLM":
            self._sent = self._entered
        self._visited(row.source, row.event, row.dest)
        self._came, self._entered = row, tuple(self._turn.history)

    def ended(self) -> None:
        """Finalize was visited."""
        self._visited(TURN.final, "", "")

    def _visited(self, state: str, event: str, then: str) -> None:
        turn, before = self._turn, self._shape
        self._shape = shape_of(turn.history, turn.rows, turn.recovery.scaffold, self._sent)
        told = f"{state}.{event}, entered by {self._came and self._came.id}: {before} → {self._shape}"
        assert self._shape in TRANSCRIPT.allowed(self._came, state, event, before), f"not declared: {told}"
        assert self._shape in proved(then), f"not proved: {told}"
        self.seen.append((state, event, self._shape))
