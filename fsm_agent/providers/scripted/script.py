"""An ordered list of answers, used up one a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsm_agent.providers.scripted.replies import Repeat, Reply


class ReplyScript:
    """Entries in order. A ``Repeat`` goes on for ever; a callable is called with the request and returns an
    answer.

    Raises ``ValueError`` for entries after a ``Repeat``: they could never be served.
    """

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = list(entries)
        self._position = 0
        self._repeated = 0
        for entry in self._entries[:-1]:
            if isinstance(entry, Repeat):
                raise ValueError("repeat(…) must be the last entry of a script")

    def take(self, request: Any) -> Any:
        """The next answer, or ``None`` when the script is used up."""
        if self._position == len(self._entries):
            return None
        entry = self._entries[self._position]
        if isinstance(entry, Repeat):
            entry = entry.entries[self._repeated % len(entry.entries)]
            self._repeated += 1
        else:
            self._position += 1
        return entry(request) if isinstance(entry, Callable) else entry  # type: ignore[arg-type]

    @property
    def left(self) -> int:
        """Entries not yet served; a ``Repeat`` counts as one for ever."""
        return len(self._entries) - self._position


def entries_of(script: Iterable[Any] | Repeat | Reply | Callable[[Any], Any]) -> list[Any]:
    """A script may be given as a list or as a single answer."""
    return [script] if isinstance(script, (Repeat, Reply)) or callable(script) else list(script)
