"""What is proved of a table before it is used: its lines are complete, nothing is stuck, every turn ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding: the rows (or states) it is about, what is wrong there, and what to do. ``str()`` is the
    message."""

    where: tuple[str, ...]
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{', '.join(self.where)}: {self.what}; {self.fix}"
