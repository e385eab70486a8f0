"""Breakpoints: where a turn stops, under which condition, and at which hit. A logpoint writes a line instead
of stopping.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, assert_never, get_args

from fsm_agent.conversation.result import ExitReason, Outcome
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.condition_parser import condition, names_in
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.pause_point import TurnKind
from fsm_agent.fsm.table import Table

# ----------------------------------------------------------------------------------------------------
# What a breakpoint condition may refer to besides counters: the requests and replies of the visit that a move
# ended, and the resources that the turn has used so far.
#
# A condition is evaluated once per call of the visit, so ``tool`` and ``arguments`` belong to the same call.
# It holds if it holds for one call. Without a call, it is evaluated once, and these texts are empty.


Entries = Sequence[Mapping[str, Any]]
"""Requests of a visit with their replies, as in the journal."""
NAMED: Mapping[str, str] = {
    "tool": "name of a tool that the model calls, or that was run",
    "arguments": "arguments of the call, as JSON",
    "result": "what the tool gave back, as the model reads it",
    "text": "what the model said",
    "error": "message of a failure, of the provider or of a tool",
}
"""Texts of a turn that talks to a model."""
OF_REQUESTS: Mapping[str, str] = {
    "request": "a request of the state, as JSON",
    "reply": "its reply, as JSON",
}
"""Texts of a turn of any other table."""
FIGURES: Mapping[str, str] = {
    "seq": "number of the move",
    "seconds": "how long the state took",
}
SPENT: Mapping[str, str] = {
    "tokens": "tokens of this turn so far",
    "cost": "US dollars of this turn so far, 0 while a price is not known",
}


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Resources that a turn has used so far. ``cost`` in US dollars, ``None`` if a price is unknown."""

    requests: int = 0
    tokens: int = 0
    cost: float | None = 0.0


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """Facts of one move, read only if a condition needs them. ``counters`` are those after the move."""

    step: Step
    counters: Mapping[str, int]
    visit: Callable[[], Entries] = tuple
    spent: Callable[[], TurnCost] = TurnCost


def texts_of(kind: TurnKind) -> Mapping[str, str]:
    """Return the texts that a condition may name, with descriptions."""
    return NAMED if kind.talks else OF_REQUESTS


def numbers_of(kind: TurnKind) -> dict[str, str]:
    """Return the numbers that a condition may name, with descriptions; counters first."""
    counters = dict.fromkeys(kind.counters, "counter")
    return {**counters, **FIGURES, **(SPENT if kind.talks else {})}


def condition_values(facts: MoveFacts, names: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield the values with which to evaluate a condition that uses ``names``."""
    values: dict[str, Any] = {**facts.counters, "seq": facts.step.seq, "seconds": facts.step.seconds}
    if names & SPENT.keys():
        spent = facts.spent()
        values |= {"tokens": spent.tokens, "cost": spent.cost or 0.0}
    if names.isdisjoint({*NAMED, *OF_REQUESTS}):
        yield values
        return
    empty = dict.fromkeys((*NAMED, *OF_REQUESTS), "")
    occasions = list(_occasions(facts.visit())) or [{}]
    for occasion in occasions:
        yield {**values, **empty, **occasion}


def _occasions(visit: Entries) -> Iterator[dict[str, str]]:
    for one in visit:
        request, reply = one["request"] or {}, one["reply"] or {}
        if one["kind"] == "CallModel":
            yield from _reply_calls(reply)
        elif one["kind"] == "RunTool":
            text, failed = str(reply.get("text", "")), reply.get("status") not in (None, "ok")
            arguments = dumps(request.get("arguments", {}))
            called = {"tool": one["name"], "arguments": arguments, "result": text}
            yield called | ({"error": text} if failed else {})
        else:
            yield {"request": dumps(request), "reply": dumps(reply)}


def _reply_calls(reply: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    values = {"text": str(reply.get("text", "")), "error": str(reply.get("message", ""))}
    calls = reply.get("tool_calls") or ()
    return [values | {"tool": one["name"], "arguments": one["arguments"]} for one in calls] or [values]


# ----------------------------------------------------------------------------------------------------
# Validation of JSON arguments from clients: a ``MalformedArgument`` names the wrong argument, its value, and
# the allowed ones.


Arguments = Mapping[str, Any]


class MalformedArgument(ConfigError):
    """An argument that our own clients never send: missing, or of the wrong type."""


def number(arguments: Arguments, name: str, default: int | None = None, *, least: int | None = 0) -> int:
    """Return a whole number, at least ``least`` unless that is ``None``. Raises ``MalformedArgument``."""
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        allowed = "a whole number" + (f" from {least}" if least is not None else "")
        raise MalformedArgument(f"{name} is not a number", value, allowed)
    return value


def text(arguments: Arguments, name: str) -> str:
    """Return a text. Raises ``MalformedArgument``."""
    value = arguments.get(name)
    if not isinstance(value, str):
        raise MalformedArgument(f"{name} is not text", value, "some text")
    return value


def texts(arguments: Arguments, name: str) -> tuple[str, ...]:
    """Return a list of texts, empty if it is absent. Raises ``MalformedArgument``."""
    value = arguments.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise MalformedArgument(f"{name} is not a list of texts", value, "a list of texts")
    return tuple(value)


def objects(arguments: Arguments, name: str) -> list[Arguments]:
    """Return a list of objects, empty if it is absent. Raises ``MalformedArgument``."""
    value = arguments.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise MalformedArgument(f"{name} is not a list of objects", value, "a list of objects")
    return value


Kind = Literal["state", "event", "row", "arrow", "exit", "move"]
ANY = "any"
"""The only target of the kind ``move``: every move; the condition narrows it."""
Holds = Callable[[MoveFacts], bool]
ARROW = "→"
_HITS = re.compile(r"\s*(>=|<=|==|>|<|%)?\s*(\d+)\s*")
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt,
    "%": lambda hits, every: hits % every == 0,
}  # fmt: skip
_FIELD = re.compile(r"\{(\w+)\}")
FACTS = ("seq", "source", "event", "dest", "row", "exit")
"""Names that a logpoint may use besides counters."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """``target``: a state that is entered, an event, a row's id, an arrow ``"CallLLM→ClassifyError"`` (``->``
    also works), an exit reason or outcome (``failed``) of a turn, or ``any`` move.

    ``condition`` refers to the counters after the move (``retries >= 2``), the requests and replies of the
    visit that it ended, and the turn's usage so far (``tool == "terminal" and tokens > 5000``, see
    ``MoveFacts``); ``hits`` says at which hits it stops: ``3``, ``>= 3``, ``% 5`` (every fifth). With
    ``log``, it writes this text instead of stopping; ``{retries}``, ``{seq}``, ``{row}`` in it are
    replaced."""

    kind: Kind
    target: str
    condition: str = ""
    hits: str = ""
    log: str = ""
    enabled: bool = True
    id: int = 0

    @classmethod
    def of(cls, value: Any) -> Breakpoint:
        """Parse a breakpoint from JSON. Raises ``ConfigError`` if it is invalid."""
        names = {one.name for one in fields(cls)}
        if not isinstance(value, Mapping):
            raise ConfigError("not a breakpoint", value, f"an object of {', '.join(sorted(names))}")
        if unknown := sorted(set(value) - names):
            raise ConfigError("a breakpoint has no such part", unknown[0], ", ".join(sorted(names)))
        if value.get("kind") not in get_args(Kind):
            raise ConfigError("no such kind of breakpoint", value.get("kind"), ", ".join(get_args(Kind)))
        texts = {name: str(value.get(name) or "").strip() for name in ("target", "condition", "hits", "log")}
        texts["target"] = texts["target"].replace("->", ARROW).replace(" ", "")
        return cls(
            kind=value["kind"], enabled=bool(value.get("enabled", True)), id=number(value, "id", 0), **texts
        )

    def __str__(self) -> str:
        """Describe where it stops: the target, the condition, and the hits."""
        text = f"{self.kind} {self.target}"
        if self.condition:
            text = f"{self.condition} at {text}"
        return f"{text}, at hit {self.hits}" if self.hits else text

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    def meets(self, step: Step) -> bool:
        """Return whether ``step`` is the kind of move that this breakpoint is about."""
        match self.kind:
            case "state":
                return step.dest == self.target
            case "event":
                return self.target in (step.event, f"{step.source}.{step.event}")
            case "row":
                return step.row == self.target
            case "arrow":
                return f"{step.source}{ARROW}{step.dest}" == self.target
            case "exit":
                return step.exit is not None and self.target in (step.exit, outcome_of(step.exit))
            case "move":
                return True
            case _:
                assert_never(self.kind)


@dataclass(frozen=True, slots=True)
class BreakpointHit:
    """A breakpoint that a move met. ``text`` is the line of a logpoint, for which ``stops`` is false."""

    breakpoint: Breakpoint
    count: int
    text: str = ""

    @property
    def stops(self) -> bool:
        """Return whether the turn stops here instead of only writing a line."""
        return not self.breakpoint.log


@dataclass(slots=True)
class Breakpoints:
    """The breakpoints of one turn. ``table`` defines the possible targets. ``kind`` determines what a
    condition may refer to besides counters; without it, nothing."""

    table: Table
    kind: TurnKind | None = None
    _all: dict[int, Breakpoint] = field(default_factory=dict)
    _holds: dict[int, Holds] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Breakpoint]:
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def put(self, wanted: Breakpoint) -> Breakpoint:
        """Add a breakpoint, or replace the one with the same id, or with the same kind and target. Raises
        ``ConfigError``."""
        holds = self._parse_condition(wanted)
        same = next((one.id for one in self if (one.kind, one.target) == (wanted.kind, wanted.target)), 0)
        number = wanted.id or same or max(self._all, default=0) + 1
        if same and same != number:
            self.drop(same)
        point = Breakpoint(
            wanted.kind, wanted.target, wanted.condition, wanted.hits, wanted.log, wanted.enabled, number
        )
        self._all[number] = point
        self._counts[number] = 0
        self._holds[number] = holds
        return point

    def drop(self, number: int) -> None:
        """Remove the breakpoint with this number, if it exists."""
        for kept in (self._all, self._holds, self._counts):
            kept.pop(number, None)

    def replace(self, wanted: Iterable[Breakpoint]) -> None:
        """Replace all breakpoints. Unchanged ones keep their hit counts."""
        given = list(wanted)
        for one in given:
            self._parse_condition(one)
        before, counts = dict(self._all), dict(self._counts)
        for known in before:
            self.drop(known)
        for one in given:
            point = self.put(one)
            if before.get(point.id) == point:
                self._counts[point.id] = counts[point.id]

    def match(self, facts: MoveFacts) -> list[BreakpointHit]:
        """Return the breakpoints and logpoints that a move meets, and count the hits."""
        found = []
        for one in self:
            if not one.enabled or not one.meets(facts.step) or not self._holds[one.id](facts):
                continue
            self._counts[one.id] += 1
            count = self._counts[one.id]
            if at_hit(one.hits)(count):
                found.append(BreakpointHit(one, count, logpoint_text(one.log, facts.step, facts.counters)))
        return found

    def fresh(self) -> Breakpoints:
        """Return a copy with no hits counted, for going through recorded moves."""
        other = Breakpoints(self.table, self.kind)
        for one in self:
            other.put(one)
        return other

    def count(self, number: int) -> int:
        """Return its hit count."""
        return self._counts.get(number, 0)

    def _parse_condition(self, one: Breakpoint) -> Holds:
        targets = targets_of(self.table, one.kind)
        if one.target not in targets:
            raise ConfigError(f"there is no such {one.kind} to stop at", one.target, ", ".join(targets))
        counters = {counter.name: 0 for counter in self.table.counters}
        at_hit(one.hits)
        for name in _FIELD.findall(one.log):
            if name not in counters and name not in FACTS:
                raise ConfigError("a logpoint names what is not known", name, ", ".join((*FACTS, *counters)))
        return self.holds(one.condition)

    def holds(self, text: str) -> Holds:
        """Compile a condition; an empty one always holds. Raises ``ConfigError``, with the available names,
        for an invalid one."""
        if not text:
            return _always
        if self.kind is None:
            compiled = condition(text, [counter.name for counter in self.table.counters])
        else:
            compiled = condition(text, numbers_of(self.kind), texts_of(self.kind))
        names = names_in(text)
        return lambda facts: any(compiled(values) for values in condition_values(facts, names))


def outcome_of(exit_reason: str) -> str:
    """Return the outcome of an exit reason; empty for an exit of a custom table."""
    return ExitReason(exit_reason).outcome.value if exit_reason in set(ExitReason) else ""


def targets_of(table: Table, kind: Kind) -> list[str]:
    """Return every target that a breakpoint of this kind may have."""
    match kind:
        case "state":
            return list(table.states)
        case "event":
            named = [name for source, event in table.by_event for name in (event, f"{source}.{event}")]
            return list(dict.fromkeys(named))
        case "row":
            return [row.id for row in table.rows]
        case "arrow":
            return list(dict.fromkeys(f"{row.source}{ARROW}{row.dest}" for row in table.rows))
        case "exit":
            return [
                *(one.value for one in Outcome),
                *dict.fromkeys(row.exit for row in table.rows if row.exit),
            ]
        case "move":
            return [ANY]
        case _:
            assert_never(kind)


def at_hit(text: str) -> Callable[[int], bool]:
    """Return a predicate for hit counts. Raises ``ConfigError`` if the text is invalid."""
    if not text:
        return _always
    match = _HITS.fullmatch(text)
    if match is None or (match[1] == "%" and match[2] == "0"):
        raise ConfigError(
            "a hit count cannot be read", text, "a number, or >= 3, > 3, < 3, <= 3, == 3, % 3 (every third)"
        )
    compare, number = _COMPARE[match[1] or "=="], int(match[2])
    return lambda count: compare(count, number)


def logpoint_text(text: str, step: Step, counters: Mapping[str, int]) -> str:
    """Return the line that a logpoint writes for one move."""
    facts: dict[str, object] = {name: getattr(step, name) for name in FACTS} | dict(counters)
    return _FIELD.sub(lambda found: str(facts.get(found[1], found[0])), text)


def _always(_: object) -> bool:
    return True


# ----------------------------------------------------------------------------------------------------
# The decision lists of a table in the source of a module, read from its syntax. Nothing is executed.


@dataclass(frozen=True, slots=True)
class WrittenList:
    """A decision list: ``place`` is its element in the list of its state, ``call`` the ``on(…)``, which is
    defined elsewhere if the element is only a name (``shared``)."""

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
    """A state and its lists, with their places in the source."""

    key: ast.Constant
    name: str
    lists: tuple[WrittenList, ...]


def written_states(tree: ast.Module, table: Table) -> Iterator[WrittenState]:
    """Yield the states of ``table`` that a module defines as ``"State": [on(…), …]``."""
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
