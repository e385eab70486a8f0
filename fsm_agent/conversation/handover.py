"""A conversation that goes from one agent to another: who handed it to whom, and what the next one is
told."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

NAME = r"[a-zA-Z0-9_-]{1,48}"
"""What an agent may be called: tools are called after it."""
TOLD = (
    "[From this program and not from the user: {agent} has handed this conversation over to {to}, which is"
    " you. Continue with what the user asked for.{note}]"
)
TRANSFER = "transfer_to_"
"""How the names of tools begin that hand a conversation over."""


@dataclass(frozen=True, slots=True)
class HandoffStep:
    """``agent`` ended turn ``turn_id`` by handing the conversation to the agent ``to``, with a ``note``."""

    agent: str
    to: str
    note: str
    turn_id: str

    @property
    def message(self) -> str:
        """Return what the next turn begins with. A model wrote the note, so it is marked as data."""
        from fsm_agent.support.untrusted import wrap_untrusted  # here, because few conversations need it

        note = self.note.strip()
        told = TOLD.format(agent=self.agent, to=self.to, note=" Its note follows." if note else "")
        return f"{told}\n\n{wrap_untrusted(note, self.agent)}" if note else told


def way_of(stored: Any) -> tuple[HandoffStep, ...]:
    """Read the way of a conversation as it is stored; nothing when it is no such list, or has names that no
    agent can have: it may have come in a file."""
    try:
        way = tuple(HandoffStep(**one) for one in stored)
    except TypeError:
        return ()
    texts = all(isinstance(value, str) for one in way for value in (one.agent, one.to, one.note, one.turn_id))
    named = texts and all(re.fullmatch(NAME, name) for one in way for name in (one.agent, one.to))
    return way if named else ()


def next_turn_id(session_id: str, turn_id: str) -> str:
    """Return the id of the turn that follows a handover. It does not depend on the process that begins the
    turn, so that it begins only once."""
    return f"{session_id}-{_follows(turn_id)}"


def is_next_turn(turn_id: str, before: str) -> bool:
    """Say whether a turn was begun because the turn ``before`` handed the conversation over."""
    return turn_id.endswith(f"-{_follows(before)}")


def _follows(turn_id: str) -> str:
    return hashlib.sha256(turn_id.encode()).hexdigest()[:8]
