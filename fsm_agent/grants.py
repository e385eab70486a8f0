"""What people approved, or forbade, for good: patterns of calls in the store of a home.

``fsm-agent approvals list`` shows them and ``approvals remove`` takes one back; a running agent looks each time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fsm_agent.errors import ConfigError
from fsm_agent.patterns import Pattern
from fsm_agent.store.database import Database


@dataclass(frozen=True, slots=True)
class Grant:
    """``at`` in seconds since the epoch."""

    pattern: Pattern
    verdict: Literal["allow", "deny"]
    at: float


class Grants:
    """Raises ``StoreError`` when the store cannot be used. ``database`` is asked for when it is first needed."""

    def __init__(self, database: Callable[[], Database], now: Callable[[], float] = time.time) -> None:
        self._database, self._now = database, now

    def all(self) -> list[Grant]:
        """Oldest first."""
        with self._database().reading() as c:
            rows = c.execute("SELECT pattern, verdict, at FROM grants WHERE scope = 'always' ORDER BY at, pattern").fetchall()
        return [Grant(Pattern.of(pattern), verdict, at) for pattern, verdict, at in rows]

    def add(self, pattern: str, verdict: Literal["allow", "deny"]) -> None:
        """Remember a verdict; it replaces an earlier one on the same pattern."""
        read = Pattern.of(pattern)
        values = (read.text, read.tool, verdict, self._now())
        self._database().write(
            lambda c: (
                c.execute(
                    "INSERT OR REPLACE INTO grants (pattern, tool, verdict, scope, at) VALUES (?, ?, ?, 'always', ?)", values
                )
                and None
            )
        )

    def remove(self, pattern: str) -> None:
        """Forget a verdict. Raises ``ConfigError`` for a pattern that is not there."""

        def remove(c: sqlite3.Connection) -> int:
            return c.execute("DELETE FROM grants WHERE pattern = ?", (pattern.strip(),)).rowcount

        if not self._database().write(remove):
            known = ", ".join(grant.pattern.text for grant in self.all()[:10]) or "nothing is remembered"
            raise ConfigError("no such approval", pattern, known)
