"""Markdown for a terminal: in blocks that are shown as soon as no more can change them."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text

from fsm_agent.cli.screen import clean

_PARSER = MarkdownIt().enable(["table", "strikethrough"])
_COLOURS = {
    "Keyword": "magenta", "Operator.Word": "magenta", "Comment": "italic dim", "Literal.String": "green",
    "Literal.Number": "cyan", "Name.Function": "blue", "Name.Class": "blue", "Name.Decorator": "cyan",
    "Generic.Inserted": "green", "Generic.Deleted": "red",
}  # fmt: skip
CODE = ANSISyntaxTheme(
    {cast(Any, tuple(kind.split("."))): Style.parse(style) for kind, style in _COLOURS.items()}
)
"""The terminal's own colours, so that code can be read on a light and on a dark one."""


class Blocks:
    """Text comes in pieces of any size; ``pending`` is the block that still grows."""

    def __init__(self) -> None:
        self.pending = ""
        self._fence = ""  # of the code that is open at the end

    def feed(self, text: str) -> str:
        """Take a piece, and return the blocks that are whole now; often none."""
        self.pending += text
        if "\n" not in text or self._fence not in self.pending[-len(text) - len(self._fence) :]:
            return ""
        tops = [one for one in _PARSER.parse(self.pending) if one.map and one.level == 0 <= one.nesting]
        self._fence = self._open_fence(tops[-1]) if tops else ""
        if len(tops) < 2:
            return ""
        lines = self.pending.split("\n")
        begins = (tops[-1].map or [0])[0]
        whole, self.pending = "\n".join(lines[:begins]), "\n".join(lines[begins:])
        return whole

    def _open_fence(self, last: Token) -> str:
        """What would end the code in the last block, if it is code that has no end yet."""
        first, end = last.map or (0, 0)
        closed = end - first > 1 and self.pending.rstrip().endswith(last.markup)
        return last.markup if last.type == "fence" and not closed else ""

    def rest(self) -> str:
        """What no more can be added to, when nothing comes any more."""
        rest, self.pending, self._fence = self.pending, "", ""
        return rest


def rendered(text: str) -> Markdown:
    """Return a text in Markdown for a console. Addresses of links are shown, and what entities such as
    ``&#27;`` stand for is made visible."""
    page = AnswerMarkdown("", hyperlinks=False)
    page.parsed = [_clean(token) for token in _PARSER.parse(text)]
    return page


def _clean(token: Token) -> Token:
    token.content = clean(token.content)
    token.attrs = {name: clean(str(value)) for name, value in token.attrs.items()}
    for child in token.children or ():
        _clean(child)
    return token


class Trimmed:
    """What is printed, without empty rows before and after it."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = console.render_lines(self._content, options, pad=False)
        filled = [number for number, row in enumerate(rows) if any(part.text.strip() for part in row)]
        kept = rows[filled[0] : filled[-1] + 1] if filled else []
        yield Segments(part for row in kept for part in (*row, Segment.line()))


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold" if self.tag != "h1" else "bold underline")
        yield self.text


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        coloured = Syntax(code, self.lexer_name, theme=CODE, word_wrap=True, background_color="default")
        yield Padding(coloured if self.lexer_name != "text" else Text(code), (0, 0, 0, 2))


class AnswerMarkdown(Markdown):
    """Headings at the left, and code that can be copied."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }
