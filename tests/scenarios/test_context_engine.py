"""A context engine of the user's: what it decides is done by the rows of the table, and what it says that
cannot be used costs a line."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent import Agent
from fsm_agent.conversation.compaction import BuiltInEngine, ContextEngine, LongContext, summary_row
from fsm_agent.conversation.history import violations
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.errors import ConfigError
from fsm_agent.testing import FakeClock, ScriptedModel, overflow, repeat, status, text
from fsm_agent.testing.wires import chat_rows
from tests.crash.compacting import SESSION, agent_of
from tests.helpers.harness import Played, play, table, talk
from tests.helpers.processes import ran

NOT_USED = "the context engine's answer is not used"


class KeepsTwo:
    """Keeps the first two rows and the last one; puts its own summary between them."""

    def __init__(self, **own: Any) -> None:
        self.asked: list[str] = []
        self.own = own

    def cut(self, context: LongContext) -> Any:
        return self._said("cut", lambda: range(2, len(context.rows) - 1))

    async def prompt(self, context: LongContext, goes: Sequence[int], window: int) -> Any:
        return self._said("prompt", lambda: f"In ten words, {len(goes)} rows, window {window}.")

    def rows(self, context: LongContext, goes: Sequence[int], summary: str) -> Any:
        kept = [row for place, row in enumerate(context.rows) if place not in set(goes)]
        told = summary_row(f"MINE: {summary or 'no words'}")
        return self._said(
            "rows", lambda: [*kept[:2], told, Message("assistant", "I see."), *kept[2:]], context.rows
        )

    def _said(self, step: str, usual: Callable[[], Any], *rows: Sequence[Message]) -> Any:
        self.asked.append(step)
        own = self.own.get(step)
        return usual() if own is None else own(*rows)


def compacted(engine: ContextEngine | None, **options: Any) -> Played:
    script = options.pop("script", [text("the summary"), text("done")])
    options = {"history": talk(40), "context_window": 8_192, "context_engine": engine, **options}
    return play(script, **options)


def lines(played: Played) -> list[str]:
    return [line for line in played.heard.of("status") if NOT_USED in line]


@pytest.mark.behaviour("COMP-42")
def test_an_engine_says_what_goes_what_is_asked_and_what_becomes_of_the_reply() -> None:
    engine = KeepsTwo()
    played = compacted(engine)
    assert engine.asked == ["cut", "prompt", "rows"]
    summary, request = (body["messages"] for body in played.server.bodies)
    assert [row["content"] for row in summary] == ["In ten words, 78 rows, window 8192."]
    assert "MINE: the summary" in str(request[-3]["content"])
    assert [str(row["content"])[:6] for row in request[-2:]] == ["I see.", "go"]
    assert (len(played.result.messages), played.result.compressions[0]["messages_after"]) == (6, 5)
    rows = "Prepare.ready BuildMessages.oversized/2 Compress.unsummarized/1 Compress.compressed"
    assert [step.row for step in played.steps][:4] == rows.split()
    assert played.result.attempts == 2, "the request for the summary is a row's spending"
    assert not lines(played)


def test_an_engine_that_needs_no_summary_asks_no_model() -> None:
    engine = KeepsTwo(cut=list, rows=lambda rows: rows[-3:])
    played = compacted(engine, script=[text("done")])
    assert engine.asked == ["cut", "rows"]
    assert [step.event for step in played.steps][:4] == ["ready", "oversized", "compressed", "built"]
    sent = played.server.bodies[0]["messages"]
    assert len(sent) == 3 + ("system" in str(sent[0]["role"]))


def test_a_summary_that_no_model_gives_is_a_row_and_the_engine_writes_without_one() -> None:
    engine = KeepsTwo()
    played = compacted(engine, script=[text(""), text("done")])
    assert engine.asked == ["cut", "prompt", "rows"]
    assert "Compress.unsummarized/2" in [step.row for step in played.steps]
    assert any("MINE: no words" in str(row["content"]) for row in played.server.bodies[1]["messages"])
    assert played.result.compressions[0]["fallback_used"]


def test_each_model_that_is_tried_is_asked_in_the_engines_words() -> None:
    with table([status(500)]) as (_, smaller, _, _):
        small = {"model": "openai:gpt-mini", "base_url": smaller.url, "api_key": "k", "context_window": 4_096}
        engine, script = KeepsTwo(), [text("the summary"), text("done")]
        options = {"auxiliary": small, "context_engine": engine, "context_window": 8_192}
        with table(script, **options) as (agent, server, _, _):
            result = agent.run_conversation("go", conversation_history=talk(40))
        assert engine.asked == ["cut", "prompt", "prompt", "rows"]
        assert "window 4096" in str(smaller.bodies[0]["messages"])
        assert "window 8192" in str(server.bodies[0]["messages"])
        assert result.attempts == 3


def test_a_compaction_by_hand_is_the_engines_too() -> None:
    engine = KeepsTwo()
    with table([text("ok"), text("a summary")], context_engine=engine) as (agent, server, _, _):
        agent.run_conversation("go", conversation_history=talk(20))
        engine.own["cut"] = lambda: range(2, 40)
        assert agent.compact() is not None
        assert engine.asked == ["cut", "prompt", "rows"]
        assert "In ten words" in str(server.bodies[1]["messages"])


# What cannot be used


def broken(*_: Any) -> Any:
    raise ValueError("no idea, sk-abcdefghijklmnopqrstuvwxyz123456")


ASKED = Message("user", "an invented message of the user")
RUBBISH: dict[str, tuple[str, Callable[..., Any], str]] = {
    "a cut that fails": ("cut", broken, "ValueError"),
    "a cut that is nothing": ("cut", lambda: 17, "TypeError"),
    "a cut that names no rows": ("cut", lambda: ["first"], "TypeError"),
    "a cut of places that are not there": ("cut", lambda: [70, 500], "places"),
    "a cut of places out of order": ("cut", lambda: [7, 3], "places"),
    "a cut of the newest message": ("cut", lambda: range(1, 81), "newest message"),
    "a request that fails": ("prompt", broken, "ValueError"),
    "a request that is not text": ("prompt", lambda: b"bytes", "TypeError"),
    "an empty request": ("prompt", lambda: " \n", "empty"),
    "rows that fail": ("rows", broken, "ValueError"),
    "no rows": ("rows", lambda rows: [], "newest message"),
    "something else than rows": ("rows", lambda rows: ["hello"], "TypeError"),
    "a row twice": ("rows", lambda rows: [rows[0], rows[0], rows[-1]], "twice"),
    "the newest message in other words": ("rows", lambda rows: [replace(rows[-1], content="go away")], "newest message"),
    "a message that the user did not send": ("rows", lambda rows: [rows[-1], ASKED], "passes for one"),
    "a system row": ("rows", lambda rows: [Message("system", "obey"), rows[-1]], "system row"),
    "the model last": ("rows", lambda rows: [rows[-1], Message("assistant", "I said this")], "cannot become"),
    "a result of no call": (
        "rows", lambda rows: [rows[0], Message("tool", "42", tool_call_id="c"), rows[-1]], "without its call",
    ),
    "a call without a result": ("rows",
        lambda rows: [rows[0], Message("assistant", "", tool_calls=(ToolCall("c", "echo", "{}"),)), rows[-1]],
        "cannot become"),
    "a row that cannot be stored": ("rows", lambda rows: [Message("assistant", [{"type": object()}]), rows[-1]], "TypeError"),
}  # fmt: skip


@functools.cache
def built_in() -> Played:
    """The same turn without an engine of the user's."""
    return compacted(None)


@pytest.mark.parametrize("what", RUBBISH)
def test_what_cannot_be_used_is_done_by_the_built_in_engine(what: str) -> None:
    step, says, why = RUBBISH[what]

    class OnlyThis(BuiltInEngine):
        """The built-in engine, but for one step."""

    setattr(OnlyThis, step, lambda self, context, *_: says(*([context.rows] if step == "rows" else [])))
    played, plain = compacted(OnlyThis()), built_in()
    (line,) = lines(played)
    assert why in line
    assert "sk-abcdefghijklmnopqrstuvwxyz" not in line
    assert played.result.messages == plain.result.messages
    assert [body["messages"] for body in played.server.bodies] == [
        body["messages"] for body in plain.server.bodies
    ]
    assert [step.row for step in played.steps] == [step.row for step in plain.steps]


def test_an_engine_that_hangs_costs_its_time_limit() -> None:
    clock = FakeClock()

    class Hangs(BuiltInEngine):
        async def prompt(self, context: LongContext, goes: Sequence[int], window: int) -> str:
            clock.advance(3_600)
            await asyncio.Event().wait()
            return ""

    played = compacted(Hangs(), clock=clock, settings={"compression": {"engine_timeout": 5}})
    assert "took longer than 5 s" in lines(played)[0]
    assert played.exit == "text_response"


@pytest.mark.parametrize("cut", [lambda: [2], list], ids=["one row", "none"])
def test_a_request_that_was_refused_is_sent_again_whatever_the_engine_leaves(cut: Callable[[], Any]) -> None:
    engine = KeepsTwo(cut=cut, rows=lambda rows: [*rows])
    script = [overflow(8192), *[text("the summary")] * len(cut()), text("done")]
    played = compacted(engine, history=talk(4), script=script, context_window=16_000)
    assert played.result.final_response == "done"
    assert "are of use" in lines(played)[0]
    assert len(str(played.server.bodies[-1])) < len(str(played.server.bodies[0]))


@pytest.mark.parametrize("thing", [object(), "engine"])
def test_an_invalid_engine_fails_with_one_clear_line(thing: Any) -> None:
    with pytest.raises(ConfigError, match="not a context engine: cut, prompt, rows missing"):
        Agent("offline:demo", context_engine=thing)


MADE = st.builds(
    Message, st.sampled_from(["user", "assistant", "tool", "system"]), st.text(max_size=5),
    tool_call_id=st.sampled_from([None, "c"]), summary=st.booleans(),
)  # fmt: skip


@settings(max_examples=10)
@given(
    cut=st.none() | st.lists(st.integers(-1, 28), max_size=9),
    made=st.lists(MADE | st.integers(0, 28), max_size=6),
    asked=st.booleans(),
)
def test_whatever_an_engine_says_the_turn_ends_with_an_answer_and_the_message_is_sent(
    cut: list[int] | None, made: list[Message | int], asked: bool
) -> None:
    class Anything(BuiltInEngine):
        def cut(self, context: LongContext) -> Any:
            return super().cut(context) if cut is None else cut

        def rows(self, context: LongContext, goes: Sequence[int], summary: str) -> Any:
            said = [context.rows[one] if isinstance(one, int) else one for one in made]
            return [*said, *context.rows[len(context.rows) - asked :]]

    bodies: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> Any:
        bodies.append(body)
        return text("ok")

    agent = Agent(ScriptedModel(repeat(reply)), toolsets=[], context_window=5_000, context_engine=Anything())
    turn = agent.start("go", conversation_history=talk(14))
    result = turn.run()
    assert result.completed
    assert "oversized" in [step.event for step in turn.steps]
    assert not violations(chat_rows(bodies[-1]))
    assert bodies[-1]["messages"][-1]["content"].endswith("go")
    assert not any(row["role"] == "system" for row in result.messages)


# The end of the process


def killed(home: Path, place: str) -> list[str]:
    """Run a turn in a process of its own that kills itself; what its engine was asked."""
    done = ran("-m", "tests.crash.compacting", home, place)
    assert done.returncode == -9, done.stderr
    return asked(home)


def asked(home: Path) -> list[str]:
    return (home / "asked").read_text().split()


@pytest.mark.parametrize(
    ("place", "before", "after"),
    [
        pytest.param("model", ["cut", "prompt"], ["prompt", "rows"], marks=pytest.mark.slow),
        ("rows", ["cut", "prompt", "rows"], ["rows"]),
    ],
)
def test_what_an_engine_decided_is_not_asked_again_after_kill_9(
    home: Path, tmp_path: Path, place: str, before: list[str], after: list[str]
) -> None:
    home.mkdir()
    assert killed(home, place) == before
    shutil.copytree(home, tmp_path / "copy")
    agent = agent_of(home, "")
    result = agent.resume(SESSION).run()
    assert result.final_response == "done"
    assert asked(home) == before + after
    assert [row["content"][:5] for row in result.messages] == ["first", "[A su", "I see", "go", "done"]
    effects = [one for seq in range(6) for one in agent.journal.effects(result.turn_id, seq)]
    cut = next(one.reply for one in effects if one.kind == "AskEngine")
    assert cut == {"is": "EngineAnswer", "places": [1, 2, 3, 4]}
    without = agent_of(tmp_path / "copy", "", engine=False).resume(SESSION).run()
    assert without.final_response == "done", "without its engine a turn keeps what the engine decided"
    said = [row["content"][:5] for row in without.messages]
    assert said == ["first", "Under", "[A su", "sixth", "go", "done"]
