"""The rows at the bottom of a terminal that are drawn anew while something goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.cells import get_character_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment, Segments

if TYPE_CHECKING:
    from rich.live import Live

REFRESHED = 8
"""Times a second."""


class LiveRegion:
    """``draw`` is called for every picture, from a thread. Nothing is drawn where there is no terminal."""

    def __init__(self, console: Console, draw: Callable[[], RenderableType]) -> None:
        self._console, self._draw = console, draw
        self._live: Live | None = None

    def show(self) -> None:
        """Draw, or draw anew."""
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
        """Leave no trace of it, so that lines can be written."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def rows_of(console: Console, content: RenderableType, options: ConsoleOptions) -> list[list[Segment]]:
    """Rows as they are, without blanks at their ends. ``Console.render_lines`` would crop those that are too
    wide."""
    rows = list(Segment.split_lines(console.render(content, options)))
    for row in rows:
        while row and not row[-1].control and not row[-1].text.rstrip():
            row.pop()
        if row and not row[-1].control:
            row[-1] = Segment(row[-1].text.rstrip(), row[-1].style)
    return rows


def surplus(row: Sequence[Segment], width: int) -> int:
    """How many columns too wide a row may be on a screen. ``rich`` counts letters and emoji that are joined
    as the one sign that some terminals draw; many draw each of them, and begin a row that nobody counted."""
    text = "".join(part.text for part in row if not part.control)
    if text.isascii():
        return len(text) - width
    return sum(2 if char > "\uffff" else get_character_cell_size(char) for char in text) - width


class Fitted:
    """Rows that are drawn anew, each cut to the one row that it is counted as, so that no trace of it is
    left."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        for row in rows_of(console, self._content, options.update(height=None)):
            kept = width - max(0, surplus(row, width))
            yield Segments((*Segment.adjust_line_length(row, kept, pad=False), Segment.line()))


class Tail:
    """The last rows of what may be longer than there is room for; ``spared`` rows are for others."""

    def __init__(self, content: RenderableType, spared: int) -> None:
        self._content, self._spared = content, spared

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = rows_of(console, self._content, options.update(height=None))
        room = max(1, console.height - self._spared)
        yield Segments(part for row in rows[-room:] for part in (*row, Segment.line()))
