"""JSON with its checksum, as it stands in the database: neither SQLite nor JSON notices when a bit of a text
is another one.

JSON may end in blanks, and whatever reads it passes over them. So the CRC-32 of a text stands behind it as
sixteen blanks of four kinds, two bits each: every text has it in its own column, who reads JSON need not know
of it, and texts without it, which were written before, are read as they are. (Why: decision 53.)"""

from __future__ import annotations

import json
import zlib
from typing import Any

from fsm_agent.errors import StoreError
from fsm_agent.fsm import codec

LENGTH = 16
BLANKS = " \t\n\r"
_FOUR = tuple("".join(BLANKS[byte >> shift & 3] for shift in (6, 4, 2, 0)) for byte in range(256))


def dumps(value: object) -> str:
    """Return the value as JSON with its checksum."""
    return sealed(codec.dumps(value))


def sealed(text: str) -> str:
    """Return JSON with its checksum."""
    return text + _seal(text)


def opened(text: str) -> str:
    """Return a text without its checksum. Raises ``StoreError`` when that does not fit. A text that was
    written without one, or that lost its last blank and is no JSON any more, is returned as it is."""
    if text[-1:] not in BLANKS:
        return text
    if _seal(text[:-LENGTH]) != text[-LENGTH:]:
        raise _damaged(text, "its checksum does not fit")
    return text[:-LENGTH]


def loads(text: str) -> Any:
    """Return the value of what ``dumps`` wrote, or of JSON without a checksum. Raises ``StoreError`` when
    it is not what was written."""
    content = opened(text)
    try:
        return json.loads(content)
    except ValueError as error:
        raise _damaged(text, str(error)) from error


def _seal(text: str) -> str:
    crc = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return _FOUR[crc >> 24] + _FOUR[crc >> 16 & 255] + _FOUR[crc >> 8 & 255] + _FOUR[crc & 255]


def _damaged(text: str, why: str) -> StoreError:
    return StoreError(
        f"a text in the session store is damaged ({why}): {text.strip()[:60]!r}…; "
        "`fsm-agent doctor` looks for more, a backup has it whole"
    )
