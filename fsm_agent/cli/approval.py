"""Asking a person whether a tool may run. Nobody at the terminal means no."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Literal

from rich.text import Text

from fsm_agent.cli.live import Live
from fsm_agent.cli.screen import clean
from fsm_agent.requests import AskApproval

Answer = Literal["once", "session", "always", "deny"]
ANSWERS: dict[str, Answer] = {
    "y": "once", "yes": "once", "once": "once", "s": "session", "session": "session", "a": "always", "always": "always",
    "n": "deny", "no": "deny", "deny": "deny", "": "deny",
}  # fmt: skip
QUESTION = "Allow it?  y once · s this session · a always · n no: "
MAX_SHOWN = 2_000
"""Characters of one argument that are shown before a person decides."""


def asker(live: Live, yes: bool) -> Callable[[AskApproval], Answer | bool] | None:
    """How to ask for approval; ``None`` when nobody is there, so that the turn knows it runs unattended."""
    if yes:
        return lambda request: True
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return lambda request: _ask(request, live)


def _ask(request: AskApproval, live: Live) -> Answer:
    """Runs in a thread of its own and gives up when the turn has moved on without an answer."""
    waiting = live.waiting()
    lines = [Text(f"  {clean(request.name)} wants to run:", "bold yellow")]
    for name, value in request.arguments.items():
        shown = clean(str(value))
        cut = f" … [{len(shown):,} characters in all]" if len(shown) > MAX_SHOWN else ""
        lines.append(Text(f"    {clean(name)} = {shown[:MAX_SHOWN]}{cut}"))
    live.write(*lines)
    while True:
        live.question(QUESTION)
        if (line := _line(waiting)) is None:
            return "deny"
        live.answered()
        if (answer := ANSWERS.get(line.strip().lower())) is not None:
            if answer == "deny":
                live.write(Text("    ✗ denied", "yellow"))
            return answer


def _line(waiting: Callable[[], bool]) -> str | None:
    """A line from the terminal, or ``None`` when nobody waits for it any more: it must not swallow later input."""
    if not hasattr(select, "poll"):  # no way to look at a terminal without reading from it
        return sys.stdin.readline()
    readable = False
    while waiting():
        if readable:
            return sys.stdin.readline()
        readable = bool(select.select([sys.stdin], [], [], 0.1)[0])
    return None
