"""``fsm-agent debug``: a turn in the debugger, in a browser or in an editor (Debug Adapter Protocol); and the
page of ``fsm-agent diagram --live``."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsm_agent.agent import Agent
from fsm_agent.cli.agent_options import agent_of
from fsm_agent.cli.arguments import attribute_of
from fsm_agent.cli.options import LIMITS, SHOWN, CliOptions, with_agent
from fsm_agent.cli.sessions import store_of
from fsm_agent.cli.verify import limits
from fsm_agent.debug import DebugSession
from fsm_agent.debug.core.pending_request import manual_workflow
from fsm_agent.debug.dap import LaunchOptions, serve_port, serve_stdio
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent.support.files import home_of
from fsm_agent.support.installation import importing
from fsm_agent.support.redaction import environment_keys
from fsm_agent.workflow import Workflow

if TYPE_CHECKING:
    from fsm_agent.debug.web.app import PageServer


@dataclass(frozen=True, slots=True)
class DebugTarget:
    """Which turn to debug, and in which interface. ``turn`` and ``attach`` name an existing one (or the
    beginning of its id), ``task`` is the message of a new one; by default the newest. A ``turn`` with a colon
    is ``module:name``: turns of a table of the user's own, a new one unless ``attach`` names one. ``dap``:
    the port for editors, or the path of a socket; ``stdio``: an editor on standard input and output."""

    turn: str | None = None
    attach: str | None = None
    task: str | None = None
    web: bool = False
    port: int = 0
    open_page: bool = True
    dap: str | None = None
    stdio: bool = False


@with_agent("yes", "session", *LIMITS, *SHOWN)
def debug(
    given: CliOptions,
    turn: Annotated[
        str | None,
        typer.Argument(
            metavar="TURN", help="A turn, or how its id begins; or module:name of your own table."
        ),
    ] = None,
    attach: Annotated[
        str | None, typer.Option(metavar="TURN", help="A turn that another process runs.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Start a turn with this message, paused.")
    ] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page (the default), until interrupted.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any that is free.")] = 0,
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    dap: Annotated[
        str | None,
        typer.Option(
            metavar="PORT|PATH",
            help="Serve an editor (Debug Adapter Protocol) at this socket, or on this port, with a token.",
        ),
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve one editor over standard input and output.")
    ] = False,
) -> int:
    """Step through a turn in the browser.

    Look back, change it, and continue from anywhere; also in an editor.
    """
    return serve_debugger(DebugTarget(turn, attach, task, web, port, open, dap, stdio), given)


def serve_debugger(target: DebugTarget, given: CliOptions) -> int:
    """Serve until interrupted. Raises ``ConfigError`` for options that cannot be combined, or a turn that
    does not exist."""
    own = target.turn is not None and ":" in target.turn
    if sum(one is not None for one in (None if own else target.turn, target.attach, target.task)) > 1:
        raise ConfigError("only one turn can be opened first", None, "one of TURN, --attach and --task")
    if sum((target.web, target.dap is not None, target.stdio)) > 1:
        raise ConfigError("only one face can be served", None, "one of --web, --dap and --stdio")
    session = debug_session_of_table(str(target.turn), given) if own else debug_session_of(given)
    try:
        first = _first_of_table(session, target) if own else _first(session, target)
        if target.dap is not None or target.stdio:
            return serve(session, first, target.dap, given)
        return _page(session, first, target, given)
    finally:
        session.close()


def debug_session_of(given: CliOptions) -> DebugSession:
    """Return a session for all turns of a home, with the agents that these options describe."""
    given, store = replace(given, source="debugger"), store_of(given.home)

    def make(hint: str | None) -> Agent:
        """Create an agent with the model that was named, else with the one that the turn ran on before."""
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
    """Return a session for turns of a table of the user's own: ``name`` is ``module:name`` of a ``Workflow``,
    of a function without arguments that returns one, or of a ``Table``, which is played by hand."""
    found = attribute_of(name)
    home = home_of(given.home, os.environ)
    if isinstance(found, Table):
        return DebugSession.of_workflow(manual_workflow(found, limits(found, given.sets) or {}, home))
    if given.sets:
        raise ConfigError("maxima are the program's own here", given.sets[0], "no --set")
    workflow = found if isinstance(found, Workflow) else _workflow_from(name, found)
    return DebugSession.of_workflow(workflow if given.home is None else workflow.in_home(home))


def _workflow_from(name: str, make: Any) -> Workflow[Any]:
    if not callable(make):
        raise ConfigError(
            "this cannot be debugged",
            name,
            "module:name of a Workflow, of a function that makes one, or of a Table",
        )
    try:
        workflow = make()
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"no workflow could be made ({type(error).__name__}: {error})", name) from error
    if not isinstance(workflow, Workflow):
        raise ConfigError(
            "what was named makes no workflow", type(workflow).__name__, "a function that returns a Workflow"
        )
    return workflow


def _first_of_table(session: DebugSession, target: DebugTarget) -> str:
    if target.attach is not None:
        return session.find(target.attach)
    return session.start(target.task or "").id


def _first(session: DebugSession, target: DebugTarget) -> str | None:
    if target.task is not None:
        return session.start(target.task).id
    named = target.turn if target.turn is not None else target.attach
    return session.newest() if named is None else session.find(named)


def _page(session: DebugSession, first: str | None, target: DebugTarget, given: CliOptions) -> int:
    with importing("debug", "the page needs"):
        from fsm_agent.debug.web.app import DebugServer
    server = DebugServer(session, target.port, first, [given.api_key] if given.api_key else [])
    end_in_order()
    return _serve_page(server, target.open_page)


def _serve_page(server: PageServer, opens: bool) -> int:
    def ready() -> None:
        print(server.url, flush=True)
        if opens and sys.stdout.isatty():
            webbrowser.open(server.url)

    server.run(ready)
    return 130  # served until interrupted


def end_in_order() -> None:
    """Make SIGTERM and SIGHUP end the command as an interrupt does: paused turns are released."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, leave)


def serve(session: DebugSession, first: str | None, at: str | None, given: CliOptions) -> int:
    """Serve one editor until it leaves; return exit code 0. ``at``: a port or the path of a socket, ``None``
    for standard input and output. ``given``: the options of the command line, which a launch configuration
    may override for its own session."""
    home = given.home or str(session.store.home)

    def opener(options: LaunchOptions) -> DebugSession:
        _enter(options)
        if options.table is not None:
            return debug_session_of_table(
                options.table,
                replace(given, home=options.home or given.home, sets=[*given.sets, *_sets(options.settings)]),
            )
        return debug_session_of(_launch_options(replace(given, home=home), options))

    secrets = [*environment_keys(os.environ), *([given.api_key] if given.api_key else [])]
    if at is None:
        return serve_stdio(session, first, opener, secrets)
    place = int(at) if re.fullmatch(r"-?\d{1,9}", at) else Path(at)
    return serve_port(session, first, opener, place, secrets, _tell)


def _tell(where: str, token: str) -> None:
    print(f"{where}  token {token}" if token else where, file=sys.stderr, flush=True)


def _enter(options: LaunchOptions) -> None:
    """Apply the folder and the environment of the configuration to this process: it serves one session."""
    if options.cwd is not None:
        try:
            os.chdir(options.cwd)
        except OSError as error:
            raise ConfigError(
                f"cannot work in this folder ({error.strerror})", options.cwd, "a folder"
            ) from None
    os.environ.update(options.env)


def _launch_options(given: CliOptions, options: LaunchOptions) -> CliOptions:
    named = {
        "model": options.model, "base_url": options.base_url, "home": options.home,
        "session": options.session,
        "max_iterations": options.max_iterations,
    }  # fmt: skip
    values = {name: value for name, value in named.items() if value is not None}
    return replace(given, sets=[*given.sets, *_sets(options.settings)], **values)  # type: ignore[arg-type]  # checked by LaunchOptions


def _sets(settings: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield nested settings in the form of ``--set``."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _sets(value, f"{before}{name}.")
        else:
            yield f"{before}{name}={json.dumps(value)}"


# The page of a table that is being edited (``fsm-agent diagram --live``).


ALLOWED = "path.py, path.py:NAME, or module:NAME below the current directory"


def serve_table(where: str, port: int = 0, home: str | None = None) -> int:
    """Serve the page until interrupted. Raises ``ConfigError`` for a missing file."""
    with importing("debug", "the page needs"):
        from fsm_agent.debug.live.page import LivePage
        from fsm_agent.debug.live.watched import Watched
        from fsm_agent.debug.web.app import PageServer
    from fsm_agent.cli.predict import Predictor

    path, name = find_table(where, Path.cwd())
    watched = Watched(path, name, Predictor(home))
    try:
        server = PageServer(lambda at, token: LivePage(watched, (token,)).app(at, token), port)
        end_in_order()
        watched.start()
        return _serve_page(server, opens=True)
    finally:
        watched.close()


def find_table(where: str, folder: Path) -> tuple[Path, str]:
    """Split ``path.py``, ``path.py:NAME`` or ``module:NAME`` into file and name. Raises ``ConfigError``."""
    found = re.fullmatch(r"(.+\.py)(?::(\w+))?", where)
    if found is not None:
        return _there(folder / found[1], where), found[2] or ""
    module = re.fullmatch(r"([\w.]+):(\w+)", where)
    if module is None or (folder / where).exists():
        raise ConfigError("only a table in Python is watched", where, ALLOWED)
    inside = Path(*module[1].split("."))
    for root in (folder, folder / "src", folder / "states", *map(Path, sys.path)):
        for file in (root / inside.with_suffix(".py"), root / inside / "__init__.py"):
            if file.is_file():
                return file, module[2]
    raise ConfigError("there is no such module", where, ALLOWED)


def _there(path: Path, where: str) -> Path:
    if not path.is_file():
        raise ConfigError("there is no such file", where, ALLOWED)
    return path
