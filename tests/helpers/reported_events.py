"""The events that a state can report, read from its code: the strings that its function can return.

What a ``return`` says is followed through choices, local names, loops over a mapping of the module, its values,
and helpers that are called or that are gone through with ``yield from``, wherever they are. What
cannot be followed is refused with its place: an event that nobody can read off the code is no event."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any


class CannotFollow(Exception):
    """An expression that is returned is not of the few kinds that can be read."""


def reported_events(state: Callable[..., Any]) -> frozenset[str]:
    """Return every string that ``state`` can return, its helpers included. Raises ``CannotFollow``."""
    return _returned(inspect.unwrap(state), ())


def _returned(function: Any, through: tuple[Any, ...]) -> frozenset[str]:
    if function in through:
        return frozenset()  # what it returns by way of itself is what it returns otherwise
    reader = _Reader(function, (*through, function))
    returns = (node.value for node in own_nodes(reader.tree) if isinstance(node, ast.Return))
    return reader.union(value for value in returns if value is not None)


@functools.cache
def _tree(function: FunctionType) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions inside it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        yield (node := todo.pop())
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))


class _Reader:
    """One function: what its expressions can be."""

    def __init__(self, function: Any, through: tuple[Any, ...]) -> None:
        if not isinstance(function, FunctionType):
            raise CannotFollow(f"{function!r} is no function")
        self.function, self.through, self.tree = function, through, _tree(function)

    def union(self, nodes: Any) -> frozenset[str]:
        return frozenset().union(*(self.strings(node) for node in nodes))

    def strings(self, node: ast.expr) -> frozenset[str]:
        """What ``node`` can be, where it is a string; nothing for what is of another type."""
        match node:
            case ast.Constant(value=str(text)):
                return frozenset({text})
            case ast.Constant(value=None):
                return frozenset()
            case ast.IfExp(body=body, orelse=other):
                return self.union((body, other))
            case ast.BoolOp(values=values):
                return self.union(values)
            case ast.NamedExpr(value=value) | ast.YieldFrom(value=value):
                return self.strings(value)
            case ast.Call(func=ast.Name(id=name)):
                return frozenset().union(*(self._called(found) for found in self._named(name)))
            case ast.Subscript(value=ast.Name(id=name)) if isinstance(self._global(name), Mapping):
                return self._values(self._global(name).values())
            case ast.Name(id=name):
                return self._local(name)
        raise self._lost(node)

    def _called(self, found: Any) -> frozenset[str]:
        return frozenset() if isinstance(found, type) else _returned(inspect.unwrap(found), self.through)

    def _named(self, name: str) -> list[Any]:
        """The functions or classes that a name can stand for: one of the module, or each in a mapping of it
        that a loop goes through."""
        if (found := self._global(name)) is not None:
            return [found]
        loops = [node for node in own_nodes(self.tree) if isinstance(node, ast.For)]
        for loop in loops:
            match loop:
                case ast.For(
                    target=ast.Tuple(elts=[_, ast.Name(id=target)]),
                    iter=ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr="items")),
                ) if target == name and isinstance(self._global(table), Mapping):
                    return list(self._global(table).values())
        raise self._lost(ast.Name(name))

    def _values(self, values: Any) -> frozenset[str]:
        return frozenset(value for value in values if isinstance(value, str))

    def _local(self, name: str) -> frozenset[str]:
        """Whatever a local name is given anywhere in the function; lost, where that is no expression."""
        given: dict[ast.expr, ast.expr] = {}
        keys: dict[ast.expr, frozenset[str]] = {}
        for node in own_nodes(self.tree):
            match node:
                case ast.Assign(targets=[target], value=value) | ast.NamedExpr(target=target, value=value):
                    given[target] = value
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    given[target] = value
                case ast.For(
                    target=ast.Tuple(elts=[ast.Name() as target, _]),
                    iter=ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr="items")),
                ) if isinstance(self._global(table), Mapping):
                    keys[target] = self._values(self._global(table))
        places = [*own_nodes(self.tree), *ast.walk(self.tree.args)]
        bound = [node for node in places if name in _binds(node)]
        if not bound or not all(node in given or node in keys for node in bound):
            raise self._lost(ast.Name(name))
        looped = frozenset().union(*(found for target, found in keys.items() if target in bound))
        return looped | self.union(value for target, value in given.items() if target in bound)

    def _global(self, name: str) -> Any:
        return self.function.__globals__.get(name)

    def _lost(self, node: ast.expr) -> CannotFollow:
        where = f"{self.function.__module__}.{self.function.__qualname__}"
        return CannotFollow(f"{where}: {ast.unparse(node)} cannot be followed to events")


def _binds(node: ast.AST) -> set[str | None]:
    """The names that this node alone gives a value."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return {name}
        case ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.MatchMapping(rest=name):
            return {name}
        case ast.ExceptHandler(name=name):
            return {name}
    return set()
