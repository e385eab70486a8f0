"""Asking the person at the terminal: may a tool run, and what the model wants to know. Nobody there means no."""

from __future__ import annotations

import re
import select
import sys
from collections.abc import Callable, Sequence
from typing import Literal

from rich.text import Text

from fsm_agent.cli.live import Live
from fsm_agent.cli.screen import clean, preview
from fsm_agent.requests import AskApproval
from fsm_agent.texts import shorten

Answer = Literal["once", "session", "always", "deny", "never"]
ANSWERS: dict[str, Answer] = {
    "y": "once", "yes": "once", "once": "once", "s": "session", "session": "session", "a": "always", "always": "always",
    "n": "deny", "no": "deny", "deny": "deny", "": "deny", "never": "never",
}  # fmt: skip
QUESTION = "Allow it?  y once · s this session · a always · n no · never: "
MAX_SHOWN, MAX_LINES = 2_000, 40
"""Characters and lines of one argument that are shown before a person decides: of a longer one its beginning and its end, because
what matters may stand behind pages of nothing."""


def attend(live: Live, yes: bool) -> None:
    """Let the turn ask the person at the terminal, if there is one. With ``yes`` every tool is approved without asking."""
    there = sys.stdin is not None and sys.stdin.isatty()
    live.approval = (lambda request: True) if yes else (lambda request: _ask(request, live)) if there else None
    live.clarify = (lambda question, choices: _question(question, choices, live)) if there else None


def _ask(request: AskApproval, live: Live) -> Answer:
    """Runs in a thread of its own and gives up when the turn has moved on without an answer."""
    waiting = live.waiting()
    task = f" for the delegated task “{clean(request.origin)}”" if request.origin else ""
    lines = [Text(f"  {clean(request.name)} wants to run{task}:", "bold yellow")]
    lines += [Text(f"    {clean(name)} = {shown(str(value))}") for name, value in request.arguments.items()]
    if request.pattern:
        lines.append(Text(f"    remembered as {preview(request.pattern, 200)}", "dim"))
    live.write(*lines)
    while True:
        live.question(QUESTION)
        if (line := _line(waiting)) is None:
            return "deny"
        live.answered()
        if (answer := ANSWERS.get(line.strip().lower())) is not None:
            if answer in ("deny", "never"):
                live.write(Text("    ✗ denied", "yellow"))
            return answer


def shown(value: str) -> str:
    """An argument as far as a person can read it. What is invisible is left out, and runs of blanks are told as such."""
    text = re.sub(r"[^\S\n]{40,}", lambda found: f" … [{len(found[0]):,} blanks] … ", clean(value))
    text = re.sub(r"\n(?:[^\S\n]*\n){3,}", lambda found: f"\n… [{found[0].count(chr(10)) - 1:,} empty lines] …\n", text)
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        kept = MAX_LINES // 2
        text = "\n".join([*lines[:kept], f"… [{len(lines):,} lines in all] …", *lines[-kept:]])
    return shorten(text, MAX_SHOWN)


def _question(question: str, choices: Sequence[str], live: Live) -> str | None:
    """What the model wants to know: one of the choices by its number, or any other words."""
    waiting = live.waiting()
    live.write(Text(f"  {clean(question)}", "bold yellow"))
    live.write(*(Text(f"    {number} {clean(choice)}") for number, choice in enumerate(choices, 1)))
    live.question("Your answer" + (" (a number, or in your own words): " if choices else ": "))
    if (line := _line(waiting)) is None:
        return None
    live.answered()
    words = line.strip()
    chosen = int(words) if words.isascii() and words.isdigit() else 0
    return choices[chosen - 1] if 1 <= chosen <= len(choices) else words or None


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
