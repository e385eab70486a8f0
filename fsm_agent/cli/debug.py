"""``fsm-agent debug``: a turn under the debugger, in a browser or in an editor."""

from __future__ import annotations

import os
import re
import sys
import webbrowser
from dataclasses import dataclass, replace

from fsm_agent.agent import Agent
from fsm_agent.cli.arguments import attribute_of
from fsm_agent.cli.given import Given, agent_of
from fsm_agent.cli.verify import limits
from fsm_agent.debug import Workshop
from fsm_agent.debug.own.played import played
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent.sessions.store import store_for
from fsm_agent.support.home import home_of

TABLES = "tables"
"""Folder of a home in which turns of other tables are kept, each table's in its own."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which turn, and through which face. ``turn`` and ``attach`` name one that there is (or the beginning of its id),
    ``task`` is the message of a new one; none of them: the newest. A ``turn`` with a colon is ``module:name``: turns of a
    table of the user's own, a new one unless ``attach`` names one. ``dap``: the port for editors; ``stdio``: an editor at
    the other end."""

    turn: str | None = None
    attach: str | None = None
    task: str | None = None
    web: bool = False
    port: int = 0
    open_page: bool = True
    dap: int | None = None
    stdio: bool = False


def debug(wanted: Wanted, given: Given) -> int:
    """Serve until interrupted. Raises ``ConfigError`` for options that do not go together, or a turn that is not there."""
    own = wanted.turn is not None and ":" in wanted.turn
    if sum(one is not None for one in (None if own else wanted.turn, wanted.attach, wanted.task)) > 1:
        raise ConfigError("only one turn can be opened first", None, "one of TURN, --attach and --task")
    if sum((wanted.web, wanted.dap is not None, wanted.stdio)) > 1:
        raise ConfigError("only one face can be served", None, "one of --web, --dap and --stdio")
    workshop = workshop_of_table(str(wanted.turn), given) if own else workshop_of(given)
    try:
        first = _first_of_table(workshop, wanted) if own else _first(workshop, wanted)
        if wanted.dap is not None or wanted.stdio:
            return _editor(workshop, first, wanted.dap, given)
        return _page(workshop, first, wanted, given)
    finally:
        workshop.close()


def workshop_of(given: Given) -> Workshop:
    """All turns of a home, with the agents that these options describe."""
    given, store = replace(given, source="debugger"), store_for(home_of(given.home, os.environ), "full")

    def make(hint: str | None) -> Agent:
        """Of the model that was named, else of the one that the turn ran on before."""
        if given.model is not None or hint is None:
            return agent_of(given, None)[0]
        try:
            return agent_of(replace(given, model=hint), None)[0]
        except ConfigError as error:
            raise ConfigError(
                f"the model of this turn cannot be used here ({error})",
                hint,
                "another one: fsm-agent debug -m <provider>:<model>",
            ) from None

    return Workshop(store, make)


def workshop_of_table(name: str, given: Given) -> Workshop:
    """Turns of a table of the user's own: ``name`` is ``module:name`` of a function that makes their runners, or of a ``Table``,
    which is played by hand. They are kept in a folder of their own in the home."""
    found = attribute_of(name)
    if isinstance(found, Table):
        make = played(found, limits(found, given.sets) or {})
    elif callable(found):
        if given.sets:
            raise ConfigError("maxima are the program's own here", given.sets[0], "no --set")
        make = found
    else:
        raise ConfigError("this cannot be debugged", name, "module:name of a Table, or of a function that makes a Runner")
    folder = home_of(given.home, os.environ) / TABLES / re.sub(r"\W", "-", name)
    return Workshop.of_table(store_for(folder, "normal"), make)


def _first_of_table(workshop: Workshop, wanted: Wanted) -> str:
    if wanted.attach is not None:
        return workshop.find(wanted.attach)
    return workshop.start(wanted.task or "").id


def _first(workshop: Workshop, wanted: Wanted) -> str | None:
    if wanted.task is not None:
        return workshop.start(wanted.task).id
    named = wanted.turn if wanted.turn is not None else wanted.attach
    return workshop.newest() if named is None else workshop.find(named)


def _page(workshop: Workshop, first: str | None, wanted: Wanted, given: Given) -> int:
    try:
        from fsm_agent.debug.web.serve import Server
    except ImportError as error:
        raise ConfigError(
            f"the debugger's page needs {error.name}, which is not installed", None, "pip install 'fsm-agent[debug]'"
        ) from None
    server = Server(workshop, wanted.port, first, [given.api_key] if given.api_key else [])

    def ready() -> None:
        print(server.url, flush=True)
        if wanted.open_page and sys.stdout.isatty():
            webbrowser.open(server.url)

    server.run(ready)
    return 130  # served until interrupted


def _editor(workshop: Workshop, first: str | None, port: int | None, given: Given) -> int:
    from fsm_agent.cli.debug_dap import serve

    return serve(workshop, first, port, given)
