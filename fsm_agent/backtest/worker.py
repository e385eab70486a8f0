"""A process that plays recorded turns. Its first line of input is the order, each further one a list of ids
of turns; for each turn it writes one line.

``python -m fsm_agent.backtest.worker`` writes verdicts. With a folder as its argument, which is the first on
its path, the ``fsm_agent_states`` in there plays the turns, and what is written is the playback: the process
that began this one compares it with that of its own states."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsm_agent.backtest.verdict import Verdict
    from fsm_agent.composition.playback import Change, RecordedTurn
    from fsm_agent.sessions.store import Store


def change_to_json(change: Change) -> dict[str, Any]:
    """A change as JSON values; ``change_from`` reads them."""
    from fsm_agent.diagram.table_json import describe

    table = None if change.machine is None else describe(change.machine.table)
    return {"settings": change.settings, "prompt": change.prompt, "tools": change.tools, "table": table}


def change_from(value: Mapping[str, Any]) -> Change:
    """The change that ``change_to_json`` wrote. Raises ``TableError`` for a table that is not proved."""
    from fsm_agent.composition.playback import Change
    from fsm_agent.diagram.table_json import table_from
    from fsm_agent.fsm.machine import Machine

    table = value["table"]
    machine = None if table is None else Machine(table_from(table, "the changed table"))
    return Change(value["settings"], value["prompt"], value["tools"], machine)


async def judge_all(
    store: Store,
    turns: Iterable[str],
    change: Change,
    heard: Callable[[Verdict], None],
    *,
    masked: bool = False,
) -> None:
    """Judge turns one after the other, in this process."""
    from fsm_agent.backtest.verdict import judged, unreadable

    for turn in turns:
        recorded = read(store, turn)
        heard(
            unreadable(turn, recorded)
            if isinstance(recorded, str)
            else await judged(recorded, change, masked=masked)
        )


def read(store: Store, turn: str) -> RecordedTurn | str:
    """A recorded turn, or why it cannot be read."""
    from fsm_agent.composition.playback import RecordedTurn
    from fsm_agent.errors import FsmAgentError
    from fsm_agent.fsm.values import UNREADABLE

    try:
        return RecordedTurn.read(store, turn)
    except FsmAgentError as error:
        return str(error)
    except UNREADABLE as error:
        return f"the turn is damaged ({type(error).__name__}: {error})"


async def _play_all(store: Store, turns: Iterable[str], change: Change) -> None:
    from fsm_agent.composition.playback import Played

    for turn in turns:
        recorded = read(store, turn)
        played = Played() if isinstance(recorded, str) else await recorded.play(change)
        print(json.dumps(played.to_dict()), flush=True)


def main(states: str = "") -> None:
    """Play what standard input asks for, until it ends."""
    from fsm_agent.composition.turn_wiring import STATES
    from fsm_agent.sessions.store import Store

    origin = inspect.getfile(STATES["Prepare"])
    if states and not Path(origin).is_relative_to(Path(states).resolve()):
        raise ImportError(f"the states were imported from {origin}")
    order = json.loads(sys.stdin.readline())
    store = Store(Path(order["home"]), database_url=order["database_url"])
    change = change_from(order["change"])
    for line in sys.stdin:
        turns = json.loads(line)
        if states:
            asyncio.run(_play_all(store, turns, change))
        else:
            show = lambda verdict: print(json.dumps(verdict.to_dict()), flush=True)  # noqa: E731
            asyncio.run(judge_all(store, turns, change, show, masked=order["masked"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
