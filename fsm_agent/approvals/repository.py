"""What people approved, or forbade, for good or for a session: patterns of calls in the store of a home.

``fsm-agent approvals list`` shows them and ``approvals remove`` takes one back; a running agent looks each
time. An answer for a session holds in it, and in what it goes on as after a compaction, also in another
process; not in its forks, and only in the working directory in which it was given."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fsm_agent.approvals.rules import Pattern
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.lineage import compacted_line

Verdict = Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class Grant:
    """``at`` in seconds since the epoch. ``session`` and ``workdir`` are empty for what was answered for
    good."""

    pattern: Pattern
    verdict: Verdict
    at: float
    session: str = ""
    workdir: str = ""


class Grants:
    """Raises ``StoreError`` when the store cannot be used. ``database`` is asked for when it is first
    needed."""

    def __init__(self, database: Callable[[], Database], now: Callable[[], float] = time.time) -> None:
        self._database, self._now = database, now

    def all(self) -> list[Grant]:
        """Those for good, oldest first."""
        with self._database().reading() as c:
            rows = c.execute(
                "SELECT pattern, verdict, at FROM grants WHERE scope = 'always' ORDER BY at, pattern"
            ).fetchall()
        return [Grant(Pattern.of(pattern), verdict, at) for pattern, verdict, at in rows]

    def of_session(self, session: str, workdir: str) -> list[Grant]:
        """Those that hold in this session and directory, oldest first."""
        with self._database().reading() as c:
            line = json.dumps(compacted_line(c, session))
        return self._of_sessions(
            "SELECT pattern, verdict, at, session, workdir FROM session_grants"
            " WHERE session IN (SELECT value FROM json_each(?)) AND workdir = ? ORDER BY at, pattern",
            (line, workdir),
        )

    def of_sessions(self) -> list[Grant]:
        """Those of every session, oldest first."""
        return self._of_sessions(
            "SELECT pattern, verdict, at, session, workdir FROM session_grants ORDER BY at, pattern", ()
        )

    def _of_sessions(self, query: str, values: tuple[str, ...]) -> list[Grant]:
        with self._database().reading() as c:
            return [
                Grant(Pattern.of(pattern), *rest) for pattern, *rest in c.execute(query, values).fetchall()
            ]

    def add(self, pattern: str, verdict: Verdict) -> None:
        """Remember a verdict for good; it replaces an earlier one on the same pattern."""
        read = Pattern.of(pattern)
        values = (read.text, read.tool, verdict, self._now())
        self._database().write(
            lambda c: (
                c.execute(
                    "INSERT OR REPLACE INTO grants (pattern, tool, verdict, scope, at) VALUES (?, ?, ?,"
                    " 'always', ?)",
                    values,
                )
                and None
            )
        )

    def add_for(self, session: str, workdir: str, pattern: str, verdict: Verdict) -> None:
        """Remember a verdict for a session that is in the store, in this directory."""
        values = (session, Pattern.of(pattern).text, verdict, workdir, self._now())
        self._database().write(
            lambda c: (
                c.execute("INSERT OR REPLACE INTO session_grants VALUES (?, ?, ?, ?, ?)", values) and None
            )
        )

    def remove(self, pattern: str, session: str = "") -> None:
        """Forget a verdict everywhere, or only the one of ``session``. Raises ``ConfigError`` for one that is
        not there."""
        wanted = pattern.strip()

        def remove(c: SqlConnection) -> int:
            if session:
                return c.execute(
                    "DELETE FROM session_grants WHERE pattern = ? AND session = ?", (wanted, session)
                ).rowcount
            found = c.execute("DELETE FROM grants WHERE pattern = ?", (wanted,)).rowcount
            return found + c.execute("DELETE FROM session_grants WHERE pattern = ?", (wanted,)).rowcount

        if not self._database().write(remove):
            there = self.of_sessions() if session else [*self.all(), *self.of_sessions()]
            known = [grant.pattern.text for grant in there if not session or grant.session == session]
            raise ConfigError(
                "no such approval", pattern, ", ".join(dict.fromkeys(known[:10])) or "nothing is remembered"
            )
