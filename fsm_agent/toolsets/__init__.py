"""Named groups of built-in tools.

>>> from fsm_agent.toolsets import toolset
>>> [tool.spec.name for tool in toolset("core")]  # doctest: +ELLIPSIS
['list_directory', 'read_file', ...]

===========  =================================================================================================
core         files, terminal without jobs, time, calculator: what an agent has when nothing else is said
files        list_directory, read_file, search_files, write_file, patch_file
terminal     terminal, and jobs in the background: job_start, job_list, job_output, job_wait, job_stop
web          web_fetch
code         execute_code
memory       memory: the notes that are kept between sessions
skills       skill_view, where there are skills
learn        skill_manage: writes skills, each change with approval
===========  =================================================================================================

``fsm_agent.toolsets.agent`` has those that are a part of the agent itself: todo, sessions, clarify, delegate.
"""

from __future__ import annotations

import ast
import math
import operator
import os
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from fsm_agent.errors import ConfigError
from fsm_agent.memory import Notes
from fsm_agent.settings.model import Memory, SandboxSettings, Web
from fsm_agent.support.files import home_of
from fsm_agent.support.texts import one_line
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.edit import edit_tools
from fsm_agent.toolsets.files import Seen, file_tools
from fsm_agent.toolsets.memory import memory_tools, skill_tools, skill_writing_tools
from fsm_agent.toolsets.sandbox import CommandPlace, aside_of, usable_sandbox
from fsm_agent.toolsets.search import search_tools
from fsm_agent.toolsets.terminal import job_tools, terminal_tools

if TYPE_CHECKING:
    from fsm_agent.toolsets.sandbox.aside import Aside


@dataclass(frozen=True, slots=True)
class ToolsetPlace:
    """Where the tools of an agent work. Without ``home``, the default one is looked up by the tools that need
    it. ``aside`` takes what commands in a sandbox may not leave behind."""

    root: Path
    results: Path | None = None
    home: Path | None = None
    notes: Notes | None = None
    web: Web = field(default_factory=Web)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    aside: Aside | None = None

    def at_home(self) -> Path:
        """Return the home directory: the one given, or the usual one."""
        return self.home or home_of(None, os.environ)

    def commands(self) -> CommandPlace:
        """Return where commands run. Raises ``ConfigError`` for a sandbox that does not work here."""
        return usable_sandbox(self.sandbox, self.root, self.home)

    @property
    def protected(self) -> tuple[Path, ...]:
        """What the agent's tools do not write: its own notes, sessions and settings."""
        return () if self.home is None else (self.home,)


def _files(place: ToolsetPlace) -> tuple[Tool, ...]:
    """Tools to read, search and change files, confined to the root; ``read_file`` also reads saved results.
    ``aside`` is notified of writes."""
    seen, writing = Seen(), nullcontext if place.aside is None else place.aside.writing
    edits = edit_tools(place.root, seen, place.protected, writing)
    return (*file_tools(place.root, place.results, seen), *search_tools(place.root), *edits)


def _core(place: ToolsetPlace) -> tuple[Tool, ...]:
    return (*_files(place), *terminal_tools(place.root, place.commands(), place.aside), *small_tools())


def _terminal(place: ToolsetPlace) -> tuple[Tool, ...]:
    commands = place.commands()
    return (
        *terminal_tools(place.root, commands, place.aside),
        *job_tools(place.root, commands, place.aside),
    )


def _web(settings: Web) -> tuple[Tool, ...]:
    from fsm_agent.toolsets.web import web_tools

    return web_tools(settings)


def _code(place: CommandPlace) -> tuple[Tool, ...]:
    from fsm_agent.toolsets.code import code_tools

    return code_tools(place)


TOOLSETS: dict[str, Callable[[ToolsetPlace], tuple[Tool, ...]]] = {
    "core": _core,
    "files": _files,
    "terminal": _terminal,
    "web": lambda place: _web(place.web),
    "code": lambda place: _code(place.commands()),
    "memory": lambda place: memory_tools(place.notes or Notes.at(place.at_home(), Memory())),
    "skills": lambda place: skill_tools(place.at_home(), place.root),
    "learn": lambda place: skill_writing_tools(place.at_home()),
}
"""Each makes its tools for one place, and loads those that few agents have. ``skills`` has none where there
are no skills."""

__all__ = ["TOOLSETS", "ToolsetPlace", "toolset", "toolsets"]


def toolset(
    name: str,
    root: str | Path | None = None,
    results: Path | None = None,
    home: Path | None = None,
    notes: Notes | None = None,
    web: Web | None = None,
    sandbox: SandboxSettings | None = None,
) -> tuple[Tool, ...]:
    """The tools of a group, bound to the working directory ``root`` (default: the process's own). ``results``
    is where long tool results are saved; they can be read there. ``home`` holds skills and, unless ``notes``
    are given, the memory files.

    Commands run where ``sandbox`` says.

    Raises ``ConfigError`` for an unknown name, for a root that is no directory, and for a sandbox that does
    not work here.
    """
    return toolsets([name], root, results, home, notes, web, sandbox)


def toolsets(
    names: Iterable[str],
    root: str | Path | None = None,
    results: Path | None = None,
    home: Path | None = None,
    notes: Notes | None = None,
    web: Web | None = None,
    sandbox: SandboxSettings | None = None,
) -> tuple[Tool, ...]:
    """The tools of several groups; one that is in two of them, such as the terminal, only once."""
    directory = Path.cwd() if root is None else Path(root)
    if not directory.is_dir():
        raise ConfigError(
            "the working directory of a toolset cannot be used", str(directory), "an existing directory"
        )
    root, rules = directory.resolve(), sandbox or SandboxSettings()
    aside = aside_of(rules, root, home)
    place = ToolsetPlace(root, results, home, notes, web or Web(), rules, aside)
    found: dict[str, Tool] = {}
    for name in names:
        if name not in TOOLSETS:
            raise ConfigError("unknown toolset", name, ", ".join(sorted(TOOLSETS)))
        for one in TOOLSETS[name](place):
            found.setdefault(one.spec.name, one)
    return tuple(found.values())


# ----------------------------------------------------------------------------------------------------
# Two small tools that models are bad at without: the time, and arithmetic.


MAX_EXPRESSION = 1_000
MAX_BITS = 14_000
"""Size of a whole number: about 4,200 digits, just below the 4,300 that Python turns into text."""

MAX_DIGITS = 5_000
_GLUED = re.compile(r"[\d.](?:and|else|for|if|in|is|not|or)\b")
"""``1or 2``: Python reads it, with a warning on standard error that is useless here."""

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
    """get_time and calculate."""
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
    """Refuses before the work is done: a power of whole numbers has about bits times exponent bits."""
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
