"""Check a certificate of a transition table, without any code of the engine that wrote it.

    python -I check_certificate.py CERTIFICATE.json TABLE.json

The table is the output of ``fsm-agent diagram --format json``, the certificate that of ``fsm-agent verify
--certificate``. One line says "proved" or what does not hold; exit code 0, 1, or 2 for wrong use. Believe
this file, Python, and that the engine runs the table as written: in a state, on an event, it takes the first
rung of the ladder whose guard holds, then resets and adds 1 as the rung says. Nothing else changes a counter.
Limits are symbols: all claims hold for every configuration, except for bounds, which name their limits. Each
claim follows from local conditions, one for each row in each place:

* One row is open. A guard is a truth table over the comparisons "counter < limit" of its line and of the
  properties. The order of a ladder makes its rungs exclude each other; together they must cover all
  combinations, and none is empty.
* Places. A place is a state with the flags (counters of 0 or 1) that are set. The first listed place is the
  start, and each row that can be open in a listed place leads to a listed one: a turn never leaves the list.
* Every turn ends. Each place has a measure, a list of numbers and of sets of counters; a set counts the
  units its counters have left. Each move makes the list smaller, compared from the left: by a smaller number,
  or by spending a counter of the set that is below a limit. Before that, numbers are equal and no counter of
  a set is reset. Entries are not negative and lists are finite, so every turn ends. This is shown
  again with the caps taken away. Nothing is stuck: states but the last have lines, and one row is open.
* No counter passes its maximum: a row that spends a counter finds it below a limit.
* Properties. A property is a small automaton. The listed (place, memory) pairs hold the start, each move
  leads to a listed pair, and none breaks the property. "At most LIMIT moves" names a counter that each such
  move spends below LIMIT; memory is then 0: none was made, 1: the counter is at least their number, 2: it was
  reset. A property that is known not to hold has a run that breaks it.
* Promises are like properties, of a value declared beside the table; the certificate repeats the declaration.
* Bounds. How often a run takes each row in each place are unknown numbers. They keep linear laws: a place is
  left at most as often as it is entered; between two resets of a counter, a region takes the rows that spend
  it below a limit at most that often; a counter must be spent before a row finds it used up and resets it.
  The multipliers add up laws to "visits <= bound" (weak duality). A run shows how much is reached.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from functools import reduce
from itertools import product
from operator import and_, or_
from types import SimpleNamespace
from typing import Any

MOST_BYTES, MOST_BUDGETS, MOST_STEPS = 2_000_000, 12, 600_000
JOINS = {"all": (and_, 1), "every": (and_, 1), "any": (or_, 0), "some": (or_, 0)}
WATCHED = ("moves", "until", "after", "since")


class Refused(Exception):
    """Raised for a claim that does not hold."""


def need(holds, what):
    """Refuse the certificate unless this holds."""
    if not holds:
        raise Refused(what)


def truth(form, holds, every, row=None):
    """Return a guard, or moves of a property, as bits: one for each combination of comparisons, all of them
    set in ``every``. ``holds`` maps a comparison to those in which it holds; ``row`` is the row of the
    move."""
    if form is None:
        return every
    if "left" in form:
        return holds[form["left"], form["limit"]]
    if "not" in form:
        return every & ~truth(form["not"], holds, every, row)
    if "where" in form:
        return truth(form["where"], holds, every)
    for name, (join, start) in JOINS.items():
        if name in form:
            return reduce(join, (truth(part, holds, every, row) for part in form[name]), every * start)
    value = getattr(row, form["field"])
    return every * any(name in form["names"] for name in (value if isinstance(value, list) else [value]))


def atoms(form):
    """Return the comparisons (counter, limit) anywhere in a piece of JSON."""
    if isinstance(form, dict) and "left" in form:
        return {(form["left"], form["limit"])}
    parts = form.values() if isinstance(form, dict) else form if isinstance(form, list) else ()
    return {atom for part in parts for atom in atoms(part)}


class Table:
    """The lines of a table, with their rows and the truth tables of their comparisons (``true``)."""

    def __init__(self, form):
        self.states, self.final, self.left = form["states"], form["final"], MOST_STEPS
        self.lines, self.of_state = {}, {state: [] for state in self.states}
        self.asked = atoms(form.get("properties", []))
        self.flags = {counter["name"] for counter in form["counters"] if counter["flag"]}
        self.caps = {counter["name"] for counter in form["counters"] if counter["cap"]}
        for line in form["lines"]:
            self.add(line["state"], line["event"], line["ladder"], line["resets"])
        for macro in form["macros"]:
            for state in (state for state in self.states if state in macro["exits"]):
                exit_rung = {"rung": "", "to": self.final, "exit": macro["exits"][state]}
                self.add(state, macro["event"], [exit_rung], [])
        self.rows = [row for line in self.lines.values() for row in line.rows]
        rows = [(row["id"], row["dest"], row["spends"], row["resets"]) for row in form["rows"]]
        same = rows == [(row.id, row.dest, row.spends, row.resets) for row in self.rows]
        need(same, "the rows are not those of the lines")
        stuck = {*self.states} - {state for state, _ in self.lines} - {self.final}
        need(not stuck, f"{', '.join(sorted(stuck))}: stuck, no line leads on")

    def add(self, state, event, ladder, resets):
        """Add a line: its rungs as rows, each with the cases in which it is taken."""
        name, budgets, passed = f"{state}.{event}", sorted(atoms(ladder) | self.asked), 0
        need((state, event) not in self.lines, f"{name}: two lines")
        need(len(budgets) <= MOST_BUDGETS, f"{name}: tests too many budgets")
        every = (1 << (1 << len(budgets))) - 1  # bit r is the case: comparison i holds if bit i of r is set
        true = {atom: every ^ every // ((1 << (1 << i)) + 1) for i, atom in enumerate(budgets)}
        line = SimpleNamespace(rows=[], true=true, every=every)
        for number, rung in enumerate(ladder, 1):
            self.steps(1)
            row = SimpleNamespace(source=state, event=event, dest=rung["to"], rung=rung["rung"], line=line)
            row.id, row.exit = f"{name}/{number}" if len(ladder) > 1 else name, rung.get("exit")
            row.spends = rung.get("spends", [])
            row.resets = [*dict.fromkeys([*([] if row.exit else resets), *rung.get("resets", [])])]
            row.open = truth(rung.get("needs"), true, every) & ~passed
            need(row.open, f"{row.id}: can never be taken")
            passed |= row.open
            line.rows.append(row)
        need(passed == every, f"{name}: there are budgets for which no row is open")
        self.lines[state, event] = line
        self.of_state[state].append(line)

    def steps(self, count):
        """Count steps of work against the limit of one check."""
        self.left -= count
        need(self.left >= 0, "too large to check")


class Graph:
    """The places of a certificate and the moves between them; ``ignored`` are the counters taken away."""

    def __init__(self, table, part, ignored):
        self.table, self.ignored = table, ignored
        self.places = [(state, frozenset(flags)) for state, flags in part["places"]]
        number = {place: at for at, place in enumerate(self.places)}
        one = len(number) == len(self.places) == len(part["measures"])
        need(one, "the number of measures and places differs")
        need(self.places[0] == (table.states[0], frozenset()), "the first place is not the start")
        self.leaving = [[] for _ in self.places]
        for at, (state, flags) in enumerate(self.places):
            for line in table.of_state[state]:
                here = reduce(and_, (self.known(line, atom, flags) for atom in line.true), line.every)
                for row in line.rows:
                    table.steps(1)
                    if row.open & here:
                        place = row.dest, (flags - {*row.resets}) | (table.flags & {*row.spends})
                        need(place in number, f"{row.id}: leads to a place that is not listed")
                        self.add(at, number[place], row, row.open & here)
        self.edges = [edge for edges in self.leaving for edge in edges]
        entered = {0, *(edge.dest for edge in self.edges if edge.source < edge.dest)}
        need(len(entered) == len(self.places), "no earlier place leads to one of the places")
        for edge in self.edges:
            before, after = (part["measures"][at] for at in (edge.source, edge.dest))
            falls = edge.row.dest == table.final or self.smaller(edge, before, after)
            need(falls, f"{edge.row.id}: may repeat forever, the measure does not fall")

    def known(self, line, atom, flags):
        """Return the combinations that are possible for a comparison in a place with these flags."""
        flag = atom[0] == atom[1] and atom[0] in self.table.flags
        if atom[0] in self.ignored or (flag and atom[0] not in flags):
            return line.true[atom]
        return line.every & ~line.true[atom] if flag else line.every

    def add(self, source, dest, row, open_):
        """Add a row in one place, with the comparisons that are certainly true or false before it."""
        edge = SimpleNamespace(source=source, dest=dest, row=row, open=open_)
        edge.spends, edge.resets = {*row.spends} - self.ignored, {*row.resets} - self.ignored
        edge.below = {atom for atom, true in row.line.true.items() if not open_ & ~true}
        edge.used_up = {atom for atom, true in row.line.true.items() if not open_ & true}
        self.leaving[source].append(edge)

    def smaller(self, edge, before, after):
        """Return whether the measure falls with this edge, compared from the left."""
        for old, new in zip(before, after, strict=False):
            if type(old) is int and type(new) is int and old != new:
                return 0 <= new < old
            if old != new or (type(old) is list and edge.resets & {*old}):
                return False
            if type(old) is list and any(c in old and c in edge.spends for c, _ in edge.below):
                return True
        return False


def check_counters(table, graph):
    """Check that no row spends a counter untested and that each row is in use; then each state is, since it
    has a line."""
    for edge in graph.edges:
        spends, flags = {*edge.row.spends}, graph.places[edge.source][1]
        once = len(spends) == len(edge.row.spends) and not spends & {*edge.row.resets}
        need(once, f"{edge.row.id}: spends a counter twice, or one that it resets")
        bare = spends & flags | spends - table.flags - {counter for counter, _ in edge.below}
        need(not bare, f"{edge.row.id}: spends {', '.join(sorted(bare))} without testing it")
    unused = {row.id for row in table.rows} - {edge.row.id for edge in graph.edges}
    need(not unused, f"{', '.join(sorted(unused))}: never open where the state can be reached")


def remember(claim, memory, seen, ends, pays, times):
    """Return the memory of a property after a move, or ``None`` when the move breaks it."""
    if claim["kind"] == "NeverProperty":
        forbidden, lifted, imposed = seen
        return None if memory and forbidden else 1 if imposed else 0 if lifted else memory
    if claim["kind"] == "EventuallyProperty":
        memory = 1 if seen[1] else 0 if seen[0] else memory
        return None if ends and memory else memory
    counted, again = seen
    if pays is None:
        memory = (0 if again else memory) + counted
        return None if memory > times else memory
    spends, resets = pays
    if counted:
        return 1 if spends and (memory != 2 or again) else None
    return 0 if again else 2 if resets and memory else memory


def cases(claim, row, holds, every, possible):
    """Yield the kinds of moves in a property that a move by ``row`` can be, as one value per kind, for all
    combinations in ``possible``."""
    kinds = [truth(claim[name], holds, every, row) for name in WATCHED if name in claim]
    for values in product((1, 0), repeat=len(kinds)):
        both = (kind if value else ~kind for value, kind in zip(values, kinds, strict=True))
        if reduce(and_, both, possible):
            yield values


def check_property(graph, claim, proof):
    """Check that the listed nodes contain the start and are closed under moves; none may break the claim."""
    need(not claim["known"], "it is declared as known not to hold, and proved")
    counter, times, final = proof["counter"], claim.get("times", 0), graph.table.final
    need(counter or type(times) is int, "no counter pays for it")
    nodes = {(place, memory) for place, memory in proof["nodes"]}
    need((0, int(claim.get("begins", False))) in nodes, "the start is not listed")
    for place, memory in nodes:
        for edge in graph.leaving[place]:
            graph.table.steps(3 + len(str(claim)) // 100)
            pays = (counter in edge.spends and (counter, times) in edge.below, counter in edge.resets)
            row, ends = edge.row, edge.row.dest == final
            for found in cases(claim, row, row.line.true, row.line.every, edge.open):
                after = remember(claim, memory, found, ends, pays if counter else None, times)
                need(after is not None, f"{row.id} may break it")
                listed = ends or (edge.dest, after) in nodes
                need(listed, f"{row.id} leads to a node that is not listed")


def replay(table, run, limits, ignored=frozenset()):
    """Take the rows of a run, by number; yield each with the comparisons that hold before it."""
    counts, state = {}, table.states[0]
    table.steps(2 * len(run))
    for number in run:
        row = table.rows[number]
        now = {(c, name): int(c in ignored or counts.get(c, 0) < limits[name]) for c, name in row.line.true}
        combination = sum(holds << place for place, holds in enumerate(now.values()))
        need(row.source == state and row.open >> combination & 1, f"a run cannot take {row.id} there")
        yield row, now
        counts.update(dict.fromkeys(row.resets, 0))
        counts.update({counter: counts.get(counter, 0) + 1 for counter in row.spends})
        state = row.dest
    need(state == table.final, "a run does not come to the end of the turn")


def check_counterexample(graph, claim, proof):
    """Check that the run is one of the table, and breaks a property that is known not to hold."""
    need(claim["known"], "it is not proved, and not declared as known")
    table, memory, times = graph.table, int(claim.get("begins", False)), claim.get("times")
    limits = {**proof["limits"], **dict.fromkeys(table.flags, 1)}
    for row, holds in replay(table, proof["run"], limits):
        table.steps(1 + len(str(claim)) // 200)
        most, found = limits[times] if type(times) is str else times, next(cases(claim, row, holds, 1, 1))
        memory = remember(claim, memory, found, row.dest == table.final, None, most)
        if memory is None:
            return
    raise Refused("the run does not break it")


def law(graph, limits, kind, which):
    """Return the coefficient of each edge in one law, and the upper bound of their sum."""
    if kind == "place":
        return [(edge.source == which) - (edge.dest == which) for edge in graph.edges], int(which == 0)
    counter, limit, *region = which
    need(type(limit) is int and limit >= 0, "the limit of a law is not one")
    factors, inside = [], {*region[0]} if kind == "stretch" else {}
    for edge in graph.edges:
        spends, resets = counter in edge.spends, counter in edge.resets
        if kind == "stretch":
            tests = any(c == counter and limits[name] <= limit for c, name in edge.below)
            begins = edge.dest in inside and (edge.source not in inside or resets)
            factors.append((edge.source in inside and spends and tests) - limit * begins)
        else:
            used_up = any(c == counter and limits[name] >= limit for c, name in edge.used_up)
            factors.append(limit * (used_up and resets) - spends)
    return factors, limit * (0 in inside)


def check_bound(graph, limits, bound):
    """Check that the multipliers pay for each row in each place at least what it adds to the count."""
    table, states, spends = graph.table, bound["states"], bound["spends"]
    start, total = table.states[0] in states, Fraction(table.states[0] in states)
    paid = [Fraction()] * len(graph.edges)

    def gain(row):
        return spends in row.spends if spends else not states or row.dest in states

    for text, kind, name in bound["multipliers"]:
        price = Fraction(text) if len(text) < 40 and "e" not in text.lower() else 0
        need(price > 0, "a multiplier is not positive")
        table.steps(2 * len(graph.edges))
        factors, most = law(graph, limits, kind, name)
        paid = [sum_ + price * factor if factor else sum_ for sum_, factor in zip(paid, factors, strict=True)]
        total += price * most
    for edge, sum_ in zip(graph.edges, paid, strict=True):
        need(sum_ >= gain(edge.row), f"the multipliers do not pay for {edge.row.id}")
    need(bound["at most"] == int(total), f"the multipliers prove {int(total):,}")
    if bound["run"]:
        reached = start + sum(gain(row) for row, _ in replay(table, bound["run"], limits, graph.ignored))
        need(reached == bound["reached"], f"the run has {reached:,}")


def check_promises(graph, form):
    """Check that the listed (place, words of the row that led there, value) are closed, and each demand
    holds."""
    words, listed = {*form["words"]}, {(place, tuple(came), value) for place, came, value in form["listed"]}
    visits = {(state, event, tuple(came)): dict(does) for state, event, came, does in form["visits"]}
    demands = [(state, what, {*good}) for state, what, good in form["demands"]]
    need(form["starts"] and {(0, (), value) for value in form["starts"]} <= listed, "a start is not listed")
    for place, came, value in listed:
        state = graph.places[place][0] if place >= 0 else ""
        graph.table.steps(len(demands))
        for what in (what for where, what, good in demands if where == state and value not in good):
            raise Refused(f"in {state or 'the end'} it may not hold that {what}")
        moves = [(edge.row.event, edge.dest, edge.row) for edge in graph.leaving[place]] if place >= 0 else []
        for event, dest, row in [*moves, *[("", -1, None)] * (state == graph.table.final)]:
            now = tuple(sorted(words & {*row.spends, f"{state}.{event}", row.exit})) if row else came
            leads = {(dest, now, after) for after in visits[state, event, came][value]}
            graph.table.steps(1 + len(leads))
            need(leads <= listed, f"{state}.{event} leads to a value that is not listed")


def check(form: Any, certificate: Any) -> str:
    """Check all claims about one table and the tables that its states run; return what is proved."""
    need(certificate["certificate"] == 1, "this is not a certificate of version 1")
    same = all(certificate[key] == form[key] for key in ("name", "digest") if key in form)
    need(same, "the certificate is of another table")
    table, claims, promises = Table(form), form.get("properties", []), certificate["promises"]
    graph = Graph(table, certificate["with caps"], frozenset())
    free = Graph(table, certificate["without caps"], table.caps)
    check_counters(table, graph)
    same = [claim["says"] for claim in claims] == [proof["says"] for proof in certificate["properties"]]
    need(same, "the properties are not those of the table")
    for claim, proof in zip(claims, certificate["properties"], strict=True):
        about(claim["says"], check_counterexample if "run" in proof else check_property, graph, claim, proof)
    limits = {**(certificate["limits"] or {}), **dict.fromkeys(table.flags, 1)}
    for bound in certificate["bounds"]:
        name = f"bound on {bound['spends'] or ' and '.join(bound['states']) or 'moves'}"
        about(name, check_bound, graph if bound["caps"] else free, limits, bound)
    if promises:
        about(promises["name"], check_promises, graph, promises)
    summary = f"{form['name']}: {len(table.rows)} rows in {len(graph.places)} places, every turn ends"
    summary += f", {len(claims)} properties, {len(certificate['bounds'])} bounds"
    summary += f", {promises['name']} (as the certificate declares visits)" if promises else ""
    inner = {one["name"]: one for runs in form.get("inner", {}).values() for one in runs["tables"]}
    need({*inner} == {one["name"] for one in certificate["inner"]}, "an inner table has no certificate")
    for state, runs in form.get("inner", {}).items():
        need(all(one == inner[one["name"]] for one in runs["tables"]), "two inner tables have one name")
        exits = {row["exit"] for one in runs["tables"] for row in one["rows"]} - {None}
        need(all((state, name) in table.lines for name in exits), f"{state} has no line for an exit")
    parts = (about(one["name"], check, inner[one["name"]], one) for one in certificate["inner"])
    return "; ".join([summary, *parts])


def about(name, check, *what):
    """Run a check, and prefix its refusal with ``name``."""
    try:
        return check(*what)
    except Refused as refusal:
        raise Refused(f"{name}: {refusal}") from None


def read(path):
    """Read JSON without fractions or NaN, of at most two million bytes."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    need(len(data) <= MOST_BYTES, f"{path}: more than {MOST_BYTES:,} bytes")

    def fraction(text):
        raise Refused(f"{path}: {text[:20]} is not a whole number")

    return json.loads(data, parse_float=fraction, parse_constant=fraction)


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 proved, 1 refused, 2 wrong use."""
    if len(arguments) != 2:
        print("usage: python -I check_certificate.py CERTIFICATE.json TABLE.json", file=sys.stderr)
        return 2
    try:
        print("proved:", check(*map(read, reversed(arguments))))
        return 0
    except Refused as refusal:
        print(f"refused: {refusal}")
    except OSError as error:
        print(f"refused: {error.filename} cannot be read: {error.strerror}")
    except Exception as error:  # a malformed file may lead to any exception
        print(f"refused: damaged, {type(error).__name__}: {str(error)[:100]!r}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
