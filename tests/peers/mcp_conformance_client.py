"""Our client of MCP servers, as the conformance suite starts it: ``python -m … ADDRESS``. It logs in where the
scenario wants that, lists the tools, and calls each of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from fsm_agent.conversation.effects import RunTool
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import SystemClock
from fsm_agent.settings import Settings
from fsm_agent.support.threads import Interrupt
from fsm_agent.tools import ToolRunner
from fsm_agent.toolsets.mcp import McpServers
from fsm_agent.toolsets.mcp.config import ServerConfig
from fsm_agent.toolsets.mcp.elicitation import DEFAULTS
from fsm_agent.toolsets.mcp.oauth import log_in

ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}


async def browse(address: str) -> None:
    """Open an address as a person's browser does, who agrees at once."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        await browser.get(address)


async def find_issuer(url: str) -> str:
    """The authorization server of the scenario, which the person who writes the config file knows."""
    address = urlsplit(url)
    where = f"{address.scheme}://{address.netloc}/.well-known/oauth-protected-resource{address.path}"
    async with httpx2.AsyncClient(trust_env=False) as client:
        return str((await client.get(where)).json()["authorization_servers"][0])


def clarify(question: str, choices: Sequence[str]) -> str:
    """A person who sends the defaults."""
    return DEFAULTS if DEFAULTS in choices else choices[0]


async def main(url: str) -> None:
    home = Path(tempfile.mkdtemp())
    scenario, context = os.environ["MCP_CONFORMANCE_SCENARIO"], os.environ.get("MCP_CONFORMANCE_CONTEXT")
    given: dict[str, Any] = {"url": url, "approval": "never"}
    if scenario.startswith("auth/"):
        known = json.loads(context or "{}")
        names = {
            "client_id": "client_id",
            "client_secret": "client_secret",
            "private_key_pem": "private_key",
            "signing_algorithm": "algorithm",
        }
        given["oauth"] = {ours: known[name] for name, ours in names.items() if name in known} | {
            "client_metadata_url": "https://conformance-test.local/client-metadata.json"
        }
        if scenario.startswith("auth/client-credentials-"):
            given["oauth"]["issuer"] = await find_issuer(url)
        else:
            await log_in("s", ServerConfig.model_validate(given), home, {}, browse, 25)
    settings = Settings.of({"mcp": {"start_timeout": 25, "connect_timeout": 25}})
    servers = McpServers.of(
        {"s": given}, home=home, workdir=home, clock=SystemClock(), settings=settings,
        callbacks=Callbacks({"clarify": clarify}),
    )  # fmt: skip
    assert servers is not None
    runner = ToolRunner([], clock=SystemClock(), more=servers)
    for line in await runner.ready(Interrupt()):
        print(line, file=sys.stderr)
    for spec in runner.specs:
        request = RunTool("c", spec.name, ARGUMENTS.get(spec.name.removeprefix("s__"), {}), 25)
        print(spec.name, await runner.run(request, Interrupt()))
    await runner.aclose()


asyncio.run(main(sys.argv[1]))
