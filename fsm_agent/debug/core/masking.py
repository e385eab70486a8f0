"""Taking secrets out of values that leave the debugger: for a page, an editor, or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.support.redaction import MASK, mask

_SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?key|apikey|access[_-]?token|auth[_-]?token|secret|password|authorization)$", re.IGNORECASE
)


KEYS = ("_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
"""Ends of the names of variables that hold keys."""


def environment_keys(environment: Mapping[str, str]) -> list[str]:
    """Values of variables that hold keys."""
    return [value for name, value in environment.items() if value and name.upper().endswith(KEYS)]


def masked(value: Any, secrets: Sequence[str] = ()) -> Any:
    """JSON values without keys: by their shape anywhere in a text, by their name in an object, and these ``secrets``."""
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {
            key: MASK if isinstance(one, str) and one and _SECRET_NAME.search(str(key)) else masked(one, secrets)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(one, secrets) for one in value]
    return value
