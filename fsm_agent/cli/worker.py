"""``fsm-agent worker``: run turns that others queue."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from fsm_agent.cli.arguments import attribute_of
from fsm_agent.cli.dispatching import settings_for
from fsm_agent.cli.exporting import telemetry_of
from fsm_agent.cli.screen import clean
from fsm_agent.dispatch.dispatcher import DIGEST, Dispatcher, dispatcher_of
from fsm_agent.dispatch.worker import SHAPE, App, Worker
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.settings.model import ENV_PREFIX, Settings
from fsm_agent.support.home import home_of
from fsm_agent.support.threads import in_a_loop

SWEEPS = {True: (5.0, 5.0), False: (0.2, 0.0)}
"""Seconds between two looks for queued turns, and how old they are: with Temporal, which was told of them,
and without."""
KILLED = 130
"""Exit code after a second signal."""


def worker(
    name: str,
    home: str | None,
    sets: list[str],
    slots: int | None,
    temporal: str | None,
    namespace: str | None,
    database_url: str | None = None,
) -> int:
    """Serve until a signal comes: ``SIGTERM`` or Ctrl-C hands the turns over that run, a second one leaves at
    once. Returns 0. Raises ``ConfigError``."""
    settings = settings_for(home, sets, database_url, slots=slots, temporal=temporal, namespace=namespace)
    store = store_for(home_of(home, os.environ), settings.store.durability, settings.store.database)
    if telemetry_of(settings):  # for the agents that the app makes
        os.environ.setdefault(f"{ENV_PREFIX}TELEMETRY__ENABLED", "true")
    app = App.of(attribute_of(name, "--app", f"MODULE:NAME of {SHAPE}"), name, store)
    dispatcher = dispatcher_of(settings.dispatch)
    in_a_loop(_serve(name, store, app, dispatcher, settings))
    return 0


async def _serve(name: str, store: Store, app: App, dispatcher: Dispatcher, settings: Settings) -> None:
    asked = settings.dispatch
    sweep, age = SWEEPS[asked.temporal is not None]
    serving = Worker(store, app, dispatcher, sweep=sweep, age=age, tell=_say)
    where = await dispatcher.about()  # an address that is wrong is said before it serves
    _say(f"serves {name}, table {DIGEST}, {asked.slots} slots; {store.database.name}; dispatcher: {where}")
    await serving.run(asked.slots, _on_signals())
    _say("has left")


def _on_signals() -> asyncio.Event:
    """Set by the first signal that asks this process to end; the second one ends it."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def leave() -> None:
        if stop.is_set():
            os._exit(KILLED)  # as after kill -9: another worker goes on
        _say("leaves: each turn stops behind its next move, and another worker goes on with it")
        stop.set()

    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, leave)
    return stop


def _say(line: str) -> None:
    print(f"fsm-agent worker {os.getpid()}: {clean(line)}", file=sys.stderr, flush=True)
