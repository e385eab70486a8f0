"""Figures as people read them: when, how many, how much."""

from __future__ import annotations

import time

from fsm_agent.cli.screen import seconds
from fsm_agent.sessions.store.reports.spending import UsageTotals


def ago(at: float, now: float) -> str:
    """How long something is past; a date when it is long past."""
    past = now - at
    if past < 60:
        return "just now"
    if past < 3600:
        return f"{int(past // 60)} min ago"
    if past < 86_400:
        return f"{int(past // 3600)} h ago"
    return time.strftime("%Y-%m-%d", time.localtime(at))


def since(at: float, now: float) -> str:
    """The same in six characters."""
    past = now - at
    if past < 60:
        return "now"
    if past < 3600:
        return f"{int(past // 60)} min"
    if past < 86_400:
        return f"{int(past // 3600)} h"
    return f"{int(past // 86_400)} d"


def moment(at: float) -> str:
    """Return a time, in seconds since the epoch, as local date and minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it has to be."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(number: int) -> str:
    """``812``, ``12.3k``, ``4.5M``."""
    if number < 1_000:
        return str(number)
    return f"{number / 1_000:.1f}k" if number < 999_950 else f"{number / 1_000_000:.1f}M"


def tokens(spent: UsageTotals) -> str:
    """Return the tokens in short, or that nobody knows."""
    return short(spent.tokens) if spent.requests else "unknown"


def cost(spent: UsageTotals) -> str:
    """Never 0 for what is not known."""
    if spent.cost_status in ("none", "unknown"):
        return "unknown"
    if spent.cost is None:
        return "included"
    return ("≥ " if spent.cost_status == "at_least" else "") + dollars(spent.cost)


def dollars(amount: float) -> str:
    """Return an amount of US dollars, precise where it is small."""
    if 0 < amount < 0.0001:
        return "<$0.0001"
    return f"${amount:,.2f}" if amount >= 0.995 else f"${amount:.4f}"


def share(part: float | None) -> str:
    """Return a part of 1 as a percentage; a dash when nobody knows."""
    return "–" if part is None else f"{part:.0%}"


def spell(amount: float) -> str:
    """Seconds, also very many and very few."""
    if amount < 0.1:
        return f"{amount * 1000:.0f} ms"
    return f"{amount / 3600:,.1f} h" if amount >= 7200 else seconds(amount)
