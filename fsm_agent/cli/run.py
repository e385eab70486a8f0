"""``fsm-agent run``: one turn."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fsm_agent.agent import Agent, Turn
from fsm_agent.cli.approval import attend
from fsm_agent.cli.figures import dollars
from fsm_agent.cli.given import agent_of
from fsm_agent.cli.live import ProgressView
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.pending_line import waiting_line
from fsm_agent.cli.screen import console_of
from fsm_agent.conversation.json_reading import json_of
from fsm_agent.conversation.parts import FilePart, ImagePart
from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.sessions.store.reports.records import spent_in
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import in_a_loop

SUSPENDED = 4
"""Exit code for a turn that waits for an answer."""


def run(
    text: str | None,
    given: CliOptions,
    as_json: bool,
    images: Sequence[str] = (),
    files: Sequence[str] = (),
    schema: str | None = None,
) -> int:
    """Run a new turn and return the exit code of its outcome. Without ``text``, or with ``-``, standard input
    is read. ``images`` and ``files`` are paths or web addresses of what goes with the text; ``schema`` is the
    path of a JSON schema for the answer. Raises ``ConfigError`` when there is no text."""
    output_type: Any = str if schema is None else schema_in(schema)
    parts: list[ImagePart | FilePart] = [*map(ImagePart, images), *map(FilePart, files)]

    def begin(agent: Agent) -> Turn:
        words = words_of(text)
        return agent.start([words, *parts] if parts else words, output_type=output_type)

    return go(given, as_json, begin, typed=schema is not None)


def words_of(text: str | None) -> str:
    """The text itself, or standard input where it is ``None`` or ``-``. Raises ``ConfigError`` where a person
    would have to guess that they are waited for."""
    if text is None and sys.stdin.isatty():
        raise ConfigError("there is nothing to do", None, 'fsm-agent run "…", or a text on standard input')
    return sys.stdin.read() if text is None or text == "-" else text


def view_of(given: CliOptions, alone: bool) -> ProgressView:
    """Standard output gets the answer, standard error all else. With ``alone`` the caller prints what is
    asked for, and nothing else is shown where standard error is no terminal."""
    quiet = given.quiet or (alone and not sys.stderr.isatty())
    answers = None if alone else console_of(sys.stdout)
    return ProgressView(console_of(sys.stderr), answers, quiet=quiet, verbose=given.verbose)


def schema_in(path: str) -> Any:
    """The JSON schema in a file as the type of an answer. Raises ``ConfigError``."""
    from fsm_agent.output import JsonSchema

    try:
        return JsonSchema(json_of(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else one_line(str(error), 200)
        raise ConfigError(f"--output-schema cannot be read ({why})", path, "a JSON schema") from None


def go(given: CliOptions, as_json: bool, begin: Callable[[Agent], Turn], *, typed: bool = False) -> int:
    """Run the turn that ``begin`` makes and return the exit code of its outcome. Standard output gets the
    answer; with ``as_json`` the result as one object, of a ``typed`` turn its answer as JSON. Progress goes
    to standard error; beside JSON only where that is a terminal."""
    live = view_of(given, as_json or typed)
    attend(live, given.yes)
    agent, choice = agent_of(given, live)
    turn = begin(agent)
    live.begin(f"{choice.profile.name}:{choice.model}", choice.why)
    try:
        result = in_a_loop(_one(agent, turn, live))
    except TurnSuspended as waits:
        return suspended(waits, as_json)
    if as_json:
        print(json.dumps(result.model_dump(mode="json")))
    elif typed and result.final_response is not None and result.completed:
        print(json.dumps(result.output))
    elif typed and result.error:
        print(f"error: {result.error}", file=sys.stderr)
    return code_of(result)


def suspended(waits: TurnSuspended, as_json: bool) -> int:
    """Say what a turn waits for, and return the exit code of that."""
    told = {"suspended": True, "turn_id": waits.turn_id, "pending": [one.to_dict() for one in waits.pending]}
    if as_json:
        print(json.dumps(told))
    else:
        print(waiting_line(waits.pending, waits.turn_id), file=sys.stderr)
    return SUSPENDED


def code_of(result: TurnResult) -> int:
    """0 completed, 1 failed, 3 partial, 130 interrupted."""
    codes = {"completed": 0, "failed": 1, "partial": 3, "interrupted": 130}
    return next(code for name, code in codes.items() if result[name])


async def played(agent: Agent, turn: Turn, live: ProgressView) -> TurnResult:
    """Run a turn with the live view and with Ctrl-C."""

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
    """How full the window is, and what the session cost so far, in short; empty when neither is known."""
    assert agent.options["store"] is not None
    used, spent = agent.context_used, spent_in(agent.options["store"], agent.session_id)
    parts = [f"{used:.0%} context"] if used else []
    return " · ".join([*parts, *([dollars(spent.cost)] if spent.cost else [])])


async def _one(agent: Agent, turn: Turn, live: ProgressView) -> TurnResult:
    try:
        return await played(agent, turn, live)
    finally:
        await agent.aclose()


@contextmanager
def ctrl_c(interrupt: Callable[[], object]) -> Iterator[None]:
    """Within the event loop of the turn. ``interrupt`` is called in the loop, because a signal may come at a
    moment at which a lock is held; the second signal raises ``KeyboardInterrupt``."""
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
