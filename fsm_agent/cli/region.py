"""The rows at the bottom of a terminal that are drawn anew while something goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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
                get_renderable=self._draw,
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


class Tail:
    """The last rows of what may be longer than there is room for; ``spared`` rows are for others."""

    def __init__(self, content: RenderableType, spared: int) -> None:
        self._content, self._spared = content, spared

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = console.render_lines(self._content, options.update(height=None), pad=False)
        room = max(1, console.height - self._spared)
        yield Segments(part for row in rows[-room:] for part in (*row, Segment.line()))
