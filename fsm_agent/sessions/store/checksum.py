"""JSON and the checksum that stands beside it: neither SQLite nor JSON notices when a bit of a text is
another one.

Each column ``x`` that holds JSON has the CRC-32 of its text in a column ``x_crc``. ``NULL`` there means that
the text was written without one, by hand, and is read as it is. (Why: decision 53.)"""

from __future__ import annotations

import json
import zlib
from typing import Any

from fsm_agent.errors import StoreError
from fsm_agent.fsm import codec

Checked = tuple[str, int]
"""A text and its checksum, as they are written into two columns."""


def checked(value: object) -> Checked:
    """Return the value as JSON, and the checksum of that."""
    return with_checksum(codec.dumps(value))


def with_checksum(text: str) -> Checked:
    """Return a text and its checksum."""
    return text, _crc(text)


def verify_checksum(text: str, crc: int | None) -> str:
    """Return the text. Raises ``StoreError`` when it is not the one that its checksum was made of."""
    if crc is not None and crc != _crc(text):
        raise _damaged(text, "its checksum does not fit")
    return text


def loads(text: str, crc: int | None) -> Any:
    """Return the value of what ``checked`` wrote. Raises ``StoreError`` when it is not what was written."""
    try:
        return json.loads(verify_checksum(text, crc))
    except ValueError as error:
        raise _damaged(text, str(error)) from error


def _crc(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _damaged(text: str, why: str) -> StoreError:
    return StoreError(
        f"a text in the session store is damaged ({why}): {text[:60]!r}…; "
        "`fsm-agent doctor` looks for more, a backup has it whole"
    )
