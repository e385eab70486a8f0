"""Predict what turns would do with other limits: events from the journal, rows from the table.

A backtest knows what recorded replies lead to, up to the first differing move. A prediction continues from
there: what states report is a random event, whose probabilities are learned from recorded turns; the table
chooses the row of an event, with the counters and limits of the changed settings. So a prediction knows
budgets exactly, and the world only as far as it was recorded."""

# The probability of an event depends on the state and on the last rows. The number of rows is chosen by the
# likelihood of held-out turns, because too many rows memorize turns instead of generalizing. A rare context
# is mixed with the shorter one, as if that one's events had been seen in it `PRIOR` times: without this, the
# event that followed a row taken once would be certain. Only events that were seen in a state are predicted
# there.

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.backtest.run import Backtest
from fsm_agent.backtest.verdict import read
from fsm_agent.composition.turn_wiring import DIGEST, MACHINE, TURN
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Row
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.insights import rows_by_turn
from fsm_agent.sessions.store.journal.read import Turns

CALL = "CallLLM"
"""The state that asks a model once per visit."""
ORDERS = range(4)
"""Context lengths in rows to try."""
FOLDS = 5
TURNS = 2_000
"""Turns to draw for one estimate."""
RESAMPLES = 20
"""Estimates from turns drawn with replacement, which give the interval."""
INTERVAL = 0.9

PRIOR = 5
"""Weight, in events, of the shorter context in a longer one."""

Context = tuple[str, ...]
Path = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Observed:
    """A recorded turn as the event model sees it: its rows in order, its limits, the tokens it used, and
    their cost in US dollars (``None`` if a price is unknown)."""

    rows: tuple[Row, ...]
    limits: Mapping[str, int]
    tokens: int = 0
    cost: float | None = 0.0

    @property
    def requests(self) -> int:
        """The number of model requests."""
        return requests_in(self.rows)


def requests_in(rows: Iterable[Row]) -> int:
    """Count the rows that leave the state that asks a model."""
    return sum(row.source == CALL for row in rows)


class Events:
    """Probabilities of events, given the state and the last ``order`` rows."""

    def __init__(self, paths: Iterable[Path], order: int) -> None:
        self._order = order
        self._counts: dict[Context, Counter[str]] = defaultdict(Counter)
        for path in paths:
            for number, row in enumerate(path):
                before = [one.id for one in path[max(0, number - order) : number]]
                for length in range(len(before) + 1):
                    self._counts[(row.source, *before[len(before) - length :])][row.event] += 1
        self._known: dict[Context, Mapping[str, float]] = {}

    def after(self, state: str, rows: Sequence[str]) -> Mapping[str, float]:
        """Return the probability of each event in ``state``, after these rows."""
        before = tuple(rows[len(rows) - min(self._order, len(rows)) :])
        return self._of((state, *before))

    def _of(self, context: Context) -> Mapping[str, float]:
        found = self._known.get(context)
        if found is None:
            found = self._known[context] = self._mix_counts(context)
        return found

    def _mix_counts(self, context: Context) -> Mapping[str, float]:
        state, *before = context
        counts = self._counts.get(context, Counter())
        if not before:
            total = counts.total()
            return {event: number / total for event, number in counts.items()}
        shorter = self._of((state, *before[1:]))
        total = counts.total() + PRIOR
        return {event: (counts[event] + PRIOR * share) / total for event, share in shorter.items()}


def best_order(paths: Sequence[Path]) -> int:
    """Return the context length under which held-out turns are most likely."""
    folds = [paths[first::FOLDS] for first in range(FOLDS)]
    if not all(folds):
        return 0

    def likelihood(order: int) -> float:
        total = 0.0
        for number, left_out in enumerate(folds):
            events = Events(
                (path for other, fold in enumerate(folds) if other != number for path in fold), order
            )
            total += sum(_log_likelihood(events, path) for path in left_out)
        return total

    return max(ORDERS, key=likelihood)


UNSEEN = 1e-4
"""The probability of an event that was never seen in its state."""


def _log_likelihood(events: Events, path: Path) -> float:
    ids = [row.id for row in path]
    shares = (events.after(row.source, ids[:number]).get(row.event, 0.0) for number, row in enumerate(path))
    return sum(math.log(max(share, UNSEEN)) for share in shares)


@dataclass(frozen=True, slots=True)
class Improbable:
    """A turn with an unlikely path: ``bits`` above the expected information. ``row`` adds the most bits, and
    ``probability`` is that of its event."""

    turn: str
    row: str
    probability: float
    bits: float


def improbable(paths: Mapping[str, Path], most: int) -> list[Improbable]:
    """Return the turns with the least probable paths, worst first, with events learned from all of them.

    A long turn is not improbable because of its length: the expected information is subtracted from that of
    each event."""
    known = list(paths.values())
    events = Events(known, best_order(known))
    found = []
    for turn, path in paths.items():
        ids, more = [row.id for row in path], []
        for number, row in enumerate(path):
            shares = events.after(row.source, ids[:number])
            average = -sum(share * math.log2(share) for share in shares.values() if share)
            more.append((-math.log2(shares[row.event]) - average, row.id, shares[row.event]))
        _, row_id, probability = max(more)
        found.append(Improbable(turn, row_id, probability, sum(bits for bits, *_ in more)))
    return sorted(found, key=lambda one: -one.bits)[:most]


LEARNED = 2_000
"""Maximum turns, the newest, to learn event probabilities from."""
FEW, IMPROBABLE, LEAST_BITS = 20, 5, 3.0
"""Minimum number of turns to call any improbable; how many to name; the minimum bits of each."""


def improbable_turns(store: Store, days: float) -> list[Improbable]:
    """Return the least probable turns of the last days; none if there are too few turns to learn from."""
    rows = rows_by_turn(store, days, TURN.digest, LEARNED)
    if len(rows) < FEW:
        return []
    known = {row.id: row for row in TURN.rows}
    found = improbable({turn: [known[one] for one in ids] for turn, ids in rows.items()}, IMPROBABLE)
    return [one for one in found if one.bits >= LEAST_BITS]


class _Drawn(BaseTurn):
    """A turn that consists of a place in the table and counters."""


def draw(events: Events, machine: Machine, limits: Mapping[str, int], chance: random.Random) -> list[Row]:
    """Draw the rows of one random turn under ``limits``. It ends, because every turn of the table does.
    Raises ``ConfigError`` in a state that no recorded turn visited."""
    turn = _Drawn(turn_id="predicted", limits=dict(limits))
    turn.enter(machine.table)
    rows: list[Row] = []
    while turn.state != machine.table.final:
        shares = events.after(turn.state, [row.id for row in rows[-max(ORDERS) :]])
        if not shares:
            raise ConfigError("no recorded turn was in this state", turn.state, "a change that predicts less")
        (event,) = chance.choices(list(shares), list(shares.values()))
        rows.append(machine.advance(turn, event).row)
    return rows


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 90 % interval, from resampled turns."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, resampled: Sequence[float]) -> Estimate:
        """Build it from the value and those of resamples."""
        ordered = sorted(resampled)
        cut = round((1 - INTERVAL) / 2 * (len(ordered) - 1))
        return cls(value, min(value, ordered[cut]), max(value, ordered[-1 - cut]))


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected behavior of a turn: ``requests`` to models, ``moves``, ``tokens``, ``cost`` in US dollars,
    and the share of each exit. ``order``: rows on which the probability of an event depends."""

    turns: int
    order: int
    requests: Estimate
    moves: Estimate
    tokens: Estimate
    cost: Estimate | None
    exits: Mapping[str, Estimate]


def forecast(
    observed: Sequence[Observed],
    limits: Sequence[Mapping[str, int]] | None = None,
    *,
    machine: Machine = MACHINE,
    seed: int = 0,
) -> Prediction:
    """Predict what turns like these would do. ``limits``: those of each turn, by default the recorded ones.
    The same seed gives the same prediction."""
    chance, order = random.Random(seed), best_order([one.rows for one in observed])  # noqa: S311 - no secret
    pairs = list(zip(observed, limits or [one.limits for one in observed], strict=True))
    whole = _figures(pairs, machine, order, chance, TURNS)
    few = TURNS // 8
    samples = [
        _figures(chance.choices(pairs, k=len(pairs)), machine, order, chance, few) for _ in range(RESAMPLES)
    ]
    figures = {
        name: Estimate.of(value, [one.get(name, 0.0) for one in samples]) for name, value in whole.items()
    }
    exits = {name[1:]: figures[name] for name in figures if name.startswith("=")}
    return Prediction(
        len(observed),
        order,
        figures["requests"],
        figures["moves"],
        figures["tokens"],
        figures.get("cost"),
        dict(sorted(exits.items(), key=lambda item: -item[1].value)),
    )


def draw_turns(
    observed: Sequence[Observed],
    limits: Sequence[Mapping[str, int]] | None = None,
    *,
    machine: Machine = MACHINE,
    turns: int = TURNS,
) -> list[list[Row]]:
    """Return the rows of random turns like those that ``forecast`` counts."""
    chance, paths = random.Random(0), [one.rows for one in observed]  # noqa: S311 - no secret
    events, known = Events(paths, best_order(paths)), limits or [one.limits for one in observed]
    return [draw(events, machine, chance.choice(known), chance) for _ in range(turns)]


def _figures(
    pairs: Sequence[tuple[Observed, Mapping[str, int]]],
    machine: Machine,
    order: int,
    chance: random.Random,
    turns: int,
) -> dict[str, float]:
    observed = [one for one, _ in pairs]
    events, asked = Events([one.rows for one in observed], order), sum(one.requests for one in observed) or 1
    costs = [one.cost for one in observed if one.cost is not None]
    drawn = [draw(events, machine, chance.choice(pairs)[1], chance) for _ in range(turns)]
    exits = Counter(f"={rows[-1].exit}" for rows in drawn)
    requests = statistics.fmean(map(requests_in, drawn))
    found = {
        "requests": requests,
        "moves": statistics.fmean(map(len, drawn)),
        "tokens": requests * sum(one.tokens for one in observed) / asked,
    }
    if len(costs) == len(observed):
        found["cost"] = requests * sum(costs) / asked
    return found | {name: number / turns for name, number in exits.items()}


def observe(tests: Backtest, change: Mapping[str, Any]) -> tuple[list[Observed], list[Mapping[str, int]]]:
    """Return the turns of a backtest for the event model, and the limits of each with other settings. Skips
    turns that cannot be played. Raises ``ConfigError`` if none remain."""
    found: list[Observed] = []
    limits: list[Mapping[str, int]] = []
    usage = Turns(tests.store.database).usage()
    for turn in tests.turns:
        recorded = read(tests.store, turn)
        if isinstance(recorded, str) or recorded.info.digest != DIGEST or not recorded.moves:
            continue
        use = usage.get(turn)
        rows = tuple(TURN.row(step.row) for step in recorded.moves)
        tokens, cost = (0, 0.0) if use is None else (use.tokens, use.cost)
        found.append(Observed(rows, recorded.limits(), tokens, cost))
        limits.append(recorded.limits(change))
    if not found:
        raise ConfigError("there is no recorded turn to learn from", len(tests.turns), "turns of this table")
    return found, limits
