"""Markdown for a terminal, in blocks that are shown as soon as they are final.

``rich`` draws it, with one additional rule: no text is lost or moved. Where CommonMark and ``rich`` drop
something that an author wrote, it is shown as written: HTML, definitions of references, text after the
language of a code block, cells without a heading, and anything nested too deeply to be drawn."""

# Standard output is the answer alone. A pipe gets the answer and nothing else; progress goes to standard
# error. At a terminal, a finished Markdown block is written once, and only the growing block, running tools,
# and the status line are redrawn, so output can be scrolled and copied. Whatever rich or CommonMark would
# drop (HTML, link definitions, text after a fence's language) is shown as written. Links and images become
# text with their address. No row is cropped.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, cast

from markdown_it import MarkdownIt
from markdown_it.rules_block.table import escapedSplit
from markdown_it.token import Token
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import (
    BlockQuote,
    CodeBlock,
    Heading,
    ListElement,
    ListItem,
    Markdown,
    MarkdownContext,
    MarkdownElement,
    Paragraph,
    TableElement,
)
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text

from fsm_agent.cli.screen import WholeTable, clean, preview
from fsm_agent.cli.view import rows_of, surplus

_DEEPEST = 40
"""Maximum nesting of blocks; a list and each of its items count. The parser drops deeper ones."""
_NARROWEST = 16
"""Minimum columns for the text beside the mark of a list or a quote."""
_PARSER = MarkdownIt(options_update={"html": False, "maxNesting": _DEEPEST})
_PARSER.enable(["table", "strikethrough"]).disable("reference")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_DATA = re.compile(r"data:", re.IGNORECASE)
_SHOWN_DATA = 60
"""Maximum characters to show of an address that contains a file."""
_COLORS = {
    "Keyword": "magenta", "Operator.Word": "magenta", "Comment": "italic dim", "Literal.String": "green",
    "Literal.Number": "cyan", "Name.Function": "blue", "Name.Class": "blue", "Name.Decorator": "cyan",
    "Generic.Inserted": "green", "Generic.Deleted": "red",
}  # fmt: skip
CODE = ANSISyntaxTheme(
    {cast(Any, tuple(kind.split("."))): Style.parse(style) for kind, style in _COLORS.items()}
)
"""The terminal's own colors, so that code is readable on light and dark backgrounds."""


class Blocks:
    """Splits a stream of text into blocks. Its pieces may have any size; ``pending`` is the block that is
    still growing, made visible by ``clean``."""

    def __init__(self) -> None:
        self.pending = ""
        self._fence = ""  # of code that is still open
        self._held = ""  # half of a line ending

    def feed(self, text: str) -> str:
        """Add a piece, and return the blocks that are now complete; often none."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        text = clean(text.removesuffix(self._held))
        self.pending += text
        if "\n" not in text or self._fence not in self.pending[-len(text) - len(self._fence) :]:
            return ""
        *lines, begun = self.pending.split("\n")  # the type of a line is known at its end
        tops = [one for one in _PARSER.parse("\n".join(lines)) if one.map and one.level == 0 <= one.nesting]
        self._fence = _open_fence(tops[-1], lines) if tops else ""
        if len(tops) < 2:
            return ""
        begins = (tops[-1].map or [0])[0]
        self.pending = "\n".join([*lines[begins:], begun])
        return "\n".join(lines[:begins])

    def rest(self) -> str:
        """Return the rest, at the end of the stream."""
        rest = self.pending + clean(self._held)
        self.pending = self._fence = self._held = ""
        return rest


def _open_fence(last: Token, lines: Sequence[str]) -> str:
    """Return the fence that would close the code in the last block, if that is open."""
    first, end = last.map or (0, 0)
    closed = end - first > 1 and "\n".join(lines).rstrip().endswith(last.markup)
    return last.markup if last.type == "fence" and not closed else ""


# Rendering


def render_markdown(text: str) -> RenderableType:
    """Render a text in Markdown for a console. Addresses of links and pictures are shown, and characters from
    entities such as ``&#27;`` are made visible."""
    text = clean(text)
    tokens = _PARSER.parse(text)
    if any(token.level >= _DEEPEST - 2 for token in tokens):
        return Text(text)
    page = AnswerMarkdown("", hyperlinks=False)
    page.parsed = [_drawable(token) for token in _with_all_cells(tokens, text.split("\n"))]
    return page


def _drawable(token: Token) -> Token:
    token.content, token.info = clean(token.content), clean(token.info)
    if token.children is not None:
        token.children = list(_words(token.children))
    return token


def _words(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the parts of a line: text in styles, and nothing that ``rich`` would draw elsewhere."""
    opened: list[tuple[Token, list[str]]] = []
    for token in tokens:
        token.content = clean(token.content)
        for _, within in opened:
            within.append(token.content)
        match token.type:
            case "link_open":
                opened.append((token, []))
                yield Token("words_open", "link", 1)
            case "link_close":
                link, within = opened.pop()
                yield Token("words_close", "link", -1)
                yield from _address(link, "href", "".join(within), gap=True)
            case "image":
                yield from _words(token.children or [])
                yield from _address(token, "src", "", gap=bool(token.children))
            case "text":
                token.content = _BREAK.sub("\n", token.content)
                yield token
            case _:
                yield token


def _address(token: Token, name: str, words: str, *, gap: bool) -> Iterator[Token]:
    """Yield the address of a link or a picture unless its words are the address."""
    address, title = (clean(str(token.attrs.get(part, ""))) for part in (name, "title"))
    if address in (words, f"mailto:{words}") and not title:
        return
    shown = preview(address, _SHOWN_DATA) if _DATA.match(address) else address
    yield Token("text", "", 0, content=" (" if gap else "(")
    yield Token("words", "link_url", 0, content=shown)
    yield Token("text", "", 0, content=f" “{title}”)" if title else ")")


def _with_all_cells(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[Token]:
    """Yield the tokens, and the cells of a row beyond the headings of its table: a ``|`` in code is often
    meant literally."""
    here = columns = 0
    for token in tokens:
        match token.type:
            case "tr_open":
                here = (token.map or [0])[0]
                columns = 0
            case "td_open":
                columns += 1
            case "tr_close" if columns:  # a row of headings has no extra cells
                cells = escapedSplit(lines[here].strip().lstrip("> \t"))
                cells = cells[not cells[0] :]
                for cell in cells[columns : len(cells) - (not cells[-1])]:
                    yield Token("td_open", "td", 1)
                    yield from _PARSER.parseInline(cell.strip())
                    yield Token("td_close", "td", -1)
        yield token


# Elements drawn in another way than by ``rich``


def _beside(
    console: Console, options: ConsoleOptions, item: ListItem | BlockQuote, first: Segment, others: Segment
) -> RenderResult:
    """Yield the rows of an item, each after a mark, or all below it if there is no room for both."""
    room = options.max_width - first.cell_length
    narrow = room < _NARROWEST
    rows = rows_of(console, item.elements, options if narrow else options.update(width=room))
    if narrow:
        yield from (first, Segment.line())
    for number, row in enumerate(rows or [[]]):
        before = [] if narrow else [others if number else first]
        yield from (*before, *Segment.apply_style(row, item.style), Segment.line())


class Trimmed:
    """Content without empty rows before and after it."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows, width = rows_of(console, self._content, options), options.max_width
        while (wider := max((surplus(row, options.max_width) for row in rows), default=0)) > 0:
            if (width := width - wider) < _NARROWEST:
                break
            rows = rows_of(console, self._content, options.update(width=width))
        filled = [number for number, row in enumerate(rows) if any(part.text.strip() for part in row)]
        kept = rows[filled[0] : filled[-1] + 1] if filled else []
        yield Segments(part for row in kept for part in (*row, Segment.line()))


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold" if self.tag != "h1" else "bold underline")
        yield self.text


class _Code(CodeBlock):
    info = ""

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _Code:
        info = token.info.strip()
        block = cls(info.partition(" ")[0] or "text", markdown.code_theme)
        block.info = info
        return block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        colored = Syntax(code, self.lexer_name, theme=CODE, word_wrap=True, background_color="default")
        if self.info and (" " in self.info or colored.lexer is None):  # more than a language
            yield Text(self.info, "dim")
        yield Padding(colored if self.lexer_name != "text" else Text(code), (0, 0, 0, 2))


def _elements(item: ListItem | BlockQuote) -> list[RenderableType]:
    return [*item.elements.__iter__()]


class _Quote(BlockQuote):
    def on_child_close(self, context: MarkdownContext, child: MarkdownElement) -> bool:
        if len(_elements(self)):
            self.elements.append(Text(""))
        return super().on_child_close(context, child)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sign = Segment("▌ ", self.style)
        yield from _beside(console, options, self, sign, sign)


class _Item(ListItem):
    def on_child_close(self, context: MarkdownContext, child: MarkdownElement) -> bool:
        before = _elements(self)
        apart = (Paragraph, TableElement)
        if before and isinstance(before[-1], apart) and isinstance(child, apart):
            self.elements.append(Text(""))
        return super().on_child_close(context, child)


class _List(ListElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, bullets = self.list_start or 0, self.list_type == "bullet_list_open"
        style = console.get_style(f"markdown.item.{'bullet' if bullets else 'number'}", default="none")
        width = 1 if bullets else len(str(first + len(self.items)))
        for number, item in enumerate(self.items, first):
            mark = "•" if bullets else str(number)
            before = Segment(f" {mark:>{width}} ", style)
            yield from _beside(console, options, item, before, Segment(" " * before.cell_length, style))


class _Table(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = [cell.content for cell in self.header.row.cells] if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        heads += [Text("")] * (max(map(len, rows), default=0) - len(heads))
        grid = WholeTable(
            box=box.SIMPLE,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
            style="markdown.table.border",
        )  # its edges would be empty rows beside those between blocks
        for head in heads:
            head.stylize("markdown.table.header")
            grid.add_column(head)
        for row in rows:
            grid.add_row(*row)
        yield grid


class AnswerMarkdown(Markdown):
    """Headings at the left, code that can be copied, and every word in its place."""

    inlines = Markdown.inlines | {"link", "link_url"}
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "blockquote_open": _Quote,
        "bullet_list_open": _List,
        "ordered_list_open": _List,
        "list_item_open": _Item,
        "table_open": _Table,
    }
