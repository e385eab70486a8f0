"""Answers as JSON, without secrets: everything that leaves for the page goes through here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from fsm_agent.debug.core.masking import masked
from fsm_agent.fsm.codec import dumps


def answer(value: Any, secrets: Sequence[str] = (), status: int = 200) -> Response:
    """A JSON response, masked, that is kept nowhere."""
    return Response(dumps(masked(value, secrets)), status, {"cache-control": "no-store"}, "application/json")
