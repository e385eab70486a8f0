"""A turn that is nothing but its place in a table and its counters: enough to run any table without
states."""

from __future__ import annotations

from collections.abc import Mapping

from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.table import Table


class CountingTurn(BaseTurn):
    """A turn of ``table`` in its first state, under ``limits`` (flags need none, theirs is 1). ``counts``
    are the counters by name. Raises ``ConfigError`` for a limit that is missing."""

    def __init__(self, table: Table, limits: Mapping[str, int], turn_id: str = "turn") -> None:
        super().__init__(turn_id=turn_id, limits=dict(limits))
        self.enter(table)
