"""``fsm-agent debug``: a turn under the debugger, in a browser or in an editor."""

from __future__ import annotations

import os
import sys
import webbrowser
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.agent import Agent
from fsm_agent.cli.arguments import attribute_of
from fsm_agent.cli.given import agent_of
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.sessions import store_of
from fsm_agent.cli.verify import limits
from fsm_agent.debug import DebugSession
from fsm_agent.debug.core.pending_request import played
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent.support.home import home_of
from fsm_agent.support.installation import install_command
from fsm_agent.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which turn, and through which face. ``turn`` and ``attach`` name one that there is (or the beginning of
    its id), ``task`` is the message of a new one; none of them: the newest. A ``turn`` with a colon is
    ``module:name``: turns of a table of the user's own, a new one unless ``attach`` names one. ``dap``: the
    port for editors, or the path of a socket; ``stdio``: an editor at the other end."""

    turn: str | None = None
    attach: str | None = None
    task: str | None = None
    web: bool = False
    port: int = 0
    open_page: bool = True
    dap: str | None = None
    stdio: bool = False


def debug(wanted: Wanted, given: CliOptions) -> int:
    """Serve until interrupted. Raises ``ConfigError`` for options that do not go together, or a turn that is
    not there."""
    own = wanted.turn is not None and ":" in wanted.turn
    if sum(one is not None for one in (None if own else wanted.turn, wanted.attach, wanted.task)) > 1:
        raise ConfigError("only one turn can be opened first", None, "one of TURN, --attach and --task")
    if sum((wanted.web, wanted.dap is not None, wanted.stdio)) > 1:
        raise ConfigError("only one face can be served", None, "one of --web, --dap and --stdio")
    session = debug_session_of_table(str(wanted.turn), given) if own else debug_session_of(given)
    try:
        first = _first_of_table(session, wanted) if own else _first(session, wanted)
        if wanted.dap is not None or wanted.stdio:
            return _editor(session, first, wanted.dap, given)
        return _page(session, first, wanted, given)
    finally:
        session.close()


def debug_session_of(given: CliOptions) -> DebugSession:
    """All turns of a home, with the agents that these options describe."""
    given, store = replace(given, source="debugger"), store_of(given.home)

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

    return DebugSession(store, make)


def debug_session_of_table(name: str, given: CliOptions) -> DebugSession:
    """Turns of a table of the user's own: ``name`` is ``module:name`` of a ``Workflow``, of a function
    without arguments that makes one, or of a ``Table``, which is played by hand."""
    found = attribute_of(name)
    home = home_of(given.home, os.environ)
    if isinstance(found, Table):
        return DebugSession.of_workflow(played(found, limits(found, given.sets) or {}, home))
    if given.sets:
        raise ConfigError("maxima are the program's own here", given.sets[0], "no --set")
    made = found if isinstance(found, Workflow) else _called(name, found)
    return DebugSession.of_workflow(made if given.home is None else made.in_home(home))


def _called(name: str, make: Any) -> Workflow[Any]:
    if not callable(make):
        raise ConfigError(
            "this cannot be debugged",
            name,
            "module:name of a Workflow, of a function that makes one, or of a Table",
        )
    try:
        made = make()
    except Exception as error:  # it is the user's, and may raise anything
        raise ConfigError(f"no workflow could be made ({type(error).__name__}: {error})", name) from error
    if not isinstance(made, Workflow):
        raise ConfigError(
            "what was named makes no workflow", type(made).__name__, "a function that returns a Workflow"
        )
    return made


def _first_of_table(session: DebugSession, wanted: Wanted) -> str:
    if wanted.attach is not None:
        return session.find(wanted.attach)
    return session.start(wanted.task or "").id


def _first(session: DebugSession, wanted: Wanted) -> str | None:
    if wanted.task is not None:
        return session.start(wanted.task).id
    named = wanted.turn if wanted.turn is not None else wanted.attach
    return session.newest() if named is None else session.find(named)


def _page(session: DebugSession, first: str | None, wanted: Wanted, given: CliOptions) -> int:
    try:
        from fsm_agent.debug.web.serve import DebugServer
    except ImportError as error:
        raise ConfigError(
            f"the debugger's page needs {error.name}, which is not installed",
            None,
            install_command("debug"),
        ) from None
    server = DebugServer(session, wanted.port, first, [given.api_key] if given.api_key else [])

    def ready() -> None:
        print(server.url, flush=True)
        if wanted.open_page and sys.stdout.isatty():
            webbrowser.open(server.url)

    server.run(ready)
    return 130  # served until interrupted


def _editor(session: DebugSession, first: str | None, at: str | None, given: CliOptions) -> int:
    from fsm_agent.cli.debug_dap import serve

    return serve(session, first, at, given)
