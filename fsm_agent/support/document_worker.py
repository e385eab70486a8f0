"""Converts untrusted documents to readable text. This script runs in its own process, because such a document
can keep a parser busy forever and must not do so in the agent. It imports nothing of this package.

With the arguments ``page``, an address, and ``main`` or ``whole``, standard input is a web page in UTF-8, and
its text is printed. With ``pdf`` and the maximum characters of text, it is a PDF, and one JSON object is
printed: ``pages`` and ``text``, or ``problem`` in words."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

# ----------------------------------------------------------------------------------------------------
# A web page as readable text.
#
# Pages are parsed in a process that can be killed. A page can keep an HTML parser busy forever (a run of `<!`
# hangs the standard one), so it runs in a separate process with a limit. Marking outside text is a hint to
# the model; approval is the protection.
#
# A library does not replace it. markdownify 1.2 shows every hidden element, nests list items that are not
# closed, and does not return on that run; html-to-markdown 3.21 (22 MB) shows what `hidden`, `aria-hidden`,
# and `opacity: 0` hide.


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER = _names("script style template noscript svg math iframe object canvas audio video select")
ASIDE = frozenset(("nav", "aside", "footer"))
BLOCKS = _names(
    "address article blockquote body dd details div dl dt fieldset figcaption figure footer form header"
    " hr legend li main nav ol p pre section summary table tbody tfoot thead tr ul h1 h2 h3 h4 h5 h6"
)
APART = _names("p pre table ul ol dl blockquote h1 h2 h3 h4 h5 h6 section article")
VOID = _names("area base br col embed hr img input link meta source track wbr")
SELF_CLOSING = frozenset(("p", "li", "dd", "dt", "tr", "td", "th", "option"))
"""Elements that end where the next of the same kind begins."""
MAX_LINK = 500
_HIDDEN = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|opacity\s*:\s*0(?![.\d])|font-size\s*:\s*0(?![.\d])",
    re.IGNORECASE,
)

Attributes = Sequence[tuple[str, str | None]]


class WebPage(HTMLParser):
    """Collects visible text. ``skip``: elements to leave out with their content, besides hidden ones."""

    def __init__(self, address: str, skip: frozenset[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.base, self.skip = address, skip
        self.title = ""
        self.parts: list[str] = []
        self.skipping: list[str] = []
        """The skipped element, and those of the same name inside it."""
        self.lists: list[int | None] = []
        self.link: tuple[int, str] | None = None
        self.in_pre = 0
        self.in_title = False

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        """Begin an element, or skip it."""
        if self.skipping:
            if tag != self.skipping[0] or tag in VOID:
                return
            if tag not in SELF_CLOSING:
                self.skipping.append(tag)
                return
            self.skipping.clear()
        given = dict(attrs)
        if tag in self.skip or (tag not in VOID and _hidden(given)):
            self.skipping.append(tag)
            return
        self._break(tag)
        self._open(tag, given)

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        if self.skipping:
            if tag == self.skipping[0]:
                self.skipping.pop()
            return
        if tag == "title":
            self.in_title = False
        elif tag == "pre" and self.in_pre:
            self.in_pre -= 1
            self.parts[-1] = self.parts[-1].rstrip()
            self.parts.append("\n```")
        elif tag in ("ul", "ol") and self.lists:
            self.lists.pop()
        elif tag == "code" and not self.in_pre:
            self.parts.append("`")
        elif tag == "a" and self.link:
            self._close_link()
        self._break(tag)

    def handle_data(self, data: str) -> None:
        """Collect text between tags."""
        if self.skipping:
            return
        if self.in_title:
            self.title += data
        elif self.in_pre:
            self.parts.append(data)
        else:
            self.parts.append(re.sub(r"\s+", " ", data))

    def _open(self, tag: str, given: dict[str, str | None]) -> None:
        if tag == "title":
            self.in_title = not self.title
        elif tag == "base" and given.get("href"):
            self.base = _join(self.base, given["href"] or "")
        elif tag == "br":
            self.parts.append("\n")
        elif tag == "hr":
            self.parts.append("---\n")
        elif tag == "pre":
            self.in_pre += 1
            self.parts.append("```\n")
        elif tag == "code" and not self.in_pre:
            self.parts.append("`")
        elif tag in ("ul", "ol"):
            self.lists.append(1 if tag == "ol" else None)
        elif tag == "li":
            self.parts.append(self._bullet())
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        elif re.fullmatch("h[1-6]", tag):
            self.parts.append("#" * int(tag[1]) + " ")
        elif tag == "img" and (given.get("alt") or "").strip():
            self.parts.append(f"[image: {given['alt']}]")
        elif tag == "a" and given.get("href"):
            if self.link:
                self._close_link()
            self.link = (len(self.parts), _join(self.base, given["href"] or ""))

    def _break(self, tag: str) -> None:
        """Begin a new line for a block element, after a blank one for those set apart."""
        if tag in BLOCKS:
            ended = bool(self.parts) and self.parts[-1].endswith("\n")
            self.parts.append("\n" * ((tag in APART and not self.lists) + (not ended)))

    def _bullet(self) -> str:
        number = self.lists[-1] if self.lists else None
        if self.lists and number is not None:
            self.lists[-1] = number + 1
        return "  " * (len(self.lists) - 1) + (f"{number}. " if number is not None else "- ")

    def _close_link(self) -> None:
        assert self.link is not None
        start, address = self.link
        self.link = None
        words = " ".join("".join(self.parts[start:]).split())
        if (
            words
            and address.startswith(("http://", "https://"))
            and len(address) <= MAX_LINK
            and words != address
        ):
            self.parts[start:] = [f"[{words}]({address})"]

    def text(self) -> str:
        """Return the collected text, tidied."""
        lines: list[str] = []
        in_code = False
        for line in "".join(self.parts).split("\n"):
            fence = line.strip() == "```"
            in_code = in_code != fence
            plain = line.strip() if fence else line.rstrip() if in_code else _tidy(line)
            if plain or (lines and lines[-1]):
                lines.append(plain)
        return "\n".join(lines).strip()


def read_page(page: str, address: str, whole: bool) -> str:
    """Return the page as text, with its title first. Falls back from the main part to everything when the
    main part is empty."""
    main = _parse(page, address, NEVER if whole else NEVER | ASIDE)
    if not whole and (main.skipping or not main.text()):
        main = _parse(page, address, NEVER)
    title = " ".join(main.title.split())
    text = main.text()
    return f"{title}\n\n{text}".strip() if title and not text.startswith(f"# {title}") else text


def _parse(page: str, address: str, skip: frozenset[str]) -> WebPage:
    parser = WebPage(address, skip)
    parser.feed(page)
    parser.close()
    return parser


def _hidden(given: dict[str, str | None]) -> bool:
    return (
        "hidden" in given
        or given.get("aria-hidden") == "true"
        or bool(_HIDDEN.search(given.get("style") or ""))
    )


def _join(base: str, link: str) -> str:
    try:
        return urljoin(base, link.strip())
    except ValueError:
        return ""


def _tidy(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))] if re.match(r" *(?:- |\d+\. )", line) else ""
    return indent + " ".join(line.removeprefix(" | ").split())


# ----------------------------------------------------------------------------------------------------
# A PDF as text.


MOST_MEMORY = 2_000_000_000
"""Bytes; a file of a few kilobytes can request more."""


def read_pdf(data: bytes, most: int) -> dict[str, Any]:
    """Return the text, page after page, cut at ``most`` characters."""
    try:
        import logging

        from pypdf import PdfReader
    except ImportError:
        return {"problem": "pypdf is not installed"}
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return {"problem": "it is encrypted"}
    pages: list[str] = []
    left = most
    for number, page in enumerate(reader.pages, 1):
        if left <= 0:
            pages.append(f"[the text of page {number} and those behind it is left out]")
            break
        text = page.extract_text().strip()
        if text:
            pages.append(f"[page {number}]\n{text[:left]}")
        left -= len(text)
    if not pages:
        return {"problem": "it has no text, only pictures of it"}
    return {"pages": len(reader.pages), "text": "\n\n".join(pages)}


def main(kind: str, *arguments: str) -> None:
    """Convert standard input."""
    given = sys.stdin.buffer.read()
    if kind == "page":
        address, part = arguments
        text = read_page(given.decode("utf-8", "replace"), address, part == "whole")
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        return
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    try:
        answer = read_pdf(given, int(arguments[0]))
    except Exception as error:  # from a broken file
        answer = {"problem": f"it is broken: {type(error).__name__}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
