"""Change a row of a table in the text of its module: only the row's own text changes, so comments are kept.

A change is made twice: in the text, and in the table. The caller loads the new text and compares the tables
before writing, so a text with another meaning is never written."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from json import dumps

from fsm_agent.debug.core.breakpoints import WrittenList, written_states
from fsm_agent.errors import ConfigError, TableError
from fsm_agent.fsm.table import (
    ALWAYS,
    NEVER,
    AllOf,
    AnyOf,
    Below,
    Guard,
    Line,
    Rung,
    Spent,
    Table,
    all_of,
    left,
)
from fsm_agent.fsm.verify.reach import all_limit_names

LARGEST_LIMIT = 1_000_000
_LINE_END = re.compile(rb"(?<=\n)|(?<=\r)(?!\n)")
"""Line endings in Python."""
_REST_OF_ROW = re.compile(rb",[ \t]*(#[^\r\n]*)?(?=\r|\n)")
"""A comma and a comment, if nothing else follows on the line."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class MoveRung:
    """Move a rung (numbers start at 1) before the one above it (-1) or after the one below it (1)."""

    state: str
    event: str
    rung: int
    by: int


@dataclass(frozen=True, slots=True)
class AddRung:
    """Add a rung as number ``at``: the source of a remedy, with the source of a further guard, or none."""

    state: str
    event: str
    at: int
    remedy: str
    guard: str = ""


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Set the value of a limit."""

    limit: str
    value: int


Edit = MoveRung | AddRung | SetLimit


@dataclass(frozen=True, slots=True)
class Patched:
    """A changed text, with the table and the limits that it must yield."""

    text: bytes
    table: Table
    limits: Mapping[str, int]


class TableText:
    """The text of a module, and its table. Raises ``ConfigError`` if it is not Python in UTF-8."""

    def __init__(self, text: bytes, table: Table) -> None:
        self._text, self._table = text, table
        try:
            self._tree = ast.parse(text.removeprefix(BOM).decode("utf-8"))
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"the source cannot be read ({error})", table.name, "Python in UTF-8") from None
        self._starts = [0]
        for line in _LINE_END.split(text):
            self._starts.append(self._starts[-1] + len(line))
        self._lists: dict[tuple[str, str], list[WrittenList]] = {}
        for state in written_states(self._tree, table):
            for one in state.lists:
                self._lists.setdefault((one.state, one.event), []).append(one)

    # Possible changes

    def refusal(self, state: str, event: str) -> str:
        """Return why the list of an event cannot be changed; empty if it can."""
        if event in self._table.is_macro:
            return "it is a macro, one list of every state"
        found, line = self._lists.get((state, event), []), self._line(state, event)
        if not found or line is None:
            return "its row is not written literally, as on(…) in the list of its state"
        if len(found) > 1:
            return f"it is written at lines {', '.join(str(one.call.lineno) for one in found)}"
        ladder = found[0].ladder
        if len(ladder) != len(line.ladder) or any(isinstance(rung, ast.Starred) for rung in ladder):
            return "its rungs are not written one by one"
        return ""

    def together(self, state: str, event: str) -> tuple[str, ...]:
        """Return the other states that refer to this list by name, and change with it."""
        found = self._lists.get((state, event), [])
        same = (one for lists in self._lists.values() for one in lists if found and one.call is found[0].call)
        return tuple(one.state for one in same if one.state != state)

    def line(self, state: str, event: str) -> int | None:
        """Return the source line of a list."""
        found = self._lists.get((state, event))
        return found[0].call.lineno if found else None

    @cached_property
    def limits(self) -> dict[str, int]:
        """The limits that the module sets in dictionaries, each to the same number everywhere."""
        values = {name: {value for value, _ in places} for name, places in self._limit_places.items()}
        return {name: next(iter(numbers)) for name, numbers in values.items() if len(numbers) == 1}

    @cached_property
    def remedies(self) -> dict[str, Rung]:
        """The rungs of the table by their source text."""
        found: dict[str, Rung] = {}
        for (state, event), _ in self._lists.items():
            line = self._line(state, event)
            if line is not None and not self.refusal(state, event):
                ladder = self._lists[state, event][0].ladder
                for node, rung in zip(ladder, line.ladder, strict=True):
                    found.setdefault(self._source(node), rung)
        return {text: rung for text, rung in found.items() if "\n" not in text}

    @cached_property
    def guards(self) -> dict[str, Guard]:
        """The comparisons of the table's guards, and their negations, by their source text."""
        atoms = dict.fromkeys(
            atom for line in self._table.lines for r in line.ladder for atom in r.needs.atoms()
        )
        return {_guard_text(guard): guard for atom in atoms for guard in (atom, ~atom)}

    # Changes

    def apply(self, edit: Edit) -> Patched:
        """Apply a change to the text and the table. Raises ``ConfigError`` if it is not possible."""
        if isinstance(edit, SetLimit):
            return self._set_limit(edit)
        if reason := self.refusal(edit.state, edit.event):
            where = f"{edit.state}.{edit.event}"
            raise ConfigError(f"this row cannot be changed here: {reason}", where, "a change in the file")
        written = self._lists[edit.state, edit.event][0]
        line = self._line(edit.state, edit.event)
        assert line is not None
        ladder = list(line.ladder)
        if isinstance(edit, MoveRung):
            first = min(edit.rung, edit.rung + edit.by) - 1
            if abs(edit.by) != 1 or not 0 <= first < len(ladder) - 1:
                raise ConfigError("a rung moves up or down within its list", edit.rung, f"1 to {len(ladder)}")
            ladder[first : first + 2] = reversed(ladder[first : first + 2])
            text = self._swap(*written.ladder[first : first + 2])
        else:
            if not 1 <= edit.at <= len(ladder) + 1:
                raise ConfigError("there is no such place", edit.at, f"1 to {len(ladder) + 1}")
            expression, rung = self._new_rung(edit)
            ladder.insert(edit.at - 1, rung)
            text = self._insert(written.ladder, edit.at - 1, expression.encode())
        return Patched(text, self._with(written, tuple(ladder)), self.limits)

    def _with(self, written: WrittenList, ladder: tuple[Rung, ...]) -> Table:
        """Return the table with a new ladder in each line that comes from the same ``on(…)``."""
        same = {key for key, lists in self._lists.items() if any(one.call is written.call for one in lists)}
        lines = (
            replace(line, ladder=ladder) if (line.source, line.event) in same else line
            for line in self._table.lines
        )  # fmt: skip
        try:
            return replace(self._table, lines=tuple(lines))
        except TableError as error:
            where = f"{written.state}.{written.event}"
            raise ConfigError(f"the changed table is wrong ({error})", where, "another change") from None

    def _swap(self, one: ast.expr, other: ast.expr) -> bytes:
        (a, b), (c, d) = self._span(one), self._span(other)
        ends = [_REST_OF_ROW.match(self._text, end) for end in (b, d)]
        if ends[0] is not None and ends[1] is not None:  # each has its own line: its comment moves with it
            b, d = ends[0].end(), ends[1].end()
        text = self._text
        return text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]

    def _insert(self, ladder: list[ast.expr], at: int, expression: bytes) -> bytes:
        if at == len(ladder):
            end = self._span(ladder[-1])[1]
            return self._text[:end] + b", " + expression + self._text[end:]
        start = self._span(ladder[at])[0]
        begin = self._starts[ladder[at].lineno - 1]
        before = self._text[begin:start]
        newline = b"\r\n" if b"\r\n" in self._text else b"\n"
        gap = b" " if before.strip() else newline + before
        return self._text[:start] + expression + b"," + gap + self._text[start:]

    def _new_rung(self, edit: AddRung) -> tuple[str, Rung]:
        if edit.remedy not in self.remedies:
            raise ConfigError("the table has no such remedy", edit.remedy[:80], ", ".join(self.remedies))
        rung = self.remedies[edit.remedy]
        if not edit.guard:
            return edit.remedy, rung
        if edit.guard not in self.guards:
            raise ConfigError("the table has no such guard", edit.guard[:80], ", ".join(self.guards))
        rung = replace(rung, needs=all_of((rung.needs, self.guards[edit.guard])))
        if rung.needs == NEVER:
            raise ConfigError("this rung could never be taken", edit.guard, "a guard that fits the remedy")
        text = _rung_text(rung)
        missing = set(re.findall(r"\b(left|Rung|end|any_of)\(", text)) - self._bound
        if missing:
            raise ConfigError(
                f"the module does not know {', '.join(sorted(missing))}",
                text,
                "an import from fsm_agent.fsm.table",
            )
        return text, rung

    def _set_limit(self, edit: SetLimit) -> Patched:
        if edit.limit not in self.limits:
            written = (
                "it has several numbers" if edit.limit in self._limit_places else "the module gives it none"
            )
            raise ConfigError(
                f"this limit cannot be changed here: {written}",
                edit.limit,
                ", ".join(self.limits) or "no limit",
            )
        if not 0 <= edit.value <= LARGEST_LIMIT:
            raise ConfigError("a limit is a whole number", edit.value, f"0 to {LARGEST_LIMIT:,}")
        text = self._text
        places = sorted((self._span(node) for _, node in self._limit_places[edit.limit]), reverse=True)
        for start, end in places:
            text = text[:start] + str(edit.value).encode() + text[end:]
        return Patched(text, self._table, {**self.limits, edit.limit: edit.value})

    # Inside

    def _line(self, state: str, event: str) -> Line | None:
        return next((one for one in self._table.lines if (one.source, one.event) == (state, event)), None)

    def _span(self, node: ast.expr) -> tuple[int, int]:
        first, last = self._starts[node.lineno - 1], self._starts[(node.end_lineno or node.lineno) - 1]
        bom = len(BOM) if self._text.startswith(BOM) else 0
        start = first + node.col_offset + (bom if node.lineno == 1 else 0)
        return start, last + (node.end_col_offset or 0) + (bom if node.end_lineno == 1 else 0)

    def _source(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._text[start:end].decode("utf-8")

    @cached_property
    def _limit_places(self) -> dict[str, list[tuple[int, ast.Constant]]]:
        """The numbers in dictionaries whose keys are all limits or counters of this table."""
        known = {*all_limit_names(self._table), *(counter.name for counter in self._table.counters)}
        found: dict[str, list[tuple[int, ast.Constant]]] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Dict):
                pairs = [
                    (key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None
                ]
                if all(isinstance(key, ast.Constant) and key.value in known for key, _ in pairs):
                    for name, number, place in _numbers(pairs):
                        found.setdefault(name, []).append((number, place))
        return found

    @cached_property
    def _bound(self) -> set[str]:
        """The names of the table language that the module imports or defines."""
        found: Counter[str] = Counter()
        for statement in self._tree.body:
            match statement:
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    found.update(one.asname or one.name for one in names)
                case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                    found[name] += 1
        return set(found)


def _numbers(pairs: list[tuple[ast.expr, ast.expr]]) -> Iterator[tuple[str, int, ast.Constant]]:
    for key, value in pairs:
        match key, value:
            case ast.Constant(value=str(name)), ast.Constant(value=int(number)) if number is not True:
                assert isinstance(value, ast.Constant)
                yield name, number, value


def _quote(text: str) -> str:
    return dumps(text, ensure_ascii=False)


def _guard_text(guard: Guard) -> str:
    """Return the source of a guard."""
    match guard:
        case Below(counter=counter, limit=limit, yes=yes, no=no):
            plain = left(counter, limit)
            parts = [_quote(counter), *([_quote(limit)] if limit != counter else [])]
            parts += [f"yes={_quote(yes)}"] if yes != plain.yes else []
            parts += [f"no={_quote(no)}"] if no != plain.no else []
            return f"left({', '.join(parts)})"
        case Spent(atom=atom):
            return f"~{_guard_text(atom)}"
        case AllOf(parts=several):
            return " & ".join(map(_guard_text, several))
        case AnyOf(parts=several):
            return f"any_of(({', '.join(map(_guard_text, several))}))"
    raise TypeError(f"no guard of the language: {type(guard).__name__}")


def _rung_text(rung: Rung) -> str:
    """Return the source of a rung."""
    needs = "" if rung.needs == ALWAYS else _guard_text(rung.needs)
    if rung.exit is not None:
        final = "" if rung.to == "Finalize" else f", {_quote(rung.to)}"
        return f"end({_quote(rung.exit)}{final}, when={needs})"
    parts = [_quote(rung.name), _quote(rung.to), needs]
    if rung.spends or rung.resets:
        parts.append(_names(rung.spends))
    if rung.resets:
        parts.append(_names(rung.resets))
    return f"Rung({', '.join(parts)})"


def _names(names: tuple[str, ...]) -> str:
    return f"({', '.join(map(_quote, names))}{',' * (len(names) == 1)})"
