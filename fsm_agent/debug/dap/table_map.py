"""What each line of the table's source stands for, read from its syntax: decision lists, rungs in them, rungs
where they are defined, states, and lines that every state has. And the states' own functions. Nothing is
executed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fsm_agent.fsm.table import Table

Target = tuple[str, str]
"""(kind, target) of a breakpoint of ``fsm_agent.debug``."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A stretch of the source; lines and columns from 1, columns in UTF-16 units, the end outside. ``named``:
    in words for a person."""

    line: int
    column: int
    end_line: int
    end_column: int
    targets: tuple[Target, ...]
    named: str

    def holds(self, line: int, column: int | None = None) -> bool:
        """Say whether a line, or a place in it, is within this piece of source."""
        if column is None:
            return self.line <= line <= self.end_line
        return (self.line, self.column) <= (line, column) < (self.end_line, self.end_column)

    def inside(self, other: Spot) -> bool:
        """Say whether this piece is a part of another."""
        begins = (other.line, other.column) <= (self.line, self.column)
        return (
            self is not other
            and begins
            and (self.end_line, self.end_column) <= (other.end_line, other.end_column)
        )


@dataclass(frozen=True, slots=True)
class TableMap:
    """``spots`` in the order of the source, ``rows`` where the rung of each row is, in its decision list."""

    path: Path
    spots: tuple[Spot, ...]
    rows: Mapping[str, Spot]

    def at(self, line: int, column: int | None = None) -> list[Spot]:
        """What a breakpoint there means: with a column the innermost stretch, without one everything that
        begins on the line, or else what it is in the middle of."""
        if column is not None and (found := [spot for spot in self.spots if spot.holds(line, column)]):
            return [min(found, key=lambda spot: (spot.end_line - spot.line, spot.end_column - spot.column))]
        begun = [spot for spot in self.spots if spot.line == line]
        outer = [spot for spot in begun if not any(spot.inside(other) for other in begun)]
        if outer:
            return outer
        around = [spot for spot in self.spots if spot.holds(line)]
        return [max(around, key=lambda spot: (spot.line, spot.column))] if around else []

    def between(self, first: int, last: int) -> list[Spot]:
        """All that begins on these lines."""
        return [spot for spot in self.spots if first <= spot.line <= last]

    def near(self, line: int) -> int | None:
        """The nearest line on which something begins."""
        return min((spot.line for spot in self.spots), key=lambda one: (abs(one - line), one), default=None)


def table_map_of(table: Table) -> TableMap:
    """The map of a table, wherever it is written: in the module, of those that have it, which says most about
    its rows. One that knows nothing of what tables are written with has only imported it, and is not read."""
    modules = [(name, vars(module)) for name, module in list(sys.modules.items())]
    writing = [
        (name, list(known.values())) for name, known in modules if "Table" in known or "lines_of" in known
    ]
    maps = [table_map(table, name) for name, known in writing if any(one is table for one in known)]
    return max(maps, key=lambda one: len(one.spots), default=TableMap(Path(), (), {}))


def table_map(table: Table, module: str) -> TableMap:
    """The map of ``table``, which ``module`` defines. A table that is written in some other way has an empty
    one."""
    try:
        found = importlib.util.find_spec(module)
    except ValueError:  # a program that was started by its file, or typed, has none
        found = None
    written = getattr(sys.modules.get(module), "__file__", None)
    path = Path(found.origin if found is not None and found.origin is not None else written or module)
    try:
        return TableMap(path, *_read(table, path.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, ValueError):
        return TableMap(path, (), {})


@lru_cache(maxsize=32)
def _read(table: Table, source: str) -> tuple[tuple[Spot, ...], Mapping[str, Spot]]:
    """Remembered, since every session of an editor asks for the same."""
    reader = _TableReader(table, source)
    reader.read(ast.parse(source))
    return tuple(sorted(reader.spots, key=lambda spot: (spot.line, spot.column))), reader.rows


class _TableReader:
    """Goes through a module's syntax once, keeping what belongs to rows that the table really has."""

    def __init__(self, table: Table, source: str) -> None:
        self._table, self._lines = table, [line.encode() for line in source.splitlines()]
        self.spots: list[Spot] = []
        self.rows: dict[str, Spot] = {}
        self._used: dict[str, list[str]] = {}  # name of a rung → rows made with it
        self._shared: dict[str, ast.expr] = {}  # name of a decision list that several states have

    def read(self, tree: ast.Module) -> None:
        for statement in tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="on")) as call):
                    self._shared[name] = call
        for node in ast.walk(tree):
            match node:
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        self._state(key, value)
                case ast.Call(func=ast.Name(id="Table"), keywords=keywords):
                    for keyword in keywords:
                        if keyword.arg == "macros":
                            self._macros(keyword.value)
        for definition in tree.body:
            self._definition(definition)

    def _state(self, key: ast.expr | None, value: ast.expr) -> None:
        if not (
            isinstance(key, ast.Constant) and key.value in self._table.states and isinstance(value, ast.List)
        ):
            return
        state = str(key.value)
        self.spots.append(self._spot(key, (("state", state),), f"entering {state}"))
        for line in value.elts:
            call = self._shared.get(line.id, line) if isinstance(line, ast.Name) else line
            match call:
                case ast.Call(func=ast.Name(id="on"), args=[ast.Constant(value=str(event)), *ladder]):
                    self._list(state, event, line, ladder if call is line else [])

    def _list(self, state: str, event: str, call: ast.expr, ladder: list[ast.expr]) -> None:
        rows = self._table.by_event.get((state, event), ())
        if not rows:
            return
        ids = [row.id for row in rows]
        whole = self._spot(call, (("event", f"{state}.{event}"),), _rows_named(ids))
        self.spots.append(whole)
        if len(ladder) != len(rows):  # a ladder of some other make: the list can be named, its rungs cannot
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
        """A rung that has a name: all rows that are made with it."""
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
        """Syntax trees count bytes, editors UTF-16 units."""
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
    """Where the function of a state is; lines from 1, both included."""

    path: Path
    line: int
    last: int


def state_sources(states: Mapping[str, Callable[..., Any]]) -> dict[str, StateSource]:
    """Of every state whose source is there."""
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
    """Editors spell paths in their own ways."""
    return os.path.normcase(os.path.realpath(left)) == os.path.normcase(os.path.realpath(right))
