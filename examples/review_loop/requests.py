"""What the states of a review may ask of the world, and the answers."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import ClassVar, Literal

Role = Literal["writer", "reviewer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What it said; empty with a ``problem`` when it failed."""

    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """Let one of the two models answer a prompt. ``reply`` tells the debugger what one may answer by hand."""

    role: Role
    prompt: str
    reply: ClassVar[type] = Answer


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait so many seconds."""

    seconds: float
    reply: ClassVar[type] = NoneType
