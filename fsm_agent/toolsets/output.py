"""What a program wrote, kept within bounds and made into plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator

HEAD = TAIL = 20_000
"""Bytes kept from the beginning and from the end of the output."""
LINE = 1_000
"""Bytes among which the newest line is looked for."""
BLOCK = 50_000
"""Characters that are cleaned at once, in some milliseconds; control sequences are rarely longer."""

_SEQUENCE = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles, links, the clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*+(?:\x1b\\|\x9c)?"  # device control and private strings
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours, cursor, screen
    r"|\x1b[ -/]*+[0-~]"
)
_STRUCK = re.compile("[^\n\x08]\x08")
_OTHER = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""C0 but tab and newline, C1, marks that change the direction of text, and letters that nobody sees but a
model reads."""


class Output:
    """Keeps the head and the tail of what arrives and counts the rest."""

    def __init__(self) -> None:
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Take more bytes; of very many only the beginning and the end are kept."""
        self.total += len(data)
        room = HEAD - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 4 * TAIL:
            del self.tail[:-TAIL]

    def last_line(self) -> str:
        """Return the newest line that is not empty, as far as it was written."""
        newest = (self.tail or self.head)[-LINE:]
        return next((line for line in reversed(readable(newest).split("\n")) if line.strip()), "")

    def text(self) -> str:
        """Return what was kept, and say how much is left out."""
        tail = self.tail[-TAIL:]
        left_out = self.total - len(self.head) - len(tail)
        if not left_out:
            return readable(self.head + tail)
        return f"{readable(self.head)}\n… [{left_out:,} bytes left out] …\n{readable(tail)}"


def readable(data: bytes | bytearray) -> str:
    """Text as a person would see it in the end: without colours and other control sequences, and of a line
    that was written over and over, such as a progress bar, only its last state.

    Done block by block, so that a long text in a thread does not hold up the others."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return "".join(_plain(block) for block in _blocks(text))


def _blocks(text: str) -> Iterator[str]:
    """Pieces that end with a line, but for lines that are longer than a block."""
    place = 0
    while place < len(text):
        end = text.find("\n", place + BLOCK, place + 2 * BLOCK) + 1 or place + 2 * BLOCK
        yield text[place:end]
        place = end


def _plain(text: str) -> str:
    text = _STRUCK.sub("", _SEQUENCE.sub("", text))
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _OTHER.sub("", text)


def _last_state(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part), "")
