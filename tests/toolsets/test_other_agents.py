"""Agents as tools of other agents: child turns under their own options, with all that holds for children."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fsm_agent import Agent, Block, Hooks, RunContext, tool
from fsm_agent.errors import ConfigError
from fsm_agent.hooks import ShownCall
from fsm_agent.testing import call, status, text, tools
from tests.helpers.families import offered, told
from tests.helpers.harness import MakeAgent
from tests.helpers.waiting import PATIENCE


class Price(BaseModel):
    item: str
    francs: int


def ask(name: str, task: str = "Where is the cat?", **more: Any) -> Any:
    return tools(call(name, {"task": task, **more}))


def requests(one: Agent) -> list[dict[str, Any]]:
    port: Any = one.options["model"]
    return list(port.requests)


def test_the_answer_is_the_result_and_the_child_runs_under_its_own_options(
    named: MakeAgent, tmp_path: Path
) -> None:
    look = tool(effect="pure", name="look")(lambda: "in the barn")
    cats = named(
        "cats", tools(call("look")), text("It sleeps in the barn."), home=tmp_path / "elsewhere", tools=[look],
        system_prompt="You know cats.", settings={"prompt": {"context_files": False}},
    )  # fmt: skip
    script = [ask("cats", context="it is gray"), text("It sleeps.")]
    boss = named("boss", *script, tools=[cats.as_tool()])
    result = boss.run_conversation("a private talk")
    assert (result.final_response, told(result)) == ("It sleeps.", ["It sleeps in the barn."])
    [first, _] = requests(cats)
    assert first["messages"][0]["content"].startswith("You know cats.")
    assert first["messages"][1]["content"] == "Where is the cat?\n\nContext:\nit is gray"
    assert offered(first) == {"look"}
    assert "private" not in json.dumps(first)
    [schema] = requests(boss)[0]["tools"]
    assert schema["function"]["name"] == "cats"
    assert set(schema["function"]["parameters"]["properties"]) == {"task", "context"}
    [child] = result.children
    assert (child.agent, child.outcome, child.attempts, result.attempts) == ("cats", "completed", 2, 2)
    info = boss.journal.info(child.turn_id)
    assert (info.parent, info.session) == (result.turn_id, child.session_id)
    assert not cats.journal.recent()  # all of it is in the store of the agent that asked


def test_an_answer_of_a_type_is_its_json(named: MakeAgent) -> None:
    answer = tools(call("final_result", {"item": "lamp", "francs": 40}))
    clerk = named("clerk", answer, output_type=Price)
    boss = named("boss", ask("clerk"), text("ok"), tools=[clerk.as_tool()])
    assert told(boss.run_conversation("go")) == [{"item": "lamp", "francs": 40}]
    clerk = named("clerk", answer, output_type=Price)
    desk = named("desk", tools(call("transfer_to_clerk")), handoffs=[clerk])
    assert desk.run_conversation("go").output == Price(item="lamp", francs=40)


def test_names_and_descriptions_are_for_the_model(named: MakeAgent) -> None:
    helper = named("helper", text("yes"))
    expert = helper.as_tool(name="cat_expert", description="Ask it about cats.", max_iterations=2)
    assert (expert.spec.name, expert.spec.description) == ("cat_expert", "Ask it about cats.")
    assert "helper" in helper.as_tool().spec.description
    result = named("boss", ask("cat_expert"), text("ok"), tools=[expert]).run_conversation("go")
    assert [child.agent for child in result.children] == ["cat_expert"]
    # what cannot be used is one line
    helper = named("helper")
    with pytest.raises(ConfigError, match="a tool's name cannot be used"):
        helper.as_tool(name="no good")
    with pytest.raises(ConfigError, match="max_iterations of as_tool cannot be used"):
        helper.as_tool(max_iterations=0)
    with pytest.raises(ConfigError, match="the name of an agent cannot be used"):
        named("no good")
    with pytest.raises(ConfigError, match="two tools have the same name"):
        named("boss", tools=[helper.as_tool(), helper.as_tool()])
    # without an agent around it the tool says so
    from fsm_agent.tools import ToolFailure

    made = named("cats").as_tool()
    with pytest.raises(ToolFailure, match="answers only an agent that has it among its tools"):
        asyncio.run(made(task="now"))


def test_its_own_iterations_and_those_of_the_tree_are_limits_with_a_line_each(named: MakeAgent) -> None:
    look = tool(effect="pure", name="look")(lambda: "nothing")
    again = [tools(call("look"), text=f"still looking {n}") for n in range(9)]

    def asked(most: int, **settings: Any) -> tuple[Any, str]:
        no_grace = {"budget": {"grace_call": False}}
        cats = named("cats", *again, tools=[look], settings=no_grace).as_tool(max_iterations=most)
        boss = named("boss", ask("cats"), text("ok"), tools=[cats], settings=settings)
        result = boss.run_conversation("go")
        return result.children[0], told(result)[0]

    child, line = asked(2)
    assert (child.api_calls, child.turn_exit_reason) == (2, "budget_exhausted")
    assert line.startswith("cats did not finish (partial): ")
    child, line = asked(8, max_iterations=4, delegation={"tree_cap_factor": 1})
    assert child.api_calls == 3  # one of the four is the parent's
    child, line = asked(8, delegation={"max_attempts_per_tree": 3})
    assert (child.attempts, child.turn_exit_reason) == (2, "attempt_cap_reached")
    assert "cats did not finish (failed): " in line


def test_a_failed_child_is_not_quoted_as_its_model(named: MakeAgent) -> None:
    cats = named("cats", status(401), settings={"api_max_retries": 1}).as_tool()
    line = told(named("boss", ask("cats"), text("ok"), tools=[cats]).run_conversation("go"))[0]
    assert line.startswith("cats did not finish (failed): The provider refused the request")
    assert "What it said so far" not in line


def test_depth_is_a_limit_of_the_whole_tree_and_said_to_the_model(named: MakeAgent) -> None:
    def chain(**settings: Any) -> tuple[Any, Agent]:
        inner = named("inner", text("deep"))
        middle = named("middle", ask("inner"), text("half"), tools=[inner.as_tool()],
            settings={"delegation": {"max_depth": 9}},
        )  # fmt: skip
        script = [ask("middle"), text("ok")]
        outer = named("outer", *script, tools=[middle.as_tool()], settings=settings)
        return outer.run_conversation("go"), middle

    result, middle = chain()
    assert result.completed
    line = requests(middle)[1]["messages"][-1]["content"]
    assert "inner was not asked: agents may be nested at most 1 deep (delegation.max_depth)" in line
    result, middle = chain(delegation={"max_depth": 2})
    assert requests(middle)[1]["messages"][-1]["content"] == "deep"


def test_calls_beyond_the_number_of_children_and_children_that_fail_are_answered(named: MakeAgent) -> None:
    cats = named("cats", *[text("meow")] * 9)
    many = tools(*(call("cats", {"task": f"cat {n}"}) for n in range(4)))
    result = named("boss", many, text("ok"), tools=[cats.as_tool()]).run_conversation("go")
    assert [line[:4] for line in told(result)] == ["meow"] * 3 + ["over"]
    # a child that fails is a line to the model
    cats = named("cats", status(400))
    result = named("boss", ask("cats"), text("ok"), tools=[cats.as_tool()]).run_conversation("go")
    assert result.completed
    assert told(result)[0].startswith("cats did not finish (failed): ")


@pytest.mark.parametrize("allowed", [False, True])
def test_a_yes_is_asked_of_the_same_person_with_the_task(named: MakeAgent, allowed: bool) -> None:
    """The rules of the agent that asks hold, and those of the asked one that are stricter."""
    drop = tool(approval="ask", name="drop")(lambda: "dropped")
    look = tool(name="look", effect="pure")(lambda: "seen")
    cats = named("cats", tools(call("drop"), call("look")), text("done"), tools=[drop, look],
        settings={"approval": {"bypass": True, "policy": {"look": "deny"}}},
    )  # fmt: skip
    questions: list[Any] = []
    named("boss", ask("cats"), text("ok"), tools=[cats.as_tool()],
        settings={"delegation": {"approvals": "ask"}},
        callbacks={"approval": lambda question: questions.append(question) or allowed},
    ).run_conversation("go")  # fmt: skip
    assert [(one.name, one.origin) for one in questions] == [("drop", "Where is the cat?")]
    answers = [row["content"] for row in requests(cats)[1]["messages"] if row["role"] == "tool"]
    assert answers[0].startswith("dropped" if allowed else "denied")
    assert answers[1].startswith("denied")


def test_its_own_callbacks_hear_what_it_does_and_decide_nothing(named: MakeAgent) -> None:
    heard: list[Any] = []
    look = tool(name="look", effect="pure")(lambda: "seen")
    own = {
        "tool_complete": lambda call_id, name: heard.append(name),
        "before_tool": lambda name, arguments: heard.append("never"),
        "after_tool": lambda name, arguments, said: f"{said} twice",
    }
    cats = named("cats", tools(call("look")), text("done"), tools=[look], callbacks=own)
    events: list[Any] = []
    boss = named("boss", ask("cats"), text("ok"), tools=[cats.as_tool()],
        callbacks={"event": lambda name, data: events.append((name, data.get("name")))},
    )  # fmt: skip
    boss.run_conversation("go")
    assert heard == ["look"]
    assert requests(cats)[1]["messages"][-1]["content"] == "seen twice"
    assert ("child:tool", "look") in events


def test_an_interrupt_goes_down_and_deps_too(named: MakeAgent) -> None:
    started = threading.Event()
    seen: list[Any] = []

    @tool(effect="pure")
    async def linger(context: RunContext[str]) -> str:
        """Stay."""
        seen.append(context.deps)
        started.set()
        await asyncio.Event().wait()
        return "never"

    cats = named("cats", tools(call("linger")), text("never"), tools=[linger])
    boss = named("boss", ask("cats"), text("never"), tools=[cats.as_tool()])

    def stop() -> None:
        started.wait(PATIENCE)
        boss.interrupt("enough")

    stopper = threading.Thread(target=stop)
    stopper.start()
    result = boss.run_conversation("go", deps="milk")
    stopper.join()
    assert result.interrupted
    assert seen == ["milk"]
    assert [child.outcome for child in result.children] == ["interrupted"]


def test_hooks_of_the_first_agent_see_its_turns_and_its_limits_hold(named: MakeAgent) -> None:
    class Watch(Hooks):
        def before_tool(self, context: RunContext[Any], call: ShownCall) -> Any:
            return Block("not today") if call.name == "look" else None

    look = tool(name="look", effect="pure")(lambda: "seen")
    cats = named("cats", tools(call("look")), text("done"), tools=[look])
    boss = named("boss", ask("cats"), text("ok"), tools=[cats.as_tool()], hooks=[Watch()], context_window=9_000,
        settings={"limits": {"tree": {"tokens": 20_000}}},
    )  # fmt: skip
    result = boss.run_conversation("go")
    assert "not today" in requests(cats)[1]["messages"][-1]["content"]
    assert result.completed
    cats = named("cats", text("never"), settings={"limits": {"tree": {"tokens": 90_000}}})
    boss = named("boss", tools(call("cats", {"task": "x " * 12_000})), text("ok"), tools=[cats.as_tool()],
        settings={"limits": {"tree": {"tokens": 5_000}}},
    )  # fmt: skip
    result = boss.run_conversation("go")
    assert [child.turn_exit_reason for child in result.children] == ["token_limit"]
    assert not requests(cats)
