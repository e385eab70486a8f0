"""Translate an editor's breakpoints to those of the debugger.

A line of the table may define one decision list, which becomes one breakpoint on its event with a shared hit
count, or several rows, which become one breakpoint each with separate counts."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from fsm_agent.debug.core.breakpoints import (
    Arguments,
    Breakpoint,
    Breakpoints,
    number,
    targets_of,
    written_states,
)
from fsm_agent.debug.dap.protocol import Client
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table

# ----------------------------------------------------------------------------------------------------
# Targets on each line of the table's source, read from its syntax: decision lists, their rungs, definitions
# of rungs, states, and macros. Also the functions of the states. Nothing is executed.


Target = tuple[str, str]
"""(kind, target) of a breakpoint of ``fsm_agent.debug``."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A range of the source. Lines and columns start at 1, columns count UTF-16 units, the end is exclusive.
    ``named``: a description for people."""

    line: int
    column: int
    end_line: int
    end_column: int
    targets: tuple[Target, ...]
    named: str

    def holds(self, line: int, column: int | None = None) -> bool:
        """Return whether a line, or a place in it, is within this range."""
        if column is None:
            return self.line <= line <= self.end_line
        return (self.line, self.column) <= (line, column) < (self.end_line, self.end_column)

    def inside(self, other: Spot) -> bool:
        """Return whether this range is part of another."""
        begins = (other.line, other.column) <= (self.line, self.column)
        return (
            self is not other
            and begins
            and (self.end_line, self.end_column) <= (other.end_line, other.end_column)
        )


@dataclass(frozen=True, slots=True)
class TableMap:
    """``spots`` in source order; ``rows``: the place of each row's rung, in its decision list."""

    path: Path
    spots: tuple[Spot, ...]
    rows: Mapping[str, Spot]

    def at(self, line: int, column: int | None = None) -> list[Spot]:
        """Return the targets of a breakpoint there. With a column: the innermost range. Without one: every
        outermost range that begins on the line, or else the innermost one around it."""
        if column is not None and (found := [spot for spot in self.spots if spot.holds(line, column)]):
            return [min(found, key=lambda spot: (spot.end_line - spot.line, spot.end_column - spot.column))]
        begun = [spot for spot in self.spots if spot.line == line]
        outer = [spot for spot in begun if not any(spot.inside(other) for other in begun)]
        if outer:
            return outer
        around = [spot for spot in self.spots if spot.holds(line)]
        return [max(around, key=lambda spot: (spot.line, spot.column))] if around else []

    def between(self, first: int, last: int) -> list[Spot]:
        """Return the ranges that begin on these lines."""
        return [spot for spot in self.spots if first <= spot.line <= last]

    def near(self, line: int) -> int | None:
        """Return the nearest line on which a range begins."""
        return min((spot.line for spot in self.spots), key=lambda one: (abs(one - line), one), default=None)


def table_map_of(table: Table) -> TableMap:
    """Return the map of a table, wherever it is defined: from the module with the most targets among those
    that have the table. A module without the table language has only imported it and is not read."""
    modules = [(name, vars(module)) for name, module in list(sys.modules.items())]
    writing = [
        (name, list(known.values())) for name, known in modules if "Table" in known or "lines_of" in known
    ]
    maps = [table_map(table, name) for name, known in writing if any(one is table for one in known)]
    return max(maps, key=lambda one: len(one.spots), default=TableMap(Path(), (), {}))


def table_map(table: Table, module: str) -> TableMap:
    """Return the map of ``table``, which ``module`` defines; empty if the table is written in another way."""
    try:
        found = importlib.util.find_spec(module)
    except ValueError:  # no spec: a script, or an interactive session
        found = None
    written = getattr(sys.modules.get(module), "__file__", None)
    path = Path(found.origin if found is not None and found.origin is not None else written or module)
    try:
        return TableMap(path, *_read(table, path.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, ValueError):
        return TableMap(path, (), {})


@lru_cache(maxsize=32)
def _read(table: Table, source: str) -> tuple[tuple[Spot, ...], Mapping[str, Spot]]:
    """Read a module's source; cached, because every session of an editor needs it."""
    reader = _TableReader(table, source)
    reader.read(ast.parse(source))
    return tuple(sorted(reader.spots, key=lambda spot: (spot.line, spot.column))), reader.rows


class _TableReader:
    """Walks a module's syntax tree once and collects the ranges of rows that the table contains."""

    def __init__(self, table: Table, source: str) -> None:
        self._table, self._lines = table, [line.encode() for line in source.splitlines()]
        self.spots: list[Spot] = []
        self.rows: dict[str, Spot] = {}
        self._used: dict[str, list[str]] = {}  # name of a rung → its rows

    def read(self, tree: ast.Module) -> None:
        for state in written_states(tree, self._table):
            self.spots.append(self._spot(state.key, (("state", state.name),), f"entering {state.name}"))
            for one in state.lists:
                self._list(state.name, one.event, one.place, [] if one.shared else one.ladder)
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id="Table"), keywords=keywords):
                    for keyword in keywords:
                        if keyword.arg == "macros":
                            self._macros(keyword.value)
        for definition in tree.body:
            self._definition(definition)

    def _list(self, state: str, event: str, call: ast.expr, ladder: list[ast.expr]) -> None:
        rows = self._table.by_event.get((state, event), ())
        if not rows:
            return
        ids = [row.id for row in rows]
        whole = self._spot(call, (("event", f"{state}.{event}"),), _rows_named(ids))
        self.spots.append(whole)
        if len(ladder) != len(rows):  # a ladder of another form: only the list can be named
            self.rows |= dict.fromkeys(ids, whole)
            return
        for row, rung in zip(rows, ladder, strict=True):
            self.rows[row.id] = spot = self._spot(rung, (("row", row.id),), _rows_named([row.id]))
            if len(rows) > 1:
                self.spots.append(spot)
            self._used.setdefault(_name_of(rung), []).append(row.id)

    def _macros(self, value: ast.expr) -> None:
        for pair in value.elts if isinstance(value, ast.Tuple) else ():
            match pair:
                case ast.Tuple(elts=[ast.Constant(value=str(event)), exits]) if event in self._table.is_macro:
                    rows = [row.id for row in self._table.rows if row.event == event]
                    spot = self._spot(pair, (("event", event),), _rows_named(rows))
                    self.spots.append(spot)
                    self.rows |= dict.fromkeys(rows, spot)
                    self._used.setdefault(_name_of(exits), []).extend(rows)

    def _definition(self, node: ast.stmt) -> None:
        """Record a named rung: all rows that use it."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.FunctionDef(name=name):
                rows = self._used.get(name, [])
                if rows:
                    self.spots.append(
                        self._spot(node, tuple(("row", row) for row in rows), _rows_named(rows))
                    )

    def _spot(self, node: ast.expr | ast.stmt, targets: tuple[Target, ...], named: str) -> Spot:
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return Spot(
            node.lineno,
            self._column(node.lineno, node.col_offset),
            end_line,
            self._column(end_line, end),
            targets,
            named,
        )

    def _column(self, line: int, offset: int) -> int:
        """Convert a byte offset of the syntax tree to an editor's column in UTF-16 units."""
        return len(self._lines[line - 1][:offset].decode().encode("utf-16-le")) // 2 + 1


def _name_of(rung: ast.expr) -> str:
    match rung:
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _rows_named(rows: list[str]) -> str:
    shown = ", ".join(rows[:4]) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")
    return f"row {shown}" if len(rows) == 1 else f"rows {shown}"


@dataclass(frozen=True, slots=True)
class StateSource:
    """Place of a state's function; lines start at 1, both inclusive."""

    path: Path
    line: int
    last: int


def state_sources(states: Mapping[str, Callable[..., Any]]) -> dict[str, StateSource]:
    """Return the source of every state for which it is available."""
    return dict(_state_sources(states))


def _state_sources(states: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[str, StateSource]]:
    for name, function in states.items():
        inner = inspect.unwrap(function)
        try:
            lines, first = inspect.getsourcelines(inner)
            path = inspect.getsourcefile(inner)
        except (OSError, TypeError):
            continue
        if path is not None:
            yield name, StateSource(Path(path), first, first + len(lines) - 1)


def same_file(left: str | os.PathLike[str], right: str | os.PathLike[str]) -> bool:
    """Return whether two paths are the same file; editors may spell a path differently."""
    return os.path.normcase(os.path.realpath(left)) == os.path.normcase(os.path.realpath(right))


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
"""Order in which a name is looked up."""


@dataclass(frozen=True, slots=True)
class ExceptionFilter:
    """An exceptional condition to stop at; ``target`` if a breakpoint implements it."""

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
        "unknown", "Effects in doubt", "a tool was started, and it is unknown whether it took effect"
    ),
)


@dataclass(frozen=True, slots=True)
class EditorBreakpoint:
    """One breakpoint of the editor. ``made``: its debugger breakpoints, empty if it is invalid; ``in_state``:
    set if it is in a state's source; ``name``: of its filter."""

    id: int
    kind: BreakpointKind
    made: tuple[Breakpoint, ...] = ()
    message: str = ""
    spot: Spot | None = None
    in_state: StateSource | None = None
    name: str = ""


@dataclass(slots=True)
class EditorBreakpoints:
    """All breakpoints of a session, grouped by the source or list that the editor sets at once."""

    table: Table
    map: TableMap
    states: Mapping[str, StateSource]
    _all: dict[str, list[EditorBreakpoint]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _ids: dict[tuple[str, ...], int] = field(default_factory=dict)
    _wanted: dict[str, Callable[[EditorBreakpoints], list[EditorBreakpoint]]] = field(default_factory=dict)

    def again(self, before: EditorBreakpoints) -> list[EditorBreakpoint]:
        """Return the previous breakpoints, resolved again in this table; they keep their numbers."""
        for key, wanted in before._wanted.items():
            made = [replace(new, id=old.id) for new, old in zip(wanted(self), before._all[key], strict=True)]
            self._all[key] = made
        self._numbers = before._numbers
        return [point for points in self._all.values() for point in points if point.kind != "exception"]

    def set_source(self, path: str, wanted: Iterable[Arguments], client: Client) -> list[EditorBreakpoint]:
        """Replace the breakpoints of one file."""

        def make(table: EditorBreakpoints, one: Arguments) -> EditorBreakpoint:
            column = client.our_column(number(one, "column")) if "column" in one else None
            return table._in_source(path, client.our_line(number(one, "line")), column, one)

        return self._set(path, list(wanted), make)

    def set_functions(self, wanted: Iterable[Arguments]) -> list[EditorBreakpoint]:
        """Replace the breakpoints on names of states, rows, events, arrows and exits."""
        return self._set(FUNCTIONS, list(wanted), EditorBreakpoints._function)

    def set_filters(self, wanted: Iterable[tuple[str, Arguments]]) -> list[EditorBreakpoint]:
        """Replace the exception filters, given as (name of a filter, options). Raises ``ConfigError`` for an
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
            problem = f"no state, row, event, arrow or exit is called {name!r}; states and events: {there}"
            return replace(point, message=problem)
        return self._make_breakpoint(point, ((kind, name),), wanted, f"stops at {kind} {name}")

    def _filter(self, wanted: tuple[str, Arguments]) -> EditorBreakpoint:
        name, options = wanted
        known = {one.name: one for one in EXCEPTIONS}
        if name not in known:
            raise ConfigError("no such exception filter", name, ", ".join(known))
        point, target = EditorBreakpoint(next(self._numbers), "exception", name=name), known[name].target
        return (
            point
            if target is None
            else self._make_breakpoint(point, (target,), {"condition": options.get("condition")}, "")
        )

    def stops_at(self, name: str) -> bool:
        """Return whether this filter is on."""
        return any(point.name == name for point in self._all.get(FILTERS, ()))

    def core(self) -> list[Breakpoint]:
        """Return the breakpoints for the debugger."""
        return list(
            {one.id: one for points in self._all.values() for point in points for one in point.made}.values()
        )

    def of(self, ids: Iterable[int]) -> list[EditorBreakpoint]:
        """Return the editor's breakpoints that these debugger breakpoints belong to."""
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
            return self._make_breakpoint(
                replace(point, spot=spots[0]), targets, options, f"stops after {named}{each}"
            )
        found = [(name, where) for name, where in self.states.items() if same_file(path, where.path)]
        for name, where in found:
            if where.line <= line <= where.last:
                return self._make_breakpoint(
                    replace(point, in_state=where),
                    (("state", name),),
                    options,
                    f"stops when {name} is entered",
                )
        if found:
            name, where = found[0]
            return replace(point, message=f"only {name} itself can be stopped at, line {where.line}")
        return replace(point, message=f"not a file of the turn that runs; its table is {self.map.path}")

    def _make_breakpoint(
        self, point: EditorBreakpoint, targets: tuple[Target, ...], options: Arguments, message: str
    ) -> EditorBreakpoint:
        texts = {ours: str(options.get(theirs) or "") for ours, theirs in _OPTIONS.items()}
        try:
            points = [
                Breakpoint.of({"kind": kind, "target": target, **texts})
                for kind, target in dict.fromkeys(targets)
            ]
            for one in points:
                Breakpoints(self.table).put(one)
        except ConfigError as error:
            return replace(point, message=str(error), made=())
        return replace(point, made=tuple(replace(one, id=self._id(one)) for one in points), message=message)

    def _distinct(self, point: EditorBreakpoint, beside: list[EditorBreakpoint]) -> EditorBreakpoint:
        """Reject a second, different breakpoint on the same target: each target has one way to stop."""
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


def breakpoint_json(point: EditorBreakpoint, client: Client, table_path: TableMap) -> dict[str, Any]:
    """Return a breakpoint in the protocol's format."""
    body: dict[str, Any] = {
        "id": point.id,
        "verified": bool(point.made) or bool(point.name and not point.message),
    }
    if point.message:
        body["message"] = point.message
    if point.spot is not None:
        body |= {"source": client.source(table_path.path)} | place(point.spot, client)
    elif point.in_state is not None:
        body |= {"source": client.source(point.in_state.path), "line": client.line(point.in_state.line)}
    return body


def place(spot: Spot, client: Client) -> dict[str, int]:
    """Return a source range in the editor's line and column numbers."""
    return {
        "line": client.line(spot.line),
        "column": client.column(spot.column),
        "endLine": client.line(spot.end_line),
        "endColumn": client.column(spot.end_column),
    }
