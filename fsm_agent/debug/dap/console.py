"""Commands of the debug console; each begins with a colon, so that none is taken for a value.

========================  ============================================================================================
``:approve [session]``    allow the tool call that waits, once or for the whole session
``:deny [WHY]``           do not allow it
``:hold [model] [tool]``  hold requests of these kinds back from now on; with no kind, none
``:answer ANSWER``        answer for the model or the tool that is held back: a text, or JSON
``:let``                  let what is held back be done
``:steer TEXT``           tell the turn something without stopping it
``:interrupt [MESSAGE]``  interrupt the turn as its user would
``:fork [EDIT]``          go on from the position that is looked at as another turn; EDIT is JSON
``:resume``               go on with an unfinished turn that no process runs
``:at N``                 look at the position after N moves
``:find TEXT``            moves in whose row, requests or replies the text occurs
``:test``                 a pytest file that plays this turn again
``:help``                 this list
========================  ============================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.dap.threads import Lane
from fsm_agent.errors import ConfigError


class Room(Protocol):
    """What the commands need of the session."""

    @property
    def session(self) -> DebugSession: ...

    def branch(self, lane: Lane, at: int, edit: Mapping[str, Any], why: str) -> None:
        """Fork, and show the new turn as a thread."""
        ...

    def revive(self, lane: Lane) -> None:
        """Resume an unfinished turn in its thread."""
        ...

    def look(self, lane: Lane, at: int) -> None:
        """Look at a position."""
        ...


Command = Callable[[Room, Lane, int, str], str]


def command(room: Room, lane: Lane, at: int, said: str) -> str:
    """Carry one out; what is to be shown. Raises ``ConfigError``."""
    name, _, words = said.strip().removeprefix(":").partition(" ")
    if name not in COMMANDS:
        raise ConfigError("no such command", f":{name}", ", ".join(f":{one}" for one in COMMANDS))
    return COMMANDS[name](room, lane, at, words.strip())


def _held(lane: Lane, *kinds: str) -> int:
    found = [one for one in lane.debugger.status.held if one["kind"] in kinds]
    if not found:
        raise ConfigError("nothing waits for this", " or ".join(kinds), "see the scope Request")
    return int(found[0]["id"])


def _approve(room: Room, lane: Lane, at: int, words: str) -> str:
    scope = words or "once"
    if scope not in ("once", "session"):
        raise ConfigError("an approval is for once or for the session", words, ":approve, :approve session")
    lane.debugger.order("answer", {"id": _held(lane, "approval"), "said": scope})
    return f"approved, {scope}" if scope == "once" else "approved for the session"


def _deny(room: Room, lane: Lane, at: int, words: str) -> str:
    lane.debugger.order("answer", {"id": _held(lane, "approval"), "said": {"deny": words} if words else "deny"})
    return "denied"


def _hold(room: Room, lane: Lane, at: int, words: str) -> str:
    kinds = words.replace(",", " ").split()
    lane.debugger.order("hold", {"kinds": kinds})
    return f"held back from now on: {', '.join(kinds)}" if kinds else "nothing is held back any more"


def _answer(room: Room, lane: Lane, at: int, words: str) -> str:
    said: Any = words
    if words.startswith(("{", '"')):
        said = _json(words)
    lane.debugger.order("answer", {"id": _held(lane, "model", "tool"), "said": said})
    return "answered by hand"


def _let(room: Room, lane: Lane, at: int, words: str) -> str:
    lane.debugger.order("let", {"id": _held(lane, "model", "tool")})
    return "it is being done"


def _steer(room: Room, lane: Lane, at: int, words: str) -> str:
    lane.debugger.order("steer", {"text": words})
    return "told"


def _interrupt(room: Room, lane: Lane, at: int, words: str) -> str:
    lane.debugger.order("interrupt", {"message": words})
    return "interrupted"


def _fork(room: Room, lane: Lane, at: int, words: str) -> str:
    edit = _json(words) if words else {}
    if not isinstance(edit, dict):
        raise ConfigError("an edit is an object", words, '{"counters": {"retries": 0}}')
    room.branch(lane, at, edit, f"from {at}")
    return ""


def _resume(room: Room, lane: Lane, at: int, words: str) -> str:
    room.revive(lane)
    return "resumed"


def _at(room: Room, lane: Lane, at: int, words: str) -> str:
    if not words.isdecimal():
        raise ConfigError("no such position", words, f"0 to {lane.debugger.record.count}")
    room.look(lane, int(words))
    return ""


def _find(room: Room, lane: Lane, at: int, words: str) -> str:
    if not words:
        raise ConfigError("there is nothing to look for", words, "some text")
    found = lane.debugger.record.find(words)
    return "moves " + ", ".join(map(str, found)) if found else "nowhere"


def _test(room: Room, lane: Lane, at: int, words: str) -> str:
    return room.session.test(lane.debugger.id)


def _help(room: Room, lane: Lane, at: int, words: str) -> str:
    assert __doc__ is not None
    listed = [line.replace("``", "") for line in __doc__.splitlines() if line.startswith("``:")]
    return "\n".join(listed)


def _json(words: str) -> Any:
    try:
        return json.loads(words)
    except (ValueError, RecursionError):
        raise ConfigError("this cannot be read", words, "JSON") from None


COMMANDS: Mapping[str, Command] = {
    "approve": _approve, "deny": _deny, "hold": _hold, "answer": _answer, "let": _let, "steer": _steer, "interrupt": _interrupt,
    "fork": _fork, "resume": _resume, "at": _at, "find": _find, "test": _test, "help": _help,
}  # fmt: skip
