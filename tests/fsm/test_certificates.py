"""Certificates of tables: accepted where an independent search agrees, refused when anything in them is
wrong, and never more than a second's work for a file that is meant to hurt."""

from __future__ import annotations

import ast
import copy
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.properties import at_most, enters, eventually, exits, leaves, never, only_if, rung, where
from fsm_agent.fsm.table import Counter, Rung, Table, end, left, lines_of, on
from fsm_agent.fsm.verify import check_certificate
from fsm_agent.fsm.verify.certificate import certificate
from fsm_agent.fsm.verify.check_certificate import Refused, check
from fsm_agent.fsm.verify.properties import judge
from fsm_agent.fsm.verify.reach import endless
from tests.fsm.test_verify_random import random_table, some_limits
from tests.helpers import sample
from tests.helpers.certificates import TABLES, certificate_of, check_files, form_of
from tests.helpers.tables import courier

Json = Any
Mutation = Callable[[random.Random, Json, Json], bool]


@pytest.mark.parametrize("name", TABLES)
def test_the_certificate_of_each_table_of_the_project_is_accepted(name: str, tmp_path: Path) -> None:
    table, limits = TABLES[name]
    said = check_files(tmp_path, certificate_of(table, limits, runs=name != "turn"), form_of(table))
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"proved: {table.name}: {len(table.rows)} rows in ")


@pytest.mark.slow
def test_the_certificate_of_the_turn_with_the_runs_that_reach_its_bounds(tmp_path: Path) -> None:
    table, limits = TABLES["turn"]
    made = json.loads(json.dumps(certificate(table, limits, endless())))
    assert all(bound["run"] for bound in made["bounds"])
    assert sum(bound["at most"] == bound["reached"] for bound in made["bounds"]) >= 4
    assert check_files(tmp_path, made, form_of(table)).returncode == 0


def test_the_checker_needs_nothing_but_python() -> None:
    text = Path(check_certificate.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text)
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {str(module).partition(".")[0] for module in modules} <= {*sys.stdlib_module_names}
    words = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    code = [line for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in words]
    assert len(code) <= 300, "it is to be read aloud"


# An independent search: by cases and sets of counters, on the JSON of the table, with no code of the engine


def holds(guard: Json, atom: Callable[[tuple[str, str]], bool]) -> bool:
    if guard is None:
        return True
    if "left" in guard:
        return atom((guard["left"], guard["limit"]))
    if "not" in guard:
        return not holds(guard["not"], atom)
    parts = (holds(part, atom) for part in guard.get("all", guard.get("any", ())))
    return all(parts) if "all" in guard else any(parts)


def atoms(value: Json) -> set[tuple[str, str]]:
    if isinstance(value, dict) and "left" in value:
        return {(value["left"], value["limit"])}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {atom for part in parts for atom in atoms(part)}


class Brute:
    """All that can be found about a table by trying every combination of budgets."""

    def __init__(self, form: Json) -> None:
        self.form = form
        self.flags = {one["name"] for one in form["counters"] if one["flag"]}
        self.caps = {one["name"] for one in form["counters"] if one["cap"]}
        self.fine = True
        for line in form["lines"]:
            taken = {self.taken(line, dict(case)) for case in self.cases(line)}
            self.fine &= taken == set(range(len(line["ladder"])))
        for caps in (set(), self.caps):
            self.walk(caps)

    def cases(self, line: Json) -> Iterator[tuple[tuple[tuple[str, str], bool], ...]]:
        names = sorted(atoms(line))
        for values in itertools.product((True, False), repeat=len(names)):
            yield tuple(zip(names, values, strict=True))

    def taken(self, line: Json, case: Mapping[tuple[str, str], bool]) -> int | None:
        rungs = enumerate(line["ladder"])
        return next((at for at, rung in rungs if holds(rung.get("needs"), case.__getitem__)), None)

    def walk(self, caps: set[str]) -> None:
        """Places, and edges (source, dest, counters that are spent below a limit, counters reset)."""
        places, edges, used = [(self.form["states"][0], frozenset[str]())], set(), set()
        for state, flags in places:
            for line in (line for line in self.form["lines"] if line["state"] == state):
                found: dict[int, list[dict[tuple[str, str], bool]]] = {}
                for case in map(dict, self.cases(line)):
                    known = {a: True for a in case if a[0] in caps}
                    known |= {
                        a: a[0] not in flags for a in case if a == (a[0], a[0]) and a[0] in self.flags - caps
                    }
                    at = self.taken(line, case)
                    if at is not None and all(case[name] == value for name, value in known.items()):
                        found.setdefault(at, []).append(case)
                for at, cases in found.items():
                    rung = line["ladder"][at]
                    spends = set(rung.get("spends", ())) - caps
                    resets = {*rung.get("resets", ()), *(() if rung.get("exit") else line["resets"])} - caps
                    below = {name for name in cases[0] if all(case[name] for case in cases)}
                    paid = {counter for counter, _ in below} & spends
                    bare = spends - paid - self.flags or spends & flags
                    self.fine &= bool(caps) or not (bare or spends & resets)
                    dest = rung["to"], (flags - resets) | (spends & self.flags)
                    places += [dest] if dest not in places else []
                    used.add((line["state"], line["event"], at))
                    if rung["to"] != self.form["final"]:
                        edges.add(((state, flags), dest, frozenset(paid - self.flags), frozenset(resets)))
        if not caps:
            self.fine &= {state for state, _ in places} == set(self.form["states"])
            self.fine &= {state for state, _, _ in used} == set(self.form["states"]) - {self.form["final"]}
            self.fine &= len(used) == sum(len(line["ladder"]) for line in self.form["lines"])
        self.fine &= not any(self.endless(edges, again) for again in self.sets(edges))

    def sets(self, edges: set[Any]) -> Iterator[set[str]]:
        names = sorted({name for *_, paid, _ in edges for name in paid})
        for count in range(len(names) + 1):
            yield from map(set, itertools.combinations(names, count))

    def endless(self, edges: set[Any], again: set[str]) -> bool:
        """Can a run that spends only counters of ``again``, and resets each of them, last forever?"""
        left = {edge for edge in edges if edge[2] <= again}
        reached = {edge[0]: {edge[0]} for edge in left} | {edge[1]: {edge[1]} for edge in left}
        for _ in reached:
            for source, dest, _, _ in left:
                reached[source] |= reached[dest]
        for source in reached:
            inside = [edge for edge in left if edge[0] in reached[source] and source in reached[edge[0]]]
            inside = [edge for edge in inside if edge[1] in reached[source] and source in reached[edge[1]]]
            if inside and again <= {name for edge in inside for name in edge[3]}:
                return True
        return False


def longest(form: Json, limits: Mapping[str, int], bound: Json) -> int:
    """The most that a turn has of what is bounded, by trying every run."""
    brute = Brute(form)
    ignored = set() if bound["caps"] else brute.caps
    limits = {**limits, **dict.fromkeys(brute.flags, 1)}
    known: dict[Any, int] = {}

    def most(state: str, counts: tuple[tuple[str, int], ...]) -> int:
        if state == form["final"]:
            return 0
        if (state, counts) not in known:
            best, have = 0, dict(counts)
            for line in (line for line in form["lines"] if line["state"] == state):
                case = {a: a[0] in ignored or have.get(a[0], 0) < limits[a[1]] for a in atoms(line)}
                rung = line["ladder"][brute.taken(line, case) or 0]
                after = have | dict.fromkeys(rung.get("resets", ()), 0)
                after |= {} if rung.get("exit") else dict.fromkeys(line["resets"], 0)
                spends = rung.get("spends", ())
                after |= {name: after.get(name, 0) + 1 for name in spends if name not in ignored}
                gain = not bound["states"] or rung["to"] in bound["states"]
                gain = bound["spends"] in spends if bound["spends"] else gain
                best = max(best, gain + most(rung["to"], tuple(sorted(after.items()))))
            known[state, counts] = best
        return known[state, counts]

    return (form["states"][0] in bound["states"]) + most(form["states"][0], ())


def accepted(table: Table, form: Json, limits: Mapping[str, int] | None = None) -> Json:
    """The certificate, if there is one and it is accepted."""
    try:
        made = certificate_of(table, limits)
    except ConfigError:
        return None
    assert check(form, made).startswith(table.name)
    return made


TABLES_AT_RANDOM = sample.sampled_seeds(range(60, 1_060), "certificates")
CHANGED = sample.sampled_seeds(range(150, 2_000), "changed tables")


@pytest.mark.parametrize("seeds", [range(60), pytest.param(TABLES_AT_RANDOM, marks=pytest.mark.slow)])
def test_random_tables_have_a_certificate_just_where_brute_force_finds_no_fault(seeds: range) -> None:
    proved = 0
    for seed in seeds:
        table = random_table(seed)
        form = form_of(table)
        limits = next(some_limits(table, seed, 1))
        made = accepted(table, form, limits)
        assert (made is not None) == Brute(form).fine, table.name
        for bound in made["bounds"] if made else ():
            assert bound["reached"] <= longest(form, limits, bound) <= bound["at most"], (table.name, bound)
        proved += made is not None
    assert proved >= len(seeds) // 40


@pytest.mark.parametrize("seeds", [range(150), pytest.param(CHANGED, marks=pytest.mark.slow)])
def test_a_certificate_does_not_fit_a_table_that_is_not_proved(seeds: range) -> None:
    """The table is changed under the certificate: a spend, a reset, a guard or a rung is another one."""
    made = {name: certificate_of(*TABLES[name]) for name in ("order", "review", "compaction")}
    refused = 0
    for seed in seeds:
        chance = random.Random(seed)
        name = chance.choice(sorted(made))
        form = form_of(TABLES[name][0])
        changed(chance, form)
        try:
            check(form, made[name])
        except (Refused, LookupError):
            refused += 1
        else:
            assert Brute(form).fine, seed
    assert refused >= len(seeds) // 2


def changed(chance: random.Random, form: Json) -> None:
    """Change one rung, and the row that is made of it."""
    line = chance.choice([line for line in form["lines"] if len(line["ladder"]) > 1])
    at = chance.randrange(len(line["ladder"]))
    rung, counter = line["ladder"][at], chance.choice(form["counters"])["name"]
    row = next(row for row in form["rows"] if row["id"] == rung["row"])
    kind = chance.choice(("spends", "resets", "needs", "to"))
    if kind == "needs":
        rung.pop("needs", None)
    elif kind == "to" and not rung.get("exit"):
        rung["to"] = row["dest"] = chance.choice([one for one in form["states"] if one != form["final"]])
    else:
        kind = "resets" if kind == "resets" else "spends"
        rung[kind] = [] if rung.get(kind) else [counter]
        line_resets = [] if rung.get("exit") else line["resets"]
        row[kind] = list(dict.fromkeys([*(line_resets if kind == "resets" else ()), *rung[kind]]))


CLAIMS = (
    never("A parcel is not driven twice in a row.", enters("Drive"), after=enters("Drive"),
          until=leaves("Drive")),
    only_if("It rings only after a drive.", leaves("Ring"), leaves("Drive")),
    eventually("It is packed first.", leaves("Pack")),
    eventually("It is delivered.", exits("delivered"), known="the house may be empty"),
    at_most("It comes to an end once.", 1, exits("delivered", "lost", "returned")),
    at_most("It is driven again as often as there are tries.", "tries", rung("drive again")),
    at_most("It rings as often as there are rings, each time.", "rings", rung("ring"),
            since=rung("drive again")),
    never("It goes back only without a ring left.", exits("returned") & where(left("rings"))),
)  # fmt: skip


def test_each_kind_of_property_has_a_witness() -> None:
    table = replace(courier(), properties=CLAIMS)
    form, made = form_of(table), certificate_of(table)
    assert "8 properties" in check(form, made)
    assert [sorted(proof)[0] for proof in made["properties"]] == [
        *["counter"] * 3,
        "limits",
        *["counter"] * 4,
    ]
    assert [proof.get("counter") for proof in made["properties"][4:7]] == ["", "tries", "rings"]


@pytest.mark.parametrize(
    ("at", "changes"),
    [
        (0, {"until": {"some": []}}), (1, {"moves": {"field": "source", "names": ["Pack"]}}),
        (2, {"moves": {"field": "source", "names": ["Ring"]}}), (3, {"known": ""}),
        (3, {"moves": {"field": "source", "names": ["Pack"]}}), (4, {"times": 0}), (5, {"times": "rings"}),
        (5, {"moves": {"field": "dest", "names": ["Drive"]}}), (6, {"kind": "EventuallyProperty"}),
        (7, {"moves": {"field": "exit", "names": ["returned"]}}),
        (7, {"moves": {"where": {"not": {"left": "tries", "limit": "tries"}}}}),
    ],
)  # fmt: skip
def test_a_witness_does_not_fit_a_claim_that_is_false(at: int, changes: Json) -> None:
    table = replace(courier(), properties=CLAIMS)
    form, made = form_of(table), certificate_of(table)
    form["properties"][at].update(changes)
    assert is_refused(form, made)


def test_a_property_that_only_a_search_of_all_runs_proves_has_no_certificate() -> None:
    """Two tries at most: a fact of the guards and counts together, which no place of the graph shows."""
    again = Rung("again", "Ask", left("tries"), ("tries",))
    last = Rung("last", "Ask", left("lasts"), ("lasts",))
    lines = lines_of(
        {
            "Ask": [
                on("bad", again, last, end("gave_up", "Done"), why=""),
                on("good", end("ok", "Done"), why=""),
            ]
        }
    )
    claim = never("No try after a last one.", rung("again"), after=rung("last"))
    counters = (Counter("tries"), Counter("lasts"))
    table = Table("asking", ("Ask", "Done"), "Done", counters, lines, properties=(claim,))
    assert judge(table)[0].verdict == "proved"
    with pytest.raises(ConfigError, match="there is no certificate; given: No try after a last one"):
        certificate(table)


# Mutations: each makes a certificate wrong by construction, or says that it cannot. Leaving out promises or
# bounds is not a mutation: such a certificate claims less, and what it claims is true.


def parts_of(chance: random.Random, made: Json, form: Json) -> tuple[Json, list[int]]:
    """The places with the caps or without, and those after the first that are not the end."""
    part = made[chance.choice(("with caps", "without caps"))]
    return part, [at for at, (state, _) in enumerate(part["places"]) if at and state != form["final"]]


def drop_place(chance: random.Random, made: Json, form: Json) -> bool:
    part, _ = parts_of(chance, made, form)
    at = chance.randrange(len(part["places"]))
    del part["places"][at], part["measures"][at]
    return True


def add_place(chance: random.Random, made: Json, form: Json) -> bool:
    part, _ = parts_of(chance, made, form)
    again = chance.choice(part["places"])
    part["places"].append(chance.choice([again, [form["final"], ["no flag"]]]))
    part["measures"].append([0])
    return True


def raise_measure(chance: random.Random, made: Json, form: Json) -> bool:
    part, places = parts_of(chance, made, form)
    if places:  # an earlier place leads to each of them
        part["measures"][chance.choice(places)][0] = 10**6
    return bool(places)


def count_nothing(chance: random.Random, made: Json, form: Json) -> bool:
    part, _ = parts_of(chance, made, form)
    loops = any(isinstance(entry, list) for measure in part["measures"] for entry in measure)
    part["measures"] = [[entry for entry in one if isinstance(entry, int)] for one in part["measures"]]
    return loops


def unmeasured(chance: random.Random, made: Json, form: Json) -> bool:
    part, _ = parts_of(chance, made, form)
    looping = [at for at, one in enumerate(part["measures"]) if any(isinstance(entry, list) for entry in one)]
    if looping:  # in a loop, each place is left for one that is not the end
        part["measures"][chance.choice(looping)] = chance.choice([[], [-1], ["x"], [[]], 7, None])
    return bool(looping)


def other_bound(chance: random.Random, made: Json, form: Json) -> bool:
    if made["bounds"]:
        chance.choice(made["bounds"])["at most"] += chance.choice((-1, 1, 1000))
    return bool(made["bounds"])


def other_run(chance: random.Random, made: Json, form: Json) -> bool:
    bounds = [bound for bound in made["bounds"] if bound["run"]]
    if bounds:
        bound = chance.choice(bounds)
        kind = chance.randrange(4)
        if kind == 0:
            bound["reached"] += chance.choice((-1, 1))
        elif kind == 1:
            bound["run"].pop()
        elif kind == 2:
            bound["run"].append(bound["run"][-1])
        else:
            bound["run"][chance.randrange(len(bound["run"]))] = chance.choice((10**9, None, "x"))
    return bool(bounds) and all(bound["run"] for bound in bounds)


def other_multiplier(chance: random.Random, made: Json, form: Json) -> bool:
    bounds = [one for one in made["bounds"] if one["at most"] > (form["states"][0] in one["states"])]
    if bounds:
        bound = chance.choice(bounds)
        multipliers = bound["multipliers"]
        one = chance.choice(multipliers)
        one[0] = chance.choice((f"-{one[0]}", "0", "1e9", "", "1/0", one[0] + "9" * 40, None))
        if chance.random() < 0.3:
            multipliers.clear()
    return bool(bounds)


def other_name(chance: random.Random, made: Json, form: Json) -> bool:
    key = chance.choice(("name", "digest", "certificate"))
    made[key] = chance.choice(("x", 2, None, ""))
    return True


def no_key(chance: random.Random, made: Json, form: Json) -> bool:
    del made[chance.choice(sorted(made))]
    return True


def other_value(chance: random.Random, made: Json, form: Json) -> bool:
    key = chance.choice(("with caps", "without caps", "properties", "bounds", "inner"))
    made[key] = chance.choice((7, None, "x", {"places": []}, [7], [[]], [{}]))
    return True


def drop_node(chance: random.Random, made: Json, form: Json) -> bool:
    proofs = [proof for proof in made["properties"] if "nodes" in proof]
    if proofs:
        proof = chance.choice(proofs)
        del proof["nodes"][chance.randrange(len(proof["nodes"]))]
    return bool(proofs)


def other_proof(chance: random.Random, made: Json, form: Json) -> bool:
    proofs = [proof for proof in made["properties"] if "nodes" in proof]
    if proofs:
        at = made["properties"].index(chance.choice(proofs))
        proof = made["properties"][at]
        kind = chance.randrange(3)
        if kind == 0 and proof["counter"]:
            proof["counter"] = chance.choice(("", "x"))
        elif kind == 1:
            made["properties"][at] = {"says": proof["says"], "run": [], "limits": {}}
        else:
            del made["properties"][at]
    return bool(proofs)


def no_counterexample(chance: random.Random, made: Json, form: Json) -> bool:
    proofs = [proof for proof in made["properties"] if "run" in proof]
    if proofs:
        proof = chance.choice(proofs)
        proof.update({"run": []} if chance.random() < 0.5 else {"nodes": [[0, 0], [0, 1]], "counter": ""})
        if "nodes" in proof:
            del proof["run"]
    return bool(proofs)


def other_promise(chance: random.Random, made: Json, form: Json) -> bool:
    promises = made["promises"]
    if promises:
        kind = chance.randrange(3)
        if kind == 0:
            del promises["listed"][chance.randrange(len(promises["listed"]))]
        elif kind == 1:
            promises["starts"] = []
        else:
            promises["demands"][chance.randrange(len(promises["demands"]))][2] = []
    return bool(promises)


MUTATIONS: tuple[Mutation, ...] = (
    drop_place, add_place, raise_measure, count_nothing, unmeasured, other_bound, other_run, other_multiplier, other_name,
    no_key, other_value, drop_node, other_proof, no_counterexample, other_promise,
)  # fmt: skip


def is_refused(form: Json, made: Json) -> bool:
    try:
        check(form, made)
    except Refused:
        return True
    except Exception:
        return True  # the checker's ``main`` says "damaged"
    return False


MANY = pytest.param(sample.most(2_000), sample.seed("mutated certificates"), marks=pytest.mark.slow)


@pytest.mark.parametrize(("count", "first"), [(200, 1), MANY])
def test_mutated_certificates_are_refused(count: int, first: int) -> None:
    """Each mutation is tried on each table before any is tried again."""
    tables = [(table, limits, name != "turn") for name, (table, limits) in TABLES.items()]
    fine = (number for number in range(800, 1_000) if Brute(form_of(random_table(number))).fine)
    for number in itertools.islice(fine, 6):
        tables.append((random_table(number), next(some_limits(random_table(number), number, 1)), True))
    known = [(form_of(table), certificate_of(table, limits, runs=runs)) for table, limits, runs in tables]
    chance, made, tried = random.Random(first), 0, set[Mutation]()
    pairs = list(itertools.product(MUTATIONS, known))
    assert len(pairs) <= count
    chance.shuffle(pairs)
    for mutation, (form, whole) in itertools.cycle(pairs):
        mutated = copy.deepcopy(whole)
        if mutation(chance, mutated, form):
            assert is_refused(form, mutated), (form["name"], mutation.__name__)
            made, tried = made + 1, tried | {mutation}
        if made == count:
            break
    assert tried == set(MUTATIONS)


# Files that are meant to hurt


def hostile(kind: str) -> tuple[str, str]:
    """A certificate and a table as text."""
    table, limits = TABLES["order"]
    form, made = form_of(table), certificate_of(table, limits)
    other = json.dumps(certificate_of(*TABLES["review"]))
    good = json.dumps(made)
    one: Json = {"rung": "r", "to": "B", "needs": {"left": "c0", "limit": "c0"}}
    match kind:
        case "another table":
            return other, json.dumps(form)
        case "truncated":
            return good[: len(good) // 2], json.dumps(form)
        case "empty":
            return "", json.dumps(form)
        case "deep":
            return "[" * 1_000_000, json.dumps(form)
        case "deep guard":
            form["lines"][0]["ladder"][0]["needs"] = None
            return good, json.dumps(form).replace(
                '"needs": null', '"needs": ' + '{"not": ' * 5_000 + "null" + "}" * 5_000
            )
        case "NaN":
            return good.replace(
                f'"at most": {made["bounds"][0]["at most"]}', '"at most": NaN', 1
            ), json.dumps(form)
        case "a fraction":
            return good.replace('"certificate": 1', '"certificate": 1.0'), json.dumps(form)
        case "a long number":
            return good.replace('"certificate": 1', '"certificate": 1' + "0" * 1_000_000), json.dumps(form)
        case "a long run":
            made["bounds"][0]["run"] = [0] * 600_000
        case "many places":
            made["with caps"] = {
                "places": [["Pay", [str(i)]] for i in range(60_000)],
                "measures": [[0]] * 60_000,
            }
        case "many multipliers":
            made["bounds"][0]["multipliers"] = [["1/3", "place", 0]] * 60_000
        case "many empty lists":
            made["properties"] = [[]] * 650_000
        case "many budgets":
            one["needs"] = {"all": [{"left": f"c{i}", "limit": f"c{i}"} for i in range(30)]}
            form["lines"][0]["ladder"] = [one, one]
        case "many lines":
            form["lines"] = [{**form["lines"][0], "event": str(i)} for i in range(3_000)]
        case "many comparisons":
            where = {"where": {"all": [{"left": f"c{i}", "limit": "x"} for i in range(40)]}}
            form["properties"][0].update(moves=where, known="")
            made["properties"][0] = {
                "says": form["properties"][0]["says"], "counter": "", "nodes": [[0, 0], [0, 1]],
            }  # fmt: skip
    return json.dumps(made), json.dumps(form)


HOSTILE = (
    "another table", "truncated", "empty", "deep", "deep guard", "NaN", "a fraction", "a long number", "a long run",
    "many places", "many multipliers", "many empty lists", "many budgets", "many lines", "many comparisons",
)  # fmt: skip
PEAK = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    status = open("/proc/self/status").read()
    print(status.partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


def run_checker(*files: Path) -> tuple[int, str, float, int]:
    """Exit code, output, CPU seconds and megabytes of the checker in a process of its own."""
    command = [sys.executable, "-I", "-c", PEAK, check_certificate.__file__, *map(str, files)]
    before = os.times()
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    after = os.times()
    *usage, peak = said.stderr.splitlines()
    output = said.stdout + "".join(f"{line}\n" for line in usage)
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return said.returncode, output, seconds, int(peak) // 1024


@pytest.mark.parametrize("kind", HOSTILE)
def test_bad_input_is_refused_in_one_line_within_a_second(kind: str, tmp_path: Path) -> None:
    files = tmp_path / "certificate.json", tmp_path / "table.json"
    for file, text in zip(files, hostile(kind), strict=True):
        file.write_text(text, encoding="utf-8")
    code, output, seconds, megabytes = run_checker(*files)
    assert code == 1
    assert output.startswith("refused: ")
    assert output.count("\n") == 1
    assert seconds < 1
    assert megabytes < 100


def test_a_file_of_a_gigabyte_is_refused_after_two_megabytes(tmp_path: Path) -> None:
    huge, table = tmp_path / "certificate.json", tmp_path / "table.json"
    with huge.open("wb") as file:
        file.truncate(10**9)
    table.write_text("{}", encoding="utf-8")
    code, output, seconds, megabytes = run_checker(huge, table)
    assert (code, output) == (1, f"refused: {huge}: more than 2,000,000 bytes\n")
    assert seconds < 1
    assert megabytes < 100


def test_wrong_use_is_reported(tmp_path: Path) -> None:
    assert run_checker(tmp_path)[:2] == (
        2,
        "usage: python -I check_certificate.py CERTIFICATE.json TABLE.json\n",
    )
    code, output, *_ = run_checker(tmp_path / "none", tmp_path / "none")
    assert (code, output) == (1, f"refused: {tmp_path / 'none'} cannot be read: No such file or directory\n")
