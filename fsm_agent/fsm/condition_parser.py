"""Parses conditions written by people, over numbers (``retries >= 2 and iterations < 5``) and texts
(``tool == "terminal" and arguments contains "rm"``), and checks names of moves."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fsm_agent.errors import ConfigError, expect
from fsm_agent.fsm.table import Table

Condition = Callable[[Mapping[str, Any]], bool]
"""Returns whether the condition holds for these values by name."""
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda part, text: part in text,
    ast.NotIn: lambda part, text: part not in text,
}
_OF_TEXTS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_OF_NUMBERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
ALLOWED = "counters, whole numbers, comparisons, and, or, not; for example 'retries >= 2'"
WITH_TEXTS = 'numbers, texts in quotes, comparisons, contains, and, or, not; for example tool == "terminal"'
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_WORD = re.compile(r"[A-Za-z_]\w*")
_CONTAINS = re.compile(r"\bcontains\b")


def condition(text: str, names: Collection[str], texts: Collection[str] = ()) -> Condition:
    """Compile a condition over the numbers in ``names`` and the texts in ``texts``. Raises ``ConfigError``
    for anything else; nothing is executed."""
    expect("a condition", text, str, "a text such as 'retries >= 2'")
    reader = _ConditionReader(text, names, texts)
    tree = reader.tree()
    reader.check(tree)
    return lambda values: bool(_value(tree, values))


def names_in(text: str) -> frozenset[str]:
    """Return the identifiers of a condition outside quotes."""
    return frozenset(word for part in _QUOTED.split(text)[::2] for word in _WORD.findall(part))


def refuse_unknown(table: Table, *, state: str | None, event: str | None, row: str | None) -> None:
    """Refuse a ``state``, ``event`` or ``row`` that no move of ``table`` enters, is on, or is made by. Raises
    ``ConfigError`` that lists the valid names."""
    asked = (("state", state, "dest"), ("event", event, "event"), ("row", row, "id"))
    for kind, name, part in asked:
        there = dict.fromkeys(getattr(one, part) for one in table.rows)
        if name is not None and name not in there:
            raise ConfigError(f"no move has this {kind}", name, ", ".join(there))


class _ConditionReader:
    """Parses one condition. ``a contains b`` is parsed as ``a @ b``, which has the precedence of an operand
    of a comparison; ``@`` in the source is an error."""

    def __init__(self, text: str, names: Collection[str], texts: Collection[str]) -> None:
        self._text, self._names, self._texts = text, names, texts
        self._allowed = WITH_TEXTS if texts else ALLOWED

    def tree(self) -> ast.expr:
        parts = _QUOTED.split(self._text)
        if any("@" in part for part in parts[::2]):
            raise self._refusal()
        source = "".join(part if i % 2 else _CONTAINS.sub("@", part) for i, part in enumerate(parts))
        try:
            return ast.parse(source.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._refusal() from None

    def check(self, node: ast.expr) -> None:
        """Refuse everything outside the language of conditions."""
        match node:
            case ast.BoolOp(values=values):
                for part in values:
                    self.check(part)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.check(operand)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARE for op in ops
            ):
                self._check_compared([left, *others], ops)
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                self._check_compared([left, right], [ast.In()])
            case _ if self._is_text(node):
                raise self._refusal("a condition says nothing about this text: compare it")
            case _:
                self._check_number(node)

    def _check_compared(self, sides: list[ast.expr], ops: list[ast.cmpop]) -> None:
        for side in sides:
            if not self._is_text(side):
                self.check(side)
        kinds = {self._is_text(side) for side in sides}
        if len(kinds) > 1:
            raise self._refusal("a condition compares a text with a number")
        texts = kinds == {True}
        if not all(isinstance(op, _OF_TEXTS if texts else _OF_NUMBERS) for op in ops):
            operators = "== != in contains" if texts else "< <= > >= == !="
            what = "texts" if texts else "numbers"
            raise ConfigError(f"{what} in a condition cannot be compared so", self._text, operators)

    def _is_text(self, node: ast.expr) -> bool:
        match node:
            case ast.Constant(value=str()):
                return True
            case ast.Name(id=name):
                return name in self._texts
        return False

    def _check_number(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=bool()) | ast.Constant(value=int()):
                return
            case ast.Constant(value=float()) if self._texts:
                return
            case ast.Name(id=name) if name in self._names:
                return
            case ast.Name(id=name):
                what = "name" if self._texts else "counter"
                known = ", ".join((*self._texts, *self._names))
                raise ConfigError(f"a condition names an unknown {what} {name!r}", self._text, known)
        raise self._refusal()

    def _refusal(self, why: str = "a condition cannot be read") -> ConfigError:
        return ConfigError(why, self._text, self._allowed)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, values) for part in parts)
        case ast.UnaryOp(operand=operand):
            return not _value(operand, values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_value(side, values) for side in (left, *others)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return all(_COMPARE[type(op)](a, b) for op, a, b in pairs)
        case ast.BinOp(left=left, right=right):
            return _value(right, values) in _value(left, values)
        case ast.Name(id=name):
            return values[name]
        case ast.Constant(value=value):
            return value
    raise AssertionError(node)
