"""Configurations of the turn in which every row can be taken soon: most budgets are none, so that searches
stay small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers.turn_facts import FIXED, Config

NOTHING = {
    "iterations": 1, "free_rounds": 0, "summary_calls": 0, "fallbacks": 0, "rekeys": 0, "retries": 0, "patience": 0, "compactions": 0,
    "overflows": 0, "continuations": 0, "cut_calls": 0, "incompletes": 0, "scratchpads": 0, "acks": 0, "verifies": 0,
    "invalid_tool_rounds": 0, "reasks": 0, "nudges": 0, "thinking_prefills": 0, "empties": 0, "attempts": 60, "sends": 30,
    "lost_requests": 0, "summarisers": 1, "modelless_compactions": 1, "revisions": 0,
}  # fmt: skip


GROUPS: dict[str, dict[str, Any]] = {
    "continuations": dict.fromkeys(
        ("continuations", "cut_calls", "incompletes", "scratchpads", "acks", "verifies"), 1
    ),
    "tools": {"invalid_tool_rounds": 1, "reasks": 1, "free_rounds": 1},
    "blanks": {"nudges": 1, "thinking_prefills": 1, "empties": 1},
    "blanks without a nudge": {"thinking_prefills": 1, "empties": 1},
    "asking again": {"empties": 1},
    "errors": {"retries": 2, "rekeys": 1},
    "fallbacks": {"fallbacks": 1, "retries": 2},
    "keys and fallbacks": {"fallbacks": 1, "retries": 1, "rekeys": 1},
    "lost requests": {"lost_requests": 2},
    "no summary": {"modelless_compactions": 0, "lost_requests": 1, "summarisers": 2},
    "silent": {"fallbacks": 1, "retries": 1, "silent": True},
}


def config(name: str, **given: Any) -> Config:
    """``NOTHING`` but what is given: limits by their names, the rest as ``Config`` has it."""
    own = {key: given.pop(key) for key in tuple(given) if key in NOTHING}
    limits = NOTHING | own
    limits["patience"] = min(1, limits["retries"])
    return Config(limits | FIXED, name=name, **given)


def configs() -> Iterator[Config]:
    """Searched in this order; each should add rows."""
    yield config("nothing")
    yield config("no iteration", iterations=0)
    yield config("starved", iterations=2, summary_calls=2, retries=1, fallbacks=1, window=True)
    yield config("continuations", iterations=3, **GROUPS["continuations"], invalid_tool_rounds=1, reasks=1)
    yield config(
        "last words",
        iterations=1,
        summary_calls=2,
        retries=1,
        fallbacks=1,
        continuations=1,
        acks=1,
        invalid_tool_rounds=1,
        window=True,
    )
    yield config("blanks", iterations=3, nudges=1, thinking_prefills=1, empties=1, fallbacks=1, free_rounds=1)
    yield config("errors", iterations=2, retries=2, rekeys=1, fallbacks=1)
    yield config("keys, no fallback", iterations=1, retries=1, rekeys=1)
    yield config("no fallback", iterations=1, retries=2)
    yield config("refreshes", iterations=2, retries=1, rekeys=1, keys="refresh")
    yield config("compactions", iterations=2, compactions=2, overflows=2, window=True, summary_calls=2)
    yield config("lost", iterations=2, lost_requests=1, compactions=1, window=True)
    yield config(
        "unsummarised",
        iterations=2,
        compactions=1,
        summarisers=2,
        lost_requests=1,
        modelless_compactions=0,
        window=True,
    )
    yield config("silent", iterations=1, retries=1, summary_calls=1, silent=True)
    yield config("wider", iterations=2, compactions=1, overflows=1, fallbacks=1, window=True, chain="wider")
    yield config("ring", iterations=2, compactions=1, overflows=1, fallbacks=1, window=True, chain="ring")
    yield config("no compaction", compression=False, window=True)
    yield config("capped", iterations=2, retries=2, compactions=1, overflows=1, attempts=1, window=True)
    yield config(
        "capped wider", iterations=1, fallbacks=1, overflows=1, attempts=1, window=True, chain="wider"
    )
    yield config(
        "capped block", iterations=2, retries=2, compactions=1, overflows=1, attempts=2, sends=1, window=True
    )
    yield config("checked", iterations=2, revisions=1, fallbacks=1, compactions=1, window=True, checks=True)
    yield config(
        "checked, no model", iterations=1, compactions=1, modelless_compactions=0, window=True, checks=True
    )
    yield config("tiny", tiny_from=0, window=True)
    yield config("tiny fallback", iterations=3, fallbacks=1, retries=1, tiny_from=1, window=True)


SITUATIONS: dict[str, dict[str, Any]] = {
    "capped": {"iterations": 3, "attempts": 1, "window": True},
    "capped at two": {"iterations": 3, "attempts": 2, "window": True},
    "capped at three": {"iterations": 3, "attempts": 3, "window": True},
    "capped after a compaction": {"iterations": 3, "attempts": 2, "overflows": 1, "window": True},
    "capped in the last word": {"iterations": 0, "summary_calls": 2, "attempts": 1, "window": True},
    "capped before the last word": {"iterations": 2, "summary_calls": 2, "attempts": 1, "window": True},
    "large": {"iterations": 3, "compactions": 1, "window": True},
    "large, no compaction": {"iterations": 2, "window": True},
    "last word": {"iterations": 2, "summary_calls": 2, "compactions": 1, "window": True},
    "last word, large": {"iterations": 1, "summary_calls": 2, "window": True},
    "shared budget": {"iterations": 4, "summary_calls": 2},
    "shared budget, no last word": {"iterations": 3},
    "no iteration left": {"iterations": 1},
}


def more_configs() -> Iterator[Config]:
    """For pairs of rows: each group of remedies in each situation."""
    yield from configs()
    yield config("refresh and fallback", iterations=2, fallbacks=1, rekeys=1, keys="refresh")
    yield config(
        "tiny fallback after keys", iterations=1, fallbacks=1, retries=1, rekeys=1, tiny_from=1, window=True
    )
    yield config(
        "keys, cut calls",
        iterations=1,
        cut_calls=1,
        compactions=1,
        fallbacks=1,
        retries=1,
        rekeys=1,
        window=True,
    )
    yield config(
        "tiny fallback in the last word", iterations=0, summary_calls=2, fallbacks=1, tiny_from=1, window=True
    )
    yield config(
        "wider, one send", iterations=1, overflows=1, fallbacks=1, sends=1, window=True, chain="wider"
    )
    yield config(
        "wider, one send, no compaction", iterations=1, fallbacks=1, sends=1, window=True, chain="wider"
    )
    yield config(
        "wider, cut calls",
        iterations=1,
        cut_calls=2,
        compactions=1,
        overflows=1,
        fallbacks=1,
        window=True,
        chain="wider",
    )
    yield config(
        "fallback in the last word", iterations=0, summary_calls=2, compactions=1, fallbacks=1, window=True
    )
    yield config(
        "capped fallback in the last word",
        iterations=0,
        summary_calls=2,
        attempts=1,
        fallbacks=1,
        window=True,
    )
    yield config("silent, fallback", iterations=1, retries=1, fallbacks=1, silent=True)
    yield config("silent, no iteration", iterations=0, fallbacks=1, silent=True)
    yield config("silent, again", iterations=1, retries=2, silent=True)
    yield config(
        "silent in the last word", iterations=0, summary_calls=1, retries=1, fallbacks=1, silent=True
    )
    yield config("silent, no retry", iterations=0, summary_calls=1, fallbacks=1, silent=True)
    yield config("lost, forced", iterations=1, overflows=1, lost_requests=2, summarisers=2, window=True)
    yield config(
        "lost, nothing else", iterations=1, overflows=1, lost_requests=1, modelless_compactions=0, window=True
    )
    yield config(
        "lost, wider",
        iterations=1,
        overflows=1,
        lost_requests=2,
        fallbacks=1,
        modelless_compactions=0,
        window=True,
        chain="wider",
    )
    yield config(
        "lost, ring", iterations=1, overflows=1, lost_requests=1, fallbacks=1, window=True, chain="ring"
    )
    yield config("a summariser lost", iterations=1, compactions=1, summarisers=2, window=True)
    yield config(
        "lost, and compacted again", iterations=1, compactions=2, modelless_compactions=0, window=True
    )
    yield config("no summary, wider", iterations=1, overflows=1, fallbacks=1, window=True, chain="wider")
    yield config(
        "no summary, capped", iterations=1, overflows=1, modelless_compactions=0, attempts=1, window=True
    )
    yield config(
        "no summary, capped later",
        iterations=2,
        compactions=1,
        modelless_compactions=0,
        attempts=1,
        window=True,
    )
    yield from checked_configs()
    for group, remedies in GROUPS.items():
        for situation, limits in SITUATIONS.items():
            yield config(f"{group}, {situation}", **(limits | remedies))


def checked_configs() -> Iterator[Config]:
    """With guardrails, a type of the answer, and limits: what each of them can end, or send back."""
    for name, given in CHECKED.items():
        yield config(f"checked, {name}", checks=True, **{"revisions": 1} | given)
    for group, remedies in GROUPS.items():
        limits = {"iterations": 3, "summary_calls": 2, **remedies}
        yield config(f"checked, {group}", revisions=1, checks=True, **limits)


CHECKED: dict[str, dict[str, Any]] = {
    "capped": {"iterations": 2, "attempts": 1, "window": True, "compactions": 1},
    "capped at two": {"iterations": 3, "attempts": 2, "window": True, "compactions": 1, "retries": 1},
    "last word": {"iterations": 1, "summary_calls": 2, "window": True, "compactions": 1},
    "no last word": {"iterations": 1, "window": True, "compactions": 1},
    "no iteration left": {"iterations": 1, "fallbacks": 1},
    "forced": {"iterations": 2, "overflows": 2, "compactions": 1, "window": True},
    "forced, no model": {"iterations": 2, "overflows": 2, "compactions": 1, "modelless_compactions": 0, "window": True},
    "wider": {"iterations": 2, "overflows": 1, "fallbacks": 1, "window": True, "chain": "wider"},
    "wider, no model": {
        "iterations": 2, "overflows": 1, "fallbacks": 1, "modelless_compactions": 0, "window": True, "chain": "wider",
    },
    "ring": {"iterations": 2, "overflows": 1, "fallbacks": 1, "window": True, "chain": "ring"},
    "compactions": {"iterations": 3, "compactions": 2, "lost_requests": 1, "summarisers": 2, "window": True},
    "compactions, no model": {"iterations": 3, "compactions": 2, "modelless_compactions": 0, "window": True, "summary_calls": 2},
    "capped fallback": {"iterations": 3, "fallbacks": 1, "attempts": 1, "revisions": 0, "window": True, "compactions": 1},
    "fallback": {"iterations": 3, "fallbacks": 1, "revisions": 0},
    "one send": {"iterations": 2, "overflows": 2, "compactions": 1, "modelless_compactions": 0, "sends": 1, "window": True},
    "tiny fallback": {"iterations": 2, "fallbacks": 1, "retries": 1, "tiny_from": 1, "window": True},
}  # fmt: skip
