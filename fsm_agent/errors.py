"""Everything this package raises, in one tree.

Failures of providers and tools are values (``requests.Failure``, ``requests.ToolOutcome``), because the
transition table has rows for them. Exceptions are for bugs and wrong use, split by *when* they can happen::

    FsmAgentError
    ├── TableError            at import: the transition table is wrong (overlap, hole, loop, unknown name)
    ├── ConfigError           at start: a setting, model, key, tool or path cannot be used (exit code 2)
    ├── TurnError             while a turn runs: the engine itself is wrong
    │   ├── UndeclaredEvent   a state reported an event that the table has no line for
    │   ├── ForbiddenChange   a state changed what only rows change: a counter, a limit, its place
    │   ├── StuckTurn         no row of the reported event is open (the proofs exclude this)
    │   ├── PropertyBroken    a move would break a property of the table, and the turn is watched for it
    │   └── JournalError      the journal refused a row
    │       ├── OwnershipLost     another process has taken the turn over
    │       └── StaleCopyError    another process wrote to the session meanwhile
    ├── ExtensionFailed       an extension failed, and declared that this ends the turn
    ├── StoreError            the file that sessions are kept in cannot be used (exit code 2)
    ├── SessionBusy           another turn of this session is running (exit code 2)
    ├── TurnFailed            a turn ended without an answer, and its caller asked for the answer alone
    └── TurnSuspended         the turn waits for an answer, and continues when it arrives (exit code 4)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any


class FsmAgentError(Exception):
    """Root of every exception raised by this package."""


class TableError(FsmAgentError):
    """The transition table cannot be used; the message names the row and the fix."""


class ConfigError(FsmAgentError):
    """A value from the user cannot be used.

    The message is one line with three parts: what was wrong, what was given, what is allowed.
    """

    def __init__(self, what: str, given: object = None, allowed: str | None = None) -> None:
        parts = [what]
        if given is not None:
            parts.append(f"given: {_short(given)}")
        if allowed:
            parts.append(f"allowed: {allowed}")
        super().__init__("; ".join(parts))


def expect(name: str, given: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Raise ``ConfigError`` unless ``given`` is of one of these types; a truth value is not a number."""
    if not isinstance(given, kinds) or (isinstance(given, bool) and kinds is int):
        raise ConfigError(f"{name} has the wrong type", given, allowed)


def expect_callable(name: str, given: object, allowed: str) -> None:
    """Raise ``ConfigError`` unless ``given`` can be called."""
    if not callable(given):
        raise ConfigError(f"{name} has the wrong type", given, allowed)


def expect_name(name: str, given: object, allowed: str) -> None:
    """Raise ``ConfigError`` unless ``given`` is a text that a database can hold as a name."""
    expect(name, given, str, allowed)
    try:
        str(given).encode()
    except UnicodeEncodeError:
        what = f"{name} has half of a surrogate pair"
        raise ConfigError(what, ascii(given), "text that UTF-8 can encode") from None


def near(given: str, known: Iterable[str]) -> str:
    """Return the known names for a ``ConfigError``, the one that was probably meant first."""
    from difflib import get_close_matches

    names = list(known)
    alike = get_close_matches(given, names, 1)
    return f"{alike[0]}, perhaps; all of them: {', '.join(names)}" if alike else ", ".join(names)


class TurnError(FsmAgentError):
    """The engine broke one of its own rules while a turn ran."""


class UndeclaredEvent(TurnError):
    """A state reported an event for which the table has no line."""


class ForbiddenChange(TurnError):
    """A state changed a counter, a limit, or the turn's position; the message has both values."""


class StuckTurn(TurnError):
    """No row is open for the reported event. The partition proof excludes this for a verified table."""


class PropertyBroken(TurnError):
    """A move would have broken a property of the turn's table; the message is the property's sentence."""


class JournalError(TurnError):
    """The journal rejected a row; the turn must stop."""


class OwnershipLost(JournalError):
    """Another process, or a later attempt in this one, owns the turn now. This one has stopped, and its work
    since then is not stored."""


class StaleCopyError(JournalError):
    """Another process wrote to the session during a turn; the turn's later work is not stored."""


class ExtensionFailed(FsmAgentError):
    """An extension failed, and declared that this ends the turn."""


class StoreError(FsmAgentError):
    """The store of sessions cannot be read or written; one line with the path, the problem, and the fix."""


class SessionBusy(FsmAgentError):
    """Another turn of the same session is still running."""


class TurnFailed(FsmAgentError):
    """A turn failed, so ``Agent.chat`` has no answer to return. The message is the sentence for people;
    ``result`` is the whole ``TurnResult``, with ``turn_exit_reason`` and ``failure_class``."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__(result.error or f"the turn ended: {result.turn_exit_reason}")


class TurnSuspended(FsmAgentError):
    """The turn has not ended: it waits for answers, results, or a time, and any process may resume it.
    ``turn_id`` of the turn; ``pending``: the items it waits for."""

    def __init__(self, turn_id: str, pending: Sequence[Any]) -> None:
        self.turn_id, self.pending = turn_id, tuple(pending)
        waits = ", ".join(f"{one.id} ({one.what})" for one in pending) or "nothing any more: resume it"
        super().__init__(f"turn {turn_id} is suspended, it waits for {waits}")


def _short(value: object, limit: int = 120) -> str:
    text = " ".join((value if isinstance(value, str) else _short_name(value)).split()) or "''"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _short_name(value: object) -> str:
    """Return a short name for an object whose text is only an address."""
    if isinstance(value, type):
        return f"class {value.__name__}"
    if inspect.isroutine(value):
        return f"function {value.__name__}"
    return f"{type(value).__name__} object" if type(value).__repr__ is object.__repr__ else repr(value)
