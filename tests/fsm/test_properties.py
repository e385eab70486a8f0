"""Properties: what they mean, their proofs and counterexamples against brute force over explicit counters,
monitors against a plain reading of runs, and the page about them."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm_agent.errors import TableError
from fsm_agent.fsm import properties
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.machine import Machine, Move
from fsm_agent.fsm.properties import (
    BROKEN,
    NOTHING,
    AtMostProperty,
    EventuallyProperty,
    Monitor,
    Moves,
    NeverProperty,
    Property,
    at_most,
    enters,
    event,
    eventually,
    exits,
    leaves,
    never,
    only_if,
    resets,
    row,
    rung,
    spends,
    where,
)
from fsm_agent.fsm.table import Counter, Row, Table, left
from fsm_agent.fsm.verify import examine
from fsm_agent.fsm.verify.properties import Product, PropertyVerdict, judge, verdict_of
from fsm_agent.fsm.verify.reach import limit_names
from fsm_agent.testing import assert_properties, play
from fsm_agent_states.table import TURN
from tests.fsm.test_verify_random import random_table, some_limits
from tests.helpers.mutants import changed
from tests.helpers.sample import at_least, sampled_seeds
from tests.helpers.tables import Counting, courier

Read = tuple[Row, Mapping[tuple[str, str], bool]]
"""A move as the plain reading sees it: its row, and which budgets were left just before it."""


# The plain reading: quantifiers over the moves of a run, no automaton


def is_in(moves: Moves, read: Read) -> bool:
    return moves.has(read[0], lambda atom: read[1][atom.counter, atom.limit])


def holds_of(claimed: Property, run: Sequence[Read], limits: Mapping[str, int], ended: bool) -> bool:
    """Whether the sentence is true of the moves of ``run``, which is a whole turn when it ``ended``."""

    def at(moves: Moves, place: int) -> bool:
        return is_in(moves, run[place])

    places = range(len(run))
    if isinstance(claimed, NeverProperty):
        for place in places:
            imposed = [-1] if claimed.begins else []
            imposed += [before for before in range(place) if at(claimed.after, before)]
            free = all(any(at(claimed.until, k) for k in range(since + 1, place)) for since in imposed)
            if at(claimed.moves, place) and not free:
                return False
        return True
    if isinstance(claimed, EventuallyProperty):
        owing = ([-1] if claimed.begins else []) + [place for place in places if at(claimed.after, place)]
        return not ended or all(any(at(claimed.moves, k) for k in range(p + 1, len(run))) for p in owing)
    assert isinstance(claimed, AtMostProperty)
    most = limits[claimed.times] if isinstance(claimed.times, str) else claimed.times
    for place in places:
        begin = max((k for k in range(place + 1) if at(claimed.since, k)), default=0)
        if sum(at(claimed.moves, k) for k in range(begin, place + 1)) > most:
            return False
    return True


def read(table: Table, turn: Counting, taken: Row) -> Read:
    atoms = {atom for one in table.rows for atom in one.guard.atoms()}
    names = {(atom.counter, atom.limit): atom.holds(turn) for atom in atoms}
    return taken, names


# Random tables, properties and runs


def random_moves(table: Table, chance: random.Random) -> Moves:
    counters = [counter.name for counter in table.counters]
    atoms = [atom for one in table.rows for atom in one.guard.atoms()]
    made = [
        enters(chance.choice(table.states)), leaves(chance.choice(table.states[:-1])),
        row(chance.choice(table.rows).id), event(chance.choice(table.rows).event),
        spends(chance.choice(counters)), resets(chance.choice(counters)),
    ]  # fmt: skip
    guards = [chance.choice(atoms)] if atoms else []
    made += [where(guard if chance.random() < 0.5 else ~guard) for guard in guards]
    one, other = chance.choice(made), chance.choice(made)
    return chance.choice([one, one, one, one & other, one | other, ~one])


def random_property(table: Table, chance: random.Random) -> Property:
    a, b, c = (random_moves(table, chance) for _ in range(3))
    times: int | str = chance.choice([0, 1, 2, 3, *limit_names(table)])
    counted = spends(chance.choice([counter.name for counter in table.counters]))
    return chance.choice(
        [
            never("p", a), never("p", a, after=b), never("p", a, after=b, until=c), only_if("p", a, b),
            only_if("p", a, b, since=c), eventually("p", a), eventually("p", a, after=b),
            at_most("p", times, a), at_most("p", times, a, since=b), at_most("p", times, counted),
        ]
    )  # fmt: skip


def proved_table(seed: int) -> Table | None:
    table = random_table(seed)
    return None if examine(table).faults else table


def shortest(table: Table, claimed: Property, limits: Mapping[str, int], most: int = 4_000) -> int:
    """Brute force: the fewest moves that break it under ``limits``; 0 when no turn does. Looks at no more than
    ``most`` places."""
    start = Counting(table, limits)
    places = [(table.initial, tuple(start.counts.values()), claimed.start)]
    known = dict.fromkeys(places, 0)
    for state, counts, memory in places:
        turn = Counting(table, limits)
        turn.state, turn.counts = state, dict(zip(turn.counts, counts, strict=True))
        for one in table.rows:
            if one.source != state or not one.guard.holds(turn):
                continue
            seen = claimed.sees(one, lambda atom: atom.holds(turn))  # noqa: B023
            limit = turn.limit(claimed.limit) if claimed.limit else 0
            after = claimed.step(memory, seen, one.exit is not None, limit)
            made = known[state, counts, memory] + 1
            if after < 0:
                return made
            moved = {n: (0 if n in one.resets else v) + (n in one.spends) for n, v in turn.counts.items()}
            place = (one.dest, tuple(moved.values()), after)
            if one.exit is None and place not in known and len(known) < most:
                known[place] = made
                places.append(place)
    return 0


def is_replayed(table: Table, found: PropertyVerdict) -> bool:
    """The machine takes the rows of the run, and the plain reading says that they break the property with
    the last of them and not before."""
    assert found.run is not None
    play(table, found.run)
    turn, machine, run = Counting(table, found.run.limits), Machine(table), list[Read]()
    for expected in found.run.rows[: found.run.reached]:
        run.append(read(table, turn, expected))
        assert machine.advance(turn, expected.event).row == expected
    ended = run[-1][0].exit is not None
    return holds_of(found.claimed, run[:-1], turn.limits, False) and not holds_of(
        found.claimed, run, turn.limits, ended
    )


def check(seeds: range, each: int) -> Tally[str]:
    told: Tally[str] = Tally()
    for seed in seeds:
        if (table := proved_table(seed)) is None:
            continue
        chance = random.Random(seed)
        claims = [random_property(table, chance) for _ in range(each)]
        for claimed in claims:
            found = judge(replace(table, properties=(claimed,)))[0]
            told[found.verdict] += 1
            lengths = (shortest(table, claimed, limits) for limits in some_limits(table, seed, 12))
            broken = [length for length in lengths if length]
            if found.verdict == "proved":
                assert not broken, (seed, claimed.label)
            elif found.verdict == "refuted":
                assert is_replayed(table, found), (seed, claimed.label, found.counterexample)
                assert len(found.ids) <= min(broken, default=len(found.ids)), (seed, claimed.label)
            else:
                told["missed"] += bool(broken)
    return told


MANY = sampled_seeds(range(3_000, 6_000), "properties")


@pytest.mark.parametrize(
    ("seeds", "each", "least", "unknown", "missed"),
    [
        (range(2_000, 2_300), 8, 40, 0.05, 0),
        pytest.param(MANY, 12, at_least(500), 1, 0.01, marks=pytest.mark.slow),
    ],
)
def test_verdicts_are_those_of_brute_force(
    seeds: range, each: int, least: int, unknown: float, missed: float
) -> None:
    told = check(seeds, each)
    assert min(told["proved"], told["refuted"]) >= least
    assert told["unknown"] <= unknown * told.total()
    assert told["missed"] <= missed * told.total()


def wandering(
    table: Table, limits: Mapping[str, int], chance: random.Random
) -> Iterator[tuple[Read, Move, Counting]]:
    """A run of the real machine on events by chance."""
    turn, machine = Counting(table, limits), Machine(table, verified=False)
    while turn.state != table.final and turn.seq < 40:
        said = chance.choice(table.events(turn.state))
        taken = machine.choose(turn, said)[0]
        before = read(table, turn, taken)
        yield before, machine.advance(turn, said), turn


@given(seed=st.integers(0, 100_000))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_a_monitor_says_what_a_plain_reading_says(seed: int) -> None:
    """After every move, and also when it hears of the first moves from the journal alone."""
    chance = random.Random(seed)
    table = next(table for number in itertools.count(seed) if (table := proved_table(number)))
    claims = tuple(replace(random_property(table, chance), says=str(number)) for number in range(6))
    table = replace(table, properties=claims)
    limits = {name: chance.choice((0, 1, 2)) for name in limit_names(table)}
    turn = Counting(table, limits)
    watching, run, steps = Monitor(table, turn), list[Read](), list[Step]()
    for before, move, after in wandering(table, limits, chance):
        watching.sees(before[0])
        turn.counts = dict(after.counts)
        run.append(before)
        steps.append(Step(len(run), "", "", "", move.row.id, [], list(move.changes), 0.0))
        ended = move.row.exit is not None
        broken = [claimed for claimed in claims if not holds_of(claimed, run, turn.limits, ended)]
        assert sorted(one.says for one in watching.broken) == [one.says for one in broken]
        assert watching.broken == Monitor(table, turn).replay(steps)


# The language


def test_labels_are_sentences() -> None:
    again = rung("drive again") & ~leaves("Ring")
    claims = {
        never("a", again): "never rung drive again and not (leaves Ring)",
        never(
            "b", exits("lost"), after=enters("Ring"), until=row("Ring.open")
        ): "never exits lost after enters Ring until row Ring.open",
        at_most(
            "c", 2, again | event("closed")
        ): "at most 2 (rung drive again and not (leaves Ring)) or event closed",
        never("d", spends("tries") & where(~left("rings"))): "never spends tries and where no rings left",
        eventually("e", enters("Done")): "enters Done before the end",
        never("f", NOTHING): "never nothing",
    }
    assert [claimed.label for claimed in claims] == list(claims.values())


def test_a_move_spends_one_of_several_counters() -> None:
    made = [row.id for row in courier().rows if spends("tries", "rings").has(row, lambda _: True)]
    assert made == ["Ring.closed/1", "Ring.closed/2"]


@pytest.mark.parametrize(
    ("claimed", "told"),
    [
        (never("a", enters("Moon")), "enters 'Moon', which the table does not have; there are Pack, Drive"),
        (never("b", event("mooned")), "event 'mooned'"),
        (only_if("c", row("Ring.open"), row("Ring.shut")), "row 'Ring.shut'"),
        (at_most("d", "moons", enters("Drive")), "limit 'moons', which the table does not have; there are"),
        (never("e", where(left("moons"))), "counter 'moons'"),
        (eventually("f", exits("lost"), after=spends("moons")), "spends 'moons'"),
    ],
)
def test_a_name_that_the_table_does_not_have_is_refused(claimed: Property, told: str) -> None:
    with pytest.raises(TableError, match=f"names {told}"):
        replace(courier(), properties=(claimed,))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(TableError, match="two properties say the same"):
        replace(courier(), properties=(never("a", enters("Ring")), never("a", enters("Pack"))))
    for times in (-1, True, 1_001):
        with pytest.raises(TableError, match="allowed are 0 to 1,000"):
            at_most("a", times, enters("Ring"))


# Proofs


def judged(table: Table, *claims: Property) -> list[PropertyVerdict]:
    return list(judge(replace(table, properties=claims)))


def test_what_the_courier_promises() -> None:
    promises = judged(
        courier(),
        never("The courier never rings before a drive.", enters("Ring") & ~leaves("Drive", "Ring")),
        at_most("A parcel is repacked as often as the limit allows.", "repacks", enters("Pack")),
        at_most("Three rings at most.", 3, rung("ring")),
        eventually("Who rang delivers.", exits("delivered"), after=enters("Ring")),
    )
    assert [one.verdict for one in promises] == ["proved", "proved", "refuted", "refuted"]
    assert promises[2].ids == ("Pack.packed", "Drive.arrived", *["Ring.closed/1"] * 4)
    assert promises[2].maxima == {"rings": 4}
    assert promises[3].counterexample == "Pack.packed → Drive.arrived → Ring.closed/3"
    run = "Pack.packed → Drive.arrived" + " → Ring.closed/1" * 4
    assert promises[2].finding == f"Three rings at most. (at most 3 rung ring): {run}, with rings 4"


def test_a_condition_that_only_the_move_itself_meets_is_pointed_out() -> None:
    entered = only_if("c", enters("Drive"), row("Pack.packed"))
    table = replace(courier(), properties=(entered, only_if("d", leaves("Drive"), row("Pack.packed"))))
    found, other = judge(table)
    assert found.counterexample == "Pack.packed"
    assert found.basis == (
        "by a shortest run of 1 move, the last of which (row Pack.packed) counts for later moves only;"
        " perhaps leaves Drive is meant"
    )
    assert other.verdict == "proved"
    (other,) = judge(replace(table, properties=(only_if("c", row("Ring.open"), row("Ring.closed/1")),)))
    assert other.basis == "by a shortest run of 3 moves"


def test_a_counter_that_is_given_back_pays_for_nothing() -> None:
    """Resetting it in the row that leads back makes the number of moves larger than the limit."""
    often = at_most("Drives again within the limit.", "tries", rung("drive again"))
    since = at_most("The same between two repackings.", "tries", rung("drive again"), since=enters("Pack"))
    table = replace(courier(), properties=(often, since))
    assert [one.verdict for one in judge(table)] == ["proved", "proved"]
    given_back = changed(table, "Drive.broken/1", resets=("tries",))
    found = judge(given_back)
    assert [one.verdict for one in found] == ["refuted", "proved"]
    assert is_replayed(given_back, found[0])


def test_what_a_budget_forbids_is_proved_where_the_graph_does_not_know_it() -> None:
    """ "Returned" needs the tries spent, and nothing gives them back, so no later drive is a new try; where
    they are given back what is spent is forgotten."""
    claimed = never("x", rung("drive again"), after=where(~left("tries")))
    [found] = judged(courier(), claimed)
    assert found.verdict == "proved"
    assert "with what is spent" in found.basis
    given_back = changed(courier(), "Drive.broken/1", resets=("tries",))
    for table, breaks in ((courier(), False), (given_back, True)):
        steps = Product(table).steps(claimed, exact=True)
        assert steps is not None
        assert (BROKEN in steps) is breaks


def test_a_known_counterexample_is_not_a_finding_and_a_proved_one_is() -> None:
    lost = eventually("Every parcel is delivered.", exits("delivered"), known="the street is long")
    found = judged(courier(), lost, never("Nothing is forbidden.", NOTHING, known="not examined"))
    assert [one.finding for one in found] == [
        None,
        "Nothing is forbidden. (never nothing): is proved, and declared as known not to hold; take known= away",
    ]


def test_a_test_of_a_table_names_the_run() -> None:
    lost = eventually("Every parcel is delivered.", exits("delivered"))
    words = r"Every parcel is delivered\. .*: Pack\.packed → Drive\.broken/2$"
    with pytest.raises(AssertionError, match=words):
        assert_properties(replace(courier(), properties=(lost,)))
    assert len(assert_properties(TURN)) == len(TURN.properties)


def test_a_table_that_is_not_proved_is_not_judged() -> None:
    table = replace(courier(), properties=(never("a", enters("Ring")),))
    with pytest.raises(TableError, match="can repeat without end"):
        judge(changed(table, "Ring.closed/1", spends=()))


def test_a_flag_is_known_at_every_move() -> None:
    counters = (Counter("opened", flag=True),)
    assert counters[0] in TURN.counters
    claims = judged(TURN, never("x", spends("iterations") & where(~left("opened"))))
    assert claims[0].verdict == "proved"


# The agent's turn


@pytest.mark.parametrize("claimed", TURN.properties, ids=lambda claimed: claimed.says)
def test_the_properties_of_the_turn_are_proved(claimed: Property) -> None:
    found = judged(TURN, claimed)[0]
    assert (found.verdict, found.finding) == ("proved", None)


BREAKING: list[tuple[str, dict[str, object]]] = [
    ("Prepare.cancelled", {"dest": "ExecuteTools", "exit": None}),
    ("EmptyRecovery.nothing/1", {"dest": "CallLLM"}),
    ("BuildMessages.failed", {"dest": "ExecuteTools"}),
    ("ExecuteTools.done", {"dest": "ExecuteTools", "spends": ("free_rounds",), "guard": left("free_rounds")}),
    ("Compress.compressed", {"dest": "ExecuteTools"}),
    ("Compress.unsummarized/1", {"guard": left("summarizers")}),
    ("ClassifyError.limited/2", {"resets": ("sends",), "dest": "CallLLM"}),
    ("BuildMessages.built/2", {"spends": ("iterations", "sends", "attempts")}),
    ("ClassifyError.limited/1", {"spends": ("retries",), "resets": ()}),
    ("CallLLM.invalid_output/1", {"spends": ("iterations",), "guard": left("iterations")}),
    ("BuildMessages.over_cost", {"dest": "CallLLM", "exit": None}),
    ("BuildMessages.built/4", {"guard": ~left("opened")}),
    ("ClassifyError.bad_key/1", {"spends": ("repairs",), "guard": left("repairs")}),
    ("ClassifyError.repairable/1", {"spends": ("retries",), "guard": left("retries")}),
    ("Compress.unsummarized/1", {"spends": ("summarizers",)}),
]
"""For each property of the turn a row that breaks it when it does something else."""


@pytest.mark.parametrize("number", range(max(12, len(TURN.properties))))
def test_each_property_of_the_turn_can_be_broken(number: int) -> None:
    claimed = TURN.properties[number]
    wrong = changed(replace(TURN, properties=(claimed,)), BREAKING[number][0], **BREAKING[number][1])
    found = verdict_of(Product(wrong), claimed)
    assert found.verdict != "proved", claimed.says


PAGE = Path(__file__).parents[2] / "docs" / "properties.md"
TEXT = PAGE.read_text(encoding="utf-8")
SENTENCES = ("never", "only_if", "eventually", "at_most")


def test_the_page_runs_and_says_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {"__name__": "docs_properties"}
    for match in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        exec(compile("\n" * TEXT.count("\n", 0, match.start()) + match[1], str(PAGE), "exec"), space)
    verdicts = judge(space["PARCEL"])
    assert [one.verdict for one in verdicts] == ["proved"] * 4 + ["refuted"]
    assert f"refuted by `{verdicts[-1].counterexample}`" in TEXT
    assert "Who paid gets the parcel or the money. (after row Pay.paid" in capsys.readouterr().out


def test_the_page_names_every_word_of_the_language() -> None:
    made = {
        name
        for name, value in vars(properties).items()
        if getattr(value, "__annotations__", {}).get("return") in ("Moves", "Property")
    }
    tables = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    assert {name for name in made if not name.startswith("_")} == {
        name for name in re.findall(r"\b(\w+)\b", tables) if name in made
    }
    assert set(SENTENCES) <= made
