"""Scripts that cover a table, made by searching it: ``row_scripts``, ``pair_scripts``, and
``possible_scripts``.

The first two come from the checker (``fsm_agent.fsm.verify.cover``) and know only counters and
limits. Real states also remember facts without a counter: that tools ran, that a text was begun.
``possible_scripts`` takes them as ``Facts``, and makes scripts that the states can really play.

Scripts are values for parametrized tests; their ``name`` is a readable id:

>>> import pytest
>>> from fsm_agent.fsm.table import Table, end, go, lines_of, on
>>> parts = {"A": [on("on", go("B"), why=""), on("stop", end("no", "C"), why="")]}
>>> parts |= {"B": [on("stop", end("yes", "C"), why="")]}
>>> scripts = row_scripts(Table("t", ("A", "B", "C"), "C", (), lines_of(parts)))
>>> ids_of(scripts)
['B.stop', 'A.stop']

"""

# Scripts are searched over counters and facts. Counters alone allow pairs of rows that no state can report in
# sequence. The tests model the facts of the built-in turn; every derived script runs on the engine, so a
# model that allows too much fails there. Row coverage subscribes to `EVERYWHERE`, without patching.

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.machine import Machine, TurnLike
from fsm_agent.fsm.runner import CRASHED
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.cover import Cover, Script, cover, pair_scripts, row_scripts
from fsm_agent.fsm.verify.goals import Aim
from fsm_agent.fsm.verify.properties import PropertyVerdict, judge
from fsm_agent.fsm.verify.reach import Pair, compile_moves
from fsm_agent.sessions.turn import DurableTurn
from fsm_agent.testing.invariants import INVARIANTS, Invariant, InvariantBroken, Look
from fsm_agent.workflow import Workflow, WorkflowResult

__all__ = [
    "Cover",
    "Facts",
    "PossibleScript",
    "Script",
    "cover",
    "ids_of",
    "pair_scripts",
    "play",
    "possible_scripts",
    "row_scripts",
]


# ----------------------------------------------------------------------------------------------------
# A turn that consists of a place in a table and counters: enough to run any table without states.


class CountingTurn(BaseTurn):
    """A turn of ``table`` in its first state, under ``limits`` (flags need none, theirs is 1). ``counts`` are
    the counters by name. Raises ``ConfigError`` for a missing limit."""

    def __init__(self, table: Table, limits: Mapping[str, int], turn_id: str = "turn") -> None:
        super().__init__(turn_id=turn_id, limits=dict(limits))
        self.enter(table)


MOST_PLACES = 30_000
"""Maximum (counters, facts) pairs visited in one search; takes a few seconds and 100 MB."""
ENDING_PLACES = 400
"""The same for the way from an aim to the end of the turn."""

F = TypeVar("F", bound=Hashable)


class Facts(Protocol[F]):
    """What states remember besides their counters, as a small hashable value.

    ``begin`` yields the possible values at the start of a turn, ``after`` those after ``row`` was taken with
    ``counts`` (the counters before it): none if the states cannot report the event of ``row`` now, several if
    the outside world decides."""

    def begin(self) -> Iterable[F]:
        """Return the possible facts when a turn begins."""
        ...

    def after(self, facts: F, row: Row, counts: Mapping[str, int]) -> Iterable[F]:
        """Return the possible facts after ``row``; nothing if the state cannot have reported it."""
        ...


@dataclass(frozen=True)
class PossibleScript(Script):
    """A script that states with facts can play. ``facts[0]`` is the value at the start, ``facts[i]`` the
    value after ``i`` rows."""

    facts: tuple[Any, ...]


Place = tuple[Pair, Any]
Came = dict[Place, tuple[Place, int] | None]


def ids_of(scripts: Iterable[Script]) -> list[str]:
    """Return names for ``pytest.mark.parametrize(…, ids=…)``."""
    return [script.name for script in scripts]


def possible_scripts(
    table: Table,
    limits: Mapping[str, int],
    facts: Facts[Any],
    *,
    pairs: bool = False,
    skip: Iterable[Aim] = (),
    most_places: int = MOST_PLACES,
) -> list[PossibleScript]:
    """Return a few short scripts that together take every row (or with ``pairs`` every two successive rows)
    that states with ``facts`` can take under ``limits``, within ``most_places`` of the start.

    ``skip``: aims (ids of rows) that need no script. Raises ``KeyError`` for a missing limit."""
    search = _Search(table, limits, facts, most_places)
    found = search.aims(pairs, set(skip))
    covered: set[Aim] = set(skip)
    scripts = []
    for aim, way in sorted(
        found.items(), key=lambda item: (table.row(item[0][-1]).dest != table.final, -len(item[1]))
    ):
        if aim not in covered:
            script = search.script(aim, way)
            covered |= {(row.id,) for row in script.rows} | set(script.pairs)
            scripts.append(script)
    return scripts


Way = tuple[tuple[int, Any], ...]
"""The rows taken, each with the facts after it."""


class _Search:
    """Breadth-first search over (counters, facts): the first way to an aim is a shortest one."""

    def __init__(self, table: Table, limits: Mapping[str, int], facts: Facts[Any], most_places: int) -> None:
        self.table, self._facts, self._most = table, facts, most_places
        self.limits = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
        self._start, self._moves = compile_moves(table, limits)
        self._names = [counter.name for counter in table.counters]
        self._final = table.states.index(table.final)
        self._macro = {number for number, row in enumerate(table.rows) if row.event in table.is_macro}
        self._begin = [(self._start, value) for value in facts.begin()]

    def aims(self, pairs: bool, skip: set[Aim]) -> dict[Aim, Way]:
        """Return a way from the start up to and including each aim that was found."""
        rows, found = self.table.rows, dict[Aim, Way]()
        size = 2 if pairs else 1

        def note(came: Came, place: Place, number: int, after: Place) -> None:
            before = came[place]
            names = (
                (rows[number].id,) if size == 1 or before is None else (rows[before[1]].id, rows[number].id)
            )
            if len(names) == size and names not in found and names not in skip:
                found[names] = (*_way(came, place), (number, after[1]))

        # pairs also need the row by which a place was entered: that row is half of the aim
        self._explore(self._begin, note, lambda: False, by_row=pairs)
        return found

    def script(self, aim: Aim, way: Way) -> PossibleScript:
        counts, begun = self._start, self._start_value(way)
        for number, _ in way:
            counts = dict(self._moves(counts))[number]
        ending = () if counts[0] == self._final else self._ending((counts, way[-1][1]))
        whole = (*way, *ending)
        rows = tuple(self.table.rows[number] for number, _ in whole)
        return PossibleScript(rows, self.limits, aim, len(way), (begun, *(value for _, value in whole)))

    def _start_value(self, way: Way) -> Any:
        """Return the value at the start from which ``way`` begins."""
        row, counts = self.table.rows[way[0][0]], self._counts(self._start)
        return next(value for _, value in self._begin if way[0][1] in self._facts.after(value, row, counts))

    def _ending(self, place: Place) -> Way:
        """Return the shortest way to the end of the turn, by a macro row only if nothing else is near."""
        ends: dict[bool, Way] = {}

        def note(came: Came, here: Place, number: int, after: Place) -> None:
            if after[0][0] == self._final:
                ends.setdefault(number in self._macro, (*_way(came, here), (number, after[1])))

        self._explore([place], note, lambda: False in ends, most=ENDING_PLACES)
        if not ends:
            raise ValueError(
                f"no end of the turn is possible near {self.table.states[place[0][0]]} with {place[1]}"
            )
        return ends.get(False) or ends[True]

    def _explore(
        self,
        begin: Sequence[Place],
        note: Callable[[Came, Place, int, Place], None],
        enough: Callable[[], bool],
        *,
        by_row: bool = False,
        most: int = 0,
    ) -> None:
        came: Came = dict.fromkeys(begin)
        places, entered = list(begin), {(place, -1) for place in begin}
        for place in places:
            for number, after in self._onward(place):
                note(came, place, number, after)
                key = (after, number if by_row else -1)
                if after[0][0] != self._final and key not in entered and len(places) < (most or self._most):
                    entered.add(key)
                    if by_row:
                        after = (after[0], _Entered(after[1], number))
                    came.setdefault(after, (place, number))
                    places.append(after)
            if enough():
                return

    def _onward(self, place: Place) -> Iterator[tuple[int, Place]]:
        pair, value = place
        known = value.facts if isinstance(value, _Entered) else value
        counts = self._counts(pair)
        for number, after in self._moves(pair):
            for then in self._facts.after(known, self.table.rows[number], counts):
                yield number, (after, then)

    def _counts(self, pair: Pair) -> dict[str, int]:
        return dict(zip(self._names, pair[1:], strict=True))


@dataclass(frozen=True, slots=True)
class _Entered:
    """Facts, with the row that led to them."""

    facts: Any
    row: int


def _way(came: Came, place: Place) -> Way:
    steps: list[tuple[int, Any]] = []
    step = came[place]
    while step is not None:
        value = place[1]
        steps.append((step[1], value.facts if isinstance(value, _Entered) else value))
        place = step[0]
        step = came[place]
    return tuple(reversed(steps))


def play(
    table: Table,
    script: Script,
    turn: TurnLike | None = None,
    *,
    invariants: Sequence[Invariant] = INVARIANTS,
) -> TurnLike:
    """Drive a ``Machine`` with the events of a script and check the invariants after every move; return the
    turn at its end.

    ``turn``: your own, in the initial state and under the limits of the script; by default a
    ``CountingTurn``. Raises ``InvariantBroken``, also if another row is taken than the script names."""
    turn = turn or CountingTurn(table, script.limits)
    machine, look = Machine(table), Look(table, turn, invariants)
    for number, row in enumerate(script.rows, 1):
        taken = machine.advance(turn, row.event).row
        if taken.id != row.id:
            raise InvariantBroken(
                f"{table.name}, script {script.name!r}, move {number}: {taken.id} was taken, not {row.id}"
            )
        look.moved(row.event, taken)
    return turn


# ----------------------------------------------------------------------------------------------------
# Scripts of a custom table, played on its real states: ``rehearse``.


T = TypeVar("T", bound=BaseTurn)
Says = Callable[[str, Any, T], Any]


async def rehearse(
    flow: Workflow[T], turn: T, script: Script, says: Says[T]
) -> DurableTurn[WorkflowResult[T]]:
    """Play ``script`` on the states of ``flow``, stored in its home like any turn, and return the ended turn.
    No request is performed: ``says(event, request, turn)`` returns a reply to each request of a visit with
    which the state reports ``event``; for ``crashed`` the request fails without calling it. The invariants
    are checked after every move. Raises ``AssertionError`` at the first move that deviates from the
    script."""
    row = script.rows[0]

    async def world(request: Any) -> Any:
        if row.event == CRASHED:
            raise RuntimeError("a bug, as the script wants it")
        return says(row.event, request, turn)

    kind = flow.kind
    played = Workflow(kind.table, kind.states, flow.turn_type, world, begin=flow.begin, home=flow.home)
    running = played.start(turn)
    look = Look(kind.table, turn)
    for row in script.rows:
        step = await running.step()
        move = "the end of the turn" if step is None else step.row
        assert move == row.id, f"{script.name}: {move} was taken where {row.id} was to come"
        look.moved(row.event, row)
    assert await running.step() is None
    return running


# ----------------------------------------------------------------------------------------------------
# ``assert_properties``: the properties of a table in one line of a test.


def assert_properties(table: Table) -> tuple[PropertyVerdict, ...]:
    """Prove the properties of ``table`` and return the verdicts. Raises ``AssertionError`` with a shortest
    run for each property that is neither proved nor declared as known, ``TableError`` for a table that is not
    proved itself. ``play(table, verdict.run)`` takes that run."""
    verdicts = judge(table)
    if findings := [verdict.finding for verdict in verdicts if verdict.finding]:
        raise AssertionError("\n".join(findings))
    return verdicts
