"""The page for those who come from another library: each pair of programs prints the same, theirs in an
environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.testing import ScriptedServer, call, repeat, text, tools
from tests.peers.environment import PeerUnavailable, peer_python

pytestmark = [pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
PEERS = {
    "Pydantic AI": ("pydantic-ai-slim[openai]", "2.68.0", "item='lamp' left=3\n"),
    "the OpenAI Agents SDK": ("openai-agents", "0.24.0", "billing It is on its way.\nrefused\n"),
    "LangGraph": ("langchain[openai]", "1.4.7", "Three lamps.\nYou asked for lamps.\n"),
    "Hermes Agent": ("hermes-agent", "0.19.0", "Three lamps. True 2\n"),
}
"""By the title on the page: distribution, version, and what both programs print."""


def programs(peer: str) -> tuple[str, str]:
    """Theirs and ours."""
    section = PAGE.split(f"\n## From {peer}\n")[1].split("\n## ")[0]
    theirs, ours = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return theirs, ours


def model(received: Any) -> Any:
    """Answers from what it is asked, on either wire of the vendor."""
    body = received.body
    rows = body.get("messages") or body["input"]
    names = {one.get("name") or one["function"]["name"] for one in body.get("tools", ())}
    asked = [str(row["content"]) for row in rows if row.get("role") == "user"]
    done = rows[-1].get("role") == "tool" or rows[-1].get("type") == "function_call_output"
    over = [name for name in names if name.startswith("transfer_to_")]
    if over and not done:
        return tools(call(over[0], {}))
    if "what did I ask" in asked[-1]:
        return text("You asked for lamps." if "lamps" in asked[0] else "Nothing.")
    if "left" in names and not done:
        return tools(call("left", {"item": "lamp"}))
    if "final_result" in names:
        return tools(call("final_result", {"item": "lamp", "left": 3}))
    if "response_format" in body or "format" in body.get("text", {}):
        return text('{"item": "lamp", "left": 3}')
    return text("It is on its way." if "money" in str(rows) else "Three lamps.")


def printed(python: Path, program: str, home: Path) -> str:
    home.mkdir()
    (home / "program.py").write_text(program)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with ScriptedServer(repeat(model)) as server:
        env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k", "HOME": str(home)}
        env |= {"FSM_AGENT_HOME": str(home / "home"), "HERMES_HOME": str(home / "home")}
        done = subprocess.run(
            [python, "program.py"], cwd=home, env=env, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_page_has_every_peer() -> None:
    assert re.findall(r"^## From (.*)$", PAGE, re.MULTILINE) == list(PEERS)


@pytest.mark.parametrize("peer", PEERS)
def test_our_program_prints_what_the_page_means(peer: str, tmp_path: Path) -> None:
    assert printed(Path(sys.executable), programs(peer)[1], tmp_path / "ours") == PEERS[peer][2]


@pytest.mark.parametrize("peer", PEERS)
def test_theirs_prints_the_same(peer: str, tmp_path: Path) -> None:
    distribution, version, says = PEERS[peer]
    try:
        python = peer_python(distribution, version)
    except PeerUnavailable as why:
        pytest.skip(str(why))
    assert printed(python, programs(peer)[0], tmp_path / "theirs") == says
