"""The feature ``memory``: what goes to the model with a message of the user and is not theirs, because a
memory recalls it or a callback adds it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial

from fsm_agent.conversation.effects import Done, Prefetch, Prefetched, Preserve, Saved, SyncMemory
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features import RESULTS, Ground, save
from fsm_agent.memory import ExternalMemory, check_provider
from fsm_agent.support.texts import shorten
from fsm_agent.tools import Tool

MOST = 20_000
"""Characters of one source; a longer text is saved to a file, and its beginning and end are sent."""
PREVIEW = 4_000


class MemoryRecall(Extension):
    """The feature ``memory`` of one agent. Without an external memory and without a callback it answers
    nothing at once. Raises ``ConfigError`` for a memory without the methods of one."""

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
        """Say whether anything may be recalled: an external memory, or a callback that gives context."""
        return self._memory is not None or self._callbacks.has("context")

    async def prompt_block(self, session_id: str) -> tuple[str | None, str]:
        """What the external memory puts into the prompt of this session; ``None`` when it gave no answer,
        with the problem in words."""
        if self._memory is None:
            return "", ""
        return await self._memory.prompt_block(session_id, self._signals.event())

    async def prefetch(self, here: Here, request: Prefetch) -> Prefetched:
        """Return what goes to the model with a message of the user."""

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
        """Ask the external memory what is to stay known of rows that a compaction takes."""
        if self._memory is None:
            return Prefetched()
        found, problem = await self._memory.pre_compress(request.rows, self._signals.event())
        return Prefetched(shorten(found, MOST, "the rest was left out"), problem)

    async def sync(self, request: SyncMemory) -> Done:
        """Tell the external memory of a completed turn, without waiting."""
        if self._memory is not None:
            self._memory.sync(request.user, request.answer)
        return Done()

    async def aclose(self) -> None:
        """Release the external memory once it has stored what it still had to."""
        if self._memory is not None:
            await self._memory.aclose()


def _bound_text(text: str, spill: Callable[[str], Saved]) -> str:
    text = text.strip()
    if len(text) <= MOST:
        return text
    saved = spill(text)
    where = f"the whole text is in {saved.path}" if saved.path else f"it could not be saved: {saved.error}"
    return shorten(text, PREVIEW, where)
