"""What stands in the place of a reply that comes later, perhaps days later and in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Waits = Literal["approval", "question", "result", "timer"]
"""What a suspended turn waits for."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """In place of a reply: the turn is suspended until somebody gives it.

    ``kind``: what is waited for, ``None`` when another turn waits, which has it written down. ``call`` and
    ``tool`` that it is for; ``asked``: in words, whole; ``choices``: the answers there are, or that are
    offered; ``digest`` of what the answer is about; ``due``: when nobody need answer any more, in seconds
    since the epoch. ``otherwise``: the reply where this cannot be written down."""

    kind: Waits | None = None
    call: str = ""
    tool: str = ""
    asked: str = ""
    choices: tuple[str, ...] = ()
    digest: str = ""
    due: float | None = None
    otherwise: Any = None
