"""Tables in the language of another state machine engine: the JSON of XState, and parts shared with SCXML.

Both have decision lists: of the transitions of a state for an event, they take the first with an open guard.
So a rung becomes a transition, a guard an expression over counters and limits, and a row that resets and
spends becomes assignments. ``tests/peers/test_statecharts.py`` drives the engines and compares rows.

First the shared parts: names that an engine accepts, limits with a value, and the way from transitions back
to a table."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fsm_agent.diagram.table_json import guard_form, guard_from
from fsm_agent.errors import ConfigError, TableError
from fsm_agent.fsm.table import Below, Counter, Line, Row, Rung, Table

LIMIT = 1
"""The value of a limit without a known one."""
LONGEST = 2_000_000
"""Maximum characters of an input file."""


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """Map names to distinct identifiers of ASCII letters, digits, and ``_``; keep valid names."""
    names = list(names)
    taken = {name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)}
    found = {}
    for name in names:
        free = name
        if name not in taken:
            plain = re.sub(r"\W", "_", name, flags=re.ASCII)
            plain = plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"
            free = next(one for one in _number_names(plain) if one not in taken)
        taken.add(free)
        found[name] = free
    return found


def _number_names(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def limits_of(table: Table, limits: Mapping[str, int] | None) -> dict[str, int]:
    """Return a value for each limit of the table: from ``limits``, else its default, else 1. Raises
    ``ConfigError`` for an unknown limit."""
    flags = {counter.name for counter in table.counters if counter.flag}
    names = dict.fromkeys(atom.limit for atom in atoms_of(table) if atom.limit not in flags)
    given = limits or {}
    if unknown := sorted(set(given) - names.keys()):
        raise ConfigError("the table has no such limit", unknown[0], ", ".join(names))
    known = {**(table.default_limits() if table.default_limits else {}), **given}
    return {name: known.get(name, LIMIT) for name in names}


def atoms_of(table: Table) -> Iterable[Below]:
    """Return each comparison in the decision lists, once. A row has fewer: those decided by earlier rungs are
    omitted."""
    rungs = (rung for line in table.lines for rung in line.ladder)
    return dict.fromkeys(atom for rung in rungs for atom in rung.needs.atoms())


def steps(table: Table) -> Iterator[tuple[Row, Rung, bool]]:
    """Yield each row with its rung, and whether it comes from a macro, in the order of states and decision
    lists."""
    lines = {(line.source, line.event): line for line in table.lines}
    for state in table.states:
        for event in table.events(state):
            rows = table.by_event[state, event]
            line = lines.get((state, event))
            rungs = line.ladder if line else [Rung(row.rung, row.dest, exit=row.exit) for row in rows]
            yield from ((row, rung, line is None) for row, rung in zip(rows, rungs, strict=True))


@dataclass
class Chart:
    """A parsed machine: states and final states in order, rungs by (state, event), and features that a table
    lacks. ``finals`` are exit reasons by final state."""

    name: str
    origin: str
    states: list[str] = field(default_factory=list)
    finals: dict[str, str] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    rungs: dict[tuple[str, str], list[Rung]] = field(default_factory=lambda: defaultdict(list))
    why: dict[tuple[str, str], str] = field(default_factory=dict)
    macros: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    more: dict[str, None] = field(default_factory=dict)

    def has_more(self, what: str) -> None:
        """Record a feature that a table cannot express."""
        self.more[what] = None

    def table(self, initial: str) -> Table:
        """Build the table. Raises ``ConfigError`` that lists all features that a table lacks."""
        if self.more:
            raise ConfigError(f"the machine has what a table does not: {', '.join(self.more)}", self.origin)
        if not self.finals:
            raise ConfigError("the machine has no final state", self.origin, "one that every turn ends in")
        final = next(iter(self.finals))
        if len(self.finals) > 1:
            final = next(one for one in _number_names("Final") if one not in self.states)
        working = [initial, *(state for state in self.states if state != initial)]
        lines = [
            Line(
                source,
                event,
                tuple(self._ending(rung, final) for rung in ladder),
                why=self.why[source, event],
            )
            for source, event in sorted(self.rungs, key=lambda place: working.index(place[0]))
            for ladder in (self.rungs[source, event],)
        ]
        limits = dict(self.limits)
        try:
            return Table(
                self.name, (*working, final), final, tuple(self.counters.values()), tuple(lines),
                tuple(self.macros.items()), default_limits=lambda: limits,
            )  # fmt: skip
        except TableError as error:
            raise ConfigError(f"the table is wrong ({error})", self.origin) from None

    def _ending(self, rung: Rung, final: str) -> Rung:
        if rung.to not in self.finals:
            return replace(rung, exit=None)
        return replace(rung, to=final, exit=rung.exit or self.finals[rung.to])


# ----------------------------------------------------------------------------------------------------
# XState (https://stately.ai/docs): a table as the JSON of a machine, and a flat machine as a table.
#
# JSON holds no functions. So a guard is its text, with the guard as parameters; the actions ``reset``,
# ``spend`` and ``take`` have their counters and their row as parameters; and twenty lines of JavaScript, the
# same for each table, execute them (docs/diagrams.md).


def as_xstate(table: Table, limits: Mapping[str, int] | None = None) -> str:
    """Return the JSON of a table. ``limits``: values by name; by default those of the table, else 1.

    A state that runs other tables has the events of their ends, and does not run them. Raises ``ConfigError``
    for a limit that the table does not have."""
    counters = table.counters
    flags = {counter.name: 1 for counter in counters if counter.flag}
    names = identifiers(table.states), identifiers(dict.fromkeys(event for _, event in table.by_event))
    states: dict[str, dict[str, Any]] = {}
    for state in table.states:
        kind: dict[str, Any] = {"type": "final"} if state == table.final else {"on": {}}
        states[names[0][state]] = kind | _rename(state, names[0][state])
    for row, rung, macro in steps(table):
        on = states[names[0][row.source]]["on"]
        on.setdefault(names[1][row.event], []).append(_transition(row, rung, macro, names[0], names[1]))
    machine = {
        "id": table.name,
        "initial": names[0][table.initial],
        "context": {
            "count": {counter.name: 0 for counter in counters},
            "limit": {**flags, **limits_of(table, limits)},
            "row": None,
            "exit": None,
        },
        "meta": {"counters": [{"name": one.name, "flag": one.flag, "cap": one.cap} for one in counters]},
        "states": states,
    }
    return json.dumps(machine, ensure_ascii=False, indent=1) + "\n"


def _transition(
    row: Row, rung: Rung, macro: bool, states: Mapping[str, str], events: Mapping[str, str]
) -> dict[str, Any]:
    guard = guard_form(rung.needs)
    actions = [{"type": "reset", "params": {"counters": list(row.resets)}}] if row.resets else []
    actions += [{"type": "spend", "params": {"counters": list(row.spends)}}] if row.spends else []
    taken = {"row": row.id, **({"exit": row.exit} if row.exit else {})}
    return {
        "target": states[row.dest],
        **({"guard": {"type": rung.needs.label, "params": guard}} if guard is not None else {}),
        "actions": [*actions, {"type": "take", "params": taken}],
        "description": row.why,
        "meta": {
            "rung": rung.name,
            **_rename(row.event, events[row.event]).get("meta", {}),
            **({"macro": True} if macro else {}),
        },
    }


def _rename(name: str, identifier: str) -> dict[str, Any]:
    return {} if name == identifier else {"meta": {"name": name}}


def from_xstate(text: str, origin: str = "XState") -> Table:
    """Return the table of a machine in JSON. Each of its final states is an exit reason.

    Raises ``ConfigError`` for an invalid machine, and for features that a table lacks, all listed in one
    line: nested or parallel states, history, invoked actors, guards and actions in code, and so on."""
    try:
        if len(text) > LONGEST:
            raise ValueError(f"more than {LONGEST:,} characters")
        machine = json.loads(text)
        if not isinstance(machine, dict) or not isinstance(machine.get("states"), dict):
            raise ValueError("an object with states is expected")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is not an XState machine ({error})", origin) from None
    try:
        return _Reader(machine, origin).table()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"this is not an XState machine ({what})", origin) from None


_MACHINE = {"id", "initial", "context", "meta", "states", "description", "version", "$schema", "type"}
_STATE = {"on", "type", "meta", "description", "id", "tags"}
_TRANSITION = {"target", "guard", "actions", "description", "meta", "reenter"}


class _Reader:
    def __init__(self, machine: dict[str, Any], origin: str) -> None:
        self.machine, self.chart = machine, Chart(str(machine.get("id", "machine")), origin)
        self.names = {key: str(_meta(state).get("name", key)) for key, state in machine["states"].items()}

    def table(self) -> Table:
        machine, chart = self.machine, self.chart
        self._only(machine, _MACHINE, "")
        self._counters()
        for key, state in machine["states"].items():
            if state.get("type") == "final":
                chart.finals[self.names[key]] = self.names[key]
            else:
                chart.states.append(self.names[key])
        for key, state in machine["states"].items():
            self._state(self.names[key], state)
        initial = machine["initial"]
        if initial not in self.names:
            raise ConfigError("there is no such initial state", initial, ", ".join(self.names))
        return chart.table(self.names[initial])

    def _only(self, value: Mapping[str, Any], known: set[str], where: str) -> None:
        for name in value:
            if name not in known:
                self.chart.has_more(f"{name}{where}")
        if value.get("type") not in (None, "atomic", "compound", "final"):
            self.chart.has_more(f"type {value['type']}{where}")

    def _counters(self) -> None:
        context = self.machine.get("context") or {}
        counts, limits = context.get("count", {}), context.get("limit", {})
        kinds = {one["name"]: one for one in _meta(self.machine).get("counters", ())}
        for name in context:
            if name not in ("count", "limit", "row", "exit"):
                self.chart.has_more(f"the context {name}")
        for name, value in counts.items():
            kind = kinds.get(name, {})
            self.chart.counters[name] = Counter(name, bool(kind.get("flag")), bool(kind.get("cap")))
            if value != 0:
                self.chart.has_more(f"{name} begins at {value}")
        flags = {name for name, counter in self.chart.counters.items() if counter.flag}
        self.chart.limits = {name: int(value) for name, value in limits.items() if name not in flags}

    def _state(self, source: str, state: Mapping[str, Any]) -> None:
        self._only(state, _STATE, f" in {source}")
        for event, written in (state.get("on") or {}).items():
            if "*" in event or event == "" or event.startswith(("xstate.", "done.", "error.")):
                self.chart.has_more(f"the event {event or 'of no name'} in {source}")
            for one in written if isinstance(written, list) else [written]:
                form = {"target": one} if isinstance(one, str) else one
                self._only(form, _TRANSITION, f" in {source}.{event}")
                self._rung(source, event, form)

    def _rung(self, source: str, event: str, form: Mapping[str, Any]) -> None:
        chart, meta, where = self.chart, _meta(form), f"in {source}.{event}"
        place = (source, str(meta.get("name", event)))
        resets, spends, exits = self._actions(form, where)
        if meta.get("macro"):
            chart.macros[place[1]][source] = str(exits)
            return
        guard, target = form.get("guard"), form.get("target")
        if guard is not None and not (isinstance(guard, dict) and isinstance(guard.get("params"), dict)):
            chart.has_more(f"the guard {guard if isinstance(guard, str) else guard.get('type')} {where}")
            guard = None
        if isinstance(target, list) and len(target) != 1:
            chart.has_more(f"several targets {where}")
        (target,) = target[:1] if isinstance(target, list) and target else (target,)
        to = source if target is None else self._state_named(str(target))
        needs = guard_from(guard["params"] if guard else None)
        name = str(meta.get("rung") or f"→ {to}")
        chart.rungs[place].append(Rung(name, to, needs, spends, resets, exits))
        chart.why.setdefault(place, str(form.get("description", "")))

    def _state_named(self, target: str) -> str:
        key = target if target in self.names else target.removeprefix(f"#{self.machine.get('id')}.")
        return self.names.get(key, key)

    def _actions(
        self, form: Mapping[str, Any], where: str
    ) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
        """Return what a transition resets and spends, and its exit reason."""
        done: dict[str, tuple[str, ...]] = {"reset": (), "spend": ()}
        exits: str | None = None
        actions = form.get("actions") or []
        for action in actions if isinstance(actions, list) else [actions]:
            match action:
                case {"type": "reset" | "spend" as kind, "params": {"counters": [*counters]}}:
                    done[kind] = tuple(map(str, counters))
                case {"type": "take", "params": {**taken}}:
                    exits = str(taken["exit"]) if "exit" in taken else None
                case {"type": kind}:
                    self.chart.has_more(f"the action {kind} {where}")
                case _:
                    self.chart.has_more(f"the action {action} {where}")
        return done["reset"], done["spend"], exits


def _meta(value: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = value.get("meta")
    return meta if isinstance(meta, dict) else {}
