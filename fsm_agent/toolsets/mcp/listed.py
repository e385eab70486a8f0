"""A tool as its server describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Listed:
    """``name`` is the server's own. The hints are what the server says of itself; ``None`` when it says
    nothing. ``problem``: why its schema cannot be given to a model, empty when it can."""

    name: str
    description: str
    schema: Mapping[str, Any]
    reads_only: bool | None = None
    repeatable: bool | None = None
    problem: str = ""
