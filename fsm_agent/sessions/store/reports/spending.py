"""What was spent on requests to models, by a turn, its tree, its conversation and in a day: what providers
reported (``usage``), and what the others are taken to have used (``unreported``).

What was there when a turn begins is summed up once; after that only what came since is read. It is read in
the order of the writer, so that nothing that this process has handed over before is missed. Where others
write at the same time, numbers become visible out of order, and all is summed up each time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.rows import conversation, conversation_begin, turn_line, turn_tree
from fsm_agent.sessions.store.store import Store
from fsm_agent.settings.model import LimitScope


class Expense(NamedTuple):
    """US dollars and tokens."""

    usd: float = 0.0
    tokens: int = 0

    def plus(self, other: Expense) -> Expense:
        """Return both together."""
        return Expense(self.usd + other.usd, self.tokens + other.tokens)


NOTHING_SPENT = Expense()


class Family(NamedTuple):
    """Where a turn belongs: the root of its tree, and the first session of its conversation."""

    root: str
    conversation: str


NO_FAMILY = Family("", "")


@dataclass(slots=True)
class Spending:
    """What was spent in ``scopes`` of one turn, as the store has it. Without a turn, when a person asks for a
    compaction, ``turn`` is empty, and the scopes are those of its session."""

    store: Store
    turn: str
    session: str
    scopes: Collection[LimitScope]
    family: Family = NO_FAMILY
    _before: dict[LimitScope, Expense] = field(default_factory=dict)
    _newest: tuple[int, int] | None = None
    _midnight: float = 0.0
    _families: dict[str, Family] = field(default_factory=dict)

    async def now(self) -> dict[LimitScope, Expense]:
        """Return it by scope. Raises ``StoreError``."""
        today = midnight(self.store.now())
        if self.store.database.shared:
            await self.store.written(lambda c: None)
            self._newest = None
        if self._newest is None or today != self._midnight:
            self._begin(today)
        spent: dict[LimitScope, Expense] = await self.store.written(self._read)
        return spent

    def _begin(self, today: float) -> None:
        with self.store.database.reading() as c:
            if self._newest is None:
                tables = ("usage", "unreported")
                last = [c.execute(f"SELECT COALESCE(MAX(id), 0) FROM {one}").fetchone()[0] for one in tables]  # noqa: S608
                self._newest, self.family = (last[0], last[1]), self._family(c, self.turn, self.session)
            self._midnight = today
            self._before = {scope: self._sum_before(c, scope) for scope in self.scopes}

    def _family(self, c: SqlConnection, turn: str, session: str | None = None) -> Family:
        if turn not in self._families:
            row = c.execute("SELECT session FROM turns WHERE id = ?", (turn,)).fetchone()
            there = row[0] if row else session or ""
            self._families[turn] = Family(turn_line(c, turn)[-1], conversation_begin(c, there))
        return self._families[turn]

    def _sum_before(self, c: SqlConnection, scope: LimitScope) -> Expense:
        """What was spent before this turn began."""
        assert self._newest is not None, "it is asked for when that is known"
        listed, value = _IN.format(":value"), ""
        match scope:
            case "turn":
                where, value = "turn = :value", self.turn
            case "tree":
                where, value = f"turn {listed}", _list(turn_tree(c, self.family.root))
            case "session":
                where = f"turn IN (SELECT id FROM turns WHERE session {listed})"  # noqa: S608 - ours
                value = _list(conversation(c, self.family.conversation))
            case "day":
                where = "at >= :day"
        listed_rows = _ROWS.format(where=where, sign="<=")
        rows = c.execute(
            f"SELECT TOTAL(usd), COALESCE(SUM(tokens), 0) FROM ({listed_rows}) spent",  # noqa: S608
            {
                "value": value,
                "day": self._midnight,
                "usage": self._newest[0],
                "unreported": self._newest[1],
            },
        )
        return Expense(*rows.fetchone())

    def _read(self, c: SqlConnection) -> dict[LimitScope, Expense]:
        assert self._newest is not None, "it is known since the turn began"
        since = c.execute(
            _SINCE, {"usage": self._newest[0], "unreported": self._newest[1], "day": self._midnight}
        )
        spent = dict(self._before)
        for turn, today, *more in since.fetchall():
            family = self._family(c, turn)
            counts: dict[LimitScope, bool] = {
                "turn": turn == self.turn,
                "tree": family.root == self.family.root,
                "session": family.conversation == self.family.conversation,
                "day": bool(today),
            }
            for scope in self.scopes:
                if counts[scope]:
                    spent[scope] = spent[scope].plus(Expense(*more))
        return spent

    def seconds(self, scopes: Collection[LimitScope]) -> dict[LimitScope, float]:
        """Return how long turns worked before this process took this one up: the ``turn`` itself, the root of
        its ``tree``, in whose time its children work, and of session and day, where they are asked for, the
        roots of all other trees. Waits for people do not count, nor does what a process did after the last
        move that it wrote."""
        if self._newest is None:
            self._begin(midnight(self.store.now()))
        with self.store.database.reading() as c:
            of: dict[LimitScope, list[str]] = {"turn": [self.turn], "tree": [self.family.root]}
            if "session" in scopes:
                sessions = _list(conversation(c, self.family.conversation))
                of["session"] = self._other_roots(c, f"session {_IN.format('?')}", sessions)
            if "day" in scopes:
                of["day"] = self._other_roots(c, "began >= ?", self._midnight)
            return {scope: _at_work(c, turns) for scope, turns in of.items()}

    def _other_roots(self, c: SqlConnection, where: str, value: object) -> list[str]:
        roots = f"SELECT id FROM turns WHERE {where} AND (parent IS NULL OR forked_at IS NOT NULL)"  # noqa: S608 - ours
        return [turn for (turn,) in c.execute(roots, (value,)) if turn != self.family.root]


_IN = "IN (SELECT value FROM json_each({}))"
_TOKENS = "input + cache_read + cache_write + output"
_ROWS = (  # every word of it is ours
    f"SELECT turn, at, cost usd, {_TOKENS} tokens FROM usage WHERE id {{sign}} :usage AND {{where}} UNION ALL"  # noqa: S608
    " SELECT turn, at, cost, tokens FROM unreported WHERE id {sign} :unreported AND {where}"
)
_SINCE = (
    "SELECT turn, at >= :day, TOTAL(usd), COALESCE(SUM(tokens), 0) FROM"  # noqa: S608 - ours
    f" ({_ROWS.format(where='1 = 1', sign='>')}) spent GROUP BY 1, 2"
)


WAITED = """COALESCE((SELECT SUM(e.seconds) FROM effects e WHERE e.turn = x.turn AND e.seq = x.seq - 1
        AND (e.kind = 'AskApproval' OR (e.kind = 'RunTool' AND e.name = 'clarify'))), 0)"""
"""The seconds that a visit, which ended with the move ``x``, waited for answers of people."""
AT_WORK = f"MAX(0, x.seconds - {WAITED})"
_AT_WORK = f"SELECT TOTAL({AT_WORK}) FROM transitions x WHERE x.turn {_IN.format('?')}"  # noqa: S608 - ours
"""The seconds of all visits, each without what it waited for a person."""


def midnight(now: float) -> float:
    """Return when the local day of ``now`` began; both in seconds since 1970."""
    return datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def _at_work(c: SqlConnection, turns: Sequence[str]) -> float:
    row = c.execute(_AT_WORK, (_list(turns),)).fetchone()
    return float(row[0])


def _list(values: Sequence[str]) -> str:
    return json.dumps(list(values))


# ----------------------------------------------------------------------------------------------------
# Tokens and cost summed over requests. What is not known is never counted as nothing.


CostStatus = Literal["none", "estimated", "at_least", "included", "unknown"]
SUMS = (
    "COUNT(u.id), COALESCE(SUM(u.input), 0), COALESCE(SUM(u.output), 0), COALESCE(SUM(u.cache_read), 0),"
    " COALESCE(SUM(u.cache_write), 0), COALESCE(SUM(u.reasoning), 0), SUM(u.cost),"
    " COUNT(*) FILTER (WHERE u.cost_status = 'unknown'), COUNT(*) FILTER (WHERE u.cost_status = 'included')"
)
"""Columns for ``UsageTotals.of``, over rows of ``usage u``."""


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """``requests`` that reported their tokens, in disjoint buckets (reasoning is a part of output). ``cost``
    in US dollars, ``None`` when nothing of it is known. ``cost_status``: ``at_least`` where the price of some
    requests is not known, ``included`` where nothing is paid by the token, ``none`` without requests."""

    requests: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: float | None = None
    cost_status: CostStatus = "none"

    @classmethod
    def of(cls, row: Sequence[Any]) -> UsageTotals:
        """Make it from a row with the columns of ``SUMS``."""
        *counts, cost, unknown, included = row
        requests = counts[0]
        status: CostStatus = "estimated"
        if not requests:
            status = "none"
        elif unknown:
            status = "at_least" if cost else "unknown"
        elif included == requests:
            status = "included"
        values: list[Any] = [*counts, cost if status in ("estimated", "at_least") else None, status]
        return cls(*values)

    @property
    def prompt(self) -> int:
        """Tokens of all prompts, read from a cache or not."""
        return self.input + self.cache_read + self.cache_write

    @property
    def tokens(self) -> int:
        """Tokens of prompts and replies together."""
        return self.prompt + self.output

    @property
    def cache_hit(self) -> float | None:
        """Share of the prompt that was read from a provider's cache, 0 to 1."""
        return self.cache_read / self.prompt if self.prompt else None

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        return {
            "requests": self.requests, "input": self.input, "output": self.output,
            "cache_read": self.cache_read, "cache_write": self.cache_write, "reasoning": self.reasoning,
            "prompt": self.prompt, "tokens": self.tokens, "cache_hit": self.cache_hit, "cost_usd": self.cost,
            "cost_status": self.cost_status,
        }  # fmt: skip


NOTHING = UsageTotals()
