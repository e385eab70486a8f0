"""Begins, resumes and forks the turns of a table of the user's own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from fsm_agent.debug.core.subject import Subject
from fsm_agent.debug.own.log import Origin
from fsm_agent.debug.own.shape import Shape
from fsm_agent.debug.own.turn import TableTurn
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.runner import RunnableTurn, Runner
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns

Make = Callable[[Any], Runner]
"""Makes the runner of a turn that has not moved here: of a new one, for the words that a person begins it with (a ``str``, which
may be empty); or of a turn that is given, to go on from where that is. It is called once more, to learn table, states and
class of turn."""


class TableMaker:
    """``make`` says how, ``store`` keeps what the turns do."""

    def __init__(self, store: Store, make: Make) -> None:
        self._store, self._make, self._turns = store, make, Turns(store.database)
        first = self._runner("")
        self._kind: type[RunnableTurn] = type(first.turn)
        self.subject = Subject(first.machine.table, first.states)
        self._shape = Shape(self.subject.table, self._kind)

    @property
    def can_run(self) -> bool:
        return True

    def start(self, text: str) -> TableTurn:
        return TableTurn(self._runner(text), self._store, text)

    def resume(self, turn_id: str) -> TableTurn:
        info = self._turns.info(turn_id)
        if info.ended is not None:
            raise ConfigError(f"the turn ended with {info.exit}; one can fork it", turn_id)
        turn = self._shape.turn(self._turns.snapshot(turn_id), turn_id)
        return TableTurn(self._runner(turn), self._store, info.asked, Origin(turn_id, info.seq, resumed=True))

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None) -> TableTurn:
        info = self._turns.info(turn_id)
        if not 0 <= at <= info.seq:
            raise ConfigError(f"turn {turn_id} has no move of that number", at, f"0 to {info.seq}")
        snapshot = self._shape.edited(self._turns.snapshot(turn_id, at), edit or {})
        turn = self._shape.turn(snapshot, f"{turn_id.partition('~')[0]}~{uuid.uuid4().hex[:6]}")
        return TableTurn(self._runner(turn), self._store, info.asked, Origin(turn_id, at))

    def close(self) -> None:
        """What the runners work with is the user's."""

    def _runner(self, begin: str | RunnableTurn) -> Runner:
        try:
            made = self._make(begin)
        except Exception as error:  # it is the user's, and may raise anything
            what = "for a new turn" if isinstance(begin, str) else f"for turn {begin.turn_id}"
            raise ConfigError(f"no runner could be made {what} ({type(error).__name__}: {error})") from error
        if not isinstance(made, Runner):
            raise ConfigError(
                "what was named makes no runner", type(made).__name__, "a function of one argument that returns a Runner"
            )
        if not isinstance(begin, str) and made.turn is not begin:
            raise ConfigError("the runner is of another turn than it was asked to go on with", made.turn.turn_id, begin.turn_id)
        return made
