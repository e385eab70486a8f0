"""``fsm-agent mcp serve`` as a process of its own, asked by the official SDK's client over both transports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.helpers.processes import environment
from tests.helpers.waiting import until
from tests.serve.test_mcp import ERAS, Person, words

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
APP = '''
import os
from pathlib import Path
from fsm_agent import Agent, tool

@tool(approval="ask")
def pay(invoice: int) -> str:
    """Pay an invoice."""
    with Path(os.environ["PAID"]).open("a") as file:
        file.write(f"{invoice}\\n")
    return f"paid {invoice}"

@tool(effect="pure")
def wait(path: str) -> str:
    """Wait for a file."""
    import time
    while not Path(path).exists():
        time.sleep(0.01)
    return "it is there"

def make_agent():
    return Agent("offline:demo", toolsets=[], tools=[pay, wait])
'''


class Place:
    """A folder with the agent's module, and how to start its server there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paid = folder, folder / "paid"
        (folder / "app.py").write_text(APP)
        self.env = environment(
            FSM_AGENT_HOME=str(folder / "home"), PAID=str(self.paid), PYTHONPATH=_path(folder)
        )

    def command(self, *options: str) -> list[str]:
        words = ["mcp", "serve", "--app", "app:make_agent", "--offer", "pay", "--offer", "wait", *options]
        return [sys.executable, "-m", "fsm_agent.cli", *words]

    @contextmanager
    def http(self, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
        """The process, its address, and its token."""
        said = self.folder / "said"
        with said.open("w") as log:
            process = subprocess.Popen(
                self.command("--http", *options), env=self.env, cwd=self.folder, stderr=log, text=True
            )
        try:
            until(lambda: "token" in said.read_text() or process.poll() is not None, "a server")
            found = re.search(r"(http://\S+)  token (\S+)", said.read_text())
            assert found, said.read_text()
            yield process, found[1], found[2]
        finally:
            process.kill()
            process.wait()
            assert "Traceback" not in said.read_text(), said.read_text()


def _path(folder: Path) -> str:
    return os.pathsep.join((str(folder), str(ROOT), str(ROOT / "states")))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@asynccontextmanager
async def client(place: Place, transport: str, **options: Any) -> AsyncIterator[Client]:
    """A client of a server that is started for it."""
    if transport == "stdio":
        first, *rest = place.command()
        parameters = StdioServerParameters(command=first, args=rest, env=place.env, cwd=place.folder)
        async with Client(stdio_client(parameters), **options) as made:
            yield made
        return
    with place.http() as (_, url, token):
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as web,
            Client(streamable_http_client(f"{url}/mcp", http_client=web), **options) as made,
        ):
            yield made


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_the_official_client_asks_calls_and_is_asked(place: Place, transport: str, era: str) -> None:
    person = Person({"decision": "once"}, None, {"decision": "once"})
    moves: list[str | None] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        moves.append(message)

    async with client(place, transport, mode=era, elicitation_callback=person.elicit) as made:
        assert [one.name for one in (await made.list_tools()).tools] == ["ask", "pay", "wait"]
        assert words(await made.call_tool("pay", {"invoice": 7})) == "paid 7"
        refused = await made.call_tool("pay", {"invoice": 8})
        assert refused.is_error
        told = await made.call_tool("ask", {"message": "Please call pay(9)."}, progress_callback=heard)
        assert not told.is_error, words(told)
    assert place.paid.read_text().split() == ["7", "9"]
    assert "runs pay" in moves
