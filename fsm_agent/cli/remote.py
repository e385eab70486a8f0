"""``fsm-agent worker``, and ``run --remote`` and ``chat --remote``, which queue turns for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from fsm_agent.cli.agent_options import let_report, settings_for
from fsm_agent.cli.arguments import attribute_of
from fsm_agent.cli.input import piped_reader, terminal_reader
from fsm_agent.cli.options import CliOptions, Home, Sets
from fsm_agent.cli.run import code_of, ctrl_c, report_suspension, view_of, words_of
from fsm_agent.cli.screen import clean, console_of
from fsm_agent.cli.sessions import store_of
from fsm_agent.cli.view import ProgressView
from fsm_agent.conversation.parts import FilePart, ImagePart, part_of
from fsm_agent.conversation.result import TurnResult
from fsm_agent.dispatch.dispatcher import DIGEST, Dispatcher, cancel, dispatcher_of, submit
from fsm_agent.dispatch.follow import Follower
from fsm_agent.dispatch.worker import SHAPE, App, Worker
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.stored_sessions import find_session
from fsm_agent.settings import Settings
from fsm_agent.support.files import home_of
from fsm_agent.support.threads import in_a_loop

CHAT = "Write a message and press Enter. Ctrl-C interrupts a turn, twice leaves. /exit or Ctrl-D leaves."


def refuse_options(given: CliOptions) -> None:
    """Raise ``ConfigError`` for options that the app of the workers decides."""
    options = {
        "--model": given.model,
        "--base-url": given.base_url,
        "--api-key": given.api_key,
        "--max-iterations": given.max_iterations,
        "--max-cost": given.max_cost,
        "--max-tokens": given.max_tokens,
        "--max-seconds": given.max_seconds,
        "--tool": given.tools,
        "--yes": given.yes,
    }
    if wrong := [name for name, value in options.items() if value]:
        raise ConfigError(
            f"{wrong[0]} cannot be given with --remote", None, "what the app of the workers says"
        )


class Remote:
    """Queues messages of one session, one after the other, and shows their progress."""

    def __init__(self, given: CliOptions, live: ProgressView) -> None:
        refuse_options(given)
        # limits and the like are the app's as well: only the place of the queue is read here
        if other := [one for one in given.sets if not one.startswith(("dispatch.", "store."))]:
            allowed = "settings named dispatch.… or store.…"
            raise ConfigError("--set cannot be given with --remote", other[0], allowed)
        settings = settings_for(given.home, given.sets)
        self._store = store_of(given.home, settings)
        self._dispatcher: Dispatcher = dispatcher_of(settings.dispatch)
        self._live, self._reached = live, False
        self.session = None if given.session is None else find_session(self._store, given.session)

    async def say(self, content: Any) -> TurnResult:
        """Queue a message and wait for its result. Raises ``ConfigError`` and ``TurnSuspended``."""
        if not self._reached:  # a message that cannot be dispatched now must not run later, unexpected
            await self._dispatcher.about()
            self._reached = True
        order = await submit(self._store, self._dispatcher, content, self.session)
        self.session = order.session
        loop, withdrawing = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def interrupt() -> None:
            self._live.status("interrupted; press Ctrl-C again to leave")
            withdrawing.add(loop.create_task(cancel(self._store, self._dispatcher, order.turn)))

        self._live.restart()
        self._live.status(f"queued as turn {order.turn}")
        try:
            with ctrl_c(interrupt):
                result = await Follower(self._store, self._live).follow(order.turn)
            self._live.end(result)
        finally:
            await asyncio.gather(*withdrawing)
            self._live.stop()
        return result

    async def aclose(self) -> None:
        """Close the connection to the dispatcher."""
        await self._dispatcher.aclose()


def run_remote(
    text: str | None,
    given: CliOptions,
    as_json: bool,
    images: Sequence[str] = (),
    files: Sequence[str] = (),
    schema: str | None = None,
) -> int:
    """Queue one message and return the exit code of its turn, as ``run`` does."""
    if schema is not None:
        raise ConfigError(
            "--output-schema cannot be given with --remote", schema, "what the app of the workers says"
        )
    live = view_of(given, as_json)
    remote = Remote(given, live)
    parts = [part_of(one) for one in (*map(ImagePart, images), *map(FilePart, files))]
    words = words_of(text)
    try:
        result = in_a_loop(_one(remote, [{"type": "text", "text": words}, *parts] if parts else words))
    except TurnSuspended as waits:
        return report_suspension(waits, as_json)
    if as_json:
        print(json.dumps(result.model_dump(mode="json")))
    return code_of(result)


async def _one(remote: Remote, content: Any) -> TurnResult:
    try:
        return await remote.say(content)
    finally:
        await remote.aclose()


def chat_remote(given: CliOptions) -> int:
    """Talk with an agent that runs on workers, until the input ends. Returns 0."""
    live = ProgressView(console_of(sys.stderr), console_of(sys.stdout), verbose=given.verbose)
    remote = Remote(given, live)
    live.write(Text(f"  {CHAT}", "dim"))
    in_a_loop(_talk(remote, live, home_of(given.home, os.environ)))
    return 0


async def _talk(remote: Remote, live: ProgressView, home: Any) -> None:
    read = terminal_reader(home, lambda: "on a worker") if sys.stdin.isatty() else piped_reader(live)
    try:
        while (words := await read("")) is not None and words.strip() not in ("/exit", "/quit"):
            if not words.strip():
                continue
            try:
                await remote.say(words)
            except (ConfigError, TurnSuspended) as error:
                live.write(Text(clean(str(error)), "red"))
        if remote.session is not None:
            live.write(
                Text(f"  continue later: fsm-agent chat --remote --session {clean(remote.session)}", "dim")
            )
    finally:
        await remote.aclose()


SWEEPS = {True: (5.0, 5.0), False: (0.2, 0.0)}
"""Seconds between two searches for queued turns, and their minimum age: with Temporal, which is notified, and
without."""
KILLED = 130
"""Exit code after a second signal."""


def worker(
    name: Annotated[
        str,
        typer.Option("--app", metavar="MODULE:NAME", help="A function that returns the agent of a turn."),
    ],
    slots: Annotated[
        int | None, typer.Option(help="Turns that run at once; default: dispatch.slots.")
    ] = None,
    temporal: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A Temporal server; default: dispatch.temporal.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Of that server.")] = None,
    database_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A PostgreSQL database; better set in the environment."),
    ] = None,
    home: Home = None,
    sets: Sets = (),  # type: ignore[assignment]
) -> int:
    """Run queued turns until a signal comes.

    `run --remote`, `chat --remote` and programs queue them. The first signal hands the running turns over to
    another worker, the second one ends this process.
    """
    settings = settings_for(home, sets, database_url, slots=slots, temporal=temporal, namespace=namespace)
    store = store_of(home, settings)
    let_report(settings)
    app = App.of(attribute_of(name, "--app", f"MODULE:NAME of {SHAPE}"), name, store)
    dispatcher = dispatcher_of(settings.dispatch)
    in_a_loop(_serve(name, store, app, dispatcher, settings))
    return 0


async def _serve(name: str, store: Store, app: App, dispatcher: Dispatcher, settings: Settings) -> None:
    asked = settings.dispatch
    sweep, age = SWEEPS[asked.temporal is not None]
    serving = Worker(store, app, dispatcher, sweep=sweep, age=age, tell=_say)
    where = await dispatcher.about()  # a wrong address is reported before it serves
    _say(f"serves {name}, table {DIGEST}, {asked.slots} slots; {store.database.name}; dispatcher: {where}")
    await serving.run(asked.slots, _on_signals())
    _say("has left")


def _on_signals() -> asyncio.Event:
    """Return an event that the first termination signal sets; the second one ends this process."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def leave() -> None:
        if stop.is_set():
            os._exit(KILLED)  # as after kill -9: another worker continues
        _say("leaves: each turn stops after its next move, and another worker continues it")
        stop.set()

    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, leave)
    return stop


def _say(line: str) -> None:
    print(f"fsm-agent worker {os.getpid()}: {clean(line)}", file=sys.stderr, flush=True)
