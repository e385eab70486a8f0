"""MCP servers in whole turns: through an agent, with its approvals, notices, results and store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, TurnResult
from fsm_agent.support.installation import install_command
from fsm_agent.testing import ScriptedModel, call, text, tools
from tests.helpers.families import offered
from tests.helpers.harness import Heard
from tests.helpers.mcp_bench import PATIENT, program
from tests.helpers.processes import children, environment, printed, ran


@contextmanager
def with_servers(
    script: list[Any], mcp: dict[str, Any] | None, home: Path, **options: Any
) -> Iterator[tuple[Agent, ScriptedModel, Heard]]:
    model, heard = ScriptedModel(script), Heard()
    own = options.pop("callbacks", {})
    given: Any = {"home": home, "workdir": home, "mcp": mcp, "toolsets": [] if mcp is not None else ["mcp"]}
    settings = {"poll": {"control": 0.01}, "mcp": PATIENT}
    with Agent(model, settings=settings, callbacks=heard.functions(**own), **given, **options) as made:
        yield made, model, heard


def last_result(result: TurnResult) -> Any:
    return [row for row in result.messages if row["role"] == "tool"][-1]["content"]


FREE = {"s": program() | {"approval": "never"}}


def test_a_turn_calls_the_tools_of_a_server(tmp_path: Path) -> None:
    before = children()
    script = [
        tools(call("s__echo", {"text": "hello"})), text("it said hello"), text("again"),
        tools(call("s__blocks")), text("a pixel"), tools(call("s__big", {"size": 300_000})), text("long"),
        tools(call("s__die")), tools(call("s__echo", {"text": "back"})), text("it came back"),
    ]  # fmt: skip
    with with_servers(script, FREE, tmp_path) as (one, model, heard):
        assert children() <= before, "nothing is started before the first turn"
        result = one.run_conversation("say hello")
        assert (result.final_response, last_result(result)) == ("it said hello", "hello")
        assert "s__echo" in offered(model.requests[0])
        assert heard.of("tool_complete")[0][3:] == ("hello", "ok")
        assert not [line for line in heard.of("status") if "MCP" in line]
        one.chat("and now?")
        first, _, third = (body["messages"][0]["content"] for body in model.requests)
        assert first == third, "the prompt does not change because a server came"
        # an image reaches the model as one, a long result goes to a file
        one.chat("look")
        assert "data:image/png;base64,iVBOR" in str(model.requests[-1])
        assert "inside b" in str(model.requests[-1])
        one.chat("long")
        sent = model.requests[-1]["messages"][-1]["content"]
        assert len(sent) < 5_000
        assert "the whole result is in" in sent
        # a server that dies in a turn does not end it
        assert one.run_conversation("try").completed
        assert [values[4] for values in heard.of("tool_complete")][-2:] == ["unknown", "ok"]
    assert children() <= before


def test_a_fork_has_the_tools_of_servers_that_its_own_agent_started(tmp_path: Path) -> None:
    with with_servers([tools(call("s__echo", {"text": "hello"})), text("end")], FREE, tmp_path) as (
        one,
        _,
        _,
    ):
        turn = one.run_conversation("say hello").turn_id
    with with_servers([text("end")], FREE, tmp_path) as (other, model, _):
        assert last_result(other.fork(turn, 3, {"rerun_tools": True}).run()) == "hello"
        assert "s__echo" in offered(model.requests[0])


def test_a_person_is_asked_for_what_is_not_known_to_only_read(tmp_path: Path) -> None:
    """Whatever the server says of its tools, as long as the user does not trust it."""
    note = call("s__note", {"path": str(tmp_path / "x"), "text": "!"})
    script = [tools(note, call("s__echo", {"text": "?"})), text("done")]
    with with_servers(script, {"s": program()}, tmp_path) as (one, _, heard):
        result = one.run_conversation("write")
        denied = [row["content"] for row in result.messages if row["role"] == "tool"]
        assert ["denied: no person is there to approve it" in row for row in denied] == [True, True]
        assert heard.of("tool_start") == []
    assert not (tmp_path / "x").exists()
    asked: list[str] = []
    person = {"approval": lambda request: asked.append(request.name) or "once"}
    with with_servers(script, {"s": program() | {"trust": True}}, tmp_path, callbacks=person) as (one, _, _):
        one.chat("write")
    assert asked == ["s__note"], "the trusted server says that echo only reads"
    assert (tmp_path / "x").read_text() == "!"


def test_a_missing_server_is_told_and_a_late_one_comes_with_the_next_turn(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    servers = {"s": program(starts=str(starts), start="die"), "good": program()}
    with with_servers([text("one"), text("two"), text("three")], servers, tmp_path) as (one, model, heard):
        one.chat("go")
        told = [line for line in heard.of("status") if "MCP" in line]
        assert len(told) == 1
        assert told[0].startswith("MCP server s: missing, the process ended with status 3: cannot begin")
        assert "good__echo" in offered(model.requests[0])
        one.chat("continue")
        assert len([line for line in heard.of("status") if "MCP" in line]) == 1


def test_servers_come_from_the_config_file_in_the_home(tmp_path: Path) -> None:
    command = program()
    table = f"command = {command['command']!r}\nargs = {command['args']!r}\napproval = 'never'\n"
    (tmp_path / "config.toml").write_text(f"[mcp.servers.local]\n{table}")
    script = [tools(call("local__echo", {"text": "from the file"})), text("ok")]
    with with_servers(script, None, tmp_path) as (one, _, _):
        assert last_result(one.run_conversation("go")) == "from the file"
    with with_servers([text("none")], {}, tmp_path) as (one, model, _):
        one.chat("go")
        assert not offered(model.requests[0])


@pytest.mark.slow
def test_the_sdk_is_loaded_only_for_a_server_that_is_started(tmp_path: Path) -> None:
    script = f"""
import sys
from fsm_agent import Agent
from fsm_agent.testing import ScriptedModel, text
agent = Agent(ScriptedModel([text("hi")]), home={str(tmp_path)!r}, mcp={{"s": {program()!r}}})
assert "mcp" not in sys.modules
agent.chat("hi")
assert "mcp" in sys.modules
agent.close()
"""
    printed("-c", script)


@pytest.mark.slow
def test_without_the_sdk_there_is_one_clear_line(tmp_path: Path) -> None:
    script = f"""
import sys
from fsm_agent import Agent
from fsm_agent.errors import ConfigError
from fsm_agent.testing import ScriptedModel
sys.modules["mcp"] = None  # as if it were not installed
Agent(ScriptedModel([]), home={str(tmp_path)!r}).close()
try:
    Agent(ScriptedModel([]), home={str(tmp_path)!r}, mcp={{"s": {{"command": "x"}}}})
except ConfigError as error:
    print(error)
"""
    done = ran("-c", script)
    missing = "MCP servers are configured and the MCP SDK is not installed; given: s; allowed: "
    assert done.stdout == f"{missing}{install_command('mcp')}, or no MCP servers\n", done.stderr


def doctor(home: Path) -> tuple[int, str]:
    """Its exit code and its line about MCP servers."""
    env = environment(FSM_AGENT_MCP__START_TIMEOUT="60")
    done = ran("-m", "fsm_agent", "doctor", "--home", home, env=env)
    (line,) = [line for line in done.stdout.splitlines() if "mcp servers" in line]
    return done.returncode, line


@pytest.mark.slow
def test_doctor_starts_the_servers_and_says_what_is_missing(tmp_path: Path) -> None:
    before, command = children(), program()
    table = f"command = {command['command']!r}\nargs = {command['args']!r}\n"
    (tmp_path / "config.toml").write_text(f"[mcp.servers.here]\n{table}")
    assert doctor(tmp_path) == (0, "ok       mcp servers    here: ready with 15 tools")
    lost = "[mcp.servers.lost]\ncommand = 'no-such-program'\n"
    (tmp_path / "config.toml").write_text(f"[mcp.servers.here]\n{table}{lost}")
    code, line = doctor(tmp_path)
    assert code == 1
    why = "lost: missing, there is no command 'no-such-program'"
    assert line.startswith(f"problem  mcp servers    here: ready with 15 tools, {why}")
    (tmp_path / "config.toml").write_text("[mcp.servers.lost]\ncomand = 'x'\n")
    assert "unknown key mcp.servers.lost.comand" in doctor(tmp_path)[1]
    assert children() <= before
