"""Scripts that cover a table: runs from the start of a turn to its end that take every row, or every pair of
rows.

A random walk over a table hardly leaves the neighbourhood of its start: rows behind spent budgets are never
taken. These scripts are searched for instead (``paths``). A script is a value: drive a ``Machine`` with its
events, or let a scripted model make the real states report them.

>>> from fsm_agent.fsm.table import Table, end, go, lines_of, on
>>> parts = {"A": [on("on", go("B"), why=""), on("stop", end("no", "C"), why="")]}
>>> parts |= {"B": [on("stop", end("yes", "C"), why="")]}
>>> [script.events for script in row_scripts(Table("t", ("A", "B", "C"), "C", (), lines_of(parts)))]
[('on', 'stop'), ('stop',)]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.reachability.goals import Aim, Goal, pair_goals, row_goals
from fsm_agent.fsm.verify.reachability.paths import Paths, Run
from fsm_agent.fsm.verify.reachability.small_scopes import drawn_limits, roomy_limits
from fsm_agent.fsm.verify.time_limit import TimeLimit, endless

MOST_DRAWN = 12
"""Configurations tried for rows that the roomy one does not reach."""


@dataclass(frozen=True)
class Script:
    """One run of a table under ``limits``, from its initial state to its final one.

    ``rows`` in the order in which they are taken; the same events from the start take the same rows.
    ``limits`` has a number for every limit that a guard reads, flags included. ``aim`` are the ids of the
    rows that the run was made for, one row or two in a row; the first ``reached`` rows end with them, the
    others only bring the turn to its end."""

    rows: tuple[Row, ...]
    limits: Mapping[str, int]
    aim: tuple[str, ...]
    reached: int

    @property
    def name(self) -> str:
        """The aim in words; distinct for each script of one call, so that it can name a test."""
        return " then ".join(self.aim)

    @property
    def events(self) -> tuple[str, ...]:
        return tuple(row.event for row in self.rows)

    @property
    def states(self) -> tuple[str, ...]:
        """The states visited, the initial one first."""
        return (self.rows[0].source, *(row.dest for row in self.rows))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The ids of every two rows that follow each other."""
        return tuple(pairwise(row.id for row in self.rows))


@dataclass(frozen=True)
class Cover:
    """What a search for scripts found. ``missed`` are the aims (ids of rows) without a script although
    nothing proves that no run takes them: the search gave up. Aims that are proved to be out of reach are in
    neither."""

    scripts: tuple[Script, ...]
    missed: tuple[Aim, ...]


def row_scripts(table: Table, limits: Mapping[str, int] | None = None) -> list[Script]:
    """Few short scripts that together take every row that can be taken under ``limits``.

    Without ``limits`` small ones are chosen, several if one configuration does not reach every row; each
    script says which it needs. Raises ``KeyError`` for a limit that is not given (flags need none)."""
    return list(cover(table, limits, pairs=False).scripts)


def pair_scripts(table: Table, limits: Mapping[str, int] | None = None) -> list[Script]:
    """Scripts that together take every two rows that can follow each other under ``limits``; as
    ``row_scripts``."""
    return list(cover(table, limits, pairs=True).scripts)


def cover(
    table: Table, limits: Mapping[str, int] | None = None, *, pairs: bool, within: TimeLimit | None = None
) -> Cover:
    """The scripts of ``row_scripts`` or ``pair_scripts``, and what they miss, or what there was no time
    for."""
    within = within or endless()
    scripts: list[Script] = []
    covered: set[Aim] = set()
    missed: dict[Aim, None] = {}
    for chosen in [limits] if limits is not None else _configurations(table, covered):
        paths = Paths(table, chosen, within)
        runs = _runs(paths, pairs, covered)
        for script in _few(paths, runs):
            if within.over:
                break
            scripts.append(script)
            covered |= _taken(script)
        if not paths.complete or within.over:
            missed |= dict.fromkeys(goal.aim for goal in _goals(paths, pairs) if paths.possible(goal))
    return Cover(tuple(scripts), tuple(aim for aim in missed if aim not in covered))


def _runs(paths: Paths, pairs: bool, covered: set[Aim]) -> dict[Aim, Run]:
    """A run for each aim that is not ``covered`` and could be found; for pairs also for rows that are in no
    pair."""
    if not pairs:
        return paths.find(goal for goal in _goals(paths, False) if goal.aim not in covered)
    rows = paths.find(_goals(paths, False))
    known = (
        goal
        for goal in _goals(paths, True)
        if goal.aim not in covered and all((row.id,) in rows for row in goal.rows)
    )
    runs = paths.find(known)
    paired = {row for aim in runs for row in aim}
    return runs | {aim: run for aim, run in rows.items() if aim[0] not in paired and aim not in covered}


def _goals(paths: Paths, pairs: bool) -> Iterable[Goal]:
    return pair_goals(paths.graph, paths.limits) if pairs else row_goals(paths.table, paths.limits)


def _taken(script: Script) -> set[Aim]:
    return {(row.id,) for row in script.rows} | set(script.pairs)


def _few(paths: Paths, runs: Mapping[Aim, Run]) -> Iterator[Script]:
    """Scripts for ``runs``, without those whose aim is on the way of another one. Runs that end the turn are
    needed anyway, so they come first, and of these the long ones, which have most on their way."""
    final = paths.table.final
    covered: set[Aim] = set()
    for aim, run in sorted(
        runs.items(), key=lambda item: (paths.table.row(item[0][-1]).dest != final, -len(item[1]))
    ):
        if aim not in covered:
            script = Script(paths.rows((*run, *paths.ending(run))), paths.all_limits, aim, len(run))
            covered |= _taken(script)
            yield script


def _configurations(table: Table, covered: set[Aim]) -> Iterator[Mapping[str, int]]:
    """Limits to try: roomy ones, and then some in which a row that is still missing should be open."""
    yield roomy_limits(table)
    for number in range(MOST_DRAWN):
        missing = [row for row in table.rows if (row.id,) not in covered]
        if not missing:
            return
        yield drawn_limits(table, missing[number % len(missing)], number)
