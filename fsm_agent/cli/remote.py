"""``run --remote`` and ``chat --remote``: turns that workers run, seen from here."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from fsm_agent.cli.dispatching import settings_for
from fsm_agent.cli.live import ProgressView
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.prompt import piped, typed
from fsm_agent.cli.run import code_of, ctrl_c, suspended, view_of, words_of
from fsm_agent.cli.screen import clean, console_of
from fsm_agent.conversation.parts import FilePart, ImagePart, part_of
from fsm_agent.conversation.result import TurnResult
from fsm_agent.dispatch.dispatcher import Dispatcher, cancel, dispatcher_of, submit
from fsm_agent.dispatch.follow import Follower
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.names import find_session
from fsm_agent.support.home import home_of
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
    """Queues messages of one session, one after the other, and shows what becomes of them."""

    def __init__(self, given: CliOptions, live: ProgressView) -> None:
        refuse_options(given)
        # limits and the like are the app's as well: only where turns are queued is read here
        if other := [one for one in given.sets if not one.startswith(("dispatch.", "store."))]:
            allowed = "settings named dispatch.… or store.…"
            raise ConfigError("--set cannot be given with --remote", other[0], allowed)
        settings = settings_for(given.home, given.sets)
        self._store: Store = store_for(
            home_of(given.home, os.environ), settings.store.durability, settings.store.database
        )
        self._dispatcher: Dispatcher = dispatcher_of(settings.dispatch)
        self._live, self._reached = live, False
        self.session = None if given.session is None else find_session(self._store, given.session)

    async def said(self, content: Any) -> TurnResult:
        """Queue a message and wait for its result. Raises ``ConfigError`` and ``TurnSuspended``."""
        if not self._reached:  # what cannot be handed out now is not queued for later behind somebody's back
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
                result = await Follower(self._store, self._live).followed(order.turn)
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
        return suspended(waits, as_json)
    if as_json:
        print(json.dumps(result.model_dump(mode="json")))
    return code_of(result)


async def _one(remote: Remote, content: Any) -> TurnResult:
    try:
        return await remote.said(content)
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
    read = typed(home, lambda: "on a worker") if sys.stdin.isatty() else piped(live)
    try:
        while (words := await read("")) is not None and words.strip() not in ("/exit", "/quit"):
            if not words.strip():
                continue
            try:
                await remote.said(words)
            except (ConfigError, TurnSuspended) as error:
                live.write(Text(clean(str(error)), "red"))
        if remote.session is not None:
            live.write(
                Text(f"  go on later: fsm-agent chat --remote --session {clean(remote.session)}", "dim")
            )
    finally:
        await remote.aclose()
