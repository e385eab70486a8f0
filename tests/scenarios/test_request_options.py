"""What is asked of a model besides the conversation, on each wire, as the server sees it: options of a
request, and tools that the provider runs, which go back to it as they came."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.cli import main
from fsm_agent.conversation.effects import CallModel
from fsm_agent.conversation.vendors import HOSTED, hosted_lines, taken_back, words_of
from fsm_agent.errors import ConfigError
from fsm_agent.testing import FakeClock, ScriptedServer, call, status, text, tools
from tests.helpers.harness import echo
from tests.helpers.web_replies import WebReplies, events, objects
from tests.helpers.wire_rules import item

CHAT = "openai:gpt-4o", "chat_completions"
RESPONSES = "openai:gpt-4o", "codex_responses"
CLAUDE = "anthropic:claude-opus-4-8", "anthropic_messages"
KIMI = "moonshot:kimi-k2", "anthropic_messages"
"""Speaks the wire of Claude, and takes a temperature."""
SEARCHING = "openai:gpt-5-search-api", "chat_completions"
REASONER = "openai:gpt-5-mini", "codex_responses"
BOTH = ["web_search", "code_execution"]
Model = tuple[str, str]
Body = dict[str, Any]
NOWHERE = "http://127.0.0.1:9/v1"
ROUND = tools(call("echo", {"text": "a"})), text("done")


def asking(model: Model, url: str, request: Any, **options: Any) -> Agent:
    given = {"tools": [echo], "toolsets": [], "settings": {}, **options}
    given["settings"] = {"request": request, **given["settings"]}
    return Agent(model[0], api_mode=model[1], base_url=url, api_key="k", **given)


def asked(model: Model, request: Any, *script: Any, tools: Any = (echo,), **settings: Any) -> list[Body]:
    """The bodies of a turn's requests."""
    with ScriptedServer(script or [text("done")]) as server:
        with asking(model, server.url, request, tools=tools, settings=settings) as agent:
            result = agent.run_conversation("go")
        assert result.completed or result.turn_exit_reason == "max_iterations_summary"
    return server.bodies


@pytest.mark.parametrize(
    ("model", "request_", "written"),
    [
        (CHAT, {"top_p": 0.5, "seed": 7, "stop": ["END"]}, {"top_p": 0.5, "seed": 7, "stop": ["END"]}),
        (CHAT, {"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        (CHAT, {"tool_choice": "none"}, {"tool_choice": "none"}),
        (CHAT, {"extra_body": {"service_tier": "flex"}}, {"service_tier": "flex"}),
        (RESPONSES, {"top_p": 0.5, "parallel_tool_calls": True}, {"top_p": 0.5, "parallel_tool_calls": True}),
        (RESPONSES, {"tool_choice": "auto"}, {"tool_choice": "auto"}),
        (RESPONSES, {"extra_body": {"service_tier": "flex"}}, {"service_tier": "flex"}),
        (CLAUDE, {"stop": ["END"]}, {"stop_sequences": ["END"]}),
        (CLAUDE, {"tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
        (CLAUDE, {"parallel_tool_calls": False},
         {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        (CLAUDE, {"extra_body": {"service_tier": "auto"}}, {"service_tier": "auto"}),
        (KIMI, {"top_p": 0.5}, {"top_p": 0.5}),
    ],
)  # fmt: skip
def test_each_request_of_a_turn_asks_for_it(model: Model, request_: Any, written: Any) -> None:
    bodies = asked(model, request_, *ROUND)
    assert len(bodies) == 2
    for body in bodies:
        assert {name: body.get(name) for name in written} == written


@pytest.mark.parametrize(
    ("model", "choice", "written"),
    [
        (CHAT, "required", "required"), (CHAT, "echo", {"type": "function", "function": {"name": "echo"}}),
        (RESPONSES, "required", "required"), (RESPONSES, "echo", {"type": "function", "name": "echo"}),
        (CLAUDE, "required", {"type": "any"}), (CLAUDE, "echo", {"type": "tool", "name": "echo"}),
    ],
)  # fmt: skip
def test_a_choice_that_is_forced_holds_until_a_tool_has_run(model: Model, choice: str, written: Any) -> None:
    first, second = asked(model, {"tool_choice": choice}, *ROUND)
    assert first["tool_choice"] == written
    assert "tool_choice" not in second


def test_claude_is_not_asked_to_think_while_a_tool_is_forced() -> None:
    first, _ = asked(CLAUDE, {"tool_choice": "required"}, *ROUND, reasoning_effort="high")
    assert first["tool_choice"] == {"type": "any"}
    assert "thinking" not in first


@pytest.mark.parametrize(
    ("model", "request_", "says"),
    [
        (RESPONSES, {"seed": 3}, r"request.seed cannot be asked of openai:gpt-4o .*given: 3; allowed: tool_choice"),
        (RESPONSES, {"stop": ["x"]}, r"request.stop cannot be asked"),
        (CLAUDE, {"seed": 3}, r"request.seed cannot be asked .*; allowed: tool_choice, parallel_tool_calls, stop$"),
        (CLAUDE, {"top_p": 0.5}, r"request.top_p cannot be asked"),
        (CHAT, {"tool_choice": "nothing"}, r"tool_choice names no tool; given: nothing; allowed: auto, .*echo"),
        (CHAT, {"stop": ["a"] * 5}, r"request.stop"), (CHAT, {"top_p": 0}, r"request.top_p"),
        (CHAT, {"extra_body": {"messages": []}},
         r"request.extra_body is out of range; given: messages; allowed: fields"),
        (CHAT, {"extra_body": {"x": object()}}, r"extra_body"),
        (CHAT, {"hosted_tools": ["web_search"]},
         r"request.hosted_tools.web_search cannot be asked of openai:gpt-4o \(chat_completions\); allowed: none there$"),
        (KIMI, {"hosted_tools": ["web_search"]}, r"hosted_tools.web_search cannot be asked of moonshot"),
        (SEARCHING, {"hosted_tools": BOTH}, r"request.hosted_tools.code_execution cannot .*; allowed: web_search$"),
        (REASONER, {"hosted_tools": ["browser"]},
         r"request.hosted_tools is out of range; given: browser; allowed: web_search, code_execution$"),
        (REASONER, {"hosted_tools": "web_search"}, r"request.hosted_tools is out of range"),
        (REASONER, {"hosted_tools": {"web_search": 1}}, r"request.hosted_tools"),
    ],
)  # fmt: skip
def test_what_the_model_lacks_is_refused_with_what_it_has(model: Model, request_: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        asking(model, NOWHERE, request_)


def test_a_fallback_is_asked_without_what_it_lacks_and_gets_no_extra_fields() -> None:
    lines: list[str] = []
    request = {"seed": 3, "top_p": 0.5, "extra_body": {"service_tier": "flex"}}
    with ScriptedServer([status(404)]) as first, ScriptedServer([text("done")]) as second:
        other = {"model": RESPONSES[0], "base_url": second.url, "api_key": "k", "api_mode": RESPONSES[1]}
        options = {"fallbacks": [other], "callbacks": {"status": lines.append}, "clock": FakeClock()}
        with asking(CHAT, first.url, request, **options) as agent:
            assert agent.run_conversation("go").completed
    assert (first.bodies[0]["seed"], first.bodies[0]["service_tier"]) == (3, "flex")
    [body] = second.bodies
    assert body["top_p"] == 0.5
    assert not {"seed", "service_tier"} & body.keys()
    assert any("is asked without seed" in line for line in lines)


ROUTER = "openrouter:openai/gpt-4o", "chat_completions"
OLD = "anthropic:claude-sonnet-4-5", "anthropic_messages"
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}


def hosting(model: Model, url: str, hosted: Any, **options: Any) -> Agent:
    return asking(model, url, {"hosted_tools": hosted}, **options)


@pytest.mark.parametrize(
    ("model", "hosted", "written"),
    [
        (REASONER, BOTH, [{"type": "web_search"}, INTERPRETER]),
        (REASONER, {"web_search": {"search_context_size": "low"}}, [{"type": "web_search", "search_context_size": "low"}]),
        (CLAUDE, {"web_search": {"max_uses": 2}, "code_execution": {}},
         [{"type": "web_search_20260318", "name": "web_search", "max_uses": 2},
          {"type": "code_execution_20260521", "name": "code_execution"}]),
        (OLD, BOTH,
         [{"type": "web_search_20250305", "name": "web_search"},
          {"type": "code_execution_20250825", "name": "code_execution"}]),
        (CLAUDE, {"web_search": {"type": "web_search_20260209"}}, [{"type": "web_search_20260209", "name": "web_search"}]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [[echo], []], ids=["beside ours", "alone"])
def test_they_stand_behind_the_tools_of_the_agent(
    model: Model, hosted: Any, written: list[Any], own: list[Any]
) -> None:
    [body] = asked(model, {"hosted_tools": hosted}, tools=own)
    assert body["tools"][len(own) :] == written
    assert [tool["name"] for tool in body["tools"][: len(own)]] == ["echo"] * len(own)
    told = INTERPRETER in written
    assert ("code_interpreter_call.outputs" in body.get("include", ())) is told


@pytest.mark.parametrize(
    ("model", "written"), [(SEARCHING, {"web_search_options": {}}), (ROUTER, {"plugins": [{"id": "web"}]})]
)
def test_chat_completions_has_what_its_vendors_have(model: Model, written: Body) -> None:
    [body] = asked(model, {"hosted_tools": ["web_search"]})
    assert written.items() <= body.items()
    assert len(body["tools"]) == 1


def test_a_request_in_which_no_tool_may_run_has_none() -> None:
    script = [tools(call("echo", {"text": "a"})), text("the last word")]
    bodies = asked(REASONER, {"hosted_tools": BOTH}, *script, max_iterations=1)
    assert ["tools" in body for body in bodies] == [True, False]


def test_a_tool_of_the_agent_cannot_have_the_same_name() -> None:
    def web_search(query: str) -> str:
        """Search."""
        return query

    with pytest.raises(ConfigError, match="has the name of a hosted tool; given: web_search"):
        hosting(CLAUDE, NOWHERE, BOTH, tools=[web_search])


@pytest.mark.parametrize(("hosted", "seconds"), [(["web_search"], 300), ([], 180)])
def test_a_provider_may_be_silent_while_it_runs_them(hosted: list[str], seconds: float) -> None:
    async def asked(agent: Agent) -> list[float]:
        turn, found = agent.start("go"), []
        while turn.result is None:
            done = await turn.step_into()
            if isinstance(request := getattr(done, "request", None), CallModel):
                found.append(request.stale_after)
        return found

    with ScriptedServer([text("done")]) as server, hosting(CLAUDE, server.url, hosted) as agent:
        assert asyncio.run(asked(agent)) == [seconds]


# What comes back

THOUGHT = {"type": "thinking", "thinking": "I look it up.", "signature": "signed-1"}
SEARCH = item(
    "server_tool_use", id="srvtoolu_1", name="web_search", input={"query": "height of the Zugspitze"}
)
FOUND = {
    "type": "web_search_tool_result", "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://a.example", "title": "Ä", "encrypted_content": "EqgfCioI==", "page_age": None}],
}  # fmt: skip
CITED = {
    "type": "text", "text": "It is 2,962 m high.",
    "citations": [{"type": "web_search_result_location", "url": "https://a.example", "title": "Ä", "encrypted_index": "Eo8B", "cited_text": "2962"}],
}  # fmt: skip
BEGUN = {"type": "text", "text": "I will look. "}
ECHO = {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {"text": "2962"}}
RAN = item("server_tool_use", id="srvtoolu_2", name="code_execution", input={"code": "print(6*7)"})
PRINTED = {
    "type": "code_execution_tool_result", "tool_use_id": "srvtoolu_2",
    "content": {"type": "code_execution_result", "stdout": "42\n", "stderr": "", "return_code": 0, "content": []},
}  # fmt: skip


def message(*content: Body, stop: str = "end_turn") -> Body:
    return {"type": "message", "role": "assistant", "content": list(content), "stop_reason": stop}


def streamed(told: Body) -> tuple[int, str, bytes]:
    """The same as events, texts and inputs in pieces."""
    lines: list[Body] = [{"type": "message_start", "message": {**told, "content": [], "stop_reason": None}}]
    for index, block in enumerate(told["content"]):
        begun, deltas = dict(block), []
        if "input" in block:
            written = json.dumps(block["input"])
            begun["input"] = {}
            deltas = [
                {"type": "input_json_delta", "partial_json": part} for part in (written[:5], written[5:])
            ]
        elif block["type"] == "text":
            begun = {"type": "text", "text": "", **({"citations": []} if "citations" in block else {})}
            deltas = [{"type": "citations_delta", "citation": one} for one in block.get("citations", ())]
            deltas += [
                {"type": "text_delta", "text": part} for part in (block["text"][:4], block["text"][4:])
            ]
        elif block["type"] == "thinking":
            begun = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            deltas += [{"type": "signature_delta", "signature": block["signature"]}]
        lines.append({"type": "content_block_start", "index": index, "content_block": begun})
        lines += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        lines.append({"type": "content_block_stop", "index": index})
    lines.append({"type": "message_delta", "delta": {"stop_reason": told["stop_reason"]}})
    return events("named", *lines, {"type": "message_stop"})


@pytest.mark.parametrize("stream", [True, False])
def test_what_they_did_goes_back_to_claude_as_it_came(stream: bool, capsys: Any) -> None:
    told = [
        message(THOUGHT, BEGUN, SEARCH, FOUND, CITED, ECHO, stop="tool_use"),
        message(RAN, PRINTED, {"type": "text", "text": "And 42."}),
        message({"type": "text", "text": "Bye."}),
    ]
    lines: list[str] = []
    with WebReplies(*map(streamed, told) if stream else objects(*told)) as server:
        options: Body = {"callbacks": {"status": lines.append}}
        with hosting(CLAUDE, server.url, BOTH, **options) as agent:
            assert agent.run_conversation("how high?").final_response == "And 42."
            session = agent.session_id
        with hosting(CLAUDE, server.url, BOTH, session_id=session) as agent:
            assert agent.chat("thanks") == "Bye."
    _, second, third = (asked.body["messages"] for asked in server.asked)
    assert without_marks(second[1]["content"]) == [THOUGHT, BEGUN, SEARCH, FOUND, CITED, ECHO]
    assert without_marks(third[1]["content"]) == [BEGUN, SEARCH, FOUND, CITED, ECHO], "without thoughts"
    assert without_marks(third[3]["content"]) == [RAN, PRINTED, {"type": "text", "text": "And 42."}]
    said = ["the provider searched the web: height of the Zugspitze", "the provider ran code: print(6*7)"]
    assert [line for line in lines if line.startswith("the provider")] == said
    assert main(["sessions", "show", session]) == 0
    shown = capsys.readouterr().out
    assert all(line in shown for line in said)


def without_marks(content: list[Body]) -> list[Body]:
    """The blocks without the marks of a cache, which move from request to request."""
    return [{key: value for key, value in block.items() if key != "cache_control"} for block in content]


def test_another_maker_gets_the_words_alone() -> None:
    told = [message(SEARCH, FOUND, CITED, ECHO, stop="tool_use")]
    back = {"model": "openai:gpt-5-mini", "api_key": "k", "api_mode": "codex_responses"}
    with (
        WebReplies(*objects(*told), (401, "application/json", b"{}")) as server,
        ScriptedServer([text("done")]) as other,
    ):
        agent = hosting(CLAUDE, server.url, BOTH, fallbacks=[{**back, "base_url": other.url}])
        assert agent.chat("go") == "done"
    for block in (SEARCH, FOUND, CITED):
        raw = json.dumps(block, ensure_ascii=False, separators=(",", ":")).encode()
        assert raw in server.asked[1].raw, "to its maker go the bytes that came"
    [body] = other.bodies
    assert "2,962 m high" in json.dumps(body)
    assert "srvtoolu" not in json.dumps(body)
    assert "EqgfCioI" not in json.dumps(body)
    assert {"type": "web_search"} in body["tools"]


def test_one_that_was_begun_and_did_not_end_is_left_out() -> None:
    told = [message(BEGUN, SEARCH, ECHO, stop="tool_use"), message({"type": "text", "text": "Bye."})]
    with WebReplies(*objects(*told)) as server, hosting(CLAUDE, server.url, BOTH) as agent:
        assert agent.chat("go") == "Bye."
    assert without_marks(server.asked[1].body["messages"][1]["content"]) == [BEGUN, ECHO]


def test_a_reply_that_pauses_goes_on_with_what_was_found() -> None:
    open_search = {**SEARCH, "id": "srvtoolu_9"}
    told = (
        message(SEARCH, FOUND, open_search, stop="pause_turn"),
        message({"type": "text", "text": "2,962 m."}),
    )
    with WebReplies(*objects(*told)) as server, hosting(CLAUDE, server.url, BOTH) as agent:
        assert agent.chat("how high?") == "2,962 m."
    rows = server.asked[1].body["messages"]
    assert without_marks(rows[1]["content"])[:2] == [SEARCH, FOUND]
    assert "srvtoolu_9" not in json.dumps(rows)
    assert rows[-1]["role"] == "user"


REASON = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
LOOKED = item("web_search_call", id="ws_1", status="completed", action=item("search", query="Zugspitze"))
COMPUTED = {
    "type": "code_interpreter_call", "id": "ci_1", "status": "completed", "container_id": "cntr_1",
    "code": "print(6*7)", "outputs": [{"type": "logs", "logs": "42\n"}],
}  # fmt: skip
CALLED = item("function_call", id="fc_1", call_id="call_1", name="echo", arguments='{"text":"x"}')


def spoken(words: str) -> Body:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def response(*output: Body) -> Body:
    return {"id": "resp_1", "status": "completed", "output": list(output)}


def flowing(told: Body) -> tuple[int, str, bytes]:
    lines: list[Body] = []
    for index, one in enumerate(told["output"]):
        begun = {"type": one["type"], "id": one["id"], "status": "in_progress"}
        lines.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        lines.append({"type": "response.output_item.done", "output_index": index, "item": one})
    return events("named", *lines, {"type": "response.completed", "response": told})


@pytest.mark.behaviour("BUILD-09e")
@pytest.mark.parametrize("stream", [True, False])
def test_what_they_did_goes_back_on_the_responses_wire(stream: bool) -> None:
    told = [
        response(REASON, LOOKED, COMPUTED, CALLED),
        response(LOOKED, spoken("It is high.")),
        response(spoken("Bye.")),
    ]
    lines: list[str] = []
    with WebReplies(*map(flowing, told) if stream else objects(*told)) as server:
        options: Body = {"callbacks": {"status": lines.append}}
        with hosting(REASONER, server.url, BOTH, **options) as agent:
            assert agent.chat("how high?") == "It is high."
            session = agent.session_id
        with hosting(REASONER, server.url, BOTH, session_id=session) as agent:
            assert agent.chat("thanks") == "Bye."
    _, second, third = (asked.body["input"] for asked in server.asked)
    thought = {key: value for key, value in REASON.items() if key != "id"}
    assert second[1:4] == [thought, LOOKED, COMPUTED]
    assert third[1:4] == second[1:4]
    assert LOOKED in third[4:]
    assert json.dumps(LOOKED, separators=(",", ":")).encode() in server.asked[2].raw
    assert [line for line in lines if line.startswith("the provider")] == [
        "the provider searched the web: Zugspitze",
        "the provider ran code: print(6*7)",
        "the provider searched the web: Zugspitze",
    ]


@pytest.mark.parametrize("item", [{}, {"type": 1}, {"type": "web_search_call", "action": 3}, {"type": "server_tool_use"},
                                  {"type": "server_tool_use", "name": 7, "input": "x"}])  # fmt: skip
def test_any_item_can_be_told_in_words(item: Body) -> None:
    assert isinstance(words_of(item), str)


@pytest.mark.parametrize(
    "content", [None, 7, "text", [7, None], [{}], [{"type": 3}], [ECHO], [{"type": "image", "source": {}}]]
)
def test_a_block_of_anything_sends_nothing_of_it(content: Any) -> None:
    with ScriptedServer([text("done")]) as server:
        issuer = f"anthropic:http://127.0.0.1:{server.port}/v1"
        blocks = [{"type": HOSTED, "content": content}]
        row = {"role": "assistant", "content": "hm", "issuer": issuer, "blocks": blocks}
        history = [{"role": "user", "content": "a"}, row]
        with hosting(CLAUDE, server.url, BOTH) as agent:
            assert agent.run_conversation("go", conversation_history=history).completed
    assert without_marks(server.bodies[0]["messages"][1]["content"]) == [{"type": "text", "text": "hm"}]
    assert [*hosted_lines(blocks)] == []


# With the other options


@pytest.mark.parametrize(
    ("model", "settings", "written"),
    [
        (("openai:gpt-5-mini", "chat_completions"),
         {"temperature": 1.0, "reasoning_effort": "low", "max_output_tokens": 500, "request": {"seed": 1, "tool_choice": "auto"}},
         {"temperature": 1.0, "reasoning_effort": "low", "max_completion_tokens": 500, "seed": 1, "tool_choice": "auto"}),
        (
            REASONER,
            {"temperature": 1.0, "reasoning_effort": "low", "max_output_tokens": 500, "request": {"hosted_tools": BOTH, "parallel_tool_calls": False}},
            {
                "temperature": 1.0, "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 500,
                "include": ["reasoning.encrypted_content", "code_interpreter_call.outputs"], "parallel_tool_calls": False,
            },
        ),
        (CLAUDE,
         {"reasoning_effort": "low", "max_output_tokens": 500, "request": {"hosted_tools": BOTH, "stop": ["END"]}},
         {"output_config": {"effort": "low"}, "max_tokens": 500, "stop_sequences": ["END"]}),
        (KIMI, {"temperature": 0.5, "max_output_tokens": 500, "request": {"top_p": 0.5}},
         {"temperature": 0.5, "max_tokens": 500, "top_p": 0.5}),
    ],
    ids=["chat", "responses", "claude", "kimi"],
)  # fmt: skip
def test_all_options_go_together(model: Model, settings: Body, written: Body) -> None:
    [body] = asked(model, **settings)
    assert {name: body.get(name) for name in written} == written


@pytest.mark.parametrize(
    ("item", "odd"),
    [
        *(
            (LOOKED, odd)
            for odd in ({"status": "no word of theirs"}, {"status": []}, {"id": None}, {"action": " "})
        ),
        *((COMPUTED, odd) for odd in ({"container_id": 1}, {"outputs": "text"}, {"code": []})),
        (LOOKED, {"action": {"type": {}}}),
    ],
)
def test_an_item_that_its_maker_would_refuse_does_not_go_back(item: Body, odd: Body) -> None:
    """It would spoil every later request of the session."""
    assert taken_back(item)
    assert taken_back({**COMPUTED, "code": None, "outputs": None})
    assert not taken_back({**item, **odd})
