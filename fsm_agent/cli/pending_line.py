"""What a suspended turn waits for, in a line that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.cli.screen import clean
from fsm_agent.sessions.store.pending import Pending


def usage(item: Pending) -> str:
    """How an answer to it is written."""
    words = {"question": "WORDS", "result": "--result TEXT|@FILE", "timer": "[WORDS]"}
    return "|".join(item.choices) if item.kind == "approval" else words[item.kind]


def waiting_line(pending: Sequence[Pending], turn: str) -> str:
    """A line that says what a turn waits for, and what to do."""
    if not pending:
        return f"suspended; go on: fsm-agent sessions resume {turn}"
    named = ", ".join(f"{one.id} ({one.what})" for one in pending)
    first = pending[0]
    return clean(
        f"suspended, it waits for {named}; fsm-agent pending show {first.id}, pending answer"
        f" {first.id} {usage(first)}, then fsm-agent pending run"
    )
