"""``fsm-agent sessions resume`` and ``fork``: a turn that was begun before, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fsm_agent.agent import Agent, Turn
from fsm_agent.cli.figures import ago
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.run import go
from fsm_agent.cli.screen import clean, preview
from fsm_agent.cli.sessions import store_of
from fsm_agent.errors import ConfigError
from fsm_agent.providers.profiles import is_loopback
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.names import any_turn, find_turn


def resume(name: str | None, given: CliOptions, as_json: bool) -> int:
    """Go on with an unfinished turn; without a name with the newest that nobody runs."""
    store = store_of(given.home)
    turn = find_turn(store, name) if name is not None else _newest_unfinished(store)
    if not (as_json or given.quiet):
        moment_ago = ago(turn.moved, store.now())
        print(f"  going on with “{preview(turn.asked, 60)}”, {clean(turn.id)}, {moment_ago}", file=sys.stderr)
    return go(_with_its_model(store, turn.id, given), as_json, lambda agent: agent.resume(turn.id))


def fork(name: str, at: int, edit: str | None, given: CliOptions, as_json: bool) -> int:
    """Run a turn again from one of its moves, as another one."""
    store = store_of(given.home)
    turn_id, changes = any_turn(store, name), _edit(edit)

    def begin(agent: Agent) -> Turn:
        return agent.fork(turn_id, at, changes)

    return go(_with_its_model(store, turn_id, given), as_json, begin)


def _newest_unfinished(store: Store) -> TurnInfo:
    """Not a child, which goes on with its parent, and not a fork that nobody has let go on yet."""
    for turn in Turns(store.database).recent(1_000, unfinished=True):
        begun_here = turn.parent is None or (turn.forked_at is not None and turn.seq > turn.forked_at)
        if begun_here and store.owners.alive(turn.owner) is None:
            return turn
    raise ConfigError("nothing to resume: no turn was left unfinished", str(store.home))


def _with_its_model(store: Store, turn_id: str, given: CliOptions) -> CliOptions:
    """The model that the turn was begun with, where no other is named. A stored address is believed only when
    it is on this machine, because a key must not go where a record says. A turn that came in a file gets the
    model that a new one would."""
    turns = Turns(store.database)
    if given.model is not None or turns.info(turn_id).imported:
        return given
    runtime = turns.snapshot(turn_id)["runtime"]
    address = runtime.get("base_url")
    base_url = given.base_url or (address if is_loopback(address) else None)
    return replace(given, model=f"{runtime['provider']}:{runtime['model']}", base_url=base_url)


def _edit(text: str | None) -> Mapping[str, Any]:
    if text is None:
        return {}
    try:
        edit = json.loads(text)
    except (ValueError, RecursionError):
        edit = None
    if not isinstance(edit, dict):
        raise ConfigError(
            "--edit cannot be read",
            text,
            'a JSON object, for example \'{"user_message": "another question"}\'',
        )
    return edit
