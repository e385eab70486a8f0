"""What a report about some days says, as values. ``insights`` makes one, ``to_dict`` is its JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fsm_agent.sessions.store.reports.usage_totals import Spent


@dataclass(frozen=True, slots=True)
class Overview:
    """``turns`` = completed + failed + partial + interrupted + unfinished. ``seconds`` from a turn's beginning to its end, all
    together; ``undone`` turns were taken back by their users, and count; ``forks`` and ``children`` (delegated turns) are among
    all."""

    sessions: int
    turns: int
    completed: int
    failed: int
    partial: int
    interrupted: int
    unfinished: int
    undone: int
    forks: int
    children: int
    moves: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Exit:
    exit: str
    outcome: str
    turns: int


@dataclass(frozen=True, slots=True)
class State:
    """Seconds spent in a state, all visits together, and in the longest one."""

    state: str
    visits: int
    seconds: float
    longest: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """How often a row of the table was taken, and by how many turns."""

    row: str
    source: str
    event: str
    dest: str
    taken: int
    turns: int


@dataclass(frozen=True, slots=True)
class Compactions:
    """Of ended turns. ``without_model``: the summary was made without one. Tokens are estimates."""

    count: int
    forced: int
    without_model: int
    tokens_before: int
    tokens_after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Model:
    provider: str
    model: str
    purpose: str
    spent: Spent


@dataclass(frozen=True, slots=True)
class ToolUse:
    """``unknown``: nobody can say whether it took effect. ``seconds`` is the mean of a call, ``None`` when none has ended."""

    name: str
    calls: int
    failed: int
    unknown: int
    open: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class SessionUse:
    id: str
    title: str
    turns: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class SourceUse:
    """``source``: what began the sessions of these turns, such as cli, chat, python or child."""

    source: str
    sessions: int
    turns: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class Attempts:
    """Requests to a model that one turn took. All 0 when no turn has ended."""

    mean: float
    median: int
    p95: int
    most: int


@dataclass(frozen=True, slots=True)
class Insights:
    """``since`` and ``until`` in seconds since the epoch. ``days``: (date, turns, tokens) of days with turns, local time;
    ``hours``: turns by the hour they began in, 24 of them."""

    since: float
    until: float
    overview: Overview
    exits: list[Exit]
    states: list[State]
    recoveries: list[Recovery]
    compactions: Compactions
    total: Spent
    models: list[Model]
    tools: list[ToolUse]
    sources: list[SourceUse]
    sessions: list[SessionUse]
    days: list[tuple[str, int, int]]
    hours: list[int]
    attempts: Attempts

    def to_dict(self) -> dict[str, Any]:
        told = asdict(self)
        told["total"] = self.total.to_dict()
        told["models"] = [
            {"provider": one.provider, "model": one.model, "purpose": one.purpose, **one.spent.to_dict()} for one in self.models
        ]
        told["sessions"] = [
            {"id": one.id, "title": one.title, "turns": one.turns, **one.spent.to_dict()} for one in self.sessions
        ]
        told["sources"] = [
            {"source": one.source, "sessions": one.sessions, "turns": one.turns, **one.spent.to_dict()} for one in self.sources
        ]
        told["days"] = [{"date": date, "turns": turns, "tokens": tokens} for date, turns, tokens in self.days]
        return told
