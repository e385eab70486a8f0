"""Requests of the editor, except those that begin and end its session.

Some requests only inspect. The others move a turn, or the inspected position: at the newest position they are
commands to the engine. At an earlier position they step through the record, and nothing runs. To continue
from there, fork the turn with *restart frame* or by changing a value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, assert_never

from fsm_agent.debug.core.breakpoints import Arguments, BreakpointHit, number, objects, text
from fsm_agent.debug.core.commands import (
    AnswerRequest,
    ContinueTurn,
    HoldRequests,
    InterruptTurn,
    PauseTurn,
    ReleaseRequest,
    SteerTurn,
    StepInto,
    StepMove,
    StepOver,
)
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.dap import variables as expressions
from fsm_agent.debug.dap.breakpoints import EXCEPTIONS, EditorBreakpoint, breakpoint_json, place, same_file
from fsm_agent.debug.dap.context import EditorContext
from fsm_agent.debug.dap.threads import TurnThread, answers, frame_of, question_text, read_answer, stop_of
from fsm_agent.debug.dap.variables import scopes_of
from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import Exact

_WORD = re.compile(r":?[\w.\[\]-]*$")


# Breakpoints


def set_breakpoints(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Replace the breakpoints of a file."""
    source = arguments.get("source")
    if not isinstance(source, dict):
        raise ConfigError("breakpoints need a source", source, "a file")
    path = context.client.path(source)
    return _set(
        context, context.breakpoints.set_source(path, objects(arguments, "breakpoints"), context.client)
    )


def set_functions(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Replace the breakpoints on names."""
    return _set(context, context.breakpoints.set_functions(objects(arguments, "breakpoints")))


def set_filters(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Replace the exception filters."""
    names = arguments.get("filters") or []
    if not isinstance(names, list):
        raise ConfigError("filters are not a list", names, ", ".join(one.name for one in EXCEPTIONS))
    wanted: list[tuple[str, Arguments]] = [(str(name), {}) for name in names]
    wanted += [(str(one.get("filterId")), one) for one in objects(arguments, "filterOptions")]
    return _set(context, context.breakpoints.set_filters(wanted))


def _set(context: EditorContext, breakpoints: list[EditorBreakpoint]) -> dict[str, Any]:
    for thread in context.threads:
        context.arm(thread)
    return {
        "breakpoints": [
            breakpoint_json(point, context.client, context.breakpoints.map) for point in breakpoints
        ]
    }


def breakpoint_locations(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Return the possible breakpoints in these lines, with each rung of a decision list by its column."""
    path = context.client.path(arguments.get("source") or {})
    first = context.client.our_line(number(arguments, "line"))
    last = context.client.our_line(number(arguments, "endLine", arguments.get("line")))
    found: list[dict[str, int]] = []
    if same_file(path, context.breakpoints.map.path):
        found = [place(spot, context.client) for spot in context.breakpoints.map.between(first, last)]
    for where in context.breakpoints.states.values():
        if same_file(path, where.path) and first <= where.line <= last:
            found.append({"line": context.client.line(where.line)})
    return {"breakpoints": found}


# Threads and frames


def threads(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Return the turns, one thread each."""
    return {"threads": [{"id": thread.id, "name": thread.name} for thread in context.threads]}


def stack_trace(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Return the current frame of a turn and the moves that led to it."""
    thread = _thread(context, arguments)
    thread.stand()
    return context.frames.stack(
        thread, context.client, number(arguments, "startFrame", 0), number(arguments, "levels", 0)
    )


def scopes(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Return the scopes of a frame."""
    thread, at = _frame(context, arguments)
    thread.stand()
    return {"scopes": scopes_of(thread, at, context.references)}


def variables(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Return the children of a value."""
    start, count = number(arguments, "start", 0), number(arguments, "count", 0)
    return {
        "variables": context.references.children(
            arguments.get("variablesReference"), arguments.get("filter"), start, count
        )
    }


def exception_info(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Return the failure or exit at which a turn stopped."""
    thread = _thread(context, arguments)
    thread.stand()
    stop = thread.stop
    if stop is None or not stop.of:
        raise ConfigError("the turn is not paused at an exception", thread.name)
    about = next(one for one in EXCEPTIONS if one.name == stop.of)
    snapshot = thread.debugger.record.snapshot(thread.at)
    text = snapshot.get("error") or (snapshot.get("failure") or {}).get("message") or stop.description
    held = [question_text(one) for one in thread.debugger.status.held] if stop.of == "approval" else []
    return {
        "exceptionId": stop.text or about.name,
        "description": Exact("\n".join(held)) if held else f"{about.label}: {about.about}",
        "breakMode": "always",
        "details": {"message": str(text), "typeName": about.name},
    }


def loaded_sources(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Return the files of the table and of its states."""
    paths = dict.fromkeys(
        [context.breakpoints.map.path, *(where.path for where in context.breakpoints.states.values())]
    )
    return {"sources": [context.client.source(path) for path in paths]}


# Expressions


def evaluate(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Evaluate a value or a condition; in the console, also a command."""
    expression, purpose = text(arguments, "expression"), arguments.get("context")
    thread, at = _frame(context, arguments)
    if purpose == "repl" and expression.lstrip().startswith(":"):
        return {"result": command(context, thread, at, expression), "variablesReference": 0}
    where, value = expressions.evaluate(thread, at, expression)
    shown = context.references.show(
        value, where, name=str(where.path[-1]) if where.path else "", whole=purpose == "clipboard"
    )
    return {"result": shown.pop("value"), **shown}


def completions(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Complete the name before the column."""
    line = text(arguments, "text")
    line = (
        line.splitlines()[max(0, number(arguments, "line", 1) - context.client.first_line)] if line else line
    )
    before = line[: max(0, context.client.our_column(number(arguments, "column")) - 1)]
    found = _WORD.search(before)
    word = found[0] if found is not None else ""
    if word.startswith(":"):
        waits = answers(context.focus.debugger.status.held) if context.focus is not None else []
        names = [*(f":{name}" for name in COMMANDS), *waits]
        start, kind = found.start() if found else 0, "function"
    else:
        thread, at = _frame(context, arguments)
        start, kind = len(before) - len(word.rpartition(".")[2]), "value"
        names = expressions.names_after(thread, at, word)
    typed = before[start:]
    return {
        "targets": [
            {"label": name, "type": kind, "start": start, "length": len(typed)}
            for name in names
            if name.lower().startswith(typed.lower())
        ]
    }


def _frame(context: EditorContext, arguments: Arguments) -> tuple[TurnThread, int]:
    """Return the turn and the position of a frame; without a frame, those in focus."""
    if arguments.get("frameId") is None:
        thread = (
            context.focus
            if context.focus is not None and not context.focus.over
            else next(iter(context.threads), None)
        )
        if thread is None:
            raise ConfigError("there is no turn yet")
        return thread, thread.at
    of, at = frame_of(arguments["frameId"])
    thread = context.threads.get(of)
    if at > thread.debugger.record.count:
        raise ConfigError("no such frame", arguments["frameId"], "one of the stack trace")
    return thread, at


# Moving


LIVE = ("running", "paused", "waiting")
"""Phases in which an engine accepts commands."""


def step_back(context: EditorContext, arguments: Arguments) -> None:
    """Inspect the previous position."""
    thread = _behind(context, arguments)
    thread.debugger.cursor.back()
    context.later(lambda: context.looks(thread))


def reverse_continue(context: EditorContext, arguments: Arguments) -> None:
    """Inspect the last earlier position at which a breakpoint stops, or the start."""
    thread = _behind(context, arguments)
    _, hits = thread.debugger.cursor.back_to(thread.debugger.breakpoints)
    context.later(lambda: context.looks(thread, hits))


def pause(context: EditorContext, arguments: Arguments) -> None:
    """Pause a turn before its next request or move."""
    thread = _thread(context, arguments)
    if thread.stop is not None:
        return
    if thread.debugger.status.phase in ("waiting", "idle", "ended"):
        context.later(lambda: context.stands(thread))
    else:
        thread.debugger.order(PauseTurn())


def restart_frame(context: EditorContext, arguments: Arguments) -> None:
    """Fork the turn at the position of a frame."""
    of, at = frame_of(arguments.get("frameId"))
    context.branch(context.threads.get(of), at, {}, "started again", again=True)


def set_variable(context: EditorContext, arguments: Arguments) -> dict[str, Any]:
    """Change a value at the inspected position: fork the turn there with the new value."""
    where, value = context.references.get(arguments.get("variablesReference"))
    name, new_text = text(arguments, "name"), text(arguments, "value")
    key: str | int = int(name[1:-1]) if not hasattr(value, "keys") and name[1:-1].isdecimal() else name
    thread = context.threads.get(where.thread)
    edit, new = expressions.edit_of(thread.debugger, where.to(key), new_text)
    context.branch(thread, where.at, edit, f"{name} set to {new_text[:80]}")
    return context.references.show(new, where.to(key), name=name)


def terminate(context: EditorContext, arguments: Arguments) -> None:
    """Interrupt every turn, as its user would; on the second request, end without waiting for them."""
    live = [thread for thread in context.threads if thread.debugger.status.phase in LIVE]
    if context.ending or not live:
        context.later(context.terminated)
    context.ending = True
    for thread in live:
        _interrupt(context, thread)


def terminate_threads(context: EditorContext, arguments: Arguments) -> None:
    """Interrupt these turns."""
    for wanted in arguments.get("threadIds") or []:
        thread = context.threads.get(wanted)
        if thread.debugger.status.phase in LIVE:
            _interrupt(context, thread)
        else:
            context.later(lambda thread=thread: context.finish(thread))  # type: ignore[misc]  # bound at once


def _interrupt(context: EditorContext, thread: TurnThread) -> None:
    context.running(thread)
    thread.debugger.cursor.to(thread.debugger.record.count)
    thread.debugger.order(InterruptTurn())


Onward = ContinueTurn | StepOver | StepInto | StepMove


def _go(context: EditorContext, arguments: Arguments, command: Onward) -> dict[str, Any] | None:
    """Continue a turn; from an earlier position, move forward through the record instead."""
    thread = _thread(context, arguments)
    thread.stand()
    phase, on = thread.debugger.status.phase, isinstance(command, ContinueTurn)
    if thread.looking_back:
        context.later(lambda: context.looks(thread, _forward(thread.debugger, command)))
    elif phase == "ended" and on:
        context.later(lambda: context.finish(thread))
    elif phase == "ended":
        why = "the turn has ended; inspect it, or restart another frame"
        raise ConfigError(why, command.name)
    elif phase == "waiting":
        raise ConfigError(stop_of(thread, context.breakpoints).description, command.name)
    else:
        before = thread.stop
        context.running(thread)
        try:
            thread.debugger.order(command)
        except ConfigError:
            thread.stop = before
            raise
    return {"allThreadsContinued": False} if on else None


def _forward(debugger: Debugger, command: Onward) -> list[BreakpointHit]:
    """Move the cursor forward through the record; return the breakpoints hit there."""
    cursor, record = debugger.cursor, debugger.record
    match command:
        case ContinueTurn():
            found = cursor.forward_to(debugger.breakpoints)
            if found is not None:
                return found[1]
            cursor.to(record.count)
        case StepOver():
            path, over = record.path(), debugger.kind.over
            there = range(cursor.at + 1, len(path))
            found_at = (
                at for at in there if (path[at] == over if over is not None else path[at] != path[cursor.at])
            )
            cursor.to(next(found_at, len(path) - 1))
        case StepInto() | StepMove():
            cursor.forward()
        case _:
            assert_never(command)
    return []


def _thread(context: EditorContext, arguments: Arguments) -> TurnThread:
    return context.threads.get(arguments.get("threadId"))


def _behind(context: EditorContext, arguments: Arguments) -> TurnThread:
    thread = _thread(context, arguments)
    thread.stand()
    if thread.at == 0:
        raise ConfigError("this is the start of the turn", thread.name, "forward")
    return thread


Answer = Callable[[EditorContext, Arguments], dict[str, Any] | None]
REQUESTS: Mapping[str, Answer] = {
    "setBreakpoints": set_breakpoints, "setFunctionBreakpoints": set_functions,
    "setExceptionBreakpoints": set_filters, "breakpointLocations": breakpoint_locations, "threads": threads,
    "stackTrace": stack_trace, "scopes": scopes, "variables": variables, "exceptionInfo": exception_info,
    "loadedSources": loaded_sources, "evaluate": evaluate, "completions": completions,
    "continue": partial(_go, command=ContinueTurn()), "next": partial(_go, command=StepOver()),
    "stepIn": partial(_go, command=StepInto()), "stepOut": partial(_go, command=StepMove()),
    "stepBack": step_back, "reverseContinue": reverse_continue, "pause": pause, "restartFrame": restart_frame,
    "setVariable": set_variable, "terminate": terminate, "terminateThreads": terminate_threads,
}  # fmt: skip
"""*Step into* runs one request and its reply, *next* runs to the next request to the model, *step out* to the
end of the state, which is the next move."""


# ----------------------------------------------------------------------------------------------------
# Commands of the debug console. Each begins with a colon, which distinguishes it from a value.

CONSOLE = """\
:approve N [session]  allow the tool call that waits under this number, once or for the session
:deny N [WHY]         do not allow it
:hold [model] [tool]  hold requests of these kinds back from now on; with no kind, none
:answer N ANSWER      answer for the model or the tool that is held back: a text, or JSON
:let N                perform the request that is held back
:steer TEXT           add a message to the turn without stopping it
:interrupt [MESSAGE]  interrupt the turn as its user would
:fork [EDIT]          fork the turn at the inspected position; EDIT is JSON
:resume               continue an unfinished turn that no process runs
:at N                 inspect the position after N moves
:find TEXT            moves in whose row, requests or replies the text occurs
:test                 write a pytest file that replays this turn
:help                 this list
"""
BY_HAND = ("model", "tool", "request", "event")
COMMANDS = tuple(line.split()[0].removeprefix(":") for line in CONSOLE.splitlines())


def command(context: EditorContext, thread: TurnThread, at: int, line: str) -> str:
    """Execute a command and return its output. ``at`` is the inspected position. Raises ``ConfigError``."""
    name, _, words = line.strip().removeprefix(":").partition(" ")
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
            return CONSOLE.rstrip()
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
