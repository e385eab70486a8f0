"""The checkers against brute force on tables that no person would write: random ladders, flags, caps,
shared limits, resets in the wrong place. Mutants of the turn's table (``test_verify``) are all much like
the turn; these are not."""

from __future__ import annotations

import itertools
import random
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from math import floor

import pytest

from fsm_agent.fsm.proof import Proof
from fsm_agent.fsm.table import Counter, Guard, Rung, Table, all_of, any_of, end, left, lines_of, on
from fsm_agent.fsm.verify import bounds, examine, search
from fsm_agent.fsm.verify.cover import row_scripts
from fsm_agent.fsm.verify.reach import limit_names
from fsm_agent.fsm.verify.worst_case import Flow, FlowWalk, visits
from tests.helpers.sample import at_least, sampled_seeds
from tests.helpers.tables import Counting

MOST_PAIRS = 1_500


def random_table(seed: int) -> Table:
    """One to three working states, one to four counters; a fifth of them flags, another fifth caps."""
    chance = random.Random(seed)
    states = (*"ABC"[: chance.randint(1, 3)], "F")
    kinds = [chance.random() for _ in range(chance.randint(1, 4))]
    counters = tuple(
        Counter("wxyz"[i], flag=kind < 0.2, cap=0.2 <= kind < 0.4) for i, kind in enumerate(kinds)
    )
    names = [counter.name for counter in counters]
    flags = {counter.name for counter in counters if counter.flag}

    def atom() -> Guard:
        name = chance.choice(names)
        below = left(name, chance.choice("pq") if name not in flags and chance.random() < 0.25 else None)
        return ~below if chance.random() < 0.2 else below

    def rung() -> Rung:
        spends = tuple(chance.sample(names, min(len(names), chance.choice((0, 1, 1, 1, 2)))))
        parts: list[Guard] = [left(name) for name in spends if chance.random() < 0.9]
        while chance.random() < 0.3:
            parts.append(atom())
        needs = any_of(parts) if len(parts) > 1 and chance.random() < 0.1 else all_of(parts)
        resets = tuple(name for name in names if name not in spends and chance.random() < 0.2)
        return Rung("rung", chance.choice(states[:-1]), needs, spends, resets)

    def line(number: int) -> tuple[str, tuple[Rung, ...], tuple[str, ...], str]:
        ladder = [rung() for _ in range(chance.randint(0, 2))]
        if not ladder or chance.random() < 0.93:
            ladder.append(
                end("over", "F") if chance.random() < 0.7 else Rung("go", chance.choice(states[:-1]))
            )
        return on(f"e{number}", *ladder, resets=[name for name in names if chance.random() < 0.08], why="")

    parts = {state: [line(number) for number in range(chance.randint(1, 3))] for state in states[:-1]}
    return Table(f"random {seed}", states, "F", counters, lines_of(parts))


def some_limits(table: Table, seed: int, most: int) -> Iterator[dict[str, int]]:
    names = limit_names(table)
    every = list(itertools.product((0, 1, 2), repeat=len(names)))
    for values in random.Random(seed).sample(every, min(most, len(every))):
        yield dict(zip(names, values, strict=True))


def is_partition(table: Table, limits: Mapping[str, int]) -> bool:
    """Exactly one row is open, for all counts up to 2, also those that no run has."""
    turn = Counting(table, limits)
    for rows in table.by_event.values():
        used = sorted({atom.counter for row in rows for atom in row.guard.atoms()})
        for counts in itertools.product((0, 1, 2), repeat=len(used)):
            turn.counts.update(zip(used, counts, strict=True))
            if sum(row.guard.holds(turn) for row in rows) != 1:
                return False
    return True


def compare_bounds(table: Table, proof: Proof, limits: Mapping[str, int], seen: Tally[str]) -> None:
    for ranking, caps in ((proof.with_caps, True), (proof.without_caps, False)):
        found = search(table, limits, caps=caps, most_pairs=MOST_PAIRS)
        flow = Flow(ranking, limits)
        for bound in bounds(proof.without_caps, proof.with_caps) if found else ():
            if found is None or bound.caps != caps or (priced := flow.most(bound.states)) is None:
                continue
            exact = bound.exact(found)
            assert bound.value(limits) >= exact, (table.name, limits, bound.name)
            if bound.spends:
                continue
            assert floor(priced.value) >= exact, (table.name, limits, bound.name)
            assert visits(table, FlowWalk(flow, priced).run(200), bound.states) <= exact
            seen["bounds"] += 1
            seen["exact"] += min(bound.value(limits), floor(priced.value)) == exact


def check(seeds: range) -> Tally[str]:
    seen: Tally[str] = Tally()
    for seed in seeds:
        table = random_table(seed)
        proof = examine(table)
        limits = list(some_limits(table, seed, 27))
        if not proof.partition:
            assert all(is_partition(table, each) for each in limits), table.name
        for ranking, caps in ((proof.with_caps, True), (proof.without_caps, False)):
            found = (search(table, each, caps=caps, most_pairs=MOST_PAIRS) for each in limits)
            loops = any(each is not None and not each.ends for each in found)
            assert not (loops and ranking.ends), f"{table.name}: said to end, caps {caps}"
            seen["ends" if ranking.ends else "loops" if loops else "cautious"] += 1
        if not proof.faults:
            for each in limits:
                compare_bounds(table, proof, each, seen)
            assert all(script.rows[-1].dest == table.final for script in row_scripts(table))
            seen["proved"] += 1
    return seen


def test_a_flag_without_a_guard_is_harmless() -> None:
    """It is set together with one that is tested; places that only differ in it are different locations."""
    both = Rung("both", "A", left("w"), ("w", "z"))
    ladder = on("e", both, Rung("step", "A", left("x"), ("x",)), end("over", "F"), why="")
    counters = (Counter("w", flag=True), Counter("z", flag=True), Counter("x"))
    table = Table("flags", ("A", "F"), "F", counters, lines_of({"A": [ladder]}))
    proof = examine(table)
    assert not proof.faults
    compare_bounds(table, proof, {"x": 2}, Tally())
    assert {row.id for script in row_scripts(table) for row in script.rows} == {row.id for row in table.rows}


MANY = sampled_seeds(range(1_000, 5_000), "random tables")


@pytest.mark.parametrize(
    ("seeds", "least"), [(range(800, 1_000), 10), pytest.param(MANY, at_least(250), marks=pytest.mark.slow)]
)
def test_random_tables_are_judged_as_brute_force_does(seeds: range, least: int) -> None:
    seen = check(seeds)
    assert seen["proved"] >= least
    assert seen["loops"] > seen["cautious"]
    assert seen["exact"] >= seen["bounds"] * 0.7
