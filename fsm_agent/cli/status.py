"""What is going on, in a line: the state, what it does, how long, how full the window is, what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.text import Text

from fsm_agent.cli.screen import preview, seconds

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
        """Seconds since it began."""
        return time.monotonic() - self.began

    def rows(self, frame: str) -> Iterator[Text]:
        """How it looks while it runs."""
        row = Text(no_wrap=True, overflow="ellipsis").append(f"    {frame} ", "cyan")
        yield row.append(preview(self.name, 40), "bold").append(
            f"  {self.elapsed:.0f} s  {self.arguments}", "dim"
        )
        if self.said:
            yield Text(f"      {self.said}", "dim", no_wrap=True, overflow="ellipsis")


class StatusLine:
    """``figures`` are those of the session, made when a turn begins or a request has ended."""

    def __init__(self) -> None:
        self.doing = self.figures = ""
        self._state, self._began = "Prepare", time.monotonic()

    def restart(self) -> None:
        """A turn begins."""
        self.doing, self._state, self._began = "", "Prepare", time.monotonic()

    def moved(self, state: str) -> None:
        """The turn is in another state."""
        self.doing, self._state = "", state

    @property
    def elapsed(self) -> float:
        """Seconds since the turn began."""
        return time.monotonic() - self._began

    def row(self, frame: str) -> Text:
        """The line as it is now."""
        spent = f"{self.elapsed:.0f} s" if self.elapsed < 120 else seconds(self.elapsed)
        parts = [part for part in (self.doing, spent, self.figures, "Ctrl-C interrupts") if part]
        row = (
            Text(no_wrap=True, overflow="ellipsis").append(f"  {frame} ", "cyan").append(self._state, "cyan")
        )
        return row.append(" · " + " · ".join(parts), "dim")
