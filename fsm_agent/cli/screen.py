"""Writing for a person: no control sequence of a model or a tool ever reaches the terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from fsm_agent.approvals.visible import escape

if TYPE_CHECKING:
    from rich.console import Console

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""C0 (but tab and newline), C1, marks that change the direction of text or lines, what is invisible and no
part of a script's spelling, lone surrogates."""

_STYLES = {
    "markdown.code": "cyan", "markdown.link_url": "dim underline", "markdown.item.bullet": "cyan",
    "markdown.item.number": "cyan", "markdown.block_quote": "italic", "markdown.hr": "dim",
    "markdown.table.border": "dim", "markdown.table.header": "bold",
}  # fmt: skip
"""Colours of Markdown that can be read on light and on dark terminals."""


def clean(text: str) -> str:
    """The text for reading: control characters as visible escapes, none left out; tabs and newlines stay. It
    is not exact, as ``fsm_agent.approvals.visible`` is: an escape looks like the same words in the text."""
    return _CONTROL.sub(lambda found: escape(found[0]), text.replace("\r\n", "\n"))


def preview(value: Any, most: int) -> str:
    """A value on one line of at most ``most`` characters; a mapping as ``name=value`` pairs."""
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
    """A console that draws only on a real terminal, and breaks lines between words there; anywhere else it
    writes plain text."""
    from rich.console import Console
    from rich.theme import Theme

    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return Console(
        file=stream, force_terminal=terminal, highlight=False, markup=False, emoji=False,
        soft_wrap=not terminal, color_system="auto" if terminal else None, theme=Theme(_STYLES),
    )  # fmt: skip


def seconds(value: float) -> str:
    """A duration as people read it: ``0.04 s``, ``12.3 s``, ``3 min 20 s``."""
    if value >= 120:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
