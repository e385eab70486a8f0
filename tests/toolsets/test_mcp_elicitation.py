"""What a server asks while it is called reaches the person, and what it has besides tools is read by tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.toolsets.mcp.elicitation import (
    ACCEPT,
    DECLINE,
    DECLINED,
    DEFAULTS,
    DISMISSED,
    FILL_IN,
    LEAVE_OUT,
    MOST_ASKED,
    MOST_FIELDS,
    OPENED,
    Elicitation,
    PersonAnswer,
    ServerQuestion,
)
from tests.helpers.mcp_bench import bench, program

pytestmark = pytest.mark.anyio


class Person:
    """Answers with the words given, in their order, and keeps what was asked."""

    def __init__(self, *answers: str | None) -> None:
        self._answers = [*answers]
        self.asked: list[tuple[str, list[str]]] = []

    def clarify(self, question: str, choices: Sequence[str]) -> str | None:
        self.asked.append((question, [*choices]))
        return self._answers.pop(0)


async def answer(person: Person, question: ServerQuestion) -> PersonAnswer:
    return await Elicitation(Callbacks({"clarify": person.clarify}), 60).asker("s")(question)


def form(*required: str, **properties: Any) -> ServerQuestion:
    return ServerQuestion(
        "Who are you?", {"type": "object", "properties": properties, "required": [*required]}
    )


TEXT = {"type": "string"}
FULL = form(
    "name",
    name={"type": "string", "title": "Your name", "minLength": 2, "default": "Ann"},
    age={"type": "integer", "minimum": 18},
    admin={"type": "boolean", "default": False},
    color={"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
    tags={"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "minItems": 1},
)


async def test_a_form_is_filled_in_field_by_field() -> None:
    person = Person(FILL_IN, "X", "Xena", "twelve", "12", "40", "yes", "green", "a, c")
    assert await answer(person, FULL) == PersonAnswer(
        "accept", {"name": "Xena", "age": 40, "admin": True, "color": "g", "tags": ["a", "c"]}
    )
    first, choices = person.asked[0]
    assert first.startswith("The MCP server s asks: Who are you?\n- Your name (string, default Ann)\n- age (")
    assert choices == [DEFAULTS, FILL_IN, DECLINE]
    assert [choices for _, choices in person.asked[1:]] == [
        ["Ann", DECLINE], ["Ann", DECLINE],
        *[[LEAVE_OUT, DECLINE]] * 3,
        ["no", "yes", LEAVE_OUT, DECLINE],
        ["r", "g", LEAVE_OUT, DECLINE],
        [LEAVE_OUT, DECLINE],
    ]  # fmt: skip
    assert "“X” cannot be used: 'X' is too short" in person.asked[2][0]
    assert "“twelve” cannot be used: allowed: a whole number" in person.asked[4][0]


@pytest.mark.parametrize(
    ("question", "answers", "expected"),
    [
        (FULL, [DEFAULTS], PersonAnswer("accept", {"name": "Ann", "admin": False})),
        (FULL, [DECLINE], DECLINED), (FULL, [None], DISMISSED), (FULL, ["what is this?"], DISMISSED),
        (FULL, [FILL_IN, "Bob", DECLINE], DECLINED), (FULL, [FILL_IN, "x", "y", "z"], DISMISSED),
        (form("a", a=TEXT), ["hello"], PersonAnswer("accept", {"a": "hello"})),
        (form(a=TEXT), [LEAVE_OUT], PersonAnswer("accept", {})),
        (form(), [ACCEPT], PersonAnswer("accept", {})), (form(), [DECLINE], DECLINED),
        (form(**{f"f{number}": TEXT for number in range(MOST_FIELDS + 1)}), [], DECLINED),
        (ServerQuestion("x", {"properties": 3}), [ACCEPT], PersonAnswer("accept", {})),
        (ServerQuestion("Pay", url="https://pay.example.org/?id=1"), [OPENED], PersonAnswer("accept")),
        (ServerQuestion("Pay", url="https://pay.example.org/"), [DECLINE], DECLINED),
        (ServerQuestion("Pay", url="http://pay.example.org/"), [], DECLINED),
        (ServerQuestion("Pay", url="javascript:alert(1)"), [], DECLINED),
    ],
)  # fmt: skip
async def test_only_a_clear_answer_is_consent(
    question: ServerQuestion, answers: list[str | None], expected: PersonAnswer
) -> None:
    assert await answer(Person(*answers), question) == expected


async def test_the_words_of_a_server_are_shown_as_they_are() -> None:
    person = Person(DECLINE)
    hidden = {"type": "string", "description": "\u202eevil\x1b[2J", "default": "\u202eno"}
    await answer(person, ServerQuestion("Hello\x1b[31m", {"properties": {"a": hidden, "b": TEXT}}))
    ((words, choices),) = person.asked
    assert not {"\x1b", "\u202e"} & set(words + "".join(choices))


async def test_a_server_cannot_ask_without_end() -> None:
    person = Person(*[ACCEPT] * MOST_ASKED)
    asker = Elicitation(Callbacks({"clarify": person.clarify}), 60).asker("s")
    answers = [(await asker(form())).action for _ in range(MOST_ASKED + 2)]
    assert answers == ["accept"] * MOST_ASKED + ["decline"] * 2


async def test_a_late_answer_is_none() -> None:
    async def never(question: str, choices: Sequence[str]) -> str:
        await asyncio.Event().wait()
        return ACCEPT

    assert await Elicitation(Callbacks({"clarify": never}), 0.01).asker("s")(form()) == DISMISSED


async def test_a_question_of_a_server_during_a_call_reaches_the_person(tmp_path: Path) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def clarify(question: str, choices: Sequence[str]) -> str:
        loops.append(asyncio.get_running_loop())
        return "40"

    params = {
        "message": "Your age?",
        "requestedSchema": {"type": "object", "properties": {"age": {"type": "integer"}}},
    }
    page = {"mode": "url", "message": "Pay", "url": "http://far.example.org/", "elicitationId": "e"}
    async with bench(tmp_path, {"s": program()}, callbacks={"clarify": clarify}) as table:
        await table.ready()
        for given, expected in (
            (params, {"action": "accept", "content": {"age": 40}}),
            (page, {"action": "decline"}),
        ):
            told = await table.call("s__ask", method="elicitation/create", params=given)
            assert json.dumps(expected) in told.text
    assert loops == [asyncio.get_running_loop()], "callbacks run where the turn does"


@pytest.mark.parametrize(("said", "text"), [(OPENED, "paid"), (DECLINE, "pay first")])
async def test_a_call_that_needs_a_page_first_is_made_again(tmp_path: Path, said: str, text: str) -> None:
    person = Person(said)
    tool = {"name": "page_first", "inputSchema": {"type": "object"}}
    async with bench(tmp_path, {"s": program(tools=[tool])}, callbacks={"clarify": person.clarify}) as table:
        await table.ready()
        told = await table.call(
            "s__page_first", path=str(tmp_path / "opened"), url="https://pay.example.org/7"
        )
        assert text in told.text
        assert "https://pay.example.org/7" in person.asked[0][0]


READS = {
    "resources/list": {"resources": [{"uri": "note://1", "name": "one", "icons": [{"src": "data:,"}]}], "nextCursor": "2"},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": "any"}]},
    "resources/read": {"contents": [{"uri": "note://1", "text": "inside"}]},
    "prompts/list": {"prompts": [{"name": "review", "arguments": [{"name": "file", "required": True}]}]},
    "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "Review $ARGUMENTS."}}]},
}  # fmt: skip


async def test_resources_and_prompts_are_read_by_tools(tmp_path: Path) -> None:
    own = [{"name": "list_prompts", "inputSchema": {"type": "object"}}]
    servers = {"s": program(reads=READS), "mine": program(reads=READS, tools=own)}
    async with bench(tmp_path, servers) as table:
        await table.ready()
        told = await table.call("s__list_resources")
        assert [*told.text.splitlines()[3:6]] == [
            '{"name":"one","uri":"note://1"}',
            '{"name":"any","uriTemplate":"note://{id}"}',
            '[there are more: ask again with cursor "2"]',
        ]
        assert "inside" in (await table.call("s__read_resource", uri="note://1")).text
        assert "review" in (await table.call("s__list_prompts")).text
        prompt = await table.call("s__get_prompt", name="review", arguments={"file": 7})
        assert "Review {'file': '7'}." in prompt.text
        # a server's own tool of this name stays what it is
        assert (await table.call("mine__list_prompts")).status == "error"
        rules = {spec.name: (spec.approval, spec.effect) for spec in table.runner.specs}
        assert rules["s__read_resource"] == ("ask", "unsafe"), "to read is to run what the server likes"
