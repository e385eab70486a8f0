"""``fsm-agent run``, ``sessions resume`` and ``sessions fork``: one turn in this process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fsm_agent.agent import Agent, Turn
from fsm_agent.cli.agent_options import agent_of
from fsm_agent.cli.options import RUNNING, CliOptions, Json, Remote, with_agent
from fsm_agent.cli.questions import attend
from fsm_agent.cli.screen import ago, clean, console_of, dollars, preview
from fsm_agent.cli.sessions import store_of
from fsm_agent.cli.view import ProgressView
from fsm_agent.conversation.parts import FilePart, ImagePart
from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.providers.profiles import is_loopback
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.sessions.store.reports import session_usage
from fsm_agent.sessions.store.stored_sessions import any_turn, find_turn
from fsm_agent.support.texts import json_of, one_line
from fsm_agent.support.threads import in_a_loop


def usage(item: Pending) -> str:
    """Describe the form of an answer to a pending item."""
    words = {"question": "WORDS", "result": "--result TEXT|@FILE", "timer": "[WORDS]"}
    return "|".join(item.choices) if item.kind == "approval" else words[item.kind]


def waiting_line(pending: Sequence[Pending], turn: str) -> str:
    """Describe in one line what a turn waits for, and what to do."""
    if not pending:
        return f"suspended; continue: fsm-agent sessions resume {turn}"
    named = ", ".join(f"{one.id} ({one.what})" for one in pending)
    first = pending[0]
    return clean(
        f"suspended, it waits for {named}; fsm-agent pending show {first.id}, pending answer"
        f" {first.id} {usage(first)}, then fsm-agent pending run"
    )


SUSPENDED = 4
"""Exit code for a turn that waits for an answer."""


@with_agent()
def run(
    given: CliOptions,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The message; default, or with -: standard input.")
    ] = None,
    as_json: Json = False,
    images: Annotated[
        list[str], typer.Option("--image", metavar="FILE", help="An image to send with the text; repeatable.")
    ] = [],  # noqa: B006 - typer reads it
    files: Annotated[
        list[str],
        typer.Option("--file", metavar="FILE", help="A PDF, text or audio file to send with it; repeatable."),
    ] = [],  # noqa: B006
    schema: Annotated[
        str | None,
        typer.Option("--output-schema", metavar="FILE", help="JSON schema of the answer, printed as JSON."),
    ] = None,
    remote: Remote = False,
) -> int:
    """Run one turn.

    The answer goes to standard output, everything else to standard error. Exit codes: 0 completed, 1 failed,
    2 wrong use, 3 partial, 4 suspended, 130 interrupted.
    """
    if remote:
        from fsm_agent.cli.remote import run_remote

        return run_remote(text, given, as_json, images, files, schema)
    output_type: Any = str if schema is None else schema_in(schema)
    parts: list[ImagePart | FilePart] = [*map(ImagePart, images), *map(FilePart, files)]

    def begin(agent: Agent) -> Turn:
        words = words_of(text)
        return agent.start([words, *parts] if parts else words, output_type=output_type)

    return go(given, as_json, begin, typed=schema is not None)


def words_of(text: str | None) -> str:
    """Return the text, or standard input if it is ``None`` or ``-``. Raises ``ConfigError`` if a person would
    have to guess that the command waits for input."""
    if text is None and sys.stdin.isatty():
        raise ConfigError("there is nothing to do", None, 'fsm-agent run "…", or a text on standard input')
    return sys.stdin.read() if text is None or text == "-" else text


def view_of(given: CliOptions, alone: bool) -> ProgressView:
    """Return a view with the answer on standard output, everything else on standard error. With ``alone`` the
    caller prints the result, and nothing else is shown unless standard error is a terminal."""
    quiet = given.quiet or (alone and not sys.stderr.isatty())
    answers = None if alone else console_of(sys.stdout)
    return ProgressView(console_of(sys.stderr), answers, quiet=quiet, verbose=given.verbose)


def schema_in(path: str) -> Any:
    """Return the JSON schema in a file as the type of an answer. Raises ``ConfigError``."""
    from fsm_agent.output import JsonSchema

    try:
        return JsonSchema(json_of(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else one_line(str(error), 200)
        raise ConfigError(f"--output-schema cannot be read ({why})", path, "a JSON schema") from None


def go(given: CliOptions, as_json: bool, begin: Callable[[Agent], Turn], *, typed: bool = False) -> int:
    """Run the turn that ``begin`` returns and return the exit code of its outcome. Standard output receives
    the answer; with ``as_json`` the result as one object, for a ``typed`` turn its answer as JSON. Progress
    goes to standard error; beside JSON only if that is a terminal."""
    live = view_of(given, as_json or typed)
    attend(live, given.yes)
    agent, choice = agent_of(given, live)
    turn = begin(agent)
    live.begin(f"{choice.profile.name}:{choice.model}", choice.why)
    try:
        result = in_a_loop(_one(agent, turn, live))
    except TurnSuspended as waits:
        return report_suspension(waits, as_json)
    if as_json:
        print(json.dumps(result.model_dump(mode="json")))
    elif typed and result.final_response is not None and result.completed:
        print(json.dumps(result.output))
    elif typed and result.error:
        print(f"error: {result.error}", file=sys.stderr)
    return code_of(result)


def report_suspension(waits: TurnSuspended, as_json: bool) -> int:
    """Print what a turn waits for, and return the exit code of a suspension."""
    data = {"suspended": True, "turn_id": waits.turn_id, "pending": [one.to_dict() for one in waits.pending]}
    if as_json:
        print(json.dumps(data))
    else:
        print(waiting_line(waits.pending, waits.turn_id), file=sys.stderr)
    return SUSPENDED


def code_of(result: TurnResult) -> int:
    """Return the exit code: 0 completed, 1 failed, 3 partial, 130 interrupted."""
    codes = {"completed": 0, "failed": 1, "partial": 3, "interrupted": 130}
    return next(code for name, code in codes.items() if result[name])


async def run_live(agent: Agent, turn: Turn, live: ProgressView) -> TurnResult:
    """Run a turn with the live view, and handle Ctrl-C."""

    def interrupt() -> None:
        live.status("interrupted; press Ctrl-C again to leave")
        agent.interrupt()

    live.figures = partial(figures, agent)
    live.restart()
    try:
        with ctrl_c(interrupt):
            result = await turn.arun()
        live.end(result)
    finally:
        live.stop()
    return result


def figures(agent: Agent) -> str:
    """Return the window's fill level and the session's cost, in short; empty if neither is known."""
    assert agent.options["store"] is not None
    used, spent = agent.context_used, session_usage(agent.options["store"], agent.session_id)
    parts = [f"{used:.0%} context"] if used else []
    return " · ".join([*parts, *([dollars(spent.cost)] if spent.cost else [])])


async def _one(agent: Agent, turn: Turn, live: ProgressView) -> TurnResult:
    try:
        return await run_live(agent, turn, live)
    finally:
        await agent.aclose()


@contextmanager
def ctrl_c(interrupt: Callable[[], object]) -> Iterator[None]:
    """Handle Ctrl-C within the event loop of the turn. ``interrupt`` is called in the loop, because a signal
    may arrive while a lock is held; the second signal raises ``KeyboardInterrupt``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, pressed = asyncio.get_running_loop(), 0

    def handle(*_: Any) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(interrupt)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@with_agent(*RUNNING)
def resume(
    given: CliOptions,
    name: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A turn, or a session; default: the newest unfinished turn."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Continue a turn that was left unfinished. Exit codes as for run."""
    return resume_turn(name, given, as_json)


def resume_turn(name: str | None, given: CliOptions, as_json: bool) -> int:
    """Continue an unfinished turn; by default the newest one that no process runs."""
    store = store_of(given.home)
    turn = find_turn(store, name) if name is not None else _newest_unfinished(store)
    if not (as_json or given.quiet):
        moment_ago = ago(turn.moved, store.now())
        print(f"  continuing “{preview(turn.asked, 60)}”, {clean(turn.id)}, {moment_ago}", file=sys.stderr)
    return go(_with_its_model(store, turn.id, given), as_json, lambda agent: agent.resume(turn.id))


@with_agent(*RUNNING)
def fork(
    given: CliOptions,
    name: Annotated[str, typer.Argument(metavar="TURN", help="A turn, or a session for its newest turn.")],
    at: Annotated[
        int, typer.Option("--at", metavar="SEQ", help="After how many moves; sessions show lists them.")
    ],
    edit: Annotated[
        str | None, typer.Option(metavar="JSON", help='What differs, such as {"user_message": "…"}.')
    ] = None,
    as_json: Json = False,
) -> int:
    """Run a turn again from one of its moves, in a session of its own. Exit codes as for run."""
    store = store_of(given.home)
    turn_id, changes = any_turn(store, name), _edit(edit)

    def begin(agent: Agent) -> Turn:
        return agent.fork(turn_id, at, changes)

    return go(_with_its_model(store, turn_id, given), as_json, begin)


def _newest_unfinished(store: Store) -> TurnInfo:
    """Return the newest unfinished turn that no process runs, except children, which continue with their
    parent, and unstarted forks."""
    for turn in Turns(store.database).recent(1_000, unfinished=True):
        begun_here = turn.parent is None or (turn.forked_at is not None and turn.seq > turn.forked_at)
        if begun_here and store.owners.alive(turn.owner) is None:
            return turn
    raise ConfigError("nothing to resume: no turn was left unfinished", str(store.home))


def _with_its_model(store: Store, turn_id: str, given: CliOptions) -> CliOptions:
    """Select the model that the turn was begun with unless another is named. A stored address is trusted only
    if it is on this machine, because a key must not be sent to an address from a record. An imported turn
    gets the model that a new one would."""
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
