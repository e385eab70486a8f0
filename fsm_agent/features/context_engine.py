"""Asking a context engine of the user's: within limits, for values that the journal can keep."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any

from fsm_agent.conversation.effects import AskEngine, EngineAnswer
from fsm_agent.conversation.messages import Message
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features import Ground
from fsm_agent.runtime.clock import UsersCode, answer_of, require_method
from fsm_agent.support.threads import in_daemon_thread

STEPS = ("cut", "prompt", "rows")


class EngineCalls(Extension):
    """The feature ``context engine``. Raises ``ConfigError`` for an object without an engine's methods."""

    name = "context-engine"

    def __init__(self, ground: Ground) -> None:
        engine, settings = ground.options["context_engine"], ground.settings
        require_method(engine, "a context engine", STEPS, "one object with the methods of ContextEngine")
        self._engine, self._seconds = engine, settings.compression.engine_timeout
        self._signals = ground.signals
        self._code = UsersCode("the context engine", ground.clock, settings.poll.control)

    def in_turn(self, here: Here) -> Part:
        return Part({AskEngine: self.answer}, opens={"engine": True})

    async def answer(self, request: AskEngine) -> EngineAnswer:
        """Return what the engine says; what it raises and what cannot be read is a ``problem``."""
        answer, problem = await self._code.within(
            self._ask_engine(request), self._seconds, self._signals.event()
        )
        return answer or EngineAnswer(problem=problem or "it was interrupted")

    async def _ask_engine(self, request: AskEngine) -> EngineAnswer:
        given = {
            "cut": (),
            "prompt": (request.goes, request.window),
            "rows": (request.goes, request.summary),
        }[request.step]
        said = await answer_of(getattr(self._engine, request.step), request.context, *given)
        return await in_daemon_thread(_read, request, said)


def _read(request: AskEngine, said: Any) -> EngineAnswer:
    match request.step:
        case "cut":
            return EngineAnswer(places=tuple(operator.index(place) for place in said))
        case "prompt":
            if not isinstance(said, str):
                raise TypeError(f"a text is wanted, not a {type(said).__name__}")
            return EngineAnswer(prompt=said)
    return _shorter(request.context.rows, said)


def _shorter(before: Sequence[Message], said: Any) -> EngineAnswer:
    """Rows that are known by their places, and others in the form in which they are stored."""
    known = {row: place for place, row in enumerate(before)}
    made: list[Message] = []
    places = []
    for row in said:
        if not isinstance(row, Message):
            raise TypeError(f"rows are messages, and not a {type(row).__name__}")
        if row not in known:
            known[row] = len(before) + len(made)
            made.append(Message.from_dict(json.loads(json.dumps(row.to_dict()))))
        places.append(known[row])
    return EngineAnswer(places=tuple(places), made=tuple(made))
