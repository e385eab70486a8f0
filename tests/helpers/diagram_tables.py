"""Tables, turns and versions that the tests of diagrams share."""

from __future__ import annotations

import random
from collections import Counter as Counts
from collections.abc import Sequence
from dataclasses import replace

from fsm_agent.diagram.counts import coverage_diagram, overlaid
from fsm_agent.diagram.model import Diagram, diagram_of
from fsm_agent.diagram.runs import tally, tally_from
from fsm_agent.diagram.versions import Version
from fsm_agent.diagram.versions.compare import ProofChange, compare, proofs
from fsm_agent.diagram.versions.rendering import unite
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.table import FALLBACK, REKEY, RETRY, TURN
from tests.helpers.tables import DEFAULTS, Counting

ASK = Rung("ask", "Think", left("asks"), ("asks",))
TOOL, FIX = Rung("do; <it>", "Act", left("acts"), ("acts",)), Rung("fix", "Act", left("fixes"), ("fixes",))
LINES = {
    "Start": [on("go", go("Think"), why="a first | word")],
    "Think": [
        on("blank", ASK, end("gave_up", "Done"), why="nothing said"),
        on("act", TOOL, end("too_long", "Done"), why="a tool"),
        on("said", end("answered", "Done"), why="an answer"),
        on("review", go("Check"), why="not sure"),
    ],
    "Act": [
        on("ok", go("Think"), why="a result"),
        on("bad", FIX, Rung("give back", "Think"), why="it failed"),
    ],
    "Check": [
        on("fine", end("checked", "Done"), why="good"),
        on("poor", ASK, end("gave_up", "Done"), why="not good"),
    ],
}
SMALL = Table(
    "small", ("Start", "Think", "Act", "Check", "Done"), "Done",
    tuple(map(Counter, ("asks", "acts", "fixes"))), lines_of(LINES),
    macros=(("cancelled", {"Start": "stopped", "Think": "stopped", "Act": "stopped_in_tool"}),),
)  # fmt: skip
SMALL_LIMITS = {"asks": 2, "acts": 3, "fixes": 1}
USUAL = ("ready", "built", "tools", "done", "built", "error", "overloaded", "built", "text")
"""A tool round, an error that is retried, an answer: 9 moves, three of them ``built``."""
LIMITS = {**DEFAULTS, "opened": 1}


def steps(table: Table, events: Sequence[str], seconds: float = 0.5) -> list[Step]:
    """The moves that these events make from the start of a table, with the limits of the turn's defaults."""
    turn, made = (
        Counting(
            table, dict.fromkeys((a.limit for row in table.rows for a in row.guard.atoms()), 2) | LIMITS
        ),
        [],
    )
    for number, event in enumerate(events, 1):
        row = next(row for row in table.by_event[turn.state, event] if row.guard.holds(turn))
        for counter in row.resets:
            turn.reset(counter)
        for counter in row.spends:
            turn.spend(counter)
        made.append(Step(number, row.source, event, row.dest, row.id, [], [], seconds, row.exit))
        turn.state = row.dest
    return made


def wandering(table: Table, seed: int, most: int = 200) -> list[Step]:
    """Moves at random until the end, or ``most``."""
    chance, turn = random.Random(seed), Counting(table, LIMITS)
    events: list[str] = []
    while turn.state != table.final and len(events) < most:
        events.append(chance.choice(table.events(turn.state)))
        turn.state = steps(table, events)[-1].dest
    return steps(table, events)


def overlay_of(table: Table, events: Sequence[str] = USUAL) -> Diagram:
    return overlaid(plain(table), tally(table, steps(table, events)))


def coverage_of(table: Table) -> Diagram:
    return coverage_diagram(plain(table), tally_from(table, Counts(step.row for step in steps(table, USUAL))))


def plain(table: Table) -> Diagram:
    return diagram_of(table, LAYOUT["ways_out"] if table.name == "turn" else None)


def changed_pair() -> tuple[Table, Table]:
    """The turn's table, and one with a rung more in a ladder, another order, a line less, and a reset
    more."""
    lines = []
    for line in TURN.lines:
        if (line.source, line.event) == ("ClassifyError", "limited"):
            line = replace(line, ladder=(RETRY, REKEY, FALLBACK, line.ladder[-1]))
        if (line.source, line.event) == ("CallLLM", "tools"):
            line = replace(line, resets=(*line.resets, "repairs"))
        if (line.source, line.event) != ("ClassifyError", "cap_unknown"):
            lines.append(line)
    return TURN, replace(TURN, lines=tuple(lines))


def united_of(old: Table | None = None, new: Table | None = None) -> Diagram:
    """Both versions in one diagram."""
    before, after = (old or changed_pair()[0]), (new or changed_pair()[1])
    return unite(
        plain(before), plain(after), compare(before, after), proved(before, after), ("before", "after")
    )


def proved(old: Table, new: Table) -> ProofChange:
    """The proofs of both, worked out once."""
    key = old.digest, new.digest
    if key not in _PROVED:
        _PROVED[key] = proofs(Version("before", old, LIMITS), Version("after", new, LIMITS))
    return _PROVED[key]


_PROVED: dict[tuple[str, str], ProofChange] = {}
OTHER = replace(
    SMALL,
    lines=tuple(
        replace(line, ladder=line.ladder[1:]) if line.event == "bad" else line for line in SMALL.lines
    ),
)
"""``SMALL`` without a rung."""
