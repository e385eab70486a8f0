"""What an agent may do, and what a provider learns of the machine, when nobody gave it more: counted at a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.composition.options import DEFAULT_TOOLSETS
from fsm_agent.errors import ConfigError
from fsm_agent.testing import ScriptedModel, ScriptedServer, call, repeat, text, tools

ROOT = Path(__file__).parents[2]
MARK = "SECRET-OF-THE-MACHINE"
FORMS = [("chat_completions", "openai"), ("codex_responses", "openai"), ("anthropic_messages", "anthropic")]


@tool(effect="pure")
def lookup(city: str) -> str:
    return f"{city}: sunny"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder and a home that are full of what an agent of this machine reads."""
    home, work = tmp_path / "home", tmp_path / "SECRET-folder"
    for folder in (home / "skills" / "one", work / ".agents" / "skills" / "two"):
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: {MARK}\n---\n")
    for file in ("SOUL.md", "MEMORY.md", "USER.md"):
        (home / file).write_text(MARK)
    for file in ("AGENTS.md", "CLAUDE.md", "FSM_AGENT.md"):
        (work / file).write_text(MARK)
    (home / "config.toml").write_text("[mcp.servers.local]\ncommand = 'no-such-program'\n")
    monkeypatch.chdir(work)
    monkeypatch.setenv("FSM_AGENT_HOME", str(home))
    return work


def told(body: dict[str, Any]) -> str:
    """The system prompt of a request of any form."""
    rows = [row for row in body.get("messages", ()) if row["role"] in ("system", "developer")]
    said = body.get("instructions") or body.get("system") or "".join(row["content"] for row in rows)
    return said if isinstance(said, str) else "".join(part["text"] for part in said)


def offered(body: dict[str, Any]) -> list[str]:
    return [one.get("name") or one["function"]["name"] for one in body.get("tools", ())]


@pytest.mark.behaviour("AGT-11")
def test_the_first_program_of_the_readme_sends_its_prompt_and_its_tool_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    names: dict[str, Any] = {}
    script = [tools(call("lookup", {"city": "Oslo"})), text("Sunny."), text("Rome, too.")]
    with ScriptedServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        exec(program[1], names)
        names["agent"].close()
    assert [(told(body), offered(body)) for body in server.bodies] == [
        ("You answer questions about the weather.", ["lookup"])
    ] * 3
    sent = json.dumps(server.bodies)
    assert not [word for word in (MARK, "SECRET-folder", "Python:", "Date:", "Work until") if word in sent]


@pytest.mark.parametrize(("form", "provider"), FORMS)
@pytest.mark.behaviour("PROMPT-21")
def test_without_built_in_tools_the_prompt_is_the_one_given_on_every_wire(
    form: str, provider: str, place: Path
) -> None:
    with ScriptedServer(repeat(text("hi"))) as server:
        for prompt in ("You are a bank clerk.", "", None):
            with Agent(
                f"{provider}:m", base_url=server.url, api_key="k", api_mode=form, tools=[lookup], system_prompt=prompt
            ) as agent:  # fmt: skip
                assert agent.chat("hello") == "hi"
    first, empty, none = map(told, server.bodies)
    assert (first, empty) == ("You are a bank clerk.", "")
    assert none.startswith("You are a capable assistant.\n\nWork until")
    sent = json.dumps(server.bodies)
    assert not [word for word in (MARK, "SECRET-folder", "System:", "Date:") if word in sent]


@pytest.mark.parametrize(
    ("asked", "there", "not_there"),
    [
        ({"machine": True}, ("Working directory: ", "System: ", "Date: "), (MARK, "Work until")),
        ({"context_files": True}, (MARK,), ("Working directory: ", "Date: ", "Work until")),
        ({"enforce_tool_use": True}, ("make the tool call",), ("Working directory: ", MARK)),
    ],
)
@pytest.mark.behaviour("PROMPT-21")
def test_a_setting_brings_a_part_of_the_rest_back(
    asked: dict[str, Any], there: tuple[str, ...], not_there: tuple[str, ...], place: Path
) -> None:
    model = ScriptedModel([text("hi")])
    Agent(model, tools=[lookup], system_prompt="A clerk.", settings={"prompt": asked}).chat("go")
    prompt = told(model.requests[0])
    assert prompt.startswith("A clerk.\n\n")
    assert [one for one in there if one not in prompt] == [one for one in not_there if one in prompt] == []


@pytest.mark.behaviour("PROMPT-21")
def test_with_built_in_tools_all_layers_are_there_unless_a_setting_leaves_one_out(place: Path) -> None:
    for prompt, missing in (
        ({}, []),
        ({"machine": False, "context_files": False}, ["Working directory: ", "Date: "]),
    ):
        model = ScriptedModel([text("hi")])
        options: dict[str, Any] = {"system_prompt": "A clerk.", "settings": {"prompt": prompt}}
        Agent(model, toolsets="default", mcp={}, **options).chat("go")
        said = told(model.requests[0])
        layers = [
            "A clerk.",
            "Work until",
            "# Skills",
            "# Memory",
            "# The user",
            "Working directory: ",
            "Date: ",
        ]
        assert [layer for layer in layers if layer not in said] == missing
        assert ("# Instructions of this project" in said) == (not missing)


def has(agent: Agent[Any, Any]) -> set[str]:
    with agent:
        return {one.name for one in agent.tools} & {"lookup", "terminal", "write_file", "web_fetch", "memory"}


@pytest.mark.behaviour("AGT-11")
def test_tools_that_are_named_are_all_that_there_are(place: Path) -> None:
    other = Agent("offline:demo", name="other", tools=[])
    built_in = {"terminal", "write_file"}
    assert has(Agent("offline:demo", tools=[lookup])) == {"lookup"}
    assert has(Agent("offline:demo", tools=[])) == set()
    assert has(Agent("offline:demo", handoffs=[other])) == set()
    assert has(Agent("offline:demo", mcp={"x": {"command": "no-such-program"}})) == set()
    assert has(Agent("offline:demo", tools=[lookup], toolsets=["web"])) == {"lookup", "web_fetch"}
    assert has(Agent("offline:demo", tools=[lookup], toolsets="default")) >= {"lookup", *built_in}
    assert has(Agent("offline:demo", toolsets=["default", "web"])) >= {"web_fetch", *built_in}
    assert has(Agent("offline:demo")) >= built_in
    assert Agent("offline:demo").options["toolsets"] == DEFAULT_TOOLSETS


@pytest.mark.parametrize("given", ["core", 7, ["nonsense"]])
def test_toolsets_that_there_are_not_are_one_line(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"toolset.*; given: .*; allowed: .*default"):
        Agent("offline:demo", toolsets=given)


@pytest.mark.behaviour("AGT-11")
def test_a_child_has_no_more_than_its_parent_was_given(place: Path) -> None:
    child = Agent(ScriptedModel([text("done")]), name="child", tools=[lookup], system_prompt="A child.")
    boss = Agent(ScriptedModel([tools(call("child", {"task": "go"})), text("ok")]), tools=[child.as_tool()])
    boss.chat("go")
    model = child.options["model"]
    assert isinstance(model, ScriptedModel)
    body = model.requests[0]
    assert told(body).startswith("A child.\n\nYou work on one task for another assistant.")
    assert (MARK in str(body), offered(body)) == (False, ["lookup"])
    model = ScriptedModel([tools(call("delegate_task", {"goal": "look"})), text("child"), text("ok")])
    Agent(model, tools=[lookup], toolsets=["delegate"], mcp={}).chat("go")
    assert [set(offered(one)) - {"delegate_task"} for one in model.requests] == [{"lookup"}] * 3
