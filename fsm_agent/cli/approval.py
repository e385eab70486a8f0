"""Asking the person at the terminal: may a tool run, what does the model want to know? Nobody there is no."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Literal

from rich.text import Text

from fsm_agent.approvals.gutter import QuestionRow
from fsm_agent.approvals.question import Question
from fsm_agent.approvals.visible import ESCAPE, NEWLINE, TAB
from fsm_agent.cli import keyboard
from fsm_agent.cli.live import ProgressView
from fsm_agent.cli.screen import clean, console_of
from fsm_agent.conversation.effects import AskApproval

Answer = Literal["once", "session", "always", "deny", "never"]
ANSWERS: dict[str, Answer] = {
    "y": "once", "yes": "once", "once": "once", "s": "session", "session": "session", "a": "always",
    "always": "always",
    "n": "deny", "no": "deny", "deny": "deny", "": "deny", "never": "never",
}  # fmt: skip
QUESTION = "Allow it?  y once · s this session · a always · n no · never: "
ONLY_ONCE = "Allow it?  y once · n no: "
"""For a call that cannot be remembered."""
LONGER = "s, a or never"
_SIGNS = re.compile(rf"{ESCAPE.pattern}|{TAB}|{NEWLINE}")


def attend(live: ProgressView, yes: bool) -> None:
    """Let the turn ask the person at the terminal, if there is one. With ``yes`` every tool is approved
    without asking."""
    seen = _seen(live) if sys.stdin is not None and sys.stdin.isatty() else None
    if seen is not None:
        asking = Asking(live, seen)
        live.approval, live.clarify = asking.approval, asking.question
    if yes:
        live.approval = lambda request: True


def _seen(live: ProgressView) -> ProgressView | None:
    """Where a person sees a question: ``live``, or standard error while the output goes to a file; ``None``:
    nowhere."""
    if live.console.file.isatty():
        return live
    return ProgressView(console_of(sys.stderr)) if sys.stderr is not None and sys.stderr.isatty() else None


class Asking:
    """Questions run in threads of their own and give up when the turn has moved on without an answer.
    ``live`` is the view of the turn, ``seen`` the one that the questions stand in."""

    def __init__(self, live: ProgressView, seen: ProgressView) -> None:
        self._live, self._seen = live, seen

    def approval(self, request: AskApproval) -> Answer:
        """Ask the person at the terminal, and return the answer."""
        with self._live.aside():
            return self._approval(request)

    def _approval(self, request: AskApproval) -> Answer:
        waiting, console = self._live.waiting(), self._seen.console
        question = Question.of(request, console.encoding)
        allowed = {
            key: answer
            for key, answer in ANSWERS.items()
            if question.remembered or answer in ("once", "deny")
        }
        rows = question.rows(console.width, console.height, LONGER)
        self._seen.write(Text("\n").join(map(drawn, rows)))
        while True:
            keyboard.forget_all(waiting)
            self._seen.question(QUESTION if question.remembered else ONLY_ONCE)
            if (line := keyboard.line(waiting)) is None:
                return "deny"
            self._seen.answered()
            if keyboard.follows():
                self._seen.write(Text("    several lines at once are no answer", "yellow"))
            elif (answer := allowed.get(line.strip().lower())) is not None:
                if answer in ("deny", "never"):
                    self._seen.write(Text("    ✗ denied", "yellow"))
                return answer

    def question(self, question: str, choices: Sequence[str]) -> str | None:
        """What the model wants to know: one of the choices by its number, or any other words."""
        with self._live.aside():
            return self._question(question, choices)

    def _question(self, question: str, choices: Sequence[str]) -> str | None:
        waiting = self._live.waiting()
        self._seen.write(Text(f"  {clean(question)}", "bold yellow"))
        self._seen.write(*(Text(f"    {number} {clean(choice)}") for number, choice in enumerate(choices, 1)))
        keyboard.forget_all(waiting)
        self._seen.question("Your answer" + (" (a number, or in your own words): " if choices else ": "))
        if (line := keyboard.line(waiting)) is None:
            return None
        self._seen.answered()
        words = line.strip()
        chosen = int(words) if words.isascii() and words.isdigit() else 0
        return choices[chosen - 1] if 1 <= chosen <= len(choices) else words or None


def drawn(row: QuestionRow) -> Text:
    """A row of a question in colours."""
    text = Text(row.text)
    text.highlight_regex(_SIGNS, "red")
    return Text.assemble((row.head, "bold yellow" if row.sentence else "dim"), text)
