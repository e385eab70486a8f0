"""The time and a calculator: what models get wrong without tools."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from fsm_agent.support.texts import one_line
from fsm_agent.tools import Tool, ToolFailure, tool

MAX_EXPRESSION = 1_000
MAX_BITS = 14_000
"""Maximum bits of a whole number: about 4,200 digits, just below the 4,300 that Python converts to text."""

MAX_DIGITS = 5_000
_GLUED = re.compile(r"[\d.](?:and|else|for|if|in|is|not|or)\b")
"""Matches ``1or 2``, which Python accepts with a useless warning on standard error."""

Number = int | float


def get_time(zone: str | None = None) -> str:
    """Tell the current date and time, with weekday and offset from UTC.

    Args:
        zone: An IANA time zone such as "Europe/Zurich". Leave it out for the local time of this machine.
    """
    zone = zone.strip() if zone else None
    try:
        now = datetime.now(UTC).astimezone(ZoneInfo(zone) if zone else None)
    except (KeyError, ValueError, OSError):
        raise ToolFailure(
            f"{one_line(repr(zone), 100)} is not an IANA time zone; write it like Europe/Zurich or UTC."
        ) from None
    return f"{now.strftime('%A')} {now.isoformat(timespec='seconds')} ({zone or now.tzname()})"


def calculate(expression: str) -> str:
    """Work out an arithmetic expression and return its value: whole numbers exactly, others as floating
    point.

    Knows + - * / // % ** and parentheses, pi, e and tau, and abs, round, min, max, sum, sqrt, exp, log, log2,
    log10, sin, cos, tan, asin, acos, atan, degrees, radians, floor, ceil, factorial, gcd.

    Args:
        expression: For example "2 * (3 + 4) ** 2" or "sqrt(2) / 2".
    """
    if len(expression) > MAX_EXPRESSION:
        raise ToolFailure(f"The expression is longer than {MAX_EXPRESSION:,} characters.")
    try:
        if _GLUED.search(expression):
            raise SyntaxError
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ToolFailure("That is not an arithmetic expression.") from None
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ToolFailure(f"Cannot be worked out: {error}.") from None
    return str(value)


def small_tools() -> tuple[Tool, ...]:
    """Return get_time and calculate."""
    pure = tool(concurrency="parallel", effect="pure")
    return (pure(get_time), pure(calculate))


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bound(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bound(_BINARY[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bound(_FUNCTIONS[name](*(_value(argument) for argument in arguments)))
    raise ToolFailure(f"{one_line(ast.unparse(node), 100)!r} is not arithmetic that this tool knows.")


def _bound(value: Any) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ToolFailure(f"The number is too large (over {MAX_BITS:,} bits).")
    if not isinstance(value, int | float):
        raise ToolFailure("The result is not a real number.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolFailure("The result is too large or not a number.")
    return value


def _power(base: Number, exponent: Number) -> Any:
    """Refuse a large power before computing it: it has about bits times exponent bits."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > 2 * MAX_BITS:
        raise ToolFailure(f"The power is too large (over {MAX_BITS:,} bits).")
    return base**exponent


def _factorial(n: Number) -> int:
    if n > 1_500:
        raise ToolFailure("factorial goes up to 1500 here.")
    return math.factorial(int(n)) if n == int(n) else math.factorial(n)  # type: ignore[arg-type]  # raises


def _round(number: Number, digits: Number = 0) -> Number:
    if abs(digits) > MAX_DIGITS:  # Python would compute ten to the power of it
        raise ToolFailure(f"round takes up to {MAX_DIGITS:,} digits here.")
    return round(number, int(digits)) if digits else round(number)


_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_UNARY: dict[type, Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_BINARY: dict[type, Callable[[Number, Number], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
    "sum": lambda *numbers: sum(numbers),
    "gcd": math.gcd,
    "factorial": _factorial,
    **{
        name: getattr(math, name)
        for name in (
            *("sqrt", "exp", "log", "log2", "log10", "floor", "ceil", "degrees", "radians"),
            *("sin", "cos", "tan", "asin", "acos", "atan"),
        )
    },
}
