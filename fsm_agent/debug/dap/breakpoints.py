"""Breakpoints as an editor has them, and those of the debugger that they become.

A line of the table may stand for one decision list (then it is one breakpoint on its event, and hits are
counted together) or for several rows (then for each row one, and hits are counted for each)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from fsm_agent.debug.core.arguments import Arguments, number
from fsm_agent.debug.core.breakpoints import Breakpoint, Breakpoints, targets_of
from fsm_agent.debug.dap.protocol import Client
from fsm_agent.debug.dap.table_map import Spot, StateSource, TableMap, Target, same_file
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table

BreakpointKind = Literal["source", "function", "exception"]
Wanted = TypeVar("Wanted")
FUNCTIONS, FILTERS = "functions", "filters"
_NAMED: tuple[Literal["state", "row", "event", "arrow", "exit"], ...] = (
    "state",
    "row",
    "event",
    "arrow",
    "exit",
)
"""In which order a name is looked up."""


@dataclass(frozen=True, slots=True)
class ExceptionFilter:
    """Something exceptional to stop at; ``target`` where a breakpoint does it."""

    name: str
    label: str
    about: str
    target: Target | None = None


EXCEPTIONS = (
    ExceptionFilter(
        "failed", "Failed turns", "the turn has failed, and is about to write down why", ("exit", "failed")
    ),
    ExceptionFilter(
        "crashed", "Bugs in a state", "a state raised an exception, which is a bug", ("event", "crashed")
    ),
    ExceptionFilter("approval", "Tool calls that need approval", "a tool call waits for a person's approval"),
    ExceptionFilter(
        "unknown", "Effects in doubt", "a tool was started, and nobody can say whether it took effect"
    ),
)


@dataclass(frozen=True, slots=True)
class EditorBreakpoint:
    """One breakpoint of the editor. ``made`` is what it became, empty when it cannot be; ``in_state``: it is
    in a state's own source; ``name``: of the filter."""

    id: int
    kind: BreakpointKind
    made: tuple[Breakpoint, ...] = ()
    message: str = ""
    spot: Spot | None = None
    in_state: StateSource | None = None
    name: str = ""


@dataclass(slots=True)
class EditorBreakpoints:
    """All of a session, by the source or list that the editor sets at once."""

    table: Table
    map: TableMap
    states: Mapping[str, StateSource]
    _all: dict[str, list[EditorBreakpoint]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _ids: dict[tuple[str, ...], int] = field(default_factory=dict)
    _wanted: dict[str, Callable[[EditorBreakpoints], list[EditorBreakpoint]]] = field(default_factory=dict)

    def again(self, before: EditorBreakpoints) -> list[EditorBreakpoint]:
        """The breakpoints that were set before, looked up in this table; they keep their numbers."""
        for key, wanted in before._wanted.items():
            made = [replace(new, id=old.id) for new, old in zip(wanted(self), before._all[key], strict=True)]
            self._all[key] = made
        self._numbers = before._numbers
        return [point for points in self._all.values() for point in points if point.kind != "exception"]

    def set_source(self, path: str, wanted: Iterable[Arguments], client: Client) -> list[EditorBreakpoint]:
        """Set the breakpoints of one file, in place of those before."""

        def make(table: EditorBreakpoints, one: Arguments) -> EditorBreakpoint:
            column = client.our_column(number(one, "column")) if "column" in one else None
            return table._in_source(path, client.our_line(number(one, "line")), column, one)

        return self._set(path, list(wanted), make)

    def set_functions(self, wanted: Iterable[Arguments]) -> list[EditorBreakpoint]:
        """Set breakpoints on the names of states, rows, events, arrows and exits, in place of those
        before."""
        return self._set(FUNCTIONS, list(wanted), EditorBreakpoints._function)

    def set_filters(self, wanted: Iterable[tuple[str, Arguments]]) -> list[EditorBreakpoint]:
        """Set what counts as an exception, as (name of a filter, options). Raises ``ConfigError`` for an
        unknown name."""
        return self._set(FILTERS, list(wanted), EditorBreakpoints._filter)

    def _set(
        self, key: str, wanted: list[Wanted], make: Callable[[EditorBreakpoints, Wanted], EditorBreakpoint]
    ) -> list[EditorBreakpoint]:
        self._wanted[key] = lambda other: other._set(key, wanted, make)
        self._all.pop(key, None)
        points: list[EditorBreakpoint] = []
        for one in wanted:
            points.append(self._distinct(make(self, one), points))
        self._all[key] = points
        return points

    def _function(self, wanted: Arguments) -> EditorBreakpoint:
        name = str(wanted.get("name") or "").replace("->", "→").replace(" ", "")
        kind = next((kind for kind in _NAMED if name in targets_of(self.table, kind)), None)
        point = EditorBreakpoint(next(self._numbers), "function")
        if kind is None:
            there = ", ".join((*self.table.states, *dict.fromkeys(row.event for row in self.table.rows)))
            said = f"no state, row, event, arrow or exit is called {name!r}; states and events: {there}"
            return replace(point, message=said)
        return self._made(point, ((kind, name),), wanted, f"stops at {kind} {name}")

    def _filter(self, wanted: tuple[str, Arguments]) -> EditorBreakpoint:
        name, options = wanted
        known = {one.name: one for one in EXCEPTIONS}
        if name not in known:
            raise ConfigError("no such exception filter", name, ", ".join(known))
        point, target = EditorBreakpoint(next(self._numbers), "exception", name=name), known[name].target
        return (
            point
            if target is None
            else self._made(point, (target,), {"condition": options.get("condition")}, "")
        )

    def stops_at(self, name: str) -> bool:
        """Is this filter on?"""
        return any(point.name == name for point in self._all.get(FILTERS, ()))

    def core(self) -> list[Breakpoint]:
        """What a debugger is to have."""
        return list(
            {one.id: one for points in self._all.values() for point in points for one in point.made}.values()
        )

    def of(self, ids: Iterable[int]) -> list[EditorBreakpoint]:
        """The editor's breakpoints behind those of the debugger."""
        wanted = set(ids)
        return [
            point
            for points in self._all.values()
            for point in points
            if wanted & {one.id for one in point.made}
        ]

    def _in_source(self, path: str, line: int, column: int | None, options: Arguments) -> EditorBreakpoint:
        point = EditorBreakpoint(next(self._numbers), "source")
        if same_file(path, self.map.path):
            spots = self.map.at(line, column)
            if not spots:
                return replace(
                    point,
                    message=f"no row of the table is on this line; the nearest is line {self.map.near(line)}",
                )
            targets = tuple(target for spot in spots for target in spot.targets)
            each = ", each counted by itself" if len(targets) > 1 and options.get("hitCondition") else ""
            named = "; ".join(spot.named for spot in spots)
            return self._made(replace(point, spot=spots[0]), targets, options, f"stops after {named}{each}")
        found = [(name, where) for name, where in self.states.items() if same_file(path, where.path)]
        for name, where in found:
            if where.line <= line <= where.last:
                return self._made(
                    replace(point, in_state=where),
                    (("state", name),),
                    options,
                    f"stops when {name} is entered",
                )
        if found:
            name, where = found[0]
            return replace(point, message=f"only {name} itself can be stopped at, line {where.line}")
        return replace(point, message=f"not a file of the turn that runs; its table is {self.map.path}")

    def _made(
        self, point: EditorBreakpoint, targets: tuple[Target, ...], options: Arguments, message: str
    ) -> EditorBreakpoint:
        texts = {ours: str(options.get(theirs) or "") for ours, theirs in _OPTIONS.items()}
        try:
            made = [
                Breakpoint.of({"kind": kind, "target": target, **texts})
                for kind, target in dict.fromkeys(targets)
            ]
            for one in made:
                Breakpoints(self.table).put(one)
        except ConfigError as error:
            return replace(point, message=str(error), made=())
        return replace(point, made=tuple(replace(one, id=self._id(one)) for one in made), message=message)

    def _distinct(self, point: EditorBreakpoint, beside: list[EditorBreakpoint]) -> EditorBreakpoint:
        """A move stops in one way only: a second breakpoint on the same target must be the same."""
        others = {
            (one.kind, one.target): one
            for points in (*self._all.values(), beside)
            for other in points
            for one in other.made
        }
        for one in point.made:
            if (other := others.get((one.kind, one.target))) is not None and other.id != one.id:
                how = other.condition or other.hits or other.log or "always"
                return replace(
                    point, made=(), message=f"{one.kind} {one.target} has a breakpoint already: {how}"
                )
        return point

    def _id(self, one: Breakpoint) -> int:
        key = (one.kind, one.target, one.condition, one.hits, one.log)
        return self._ids.setdefault(key, len(self._ids) + 1)


_OPTIONS = {"condition": "condition", "hits": "hitCondition", "log": "logMessage"}


def shown(point: EditorBreakpoint, client: Client, table_path: TableMap) -> dict[str, Any]:
    """As the protocol has a breakpoint."""
    made: dict[str, Any] = {
        "id": point.id,
        "verified": bool(point.made) or bool(point.name and not point.message),
    }
    if point.message:
        made["message"] = point.message
    if point.spot is not None:
        made |= {"source": client.source(table_path.path)} | place(point.spot, client)
    elif point.in_state is not None:
        made |= {"source": client.source(point.in_state.path), "line": client.line(point.in_state.line)}
    return made


def place(spot: Spot, client: Client) -> dict[str, int]:
    """Return a piece of source as the editor counts lines and columns."""
    return {
        "line": client.line(spot.line),
        "column": client.column(spot.column),
        "endLine": client.line(spot.end_line),
        "endColumn": client.column(spot.end_column),
    }
