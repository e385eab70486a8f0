"""Tools that fail, hang, return too much, or need a yes."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.testing import FakeClock, call, repeat, text, tools
from tests.helpers.harness import Played, fail, play, table
from tests.helpers.waiting import PATIENCE


def results(played: Played) -> list[str]:
    return [row["content"] for row in played.result.messages if row["role"] == "tool"]


def test_97_a_failing_loop_is_halted_when_nobody_is_there() -> None:
    played = play(repeat(tools(call("fail", {}))), tools=[fail])
    assert played.server.completions <= 7
    assert (played.exit, played.outcome) == ("guardrail_halt", "partial")
    assert played.result.guardrail is not None
    assert played.result.guardrail["tool"] == "fail"
    assert len(played.heard.of("tool_start")) == 5


def test_97_with_a_person_there_the_loop_is_only_warned_about() -> None:
    script = [*[tools(call("fail", {}))] * 8, text("giving up")]
    played = play(script, tools=[fail], callbacks={"approval": lambda request: True})
    assert played.outcome == "completed"
    assert "loop warning" in results(played)[1]
    assert "loop warning" not in results(played)[0]


def test_one_tool_failing_in_many_ways_is_halted_after_eight() -> None:
    script = [tools(call("fail", {"why": str(n)})) for n in range(8)]
    played = play(script, tools=[fail])
    assert played.exit == "guardrail_halt"
    assert "loop warning" in results(played)[2]


@pytest.mark.behaviour("GUARD-01")
def test_the_same_result_again_and_again() -> None:
    played = play(repeat(tools(call("echo", {"text": "a"}))))
    assert played.exit == "guardrail_halt"
    assert len(played.heard.of("tool_start")) == 5


def test_d41_the_word_error_in_a_result_is_no_failure() -> None:
    @tool(effect="unsafe")
    def report() -> dict[str, Any]:
        """Report."""
        return {"error": None, "failed": 0}

    played = play([*[tools(call("report", {}))] * 6, text("ok")], tools=[report])
    assert played.outcome == "completed"
    assert not any("loop warning" in result for result in results(played))


def test_98_a_tool_that_raises() -> None:
    played = play([tools(call("fail", {})), text("ok")])
    assert "RuntimeError" in results(played)[0]
    assert played.outcome == "completed"


def test_98_a_tool_that_hangs_times_out() -> None:
    @tool(timeout=0.1)
    async def hang() -> str:
        """Hang."""
        await asyncio.sleep(60)
        return "never"

    played = play([tools(call("hang", {})), text("ok")], tools=[hang])
    assert "unknown whether it took effect" in results(played)[0]


@pytest.mark.behaviour("EXEC-20b")
def test_98_a_megabyte_is_stored_whole_and_sent_as_a_preview() -> None:
    big = "0123456789" * 100_000

    @tool
    def dump() -> str:
        """Dump."""
        return big

    played = play([tools(call("dump", {})), text("ok")], tools=[dump])
    assert results(played)[0] == big
    sent = played.server.bodies[1]["messages"][-1]["content"]
    assert len(sent) < 2_500
    path = Path(sent.split("the whole result is in ")[1].split("]")[0])
    assert path.read_text() == big


def test_the_largest_results_of_a_reply_are_spilled_first() -> None:
    @tool(concurrency="parallel")
    def sized(n: int) -> str:
        """Give n characters."""
        return "x" * n

    sizes = (9_000, 9_500, 800)
    settings = {"tool": {"turn_result_chars": 16_000}}
    played = play(
        [tools(*(call("sized", {"n": n}) for n in sizes)), text("ok")], tools=[sized], settings=settings
    )
    sent = [len(row["content"]) for row in played.server.bodies[1]["messages"][-3:]]
    assert sent[0] == 9_000
    assert sent[1] < 2_500
    assert sent[2] == 800


def danger(ran: list[str]) -> Any:
    @tool(approval="ask")
    def drop_table(name: str) -> str:
        """Drop a table."""
        ran.append(name)
        return "dropped"

    return drop_table


@pytest.mark.parametrize("answer", [False, "deny", None, "whatever"])
def test_99_a_denied_call_is_not_run(answer: object) -> None:
    ran: list[str] = []
    script = [tools(call("drop_table", {"name": "users"})), text("ok")]
    played = play(script, tools=[danger(ran)], callbacks={"approval": lambda request: answer})
    assert not ran
    assert "denied" in results(played)[0]


@pytest.mark.behaviour("APPR-04")
def test_99_nobody_there_means_no() -> None:
    ran: list[str] = []
    played = play([tools(call("drop_table", {"name": "users"})), text("ok")], tools=[danger(ran)])
    assert not ran
    assert "nobody is there" in results(played)[0]


@pytest.mark.behaviour("APPR-01")
def test_an_approved_call_runs_and_the_approver_sees_what() -> None:
    ran: list[str] = []
    asked: list[tuple[str, dict[str, Any]]] = []

    async def approve(request: Any) -> bool:
        asked.append((request.name, dict(request.arguments)))
        return True

    play(
        [tools(call("drop_table", {"name": "users"})), text("ok")],
        tools=[danger(ran)],
        callbacks={"approval": approve},
    )
    assert ran == ["users"]
    assert asked == [("drop_table", {"name": "users"})]


def test_a_yes_for_the_session_is_remembered_for_the_same_call_only() -> None:
    ran: list[str] = []
    asked: list[str] = []

    def approve(request: Any) -> str:
        asked.append(request.arguments["name"])
        return "session"

    script = [*(tools(call("drop_table", {"name": name})) for name in ("a", "a", "b")), text("ok")]
    play(script, tools=[danger(ran)], callbacks={"approval": approve})
    assert ran == ["a", "a", "b"]
    assert asked == ["a", "b"]


def test_an_approval_callback_that_fails_means_no() -> None:
    ran: list[str] = []

    def approve(request: Any) -> bool:
        raise RuntimeError("broken")

    script = [tools(call("drop_table", {"name": "users"})), text("ok")]
    play(script, tools=[danger(ran)], callbacks={"approval": approve})
    assert not ran


def test_a_hard_line_cannot_be_approved() -> None:
    ran: list[str] = []

    @tool(approval="ask")
    def terminal(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "ran"

    script = [tools(call("terminal", {"command": "rm -rf /"})), text("ok")]
    played = play(script, tools=[terminal], callbacks={"approval": lambda request: "always"})
    assert not ran
    assert "never be approved" in results(played)[0]


@pytest.mark.behaviour("EXEC-19c")
@pytest.mark.parametrize("answer", [("block", "not today"), "block"])
def test_a_call_that_is_blocked_is_not_said_to_start(answer: Any) -> None:
    ran: list[str] = []

    @tool(effect="pure", approval="never")
    def look(name: str) -> str:
        """Look."""
        ran.append(name)
        return "seen"

    script = [tools(call("look", {"name": "a"}), call("look", {"name": "b"})), text("ok")]
    blocked = {"before_tool": lambda name, arguments: answer if arguments["name"] == "a" else None}
    played = play(script, tools=[look], callbacks=blocked)
    assert ran == ["b"]
    assert [values[2] for values in played.heard.of("tool_start")] == [{"name": "b"}]
    told = {values[2]["name"]: values[4] for values in played.heard.of("tool_complete")}
    assert told == {"a": "denied", "b": "ok"}


@pytest.mark.behaviour("STR-09")
def test_a_callback_that_raises_hurts_nothing() -> None:
    def broken(*values: Any) -> None:
        raise RuntimeError("no")

    assert play(
        [tools(call("echo", {})), text("ok")], callbacks={"tool_start": broken, "stream_delta": broken}
    ).outcome == ("completed")


def test_async_callbacks_run_in_order() -> None:
    heard: list[str] = []

    async def slow(text: str | None) -> None:
        await asyncio.sleep(0.001)
        heard.append(text or "|")

    play([text("one two three four")], callbacks={"stream_delta": slow})
    assert "".join(heard) == "one two three four|"


@pytest.mark.parametrize("model", ["openai:gpt-x", "anthropic:claude-sonnet-4-5", "openai-responses:gpt-x"])
def test_a_tool_may_give_an_image(model: str) -> None:
    pixel = "iVBORw0KGgo="

    @tool
    def look() -> list[dict[str, Any]]:
        """Look at the screen."""
        return [
            {"type": "text", "text": "the screen"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}},
        ]

    played = play([tools(call("look", {})), text("I see")], tools=[look], model=model)
    assert pixel in str(played.server.bodies[1])
    assert played.heard.of("tool_complete")[0][3] == "the screen"


def test_links_are_followed_before_two_calls_write_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    at_work, most = [0], [0]

    @tool(concurrency="parallel", effect="idempotent", path_arguments=("path",))
    async def write(path: str) -> str:
        """Write a file."""
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        await asyncio.sleep(0.05)
        at_work[0] -= 1
        return path

    for paths, together in ((("link/a", "real/a"), 1), (("link/a", "real/b"), 2)):
        most[0] = 0
        calls = tools(*(call("write", {"path": path}) for path in paths))
        played = play([calls, text("ok")], tools=[write], workdir=tmp_path)
        assert results(played) == list(paths)
        assert most[0] == together
        assert any("2 tool calls" in line for line in played.heard.of("status"))


def test_the_calls_of_one_reply_share_their_time() -> None:
    """Those with a limit of their own apart."""
    clock = FakeClock()

    @tool
    def work(number: int) -> str:
        """Work for five minutes."""
        clock.advance(300)
        return f"{number} done"

    @tool(timeout=9)
    def own(number: int) -> str:
        """Work within its own limit."""
        return f"{number} done"

    calls = [call("work", {"number": number}) for number in range(3)]
    played = play([tools(*calls, call("own", {"number": 3})), text("ok")], tools=[work, own], clock=clock)
    first, second, third, last = results(played)
    assert (first, last) == ("0 done", "3 done")
    assert second.startswith("Timed out after 120 seconds") or second == "1 done"
    assert third.startswith("not started: the calls before it took the 420 s")


def test_what_a_thread_brings_after_its_limit_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    @tool(timeout=0.05)
    def hang() -> str:
        """Hang."""
        assert go_on.wait(PATIENCE)
        return "too late"

    with table([tools(call("hang", {})), text("ok")], tools=[hang], settings={"poll": {"control": 0.01}}) as (
        agent,
        _server,
        _clock,
        _heard,
    ):
        result = agent.run_conversation("go")
        go_on.set()
        until = time.monotonic() + PATIENCE
        while not any("its result is dropped" in line for line in caplog.messages):
            assert time.monotonic() < until
            time.sleep(0.01)
    told = next(row["content"] for row in result.messages if row["role"] == "tool")
    assert told.startswith("Timed out after 0.05 seconds")
    assert "too late" not in str(result.messages)


@pytest.mark.behaviour("EXEC-14")
def test_the_calls_are_stored_before_the_first_of_them_runs() -> None:
    stored: list[list[str]] = []

    @tool
    def look() -> str:
        """Look into the store."""
        with agent._store.database.reading() as reading:
            rows = reading.execute("SELECT body FROM messages WHERE role = 'assistant'").fetchall()
        stored.append([row for (row,) in rows])
        return "seen"

    with table([tools(call("look"), call("look")), text("ok")], tools=[look]) as (agent, *_):
        agent.run_conversation("go")
    assert [len(rows) for rows in stored] == [1, 1]
    assert all(row.count('"look"') == 2 for rows in stored for row in rows)


@pytest.mark.behaviour("EXEC-20", "BUILD-16")
def test_a_tool_says_how_long_its_results_may_be() -> None:
    @tool(max_result_chars=300)
    def talk() -> str:
        """Talk."""
        return "word " * 1_000

    played = play([tools(call("talk")), text("ok")], tools=[talk], settings={"tool": {"preview_chars": 200}})
    assert results(played) == ["word " * 1_000]
    sent = played.server.bodies[1]["messages"][-1]["content"]
    assert "5,000 characters in all" in sent
    assert len(sent) < 500
