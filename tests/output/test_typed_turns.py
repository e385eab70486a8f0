"""Turns whose answer has to be of a type, on the scripted model and over HTTP on each wire."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, create_model

from fsm_agent import Agent, Retry, Rewrite, RunContext
from fsm_agent.backtest.replay import make_test
from fsm_agent.errors import ConfigError
from fsm_agent.output import JsonSchema
from fsm_agent.providers.catalog import LearnedFacts
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import ScriptedModel, ScriptedServer, blank, call, length, status, text, tools
from fsm_agent.testing.strategies import error_body
from fsm_agent.tools import ToolFailure
from tests.helpers.harness import MakeAgent, echo

BERN = '{"name": "Bern", "people": 144000}'


class City(BaseModel):
    """A city."""

    name: str
    people: int = Field(ge=0)


VALUE = City(name="Bern", people=144_000)
FINAL = tools(call("final_result", BERN))


def run(home: Path, script: Any, **given: Any) -> tuple[Any, ScriptedModel, Agent]:
    model = ScriptedModel(script)
    agent: Agent[Any, Any] = Agent(model, home=home, **{"toolsets": [], "output_type": City, **given})
    return agent.run_conversation("Which city?"), model, agent


@pytest.mark.parametrize(
    "reply", [text(BERN), text(f"Here:\n```json\n{BERN}\n```"), tools(call("final_result", BERN), text="So:")]
)
def test_an_answer_becomes_a_value_and_is_stored_as_plain_json(tmp_path: Path, reply: Any) -> None:
    result, _, agent = run(tmp_path, [reply, text("again")])
    assert result.output == VALUE
    assert (result.completed, result.final_response, result.messages[-1]["content"]) == (True, BERN, BERN)
    assert "tool_calls" not in result.messages[-1]
    assert json.loads(json.dumps(result.model_dump(mode="json")))["output"] == json.loads(BERN)
    assert agent.run_conversation("and now?", output_type=str).output == "again"


def test_an_answer_without_a_type_is_its_text(tmp_path: Path) -> None:
    result, model, _ = run(tmp_path, [text("hello")], output_type=None)
    assert result.output == result.final_response == "hello"
    assert "tools" not in model.requests[0]


def test_the_errors_go_back_to_the_model_and_are_in_no_transcript(tmp_path: Path) -> None:
    result, model, _ = run(tmp_path, [text('{"name": "Bern", "people": -1}'), text(BERN)])
    assert result.output.people == 144_000
    said, mend = model.requests[1]["messages"][-2:]
    assert said["content"] == '{"name": "Bern", "people": -1}'
    assert "people: Input should be greater than or equal to 0; given: -1" in mend["content"]
    assert [row["content"] for row in result.messages] == ["Which city?", BERN]


def test_then_the_next_model_is_asked_and_then_the_turn_ends_by_its_own_reason(tmp_path: Path) -> None:
    other = ScriptedModel([FINAL])
    result, model, _ = run(tmp_path, [text("Bern")] * 3, fallbacks=[{"model": other}])
    assert (result.output.name, len(model.requests), result.fallback_activated) == ("Bern", 3, True)
    result, *_ = run(tmp_path, [text("Bern")] * 3)
    assert (result.turn_exit_reason, result.failed, result.output) == ("output_invalid", True, None)
    assert result.error == "The model gave no answer of the type that was asked for: it is not JSON."
    assert result.attempts == 3


def test_all_that_is_wrong_reaches_the_model(tmp_path: Path) -> None:
    names = [f"a_rather_long_name_of_a_member_{number}" for number in range(5)]
    Many = create_model("Many", **dict.fromkeys(names, (int, ...)))
    said = {name: f"{name} is not a number, of course" for name in Many.model_fields}
    _, model, _ = run(tmp_path, [text(json.dumps(said)), text("{}"), text("{}")], output_type=Many)
    assert all(f"{name}: Input should be" in model.requests[1]["messages"][-1]["content"] for name in said)


def test_a_final_call_beside_others_is_not_taken(tmp_path: Path) -> None:
    script = [tools(call("echo", {"text": "a"}), call("final_result", BERN)), FINAL]
    result, model, _ = run(tmp_path, script, tools=[echo])
    results = [row["content"] for row in model.requests[1]["messages"] if row["role"] == "tool"]
    assert results == ["a", "not taken: call it alone when all others have their results"]
    assert result.output.name == "Bern"


def test_a_cut_answer_is_continued(tmp_path: Path) -> None:
    told: list[Any] = []
    script = [length(BERN[:20]), text(BERN[20:])]
    result, *_ = run(tmp_path, script, callbacks={"output_partial": told.append})
    assert (result.output.people, told[-1]) == (144_000, result.output)


def test_the_last_word_is_an_answer_only_if_it_fits(tmp_path: Path) -> None:
    for said, output in (("I could not finish.", None), (BERN, VALUE)):
        script = [tools(call("echo")), text(said)]
        result, model, _ = run(tmp_path, script, tools=[echo], settings={"max_iterations": 1})
        assert (result.turn_exit_reason, result.output) == ("max_iterations_summary", output)
        assert "JSON schema" in model.requests[1]["messages"][0]["content"]


def test_words_beside_housekeeping_are_no_typed_answer(tmp_path: Path) -> None:
    script = [tools(call("todo", {}), text="all done"), blank(), text(BERN)]
    result, *_ = run(tmp_path, script, toolsets=["todo"])
    assert result.output == VALUE


@pytest.mark.parametrize(("kind", "said", "value", "stored"), [
    (list[str], '{"result": ["a"]}', ["a"], '["a"]'),
    (int, "42", 42, "42"),
    (City | int, '{"result": 3}', 3, "3"),
    (JsonSchema({"type": "object", "required": ["a"]}), '{"a": 1}', {"a": 1}, '{"a": 1}'),
])  # fmt: skip
def test_answers_of_other_types(tmp_path: Path, kind: Any, said: str, value: Any, stored: str) -> None:
    for reply in (text(said), tools(call("final_result", said)) if said.startswith("{") else text(said)):
        result, *_ = run(tmp_path, [reply], output_type=kind)
        assert (result.output, result.final_response) == (value, stored)


def test_each_turn_may_have_a_type_of_its_own(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel([text(BERN), text("[1]"), text("hi")]), home=tmp_path, toolsets=[])
    assert agent.run_conversation("a", output_type=City).output == VALUE
    assert asyncio.run(agent.arun("b", output_type=list[int])).output == [1]
    assert agent.run_conversation("c").output == "hi"
    with pytest.raises(ConfigError, match="output_type yields no schema"):
        agent.start("d", output_type=object())
    with pytest.raises(ConfigError, match="output_type yields no schema"):
        Agent(ScriptedModel([]), home=tmp_path, output_type=object())


def test_a_function_is_the_schema_and_makes_the_answer(tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    async def order(context: RunContext[str], item: str, number: int = 1) -> dict[str, Any]:
        """Order something."""
        calls.append((context.deps, context.turn_id != "", item, number))
        if number > 9:
            raise ToolFailure("nine at most")
        return {"ordered": item, "by": {context.deps}}

    agent = Agent(
        ScriptedModel([text('{"item": "tea", "number": 10}'), text('{"item": "tea"}')]), home=tmp_path,
        toolsets=[], output_type=order,
    )  # fmt: skip
    result = agent.run_conversation("tea", deps="Ada")
    assert result.output == {"ordered": "tea", "by": {"Ada"}}
    assert calls == [("Ada", True, "tea", 10), ("Ada", True, "tea", 1)]
    assert result.final_response == '{"item": "tea"}'
    with pytest.raises(ConfigError, match="output function 'order' needs deps"):
        agent.run_conversation("tea")


@pytest.mark.parametrize(("error", "words"), [
    (ValueError("not so"), "not so"), (KeyError("tea"), "KeyError: 'tea'"), (SystemExit("x"), "SystemExit"),
])  # fmt: skip
def test_what_a_function_raises_goes_back_to_the_model(tmp_path: Path, error: Any, words: str) -> None:
    def pick(name: str) -> str:
        if name == "bad":
            raise error
        return name.upper()

    async def choose(name: str) -> str:
        return pick(name)

    for function in (pick, choose):
        script = [text('{"name": "bad"}'), text('{"name": "good"}')]
        result, model, _ = run(tmp_path, script, output_type=function)
        assert result.output == "GOOD"
        assert words in model.requests[1]["messages"][-1]["content"]


def test_a_function_that_hangs_is_left_after_its_time(tmp_path: Path) -> None:
    async def hang(name: str) -> str:
        if name == "long":
            await asyncio.Event().wait()
        return name

    script = [text('{"name": "long"}'), text('{"name": "short"}')]
    settings = {"tool": {"batch_timeout": 0.05}, "poll": {"control": 0.02}}
    result, model, _ = run(tmp_path, script, output_type=hang, settings=settings)
    assert result.output == "short"
    assert "took longer than 0.05 s" in model.requests[1]["messages"][-1]["content"]


def test_a_function_runs_when_nobody_refuses_any_more(tmp_path: Path) -> None:
    ran: list[str] = []

    def pick(name: str) -> str:
        ran.append(name)
        return name

    def no_basel(context: RunContext[Any], words: str) -> Any:
        if "Basel" in words:
            return Retry("not Basel")
        return Rewrite(words.replace("Berne", "Bern"))

    script = [text('{"name": "Basel"}'), text('{"name": "Berne"}')]
    result, *_ = run(tmp_path, script, output_type=pick, output_guardrails=[no_basel])
    assert (result.output, ran, result.final_response) == ("Bern", ["Bern"], '{"name": "Bern"}')


@pytest.mark.parametrize("reply", [text, lambda said: tools(call("final_result", said), text="So: ")])
def test_objects_are_told_while_they_are_written(tmp_path: Path, reply: Any) -> None:
    told: list[Any] = []
    said = json.dumps({"result": [f"part {number}" for number in range(40)]})
    result, *_ = run(
        tmp_path, [reply(said)], output_type=list[str], callbacks={"output_partial": told.append}
    )
    assert told[-1] == result.output
    assert len(told) > 1
    assert all(isinstance(one, list) for one in told)


@pytest.mark.agent(toolsets=[], output_type=City)
def test_a_turn_that_is_resumed_and_forked_has_its_value(agent: MakeAgent) -> None:
    async def up_to_the_answer() -> None:
        while turn.state != "Finalize":
            assert await turn.step()

    first = agent(text(BERN))
    turn = first.start("Which city?")
    asyncio.run(up_to_the_answer())
    first.close()
    for kind, given, value in ((City, None, VALUE), (None, None, json.loads(BERN)), (None, City, VALUE)):
        again = agent(output_type=kind)
        assert again.fork(turn.id, len(turn.steps), output_type=given).run().output == value
    assert agent().resume(turn.id).run().output == VALUE
    for other in (int, str):
        output = agent(output_type=other).fork(turn.id, 3).run().output
        assert output == json.loads(BERN), "the type of the turn, not the agent's"
    with pytest.raises(ConfigError, match="output_type is not what the turn was begun with"):
        again.fork(turn.id, 3, output_type=list[str])


def test_a_typed_turn_can_be_made_a_test(tmp_path: Path) -> None:
    result, *_ = run(tmp_path, [text("Bern"), FINAL])
    made = make_test(store_for(tmp_path), result.turn_id)
    played: dict[str, Any] = {}
    exec(compile(made, "made", "exec"), played)
    played["test_turn"]()
    assert BERN in made


def schema(people: dict[str, Any]) -> dict[str, Any]:
    members = {"name": {"type": "string"}, "people": {"type": "integer", **people}}
    closed = {"required": ["name", "people"], "additionalProperties": False, "description": "A city."}
    return {"type": "object", "properties": members, **closed}


SCHEMA, CLAUDES = schema({"minimum": 0}), schema({"description": "minimum: 0"})
NAMED = {"name": "City", "schema": SCHEMA, "strict": True}
WIRES = [
    ("openai:gpt-5-mini", "chat_completions", {"response_format": {"type": "json_schema", "json_schema": NAMED}}),
    ("openai:gpt-5-mini", "codex_responses", {"text": {"format": {"type": "json_schema", **NAMED}}}),
    ("anthropic:claude-opus-4-8", "anthropic_messages", {"output_config": {"effort": "high", "format": {"type": "json_schema", "schema": CLAUDES}}}),
]  # fmt: skip


def over_http(home: Path, model: str, api_mode: str, script: Any, **given: Any) -> tuple[Any, list[Any]]:
    with ScriptedServer(script) as server:
        agent: Agent[Any, Any] = Agent(
            model, api_mode=api_mode, base_url=server.url, api_key="k", home=home, output_type=City,
            **{"toolsets": [], **given},
        )  # fmt: skip
        result = agent.run_conversation("Which city?")
        agent.close()
    return result, server.bodies


@pytest.mark.parametrize(("model", "api_mode", "written"), WIRES)
def test_a_provider_holds_its_model_to_the_schema(
    tmp_path: Path, model: str, api_mode: str, written: Any
) -> None:
    settings = {"reasoning_effort": "high"} if "claude" in model else {}
    result, bodies = over_http(tmp_path, model, api_mode, [text(BERN)], settings=settings)
    assert {name: bodies[0].get(name) for name in written} == written
    assert "tools" not in bodies[0]
    assert result.output == VALUE


@pytest.mark.parametrize(("model", "api_mode", "written"), WIRES)
@pytest.mark.parametrize("mode", ["tool", "prompt"])
def test_a_mode_can_be_named(tmp_path: Path, model: str, api_mode: str, written: Any, mode: str) -> None:
    told: list[Any] = []
    reply = FINAL if mode == "tool" else text(BERN)
    result, bodies = over_http(
        tmp_path, model, api_mode, [reply], settings={"output_mode": mode}, tools=[echo],
        callbacks={"output_partial": told.append},
    )  # fmt: skip
    assert not any(name in bodies[0] for name in written)
    assert ("final_result" in json.dumps(bodies[0]["tools"])) == (mode == "tool")
    assert ("JSON schema" in json.dumps(bodies[0])) == (mode == "prompt")
    assert told[-1] == result.output == VALUE


@pytest.mark.parametrize(("model", "api_mode", "written"), WIRES)
def test_a_refused_schema_is_left_out_and_that_is_learned(
    tmp_path: Path, model: str, api_mode: str, written: Any
) -> None:
    [field] = written
    named = {"output_config": "output_config.format", "text": "text.format"}.get(field, field)
    refusal = status(400, error_body(f"{named}: this model does not support it"))
    result, bodies = over_http(tmp_path, model, api_mode, [refusal, FINAL])
    assert result.output == VALUE
    assert (field in bodies[0], field in bodies[1], "tools" in bodies[1]) == (True, False, True)
    learned = LearnedFacts(tmp_path, 30, lambda: 0.0)
    assert "structured_output" in (tmp_path / "learned.json").read_text(), learned
    _, bodies = over_http(tmp_path, model, api_mode, [text("no"), text(BERN)])
    assert field in bodies[0], "another address is another server"


def test_an_answer_that_speaks_of_what_will_be_done_is_one(tmp_path: Path) -> None:
    said = '{"name": "I will check the list of cities next", "people": 1}'
    result, bodies = over_http(tmp_path, *WIRES[1][:2], [text(said)])
    assert (result.output.people, len(bodies)) == (1, 1)
    # a schema that is refused for itself teaches nothing
    refusal = status(400, error_body("Invalid schema for response_format 'City': too deep"))
    result, bodies = over_http(tmp_path, *WIRES[0][:2], [refusal, FINAL])
    assert (result.output.name, "response_format" in bodies[1]) == ("Bern", False)
    assert not (tmp_path / "learned.json").exists()


def local(home: Path, script: Any, **given: Any) -> tuple[Any, list[Any]]:
    with ScriptedServer(script) as server:
        options: Any = {"home": home, "toolsets": [], "output_type": City, **given}
        with Agent("llamacpp:small", base_url=server.url, **options) as agent:
            output = agent.run_conversation("go").output
    return output, server.bodies


def test_a_local_server_gets_the_schema_as_it_is_and_in_words(tmp_path: Path) -> None:
    script = [text('{"result": {"a": 1}}'), text("{}"), text('{"a": 2}')]
    output, bodies = local(tmp_path, script, output_type=dict[str, int])
    assert output == {}
    sent = bodies[0]["response_format"]["json_schema"]["schema"]
    assert sent == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert "JSON schema" in bodies[0]["messages"][0]["content"]


def test_a_grammar_and_calls_do_not_go_together(tmp_path: Path) -> None:
    output, bodies = local(tmp_path, [tools(call("echo", {"text": "a"})), FINAL], tools=[echo])
    assert output == VALUE
    assert all("response_format" not in body for body in bodies)
    assert "final_result" in json.dumps(bodies[0]["tools"])


def test_a_grammar_that_fails_twice_is_done_without(tmp_path: Path) -> None:
    refusal = status(400, error_body("failed to parse grammar"))
    output, bodies = local(tmp_path, [refusal, refusal, FINAL])
    assert output == VALUE
    assert ["response_format" in body for body in bodies] == [True, True, False]
