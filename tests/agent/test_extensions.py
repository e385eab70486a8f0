"""Extensions: a feature in one class, of a program or of an installed package; and what one that fails costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fsm_agent import Agent, tool
from fsm_agent.conversation.effects import CallModel, RunTool, ToolOutcome
from fsm_agent.errors import ConfigError
from fsm_agent.extension import Check, Extension
from fsm_agent.hooks import Hooks
from fsm_agent.runtime.events import Event
from fsm_agent.testing import ScriptedModel, call, text, tools
from tests.helpers.harness import MakeAgent
from tests.helpers.processes import environment, printed, ran

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "extension"


class Limit(BaseModel, extra="forbid"):
    most: int = 5


class Notes(Extension):
    """One of each."""

    name = "notes"
    settings = Limit
    requests = (RunTool,)

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.closed = False

    def tools(self) -> list[Any]:
        def count_notes() -> str:
            """How many notes there are."""
            return f"{len(self.kept.keys())} of {self.config.most}"

        return [count_notes]

    def prompt(self) -> list[str]:
        return ["Notes are taken."]

    async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
        self.seen.append(f"{turn.state} {request.name}")
        reply = await call_next(request)
        await self.kept.put(request.call_id, reply.text)
        return reply

    async def aclose(self) -> None:
        self.closed = True


def test_features_lie_in_one_order_and_those_not_in_use_leave_no_layer(agent: MakeAgent) -> None:
    class Loud(Hooks):
        """Sees nothing, but is one."""

    full = agent(
        text("1"), extensions=[Notes()], hooks=[Loud()], output_type=int,
        settings={"limits": {"turn": {"tokens": 9_000}}},
    )  # fmt: skip
    layers = [
        line.partition(". ")[2].partition(":")[0] for line in str(full.start("go").pipeline).split("\n")
    ]
    assert layers == [
        "approvals", "debugger", "limits in time", "limits", "extension notes", "outcomes", "hooks",
        "hooks of results", "hooks of endings", "type of the answer", "handler",
    ]  # fmt: skip
    assert str(agent(text("1")).start("go").pipeline) == (
        "1. approvals: AskApproval\n2. debugger: questions\n3. outcomes: AnswerProgram, RunTool\n4. handler"
    )


def test_it_adds_a_tool_a_prompt_a_layer_a_setting_and_keeps_values(agent: MakeAgent) -> None:
    notes = Notes()
    one = agent(
        tools(call("count_notes", {}, "c1")), tools(call("count_notes", {}, "c2")), text("two"),
        extensions=[notes], settings={"extensions": {"notes": {"most": 9}}},
    )  # fmt: skip
    result = one.run_conversation("go")
    assert result.final_response == "two"
    assert [row["content"] for row in result.messages if row["role"] == "tool"] == ["0 of 9", "1 of 9"]
    assert (notes.seen, notes.kept.keys()) == (["ExecuteTools count_notes"] * 2, ["c1", "c2"])
    assert notes.kept.get("c2") == "1 of 9"
    assert "Notes are taken." in one.options["model"].requests[0]["messages"][0]["content"]  # type: ignore[union-attr]
    assert "3. extension notes: RunTool" in str(one.start("more").pipeline)
    one.close()
    assert notes.closed


def test_values_are_apart_stay_and_are_json(agent: MakeAgent) -> None:
    first, second = Notes(), type("Other", (Notes,), {"name": "other", "tools": lambda self: []})()
    one = agent(text("ok"), extensions=[first, second])
    asyncio.run(first.kept.put("at", {"sky": ["blue", None, 1.5]}))
    asyncio.run(first.kept.put("at", {"sky": "red"}))
    assert (first.kept.get("at"), second.kept.get("at", "nothing")) == ({"sky": "red"}, "nothing")
    again = Notes()
    agent(text("ok"), extensions=[again], store=one.store)
    assert again.kept.get("at") == {"sky": "red"}
    asyncio.run(again.kept.drop("at"))
    assert first.kept.keys() == []
    for value in (float("nan"), {1, 2}, "x" * 1_000_001, "\ud800"):
        with pytest.raises(ConfigError, match=r"at of extension notes (cannot be kept|is too large)"):
            asyncio.run(first.kept.put("at", value))


def test_children_have_it_too(agent: MakeAgent) -> None:
    notes = Notes()
    task = {"goal": "count"}
    one = agent(
        tools(call("delegate_task", task)), tools(call("count_notes", {}, "c1")), text("child"), text("done"),
        toolsets=["delegate"], extensions=[notes],
    )  # fmt: skip
    assert one.chat("go") == "done"
    assert notes.seen.count("ExecuteTools count_notes") == 1
    assert not notes.closed


@pytest.mark.parametrize(
    ("extensions", "settings", "says"),
    [
        ([3], {}, "extensions has a wrong entry; given: 3"),
        (["nowhere"], {}, "no such extension is installed; given: nowhere"),
        ([], {"nowhere": {}}, "no such extension is installed; given: nowhere"),
        ([Notes(), Notes()], {}, "two extensions have the same name; given: notes"),
        ([Extension()], {}, "Extension has no name that can be used"),
        ([type("Bad", (Extension,), {"name": "Not so"})()], {}, "Bad has no name that can be used; given: Not so"),
        ([Notes()], {"notes": {"least": 1}}, "extensions.notes.least: Extra inputs are not permitted; given: 1; allowed: most"),
        ([Notes()], {"notes": {"most": "many"}}, "extensions.notes.most: Input should be a valid integer"),
        ([type("Twice", (Notes,), {"name": "twice"})(), Notes()], {}, "extension notes adds a tool of a name that is taken; given: count_notes"),
        ([type("Text", (Extension,), {"name": "text", "tools": lambda self: "look"})()], {}, "tools of extension text failed (TypeError: a str is not a list)"),
        ([type("Raises", (Extension,), {"name": "raises", "tools": lambda self: 1 / 0})()], {}, "tools of extension raises failed (ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line_when_the_agent_is_made(
    extensions: Any, settings: Any, says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        Agent("offline:demo", extensions=extensions, settings={"extensions": settings})
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)


@tool(effect="unsafe")
def press(times: int) -> str:
    """Press the button."""
    PRESSED.append(times)
    return f"pressed {times}"


PRESSED: list[int] = []


class Broken(Extension):
    """Fails before or after what it passes on."""

    name = "broken"
    requests = (RunTool,)

    def __init__(self, how: str, when_it_fails: Any) -> None:
        self.how, self.when_it_fails = how, when_it_fails

    async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
        if self.how == "before":
            raise LookupError("key sk-abcdefghijklmnopqrstuvwxyz123456 is gone")
        if self.how == "blocks":
            await asyncio.Event().wait()
        reply = await call_next(request)
        if self.how == "after":
            raise LookupError("gone")
        return "done" if self.how == "type" else reply


@pytest.mark.parametrize("how", ["before", "after", "type", "blocks"])
def test_one_that_fails_is_named_and_the_turn_continues_with_each_call_made_once(
    agent: MakeAgent, how: str
) -> None:
    PRESSED.clear()
    lines: list[str] = []
    one = agent(
        tools(call("press", {"times": 1})), text("done"), tools=[press],
        extensions=[Broken(how, "continue")], callbacks={"status": lines.append, "approval": lambda *_: "once"},
        settings={"hook_timeout": 0.05},
    )  # fmt: skip
    result = one.run_conversation("go")
    assert (result.final_response, PRESSED) == ("done", [1])
    assert [row["content"] for row in result.messages if row["role"] == "tool"] == ["pressed 1"]
    [line] = [line for line in lines if "broken" in line]
    assert line.startswith("extension broken ")
    assert "\n" not in line
    assert "sk-abc" not in line
    assert "(around RunTool); the turn continues without it" in line


@pytest.mark.parametrize(("how", "pressed"), [("before", []), ("after", [1]), ("blocks", [])])
def test_one_whose_failure_ends_the_turn_ends_it_by_the_row_for_bugs(
    agent: MakeAgent, how: str, pressed: list[int]
) -> None:
    PRESSED.clear()
    one = agent(
        tools(call("press", {"times": 1})), text("never"), tools=[press],
        extensions=[Broken(how, "end")], callbacks={"approval": lambda *_: "once"}, settings={"hook_timeout": 0.05},
    )  # fmt: skip
    result = one.run_conversation("go")
    assert (result.failed, result.turn_exit_reason, PRESSED) == (True, "local_processing_error", pressed)
    assert "extension broken" in (result.error or "")
    assert one.run_conversation("again").final_response == "never"  # the session takes another turn


def test_time_below_is_not_its_own_and_a_failure_below_is_not_blamed_on_it(agent: MakeAgent) -> None:
    class Slow(Extension):
        name = "slow"
        requests = (CallModel,)

        async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
            return await call_next(request)

    class Late(ScriptedModel):
        async def call(self, *given: Any, **named: Any) -> Any:
            await asyncio.wait_for(asyncio.shield(asyncio.sleep(0.2)), 5)
            return await super().call(*given, **named)

    lines: list[str] = []
    one = agent(
        model=Late([text("late")]), extensions=[Slow()], settings={"hook_timeout": 0.05}, callbacks={"status": lines.append}
    )  # fmt: skip
    assert one.chat("go") == "late"
    assert not [line for line in lines if "slow" in line]


@pytest.mark.parametrize("how", ["twice", "gives up"])
def test_a_call_is_made_once_whatever_an_extension_does_with_it(agent: MakeAgent, how: str) -> None:
    class Insists(Extension):
        name = "insists"
        requests = (RunTool,)

        async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
            if how == "twice":
                await call_next(request)
                return await call_next(request)
            running = asyncio.ensure_future(call_next(request))
            await begun.wait()
            running.cancel()
            raise LookupError("it takes too long")

    @tool(effect="unsafe")
    async def hold(times: int) -> str:
        """Hold the button."""
        PRESSED.append(times)
        begun.set()
        if how == "gives up":
            await asyncio.Event().wait()
        return "held"

    PRESSED.clear()
    begun = asyncio.Event()
    one = agent(
        tools(call("hold", {"times": 1})), text("done"), tools=[hold], extensions=[Insists()],
        callbacks={"approval": lambda *_: "once"},
    )  # fmt: skip
    result = one.run_conversation("go")
    assert PRESSED == [1]
    if how == "twice":
        assert (result.final_response, "held" in str(result.messages)) == ("done", True)
    else:
        assert result.failed
        assert "it gave up a request that may have taken effect" in (result.error or "")


def test_an_answer_in_place_of_the_call_is_the_reply(agent: MakeAgent) -> None:
    class Denies(Extension):
        name = "denies"
        requests = (RunTool,)

        async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
            return ToolOutcome(request.call_id, "denied", "not today")

        def checks(self) -> Any:
            yield Check("denied", "all")

    PRESSED.clear()
    one = agent(
        tools(call("press", {"times": 1})), text("ok"), tools=[press], extensions=[Denies()],
        callbacks={"approval": lambda *_: "once"},
    )  # fmt: skip
    result = one.run_conversation("go")
    assert (result.final_response, PRESSED) == ("ok", [])
    assert "not today" in str(result.messages)


# As an installed package


def installed(folder: Path) -> dict[str, str]:
    """What an installation leaves of the example: its module, and metadata with its entry point."""
    metadata = folder / "fsm_agent_audit-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fsm-agent-audit\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[fsm_agent.extensions]\naudit = fsm_agent_audit:Audit\n")
    (folder / "fsm_agent_audit").symlink_to(EXAMPLE / "fsm_agent_audit")
    return at_home(folder)


def at_home(folder: Path) -> dict[str, str]:
    home = folder.parent / "home"
    home.mkdir()
    (home / "config.toml").write_text('[settings.extensions.audit]\nforbidden = ["delete"]\n')
    return environment(folder, FSM_AGENT_HOME=str(home), PYTHONWARNINGS="ignore")


PROGRAM = """
from fsm_agent import Agent
from fsm_agent.testing import ScriptedModel, call, text, tools

def delete() -> str:
    "Delete it."
    raise SystemExit("it was called")

script = [tools(call("calls_so_far")), tools(call("delete")), text("done")]
with Agent(ScriptedModel(script), tools=[delete], callbacks={"approval": lambda *_: "once"}) as agent:
    result = agent.run_conversation("go")
    print(result.final_response, [row["content"] for row in result.messages if row["role"] == "tool"])
"""


def used(env: dict[str, str]) -> None:
    said = printed("-c", PROGRAM, env=env)
    assert said == """done ['{"calls_so_far": 1}', 'the audit forbids delete']\n"""
    assert printed("-m", "fsm_agent", "audit", "show", env=env) == "     1 calls_so_far\n"
    assert "audit" in printed("-m", "fsm_agent", "--help", env=env).partition("Installed extensions")[2]
    assert "extension audit: calls counted" in ran("-m", "fsm_agent", "doctor", env=env).stdout


@pytest.mark.slow
def test_an_installed_extension_adds_a_tool_a_layer_a_setting_and_a_command(tmp_path: Path) -> None:
    used(installed(tmp_path / "site"))


@pytest.mark.slow
def test_the_example_is_installed_by_pip_and_used(tmp_path: Path) -> None:
    site = tmp_path / "site"
    printed("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", site, EXAMPLE)
    used(at_home(site))


class Follows(Extension):
    name = "follows"

    def __init__(self, fails: str = "") -> None:
        self.heard: list[str] = []
        self.fails = fails

    def on_event(self, event: Event) -> None:
        self.heard.append(event.name)
        if event.name == self.fails:
            raise OSError("the disk is full")


def test_an_extension_hears_what_listeners_of_the_turn_hear(agent: MakeAgent) -> None:
    follows = Follows()
    turn = agent(text("hello"), extensions=[follows]).start("go")
    assert [event.name for event in turn.events()] == follows.heard
    assert {"transition", "stream_delta"} <= set(follows.heard)


def test_an_extension_that_fails_to_follow_hears_no_more_of_that_turn_and_is_named(agent: MakeAgent) -> None:
    follows, said = Follows("transition"), list[str]()
    one = agent(text("hello"), text("again"), extensions=[follows], callbacks={"status": said.append})
    assert one.chat("go") == "hello"
    first = len(follows.heard)
    assert follows.heard.count("transition") == 1
    assert said == [
        "extension follows failed: OSError: the disk is full (on_event); it hears no more of this turn"
    ]
    assert one.chat("go") == "again"
    assert len(follows.heard) == 2 * first, "the next turn is another one"
