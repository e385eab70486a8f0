"""Where a module's source has the decision lists of a table, read from its syntax. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsm_agent.fsm.table import Table


@dataclass(frozen=True, slots=True)
class WrittenList:
    """A decision list: ``place`` is its element in the list of its state, ``call`` the ``on(…)``, which is
    elsewhere when the element only names it (``shared``)."""

    state: str
    event: str
    place: ast.expr
    call: ast.Call
    shared: str = ""

    @property
    def ladder(self) -> list[ast.expr]:
        """Return the rungs, in order."""
        return self.call.args[1:]


@dataclass(frozen=True, slots=True)
class WrittenState:
    """A state with its lists, where both are written."""

    key: ast.Constant
    name: str
    lists: tuple[WrittenList, ...]


def written_states(tree: ast.Module, table: Table) -> Iterator[WrittenState]:
    """The states of ``table`` that a module writes as ``"State": [on(…), …]``."""
    shared: dict[str, ast.Call] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="on")) as call):
                shared[name] = call
    for node in ast.walk(tree):
        match node:
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    match key, value:
                        case ast.Constant(value=str(name)), ast.List(elts=lines) if name in table.states:
                            lists = (_written_list(name, line, shared) for line in lines)
                            yield WrittenState(key, name, tuple(one for one in lists if one is not None))


def _written_list(state: str, place: ast.expr, shared: dict[str, ast.Call]) -> WrittenList | None:
    name = place.id if isinstance(place, ast.Name) and place.id in shared else ""
    match shared[name] if name else place:
        case ast.Call(func=ast.Name(id="on"), args=[ast.Constant(value=str(event)), *_]) as call:
            return WrittenList(state, event, place, call, name)
    return None
