"""Converts a PDF to text: a script that runs in its own process, because a file can keep a parser busy.

Standard input is the PDF; the first argument is the maximum characters of text. Prints one JSON object:
``pages`` and ``text``, or ``problem`` in words."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

MOST_MEMORY = 2_000_000_000
"""Bytes; a file of a few kilobytes can request more."""


def read(data: bytes, most: int) -> dict[str, Any]:
    """Return the text, page after page, cut at ``most`` characters."""
    try:
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


def main() -> None:
    """Read standard input and print the object; errors of a broken file become a problem in words."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    try:
        said = read(sys.stdin.buffer.read(), int(sys.argv[1]))
    except Exception as error:
        said = {"problem": f"it is broken: {type(error).__name__}"}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
