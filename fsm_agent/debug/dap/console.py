"""Commands of the debug console. Each begins with a colon, which distinguishes it from a value.

========================  ====================================================================================
``:approve N [session]``  allow the tool call that waits under this number, once or for the session
``:deny N [WHY]``         do not allow it
``:hold [model] [tool]``  hold requests of these kinds back from now on; with no kind, none
``:answer N ANSWER``      answer for the model or the tool that is held back: a text, or JSON
``:let N``                perform the request that is held back
``:steer TEXT``           add a message to the turn without stopping it
``:interrupt [MESSAGE]``  interrupt the turn as its user would
``:fork [EDIT]``          fork the turn at the inspected position; EDIT is JSON
``:resume``               continue an unfinished turn that no process runs
``:at N``                 inspect the position after N moves
``:find TEXT``            moves in whose row, requests or replies the text occurs
``:test``                 write a pytest file that replays this turn
``:help``                 this list
========================  ====================================================================================
"""

from __future__ import annotations

import json
from typing import Any

from fsm_agent.debug.core.commands import (
    AnswerRequest,
    HoldRequests,
    InterruptTurn,
    ReleaseRequest,
    SteerTurn,
)
from fsm_agent.debug.dap.context import EditorContext
from fsm_agent.debug.dap.threads import TurnThread, read_answer
from fsm_agent.errors import ConfigError

assert __doc__ is not None
BY_HAND = ("model", "tool", "request", "event")
LISTED = [line.replace("``", "") for line in __doc__.splitlines() if line.startswith("``:")]
COMMANDS = tuple(line.split()[0].removeprefix(":") for line in LISTED)


def command(context: EditorContext, thread: TurnThread, at: int, said: str) -> str:
    """Carry out what was typed; return what is to be shown. ``at`` is the position that is looked at. Raises
    ``ConfigError``."""
    name, _, words = said.strip().removeprefix(":").partition(" ")
    words, debugger = words.strip(), thread.debugger
    match name:
        case "approve":
            return _approve(thread, words)
        case "deny":
            number, why = read_answer(debugger.status.held, words, "approval")
            debugger.order(AnswerRequest(number, {"deny": why} if why else "deny"))
            return "denied"
        case "hold":
            debugger.order(HoldRequests(kinds := tuple(words.replace(",", " ").split())))
            return f"held back from now on: {', '.join(kinds)}" if kinds else "nothing is held back any more"
        case "answer":
            number, words = read_answer(debugger.status.held, words, *BY_HAND)
            by_hand = _json(words) if words.startswith(("{", '"')) else words
            debugger.order(AnswerRequest(number, by_hand))
            return "answered by hand"
        case "let":
            debugger.order(ReleaseRequest(read_answer(debugger.status.held, words, *BY_HAND)[0]))
            return "it is being done"
        case "steer":
            debugger.order(SteerTurn(words))
            return "told"
        case "interrupt":
            debugger.order(InterruptTurn(words or None))
            return "interrupted"
        case "fork":
            return _fork(context, thread, at, words)
        case "resume":
            context.revive(thread)
            return "resumed"
        case "at":
            return _look_at(context, thread, words)
        case "find":
            return _find(thread, words)
        case "test":
            return context.session.test(debugger.id)
        case "help":
            return "\n".join(LISTED)
    raise ConfigError("no such command", f":{name}", ", ".join(f":{one}" for one in COMMANDS))


def _approve(thread: TurnThread, words: str) -> str:
    number, scope = read_answer(thread.debugger.status.held, words, "approval")
    if scope not in ("", "session"):
        allowed = f":approve {number}, :approve {number} session"
        raise ConfigError("an approval is for once or for the session", scope, allowed)
    thread.debugger.order(AnswerRequest(number, scope or "once"))
    return "approved for the session" if scope else "approved, once"


def _fork(context: EditorContext, thread: TurnThread, at: int, words: str) -> str:
    edit = _json(words) if words else {}
    if not isinstance(edit, dict):
        raise ConfigError("an edit is an object", words, '{"counters": {"retries": 0}}')
    context.branch(thread, at, edit, f"from {at}")
    return ""


def _look_at(context: EditorContext, thread: TurnThread, words: str) -> str:
    if not words.isdecimal():
        raise ConfigError("no such position", words, f"0 to {thread.debugger.record.count}")
    context.look(thread, int(words))
    return ""


def _find(thread: TurnThread, words: str) -> str:
    if not words:
        raise ConfigError("there is nothing to look for", words, "some text")
    found = thread.debugger.record.find(words)
    return "moves " + ", ".join(map(str, found)) if found else "nowhere"


def _json(words: str) -> Any:
    try:
        return json.loads(words)
    except (ValueError, RecursionError):
        raise ConfigError("this cannot be read", words, "JSON") from None
