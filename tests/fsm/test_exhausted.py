"""A limit that is lowered to what is counted, as soon as it was spent, makes no other turn than one that had
the lower limit from its first move: so bounds that hold for every limit hold for it, too."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.verify import verify_table
from fsm_agent.testing.scripts import CountingTurn
from fsm_agent_states.table import TURN
from tests.helpers.tables import DEFAULTS

LIMITS = DEFAULTS | {"fallbacks": 4}
LIKELY = ("built", "error", "limited", "overloaded", "rejected", "blank", "nothing", "ready")
LIKELY += ("failed", "compressed")
"""Events that lead from fallback to fallback."""


def event_of(turn: CountingTurn, chance: random.Random) -> str:
    declared = [event for event in TURN.events(turn.state) if event not in TURN.is_macro]
    likely = [event for event in declared if event in LIKELY]
    return chance.choice(likely if likely and chance.random() < 0.9 else declared)


def test_the_turn_is_the_one_of_the_lower_limit() -> None:
    machine, reached = Machine(TURN), set()
    for seed in range(40):
        chance, lowered = random.Random(seed), False
        turn, events, rows = CountingTurn(TURN, LIMITS), [], []
        while turn.state != TURN.final:
            events.append(event_of(turn, chance))
            row = machine.advance(turn, events[-1]).row
            rows.append(row)
            if "fallbacks" in row.spends and turn.count("fallbacks") == 1 + seed % 4:
                turn.limits["fallbacks"], lowered = turn.count("fallbacks"), True
        other = CountingTurn(TURN, LIMITS | {"fallbacks": turn.limits["fallbacks"]})
        assert [machine.advance(other, event).row for event in events] == rows, seed
        assert other.counters() == turn.counters(), seed
        reached |= {turn.count("fallbacks")} if lowered else set()
    assert reached == {1, 2, 3, 4}, "else nothing was compared"


@pytest.mark.slow
def test_a_lower_limit_has_no_larger_bound() -> None:
    for counter in TURN.exhaustible:
        reports = [verify_table(TURN, DEFAULTS | {counter: most}, small=False) for most in range(3)]
        values = [[figure.value for figure in report.figures] for report in reports]
        for lower, higher in pairwise(values):
            assert all(a is not None and b is not None and a <= b for a, b in zip(lower, higher, strict=True))
        assert values[0] < values[-1]
