"""Configurations of the turn in which every row can be taken soon: most budgets are none, so that searches
stay small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsm_agent.fsm.verify.reachability.small_scopes import limit_names
from fsm_agent_states.table import TURN
from tests.helpers.turn_facts import FIXED, Config

NOTHING = dict.fromkeys(sorted(set(limit_names(TURN)) - set(FIXED)), 0)
NOTHING |= {"iterations": 1, "attempts": 60, "sends": 30, "summarisers": 1, "modelless_compactions": 1}


def config(name: str, **given: Any) -> Config:
    """``NOTHING`` but what is given: limits by their names, the rest as ``Config`` has it."""
    own = {key: given.pop(key) for key in tuple(given) if key in NOTHING}
    limits = NOTHING | own
    limits["patience"] = min(1, limits["retries"])
    return Config(limits | FIXED, name=name, **given)


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
SITUATIONS: dict[str, dict[str, Any]] = {
    "capped at three": {"iterations": 3, "attempts": 3, "window": True},
    "capped after a compaction": {"iterations": 3, "attempts": 2, "overflows": 1, "window": True},
    "capped in the last word": {"iterations": 0, "summary_calls": 2, "attempts": 1, "window": True},
    "capped before the last word": {"iterations": 2, "summary_calls": 2, "attempts": 1, "window": True},
    "large, no compaction": {"iterations": 2, "window": True},
    "last word": {"iterations": 2, "summary_calls": 2, "compactions": 1, "window": True},
    "last word, large": {"iterations": 1, "summary_calls": 2, "window": True},
    "no iteration left": {"iterations": 1},
}
CONFIGS = (
    config("nothing"),
    config("no iteration", iterations=0),
    config("starved", iterations=2, summary_calls=2, retries=1, fallbacks=1, window=True),
    config("continuations", iterations=3, **GROUPS["continuations"], invalid_tool_rounds=1, reasks=1),
    config("last words", iterations=1, summary_calls=2, retries=1, fallbacks=1, continuations=1, acks=1,
           invalid_tool_rounds=1, window=True),
    config("blanks", iterations=3, nudges=1, thinking_prefills=1, empties=1, fallbacks=1, free_rounds=1),
    config("errors", iterations=2, retries=2, rekeys=1, fallbacks=1),
    config("keys, no fallback", iterations=1, retries=1, rekeys=1),
    config("no fallback", iterations=1, retries=2),
    config("refreshes", iterations=2, retries=1, rekeys=1, keys="refresh"),
    config("compactions", iterations=2, compactions=2, overflows=2, window=True, summary_calls=2),
    config("lost", iterations=2, lost_requests=1, compactions=1, window=True),
    config("unsummarised", iterations=2, compactions=1, summarisers=2, lost_requests=1,
           modelless_compactions=0, window=True),
    config("silent", iterations=1, retries=1, summary_calls=1, silent=True),
    config("wider", iterations=2, compactions=1, overflows=1, fallbacks=1, window=True, chain="wider"),
    config("ring", iterations=2, compactions=1, overflows=1, fallbacks=1, window=True, chain="ring"),
    config("no compaction", compression=False, window=True),
    config("capped", iterations=2, retries=2, compactions=1, overflows=1, attempts=1, window=True),
    config("capped wider", iterations=1, fallbacks=1, overflows=1, attempts=1, window=True, chain="wider"),
    config("capped block", iterations=2, retries=2, compactions=1, overflows=1, attempts=2, sends=1,
           window=True),
    config("checked", iterations=2, revisions=1, fallbacks=1, compactions=1, window=True, checks=True),
    config("checked, no model", iterations=1, compactions=1, modelless_compactions=0, window=True,
           checks=True),
    config("tiny", tiny_from=0, window=True),
    config("tiny fallback", iterations=3, fallbacks=1, retries=1, tiny_from=1, window=True),
)  # fmt: skip
"""Searched in this order; together they take every row."""
RARE = (
    config("tiny fallback after keys", iterations=1, fallbacks=1, retries=1, rekeys=1, tiny_from=1,
           window=True),
    config("keys, cut calls", iterations=1, cut_calls=1, compactions=1, fallbacks=1, retries=1, rekeys=1,
           window=True),
    config("tiny fallback in the last word", iterations=0, summary_calls=2, fallbacks=1, tiny_from=1,
           window=True),
    config("wider, one send", iterations=1, overflows=1, fallbacks=1, sends=1, window=True, chain="wider"),
    config("wider, one send, no compaction", iterations=1, fallbacks=1, sends=1, window=True, chain="wider"),
    config("wider, cut calls", iterations=1, cut_calls=2, compactions=1, overflows=1, fallbacks=1,
           window=True, chain="wider"),
    config("silent, no iteration", iterations=0, fallbacks=1, silent=True),
    config("silent, again", iterations=1, retries=2, silent=True),
    config("lost, wider", iterations=1, overflows=1, lost_requests=2, fallbacks=1, modelless_compactions=0,
           window=True, chain="wider"),
    config("lost, ring", iterations=1, overflows=1, lost_requests=1, fallbacks=1, window=True, chain="ring"),
    config("lost, forced", iterations=1, overflows=1, lost_requests=2, summarisers=2, window=True),
    config("lost, nothing else", iterations=1, overflows=1, lost_requests=1, modelless_compactions=0,
           window=True),
    config("a summariser lost", iterations=1, compactions=1, summarisers=2, window=True),
    config("lost, and compacted again", iterations=1, compactions=2, modelless_compactions=0, window=True),
    config("no summary, capped", iterations=1, overflows=1, modelless_compactions=0, attempts=1, window=True),
)  # fmt: skip
CHECKED: dict[str, dict[str, Any]] = {
    "capped at two": {"iterations": 3, "attempts": 2, "window": True, "compactions": 1, "retries": 1},
    "wider": {"iterations": 2, "overflows": 1, "fallbacks": 1, "window": True, "chain": "wider"},
    "wider, no model": {
        "iterations": 2, "overflows": 1, "fallbacks": 1, "modelless_compactions": 0, "window": True, "chain": "wider",
    },
    "compactions": {"iterations": 3, "compactions": 2, "lost_requests": 1, "summarisers": 2, "window": True},
    "compactions, no model": {
        "iterations": 3, "compactions": 2, "modelless_compactions": 0, "window": True, "summary_calls": 2,
    },
    "capped fallback": {
        "iterations": 3, "fallbacks": 1, "attempts": 1, "revisions": 0, "window": True, "compactions": 1,
    },
    "one send": {
        "iterations": 2, "overflows": 2, "compactions": 1, "modelless_compactions": 0, "sends": 1, "window": True,
    },
    "tiny fallback": {"iterations": 2, "fallbacks": 1, "retries": 1, "tiny_from": 1, "window": True},
    **{group: {"iterations": 3, "summary_calls": 2, **remedies} for group, remedies in GROUPS.items()},
}  # fmt: skip
"""With guardrails, a type of the answer, and limits: what each of them can end, or send back."""


def more_configs() -> Iterator[Config]:
    """For pairs of rows: each group of remedies in each situation. Without any of ``RARE``, ``CHECKED`` and the
    situations there would be fewer pairs."""
    yield from (*CONFIGS, *RARE)
    for name, given in CHECKED.items():
        yield config(f"checked, {name}", checks=True, **{"revisions": 1} | given)
    for group, remedies in GROUPS.items():
        for situation, limits in SITUATIONS.items():
            yield config(f"{group}, {situation}", **(limits | remedies))
