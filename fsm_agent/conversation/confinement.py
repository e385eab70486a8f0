"""Where the calls of a sandboxed tool run, and what that means for an approver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAVES = "outside"
"""The argument by which a call asks to run outside the sandbox of its tool."""
OUTSIDE = "OUTSIDE the sandbox, with all your rights"


@dataclass(frozen=True, slots=True)
class Confinement:
    """``inside`` names the sandbox in words. ``free``: a call that stays in it needs no yes."""

    inside: str
    free: bool = False

    def left_by(self, arguments: Mapping[str, Any]) -> bool:
        """Say whether a call with these arguments runs outside. Whatever is not plainly a no counts as
        such."""
        return arguments.get(LEAVES, False) is not False

    def where(self, arguments: Mapping[str, Any]) -> str:
        """Return where the call runs, for the person who is asked."""
        return OUTSIDE if self.left_by(arguments) else self.inside

    def frees(self, arguments: Mapping[str, Any]) -> bool:
        """Say whether the sandbox is enough for the call to need no yes."""
        return self.free and not self.left_by(arguments)
