"""Requests that only look: stack, scopes, variables, expressions, sources, breakpoints."""

from __future__ import annotations

import re
from typing import Any

from fsm_agent.debug.core.arguments import Arguments, number, objects, text
from fsm_agent.debug.dap.breakpoints import EXCEPTIONS, Point, place, shown
from fsm_agent.debug.dap.console import COMMANDS, command
from fsm_agent.debug.dap.context import Desk
from fsm_agent.debug.dap.frames import frame_of
from fsm_agent.debug.dap.table_map import same_file
from fsm_agent.debug.dap.threads import Lane
from fsm_agent.errors import ConfigError

_WORD = re.compile(r":?[\w.\[\]-]*$")


# Breakpoints


def set_breakpoints(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    source = arguments.get("source")
    if not isinstance(source, dict):
        raise ConfigError("breakpoints need a source", source, "a file")
    path = desk.client.path(source)
    return _set(desk, desk.points.set_source(path, objects(arguments, "breakpoints"), desk.client))


def set_functions(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    return _set(desk, desk.points.set_functions(objects(arguments, "breakpoints")))


def set_filters(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    names = arguments.get("filters") or []
    if not isinstance(names, list):
        raise ConfigError("filters are no list", names, ", ".join(one.name for one in EXCEPTIONS))
    wanted: list[tuple[str, Arguments]] = [(str(name), {}) for name in names]
    wanted += [(str(one.get("filterId")), one) for one in objects(arguments, "filterOptions")]
    return _set(desk, desk.points.set_filters(wanted))


def _set(desk: Desk, points: list[Point]) -> dict[str, Any]:
    for lane in desk.lanes:
        desk.arm(lane)
    return {"breakpoints": [shown(point, desk.client, desk.points.map) for point in points]}


def breakpoint_locations(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Where in these lines a breakpoint may be: also each rung of a decision list by its column."""
    path = desk.client.path(arguments.get("source") or {})
    first = desk.client.our_line(number(arguments, "line"))
    last = desk.client.our_line(number(arguments, "endLine", arguments.get("line")))
    found: list[dict[str, int]] = []
    if same_file(path, desk.points.map.path):
        found = [place(spot, desk.client) for spot in desk.points.map.between(first, last)]
    for where in desk.points.states.values():
        if same_file(path, where.path) and first <= where.line <= last:
            found.append({"line": desk.client.line(where.line)})
    return {"breakpoints": found}


# Threads and frames


def threads(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    return {"threads": [{"id": lane.id, "name": lane.name} for lane in desk.lanes]}


def stack_trace(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    lane = desk.lanes.get(arguments.get("threadId"))
    lane.stand()
    return desk.frames.stack(lane, desk.client, number(arguments, "startFrame", 0), number(arguments, "levels", 0))


def scopes(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    lane, at = _frame(desk, arguments)
    lane.stand()
    return {"scopes": desk.scopes.of(lane, desk.session.store, at)}


def variables(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    start, count = number(arguments, "start", 0), number(arguments, "count", 0)
    return {"variables": desk.references.children(arguments.get("variablesReference"), arguments.get("filter"), start, count)}


def exception_info(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    lane = desk.lanes.get(arguments.get("threadId"))
    lane.stand()
    stop = lane.stop
    if stop is None or not stop.of:
        raise ConfigError("the turn does not stand at an exception", lane.name)
    about = next(one for one in EXCEPTIONS if one.name == stop.of)
    snapshot = lane.debugger.record.snapshot(lane.at)
    said = snapshot.get("error") or (snapshot.get("failure") or {}).get("message") or stop.description
    return {
        "exceptionId": stop.text or about.name,
        "description": f"{about.label}: {about.about}",
        "breakMode": "always",
        "details": {"message": str(said), "typeName": about.name},
    }


def loaded_sources(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    paths = dict.fromkeys([desk.points.map.path, *(where.path for where in desk.points.states.values())])
    return {"sources": [desk.client.source(path) for path in paths]}


# Expressions


def evaluate(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """A value, a condition, or in the console a command."""
    said, context = text(arguments, "expression"), arguments.get("context")
    lane, at = _frame(desk, arguments)
    if context == "repl" and said.lstrip().startswith(":"):
        return {"result": command(desk, lane, at, said), "variablesReference": 0}
    where, value = desk.words.evaluate(lane, desk.session.store, at, said)
    made = desk.references.said(value, where, name=str(where.path[-1]) if where.path else "", whole=context == "clipboard")
    return {"result": made.pop("value"), **made}


def completions(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Names that go on what stands before the column."""
    line = text(arguments, "text")
    line = line.splitlines()[max(0, number(arguments, "line", 1) - desk.client.first_line)] if line else line
    before = line[: max(0, desk.client.our_column(number(arguments, "column")) - 1)]
    found = _WORD.search(before)
    word = found[0] if found is not None else ""
    if word.startswith(":"):
        start, names, kind = found.start() if found else 0, [f":{name}" for name in COMMANDS], "function"
    else:
        lane, at = _frame(desk, arguments)
        start, names, kind = (
            len(before) - len(word.rpartition(".")[2]),
            desk.words.names(lane, desk.session.store, at, word),
            "value",
        )
    typed = before[start:]
    return {
        "targets": [
            {"label": name, "type": kind, "start": start, "length": len(typed)}
            for name in names
            if name.lower().startswith(typed.lower())
        ]
    }


def _frame(desk: Desk, arguments: Arguments) -> tuple[Lane, int]:
    """The turn and the position that a frame is; without one, where the editor is."""
    if arguments.get("frameId") is None:
        lane = desk.focus if desk.focus is not None and not desk.focus.over else next(iter(desk.lanes), None)
        if lane is None:
            raise ConfigError("there is no turn yet")
        return lane, lane.at
    number_, at = frame_of(arguments["frameId"])
    lane = desk.lanes.get(number_)
    if at > lane.debugger.record.count:
        raise ConfigError("no such frame", arguments["frameId"], "one of the stack trace")
    return lane, at
