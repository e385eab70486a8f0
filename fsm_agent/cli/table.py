"""Tables of which nothing is cropped, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import measure_renderables
from rich.table import Table
from rich.text import Text

UNLIMITED = 1_000_000


class WholeTable(Table):
    """In columns where the longest word of each has room, else row by row with a line for each cell. In a
    column a word of more than ``breaks`` columns is broken; where room is short, one of half of them is, but
    in the first column, whose names are copied. (``rich`` would take room from the widest column first, and
    crop what does not fit.)"""

    def __init__(self, *, breaks: int = UNLIMITED, **options: Any) -> None:
        super().__init__(**options)
        self._breaks = breaks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column in self.columns:
            column.overflow, column.width = "fold", None
        if self._fit(console, options):
            yield from super().__rich_console__(console, options)
        else:
            yield from self._records()

    def _fit(self, console: Console, options: ConsoleOptions) -> bool:
        """Give each column what its longest word needs, and a part of what is left; say whether there is
        enough."""
        unlimited = options.update(width=UNLIMITED)
        sizes = [
            measure_renderables(console, unlimited, [column.header, *column.cells]) for column in self.columns
        ]
        most = [size.maximum for size in sizes]
        room = options.max_width - (self.__rich_measure__(console, unlimited).maximum - sum(most))
        least = [min(size.minimum, self._breaks) for size in sizes]
        if sum(least) > room:
            least[1:] = [min(size, self._breaks // 2) for size in least[1:]]
        spare, wanted = room - sum(least), sum(most) - sum(least)
        share = max(0.0, min(1.0, spare / wanted)) if wanted else 0.0
        for column, low, high in zip(self.columns, least, most, strict=True):
            column.width = low + int(share * (high - low))
        return spare >= 0

    def _records(self) -> Iterator[RenderableType]:
        heads = [_text(column.header) for column in self.columns]
        if self.title:
            yield _text(self.title)
        if not self.rows:
            yield from heads
        for number, row in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            if number:
                yield Text("")
            for head, cell in zip(heads, map(_text, row), strict=True):
                yield Text(": ").join(part for part in (head, cell) if part.plain)


def _text(cell: RenderableType) -> Text:
    """A cell at the left."""
    text = cell.copy() if isinstance(cell, Text) else Text(str(cell))
    text.justify = None
    return text
