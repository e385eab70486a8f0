"""What a frame shows: counters, facts, messages, what the state asked for, and the guards of the move that led there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.wire import composed
from fsm_agent.debug.dap.threads import Lane
from fsm_agent.debug.dap.variables import Later, Place, References, Rows, ScopeName, Typed
from fsm_agent.fsm.table import Table
from fsm_agent.sessions.store import Store

ELSEWHERE = frozenset({"history", "rows", "block"})
"""Parts of a snapshot that have a scope of their own, besides counters."""


class Scopes:
    """Reads the values of a scope at a position."""

    def __init__(self, table: Table, references: References) -> None:
        self._table, self._references = table, references

    def of(self, lane: Lane, store: Store, at: int) -> list[dict[str, Any]]:
        """The body of ``scopes``."""
        debugger = lane.debugger
        snapshot = debugger.record.snapshot(at)
        values: dict[ScopeName, Any] = {
            "Counters": counters(snapshot, debugger.subject.counters),
            "Facts": facts(debugger, at),
            "Messages": Rows(debugger.record, at),
            "Request": Later(lambda: asked(debugger, store, at)),
            "Guards": self.guards(debugger, at),
        }
        if not debugger.subject.talks:
            del values["Messages"]
        return [self._scope(name, value, Place(lane.id, at, name)) for name, value in values.items()]

    def _scope(self, name: ScopeName, value: Any, place: Place) -> dict[str, Any]:
        made: dict[str, Any] = {
            "name": name,
            "variablesReference": self._references.add(place, value),
            "expensive": name == "Request",
        }
        if isinstance(value, Rows):
            made["indexedVariables"] = len(value)
        elif isinstance(value, Mapping):
            made["namedVariables"] = len(value)
        if name == "Counters":
            made["presentationHint"] = "locals"
        return made

    def guards(self, debugger: Debugger, at: int) -> dict[str, Any]:
        """Every budget that was looked at for the move to a position, also those that said no; and the row that was taken."""
        step = next(iter(debugger.record.steps(at, at)), None) if at else None
        if step is None:
            return {}
        found: dict[str, Any] = dict(step.guards)
        row = next((row for row in self._table.rows if row.id == step.row), None)
        about = {"why": row.why, "rung": row.rung, "guard": row.guard.label} if row is not None else {}
        changes = {name: f"{before} → {after}" for name, before, after in step.changes}
        return found | {"row": step.row, **about, "changes": changes} | ({"exit": step.exit} if step.exit else {})


def facts(debugger: Debugger, at: int) -> dict[str, Any]:
    """The stored turn without what has a scope of its own."""
    names = ELSEWHERE.union(debugger.subject.counters)
    return {name: value for name, value in debugger.record.snapshot(at).items() if name not in names}


def counters(snapshot: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """With the limit of each as its type."""
    limits = snapshot.get("limits", {})
    values = {name: snapshot.get(name, snapshot.get("block", {}).get(name, 0)) for name in names}
    return {name: Typed(value, f"number, limit {limits[name]}") if name in limits else value for name, value in values.items()}


def asked(debugger: Debugger, store: Store, at: int) -> dict[str, Any]:
    """What the state asked for, each request with its reply; who is waited for; and the request on the wire, when there is
    one."""
    status, found = debugger.status, dict[str, Any]()
    for entry in debugger.visit(at):
        shown = {name: entry[name] for name in ("status", "request", "reply", "seconds") if entry.get(name) is not None}
        found[label(entry)] = shown
    if at == status.seq and status.held:
        found["waits for a person"] = [dict(one) for one in status.held]
    if debugger.subject.talks and debugger.record.path()[at] == debugger.subject.over:
        found["on the wire"] = Later(lambda: composed(store, debugger.id, at))
    return found


def label(entry: Mapping[str, Any]) -> str:
    """A request's name in the tree; different for each of a visit."""
    name = f" {entry['name']}" if entry["name"] else ""
    return f"{entry['ordinal']}.{entry['place']} {entry['kind']}{name}"
