"""Asking the person at the terminal: may a tool run, what does the model want to know? Nobody there is no."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Literal

from rich.text import Text

from fsm_agent.approvals.question import Question, QuestionPart
from fsm_agent.approvals.visible import ESCAPE
from fsm_agent.cli import keyboard
from fsm_agent.cli.gutter import BEGINS, VALUE, beside, broken
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
REMEMBERED, ALONE = "s, a or never would remember", "s, a or never would remember this call alone"
_HASH = re.compile(r"\(#[0-9a-f]{64}\)\Z")
"""A pattern for one call, which a person cannot read."""
ESCAPES = r"    (\x1b and the like stand for unseen characters, \x5c for a backslash)"
LABEL = 16
"""Columns for the names of arguments; a longer one stands above its value."""
FRAME = 6
"""Lines of a question beside the call itself; with more lines than a screen has left, it says its size and
its head again."""


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
        waiting, console = self._live.waiting(), self._seen.console
        question = Question.of(request, console.encoding)
        allowed = {
            key: answer
            for key, answer in ANSWERS.items()
            if question.remembered or answer in ("once", "deny")
        }
        self._seen.write(Text("\n").join(rows(question, console.width, console.height)))
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
        waiting = self._live.waiting()
        self._seen.write(Text(f"  {clean(question)}", "bold yellow"))
        self._seen.write(*(Text(f"    {number} {clean(choice)}") for number, choice in enumerate(choices, 1)))
        keyboard.forget()
        self._seen.question("Your answer" + (" (a number, or in your own words): " if choices else ": "))
        if (line := keyboard.line(waiting)) is None:
            return None
        self._seen.answered()
        words = line.strip()
        chosen = int(words) if words.isascii() and words.isdigit() else 0
        return choices[chosen - 1] if 1 <= chosen <= len(choices) else words or None


def rows(question: Question, width: int, height: int) -> list[Text]:
    """All that a person reads before the question itself, for a terminal of so many columns and lines."""
    label = min(LABEL, max((len(part.place) for part in question.parts), default=0))
    call = [row for part in question.parts for row in _part(part, label, width)]
    size = (
        f" {question.characters:,} characters in {question.lines:,} lines"
        if len(call) + FRAME > height
        else ""
    )
    head = f"  {question.name} wants to run{size}"
    before = [Text(f"{head}:" if call else f"{head}, without arguments", "bold yellow")]
    after = [Text(f"{head}, shown above", "bold yellow")] if size else []
    if question.task:
        before += _labelled("(for the delegated task)", question.task, width)
    if question.why:
        before += _labelled("(asked because)", question.why, width)
    texts = (
        question.name,
        question.task,
        question.why,
        question.remembered,
        *(f"{part.place} {part.shown}" for part in question.parts),
    )
    if any(ESCAPE.search(text) for text in texts):
        after.append(Text(ESCAPES, "dim"))
    if question.remembered:
        after += _labelled(
            ALONE if _HASH.search(question.remembered) else REMEMBERED, question.remembered, width
        )
    return [*before, *call, *after]


def _part(part: QuestionPart, label: int, width: int) -> list[Text]:
    sign = BEGINS if part.words else VALUE
    if len(part.place) <= label:
        return beside(part.place.ljust(label), part.shown, width, sign)
    return [
        *(Text(f"    {piece}", "dim") for piece in broken(part.place, width - 4)),
        *beside(" ", part.shown, width, sign),
    ]


def _labelled(label: str, shown: str, width: int) -> list[Text]:
    """Beside the label where it fits on that row, else below."""
    row = beside(label, shown, width)
    return row if len(row) == 1 else [Text(f"    {label}", "dim"), *beside(" ", shown, width)]
