"""A process that plays recorded turns. The first line of its input is the order, each further one a list of
turn ids; it writes one line per turn.

``python -m fsm_agent.backtest`` writes verdicts. Given a folder, which must be first on its path, it plays
the turns with the ``fsm_agent_states`` in there and writes the playback: the process that started it compares
this with the playback of its own states."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from pathlib import Path

from fsm_agent.backtest.playback import Change, Played
from fsm_agent.backtest.verdict import judge, read
from fsm_agent.composition.turn_wiring import STATES
from fsm_agent.sessions.store import Store


def main(states: str = "") -> None:
    """Play the turns on standard input until it ends."""
    origin, answers = inspect.getfile(STATES["Prepare"]), sys.stdout
    if states and not Path(origin).is_relative_to(Path(states).resolve()):
        raise ImportError(f"the states were imported from {origin}")
    sys.stdout = sys.stderr  # output of a state is not an answer
    order = json.loads(sys.stdin.readline())
    store = Store(Path(order["home"]), database_url=order["database_url"])
    change, masked = Change.from_dict(order["change"]), order["masked"]
    for line in sys.stdin:
        for turn in json.loads(line):
            if states:
                recorded = read(store, turn)
                played = Played() if isinstance(recorded, str) else asyncio.run(recorded.play(change))
                answer = played.to_dict()
            else:
                answer = asyncio.run(judge(store, turn, change, masked=masked)).to_dict()
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
