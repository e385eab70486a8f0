"""Tools: calls that are wrong in some way, and calls that fail, hang, return too much, or need approval."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.conversation.arguments import signature
from fsm_agent.sessions.store import store_for
from fsm_agent.settings import GuardrailSettings
from fsm_agent.testing import FakeClock, bad_json, call, cut_tool_call, no_finish, repeat, text, tools
from fsm_agent_states.logic.parts import REMEMBERED, Guardrails
from tests.helpers.harness import echo, fail, play, table
from tests.helpers.waiting import PATIENCE, until

READ, WRITE = call("echo", {"text": "a"}), call("put", {"key": "a"})
RESULTS: dict[str, tuple[list[Any], list[str]]] = {
    "12 empty arguments are none": ([tools(call("echo", ""))], ["x"]),
    "bad JSON four times": ([bad_json()] * 4, ["not valid JSON"]),
    "d08 a slip": ([tools(call("echo", "{'text': 'a',}"))], ["a"]),
    "d08 damage": ([bad_json("echo", '{"text": nonsense here}')], []),
    "a stream that ends after a whole call": ([no_finish("", WRITE)], ["stored a"]),
    "d40 the same call twice": ([tools(WRITE, WRITE)], ["stored a"] * 2),
    "d40 unless it only reads": ([tools(READ, READ)], ["a", "the same call"]),
}


@pytest.mark.behaviour("EXEC-03", "EXEC-08", "EXEC-12")
@pytest.mark.parametrize("what", RESULTS)
def test_what_becomes_of_calls(what: str) -> None:
    script, results = RESULTS[what]
    played = play([*script, text("ok")])
    assert played.summary == f"{len(script) + 1} text_response completed: ok"
    assert len(played.results) == len(results)
    assert all(said in result for said, result in zip(results, played.results, strict=True))


def test_08_calls_that_cannot_run_for_ever_end_the_turn() -> None:
    for reply, requests, roles in (
        (tools(call("nope", {})), 3, "u a t a t a t a"),
        (bad_json(), 12, "u a t a t a"),
    ):
        played = play(repeat(reply))
        assert (played.summary, played.roles) == (f"{requests} invalid_tool_calls partial", roles)


@pytest.mark.behaviour("EXEC-01")
def test_06_a_name_that_can_be_repaired() -> None:
    played = play([tools(call("Todo_tool", {"items": ["a"]})), text("ok")])
    assert played.results == ["1 items"]
    assert played.result.messages[1]["tool_calls"][0]["function"]["name"] == "todo"


@pytest.mark.behaviour("EXEC-02")
def test_07_an_unknown_tool_gets_the_list_of_tools() -> None:
    played = play([tools(call("nope", {})), tools(call("echo", {"text": "a"})), text("ok")])
    assert played.server.completions == 3
    assert "echo, put, fail, todo" in played.results[0]
    assert played.outcome == "completed"


def test_a_mixed_batch_runs_what_it_can_and_is_not_a_strike() -> None:
    played = play([tools(call("nope", {}), call("echo", {"text": "a"})), text("ok")])
    assert played.results[1] == "a"
    assert "there is no tool 'nope'" in played.results[0]
    assert "nope: there is no tool 'nope'; tools: echo, put, fail, todo" in played.heard.of("status")
    assert played.agent.settings.invalid_tool_strikes == 3
    assert not any("invalid_tool_rounds" in change for step in played.steps for change in step.changes)


def test_11_a_blank_name_gets_a_terse_error_and_stays_paired_on_the_wire() -> None:
    played = play([tools(call("", {})), text("ok")])
    assert played.server.completions == 2
    assert "echo" not in played.results[0]
    sent = played.server.bodies[1]["messages"]
    assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"]
    assert sent[2]["tool_calls"][0]["function"]["name"]


def test_13_array_arguments_are_not_executed() -> None:
    ran: list[object] = []

    @tool
    def take(anything: str = "") -> str:
        ran.append(anything)
        return "taken"

    played = play([tools(call("take", "[1, 2]")), text("ok")], tools=[take])
    assert played.server.completions == 2
    assert not ran
    assert "JSON object" in played.results[0]


@pytest.mark.behaviour("EXEC-15", "EXEC-15b")
def test_14_arguments_are_coerced_to_the_schema() -> None:
    seen: list[object] = []

    @tool
    def typed(n: int, b: bool, l: list[str]) -> str:  # noqa: E741
        seen.append((n, b, l))
        return "ok"

    play([tools(call("typed", {"n": "42", "b": "true", "l": "x"})), text("ok")], tools=[typed])
    assert seen == [(42, True, ["x"])]


@pytest.mark.behaviour("EXEC-08")
def test_15_bad_json_once_leaves_no_trace() -> None:
    played = play([bad_json(), tools(call("echo", {"text": "a"})), text("ok")])
    assert played.roles == "u a t a"
    assert played.server.bodies[0]["messages"] == played.server.bodies[1]["messages"]
    assert "max_completion_tokens" not in played.server.bodies[1], "d07: it is not relabelled as truncation"


def test_a_good_call_beside_bad_json_is_not_run_and_has_its_answer() -> None:
    reply = tools(call("echo", {"text": "a"}), call("echo", '{"text": nonsense here}'))
    played = play([*[reply] * 4, text("ok")])
    assert played.roles == "u a t t a"
    good, bad = played.results
    assert good == "not run: another call of the same reply could not be used"
    assert "not valid JSON" in bad
    assert played.heard.of("tool_start") == []


@pytest.mark.behaviour("LOOP-04", "RESP-07")
def test_17_a_truncated_call_is_never_run_and_the_cap_is_raised() -> None:
    played = play([cut_tool_call(), text("ok")])
    assert played.server.completions == 2
    assert not played.heard.of("tool_start")
    assert "max_completion_tokens" not in played.server.bodies[0]
    assert played.server.bodies[1]["max_completion_tokens"] == 8192
    assert played.result.api_calls == 1, "recoveries inside a call block are not charged"


@pytest.mark.behaviour("RESP-08", "RESP-08b")
def test_18_truncated_forever() -> None:
    played = play(repeat(cut_tool_call()))
    assert played.summary == "5 truncated_tool_call partial"
    caps = [body.get("max_completion_tokens") for body in played.server.bodies]
    assert caps == [None, 8192, 16384, 32768, 32768]
    assert (played.result.final_response or "").endswith("Raise the output cap: max_output_tokens.")


@pytest.mark.behaviour("RESP-09")
def test_a_call_cut_by_a_router_that_hides_the_reason_counts_as_cut() -> None:
    played = play([bad_json("put", '{"key": "a", "value": "lo'), text("ok")])
    assert [step.event for step in played.steps if step.source == "CallLLM"] == ["cut_call", "text"]


def test_a_stream_that_ends_inside_a_call_asks_for_smaller_pieces() -> None:
    played = play([no_finish("", call("put", '{"key": "a')), text("ok")])
    assert [step.event for step in played.steps if step.source == "CallLLM"] == ["dropped_call", "text"]
    assert "smaller pieces" in played.server.bodies[1]["messages"][-1]["content"]


@pytest.mark.behaviour("RESP-07")
def test_a_call_cut_before_its_arguments_does_not_run_with_its_defaults() -> None:
    wiped: list[str] = []

    @tool
    def wipe(folder: str = ".") -> str:
        wiped.append(folder)
        return "wiped"

    played = play([no_finish("", call("wipe", "")), text("ok")], tools=[wipe])
    assert not wiped
    assert played.result.final_response == "ok"


@pytest.mark.behaviour("INV-04")
def test_d09_ids_that_repeat_from_round_to_round_keep_their_results() -> None:
    rounds = [tools(call("echo", {"text": str(n)}, id="call_0")) for n in range(3)]
    played = play([*rounds, text("ok")])
    sent = played.server.bodies[-1]["messages"]
    assert [row["content"] for row in sent if row["role"] == "tool"] == ["0", "1", "2"]
    assert len({row["tool_call_id"] for row in sent if row["role"] == "tool"}) == 3


def test_97_a_failing_loop_is_halted_when_nobody_is_there() -> None:
    played = play(repeat(tools(call("fail", {}))), tools=[fail])
    assert played.summary == "6 guardrail_halt partial"
    assert played.result.guardrail is not None
    assert played.result.guardrail["tool"] == "fail"
    assert len(played.heard.of("tool_start")) == 5
    script = [*[tools(call("fail", {}))] * 8, text("giving up")]
    played = play(script, tools=[fail], callbacks={"approval": lambda request: True})
    assert played.outcome == "completed", "with a person there it is only warned about"
    assert ["loop warning" in result for result in played.results[:2]] == [False, True]


def test_one_tool_failing_in_many_ways_is_halted_after_eight() -> None:
    script = [tools(call("fail", {"why": str(n)})) for n in range(8)]
    played = play(script, tools=[fail])
    assert played.exit == "guardrail_halt"
    assert "loop warning" in played.results[2]


@pytest.mark.behaviour("GUARD-01")
def test_the_same_result_again_and_again() -> None:
    played = play(repeat(tools(call("echo", {"text": "a"}))))
    assert played.exit == "guardrail_halt"
    assert len(played.heard.of("tool_start")) == 5


def test_d41_the_word_error_in_a_result_is_no_failure() -> None:
    @tool(effect="unsafe")
    def report() -> dict[str, Any]:
        return {"error": None, "failed": 0}

    played = play([*[tools(call("report", {}))] * 6, text("ok")], tools=[report])
    assert played.outcome == "completed"
    assert not any("loop warning" in result for result in played.results)


def test_98_a_tool_that_raises_and_one_that_hangs() -> None:
    @tool(timeout=0.1)
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    played = play([tools(call("fail", {}), call("hang", {})), text("ok")], tools=[fail, hang])
    assert "RuntimeError" in played.results[0]
    assert "unknown whether it took effect" in played.results[1]
    assert played.outcome == "completed"


@pytest.mark.behaviour("EXEC-20b", "EXEC-20", "BUILD-16")
def test_98_a_megabyte_is_stored_whole_and_sent_as_a_preview() -> None:
    big = "0123456789" * 100_000
    dump = tool(name="dump")(lambda: big)
    talk = tool(name="talk", max_result_chars=300)(lambda: "word " * 1_000)
    script = [tools(call("dump", {}), call("talk")), text("ok")]
    played = play(script, tools=[dump, talk], settings={"tool": {"preview_chars": 200}})
    assert played.results == [big, "word " * 1_000]
    dumped, talked = (row["content"] for row in played.server.bodies[1]["messages"][-2:])
    assert len(dumped) < 1_000
    path = Path(dumped.split("the whole result is in ")[1].split("]")[0])
    assert path.read_text() == big
    assert "5,000 characters in all" in talked, "a tool says how long its results may be"
    assert len(talked) < 500


def test_the_largest_results_of_a_reply_are_spilled_first() -> None:
    @tool(concurrency="parallel")
    def sized(n: int) -> str:
        return "x" * n

    sizes = (9_000, 9_500, 800)
    settings = {"tool": {"turn_result_chars": 16_000}}
    script = [tools(*(call("sized", {"n": n}) for n in sizes)), text("ok")]
    played = play(script, tools=[sized], settings=settings)
    first, second, third = (len(row["content"]) for row in played.server.bodies[1]["messages"][-3:])
    assert (first, second < 2_500, third) == (9_000, True, 800)


@pytest.mark.behaviour("APPR-04")
@pytest.mark.parametrize("answer", [False, "deny", None, "whatever", RuntimeError("broken"), ...])
def test_99_without_a_yes_a_call_is_not_run(answer: object) -> None:
    ran: list[str] = []
    drop_table = tool(approval="ask", name="drop_table")(lambda name: ran.append(name))

    async def approve(request: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    script = [tools(call("drop_table", {"name": "users"})), text("ok")]
    callbacks = {} if answer is ... else {"approval": approve}
    (told,) = play(script, tools=[drop_table], callbacks=callbacks).results
    assert ran == []
    assert ("no person is there" if answer is ... else "denied") in told


@pytest.mark.behaviour("EXEC-19c")
@pytest.mark.parametrize("answer", [("block", "not today"), "block"])
def test_a_blocked_call_is_not_reported_as_started(answer: Any) -> None:
    ran: list[str] = []

    @tool(effect="pure", approval="never")
    def look(name: str) -> str:
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

    callbacks = {"tool_start": broken, "stream_delta": broken}
    assert play([tools(call("echo", {})), text("ok")], callbacks=callbacks).outcome == "completed"


def test_async_callbacks_run_in_order() -> None:
    heard: list[str] = []

    async def slow(text: str | None) -> None:
        await asyncio.sleep(0)
        heard.append(text or "|")

    play([text("one two three four")], callbacks={"stream_delta": slow})
    assert "".join(heard) == "one two three four|"


def test_links_are_followed_before_two_calls_write_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    at_work, most = [0], [0]
    met = asyncio.Event()

    @tool(concurrency="parallel", effect="idempotent", path_arguments=("path",))
    async def write(path: str) -> str:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        if at_work[0] == together:
            met.set()
        await met.wait()
        await asyncio.sleep(0.02)  # another that may not begin yet would begin now
        at_work[0] -= 1
        return path

    for paths, together in ((("link/a", "real/a"), 1), (("link/a", "real/b"), 2)):
        most[0] = 0
        met.clear()
        calls = tools(*(call("write", {"path": path}) for path in paths))
        played = play([calls, text("ok")], tools=[write], workdir=tmp_path)
        assert played.results == list(paths)
        assert most[0] == together
        assert any("2 tool calls" in line for line in played.heard.of("status"))


def test_the_calls_of_one_reply_share_their_time() -> None:
    """Those with a limit of their own apart."""
    clock = FakeClock()

    @tool
    def work(number: int) -> str:
        clock.advance(300)
        return f"{number} done"

    @tool(timeout=9)
    def own(number: int) -> str:
        """Work within its own limit."""
        return f"{number} done"

    calls = [call("work", {"number": number}) for number in range(3)]
    played = play([tools(*calls, call("own", {"number": 3})), text("ok")], tools=[work, own], clock=clock)
    first, second, third, last = played.results
    assert (first, last) == ("0 done", "3 done")
    assert second.startswith("Timed out after 120 seconds") or second == "1 done"
    assert third.startswith("not started: the calls before it took the 420 s")


def test_what_a_thread_brings_after_its_limit_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    @tool(timeout=0.05)
    def hang() -> str:
        assert go_on.wait(PATIENCE)
        return "too late"

    options = {"tools": [hang], "settings": {"poll": {"control": 0.01}}}
    with table([tools(call("hang", {})), text("ok")], **options) as (agent, *_):
        result = agent.run_conversation("go")
        go_on.set()
        until(lambda: any("its result is dropped" in line for line in caplog.messages), "the line in the log")
    told = next(row["content"] for row in result.messages if row["role"] == "tool")
    assert told.startswith("Timed out after 0.05 seconds")
    assert "too late" not in str(result.messages)


@pytest.mark.behaviour("EXEC-14")
def test_the_calls_are_stored_before_the_first_of_them_runs(home: Path) -> None:
    stored: list[list[str]] = []

    @tool
    def look() -> str:
        rows = store_for(str(home)).database.select("SELECT body FROM messages WHERE role = 'assistant'")
        stored.append([row for (row,) in rows])
        return "seen"

    with table([tools(call("look"), call("look")), text("ok")], tools=[look], home=home) as (agent, *_):
        agent.run_conversation("go")
    assert [len(rows) for rows in stored] == [1, 1]
    assert all(row.count('"look"') == 2 for rows in stored for row in rows)


@tool(effect="idempotent", path_arguments=("path",), concurrency="parallel")
def write(path: str, ok: bool = True) -> str:
    if not ok:
        raise RuntimeError("the disk is full")
    return "written"


def writes(*calls: tuple[str, bool]) -> Any:
    return tools(*(call("write", {"path": path, "ok": ok}) for path, ok in calls))


@pytest.mark.behaviour("EXEC-33")
def test_files_that_a_failed_tool_left_unchanged_are_named_below_the_answer() -> None:
    script = [writes(("a.txt", False), ("b.txt", False)), writes(("./b.txt", True)), text("All is written.")]
    played = play(script, tools=[write])
    said, _, footer = (played.result.final_response or "").partition("\n\n[")
    assert said == played.result.messages[-1]["content"] == "All is written."
    assert "a.txt (write: error)" in footer
    assert "b.txt" not in footer
    quiet = play(script, tools=[write], settings={"tool": {"failed_files_footer": False}})
    assert quiet.result.final_response == said
    ask = tool(effect="unsafe", path_arguments=("path",), approval="ask", name="erase")(lambda path: "gone")
    denied = play([tools(call("erase", {"path": "c.txt"})), text("Erased.")], tools=[ask])
    assert "c.txt (erase: denied)" in (denied.result.final_response or "")
    script = [writes(("a.txt", True)), writes(("a.txt", False)), text("ok")]
    assert "a.txt (write: error)" in (play(script, tools=[write]).result.final_response or "")
    look = tool(effect="pure", path_arguments=("path",), name="peek")(lambda path: 1 / 0)
    played = play([tools(call("peek", {"path": "a"})), text("ok")], tools=[look])
    assert played.result.final_response == "ok", "a tool that only reads changes no file"


@pytest.mark.behaviour("EXEC-12")
def test_a_read_before_and_one_after_a_change_both_run() -> None:
    seen: list[str] = []

    read = tool(effect="pure", name="read")(lambda: seen.append("read") or str(len(seen)))
    change = tool(effect="unsafe", name="change")(lambda: seen.append("change") or "changed")
    calls = [call(name) for name in ("read", "read", "change", "read")]
    played = play([tools(*calls), text("ok")], tools=[read, change])
    assert seen == ["read", "change", "read"]
    assert played.results[1].startswith("(the same call as")


@pytest.mark.behaviour("GUARD-01", "GUARD-03")
def test_the_second_identical_result_of_a_reading_tool_is_pointed_out() -> None:
    script = [tools(call("echo", {"text": "a"})), tools(call("echo", {"text": "a"})), text("ok")]
    played = play(script, callbacks={"approval": lambda request: True})
    assert played.results[0] == "a"
    assert "the same result 2 times" in played.results[1]


def test_guardrails_remember_only_the_newest_calls() -> None:
    guard, limits = Guardrails(), GuardrailSettings()
    for number in range(3 * REMEMBERED):
        guard.note("fail", signature("fail", {"n": number}), False, "x", "pure", limits, False)
        guard.note("look", signature("look", {"n": number}), True, "x", "pure", limits, False)
    assert len(guard.failed_calls) == len(guard.same_results) == REMEMBERED
    newest, oldest = signature("look", {"n": 3 * REMEMBERED - 1}), signature("look", {"n": 0})
    assert guard.note("look", newest, True, "x", "pure", limits, False)
    assert not guard.note("look", oldest, True, "x", "pure", limits, False)


@pytest.mark.behaviour("EXEC-27")
def test_a_round_with_only_a_program_is_not_charged() -> None:
    code = tool(name="execute_code")(lambda: "42")
    rounds = [tools(call("execute_code"))] * 3
    played = play([*rounds, text("done")], tools=[code], settings={"max_iterations": 2})
    assert (played.outcome, played.result.final_response) == ("completed", "done")
    mixed = [tools(call("execute_code"), call("echo"))] * 2
    played = play([*mixed, text("a last word")], tools=[code, echo], settings={"max_iterations": 2})
    assert played.outcome == "partial"


@pytest.mark.behaviour("GUARD-08")
def test_guardrails_know_a_call_by_tool_and_arguments() -> None:
    guard, limits = Guardrails(), GuardrailSettings()

    def noted(ok: bool, **arguments: int) -> str:
        return guard.note("put", signature("put", arguments), ok, "x", "unsafe", limits, False)

    assert not noted(False, a=1, b=2)
    assert "2 times" in noted(False, b=2, a=1), "the order of keys says nothing"
    assert not noted(True, a=1, b=2)
    assert not noted(False, a=1, b=2), "a success sets the count back"
    script = [tools(call("fail")), text("one"), tools(call("fail")), text("two")]
    with table(script, tools=[fail]) as (agent, server, *_):
        for _ in range(2):
            agent.run_conversation("go")
        sent = json.dumps([body["messages"] for body in server.bodies])
        assert "loop warning" not in sent, "and so does a new turn"
