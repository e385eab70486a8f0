"""``fsm-agent pending``: what suspended turns wait for, shown, answered, and gone on with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fsm_agent.approvals.service import answer
from fsm_agent.cli.continued import resume
from fsm_agent.cli.figures import moment
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.pending_line import usage
from fsm_agent.cli.sessions import say, store_of
from fsm_agent.errors import ConfigError, SessionBusy
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.pending import PendingItems

USAGE = 2
"""Exit code for a turn that cannot go on so."""


def items_of(store: Store) -> PendingItems:
    """Return what the turns of a store wait for."""
    return PendingItems(lambda: store.database, store.now)


def list_pending(home: str | None, as_json: bool) -> int:
    """One line for each thing that is waited for."""
    found = items_of(store_of(home)).open()
    if as_json:
        print(json.dumps([one.to_dict() for one in found]))
    elif not found:
        say("No turn waits for an answer.")
    for one in () if as_json else found:
        due = "" if one.due is None else f", until {moment(one.due)}"
        say(f"{one.id}  {moment(one.since)}  {one.what}{due}  (turn {one.turn}, session {one.session})")
    return 0


def show_pending(home: str | None, name: str, as_json: bool) -> int:
    """What is asked, whole, and how it may be answered."""
    item = items_of(store_of(home)).find(name)
    if as_json:
        print(json.dumps(item.to_dict()))
        return 0
    say(f"{item.id}: {item.what}, since {moment(item.since)} (turn {item.turn}, session {item.session})")
    for line in item.asked.split("\n"):
        say(f"  {line}" if item.kind != "approval" else line)
    numbered = [f"{number} {choice}" for number, choice in enumerate(item.choices, 1)]
    for line in numbered if item.kind == "question" else ():
        say(f"    {line}")
    if item.answered is not None:
        say(f"answered: {item.said}, by {item.answered_by}, {moment(item.answered)}")
    else:
        say(f"answer it: fsm-agent pending answer {item.id} {usage(item)}")
    return 0


def answer_pending(home: str | None, name: str, value: str | None, result: str | None, pattern: str) -> int:
    """Write an answer down. The turn goes on with ``pending run``, or when it is resumed."""
    items = items_of(store_of(home))
    if value is not None and result is not None:
        raise ConfigError("there are two answers", result, "VALUE, or --result")
    given: Any = value
    if result is not None:
        if (kind := items.find(name).kind) != "result":
            raise ConfigError("--result is for a result that comes later", kind, "an answer to what is asked")
        given = _read(result)
    if given is None and items.find(name).kind != "timer":
        raise ConfigError("there is no answer", None, usage(items.find(name)))
    item = answer(items, name, given, pattern=pattern)
    say(f"{item.id} is answered: {item.said}. Go on: fsm-agent sessions resume {item.turn}")
    return 0


def _read(result: str) -> str:
    if not result.startswith("@"):
        return result
    try:
        return Path(result[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the result cannot be read ({error})", result, "text, or @FILE") from None


def run_pending(given: CliOptions, as_json: bool) -> int:
    """Go on with every turn that waits for nothing any more; the greatest of their exit codes."""
    store = store_of(given.home)
    ready = items_of(store).ready(store.owners.alive)
    if not ready and not as_json:
        say("No turn can go on: none was suspended, or all wait still.")
    codes = [0]
    for turn in ready:
        try:
            codes.append(resume(turn, given, as_json))
        except SessionBusy as error:  # somebody else was faster
            say(str(error))
        except ConfigError as error:  # the others go on
            print(f"fsm-agent: turn {turn}: {error}", file=sys.stderr)
            codes.append(USAGE)
    return max(codes)
