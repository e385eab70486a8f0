"""The features ``memory`` and ``context engine``: what objects of the user add to the context of a turn."""

from __future__ import annotations

import json
import operator
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fsm_agent.conversation.effects import (
    AskEngine,
    Done,
    EngineAnswer,
    Prefetch,
    Prefetched,
    Preserve,
    Saved,
    SyncMemory,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features import RESULTS, Ground, save
from fsm_agent.memory import ExternalMemory, check_provider
from fsm_agent.runtime.clock import UsersCode, answer_of, require_method
from fsm_agent.support.texts import shorten
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.tools import Tool

# ----------------------------------------------------------------------------------------------------
# The feature ``memory``: context that the model gets beside the user's message, recalled by a memory or added
# by a callback.


MOST = 20_000
"""Maximum characters of one source; a longer text is saved to a file, and its beginning and end are sent."""
PREVIEW = 4_000


class MemoryRecall(Extension):
    """The feature ``memory`` of one agent. Without an external memory and without a callback it returns
    nothing, at once. Raises ``ConfigError`` for a memory without the methods of one."""

    name = "memory"

    def __init__(self, ground: Ground) -> None:
        self._callbacks, self._signals = ground.callbacks, ground.signals
        self._keep = partial(save, ground.home / RESULTS)
        self._memory: ExternalMemory | None = None
        if (memory := ground.options["memory"]) is not None:
            check_provider(memory)
            self._memory = ExternalMemory(memory, ground.clock, ground.settings)

    def tools(self) -> Sequence[Tool]:
        return () if self._memory is None else self._memory.tools()

    def in_turn(self, here: Here) -> Part:
        return Part(
            {
                Prefetch: partial(self.prefetch, here),
                Preserve: self.preserve,
                SyncMemory: self.sync,
            }
        )

    @property
    def there(self) -> bool:
        """Return whether anything can be recalled: by an external memory, or a callback for context."""
        return self._memory is not None or self._callbacks.has("context")

    async def prompt_block(self, session_id: str) -> tuple[str | None, str]:
        """Return the external memory's block of this session's prompt and the problem in words; the block is
        ``None`` if the memory did not answer."""
        if self._memory is None:
            return "", ""
        return await self._memory.prompt_block(session_id, self._signals.event())

    async def prefetch(self, here: Here, request: Prefetch) -> Prefetched:
        """Return the context that the model gets with a message of the user."""

        def spill(long: str) -> Saved:
            return self._keep(f"{session_id}-context-{uuid.uuid4().hex[:8]}.txt", long)

        session_id, text = here.session.id, request.text
        found, problem = "", ""
        if self._memory is not None:
            found, problem = await self._memory.prefetch(session_id, text, self._signals.event())
        added = await self._callbacks.ask_text("context", text)
        parts = [
            _bound_text(part, spill) for part in (found, added) if isinstance(part, str) and part.strip()
        ]
        return Prefetched("\n\n".join(parts), problem)

    async def preserve(self, request: Preserve) -> Prefetched:
        """Ask the external memory what a summary of compacted rows must preserve."""
        if self._memory is None:
            return Prefetched()
        found, problem = await self._memory.pre_compress(request.rows, self._signals.event())
        return Prefetched(shorten(found, MOST, "the rest was left out"), problem)

    async def sync(self, request: SyncMemory) -> Done:
        """Report a completed turn to the external memory, without waiting."""
        if self._memory is not None:
            self._memory.sync(request.user, request.answer)
        return Done()

    async def aclose(self) -> None:
        """Release the external memory once it has stored pending turns."""
        if self._memory is not None:
            await self._memory.aclose()


def _bound_text(text: str, spill: Callable[[str], Saved]) -> str:
    text = text.strip()
    if len(text) <= MOST:
        return text
    saved = spill(text)
    where = f"the whole text is in {saved.path}" if saved.path else f"it could not be saved: {saved.error}"
    return shorten(text, PREVIEW, where)


# ----------------------------------------------------------------------------------------------------
# Calls to the user's context engine: within limits, for values that the journal can keep.


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
        """Return the engine's answer; an exception or an unreadable answer becomes its ``problem``."""
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
        answer = await answer_of(getattr(self._engine, request.step), request.context, *given)
        return await in_daemon_thread(_read, request, answer)


def _read(request: AskEngine, answer: Any) -> EngineAnswer:
    match request.step:
        case "cut":
            return EngineAnswer(places=tuple(operator.index(place) for place in answer))
        case "prompt":
            if not isinstance(answer, str):
                raise TypeError(f"a text is wanted, not a {type(answer).__name__}")
            return EngineAnswer(prompt=answer)
    return _shorter(request.context.rows, answer)


def _shorter(before: Sequence[Message], answer: Any) -> EngineAnswer:
    """Return the engine's rows: known ones by their places, new ones in stored form."""
    known = {row: place for place, row in enumerate(before)}
    rows: list[Message] = []
    places = []
    for row in answer:
        if not isinstance(row, Message):
            raise TypeError(f"rows are messages, and not a {type(row).__name__}")
        if row not in known:
            known[row] = len(before) + len(rows)
            rows.append(Message.from_dict(json.loads(json.dumps(row.to_dict()))))
        places.append(known[row])
    return EngineAnswer(places=tuple(places), made=tuple(rows))
