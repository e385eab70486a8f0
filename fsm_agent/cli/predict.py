"""``fsm-agent predict``: what turns would do under other limits, in figures with intervals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from rich.text import Text

from fsm_agent.backtest.playback import Change
from fsm_agent.backtest.predict import (
    CALL,
    Estimate,
    Observed,
    Prediction,
    draw_turns,
    forecast,
    observe,
    requests_in,
)
from fsm_agent.backtest.run import Backtest, describe_change
from fsm_agent.cli.arguments import nest_settings
from fsm_agent.cli.options import Home, Json, RecordedDays, RecordedSession, Seed, Sets, TableVersion
from fsm_agent.cli.screen import count, dollars, grid_of, put, screen
from fsm_agent.cli.sessions import store_of
from fsm_agent.composition.turn_wiring import MACHINE, TURN
from fsm_agent.diagram.versions import version_of
from fsm_agent.errors import ConfigError, FsmAgentError
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import bounds, examine

MOST = 2_000
"""Maximum turns to learn from: the newest."""
FEW = 100
"""Number of turns below which the report warns that they are few."""


def predict(
    sets: Sets = (),  # type: ignore[assignment]
    table: TableVersion = None,
    session: RecordedSession = None,
    days: RecordedDays = None,
    seed: Seed = 0,
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Predict requests, tokens, cost, and exits under other limits.

    Events are random, with the probabilities of recorded turns; the rows are those of the table. What was
    never recorded is not predicted.
    """
    machine = MACHINE if table is None else Machine(version_of(table).table)
    learning = learn(machine, nest_settings(sets), session=session, days=days, home=home)
    observed, limits = learning.observed, learning.limits
    now = forecast(observed, limits, machine=machine, seed=seed)
    check = forecast(observed, seed=seed)
    proved = _proved_bounds(machine, limits)
    if as_json:
        figures = {
            "recorded": _recorded_means(observed),
            "predicted": asdict(now),
            "unchanged": asdict(check),
        }
        print(json.dumps({"change": learning.change, **figures, "proved": proved}))
    else:
        _show(learning.change, observed, now, check, proved)
    return 0


@dataclass(frozen=True, slots=True)
class Learning:
    """The input of a prediction: recorded turns, the limits of each under the ``change``, and a description
    of that."""

    observed: Sequence[Observed]
    limits: Sequence[Mapping[str, int]]
    change: str


def learn(
    machine: Machine,
    settings: Mapping[str, Any],
    *,
    session: str | None = None,
    days: float | None = None,
    home: str | None = None,
) -> Learning:
    """Read the newest recorded turns, to predict turns of ``machine`` under these settings. Raises
    ``ConfigError``."""
    tests = Backtest.of(store_of(home), session=session, days=days)
    tests = replace(tests, turns=tests.turns[-MOST:])
    change = Change(settings, machine=None if machine is MACHINE else machine)
    tests.refuse(change)
    return Learning(*observe(tests, settings), describe_change(change))


def _recorded_means(observed: Sequence[Observed]) -> dict[str, float | None]:
    costs = [one.cost for one in observed]
    return {
        "requests": fmean(one.requests for one in observed),
        "moves": fmean(len(one.rows) for one in observed),
        "tokens": fmean(one.tokens for one in observed),
        "cost": None if None in costs else fmean(one or 0.0 for one in costs),
    }


def _proved_bounds(machine: Machine, limits: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the most that any turn with one of these limits can do."""
    proof = examine(machine.table)
    found = bounds(proof.without_caps, proof.with_caps, (CALL,))
    names = {f"visits of {CALL}": "requests", "moves": "moves"}
    kinds = {json.dumps(one, sort_keys=True): one for one in limits}.values()
    return {names[one.name]: max(map(one.value, kinds)) for one in found if one.caps and one.name in names}


def _show(
    change: str, observed: Sequence[Observed], now: Prediction, check: Prediction, proved: dict[str, int]
) -> None:
    columns = ("recorded", "predicted", "90 % interval", "unchanged, predicted", "at most, proved")
    grid = grid_of(("a turn", *columns), right=columns)
    was = _recorded_means(observed)
    for name, digits in (("requests", 2), ("moves", 1), ("tokens", 0), ("cost", 4)):
        found, unchanged = getattr(now, name), getattr(check, name)
        if found is not None and was[name] is not None and (was[name] or name == "requests"):
            most = f"{proved[name]:,}" if name in proved else ""
            figures = [f"{one:,.{digits}f}" for one in (was[name], found.value)]
            grid.add_row(name, *figures, _between(found, digits), f"{unchanged.value:,.{digits}f}", most)
    for row in _exits(observed, now, check):
        grid.add_row(*row)
    few = "Few turns to learn from: the real uncertainty is larger than the interval.\n"
    context = "the state" + (f" and the last {count(now.order, 'row')}" if now.order else "")
    put(
        screen(),
        Text(f"{change}, predicted from {count(len(observed), 'recorded turn')}", "bold"),
        Text(few if len(observed) < FEW else ""),
        grid,
        Text(
            f"\nThe probability of an event depends on {context}. “unchanged” is the same model's prediction"
            " for the recorded settings; compare it with “recorded” to judge the model.",
            "dim",
        ),
    )


def _between(one: Estimate, digits: int) -> str:
    return f"{one.low:,.{digits}f} to {one.high:,.{digits}f}"


def _exits(observed: Sequence[Observed], now: Prediction, check: Prediction) -> Iterator[tuple[str, ...]]:
    """Yield the share of each exit, the most frequent first."""
    was = Counter(str(one.rows[-1].exit) for one in observed)
    nothing = Estimate(0, 0, 0)
    for name in dict.fromkeys((*now.exits, *(name for name, _ in was.most_common()))):
        found, unchanged = now.exits.get(name, nothing), check.exits.get(name, nothing)
        interval = f"{found.low:.0%} to {found.high:.0%}"
        shares = (f"{one:.0%}" for one in (was[name] / len(observed), found.value))
        yield (name, *shares, interval, f"{unchanged.value:.0%}", "")


# The prediction beside a table that is being edited (``fsm-agent diagram --live``).


RECORDED = 300
"""Maximum recorded turns to learn from: the newest."""
DRAWN = 500
"""Turns drawn for each prediction."""


class Predictor:
    """Predicts turns of a version of the agent's table from the newest turns of the home."""

    def __init__(self, home: str | None) -> None:
        self._home = home
        self._observed: list[Observed] | None = None

    def __call__(self, table: Table) -> Mapping[str, Any] | None:
        """Return the figures; ``None`` for another table, and if nothing is recorded."""
        if table.name != TURN.name:
            return None
        if self._observed is None:
            self._observed = self._observe()
        if not self._observed:
            return None
        try:
            turns = draw_turns(self._observed, machine=Machine(table), turns=DRAWN)
        except FsmAgentError:  # a recorded event no longer has a row
            return None
        requests = fmean(map(requests_in, turns))
        asked = sum(one.requests for one in self._observed) or 1
        costs = [one.cost for one in self._observed if one.cost is not None]
        figures = {"requests": f"{requests:.2f}", "moves": f"{fmean(map(len, turns)):.2f}"}
        figures["tokens"] = f"{requests * sum(one.tokens for one in self._observed) / asked:,.0f}"
        if len(costs) == len(self._observed):
            figures["cost"] = dollars(requests * sum(costs) / asked)
        named = [{"name": name, "value": value} for name, value in figures.items()]
        return {"turns": len(self._observed), "figures": named}

    def _observe(self) -> list[Observed]:
        try:
            tests = Backtest.of(store_of(self._home))
            return observe(replace(tests, turns=tests.turns[-RECORDED:]), {})[0]
        except ConfigError:  # nothing is recorded here
            return []
