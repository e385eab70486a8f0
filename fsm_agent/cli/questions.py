"""Questions to the person at the terminal: approvals of tools, and questions of the model. Without a person
the answer is no."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.text import Text

from fsm_agent.approvals.question import (
    BEGINS,
    ESCAPE,
    GOES_ON,
    NEWLINE,
    TAB,
    VALUE,
    Question,
    QuestionPart,
    QuestionRow,
    visible,
)
from fsm_agent.cli.input import Waiting, follows, settle
from fsm_agent.cli.input import line as typed_line
from fsm_agent.cli.screen import clean, color_of, console_of, in_language, preview
from fsm_agent.cli.view import ProgressView
from fsm_agent.conversation.effects import Approval, AskApproval
from fsm_agent.support.diffs import NO_FILE, numbers
from fsm_agent.toolsets.edit import Edits
from fsm_agent.toolsets.files import Seen

Answer = Literal["once", "session", "always", "deny", "never"]
ANSWERS: dict[str, Answer] = {
    "y": "once", "yes": "once", "once": "once", "s": "session", "session": "session", "a": "always",
    "always": "always",
    "n": "deny", "no": "deny", "deny": "deny", "": "deny", "never": "never",
}  # fmt: skip
QUESTION = "Allow it?  y once · s this session · a always · n no · never: "
ONLY_ONCE = "Allow it?  y once · n no: "
"""For a call that cannot be remembered."""
EDITS = "Allow it?  y once · e all edits · s, a this file · n no · never: "
"""For a change of a file that a person has seen; ``e`` covers every call of this tool in this session."""
CHANGE = "change"
"""The label of a diff."""
CHANGED = ("content", "old_text", "new_text", "every")
"""Arguments that a diff shows in full."""
REFUSED = {
    "deny": "denied: you said no to this call",
    "never": "denied: you said never, so such calls are refused without asking",
}
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
    """Return the view where a person sees a question: ``live``, or standard output while everything else goes
    to a file; else ``None``."""
    if live.console.is_terminal:
        return live
    return ProgressView(console_of(sys.stdout)) if sys.stdout is not None and sys.stdout.isatty() else None


class Asking:
    """Questions, which run in their own threads and give up when the turn has continued without an answer.
    ``live`` is the view of the turn, ``seen`` the one that shows the questions."""

    def __init__(self, live: ProgressView, seen: ProgressView) -> None:
        self._live, self._seen = live, seen

    def approval(self, request: AskApproval) -> Answer | Approval:
        """Ask the person at the terminal, and return the answer."""
        with self._live.aside(), self._live.asking() as waiting:
            return self._approval(request, waiting)

    def _approval(self, request: AskApproval, waiting: Waiting) -> Answer | Approval:
        console = self._seen.console
        question, change = Question.of(request, console.encoding), self._change(request)
        gutter: list[str] = []
        words = {
            key: answer
            for key, answer in ANSWERS.items()
            if question.remembered or answer in ("once", "deny")
        }
        if change is not None:
            question, gutter = with_change(question, change, console.encoding)
            self._live.mark_change_shown(request.call_id)
        rows = [*number_rows(question.rows(console.width, console.height, LONGER), gutter)]
        for row in colors(rows, str(request.arguments.get("path", ""))):
            console.print(row, soft_wrap=True)
        for_edits = change is not None and bool(question.remembered)
        while True:
            settle(waiting, self._live.keep)
            self._seen.question(EDITS if for_edits else QUESTION if question.remembered else ONLY_ONCE)
            if (line := typed_line(waiting)) is None:
                return "deny"
            choice = line.strip().lower()
            if follows():
                self._seen.write(Text("    several lines at once are not an answer", "yellow"))
            elif choice == "e" and for_edits:
                return Approval(
                    True, "all edits of this session are approved", "session", pattern=request.name
                )
            elif (answer := words.get(choice)) is not None:
                if answer in ("deny", "never"):
                    self._seen.write(Text(f"    ✗ {preview(request.name, 40)} {REFUSED[answer]}", "yellow"))
                return answer
            else:
                self._refuse(line, [*words, "e"] if for_edits else words)

    def _refuse(self, line: str, known: Iterable[str]) -> None:
        """Print the allowed answers. Several words are meant for the model: in a chat the next message begins
        with them."""
        allowed = ", ".join(one for one in known if len(one) == 1 or one == "never")
        kept = self._live.keep is not None and len(line.split()) > 1
        if kept and self._live.keep is not None:
            self._live.keep(line.encode())
        more = "; your words are kept for the next message" if kept else ""
        words = f"    “{preview(line, 40)}” is not an answer; allowed: {allowed}, or Enter for no{more}"
        self._seen.write(Text(words, "yellow"))

    def _change(self, request: AskApproval) -> str | None:
        """Return the change that the call would make to a file."""
        return Edits(Path.cwd(), Seen()).change(request.name, request.arguments)

    def question(self, question: str, choices: Sequence[str]) -> str | None:
        """Ask the model's question; return one of the choices by its number, or any other words."""
        with self._live.aside(), self._live.asking() as waiting:
            self._seen.write(Text(f"  {clean(question)}", "bold yellow"))
            self._seen.write(
                *(Text(f"    {number} {clean(choice)}") for number, choice in enumerate(choices, 1))
            )
            settle(waiting, self._live.keep)
            self._seen.question("Your answer" + (" (a number, or in your own words): " if choices else ": "))
            if (line := typed_line(waiting)) is None:
                return None
        words = line.strip()
        chosen = int(words) if words.isascii() and words.isdigit() else 0
        return choices[chosen - 1] if 1 <= chosen <= len(choices) else words or None


def with_change(question: Question, change: str, encoding: str = "utf-8") -> tuple[Question, list[str]]:
    """Return the question with a diff in place of the texts that it shows in full, and the line numbers to
    show beside the lines of the diff."""
    others = tuple(part for part in question.parts if part.place not in CHANGED)
    header, _, *hunks = change.split("\n")
    words = "new file" if header == f"--- {NO_FILE}" else "" if hunks else "nothing changes"
    lines = [words, *hunks] if words else hunks
    shown = "\n".join(line[:1] + visible(line[1:], encoding) for line in lines)
    gutter = _gutter(lines)
    part = QuestionPart(CHANGE.ljust(len(gutter[-1])), shown, words=True)
    changed = replace(question, parts=(*others, part), lines=len(lines), characters=sum(map(len, lines)))
    return changed, gutter


def _gutter(lines: Sequence[str]) -> list[str]:
    """Return for each line of a diff its old and new number, all of one width."""
    found = list(numbers(lines))
    widths = [max((len(str(pair[side] or "")) for pair in found), default=0) for side in (0, 1)]
    return [
        " ".join(str(number or "").rjust(width) for number, width in zip(pair, widths, strict=True))
        for pair in found
    ]


def number_rows(rows: Sequence[QuestionRow], gutter: Sequence[str]) -> Iterator[QuestionRow]:
    """Put the line numbers of a change into the heads of its rows."""
    waiting, within = iter(gutter), False
    for row in rows:
        within = within or _label(row) == CHANGE
        if within and row.head.endswith(f"{BEGINS} ") and (number := next(waiting, "")).strip():
            label = row.head.removesuffix(f" {BEGINS} ")
            yield replace(row, head=f"{number.rjust(len(label))} {BEGINS} ")
        else:
            yield row


def colors(rows: Sequence[QuestionRow], path: str = "") -> Iterator[Text]:
    """Color the rows of a question: those of a diff in the color of their line, and their code in those of
    the language of ``path``."""
    within, color = False, ""
    for row in rows:
        label = _label(row)
        within = label == CHANGE or (within and not label.replace(" ", "").strip("0123456789"))
        text = draw_row(row)
        if within:
            goes_on = GOES_ON in row.head
            color = color if goes_on else color_of(row.text)
            text.stylize(color, len(row.head))
            if color != "cyan" and row.text[:1] not in ("@", "\\"):
                text = in_language(text, path, len(row.head) + (not goes_on))
                text.highlight_regex(_SIGNS, "red")  # invisible characters stay the loudest
        yield text


def _label(row: QuestionRow) -> str:
    return row.head.strip(f" {BEGINS}{GOES_ON}{VALUE}")


def draw_row(row: QuestionRow) -> Text:
    """Color a row of a question."""
    text = Text(row.text)
    text.highlight_regex(_SIGNS, "red")
    return Text.assemble((row.head, "bold yellow" if row.sentence else "dim"), text)
