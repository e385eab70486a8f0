"""The bounds are reached: constructed runs, driven through the real machine."""

from __future__ import annotations

import random
from collections import Counter as Tally

import pytest

from fsm_agent.conversation.effects import Runtime
from fsm_agent.fsm.machine import Machine, TurnLike
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify import bounds, examine, search
from fsm_agent.fsm.verify.reach import limit_names
from fsm_agent.fsm.verify.report import FoldedPart, fold
from fsm_agent.fsm.verify.worst_case import Flow, Worth, long_run, visits
from fsm_agent.settings import Settings
from fsm_agent_states.table import TURN
from fsm_agent_states.turn import TurnState, limits_of
from tests.helpers.sample import at_least, sampled_seeds
from tests.helpers.tables import DEFAULTS, UNCOUNTED, Counting, courier

FREE = {"attempts": UNCOUNTED, "sends": UNCOUNTED}
RUNTIME = Runtime("any", "any", usable_fallbacks=2, possible_rekeys=2)


def default_flow() -> Flow:
    return Flow(examine(TURN).without_caps, DEFAULTS)


def real_turn(*, caps: bool) -> TurnState:
    """A turn at the default settings, with two fallbacks, two rekeys and one auxiliary model."""
    settings = Settings()
    limits = dict(limits_of(settings, RUNTIME, auxiliaries=1))
    assert limits == {**DEFAULTS, "opened": 1}
    if not caps:
        limits |= FREE
    given = {"turn_id": "t", "session_id": "s", "user_content": "hi"}
    return TurnState.of(settings=settings, runtime=RUNTIME, limits=limits, **given)


def entries(turn: TurnLike, table: Table, run: tuple[Row, ...]) -> Tally[str]:
    """Drive the machine with the events of a run; how often each state was entered."""
    machine, entered = Machine(table), Tally([turn.state])
    for row in run:
        assert machine.advance(turn, row.event).row == row
        entered[turn.state] += 1
    assert turn.state == table.final
    return entered


@pytest.mark.parametrize(("caps", "requests"), [(False, 2786), (True, 360)])
def test_a_turn_at_the_default_limits_reaches_the_bound_on_requests(caps: bool, requests: int) -> None:
    proof = examine(TURN)
    found = bounds(proof.without_caps, proof.with_caps)
    bound = next(one for one in found if (one.states, one.caps) == (("CallLLM",), caps))
    run = long_run(default_flow(), ("CallLLM",), caps=caps, enough=requests)
    turn = real_turn(caps=caps)
    assert entries(turn, TURN, run)["CallLLM"] == requests == bound.value(DEFAULTS)
    if caps:
        assert turn.count("attempts") == turn.limit("attempts")
    else:
        spent = {"iterations": 90, "free_rounds": 90, "fallbacks": 2, "repairs": 10}
        assert {name: turn.count(name) for name in spent} == spent


def test_a_turn_at_the_default_limits_reaches_the_bound_on_compactions() -> None:
    run = long_run(default_flow(), ("Compress",), caps=False, enough=4450)
    assert entries(real_turn(caps=False), TURN, run)["Compress"] == 4450


def test_the_cap_on_attempts_covers_requests_and_summaries_together() -> None:
    run = long_run(default_flow(), ("CallLLM", "Compress"), caps=True, enough=1_000)
    turn = real_turn(caps=True)
    entered = entries(turn, TURN, run)
    asked = entered["CallLLM"] + sum(row.dest == "Compress" and "attempts" in row.spends for row in run)
    assert entered["Compress"] > 0 < asked - entered["CallLLM"]
    assert asked == turn.count("attempts") <= 360


def check_scopes(seeds: range, most_pairs: int) -> tuple[int, int]:
    """No constructed run is longer than exact search says is possible; (compared, equal)."""
    compared = equal = 0
    for seed in seeds:
        chance = random.Random(seed)
        limits = {name: chance.choices((0, 1, 2), (3, 2, 1))[0] for name in limit_names(TURN)}
        most_of = {"iterations": 2, "attempts": 8, "sends": 4}
        limits |= {name: chance.randint(1, most) for name, most in most_of.items()}
        for caps in (False, True):
            found = search(TURN, limits, caps=caps, most_pairs=most_pairs)
            if found is not None:
                most = found.most_visits(["CallLLM"])
                run = long_run(Flow(examine(TURN).without_caps, limits), ("CallLLM",), caps=caps)
                turn = Counting(TURN, limits if caps else limits | FREE)
                assert entries(turn, TURN, run)["CallLLM"] <= most, (seed, caps)
                compared, equal = compared + 1, equal + (visits(TURN, run, ("CallLLM",)) == most)
    return compared, equal


SCOPES = sampled_seeds(range(500, 600), "longest runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "most_pairs", "least"), [(range(24), 3_000, 12), (SCOPES, 30_000, at_least(100))]
)
def test_constructed_runs_are_nearly_always_longest_ones(seeds: range, most_pairs: int, least: int) -> None:
    compared, equal = check_scopes(seeds, most_pairs)
    assert compared >= least
    assert equal >= compared * 0.9


@pytest.mark.parametrize("state", ["Pack", "Drive", "Ring"])
def test_a_run_of_a_table_of_another_kind_is_a_longest_one(state: str) -> None:
    limits = {"tries": 3, "rings": 2, "repacks": 1}
    found = search(courier(), limits)
    assert found is not None
    run = long_run(Flow(examine(courier()).without_caps, limits), (state,), caps=False)
    assert entries(Counting(courier(), limits), courier(), run)[state] == found.most_visits([state])


def test_what_a_budget_is_worth() -> None:
    """An iteration is one request and what a new call block allows: 4 cut calls, 3 overflows, 2 rekeys, 2
    retries, and a rebuild with 2 more; a fallback is one request, 2 retries, 2 rekeys, 10 repairs and 3
    overflows."""
    flow = default_flow()
    priced = flow.most(("CallLLM",))
    assert priced is not None
    worth, table = Worth(flow, priced), flow.graph.table
    start = (0,) * (1 + len(table.counters))

    def less(counter: str) -> float:
        """What one unit of a counter takes from the worth of a turn's begin."""
        place = 1 + [one.name for one in table.counters].index(counter)
        return worth.of(start) - worth.of((*start[:place], 1, *start[place + 1 :]))

    assert round(less("iterations")) == round(less("free_rounds")) == 1 + 4 + 3 + 2 + 2 + 3
    assert round(less("fallbacks")) == 1 + 2 + 2 + 10 + 3
    assert round(less("lost_requests")) == 1


def unfolded(part: str | FoldedPart) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [row for inner in part.rows for row in unfolded(inner)] * part.times


def test_what_repeats_is_folded_and_nothing_is_lost() -> None:
    run = [row.id for row in long_run(default_flow(), ("CallLLM",), caps=False, enough=2776)]
    folded = fold(run)
    assert [row for part in folded for row in unfolded(part)] == run
    assert len(" ".join(map(str, folded))) < len(" ".join(run)) / 20
    assert fold(list("abababc")) == (FoldedPart(3, ("a", "b")), "c")
    assert str(fold(list("aabaabc"))[0]) == "2 × [2 × [a] → b]"
