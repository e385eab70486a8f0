"""Memory outside the home directory: a service that is asked before a turn and told after it. At most one an
agent."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from fsm_agent.conversation.messages import Message
from fsm_agent.tools import Tool


class MemoryProvider(Protocol):
    """What an external memory does. Every method but ``tools`` may be asynchronous, or block (it then runs in
    a thread).

    The asynchronous ones always run on the engine's own event loop, so a connection may be kept between them.
    A method that raises or takes too long costs its own result and a line for people, never the turn."""

    def initialize(self, session_id: str) -> Awaitable[None] | None:
        """Called once, before anything else but ``tools``."""

    def prompt_block(self) -> Awaitable[str] | str:
        """What the system prompt says of this memory: what it knows of the user in general, how its tools are
        used; empty for nothing. Asked when a session's prompt is built, and frozen in it; scanned for
        instructions that are none of its business. A provider without this method has no block."""

    def prefetch(self, text: str) -> Awaitable[str] | str:
        """What is worth knowing for this message of the user; empty for nothing. The model reads it with the
        message, and it is neither stored as the user's words nor shown."""

    def sync(self, user: str, answer: str) -> Awaitable[None] | None:
        """A turn was completed. Called in the background, one call at a time, in order; not after an
        interrupt."""

    def tools(self) -> Sequence[Tool]:
        """Tools that the model may call; asked once, when the agent is made."""

    def pre_compress(self, rows: Sequence[Message]) -> Awaitable[str] | str:
        """These rows are about to be summarised; answer what the summary must keep, or nothing."""

    def session_switch(self, session_id: str, previous: str) -> Awaitable[None] | None:
        """The next turn belongs to another session."""

    def shutdown(self) -> Awaitable[None] | None:
        """Called once, after everything was stored."""
