"""``fsm-agent pending`` and ``approvals``: questions of suspended turns, and remembered answers."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fsm_agent.approvals.question import visible
from fsm_agent.approvals.rules import Grant, Grants
from fsm_agent.approvals.service import answer
from fsm_agent.cli.options import LIMITS, SHOWN, CliOptions, Home, Json, with_agent
from fsm_agent.cli.run import resume_turn, usage
from fsm_agent.cli.screen import moment, say
from fsm_agent.cli.sessions import store_of
from fsm_agent.errors import ConfigError, SessionBusy
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.pending import PendingItems

USAGE = 2
"""Exit code for a turn that cannot be continued with these options."""


Item = Annotated[str, typer.Argument(metavar="ID", help="As it is listed, or its beginning.")]


def items_of(store: Store) -> PendingItems:
    """Return the pending items of a store."""
    return PendingItems(lambda: store.database, store.now)


def list_pending(as_json: Json = False, home: Home = None) -> int:
    """List what turns wait for. These are approvals, questions, results that come later, times."""
    found = items_of(store_of(home)).open()
    if as_json:
        print(json.dumps([one.to_dict() for one in found]))
    elif not found:
        say("No turn waits for an answer.")
    for one in () if as_json else found:
        due = "" if one.due is None else f", until {moment(one.due)}"
        say(f"{one.id}  {moment(one.since)}  {one.what}{due}  (turn {one.turn}, session {one.session})")
    return 0


def show_pending(name: Item, as_json: Json = False, home: Home = None) -> int:
    """Show a question in full, and how to answer it."""
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


def answer_pending(
    name: Item,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="VALUE",
            help="once, session, always, deny or never; the answer to a question, or the number of a choice.",
        ),
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="TEXT|@FILE", help="The result of a call that comes later.")
    ] = None,
    pattern: Annotated[
        str, typer.Option(metavar="PATTERN", help="Calls that session, always or never applies to.")
    ] = "",
    home: Home = None,
) -> int:
    """Answer a question. The turn continues with pending run, or sessions resume."""
    items = items_of(store_of(home))
    if value is not None and result is not None:
        raise ConfigError("there are two answers", result, "VALUE, or --result")
    given: Any = value
    if result is not None:
        if (kind := items.find(name).kind) != "result":
            raise ConfigError("--result is for a result that comes later", kind, "an answer to what is asked")
        given = _read(result)
    if given is None and items.find(name).kind != "timer":
        raise ConfigError("the answer is missing", None, usage(items.find(name)))
    item = answer(items, name, given, pattern=pattern)
    say(f"{item.id} is answered: {item.said}. Continue: fsm-agent sessions resume {item.turn}")
    return 0


def _read(result: str) -> str:
    if not result.startswith("@"):
        return result
    try:
        return Path(result[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the result cannot be read ({error})", result, "text, or @FILE") from None


@with_agent("max_iterations", *LIMITS, "yes", "session", *SHOWN)
def run_pending(given: CliOptions, as_json: Json = False) -> int:
    """Continue all turns that are answered or due.

    The exit code is the greatest of theirs; 4: a turn was suspended again.
    """
    store = store_of(given.home)
    ready = items_of(store).ready(store.owners.alive)
    if not ready and not as_json:
        say("No turn can continue: none was suspended, or all are still waiting.")
    codes = [0]
    for turn in ready:
        try:
            codes.append(resume_turn(turn, given, as_json))
        except SessionBusy as error:  # another process was faster
            say(str(error))
        except ConfigError as error:  # the others continue
            print(f"fsm-agent: turn {turn}: {error}", file=sys.stderr)
            codes.append(USAGE)
    return max(codes)


def list_approvals(as_json: Json = False, home: Home = None) -> int:
    """List the calls that are allowed or denied without asking."""
    known = _grants(home)
    grants = [*known.all(), *known.of_sessions()]
    if as_json:
        print(json.dumps([_row(one) for one in grants]))
        return 0
    for one in grants:
        day = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d")
        where = f"  (session {one.session}, in {_one_row(one.workdir)})" if one.session else ""
        print(f"{one.verdict:<5}  {day}  {_one_row(one.pattern.text)}{where}")
    if not grants:
        print("Nothing was approved or forbidden for longer than once.", file=sys.stderr)
    return 0


def _row(grant: Grant) -> dict[str, object]:
    row = {
        "pattern": grant.pattern.text,
        "tool": grant.pattern.tool,
        "verdict": grant.verdict,
        "at": grant.at,
    }
    return row | ({"session": grant.session, "workdir": grant.workdir} if grant.session else {})


def remove_approval(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="As it is listed.")],
    session: Annotated[str, typer.Option(metavar="ID", help="Only the answers given in this session.")] = "",
    home: Home = None,
) -> int:
    """Forget one, so that the next such call asks again."""
    known = _grants(home)
    texts = [one.pattern.text for one in (*known.all(), *known.of_sessions())]
    known.remove(next((text for text in texts if _one_row(text) == pattern), pattern), session)
    print(f"removed {_one_row(pattern)}")
    return 0


def _one_row(text: str) -> str:
    """Show a text on one line, with nothing left out."""
    return visible(text, sys.stdout.encoding or "utf-8", lines=False)


def _grants(home: str | None) -> Grants:
    store = store_of(home)
    return Grants(lambda: store.database)
