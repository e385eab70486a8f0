"""A picture of what a program shows on a terminal: it is run on a real one, and its screen is drawn as SVG."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
"""As ``rich`` draws it, without fonts that a browser would fetch."""


def terminal_svg(command: Sequence[str], folder: Path, title: str, *, columns: int = 80) -> str:
    """Run a command in ``folder`` to its end, and return its screen without empty lines below. Raises
    ``AssertionError`` when it fails."""
    screen = pyte.Screen(columns, 60)
    stream = pyte.Stream(screen)
    env = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    options = {"cwd": folder, "env": env, "dimensions": (60, columns), "encoding": "utf-8"}
    child = pexpect.spawn(command[0], [*command[1:]], timeout=120, **options)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    stream.feed(child.before or "")
    rows = [_row(screen, number) for number in range(screen.lines)]
    while rows and not rows[-1].plain.strip():
        rows.pop()
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    for row in rows:
        console.print(row, no_wrap=True, overflow="ignore", crop=False)
    return console.export_svg(
        title=title, theme=DIMMED_MONOKAI, code_format=FRAME, unique_id=f"t{abs(len(title))}"
    )


def _row(screen: pyte.Screen, number: int) -> Text:
    text = Text()
    for column in range(screen.columns):
        cell = screen.buffer[number][column]
        text.append(cell.data, Style(color=_color(cell.fg), bold=cell.bold, italic=cell.italics))
    text.rstrip()
    return text


def _color(name: str) -> str | None:
    """The name that ``rich`` has for a color of ``pyte``."""
    if name == "default":
        return None
    if len(name) == 6 and all(letter in "0123456789abcdef" for letter in name):
        return f"#{name}"
    known = {"brown": "yellow", "brightbrown": "bright_yellow"}
    return known.get(name, name.replace("bright", "bright_"))
