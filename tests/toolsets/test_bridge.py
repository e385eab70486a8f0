"""Tools that no request names are found, and their calls are seen by everybody as what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.testing import ScriptedModel, call, text, tools
from fsm_agent.toolsets.tool_context import apply_bridge
from tests.helpers.families import offered, told
from tests.helpers.mcp_bench import program

TRUSTED = program() | {"trust": True, "approval": "never"}


def played(
    home: Path, script: list[Any], above: int | None = 3, mcp: Any = None, **options: Any
) -> tuple[Any, Any]:
    model = ScriptedModel(script)
    settings = {"tool": {"bridge_above": above}, "poll": {"control": 0.02}, **options.pop("settings", {})}
    with Agent(
        model, home=home, workdir=home, mcp={"s": mcp or TRUSTED}, toolsets=[], settings=settings, **options
    ) as one:
        return one.run_conversation("go"), model


def through(name: str, **arguments: Any) -> Any:
    return call("tool_call", {"name": name, "arguments": arguments})


def test_many_tools_are_found_and_called_through_two(tmp_path: Path) -> None:
    heard: list[Any] = []
    script = [
        tools(call("tool_search", {"query": "echo"})), tools(call("tool_search", {})),
        tools(through("s__echo", text="hello")), text("done"),
    ]  # fmt: skip
    callbacks = {"tool_start": lambda call_id, name, arguments: heard.append((name, arguments))}
    result, model = played(tmp_path, script, callbacks=callbacks)
    assert all(offered(body) == {"tool_search", "tool_call"} for body in model.requests)
    found, names, said = told(result)
    assert found["tools"][0]["name"] == "s__echo"
    assert "text" in found["tools"][0]["parameters"]["properties"]
    assert "s__echo" in names["names"]
    assert said == "hello"
    assert heard[-1] == ("s__echo", {"text": "hello"})
    assert result.completed


def test_few_tools_are_named_as_ever(tmp_path: Path) -> None:
    result, model = played(tmp_path, [tools(call("s__echo", {"text": "hello"})), text("ok")], above=500)
    assert "s__echo" in offered(model.requests[0])
    assert not offered(model.requests[0]) & {"tool_search", "tool_call"}
    assert told(result) == ["hello"]


@pytest.mark.behaviour("EXEC-34")
def test_an_approval_is_asked_for_the_tool_itself(tmp_path: Path) -> None:
    asked: list[Any] = []

    def approve(request: Any) -> bool:
        asked.append((request.name, dict(request.arguments), request.pattern))
        return False

    script = [tools(through("s__echo", text="x")), text("no")]
    result, _ = played(tmp_path, script, mcp=program(), callbacks={"approval": approve})
    assert asked == [("s__echo", {"text": "x"}, 's__echo({"text":"x"})')]
    assert told(result)[0].startswith("denied")
    # what is forbidden stays forbidden by its name
    ran: list[str] = []
    settings = {"approval": {"deny": ["s__echo"]}}
    callbacks = {"tool_start": lambda call_id, name: ran.append(name)}
    result, _ = played(
        tmp_path / "2", [tools(through("s__echo", text="x")), text("no")], settings=settings,
        callbacks=callbacks,
    )  # fmt: skip
    assert "forbidden" in told(result)[0]
    assert not ran


def test_calls_that_do_not_fit(tmp_path: Path) -> None:
    own = tool(effect="pure", name="own")(lambda: "mine")
    none, echo = "find its name with tool_search", {"name": "s__echo"}
    given = [
        ({"name": "nope"}, none), ({"name": "own"}, none), ({"name": "tool_call"}, none), ({}, none),
        (echo | {"arguments": [1]}, "must be a JSON object"),
        (echo | {"arguments": '{"text": "as text"}'}, "as text"),
        ({"name": "S-Echo", "arguments": {"text": "nearly"}}, "nearly"),
    ]  # fmt: skip
    calls = tools(*(call("tool_call", arguments) for arguments, _ in given))
    result, _ = played(tmp_path, [calls, text("ok")], tools=[own])
    for (arguments, words), said in zip(given, told(result), strict=True):
        assert words in said, arguments


def test_a_tool_that_is_there_needs_no_bridge() -> None:
    specs = [ToolSpec(name, "", {}) for name in ("a", "b", "c", "tool_search", "tool_call")]
    assert apply_bridge(specs, {"c"}, None) == tuple(specs)
    assert [one.name for one in apply_bridge(specs, {"c"}, 3)] == ["a", "b", "c"]
    assert [one.name for one in apply_bridge(specs, {"c"}, 2) if one.deferred] == ["c"]
    assert apply_bridge(specs[:3], {"c"}, 3) == tuple(specs[:3])
