"""Scripts as files: ``scripted:<path>`` is a model that answers from a JSON Lines file, one reply a line.

A line is a string (the text of a reply) or an object with any of ``text``, ``reasoning``, ``calls`` (a list
of ``{"name", "arguments"}``), ``finish``, ``refusal``, ``status`` (an HTTP error) with ``headers`` and
``body``, and on the last line ``repeat: true``::

    {"calls": [{"name": "get_time", "arguments": {}}]}
    {"status": 429, "headers": {"Retry-After": "2"}}
    "It is noon."
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.providers.scripted.replies import Repeat, Reply, call, status

KEYS = ("text", "reasoning", "calls", "finish", "refusal", "status", "headers", "body", "repeat")


def script_from(path: str) -> list[Reply | Repeat]:
    """The replies of a file. Raises ``ConfigError`` naming the line that cannot be read."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"the script cannot be read ({error.strerror})", path, "scripted:<path of a JSON Lines file>"
        ) from None
    return [_reply(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _reply(line: str, where: str) -> Reply | Repeat:
    try:
        row = json.loads(line)
    except ValueError:
        raise ConfigError(f"{where} is not JSON", line, "a string or an object") from None
    if isinstance(row, str):
        row = {"text": row}
    if not isinstance(row, Mapping) or set(row) - set(KEYS):
        raise ConfigError(f"{where} is no reply", line, f"a string, or an object with {', '.join(KEYS)}")
    reply = _made(row)
    return Repeat((reply,)) if row.get("repeat") else reply


def _made(row: Mapping[str, Any]) -> Reply:
    if "status" in row:
        return status(int(row["status"]), row.get("body"), row.get("headers"))
    calls = tuple(call(str(one["name"]), one.get("arguments")) for one in row.get("calls", ()))
    return Reply(
        text=row.get("text", ""),
        reasoning=row.get("reasoning", ""),
        calls=calls,
        refusal=row.get("refusal"),
        finish=row.get("finish", "tool_calls" if calls else "stop"),
    )
