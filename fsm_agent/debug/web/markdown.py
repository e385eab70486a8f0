"""Markdown as a tree of plain values that a page may show: what a model wrote is hostile, so nothing of it
becomes markup. HTML in it stays text, and pictures are shown as their address."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from markdown_it.token import Token

Node = dict[str, Any]
"""``tag`` with ``parts``, or ``text``; a link has ``href``."""
LONGEST = 100_000
"""Characters that are read; a longer text is shown as it is."""
TAGS = frozenset({
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "em", "strong", "s", "table",
    "thead", "tbody", "tr", "th", "td", "a",
})  # fmt: skip
ADDRESSES = ("http", "https")
DEEPEST = 100
"""Levels of lists and quotes; what is deeper is flat."""


def tree(text: str) -> list[Node] | None:
    """Return the blocks of a text, ``None`` for one that is too long."""
    if len(text) > LONGEST:
        return None
    from rich.markdown import Markdown

    return _nested(Markdown(text).parsed)


def _nested(tokens: Iterable[Token]) -> list[Node]:
    top: list[Node] = []
    open_parts = [top]
    for token in tokens:
        if token.nesting > 0:
            if len(open_parts) > DEEPEST or token.tag not in TAGS:
                open_parts.append(open_parts[-1])
                continue
            node: Node = {"tag": token.tag, "parts": []}
            if token.tag == "a":
                node["href"] = _address(str(token.attrs.get("href", "")))
            open_parts[-1].append(node)
            open_parts.append(node["parts"])
        elif token.nesting < 0:
            open_parts.pop()
        else:
            open_parts[-1] += _leaf(token)
    return top


def _leaf(token: Token) -> list[Node]:
    match token.type:
        case "inline":
            return _nested(token.children or ())
        case "fence" | "code_block":
            return [{"tag": "pre", "parts": [{"text": token.content}]}]
        case "code_inline":
            return [{"tag": "code", "parts": [{"text": token.content}]}]
        case "softbreak" | "hardbreak":
            return [{"tag": "br", "parts": []}]
        case "hr":
            return [{"tag": "hr", "parts": []}]
        case "image":
            return [{"text": f"[{token.content}] {token.attrs.get('src', '')}"}]
    return [{"text": token.content}] if token.content else []


def _address(href: str) -> str:
    """The address of a link, empty for one that a page may not follow."""
    try:
        return href if urlsplit(href).scheme in ADDRESSES else ""
    except ValueError:
        return ""
