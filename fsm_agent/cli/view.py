"""A running turn at a terminal: a line for each tool, the answer as it arrives, and a live status line.

``ProgressView`` is a callbacks object: the turn calls its methods, named like channels, on the thread of its
event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.cells import get_character_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment, Segments
from rich.text import Text

from fsm_agent.cli.screen import (
    OUTCOMES,
    Hanging,
    clean,
    color_change,
    count,
    counts,
    dollars,
    preview,
    seconds,
)
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.conversation.result import TurnResult

if TYPE_CHECKING:
    from rich.live import Live


FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(slots=True)
class RunningTool:
    """A call that has not ended. ``said``: its newest line of output."""

    name: str
    arguments: str = ""
    said: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self.began

    def rows(self, frame: str) -> Iterator[Text]:
        """Yield its rows while it runs."""
        row = Text(no_wrap=True, overflow="ellipsis").append(f"    {frame} ", "cyan")
        yield row.append(preview(self.name, 40), "bold").append(
            f"  {self.elapsed:.0f} s  {self.arguments}", "dim"
        )
        if self.said:
            yield Text(f"      {self.said}", "dim", no_wrap=True, overflow="ellipsis")


class StatusLine:
    """The status line. ``figures``: the session's, updated when a turn begins or a request ends."""

    def __init__(self) -> None:
        self.doing = self.figures = ""
        self._state, self._began = "Prepare", time.monotonic()
        self.waited = 0.0
        """Seconds in which a person was asked."""

    def restart(self) -> None:
        """Begin a turn."""
        self.doing, self._state, self._began = "", "Prepare", time.monotonic()
        self.waited = 0.0

    def moved(self, state: str) -> None:
        """Record that the turn is in another state."""
        self.doing, self._state = "", state

    @property
    def elapsed(self) -> float:
        """Return the seconds since the turn began, without those in which a person was asked."""
        return time.monotonic() - self._began - self.waited

    def row(self, frame: str) -> Text:
        """Return the current line."""
        spent = f"{self.elapsed:.0f} s" if self.elapsed < 120 else seconds(self.elapsed)
        parts = [part for part in (self.doing, spent, self.figures, "Ctrl-C interrupts") if part]
        row = (
            Text(no_wrap=True, overflow="ellipsis").append(f"  {frame} ", "cyan").append(self._state, "cyan")
        )
        return row.append(" · " + " · ".join(parts), "dim")


REFRESHED = 8
"""Redraws per second."""


class LiveRegion:
    """A redrawn region. A thread calls ``draw`` for every redraw. Nothing is drawn without a terminal."""

    def __init__(self, console: Console, draw: Callable[[], RenderableType]) -> None:
        self._console, self._draw = console, draw
        self._live: Live | None = None

    def show(self) -> None:
        """Draw or redraw it."""
        if not self._console.is_terminal:
            return
        if self._live is None:
            from rich.live import Live

            self._live = Live(
                console=self._console,
                get_renderable=lambda: Fitted(self._draw()),
                refresh_per_second=REFRESHED,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start(refresh=True)
        else:
            self._live.refresh()

    def hide(self) -> None:
        """Erase it, so that lines can be written."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def rows_of(console: Console, content: RenderableType, options: ConsoleOptions) -> list[list[Segment]]:
    """Return rows as rendered, without trailing blanks. ``Console.render_lines`` would crop those that are
    too wide."""
    rows = list(Segment.split_lines(console.render(content, options)))
    for row in rows:
        while row and not row[-1].control and not row[-1].text.rstrip():
            row.pop()
        if row and not row[-1].control:
            row[-1] = Segment(row[-1].text.rstrip(), row[-1].style)
    return rows


def surplus(row: Sequence[Segment], width: int) -> int:
    """Return how many columns a row may exceed a screen by. ``rich`` counts joined letters and emoji as the
    one sign that some terminals draw; many draw each of them, and begin a row that was not counted."""
    text = "".join(part.text for part in row if not part.control)
    if text.isascii():
        return len(text) - width
    return sum(2 if char > "\uffff" else get_character_cell_size(char) for char in text) - width


class Fitted:
    """Rows to redraw, each cut to the one row that it is counted as, so that erasing leaves no trace."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        for row in rows_of(console, self._content, options.update(height=None)):
            kept = width - max(0, surplus(row, width))
            yield Segments((*Segment.adjust_line_length(row, kept, pad=False), Segment.line()))


class Tail:
    """The last rows of content that may be longer than the screen; ``spared`` rows are left for others."""

    def __init__(self, content: RenderableType, spared: int) -> None:
        self._content, self._spared = content, spared

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = rows_of(console, self._content, options.update(height=None))
        room = max(1, console.height - self._spared)
        yield Segments(part for row in rows[-room:] for part in (*row, Segment.line()))


_WIDTH = 14
_PLAIN_WIDTH = 140
"""Characters of a tool's line without a terminal."""
_REASON = 200
"""Maximum characters of a tool's error, which may take several rows."""
_LONG = 4_000
"""Characters from which a block is shown plain until it is complete: repeated coloring costs."""
_MARKS = {"ok": ("✓", "green"), "error": ("✗", "red"), "denied": ("✗", "yellow")}


class ProgressView:
    """Shows a turn. ``answers`` receives only the answer, ``console`` everything else. At a terminal the
    answer is shown as it arrives, in Markdown; anywhere else it is written at the end, unchanged. ``quiet``
    shows only the answer, ``verbose`` every move. Without ``answers`` the answer is not shown."""

    approval: Callable[[AskApproval], Any] | None = None
    clarify: Callable[[str, list[str]], Any] | None = None
    aside: Callable[[], AbstractContextManager[None]] = nullcontext
    """Frees the terminal for a question."""
    keep: Callable[[bytes], None] | None = None
    """Takes what a person typed at a question but meant for the next message."""
    figures: Callable[[], str] = str
    """Returns the session's figures for the status line."""

    def __init__(
        self, console: Console, answers: Console | None = None, *, quiet: bool = False, verbose: bool = False
    ) -> None:
        self.console, self.answers = console, answers
        self._quiet, self._verbose = quiet, verbose
        self._streams = answers is not None and answers.is_terminal
        self._region = LiveRegion(console, self._draw)
        self.status_line = StatusLine()
        self._running: dict[str, RunningTool] = {}
        self._spoken: list[str] = []
        self._blocks: Any = None
        self._under_way = False
        self._asked, self._moves = 0, 0
        self._seen: set[str] = set()  # calls whose change a person saw before it was made
        self._typed = ""
        self._entered = time.monotonic()

    # The turn

    def begin(self, model: str, why: str) -> None:
        """Show the model, and why it was chosen."""
        because = f", because {preview(why, 200)}"
        self.write(Text.assemble((f"  {preview(model, 80)}", "bold"), (because, "dim")))

    def restart(self) -> None:
        """Begin a turn."""
        self._entered = time.monotonic()
        self.status_line.restart()
        self.status_line.figures = self.figures()
        self._spoken, self._under_way = [], True
        self._running.clear()
        self._show()

    def end(self, result: TurnResult) -> None:
        """Show the rest of the answer, and one line about the turn."""
        self._under_way = False
        self._flush()
        final, spoken = (clean(text).strip() for text in (result.final_response or "", "".join(self._spoken)))
        if self.answers is None:
            pass  # the caller prints the result
        elif result.failed and final and not (self._streams and spoken.endswith(final)):
            self._say(self.console, Text(""), Text(final))
        elif final and self._streams and not spoken.endswith(final):
            self._answer(final.removeprefix(spoken).strip() if spoken else final)
        elif final and not self._streams and not result.failed:
            self.answers.out(final, highlight=False)
        outcome = next(name for name in OUTCOMES if result[name])
        facts = Text(" · " + " · ".join(_facts(result, self.status_line.elapsed)), "dim")
        self.write(Text(""), Text.assemble((outcome, f"bold {OUTCOMES[outcome]}"), facts))

    def stop(self) -> None:
        """Restore the terminal."""
        self._under_way = False
        self._flush()
        self._region.hide()

    def transition(
        self, turn_id: str, source: str, event: str, dest: str, *, took: float | None = None
    ) -> None:
        """Show a move, and the duration of the state: ``took`` if another process measured it."""
        now = time.monotonic()
        spent, self._entered = now - self._entered if took is None else took, now
        self._moves += 1
        self.status_line.moved(dest)
        if source == "CallLLM":
            self.status_line.figures = self.figures()
        if self._verbose:
            self._flush()  # text from before the move comes first
            line = Text.assemble((f"  {source:<{_WIDTH}}", "cyan"), (f" {event:<14} → ", "dim"))
            self.write(line.append(f"{dest:<{_WIDTH}}", "cyan").append(f"{seconds(spent):>9}", "dim"))
        self._show()

    def thinking(self, active: bool) -> None:
        """Show that the model was asked, or has begun to answer."""
        self._doing("waiting for the model" if active else "")

    def reasoning(self, text: str) -> None:
        """Show that the model reasons, but not its reasoning."""
        self._doing("the model reasons")

    def tool_gen(self, name: str) -> None:
        """Show that the model is writing a call."""
        self._doing(f"the model writes a call of {preview(name, 40)}")

    def stream_delta(self, text: str | None) -> None:
        """Show a piece of the answer."""
        if text is None:
            self._flush()
            return
        self._doing("the model answers")
        shown = text if self._spoken else text.lstrip("\r\n")
        if not shown or not self._streams:
            return
        self._spoken.append(shown)
        if whole := self._growing().feed(shown):
            self._answer(whole)
        self._show()

    def interim_assistant(self, text: str) -> None:
        """Show the model's text beside its calls unless it was streamed."""
        if not self._streams and text.strip():
            self.write(Text(f"    {clean(text).strip()}", "dim"))

    def tool_start(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Show that a tool runs."""
        self._flush()
        self._spoken = []
        self._running[call_id] = RunningTool(name, preview(arguments, 200))
        self._show()

    def tool_progress(self, kind: str, name: str, text: str) -> None:
        """Show the output of a running tool."""
        running = next((one for one in reversed(self._running.values()) if one.name == name), None)
        if kind == "said" and running is not None:
            running.said = preview(text, 200)
            self._show()

    def tool_complete(
        self,
        call_id: str,
        name: str,
        arguments: Mapping[str, Any],
        result: str,
        status: str,
        *,
        took: float | None = None,
    ) -> None:
        """Show how a tool ended, with a line of its result, or its change; ``took`` as in ``transition``."""
        tool = self._running.pop(call_id, None) or RunningTool(name)
        mark, color = _MARKS.get(status, ("!", "yellow"))
        room = self.console.width if self.console.is_terminal else _PLAIN_WIDTH
        change = color_change(result, str(arguments.get("path", ""))) if status == "ok" else None
        if change is not None:
            arguments, result = {"path": arguments.get("path", "")}, counts(result)
        lines, color_of_result = result.count("\n") + 1, "dim" if status == "ok" else color
        prefix = ("" if status in ("ok", "error") else f"{status}: ") + (
            f"{lines:,} lines: " if lines > 1 else ""
        )
        line = Text.assemble((f"    {mark} ", color), (preview(name, 40), "bold"))
        shortened = Text(preview(arguments, room // 3))
        shortened.truncate(room // 3, overflow="ellipsis")
        line.append(f"  {seconds(tool.elapsed if took is None else took)}", "dim").append(f"  {shortened}")
        line.append(f"  → {prefix}", color_of_result)
        left = max(20, room - line.cell_len)
        line.append(preview(result, left if status == "ok" else max(left, _REASON)), color_of_result)
        if self.console.is_terminal and status == "ok":
            line.truncate(room, overflow="ellipsis")
        shown = [change] if change is not None and call_id not in self._seen else []
        self.write(line, *shown)

    def status(self, line: str) -> None:
        """Show a line about what the turn is doing."""
        self.write(Text(f"    · {preview(line, 1_000)}", "yellow"))
        self._doing(preview(line, 60))

    def event(self, name: str, data: Mapping[str, Any]) -> None:
        """Show what delegated tasks do."""
        match name:
            case "child:start":
                self.write(Text(f"    ↳ {preview(data['goal'], 120)}", "cyan"))
            case "child:tool":
                words = f"      ↳ {preview(data['name'], 40)}  {preview(data['arguments'], 80)}"
                self.write(Text(words, "dim"))
            case "child:end":
                why = f": {preview(data['error'], 400)}" if data["error"] else ""
                self.write(Text(f"    ↳ {data['status']}{why}", OUTCOMES.get(data["status"], "yellow")))

    # The person

    def show_draft(self, draft: str) -> None:
        """Show what a person is typing while a turn runs."""
        self._typed = draft
        self._show()

    def write(self, *lines: RenderableType) -> None:
        """Write whole lines beside the answer, never inside it."""
        if not self._quiet:
            self._say(self.console, *lines)

    def reply(self, *parts: RenderableType) -> None:
        """Show output that a person requested and no model wrote."""
        self._say(self.console if self.answers is None else self.answers, *parts)

    @contextmanager
    def asking(self) -> Iterator[Callable[[], bool]]:
        """Suspend redrawing in this block, from any thread. Yield a function that says whether the turn still
        waits for the answer."""
        self._asked += 1
        self._region.hide()
        self._moves += 1
        asked_at, began = self._moves, time.monotonic()
        try:
            yield lambda: self._moves == asked_at
        finally:
            self._asked -= 1
            waited = time.monotonic() - began
            self.status_line.waited += waited
            self._entered += waited
            self._show()

    def exchange(self, asked: str, answer: str) -> None:
        """Show an earlier message, and its answer."""
        from fsm_agent.cli.markdown import Trimmed, render_markdown

        self.write(Text(f"\n› {clean(asked)}", "dim"))
        if answer:
            self.write(Text(""), Trimmed(render_markdown(answer)))
        self.write(Text(""))

    def question(self, text: str) -> None:
        """Show a question; the answer is typed after it."""
        self.console.print(Text(f"  {text}", "bold"), end="")
        self.console.file.flush()

    def mark_change_shown(self, call_id: str) -> None:
        """Record that a person has read what this call changes, so that it is not shown again."""
        self._seen.add(call_id)

    # Drawing

    def _doing(self, words: str) -> None:
        self.status_line.doing = words
        self._show()

    def _growing(self) -> Any:
        if self._blocks is None:
            from fsm_agent.cli.markdown import Blocks  # half of the imports of a first answer

            self._blocks = Blocks()
        return self._blocks

    def _flush(self) -> None:
        if self._blocks is not None and (rest := self._blocks.rest()).strip():
            self._answer(rest)

    def _answer(self, text: str) -> None:
        from fsm_agent.cli.markdown import Trimmed, render_markdown

        if self.answers is not None:
            self._say(self.answers, Text(""), Trimmed(render_markdown(text)))

    def _say(self, console: Console, *parts: RenderableType) -> None:
        self._region.hide()
        for part in parts:
            console.print(Hanging(part) if isinstance(part, Text) else part, crop=False)
        console.file.flush()
        self._show()

    def _show(self) -> None:
        if self._under_way and not self._asked and not self._quiet:
            self._region.show()

    def _draw(self) -> RenderableType:
        frame = FRAMES[int(time.monotonic() * 10) % len(FRAMES)]
        below = [row for tool in list(self._running.values()) for row in tool.rows(frame)]
        below.append(self.status_line.row(frame))
        if self._typed:
            below.append(Text(f"  › {preview(self._typed, 400)}", no_wrap=True, overflow="ellipsis"))
        pending = "" if self._blocks is None else self._blocks.pending.strip("\n")
        if not pending.strip():
            return Group(*below)
        from fsm_agent.cli.markdown import Trimmed, render_markdown

        growing = Trimmed(render_markdown(pending)) if len(pending) < _LONG else Text(pending)
        return Group(Text(""), Tail(growing, len(below) + 3), Text(""), *below)


def _facts(result: TurnResult, elapsed: float) -> Iterator[str]:
    """Yield the facts about a turn for its last line, in words for a person who chats."""
    if not result.completed:
        yield result.turn_exit_reason.value.replace("_", " ").removeprefix("interrupted ")
    yield f"{result.provider}:{preview(result.model, 60)}"
    yield count(result.tried, "request")
    if result.usage_known:
        yield f"{result.total_tokens:,} tokens"
    elif result.provider != "offline":
        yield "tokens unknown"
    if result.estimated_cost_usd is not None:
        yield dollars(result.estimated_cost_usd)
    if children := result.children:
        attempts, tokens = sum(one.attempts for one in children), sum(one.usage.total for one in children)
        yield f"{count(len(children), 'child turn')} ({count(attempts, 'request')}, {tokens:,} tokens)"
    yield seconds(elapsed)
