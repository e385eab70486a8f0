"""Servers as processes of their own, and clients of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from fsm_agent.serve.keys import KeyRing
from fsm_agent.sessions.store import Store
from fsm_agent.support.threads import LOOP
from tests.helpers.processes import CommandProcess


class ServerProcess(CommandProcess):
    """One ``fsm-agent serve``. ``token`` is the one that it printed."""

    sign = "://"

    def __init__(
        self, world: Path, home: Path, *options: str, database_url: str | None = None, **variables: str
    ) -> None:
        super().__init__(world, home, "serve", *options, database_url=database_url, **variables)

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
