"""What the states of a review may ask of the world, and the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["writer", "reviewer"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Let one of the two models answer a prompt; the reply is an ``Answer``."""

    role: Role
    prompt: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What it said; empty with a ``problem`` when it failed."""

    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait so many seconds."""

    seconds: float
