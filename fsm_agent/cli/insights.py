"""``fsm-agent insights``: what the turns of the last days did, and what they cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fsm_agent.cli.options import Home, Json
from fsm_agent.cli.screen import (
    OUTCOMES,
    clean,
    cost,
    count,
    dollars,
    grid_of,
    preview,
    put,
    screen,
    share,
    short,
    spell,
    tokens,
)
from fsm_agent.cli.sessions import store_of
from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store.insights import Insights, insights

if TYPE_CHECKING:
    from fsm_agent.backtest.predict import Improbable

ORDINARY = frozenset({"iterations", "free_rounds"})
RECOVERIES = frozenset(
    row.id
    for row in TURN.rows
    if (
        {counter.name for counter in TURN.counters if not counter.flag and not counter.cap} - ORDINARY
    ).intersection(row.spends)
)
"""Rows that spend a counter reserved for failures."""
LEAST_WAIT = 60
"""Minimum seconds of a wait that the report names."""
ROWS = 12
"""Maximum rows of one table."""
_WORDS = frozenset(
    {
        "",
        "exit",
        "outcome",
        "state",
        "→ state",
        "row",
        "turn",
        "model",
        "for",
        "tool",
        "id",
        "title",
        "date",
        "source",
    }
)
"""Columns without figures."""
_BAR = "▏▎▍▌▋▊▉█"


def report(
    days: Annotated[float, typer.Option(help="How far back.")] = 30,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Report what recent turns did and cost."""
    if not 0 < days < 100_000:
        raise ConfigError("--days is out of range", days, "more than 0, less than 100,000")
    store = store_of(home)
    found = insights(store, days, RECOVERIES)
    from fsm_agent.backtest.predict import improbable_turns

    rare = improbable_turns(store, days)
    if as_json:
        values = found.to_dict() | {"improbable": [asdict(one) for one in rare]}
        print(json.dumps({"days_asked": days, **values}))
        return 0
    if not found.overview.turns:
        words = f"fsm-agent: there were no turns in the last {days:g} days; --days looks further back"
        print(words, file=sys.stderr)
        return 0
    put(screen(), *_parts(found, rare, days))
    return 0


def _parts(found: Insights, rare: Sequence[Improbable], days: float) -> Iterator[RenderableType]:
    yield from _overview(found, days)
    if found.exits:
        yield _grid("how turns ended", ("exit", "outcome", "turns", ""), _exits(found))
    yield _grid("time in states", ("state", "visits", "all", "mean", "longest", "people", ""), _states(found))
    if found.recoveries:
        yield _grid("recoveries", ("row", "→ state", "taken", "turns"), _recoveries(found))
    yield _grid("models", ("model", "for", "requests", "in", "out", "cached", "cost"), _models(found))
    if found.rows:
        columns = ("row", "requests", "in", "out", "cost", "")
        yield _grid("cost by row that ended the visit", columns, _rows(found))
    if rare:
        yield _grid("improbable turns", ("turn", "row", "its event", "bits"), _rare(rare))
    if found.tools:
        yield _grid("tools", ("tool", "calls", "failed", "unknown", "mean"), _tools(found))
    if [one.source for one in found.sources] not in ([], [""]):
        yield _grid("begun by", ("source", "sessions", "turns", "tokens", "cost"), _sources(found))
    yield _grid("sessions with the most tokens", ("id", "title", "turns", "tokens", "cost"), _sessions(found))
    trend = ("date", "turns", "done", "failed", "requests", "tokens", "cost", "")
    yield _grid("days", trend, _days(found))
    yield Text.assemble(("\nhours  ", "bold"), (_hours(found.hours), "cyan"), ("  0 to 23", "dim"))


def _overview(found: Insights, days: float) -> Iterator[RenderableType]:
    one, total = found.overview, found.total
    yield Text(f"the last {days:g} days", "bold")
    ends = Text(" · ").join(
        Text.assemble((f"{number:,} {name}", OUTCOMES.get(name, "yellow") if number else "dim"))
        for name in ("completed", "failed", "partial", "interrupted", "unfinished")
        if (number := getattr(one, name)) or name == "completed"
    )
    yield Text(f"  {count(one.turns, 'turn')} in {count(one.sessions, 'session')}: ").append_text(ends)
    attempts = found.attempts
    yield Text(
        f"  {count(one.moves, 'move')} in {spell(one.work)} · requests a turn: {attempts.mean:.1f} on"
        f" average, median {attempts.median}, p95 {attempts.p95}, most {attempts.most}"
    )
    waits = (
        ("for people", one.people),
        ("for results and times", one.later),
        ("paused or stopped", one.idle),
    )
    if waiting := [f"{spell(seconds)} {what}" for what, seconds in waits if seconds >= LEAST_WAIT]:
        yield Text(f"  besides waiting: {', '.join(waiting)}")
    yield Text(
        f"  {tokens(total)} tokens · cost {cost(total)} · {share(total.cache_hit)} of prompts from the cache"
        + (f" · {one.undone} undone" if one.undone else "")
        + (f" · {count(one.forks, 'fork')}" if one.forks else "")
        + (f" · {one.children} delegated" if one.children else "")
    )
    shrunk = found.compactions
    if shrunk.count:
        yield Text(
            f"  {count(shrunk.count, 'compaction')} ({shrunk.forced} forced, {shrunk.without_model} without a"
            f" model): {short(shrunk.tokens_before)} tokens became {short(shrunk.tokens_after)} in"
            f" {spell(shrunk.seconds)}"
        )


def _grid(title: str, names: Sequence[str], rows: Sequence[Sequence[Text | str]]) -> RenderableType:
    """Return a table that is as narrow as possible, figures at the right, words at the left."""
    grid = grid_of(names, right={*names}.difference(_WORDS), breaks=24)
    for row in rows[:ROWS]:
        grid.add_row(*row)
    more = [Text(f"{len(rows) - ROWS} more in --json", "dim")] if len(rows) > ROWS else []
    return Group(Text(f"\n{title}", "bold"), grid, *more)


def _exits(found: Insights) -> list[Sequence[Text | str]]:
    most = max(one.turns for one in found.exits) if found.exits else 1
    return [
        (
            clean(one.exit),
            Text(clean(one.outcome), OUTCOMES.get(one.outcome, "")),
            f"{one.turns:,}",
            bar(one.turns / most),
        )
        for one in found.exits
    ]


def _states(found: Insights) -> list[Sequence[Text | str]]:
    most = max((one.seconds for one in found.states), default=0) or 1
    return [
        (
            one.state,
            f"{one.visits:,}",
            spell(one.seconds),
            spell(one.seconds / one.visits),
            spell(one.longest),
            spell(one.people) if one.people else "",
            bar(one.seconds / most),
        )
        for one in found.states
    ]


def _recoveries(found: Insights) -> list[Sequence[Text | str]]:
    return [(clean(one.row), clean(one.dest), f"{one.taken:,}", f"{one.turns:,}") for one in found.recoveries]


def _models(found: Insights) -> list[Sequence[Text | str]]:
    rows: list[Sequence[Text | str]] = []
    for one in found.models:
        spent = one.spent
        name = preview(f"{one.provider}:{one.model}", 60)
        rows.append(
            (
                name,
                clean(one.purpose),
                f"{spent.requests:,}",
                short(spent.prompt),
                short(spent.output),
                share(spent.cache_hit),
                cost(spent),
            )
        )
    return rows or [("no provider reported tokens", "", "", "", "", "", "unknown")]


def _rows(found: Insights) -> list[Sequence[Text | str]]:
    most = max((one.spent.cost or 0.0 for one in found.rows), default=0.0) or 1.0
    return [
        (
            clean(one.row), f"{one.spent.requests:,}", short(one.spent.prompt), short(one.spent.output),
            cost(one.spent), bar((one.spent.cost or 0.0) / most),
        )
        for one in found.rows
    ]  # fmt: skip


def _rare(rare: Sequence[Improbable]) -> list[Sequence[Text | str]]:
    return [
        (clean(one.turn), clean(one.row), f"1 in {1 / one.probability:,.0f}", f"{one.bits:.1f}")
        for one in rare
    ]


def _tools(found: Insights) -> list[Sequence[Text | str]]:
    return [
        (
            preview(one.name, 40), f"{one.calls:,}", _bad(one.failed, "red"),
            _bad(one.unknown + one.open, "yellow"),
            "–" if one.seconds is None else spell(one.seconds),
        )
        for one in found.tools
    ]  # fmt: skip


def _bad(number: int, color: str) -> Text:
    return Text(f"{number:,}", color if number else "dim")


def _sources(found: Insights) -> list[Sequence[Text | str]]:
    return [
        (
            clean(one.source) or "unknown",
            f"{one.sessions:,}",
            f"{one.turns:,}",
            tokens(one.spent),
            cost(one.spent),
        )
        for one in found.sources
    ]


def _sessions(found: Insights) -> list[Sequence[Text | str]]:
    return [
        (clean(one.id), preview(one.title, 36), f"{one.turns:,}", tokens(one.spent), cost(one.spent))
        for one in found.sessions
    ]


def _days(found: Insights) -> list[Sequence[Text | str]]:
    """Return a row for each day, newest first."""
    most = max((one.turns for one in found.days), default=1)
    return [
        (
            one.date, f"{one.turns:,}", f"{one.completed:,}", _bad(one.failed, "red"), f"{one.requests:,}",
            short(one.tokens) if one.tokens else "–", "–" if one.cost is None else dollars(one.cost),
            bar(one.turns / most),
        )
        for one in reversed(found.days)
    ]  # fmt: skip


def bar(part: float, width: int = 16) -> Text:
    """Draw a bar in eighths of a character."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return Text("█" * whole + (_BAR[rest - 1] if rest else ""), "cyan")


def _hours(hours: Sequence[int]) -> str:
    most = max(hours) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(7, round(number / most * 7))] if number else "·" for number in hours)
