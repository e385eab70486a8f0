"""Servers as processes of their own, and clients of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from fsm_agent.serve.keys import KeyRing
from fsm_agent.sessions.store import Store
from fsm_agent.support.threads import LOOP
from tests.helpers.waiting import until

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """One ``fsm-agent serve``. ``world``: the folder of its log, and where the tools of ``tests.dispatch.app`` count
    what they did. ``token`` is the one that it printed."""

    def __init__(
        self, world: Path, home: Path, *options: str, database_url: str | None = None, **variables: str
    ) -> None:
        self._log = world / f"server-{len(list(world.glob('server-*')))}.log"
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'states'}{os.pathsep}{ROOT}", "FSM_AGENT_HOME": str(home),
            "DISPATCH_WORLD": str(world), **variables,
        }  # fmt: skip
        if database_url is not None:
            environment["FSM_AGENT_STORE__DATABASE_URL"] = database_url
        words = [sys.executable, "-m", "fsm_agent.cli", "serve", *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=world)

    @property
    def said(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")

    def serves(self) -> ServerProcess:
        """Return when it serves."""
        until(lambda: "://" in self.said or self.process.poll() is not None, "a server")
        assert self.process.poll() is None, self.said
        return self

    @property
    def url(self) -> str:
        """Its address."""
        found = re.search(r"(https?://\S+)", self.said)
        assert found is not None, self.said
        return found[1]

    @property
    def token(self) -> str:
        """The token that it printed."""
        found = re.search(r"token (\S+)", self.said)
        assert found is not None, self.said
        return found[1]

    def client(self, key: str | None = None) -> httpx2.AsyncClient:
        """A client with a key, by default the token."""
        given = self.token if key is None else key
        return httpx2.AsyncClient(
            base_url=self.url, headers={"authorization": f"Bearer {given}"}, timeout=httpx2.Timeout(60, pool=None),
            limits=httpx2.Limits(max_connections=1000),
        )  # fmt: skip

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait()

    def leave(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def __enter__(self) -> ServerProcess:
        return self.serves()

    def __exit__(self, *error: object) -> None:
        self.kill()


def key_of(home: Path, *scopes: str, name: str = "Ann", database_url: str | None = None) -> str:
    """A stored key, as its owner sends it."""
    store = Store(home, database_url=database_url)
    try:
        return LOOP.run(KeyRing(store).add(name, scopes or ("run", "approve")))[1]
    finally:
        store.close()


async def told(
    client: httpx2.AsyncClient, turn: str, after: str = "", most: int = 10**9
) -> list[dict[str, Any]]:
    """The events of a turn behind ``after``: all of them, or the first ones, after which the client drops."""
    found: list[dict[str, Any]] = []
    headers = {"last-event-id": after} if after else {}
    async with client.stream("GET", f"/api/turns/{turn}/events", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                found.append({**fields, "data": json.loads(fields["data"])})
                fields = {}
                if len(found) >= most:
                    return found
    return found


def text_of(events: Sequence[dict[str, Any]]) -> str:
    """The text that a client shows: what is void is dropped."""
    shown: list[tuple[tuple[int, int], str]] = []
    for one in events:
        if one["event"] == "voided":
            after = place_of(one["data"]["values"]["after"])
            shown = [(place, text) for place, text in shown if place <= after and place != after]
        elif one["event"] == "stream_delta":
            shown.append((place_of(one["id"]), one["data"]["values"]["text"] or ""))
    return "".join(text for _, text in shown)


def place_of(event_id: str) -> tuple[int, int]:
    """The place in the journal that an event is behind."""
    seq, ordinal = event_id.partition("-")[0].split(".")
    return int(seq), int(ordinal)


@contextmanager
def servers(*started: ServerProcess) -> Iterator[Sequence[ServerProcess]]:
    """Several at once."""
    try:
        for one in started:
            one.serves()
        yield started
    finally:
        for one in started:
            one.kill()
