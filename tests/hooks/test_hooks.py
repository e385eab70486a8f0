"""Hooks and guardrails: what goes through a turn is seen, and may be changed, answered or refused; who did
it is in the journal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import (
    Agent,
    Answer,
    Block,
    Guardrail,
    Hooks,
    RequestChange,
    Retry,
    Rewrite,
    RunContext,
    TurnResult,
    TurnSuspended,
    WakeAt,
    tool,
)
from fsm_agent.errors import ConfigError
from fsm_agent.hooks import ShownCall, ShownRequest
from fsm_agent.sessions.store.journal.read import Effect
from fsm_agent.testing import (
    FakeClock,
    Reply,
    ScriptedModel,
    ScriptedServer,
    blank,
    call,
    length,
    status,
    text,
    tools,
)

RAN: list[str] = []
LOOK = (tools(call("look", {"where": "x"})), text("done"))


@tool(effect="pure")
def look(where: str) -> str:
    """Look somewhere."""
    RAN.append(where)
    return f"seen in {where}"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def agent_of(home: Path, replies: Sequence[Any], *hooks: Hooks, **given: Any) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(list(replies))
    return Agent(model, tools=[look], toolsets=[], home=home, hooks=hooks, **given), model


def journal_of(agent: Agent, result: TurnResult, kind: str) -> list[Effect]:
    """The requests of this kind with their replies, as the journal has them."""
    steps = range(len(result.states) + 1)
    found = [effect for seq in steps for effect in agent.journal.effects(result.turn_id, seq)]
    return [effect for effect in found if effect.kind == kind]


class Cold(Hooks):
    def before_request(self, context: RunContext[Any], request: ShownRequest) -> RequestChange:
        said = request.body["messages"][-1]["content"]
        return RequestChange({"temperature": 0.0, "top_p": None}, [{"role": "user", "content": f"({said})"}])


class Stamp(Hooks):
    name = "stamp"

    async def before_request(self, context: RunContext[Any], request: ShownRequest) -> RequestChange | None:
        assert request.body["temperature"] == 0.0, "it sees what the one before made of it"
        return RequestChange({"user": context.deps or "nobody"})


def test_a_request_is_changed_in_order_and_the_journal_says_by_whom(tmp_path: Path) -> None:
    with ScriptedServer([text("fine")]) as server:
        agent = Agent("openai:gpt-5", base_url=server.url, api_key="k", api_mode="chat_completions", toolsets=[],
                      home=tmp_path, hooks=[Cold(), Stamp()])  # fmt: skip
        result = agent.run_conversation("hello", deps="kim")
        [sent] = [request.body for request in server.requests]
    assert (sent["temperature"], sent["user"], sent["messages"][-1]["content"]) == (0.0, "kim", "(hello)")
    assert result.completed
    assert result.attempts == 1
    assert [row["content"] for row in result.messages] == ["hello", "fine"], "the transcript has none of it"
    [shown] = journal_of(agent, result, "ShowRequest")
    assert shown.reply is not None
    assert shown.reply["by"] == ["Cold", "stamp"]
    assert shown.reply["options"] == {"temperature": 0.0, "top_p": None, "user": "kim"}


class Known(Hooks):
    def before_request(self, context: RunContext[Any], request: ShownRequest) -> Answer | None:
        return Answer("four") if "2 + 2" in request.body["messages"][-1]["content"] else None


def test_a_hook_answers_in_the_place_of_the_model_and_nothing_is_sent(tmp_path: Path) -> None:
    agent, model = agent_of(tmp_path, [text("no idea")], Known())
    result = agent.run_conversation("2 + 2?")
    assert (result.final_response, result.attempts, len(model.requests)) == ("four", 0, 0)
    assert agent.chat("and 3 + 3?") == "no idea"


class Careful(Hooks):
    def before_tool(self, context: RunContext[Any], call: ShownCall) -> Any:
        match call.arguments["where"]:
            case "/etc":
                return Block("not there")
            case "the shed":
                return Answer("a spade")
            case "attic":
                return {"where": "the attic"}
        return None


@pytest.mark.parametrize(
    ("where", "ran", "seen"),
    [
        ("/etc", [], "not run: not there"), ("the shed", [], "a spade"),
        ("attic", ["the attic"], "seen in the attic"), ("here", ["here"], "seen in here"),
    ],
)  # fmt: skip
def test_a_call_is_changed_answered_or_refused(tmp_path: Path, where: str, ran: list[str], seen: str) -> None:
    agent, model = agent_of(tmp_path, [tools(call("look", {"where": where})), text("done")], Careful())
    result = agent.run_conversation("look")
    assert ran == RAN
    assert model.requests[-1]["messages"][-1]["content"] == seen
    assert result.completed


def test_a_person_is_asked_about_the_arguments_that_run(tmp_path: Path) -> None:
    asked, put = [], tool(approval="ask", name="put")(lambda where: f"put in {where}")

    class Elsewhere(Hooks):
        def before_tool(self, context: RunContext[Any], call: ShownCall) -> dict[str, str]:
            return {"where": "b"}

    model = ScriptedModel([tools(call("put", {"where": "a"})), text("done")])
    agent = Agent(model, tools=[put], toolsets=[], home=tmp_path, hooks=[Elsewhere()],
                  callbacks={"approval": lambda question: asked.append(dict(question.arguments)) or True})  # fmt: skip
    result = agent.run_conversation("put it")
    assert asked == [{"where": "b"}]
    [ran] = journal_of(agent, result, "RunTool")
    assert ran.request["arguments"] == {"where": "b"}


class Loud(Hooks):
    def after_request(self, context: RunContext[Any], reply: Any) -> str | None:
        return reply.text.upper() or None

    async def after_tool(self, context: RunContext[Any], call: ShownCall, result: str, status: str) -> str:
        return f"{result} ({status}, {context.call_id == call.id})"

    def turn_end(self, context: RunContext[Any], answer: str) -> str:
        return f"{answer}!"


def test_replies_results_and_the_answer_are_changed(tmp_path: Path) -> None:
    agent, model = agent_of(tmp_path, LOOK, Loud())
    result = agent.run_conversation("look")
    assert model.requests[-1]["messages"][-1]["content"] == "seen in x (ok, True)"
    assert (result.final_response, result.response_transformed) == ("DONE!", True)
    assert result.messages[-1]["content"] == "DONE", "the transcript keeps what was said"
    changed = [*journal_of(agent, result, "CallModel"), *journal_of(agent, result, "RunTool")]
    said = [effect.reply and effect.reply.get("changed_by") for effect in changed]
    assert said == [None, ["Loud"], ["Loud"]]


class Misspelt(Hooks):
    def before_tools(self, context: RunContext[Any], call: ShownCall) -> Block:
        return Block("never")


class OfAnotherLibrary(Hooks):
    def on_tool_start(self, context: RunContext[Any]) -> None: ...


class TakesLess(Hooks):
    def before_tool(self, call: ShownCall) -> None: ...


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (Misspelt, "hook Misspelt has a method that is never called; given: before_tools; allowed: before_tool, perhaps"),
        (OfAnotherLibrary, "never called; given: on_tool_start; allowed: .*turn_begin, before_request"),
        (TakesLess, r"before_tool of hook TakesLess takes other values; given: .*; allowed: \(context, call\)"),
    ],
)  # fmt: skip
def test_a_hook_that_would_guard_nothing_is_refused(hook: type[Hooks], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        agent_of(tmp_path, [], hook())


def test_a_hook_may_have_methods_of_its_own(tmp_path: Path) -> None:
    class Helped(Hooks):
        seen = 0

        def count(self) -> int:
            return self.seen

        def _before_all(self) -> None: ...

        async def after_tool(self, *values: Any) -> None:
            self.seen += 1

    hook = Helped()
    agent_of(tmp_path, LOOK, hook)[0].chat("go")
    assert hook.count() == 1


def test_hooks_are_told_in_order(tmp_path: Path) -> None:
    heard: list[str] = []

    class Told(Hooks):
        async def turn_begin(self, context: RunContext[Any], message: str) -> None:
            await asyncio.sleep(0)
            heard.append(f"begin {message}")

        async def on_move(self, context: RunContext[Any], step: Any) -> None:
            heard.append(step.row)

        def on_error(self, context: RunContext[Any], error: str) -> None:
            heard.append(f"error in {context.attempt}: {error}")

    no_wait = {"backoff": {"exception": {"base": 0}}}
    agent_of(tmp_path, [status(500), text("done")], Told(), settings=no_wait)[0].chat("go")
    assert [line for line in heard if line.startswith("error")] == ["error in 1: scripted status 500"]
    moves = [line for line in heard if not line.startswith("error")]
    assert moves[:3] == ["begin go", "Prepare.ready", "BuildMessages.built/3"]
    assert moves[-1] == "CallLLM.text"


class Broken(Hooks):
    def __init__(self, point: str, answer: Any = None) -> None:
        self.point, self.answer = point, answer or ZeroDivisionError("by hook")

    def do(self, point: str) -> Any:
        if point == self.point and isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if point == self.point else None

    def before_request(self, context: RunContext[Any], request: ShownRequest) -> Any:
        return self.do("before_request")

    def before_tool(self, context: RunContext[Any], call: ShownCall) -> Any:
        return self.do("before_tool")

    def after_request(self, context: RunContext[Any], reply: Any) -> Any:
        return self.do("after_request")

    def after_tool(self, context: RunContext[Any], call: ShownCall, result: str, status: str) -> Any:
        return self.do("after_tool")

    def on_move(self, context: RunContext[Any], step: Any) -> Any:
        return self.do("on_move")

    def turn_end(self, context: RunContext[Any], answer: str) -> Any:
        return self.do("turn_end")


def test_a_hook_before_a_request_that_fails_lets_none_out_and_the_session_goes_on(tmp_path: Path) -> None:
    for answer in (ZeroDivisionError("by hook"), 7, RequestChange({"model": "another"})):
        hook = Broken("before_request", answer)
        agent, model = agent_of(tmp_path, [text("fine")], hook)
        result = agent.run_conversation("go")
        assert (result.turn_exit_reason, result.attempts, model.requests) == ("guardrail_blocked", 0, [])
        assert result.error is not None
        assert result.error.startswith("A guardrail stopped the turn: hook Broken ")
        assert "\n" not in result.error
        hook.point = ""
        assert agent.chat("again") == "fine"


def test_a_hook_before_a_tool_that_fails_lets_it_not_run(tmp_path: Path) -> None:
    for answer in (ZeroDivisionError("by hook"), 7):
        agent, model = agent_of(tmp_path, LOOK, Broken("before_tool", answer))
        assert agent.chat("look") == "done"
        assert RAN == []
        assert model.requests[-1]["messages"][-1]["content"].startswith("not run: hook Broken ")


@pytest.mark.parametrize("point", ["after_request", "after_tool", "turn_end", "on_move"])
def test_a_hook_that_fails_afterwards_changes_nothing_and_says_so(tmp_path: Path, point: str) -> None:
    lines: list[str] = []
    agent, _ = agent_of(tmp_path, LOOK, Broken(point), callbacks={"status": lines.append})
    assert agent.chat("look") == "done"
    said = [line for line in lines if "hook Broken failed: ZeroDivisionError('by hook')" in line]
    assert bool(said) == (point != "on_move"), "what is only told is logged"


def test_a_hook_that_hangs_is_given_up_and_refuses(tmp_path: Path) -> None:
    class Stuck(Hooks):
        async def before_request(self, context: RunContext[Any], request: ShownRequest) -> None:
            await asyncio.sleep(60)

    agent, model = agent_of(tmp_path, [text("fine")], Stuck(), settings={"hook_timeout": 0.05})
    result = agent.run_conversation("go")
    assert result.error == "A guardrail stopped the turn: hook Stuck took longer than 0.05 s."
    assert model.requests == []


def test_what_is_no_hook_is_refused_when_the_agent_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a hook"):
        Agent(ScriptedModel([]), toolsets=[], home=tmp_path, hooks=[print])


def test_a_hook_lets_a_call_wait_for_its_time(tmp_path: Path) -> None:
    class AtNight(Hooks):
        def before_tool(self, context: RunContext[Any], call: ShownCall) -> WakeAt | None:
            return WakeAt(due, "quiet hours") if clock.now() < due else None

    clock = FakeClock()
    due = clock.now() + 3600
    agent, _ = agent_of(tmp_path, LOOK, AtNight(), clock=clock)
    with pytest.raises(TurnSuspended):
        agent.run_conversation("look")
    for _ in range(2):
        [item] = agent.pending()
        assert (item.kind, item.tool, item.asked, item.due) == ("timer", "look", "quiet hours", due)
        if clock.now() < due:
            with pytest.raises(TurnSuspended):
                agent.resume(item.turn).run()
        clock.advance(3601)
    assert RAN == []
    assert agent.resume(item.turn).run().final_response == "done"
    assert (RAN, agent.pending()) == (["x"], [])


ROOT = Path(__file__).parents[2]


def no_keys(context: RunContext[Any], words: str) -> Block | None:
    return Block("that looks like a key") if "sk-" in words else None


async def tidy(context: RunContext[Any], words: str) -> Rewrite:
    return Rewrite(words.replace("damn", "very"))


def short(context: RunContext[Any], words: str) -> Retry | None:
    return Retry("longer than ten letters") if len(words) > 10 else None


def run(
    home: Path, replies: list[Reply], message: str = "go", **given: Any
) -> tuple[TurnResult, Agent, ScriptedModel]:
    model = ScriptedModel(replies)
    agent = Agent(model, toolsets=[], home=home, **given)
    return agent.run_conversation(message), agent, model


def test_a_refused_message_is_not_sent_now_or_later(tmp_path: Path) -> None:
    result, agent, model = run(tmp_path, [text("fine")], "my key is sk-1", input_guardrails=[no_keys])
    assert (result.turn_exit_reason, result.failed, result.attempts) == ("guardrail_blocked", True, 0)
    assert result.guardrail == {"by": "no_keys", "reason": "that looks like a key", "what": "message"}
    assert result.error == "A guardrail stopped the turn: that looks like a key."
    assert agent.chat("hello") == "fine"
    assert "sk-1" not in str(model.requests)
    assert result.messages[0]["content"] == "my key is sk-1", "people see it"


def test_a_message_is_rewritten_before_it_is_stored(tmp_path: Path) -> None:
    result, _, model = run(tmp_path, [text("ok")], "a damn good day", input_guardrails=[tidy, no_keys])
    assert result.messages[0]["content"] == "a very good day"
    assert model.requests[0]["messages"][-1]["content"] == "a very good day"


@pytest.mark.parametrize("answer", ["the key is sk-2", "a damn sk-3"])
def test_a_refused_answer_is_neither_delivered_nor_sent_again(tmp_path: Path, answer: str) -> None:
    result, agent, model = run(tmp_path, [text(answer), text("fine")], output_guardrails=[tidy, no_keys])
    assert result.turn_exit_reason == "guardrail_blocked"
    assert result.guardrail is not None
    assert result.guardrail["what"] == "answer"
    assert "sk-" not in (result.final_response or "")
    assert agent.chat("again") == "fine"
    assert "sk-" not in str(model.requests[-1])


def test_an_answer_is_rewritten(tmp_path: Path) -> None:
    result, *_ = run(tmp_path, [text("damn good")], output_guardrails=[tidy])
    assert (result.final_response, result.messages[-1]["content"]) == ("very good", "very good")
    # an answer is sent back with the reason as often as it may
    result, _, model = run(tmp_path / "2", [text("a long answer"), text("short")], output_guardrails=[short])
    assert (result.final_response, result.api_calls) == ("short", 2)
    said, mend = model.requests[1]["messages"][-2:]
    assert (said["content"], "longer than ten letters" in mend["content"]) == ("a long answer", True)
    assert [row["content"] for row in result.messages] == ["go", "short"]
    # an answer that stays wrong ends the turn by a reason of its own
    replies = [text(f"a long answer {number}") for number in range(3)]
    result, _, model = run(tmp_path / "3", replies, output_guardrails=[short], settings={"output_retries": 2})
    assert (result.turn_exit_reason, result.error) == (
        "output_invalid",
        "The model gave no answer of the type that was asked for: longer than ten letters.",
    )
    assert len(model.requests) == 3
    # a fallback is asked when a model cannot mend its answer
    other = ScriptedModel([text("short")])
    result, *_ = run(tmp_path / "4", [text("a long answer")], output_guardrails=[short],
                     settings={"output_retries": 0}, fallbacks=[{"model": other}])  # fmt: skip
    assert (result.final_response, result.fallback_activated) == ("short", True)


def test_a_text_that_was_cut_is_looked_at_before_it_goes_out(tmp_path: Path) -> None:
    result, *_ = run(tmp_path, [length("the key is sk-4")], output_guardrails=[no_keys],
                     settings={"length": {"max_continuations": 0}})  # fmt: skip
    assert result.turn_exit_reason == "length_exhausted"
    assert "sk-4" not in (result.final_response or "")
    assert "sk-4" not in str(result.messages)
    # a text that cannot be sent back any more is not delivered
    result, *_ = run(tmp_path / "2", [length("far too long")], output_guardrails=[short],
                     settings={"length": {"max_continuations": 0}})  # fmt: skip
    assert result.turn_exit_reason == "length_exhausted"
    assert (result.error or "").endswith("Before that: longer than ten letters.")
    assert "far too long" not in str((result.final_response, result.messages))


@pytest.mark.parametrize(("guards", "exit"), [([no_keys], "text_response"), ([], "prior_content_used")])
def test_words_beside_calls_are_no_answer_where_answers_are_looked_at(
    tmp_path: Path, guards: list[Any], exit: str
) -> None:
    beside = tools(call("todo", {"items": []}), text="the key is sk-6")
    model = ScriptedModel([beside, blank(), text("fine")])
    agent = Agent(model, toolsets=["todo"], home=tmp_path, output_guardrails=guards)
    result = agent.run_conversation("go")
    assert result.turn_exit_reason == exit
    assert ("sk-6" in (result.final_response or "")) == (not guards)


def test_a_guardrail_beside_the_request_wins_over_its_reply_and_is_asked_once(tmp_path: Path) -> None:
    begun, replied = asyncio.Event(), asyncio.Event()

    async def slow(context: RunContext[Any], words: str) -> Block:
        begun.set()
        await replied.wait()
        return Block("no")

    class Model(ScriptedModel):
        async def call(self, request: Any, sink: Any) -> Any:
            await begun.wait()  # both are under way at the same time, or this never ends
            reply = await super().call(request, sink)
            replied.set()
            return reply

    model = Model([text("an answer"), text("fine")])
    agent = Agent(model, toolsets=[], home=tmp_path, input_guardrails=[Guardrail(slow, beside=True)])
    result = agent.run_conversation("go")
    assert (result.turn_exit_reason, result.attempts) == ("guardrail_blocked", 1)
    assert "an answer" not in str(result.messages)
    assert "an answer" not in str(result.final_response)
    # a guardrail beside the request is asked once
    asked = []

    def count(context: RunContext[Any], words: str) -> None:
        asked.append(words)

    run(tmp_path / "2", [length("a, "), text("b")], input_guardrails=[Guardrail(count, beside=True)])
    assert asked == ["go"]


@pytest.mark.parametrize("side", ["input_guardrails", "output_guardrails"])
def test_a_guardrail_that_fails_refuses(tmp_path: Path, side: str) -> None:
    def broken(context: RunContext[Any], words: str) -> None:
        raise ZeroDivisionError

    result, *_ = run(tmp_path, [text("fine")], **{side: [broken]})
    assert (result.turn_exit_reason, result.error) == (
        "guardrail_blocked",
        "A guardrail stopped the turn: guardrail broken failed: ZeroDivisionError().",
    )


def test_a_guardrail_that_says_something_else_refuses(tmp_path: Path) -> None:
    result, *_ = run(tmp_path, [text("fine")], input_guardrails=[lambda context, words: Retry("no")])
    wrong = "guardrail <lambda> answered with Retry: None or Block or Rewrite is allowed"
    assert result.error == f"A guardrail stopped the turn: {wrong}."


def test_what_is_no_guardrail_is_refused_when_the_agent_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a guardrail"):
        Agent(ScriptedModel([]), toolsets=[], home=tmp_path, input_guardrails=["no"])

    # a guardrail that takes other values is refused when the agent is made
    def short(words: str) -> None: ...

    for option in ("input_guardrails", "output_guardrails"):
        with pytest.raises(
            ConfigError, match=r"guardrail short takes other values; .*allowed: \(context, text\)"
        ):
            Agent(ScriptedModel([]), toolsets=[], home=tmp_path, **{option: [short]})


def test_the_programs_of_the_page_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "hooks.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)
        assert "42" in names["agent"].chat("What is 6 * 7?")


def test_a_turn_that_goes_on_is_looked_at_by_the_agent_that_goes_on(tmp_path: Path) -> None:
    """What another agent let through, and the journal says so, is no authority."""
    first = Agent(ScriptedModel([text("the key is sk-5")]), toolsets=[], home=tmp_path)
    turn = first.start("go")

    async def until_the_reply() -> None:
        kind = None
        while kind != "CallModel":
            kind = type(getattr(await turn.step_into(), "request", None)).__name__

    asyncio.run(until_the_reply())
    first.close()
    again = Agent(ScriptedModel([]), toolsets=[], home=tmp_path, output_guardrails=[no_keys])
    result = again.resume(again.journal.recent(1)[0].id).run()
    assert result.turn_exit_reason == "guardrail_blocked"
