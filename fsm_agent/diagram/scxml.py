"""SCXML (https://www.w3.org/TR/scxml/): a table as a document, and a flat document as a table.

Counters and limits are numbers of the data model, ``count_retries`` and ``limit_retries``; ``row`` is the
last row, and ``exit`` the exit reason. Conditions use only ``<``, ``>=``, ``&&``, ``||``, so engines with a
Python data model can read them, too. Attributes of the namespace ``fsm`` keep what SCXML cannot express:
names of rungs, reasons, kinds of counters, wordings of guards. Engines ignore them."""

from __future__ import annotations

import ast
import json
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from fsm_agent.diagram.statecharts import LONGEST, Chart, atoms_of, identifiers, limits_of, steps
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import (
    AllOf,
    AnyOf,
    Below,
    Counter,
    Guard,
    Row,
    Rung,
    Spent,
    Table,
    all_of,
    any_of,
    left,
)

SCXML = "http://www.w3.org/2005/07/scxml"
FSM = "urn:fsm-agent:table"
_NO_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def as_scxml(table: Table, limits: Mapping[str, int] | None = None) -> str:
    """Return the document of a table. ``limits``: values by name; by default those of the table, else 1.

    A state that runs other tables has the events of their ends, and does not run them. Raises ``ConfigError``
    for a limit that the table does not have."""
    return "\n".join(_Writer(table, limits_of(table, limits)).lines()) + "\n"


class _Writer:
    def __init__(self, table: Table, limits: Mapping[str, int]) -> None:
        self.table, self.limits = table, limits
        self.flags = {counter.name for counter in table.counters if counter.flag}
        self.states = identifiers(table.states)
        self.events = identifiers(dict.fromkeys(event for _, event in table.by_event))
        self.counts = identifiers(f"count_{counter.name}" for counter in table.counters)
        self.most = identifiers(f"limit_{name}" for name in limits)

    def lines(self) -> Iterator[str]:
        first = self.states[self.table.initial]
        yield '<?xml version="1.0" encoding="UTF-8"?>'
        yield (
            f'<scxml xmlns="{SCXML}" xmlns:fsm="{FSM}" version="1.0" datamodel="ecmascript"'
            + _attributes(name=self.table.name, initial=first)
            + ">"
        )
        yield "  <datamodel>"
        yield from (f"    <data{one}/>" for one in self._data())
        yield "  </datamodel>"
        yield from (f"  <fsm:budget{one}/>" for one in self._wordings())
        rows: dict[str, list[tuple[Row, Rung, bool]]] = defaultdict(list)
        for row, rung, macro in steps(self.table):
            rows[row.source].append((row, rung, macro))
        for state in self.table.states:
            named = _attributes(id=self.states[state], **_rename(state, self.states[state]))
            if state == self.table.final:
                yield f'  <final{named}><donedata><param name="exit" location="exit"/></donedata></final>'
                continue
            yield f"  <state{named}>"
            for row, rung, macro in rows[state]:
                yield from self._transition(row, rung, macro)
            yield "  </state>"

        yield "</scxml>"

    def _data(self) -> Iterator[str]:
        for counter in self.table.counters:
            kind = {"fsm:kind": "flag" if counter.flag else "cap"} if counter.flag or counter.cap else {}
            name = f"count_{counter.name}"
            yield _attributes(id=self.counts[name], expr="0", **{"fsm:counter": counter.name}, **kind)
        for name, value in self.limits.items():
            yield _attributes(id=self.most[f"limit_{name}"], expr=str(value), **{"fsm:limit": name})
        yield _attributes(id="row", expr='""')
        yield _attributes(id="exit", expr='""')

    def _wordings(self) -> Iterator[str]:
        """Yield the wordings of comparisons that differ from the default ones."""
        for atom in atoms_of(self.table):
            if atom != left(atom.counter, atom.limit):
                yield _attributes(counter=atom.counter, limit=atom.limit, yes=atom.yes, no=atom.no)

    def _transition(self, row: Row, rung: Rung, macro: bool) -> Iterator[str]:
        event = self.events[row.event]
        shown = {"event": event, "target": self.states[row.dest]}
        if (condition := self._condition(rung.needs)) != "true":
            shown["cond"] = condition
        shown |= {"fsm:rung": rung.name, "fsm:why": row.why} | _rename(row.event, event)
        shown |= {"fsm:exit": row.exit} if row.exit else {}
        yield f"    <transition{_attributes(**shown, **({'fsm:macro': 'true'} if macro else {}))}>"
        for counter in row.resets:
            yield self._assign(self.counts[f"count_{counter}"], "0")
        for counter in row.spends:
            name = self.counts[f"count_{counter}"]
            yield self._assign(name, f"{name} + 1")
        yield self._assign("row", json.dumps(row.id))
        if row.exit:
            yield self._assign("exit", json.dumps(row.exit))
        yield "    </transition>"

    def _assign(self, location: str, expression: str) -> str:
        return f"      <assign{_attributes(location=location, expr=expression)}/>"

    def _condition(self, guard: Guard, inside: bool = False) -> str:
        match guard:
            case Spent(atom):
                return self._comparison(atom, ">=")
            case Below():
                return self._comparison(guard, "<")
            case AllOf(parts):
                text = " && ".join(self._condition(part, True) for part in parts) or "true"
            case AnyOf(parts):
                text = " || ".join(self._condition(part, True) for part in parts) or "false"
            case _:
                raise TypeError(f"a guard of a kind that is not known: {type(guard).__name__}")
        return f"({text})" if inside and len(parts) > 1 else text

    def _comparison(self, atom: Below, sign: str) -> str:
        most = "1" if atom.limit in self.flags else self.most[f"limit_{atom.limit}"]
        return f"{self.counts[f'count_{atom.counter}']} {sign} {most}"


def _attributes(**values: str) -> str:
    return "".join(f" {name}={quoteattr(_NO_XML.sub(chr(0xFFFD), value))}" for name, value in values.items())


def _rename(name: str, identifier: str) -> dict[str, str]:
    return {} if name == identifier else {"fsm:name": name}


def from_scxml(text: str, origin: str = "SCXML") -> Table:
    """Return the table of a document. Each of its final states is an exit reason, and a number that a counter
    is compared with is a default limit.

    Raises ``ConfigError`` for invalid SCXML, for a document type, and for features that a table lacks, all
    listed in one line: nested or parallel states, history, scripts, data, and so on.
    """
    return _Reader(_parse(text, origin), origin).table()


class _NoDoctype(ET.TreeBuilder):
    """Rejects document types: they declare entities, which may expand without end."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("a document type is refused")


def _parse(text: str, origin: str) -> ET.Element:
    if len(text) > LONGEST:
        raise ConfigError(f"the document has more than {LONGEST:,} characters", origin)
    parser = ET.XMLParser(target=_NoDoctype())  # noqa: S314 - no entity is expanded without a document type
    try:
        parser.feed(text)
        root: ET.Element = parser.close()
    except (ET.ParseError, ValueError) as error:
        raise ConfigError(f"this is not SCXML ({error})", origin) from None
    if _tag(root) != "scxml":
        raise ConfigError(f"this is not SCXML (its root is {root.tag})", origin)
    return root


def _tag(element: ET.Element) -> str:
    return element.tag.removeprefix(f"{{{SCXML}}}")


def _own(element: ET.Element, name: str, default: str = "") -> str:
    return element.get(f"{{{FSM}}}{name}", default)


@dataclass
class _Transition:
    """A parsed transition; its condition is resolved once the roles of all variables are known."""

    source: str
    event: str
    to: str
    condition: ast.expr | None
    resets: list[str]
    spends: list[str]
    element: ET.Element


_TEXTS = {"row", "exit"}
"""Texts in a document of ``as_scxml``; no guard reads them."""
_LONGEST_CONDITION = 4_000
_OPERATORS = (
    (re.compile(r"&&"), " and "),
    (re.compile(r"\|\|"), " or "),
    (re.compile(r"!(?!=)"), " not "),
    (re.compile(r"\btrue\b"), "True"),
    (re.compile(r"\bfalse\b"), "False"),
)
_FLIPPED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}


class _Reader:
    def __init__(self, root: ET.Element, origin: str) -> None:
        self.root = root
        self.chart = Chart(root.get("name") or "machine", origin)
        self.data: dict[str, ET.Element] = {}
        self.names: dict[str, str] = {}
        self.transitions: list[_Transition] = []
        self.literals: dict[str, set[int]] = defaultdict(set)
        self.wordings: dict[tuple[str, str], Below] = {}

    def table(self) -> Table:
        chart = self.chart
        states = [one for one in self.root if _tag(one) in ("state", "final")]
        self.names = {one.get("id", ""): _own(one, "name") or one.get("id", "") for one in states}
        for element in self.root:
            self._top(element)
        self._roles()
        for one in self.transitions:
            self._rung(one)
        events = {event for _, event in chart.rungs}
        for event in sorted(events):
            if any(other.startswith(f"{event}.") for other in events):
                chart.has_more(f"the event {event} for all that begin with it")
        if not chart.states:
            raise ConfigError("the document has no state", chart.origin)
        first = self.root.get("initial", "")
        if len(first.split()) > 1:
            chart.has_more("several initial states")
        if first and first not in self.names:
            raise ConfigError("there is no such initial state", first, ", ".join(self.names))
        return chart.table(self.names.get(first) or [*chart.states, *chart.finals][0])

    def _top(self, element: ET.Element) -> None:
        match _tag(element):
            case "datamodel":
                self.data |= {one.get("id", ""): one for one in element}
            case "state":
                self._state(element)
            case "final":
                self._final(element)
            case tag if tag == f"{{{FSM}}}budget":
                words = Below(*(element.get(name, "") for name in ("counter", "limit", "yes", "no")))
                self.wordings.setdefault((words.counter, words.limit), words)
            case tag if not tag.startswith("{"):  # other namespaces are annotations of editors
                self.chart.has_more(f"{tag} {element.get('id', '')}".strip())

    def _final(self, element: ET.Element) -> None:
        name = self.names[element.get("id", "")]
        self.chart.finals[name] = name
        for child in element:
            ours = [(one.get("name"), one.get("location")) for one in child] == [("exit", "exit")]
            if _tag(child) != "donedata" or not ours:
                self.chart.has_more(f"{_tag(child)} in {name}")

    def _state(self, element: ET.Element) -> None:
        name = self.names[element.get("id", "")]
        self.chart.states.append(name)
        for child in element:
            if _tag(child) == "transition":
                self._transition(name, child)
            elif not _tag(child).startswith("{"):
                self.chart.has_more(f"{_tag(child)} in {name}")

    def _transition(self, source: str, element: ET.Element) -> None:
        events, targets = element.get("event", "").split(), element.get("target", "").split()
        if not events:
            self.chart.has_more(f"a transition without event in {source}")
        if len(targets) > 1:
            self.chart.has_more(f"a transition to several states in {source}")
        resets: list[str] = []
        spends: list[str] = []
        for action in element:
            self._action(source, action, resets, spends)
        condition = self._tree(element.get("cond"))
        to = self.names.get(targets[0], targets[0]) if targets else source
        for event in events:
            if "*" in event or event.startswith(("done.", "error.")):
                self.chart.has_more(f"the event {event}")
            named = _own(element, "name", event)
            self.transitions.append(_Transition(source, named, to, condition, resets, spends, element))

    def _action(self, source: str, action: ET.Element, resets: list[str], spends: list[str]) -> None:
        if _tag(action) != "assign":
            self.chart.has_more(f"{_tag(action)} in {source}")
            return
        location = action.get("location", "")
        expression = "".join((action.get("expr") or action.text or "").split())
        if expression == "0":
            spends[:] = [one for one in spends if one != location]
            resets.append(location)
        elif expression in (f"{location}+1", f"1+{location}", f"++{location}"):
            spends.append(location)
        elif location not in _TEXTS or not expression.startswith('"'):
            self.chart.has_more(f"{location} = {expression} in {source}")

    def _tree(self, text: str | None) -> ast.expr | None:
        """Parse a condition, after translation to Python's operators; it is never executed."""
        if text is None:
            return None
        words = text
        for sign, word in _OPERATORS:
            words = sign.sub(word, words)
        try:
            if len(words) > _LONGEST_CONDITION:
                raise ValueError("too long")
            tree = ast.parse(words.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.chart.has_more(f"the condition {text[:60]}")
            return None
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Compare)
                and (found := _read_comparison(node))
                and isinstance(found[2], int)
            ):
                self.literals[found[0]].add(found[2])
        return tree

    def _roles(self) -> None:
        """Classify each number of the data model: a counter if something assigns it, else a limit."""
        assigned = {name for one in self.transitions for name in (*one.resets, *one.spends)}
        for name, element in self.data.items():
            counter, limit = _own(element, "counter"), _own(element, "limit")
            value = element.get("expr", element.text or "").strip()
            if name in _TEXTS and value == '""':
                continue
            if not re.fullmatch(r"\d{1,9}", value):
                self.chart.has_more(f"the data {name} = {value[:60]}")
            elif counter or (not limit and name in assigned):
                kind = _own(element, "kind")
                self.chart.counters[name] = Counter(counter or name, flag=kind == "flag", cap=kind == "cap")
                if int(value):
                    self.chart.has_more(f"{name} begins at {value}")
            else:
                self.names[name] = limit or name
                self.chart.limits[limit or name] = int(value)
        for name in sorted(assigned - self.chart.counters.keys()):
            self.chart.has_more(f"{name} is not a whole number of the data model")

    def _rung(self, one: _Transition) -> None:
        chart, element, place = self.chart, one.element, (one.source, one.event)
        if _own(element, "macro") == "true":
            chart.macros[one.event][one.source] = _own(element, "exit")
            return
        counters = {name: counter.name for name, counter in chart.counters.items()}
        spends, resets = ([counters.get(name, name) for name in names] for names in (one.spends, one.resets))
        needs = all_of(()) if one.condition is None else self._guard(one.condition)
        name = _own(element, "rung") or f"→ {one.to}"
        exits = _own(element, "exit") or None
        chart.rungs[place].append(Rung(name, one.to, needs, tuple(spends), tuple(resets), exits))
        chart.why.setdefault(place, _own(element, "why"))

    def _guard(self, node: ast.expr) -> Guard:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return all_of(map(self._guard, values))
            case ast.BoolOp(values=values):
                return any_of(map(self._guard, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self._guard(operand)
            case ast.Constant(value=bool(value)):
                return all_of(()) if value else any_of(())
            case ast.Compare() if (found := _read_comparison(node)) and found[0] in self.chart.counters:
                name, below, most = found
                atom = self._atom(name, most)
                return atom if below else ~atom
        self.chart.has_more(f"the condition {ast.unparse(node)[:60]}")
        return all_of(())

    def _atom(self, variable: str, most: str | int) -> Below:
        counter = self.chart.counters[variable]
        if isinstance(most, str):
            limit = self.names.get(most, most)
            if limit not in self.chart.limits:
                self.chart.has_more(f"the limit {most} is not a whole number of the data model")
        elif counter.flag and most == 1:
            limit = counter.name
        else:
            alone = len(self.literals[variable]) == 1 and counter.name not in self.names.values()
            limit = counter.name if alone else f"{counter.name}_{most}"
            self.chart.limits[limit] = most
        return self.wordings.get((counter.name, limit)) or left(counter.name, limit)


def _read_comparison(node: ast.Compare) -> tuple[str, bool, str | int] | None:
    """Return a comparison as (variable, is it ``<``, not ``>=``, variable or number); else ``None``."""
    if len(node.ops) != 1:
        return None
    one, sign, other = node.left, type(node.ops[0]), node.comparators[0]
    if isinstance(one, ast.Constant) or (isinstance(other, ast.Name) and sign in (ast.Gt, ast.LtE)):
        one, sign, other = other, _FLIPPED.get(sign, sign), one
    if not isinstance(one, ast.Name) or sign not in _FLIPPED:
        return None
    if isinstance(other, ast.Name) and sign in (ast.Lt, ast.GtE):
        return one.id, sign is ast.Lt, other.id
    if isinstance(other, ast.Constant) and type(other.value) is int and other.value >= 0:
        return one.id, sign in (ast.Lt, ast.LtE), other.value + (sign in (ast.LtE, ast.Gt))
    return None
