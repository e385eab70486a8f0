"""A turn while it runs, as a person sees it: a line for each state and tool, a spinner, and the text as it
arrives.

``ProgressView`` is a callbacks object: its methods named like channels are called by the turn, on the thread
of its event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from fsm_agent.cli.screen import clean, preview, seconds
from fsm_agent.cli.wrapping import Wrapping
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.conversation.result import TurnResult

_WIDTH = 14
_PLAIN_WIDTH = 140
"""Characters of a tool's line where there is no terminal to ask."""
_MARKS = {"ok": ("✓", "green"), "error": ("✗", "red"), "denied": ("✗", "yellow")}
_COLOURS = {"completed": "green", "failed": "red", "partial": "yellow", "interrupted": "magenta"}


class ProgressView:
    """``quiet`` shows nothing at all. On anything but a terminal there is no spinner and no control
    sequence."""

    approval: Callable[[AskApproval], Any] | None = None
    clarify: Callable[[str, list[str]], Any] | None = None
    aside: Callable[[], AbstractContextManager[None]] = nullcontext
    """Frees the terminal for a question."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self._quiet = quiet
        self._status: Status | None = None
        self._doing, self._typed = "", ""
        self._moves = 0
        self._spoken: list[str] = []
        self._open_line = False
        self._wrapping = Wrapping()
        self._running: dict[str, tuple[str, float]] = {}
        self._entered = self._began = time.monotonic()

    def transition(self, turn_id: str, source: str, event: str, dest: str) -> None:
        """Show a move, and how long the state took."""
        now = time.monotonic()
        spent, self._entered = now - self._entered, now
        self._moves += 1
        self._spin(None)
        line = Text.assemble(
            ("  ", ""),
            (f"{source:<{_WIDTH}}", "cyan"),
            (f" {event:<14}", "dim"),
            (" → ", "dim"),
            (f"{dest:<{_WIDTH}}", "cyan"),
        )
        self.write(line.append(f"{seconds(spent):>9}", "dim"))

    def thinking(self, active: bool) -> None:
        """Show that the model is asked, or has begun to answer."""
        self._spin("the model is asked" if active else None)

    def reasoning(self, text: str) -> None:
        """Show that the model reasons; not what."""
        self._spin("the model reasons")

    def tool_gen(self, name: str) -> None:
        """Show that the model writes a call."""
        self._spin(f"the model writes a call of {preview(name, 40)}")

    def stream_delta(self, text: str | None) -> None:
        """Show a piece of the answer."""
        if text is None:
            return
        self._spin(None)
        shown = clean(text) if self._spoken else clean(text).lstrip("\n")
        if self._quiet or not shown:
            return
        if not self._spoken:
            self.write(Text(""))
            self._wrapping = Wrapping()
        self._spoken.append(shown)
        self._show(self._wrapping.feed(shown, self.console.width) if self.console.is_terminal else shown)

    def tool_start(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Show that a tool runs."""
        self._spoken = []
        self._running[call_id] = (name, time.monotonic())
        self._spin_tools()

    def tool_complete(
        self, call_id: str, name: str, arguments: Mapping[str, Any], result: str, status: str
    ) -> None:
        """Show how a tool ended, with a line of its result."""
        _, began = self._running.pop(call_id, (name, time.monotonic()))
        mark, colour = _MARKS.get(status, ("!", "yellow"))
        room = self.console.width if self.console.is_terminal else _PLAIN_WIDTH
        lines, spent = result.count("\n") + 1, seconds(time.monotonic() - began)
        said = ("" if status in ("ok", "error") else f"{status}: ") + (
            f"{lines:,} lines: " if lines > 1 else ""
        )
        line = Text.assemble(
            (f"    {mark} ", colour), (preview(name, 40), "bold"), f"  {preview(arguments, room // 3)}"
        )
        line.append(f"  → {said}", "dim" if status == "ok" else colour)
        line.append(
            preview(result, max(20, room - len(line) - len(spent) - 3)), "dim" if status == "ok" else colour
        )
        self.write(line.append(f"  {spent}", "dim"))
        self._spin_tools()

    def status(self, line: str) -> None:
        """Show a line about what the turn is doing."""
        self.write(Text(f"    · {preview(line, 200)}", "yellow"))
        self._spin(preview(line, 60))

    def event(self, name: str, data: Mapping[str, Any]) -> None:
        """What delegated tasks do."""
        match name:
            case "child:start":
                self.write(Text(f"    ↳ {preview(data['goal'], 120)}", "cyan"))
            case "child:tool":
                self.write(
                    Text(f"      ↳ {preview(data['name'], 40)}  {preview(data['arguments'], 80)}", "dim")
                )
            case "child:end":
                why = f": {preview(data['error'], 120)}" if data["error"] else ""
                self.write(Text(f"    ↳ {data['status']}{why}", _COLOURS.get(data["status"], "yellow")))

    def typed(self, draft: str) -> None:
        """Show what a person is typing while something is waited for."""
        self._typed = draft
        if self._status is not None:
            self._spin(self._doing)

    def begin(self, model: str, why: str) -> None:
        """Say what will answer."""
        self._entered = self._began = time.monotonic()
        self._spoken = []
        self.write(Text.assemble((f"  {preview(model, 80)}", "bold"), (f"  {preview(why, 200)}", "dim")))

    def restart(self) -> None:
        """Another turn begins."""
        self._entered = self._began = time.monotonic()
        self._spoken = []
        self._running.clear()

    def end(self, result: TurnResult) -> None:
        """The part of the answer that was not shown yet, and one line about the turn."""
        self._spin(None)
        final, spoken = clean(result.final_response or "").strip(), "".join(self._spoken).strip()
        if final and not spoken.endswith(final):
            self.write(Text(""), Text(final.removeprefix(spoken).strip() if spoken else final))
        outcome = next(name for name in _COLOURS if result[name])
        tokens = f"{result.total_tokens:,} tokens" if result.usage_known else "tokens unknown"
        parts = (
            f"{result.turn_exit_reason.value}", f"{result.provider}:{preview(result.model, 60)}",
            _count(result.api_calls, "iteration"), _count(result.tried, "attempt"), tokens,
            *_children(result),
            seconds(time.monotonic() - self._began),
        )  # fmt: skip
        self.write(
            Text(""),
            Text.assemble((outcome, f"bold {_COLOURS[outcome]}"), (" · " + " · ".join(parts), "dim")),
        )

    def stop(self) -> None:
        """Leave the terminal as it was."""
        self._spin(None)
        self._break()

    def write(self, *lines: Text) -> None:
        """Whole lines, never in the middle of streamed text."""
        if self._quiet:
            return
        self._break()
        for line in lines:
            self.console.print(line)

    def waiting(self) -> Callable[[], bool]:
        """Make room for a question, asked from another thread. The answer says whether the turn still waits
        for it."""
        self._spin(None)
        self._moves += 1
        asked_at = self._moves
        return lambda: self._moves == asked_at

    def question(self, text: str) -> None:
        """Show a question; the answer is typed behind it."""
        self._break()
        self.console.print(Text(f"  {text}", "bold"), end="")
        self._open_line = True

    def answered(self) -> None:
        """The person has pressed Enter, which began a new line."""
        self._open_line = False

    def _spin_tools(self) -> None:
        names = [preview(name, 30) for name, _ in self._running.values()]
        self._spin("running " + ", ".join(names[:6]) if names else None)

    def _spin(self, text: str | None) -> None:
        if text is None or self._quiet or not self.console.is_terminal:
            if self._status is not None:
                self._status.stop()
                self._status = None
            return
        self._break()
        self._doing = text
        shown = Text.assemble((text, "dim"), f"  › {preview(self._typed, 80)}" if self._typed else "")
        if self._status is None:
            self._status = self.console.status(shown, spinner_style="cyan")
            self._status.start()
        else:
            self._status.update(shown)

    def _break(self) -> None:
        self._show(self._wrapping.rest(self.console.width))
        if self._open_line:
            self._open_line = False
            self.console.print()
            self._wrapping = Wrapping()

    def _show(self, text: str) -> None:
        if text:
            self.console.out(text, end="", highlight=False)
            self.console.file.flush()
            self._open_line = not text.endswith("\n")


def _children(result: TurnResult) -> list[str]:
    """What child turns took, which is not in the turn's own figures."""
    children = result.children
    attempts, tokens = sum(child.attempts for child in children), sum(child.usage.total for child in children)
    return (
        [f"{_count(len(children), 'child turn')} ({_count(attempts, 'attempt')}, {tokens:,} tokens)"]
        if children
        else []
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
