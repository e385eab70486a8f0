"""What a person writes of a turn: conditions over its counters (``retries >= 2 and iterations < 5``), and
names of moves."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table

_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
ALLOWED = "counters, whole numbers, comparisons, and, or, not; for example 'retries >= 2'"


def condition(text: str, names: Mapping[str, int]) -> Callable[[Mapping[str, int]], bool]:
    """Compile a condition over the counters in ``names``. Raises ``ConfigError`` for anything else; nothing
    is executed."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise ConfigError("a condition cannot be read", text, ALLOWED) from None
    _check(tree, text, names)
    return lambda counters: bool(_value(tree, counters))


def refuse_unknown(table: Table, *, state: str | None, event: str | None, row: str | None) -> None:
    """Refuse names that no move of ``table`` has: of a ``state`` that it enters, of its ``event``, of its
    ``row``. Raises ``ConfigError`` with the names that there are."""
    asked = (("state", state, "dest"), ("event", event, "event"), ("row", row, "id"))
    for kind, name, part in asked:
        there = dict.fromkeys(getattr(one, part) for one in table.rows)
        if name is not None and name not in there:
            raise ConfigError(f"no move has such a {kind}", name, ", ".join(there))


def _check(node: ast.expr, text: str, names: Mapping[str, int]) -> None:
    match node:
        case ast.BoolOp(values=values):
            parts = list(values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            parts = [operand]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
            parts = [left, *others]
        case ast.Constant(value=bool()) | ast.Constant(value=int()):
            parts = []
        case ast.Name(id=name) if name in names:
            parts = []
        case ast.Name(id=name):
            raise ConfigError(f"a condition names an unknown counter {name!r}", text, ", ".join(names))
        case _:
            raise ConfigError("a condition cannot be read", text, ALLOWED)
    for part in parts:
        _check(part, text, names)


def _value(node: ast.expr, counters: Mapping[str, int]) -> int:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(value, counters) for value in values)
        case ast.BoolOp(values=values):
            return any(_value(value, counters) for value in values)
        case ast.UnaryOp(operand=operand):
            return not _value(operand, counters)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_value(side, counters) for side in (left, *others)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return all(_COMPARE[type(op)](a, b) for op, a, b in pairs)
        case ast.Name(id=name):
            return counters[name]
        case ast.Constant(value=value):
            return int(value)  # type: ignore[arg-type]
    raise AssertionError(node)
