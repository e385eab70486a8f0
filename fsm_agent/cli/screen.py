"""Text for a person: consoles, figures, tables and diffs. No control sequence of a model or a tool reaches
the terminal."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import measure_renderables
from rich.table import Table
from rich.text import Text

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store.reports import UsageTotals
from fsm_agent.support.texts import escape

if TYPE_CHECKING:
    from rich.console import Console


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""C0 (but tab and newline), C1, marks that change the direction of text or lines, invisible characters that
no script's spelling needs, lone surrogates."""

_STYLES = {
    "markdown.code": "cyan", "markdown.link_url": "dim underline", "markdown.item.bullet": "cyan",
    "markdown.item.number": "cyan", "markdown.block_quote": "italic", "markdown.hr": "dim",
    "markdown.table.border": "dim", "markdown.table.header": "bold",
}  # fmt: skip
"""Colors of Markdown that are readable on light and on dark terminals."""


def clean(text: str) -> str:
    """Return readable text: control characters as visible escapes, none left out; tabs and newlines stay. It
    is not exact, as ``fsm_agent.approvals.question`` is: an escape looks like the same words in the text."""
    return _CONTROL.sub(lambda found: escape(found[0]), text.replace("\r\n", "\n"))


def preview(value: Any, most: int) -> str:
    """Return a value on one line of at most ``most`` characters; a mapping as ``name=value`` pairs."""
    if isinstance(value, Mapping):
        line = "  ".join(
            f"{_on_one_line(name, most)}={_on_one_line(item, most)}" for name, item in value.items()
        )
    else:
        line = _on_one_line(value, most)
    return line if len(line) <= most else line[: most - 1] + "…"


def _on_one_line(value: Any, most: int) -> str:
    return " ".join(clean(str(value)[: most * 4]).split())


def console_of(stream: IO[str]) -> Console:
    """Return a console that draws only on a real terminal, and breaks lines between words there; anywhere
    else it writes plain text."""
    from rich.console import Console
    from rich.theme import Theme

    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return Console(
        file=stream, force_terminal=terminal, highlight=False, markup=False, emoji=False,
        soft_wrap=not terminal, color_system="auto" if terminal else None, theme=Theme(_STYLES),
    )  # fmt: skip


def seconds(value: float) -> str:
    """Format a duration for people: ``0.04 s``, ``12.3 s``, ``3 min 20 s``."""
    if value >= 120:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def ago(at: float, now: float) -> str:
    """Return how long ago something was; a date if it was long ago."""
    past = now - at
    if past < 60:
        return "just now"
    if past < 3600:
        return f"{int(past // 60)} min ago"
    if past < 86_400:
        return f"{int(past // 3600)} h ago"
    return time.strftime("%Y-%m-%d", time.localtime(at))


def since(at: float, now: float) -> str:
    """Return the same in six characters."""
    past = now - at
    if past < 60:
        return "now"
    if past < 3600:
        return f"{int(past // 60)} min"
    if past < 86_400:
        return f"{int(past // 3600)} h"
    return f"{int(past // 86_400)} d"


def moment(at: float) -> str:
    """Return a time, in seconds since the epoch, as local date and minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(number: int) -> str:
    """Shorten a number: ``812``, ``12.3k``, ``4.5M``."""
    if number < 1_000:
        return str(number)
    return f"{number / 1_000:.1f}k" if number < 999_950 else f"{number / 1_000_000:.1f}M"


def tokens(spent: UsageTotals) -> str:
    """Return the tokens in short, or "unknown"."""
    return short(spent.tokens) if spent.requests else "unknown"


def cost(spent: UsageTotals) -> str:
    """Return the cost; never 0 if it is unknown."""
    if spent.cost_status in ("none", "unknown"):
        return "unknown"
    if spent.cost is None:
        return "included"
    return ("≥ " if spent.cost_status == "at_least" else "") + dollars(spent.cost)


def dollars(amount: float) -> str:
    """Return an amount of US dollars, with more digits if it is small."""
    if 0 < amount < 0.0001:
        return "<$0.0001"
    return f"${amount:,.2f}" if amount >= 0.995 else f"${amount:.4f}"


def share(part: float | None) -> str:
    """Return a part of 1 as a percentage; a dash if unknown."""
    return "–" if part is None else f"{part:.0%}"


def spell(amount: float) -> str:
    """Format seconds, also very many and very few."""
    if amount < 0.1:
        return f"{amount * 1000:.0f} ms"
    return f"{amount / 3600:,.1f} h" if amount >= 7200 else seconds(amount)


UNLIMITED = 1_000_000


class WholeTable(Table):
    """A table in columns if the longest word of each has room, else row by row with a line for each cell. In
    a column a word of more than ``breaks`` columns is broken; if room is short, one of half of them is,
    except in the first column, whose names are copied. (``rich`` would take room from the widest column
    first, and crop what does not fit.)"""

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
        """Give each column the width of its longest word, and a share of the rest; say whether there is
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
                if cell.plain:
                    yield Text(": ").join(part for part in (head, cell) if part.plain)


def grid_of(names: Iterable[str], *, right: Collection[str] = (), breaks: int = UNLIMITED) -> WholeTable:
    """Return an empty table without lines, with figures in the columns ``right``."""
    grid = WholeTable(breaks=breaks, box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        grid.add_column(name, justify="right" if name in right else "left")
    return grid


def _text(cell: RenderableType) -> Text:
    """Return a cell aligned at the left."""
    text = cell.copy() if isinstance(cell, Text) else Text(str(cell))
    text.justify = None
    return text


SHOWN = 40
"""Maximum lines to show of a change after it was made."""
_DIFF = re.compile(r"^--- .*\n\+\+\+ .*\n(?=@@ )", re.MULTILINE)
_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def color_of(line: str) -> str:
    """Return the style of a line of a unified diff."""
    return _COLORS.get(line[:1], "dim")


_CODE = {
    "Keyword": "magenta", "Operator.Word": "magenta", "Comment": "italic dim", "Literal.String": "yellow",
    "Literal.Number": "cyan", "Name.Function": "blue", "Name.Class": "blue", "Name.Decorator": "cyan",
}  # fmt: skip
"""Colors of code in a diff, where green and red mark added and removed lines."""


@cache
def _language(name: str) -> tuple[Any, Any]:
    """Return the lexer for a file of this name, and the theme; (``None``, …) for an unknown language."""
    from rich.style import Style
    from rich.syntax import ANSISyntaxTheme, Syntax

    theme = ANSISyntaxTheme({tuple(kind.split(".")): Style.parse(style) for kind, style in _CODE.items()})
    return Syntax("", Syntax.guess_lexer(name), tab_size=0).lexer, theme


def in_language(shown: Text, path: str, begin: int) -> Text:
    """Color the code in ``shown`` from ``begin`` on, in the language of the file's name. Each line is read
    alone, so in a text of several lines the colors may be wrong, but never the text."""
    lexer, theme = _language(PurePath(path).name)
    if lexer is None:
        return shown
    at = begin
    for kind, piece in lexer.get_tokens(shown.plain[begin:]):
        if style := theme.get_style_for_token(kind):
            shown.stylize(style, at, at + len(piece))
        at += len(piece)
    return shown


def counts(result: str) -> str:
    """Return the number of added and removed lines that a tool's result shows: ``+3 -1``."""
    lines = result[found.end() :].split("\n") if (found := _DIFF.search(result)) else []
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    return f"+{added:,} -{removed:,}"


def color_change(result: str, path: str = "") -> Text | None:
    """Return the change of the file ``path`` that a tool's result shows, or ``None``. A long change ends with
    the number of omitted lines."""
    found = _DIFF.search(result)
    if found is None:
        return None
    lines = clean(result[found.end() :]).split("\n")
    drawn = (Text(f"      {line}", color_of(line)) for line in lines[:SHOWN])
    shown = Text("\n").join(
        line if line.plain[6:7] in ("@", "\\") else in_language(line, path, 7) for line in drawn
    )
    if len(lines) > SHOWN:
        shown.append(f"\n      … {len(lines) - SHOWN:,} more lines", "dim")
    return shown


_HANGS = re.compile(r" *(?:(?:ok|FAIL|FAILED) {2,}|\d+\. |[^\w\s(“\"'/] |/\S.*?  +)?")
"""The beginning of a line before its words: blanks and a mark, a number or a verdict, or a command and its
arguments."""
_NARROWEST = 16
"""Minimum columns for the words of a line."""


class Hanging:
    """Text whose long lines continue below the beginning of their words, not in the first column. ``hang``:
    columns before the words, by default the blanks and the mark of each line."""

    def __init__(self, text: Text, hang: int | None = None) -> None:
        self._text, self._hang = text, hang

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._text.split("\n", allow_blank=True):
            found = _HANGS.match(line.plain)
            hang = self._hang if self._hang is not None else found.end() if found else 0
            room = options.max_width - hang
            if options.no_wrap or line.no_wrap or room < _NARROWEST or line.cell_len <= options.max_width:
                yield line
                continue
            before = line[:hang]
            for row in line[hang:].wrap(console, room):
                row.rstrip()
                yield before + row
                before = Text(" " * hang)


OUTCOMES = {"completed": "green", "failed": "red", "partial": "yellow", "interrupted": "magenta"}
"""Outcomes of turns, and their colors."""
PLAIN = 140
"""Columns of a table without a terminal."""


def screen() -> Console:
    """Return standard output as a console; wide enough for whole lines if it is not a terminal."""
    console = console_of(sys.stdout)
    if not console.is_terminal:
        console.width = PLAIN
    return console


def put(console: Console, *parts: RenderableType) -> None:
    """Print, without blanks at the ends of lines if it is not a terminal."""
    for part in parts:
        if console.is_terminal:
            console.print(Hanging(part) if isinstance(part, Text) else part, soft_wrap=False)
            continue
        with console.capture() as captured:
            console.print(part, soft_wrap=isinstance(part, Text))
        console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def say(line: str) -> None:
    """Print one line."""
    screen().print(Hanging(Text(clean(line))))


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error if that is a terminal; yield a function that advances it by a number."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn  # few commands do

    console = console_of(sys.stderr)
    columns = (doing, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda number: bar.advance(task, number)


def write_report(path: str, text: str, what: str = "report") -> None:
    """Write a file for a person. Raises ``ConfigError``."""
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        allowed = "a file in a folder that exists"
        raise ConfigError(f"the {what} cannot be written ({error.strerror})", path, allowed) from None
