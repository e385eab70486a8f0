"""Real servers, spoken with by the protocol's own client from npm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.peers.environment import PeerUnavailable, peer_package
from tests.serve.agui_rules import said
from tests.serve.processes import ServerProcess, key_of

pytest.importorskip("ag_ui")
pytestmark = pytest.mark.slow
CLIENT = ("@ag-ui/client", "1.0.0")
APP = ("--app", "tests.browser.agui_app:make_agent")
SCRIPT = Path(__file__).with_name("agui_client.mjs")


class NodeClient:
    """One client of one thread, in a process of its own."""

    def __init__(self, url: str, key: str, thread: str) -> None:
        try:
            folder = peer_package(*CLIENT)
        except PeerUnavailable as error:
            pytest.skip(str(error))
        words = ["node", str(SCRIPT), str(folder), url, key, thread]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, say: str = "", **more: Any) -> dict[str, Any]:
        """What the client has after a run."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"say": say, **more}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@contextmanager
def client_of(server: ServerProcess, thread: str = "th-1", key: str = "") -> Iterator[NodeClient]:
    client = NodeClient(server.url, key or server.token, thread)
    try:
        yield client
    finally:
        client.process.kill()
        client.process.communicate()


def test_a_conversation_with_a_tool_and_one_who_joins(tmp_path: Path, home: Path) -> None:
    with ServerProcess(tmp_path, home, *APP) as server, client_of(server) as client:
        first = client.run("how is the weather?")
        assert (first["failed"], first["errors"]) == ("", [])
        assert first["result"]["exit"] == "text_response"
        assert said(first["messages"])[1:4] == [
            "assistant: Let me look.", 'call: look_up {"city": "Oslo"}', "tool: In Oslo it is 12 degrees.",
        ]  # fmt: skip
        assert (first["state"]["state"], first["state"]["counters"]["iterations"]) == ("Finalize", 2)
        second = client.run("and tomorrow?")
        assert len(said(second["messages"])) == 10
        assert "MESSAGES_SNAPSHOT" not in second["events"]
        joined = client.run(forget=True)
        assert said(joined["messages"]) == said(second["messages"])
        refused = client.run("hi", more={"tools": [{"name": "pick", "description": "Pick."}]})
        assert "tools of the client are not supported: pick" in refused["failed"]
        with client_of(server, "th-2", "wrong") as stranger:
            assert "HTTP 401" in stranger.run("hi")["failed"]


def test_an_interrupt_is_answered_at_another_server(tmp_path: Path, home: Path) -> None:
    key = key_of(home)
    with ServerProcess(tmp_path, home, *APP) as server, client_of(server, key=key) as client:
        first = client.run("write a mail")
        (asked,) = first["interrupts"]
        assert (asked["reason"], asked["toolCallId"]) == ("tool_call", "m1")
        refused = client.run("and now?")
        assert "pending interrupt" in refused["failed"]  # its own rule
        server.kill()
    answer = [{"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}]
    with ServerProcess(tmp_path, home, *APP) as server, client_of(server, key=key) as client:
        joined = client.run()
        assert joined["interrupts"] == [asked]
        assert said(joined["messages"]) == said(first["messages"])
        second = client.run(resume=answer)
        assert (second["failed"], second["errors"], second["interrupts"]) == ("", [], [])
        assert "TOOL_CALL_START" not in second["events"]
        assert said(second["messages"])[-2:] == [
            "tool: sent to ann@example.org", "assistant: The mail: sent to ann@example.org",
        ]  # fmt: skip


def test_a_client_that_drops_joins_the_run_and_has_everything_once(tmp_path: Path, home: Path) -> None:
    with ServerProcess(tmp_path, home, *APP) as server, client_of(server) as client:
        dropped = client.run("something long", more={"runId": "run-1"}, stopAfter="TOOL_CALL_END")
        assert "RUN_FINISHED" not in dropped["events"]
        whole = client.run(more={"runId": "run-1"})
        assert (whole["failed"], whole["errors"]) == ("", [])
        assert [line.partition(" ")[0] for line in said(whole["messages"])] == [
            "user:", "assistant:", "call:", "tool:", "assistant:",
        ]  # fmt: skip
        assert whole["events"].count("TOOL_CALL_START") == 1


def test_a_server_is_killed_while_a_tool_runs_and_another_one_goes_on(tmp_path: Path, home: Path) -> None:
    key = key_of(home)
    with ServerProcess(tmp_path, home, *APP) as server, client_of(server, key=key) as client:
        client.run("something long", more={"runId": "run-1"}, stopAfter="TOOL_CALL_END")
        server.kill()
    with ServerProcess(tmp_path, home, *APP) as server, client_of(server, key=key) as client:
        whole = client.run(more={"runId": "run-2"})
        assert (whole["failed"], whole["errors"]) == ("", [])
        lines = said(whole["messages"])
        assert lines[0] == "user: something long"
        assert lines[-1].startswith("assistant: word0 word1")
        assert len(lines) == len(set(lines)) == 5
