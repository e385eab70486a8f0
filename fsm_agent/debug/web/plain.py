"""Answers as JSON, without secrets: everything that leaves for the page goes through here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from fsm_agent.codec import dumps
from fsm_agent.masking import MASK, mask

_SECRET_NAME = re.compile(r"(^|[_-])(api[_-]?key|apikey|access[_-]?token|auth[_-]?token|secret|password|authorization)$", re.IGNORECASE)
_PLACEHOLDERS = ("", None, True, False)


def masked(value: Any, secrets: Sequence[str] = ()) -> Any:
    """JSON values without keys: by their shape anywhere in a text, by their name in an object, and these ``secrets``."""
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {
            key: MASK if _SECRET_NAME.search(str(key)) and isinstance(one, str) and one not in _PLACEHOLDERS else masked(one, secrets)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(one, secrets) for one in value]
    return value


def answer(value: Any, secrets: Sequence[str] = (), status: int = 200) -> Response:
    """A JSON response, masked, that is kept nowhere."""
    body = dumps(masked(value, secrets))
    return Response(body, status, {"cache-control": "no-store"}, "application/json")
