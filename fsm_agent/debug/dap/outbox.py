"""What goes out to the editor: numbered, and without secrets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsm_agent.debug.core.masking import masked

Write = Callable[[Mapping[str, Any]], None]
REFUSED = 1
"""Number of the one kind of error there is: something was asked that cannot be done, and the text says why."""


class Post:
    """Used by one thread only."""

    def __init__(self, write: Write, secrets: Sequence[str] = ()) -> None:
        self._write, self.secrets = write, secrets
        self._numbers = itertools.count(1)

    def event(self, name: str, body: Mapping[str, Any] | None = None) -> None:
        self._send({"type": "event", "event": name}, body)

    def output(self, text: str, category: str = "console", where: Mapping[str, Any] | None = None) -> None:
        """A line in the debug console; ``where`` in a source it is about."""
        self.event("output", {"category": category, "output": f"{text}\n", **(where or {})})

    def reply(self, request: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> None:
        self._send(self._to(request, True), body)

    def refuse(self, request: Mapping[str, Any], why: str, *, show: bool = True) -> None:
        """``show``: worth a person's attention at once."""
        error = {"id": REFUSED, "format": "{why}", "variables": {"why": why}, "showUser": show}
        self._send(self._to(request, False) | {"message": masked(why, self.secrets)}, {"error": error})

    def _to(self, request: Mapping[str, Any], success: bool) -> dict[str, Any]:
        command = request.get("command")
        return {
            "type": "response", "request_seq": request["seq"], "success": success,
            "command": command if isinstance(command, str) else "",
        }  # fmt: skip

    def _send(self, message: dict[str, Any], body: Mapping[str, Any] | None) -> None:
        message["seq"] = next(self._numbers)
        if body is not None:
            message["body"] = masked(body, self.secrets)
        self._write(message)
