"""An editor's session, message by message, over a pipe in memory; each message is checked by the official
schema."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.debug import DebugSession
from fsm_agent.debug.dap.context import CAPABILITIES
from fsm_agent.debug.dap.requests import REQUESTS
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import call, overflow, repeat, status, text, tools
from fsm_agent.tools import ToolFailure
from tests.helpers.dap_editor import (
    TABLE,
    Editor,
    Refused,
    agent_of,
    column_of,
    editing,
    line_of,
    workshop_of,
)
from tests.helpers.dap_schema import schema
from tests.helpers.waiting import PATIENCE

ERROR = 'on("error", go("ClassifyError")'
LOOKED_UP = [tools(call("look_up", {"what": "x"}, id="c1")), text("x is 42")]
STUMBLED = [tools(call("look_up", {"what": "x"}, id="c1")), status(503), text("x is 42")]


def finished(home: Path, script: Any, asked: str = "what is x?", **options: Any) -> tuple[DebugSession, str]:
    """A workshop whose newest turn has ended."""
    workshop = workshop_of(home, script, **options)
    agent = agent_of(home, script, **options)
    agent.run_conversation(asked)
    agent.close()
    turn = workshop.newest()
    assert turn is not None
    return workshop, turn


@contextmanager
def waiting(home: Path, script: Any, at: str = "") -> Iterator[Editor]:
    """An editor whose turn waits at its start, or at the line of the table that begins so."""
    with editing(workshop_of(home, script)) as editor:
        begun = {"lines": [{"line": line_of(at)}]} if at else {"stopOnEntry": True}
        editor.begin(task="what is x?", **begun)
        editor.stopped()
        yield editor


# Begin and end


def test_what_the_server_says_it_can_it_answers_and_the_schema_knows_it(tmp_path: Path) -> None:
    known = schema()["definitions"]
    assert set(CAPABILITIES) <= set(known["Capabilities"]["properties"])
    assert all(name[0].upper() + name[1:] + "Request" in known for name in REQUESTS)
    needs = {
        "supportsStepBack": ("stepBack", "reverseContinue"), "supportsRestartFrame": ("restartFrame",),
        "supportsSetVariable": ("setVariable",), "supportsCompletionsRequest": ("completions",),
        "supportsTerminateRequest": ("terminate",), "supportsTerminateThreadsRequest": ("terminateThreads",),
        "supportsExceptionInfoRequest": ("exceptionInfo",), "supportsLoadedSourcesRequest": ("loadedSources",),
        "supportsBreakpointLocationsRequest": ("breakpointLocations",),
        "supportsFunctionBreakpoints": ("setFunctionBreakpoints",),
    }  # fmt: skip
    assert all(
        CAPABILITIES[name] and command in REQUESTS for name, commands in needs.items() for command in commands
    )
    with editing(workshop_of(tmp_path, LOOKED_UP)) as editor:
        assert editor.begin(task="what is x?")["capabilities"] == dict(CAPABILITIES)


def test_a_turn_runs_to_its_end_and_says_how_it_went(tmp_path: Path) -> None:
    with editing(workshop_of(tmp_path, LOOKED_UP)) as editor:
        editor.begin(task="what is x?")
        assert editor.event("thread", reason="started")["threadId"] == 1
        assert editor.event("exited") == {"exitCode": 0}
        editor.event("terminated")
        said = editor.outputs()
        assert said[0] == "1: Prepare –ready→ BuildMessages"
        assert said[-2:] == ["x is 42", "the turn has ended: completed, text_response"]
        moved = next(one["body"] for one in editor.messages if one.get("event") == "output")
        assert (moved["source"]["path"], moved["line"]) == (str(TABLE), line_of('on("ready"'))
        editor.ask("disconnect")
        assert editor.over()


def test_requests_in_the_wrong_order_or_unknown_are_refused_in_words(tmp_path: Path) -> None:
    with editing(workshop_of(tmp_path, LOOKED_UP)) as editor:
        editor.refuses("a session begins with another request", "threads")
        editor.begin(task="what is x?", stopOnEntry=True)
        editor.stopped(reason="entry")
        editor.refuses("no such request here; given: goto", "goto", threadId=1, targetId=1)
        editor.refuses("no such thread; given: 9", "continue", threadId=9)
        editor.refuses("no such thread", "stackTrace", sound=False)
        editor.refuses("has its turn already", "launch", task="again")
        editor.refuses("this value is no longer shown; given: 77", "variables", variablesReference=77)
        editor.refuses("no such frame; given: 5", "scopes", frameId=5)
        for source in (5, {"path": "\0"}):
            editor.refuses("a source has no path", "breakpointLocations", sound=False, source=source, line=1)
        with pytest.raises(Refused, match="the arguments are not an object"):
            editor.answer(editor.send("evaluate", 5, sound=False))
        assert editor.ask("threads")["threads"][0]["id"] == 1


@pytest.mark.parametrize(
    ("how", "options", "why"),
    [
        ("launch", {}, "there is no turn to debug"),
        ("launch", {"task": "  "}, "task is empty"),
        ("launch", {"task": 3}, "task has the wrong type; given: 3"),
        ("launch", {"task": "a", "turn": "b"}, "only one turn can be debugged first"),
        ("launch", {"task": "a", "maxIterations": True}, "maxIterations has the wrong type"),
        ("attach", {"task": "a"}, "attaching starts no turn"),
        ("attach", {"turn": "nope"}, "no such turn; given: nope"),
        ("attach", {}, "there is no turn to debug"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(
    tmp_path: Path, how: str, options: dict[str, Any], why: str
) -> None:
    with editing(workshop_of(tmp_path, LOOKED_UP)) as editor, pytest.raises(Refused, match=why):
        editor.begin(how, **options)


def test_a_configuration_of_another_model_or_home_gets_a_workshop_of_its_own(tmp_path: Path) -> None:
    asked: list[Any] = []

    def opener(options: Any) -> DebugSession:
        asked.append((options.model, options.settings, options.env))
        return workshop_of(tmp_path / "other", [text("other")])

    with editing(workshop_of(tmp_path / "home", LOOKED_UP), opener=opener) as editor:
        editor.begin(
            task="go", model="scripted:b", settings={"budget": {"grace_call": False}}, env={"A": "b"}
        )
        editor.event("terminated")
        assert asked == [("scripted:b", {"budget": {"grace_call": False}}, {"A": "b"})]
        assert "other" in editor.outputs()


def test_a_bug_is_told_and_does_not_end_the_session(tmp_path: Path) -> None:
    def opener(options: Any) -> DebugSession:
        raise ZeroDivisionError("never")

    with editing(workshop_of(tmp_path, LOOKED_UP), opener=opener) as editor:
        with pytest.raises(Refused, match="a bug in the debugger: ZeroDivisionError: never"):
            editor.begin(task="go", model="scripted:b")
        editor.event("terminated")
        assert editor.ask("threads") == {"threads": []}


# Breakpoints


def test_a_line_of_the_table_is_its_decision_list_and_a_column_one_rung_of_it(tmp_path: Path) -> None:
    error, overloaded = line_of(ERROR), line_of('on("overloaded"')
    rung = {"line": overloaded, "column": column_of(overloaded, "ONE_RETRY")}
    with editing(workshop_of(tmp_path, STUMBLED)) as editor:
        made = editor.begin(task="what is x?", lines=[{"line": error}, rung, {"line": 3}])["breakpoints"]
        assert [one["verified"] for one in made] == [True, True, False]
        assert [one["message"] for one in made[:2]] == [
            "stops after row CallLLM.error",
            "stops after row ClassifyError.overloaded/1",
        ]
        assert made[2]["message"].startswith("no row of the table is on this line; the nearest is line ")
        assert (made[1]["line"], made[1]["column"]) == (overloaded, rung["column"])
        assert made[1]["endColumn"] == rung["column"] + 9

        stop = editor.stopped()
        assert (stop["reason"], stop["hitBreakpointIds"]) == ("breakpoint", [made[0]["id"]])
        move, state, *_ = editor.stack()
        assert move["name"] == "6: CallLLM –error→ ClassifyError"
        assert (move["source"]["path"], move["line"]) == (str(TABLE), error)
        assert (state["name"], Path(state["source"]["path"]).name) == ("ClassifyError", "classify_error.py")

        assert editor.moved()["hitBreakpointIds"] == [made[1]["id"]]
        assert editor.stack()[0]["name"] == "7: ClassifyError –overloaded→ BuildMessages · one retry"
        editor.ends()


def test_conditions_hit_counts_and_logpoints(tmp_path: Path) -> None:
    script = [status(500), status(500), tools(call("look_up", {"what": "x"})), text("x is 42")]
    built, error, done = line_of('on("built"'), line_of(ERROR), line_of('on("done",')
    lines = [
        {"line": error, "condition": "retries >= 1"},
        {"line": built, "hitCondition": "4"},
        {"line": done, "logMessage": "{seq}: iterations are {iterations}"},
        {"line": line_of('on("text"'), "condition": "retrys > 1"},
        {"line": line_of('on("blank"'), "hitCondition": "often"},
        {"line": line_of('on("summary"'), "logMessage": "{nothing}"},
    ]
    with editing(workshop_of(tmp_path, script)) as editor:
        made = editor.begin(task="what is x?", lines=lines)["breakpoints"]
        assert [one["verified"] for one in made] == [True, True, True, False, False, False]
        whys = ("an unknown counter 'retrys'", "a hit count cannot be read", "names what is not known")
        for one, why in zip(made[3:], whys, strict=False):
            assert why in one["message"]
        assert editor.stopped()["hitBreakpointIds"] == [made[0]["id"]]
        assert editor.evaluate("retries") == "1"  # not at the first error
        assert editor.moved()["hitBreakpointIds"] == [made[1]["id"]]
        editor.ends()
        assert any(line.endswith(": iterations are 1") for line in editor.outputs())


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("ClassifyError", "6: CallLLM –error→ ClassifyError"),
        ("ClassifyError.overloaded/1", "7: ClassifyError –overloaded→ BuildMessages · one retry"),
        ("overloaded", "7: ClassifyError –overloaded→ BuildMessages · one retry"),
        ("CallLLM -> ExecuteTools", "3: CallLLM –tools→ ExecuteTools"),
        ("text_response", "9: CallLLM –text→ Finalize · text_response"),
    ],
)
def test_function_breakpoints_are_states_rows_events_arrows_and_exits(
    tmp_path: Path, name: str, at: str
) -> None:
    with editing(workshop_of(tmp_path, STUMBLED)) as editor:
        (made,) = editor.begin(task="what is x?", functions=[{"name": name}])["breakpoints"]
        assert made["verified"]
        stop = editor.stopped()
        assert (stop["reason"], stop["hitBreakpointIds"]) == ("function breakpoint", [made["id"]])
        assert editor.stack()[0]["name"] == at


def test_a_breakpoint_in_a_states_source_stops_when_it_is_entered_and_shows_it(tmp_path: Path) -> None:
    with waiting(tmp_path, LOOKED_UP) as editor:
        sources = editor.ask("loadedSources")["sources"]
        (source,) = (one for one in sources if one["name"] == "fsm_agent_states/execute_tools.py")
        (where,) = editor.ask("breakpointLocations", source=source, line=1, endLine=400)["breakpoints"]
        wanted = [{"line": where["line"] + 2}, {"line": 1}]
        inside, outside = editor.ask("setBreakpoints", source=source, breakpoints=wanted)["breakpoints"]
        assert inside["verified"]
        assert (inside["line"], inside["message"]) == (where["line"], "stops when ExecuteTools is entered")
        assert not outside["verified"]
        other = editor.ask(
            "setBreakpoints", source={"path": str(tmp_path / "x.py")}, breakpoints=[{"line": 1}]
        )["breakpoints"]
        assert other[0]["message"] == f"not a file of the turn that runs; its table is {TABLE}"
        assert editor.moved()["reason"] == "breakpoint"
        top = editor.stack()[0]
        assert (top["name"], top["line"]) == ("ExecuteTools", where["line"])


def test_two_breakpoints_on_one_target_must_agree(tmp_path: Path) -> None:
    with editing(workshop_of(tmp_path, STUMBLED)) as editor:
        lines = [{"line": line_of(ERROR), "condition": "retries >= 1"}]
        functions = [{"name": "CallLLM.error"}, {"name": "CallLLM.error", "condition": "retries >= 2"}]
        made = editor.begin(task="what is x?", lines=lines, functions=functions)["breakpoints"]
        # the second is found as a row, the third too
        assert [one["verified"] for one in made] == [True, True, False]
        assert made[2]["message"] == "row CallLLM.error has a breakpoint already: always"


def test_breakpoints_set_while_the_turn_stands_count_from_then_on_and_taken_away_are_gone(
    tmp_path: Path,
) -> None:
    with waiting(tmp_path, STUMBLED, 'on("tools"') as editor:
        editor.ask(
            "setBreakpoints", source={"path": str(TABLE)}, breakpoints=[{"line": line_of('on("text"')}]
        )
        editor.moved()
        assert editor.stack()[0]["name"] == "9: CallLLM –text→ Finalize · text_response"
        editor.ask("setBreakpoints", source={"path": str(TABLE)}, breakpoints=[])
        assert editor.moved("reverseContinue")["reason"] == "entry"


# Exceptions


def test_a_failed_turn_stops_before_its_end_with_what_went_wrong(tmp_path: Path) -> None:
    with editing(workshop_of(tmp_path, repeat(overflow()))) as editor:
        editor.begin(task="what is x?")
        stop = editor.stopped()
        assert (stop["reason"], stop["text"]) == ("exception", "overflow_uncompressible")
        info = editor.ask("exceptionInfo", threadId=1)
        assert (info["exceptionId"], info["breakMode"]) == ("overflow_uncompressible", "always")
        assert info["details"]["typeName"] == "failed"
        assert "Failed turns" in info["description"]
        assert editor.ends() == 1


def test_a_filter_that_is_off_does_not_stop_and_one_may_have_a_condition(tmp_path: Path) -> None:
    with editing(workshop_of(tmp_path / "a", repeat(overflow()))) as editor:
        editor.begin(task="what is x?", filters=[])
        editor.event("terminated")
    with editing(workshop_of(tmp_path / "c", STUMBLED)) as editor:
        editor.begin(task="what is x?", noDebug=True, lines=[{"line": line_of(ERROR)}])
        editor.event("terminated")
    with editing(workshop_of(tmp_path / "b", repeat(overflow()))) as editor:
        editor.begin(task="what is x?", filters=[], stopOnEntry=True)
        editor.stopped(reason="entry")
        options = [
            {"filterId": "failed", "condition": "overflows >= 1"},
            {"filterId": "crashed", "condition": "nothing"},
        ]
        made = editor.ask("setExceptionBreakpoints", filters=[], filterOptions=options)["breakpoints"]
        assert [one["verified"] for one in made] == [True, False]
        with pytest.raises(Refused, match="no such exception filter; given: all"):
            editor.ask("setExceptionBreakpoints", filters=["all"])


def test_a_bug_in_a_state_stops(tmp_path: Path) -> None:
    def broken(body: Any) -> Any:
        raise ZeroDivisionError("never")

    with editing(workshop_of(tmp_path, [broken])) as editor:
        editor.begin(task="what is x?", filters=["crashed"])
        assert editor.stopped()["reason"] == "exception"
        assert editor.ask("exceptionInfo", threadId=1)["details"] == {
            "message": "ZeroDivisionError('never')",
            "typeName": "crashed",
        }


def test_an_effect_in_doubt_stops_before_anything_else_is_asked(tmp_path: Path) -> None:
    @tool
    def pay() -> str:
        """Pay."""
        raise ToolFailure("the line broke", status="unknown")

    workshop = workshop_of(tmp_path, [tools(call("pay")), text("done")], tools=[pay])
    with editing(workshop) as editor:
        editor.begin(task="pay", filters=["unknown"])
        stop = editor.stopped()
        assert (stop["reason"], stop["text"]) == ("exception", "pay")
        top = editor.stack()[0]
        assert (top["name"], Path(top["source"]["path"]).name) == ("ExecuteTools", "execute_tools.py")
        assert editor.ask("exceptionInfo", threadId=1)["exceptionId"] == "pay"
        editor.ends()


def asked_number(stop: dict[str, Any]) -> str:
    """The number that an answer must name."""
    return re.findall(r":\w+ (\d+)", stop["description"])[0]


def test_an_approval_stops_and_is_given_or_refused_in_the_console(tmp_path: Path) -> None:
    script = [tools(call("remove", {"key": "a"})), tools(call("remove", {"key": "b"})), text("done")]
    workshop = workshop_of(tmp_path, script)
    with editing(workshop) as editor:
        editor.begin(task="tidy up")
        stop = editor.stopped()
        assert (stop["reason"], stop["text"]) == ("exception", "remove")
        with pytest.raises(Refused, match=r"remove needs approval: type :approve \d+, .* or :deny \d+"):
            editor.ask("continue", threadId=1)
        with pytest.raises(Refused, match="nothing waits for this"):
            editor.evaluate(":let 1", context="repl")
        frame, number = editor.stack()[0]["id"], asked_number(stop)
        assert editor.evaluate(f":approve {number}", frame, "repl") == "approved, once"
        number = asked_number(editor.stopped(reason="exception"))
        assert editor.evaluate(f":deny {number} keep it", context="repl") == "denied"
        editor.event("terminated")
        turn = workshop.newest()
        assert turn is not None
        record = workshop.open(turn).record
        results = [row["content"] for row in record.messages(record.count) if row["role"] == "tool"]
        assert results[0] == "removed a"
        assert "keep it" in results[1]


# Steps, forward and back


def test_steps_are_a_request_a_state_and_the_next_call_of_the_model(tmp_path: Path) -> None:
    with editing(workshop_of(tmp_path, LOOKED_UP)) as editor:
        editor.begin(task="what is x?", stopOnEntry=True)
        assert editor.stopped()["reason"] == "entry"
        assert [frame["name"] for frame in editor.stack()] == ["Prepare"]
        assert editor.moved("next")["reason"] == "step"
        assert editor.stack()[0]["name"] == "2: BuildMessages –built→ CallLLM · send"
        editor.ask("stepIn", threadId=1)
        assert "CallModel" in editor.stopped(reason="step")["description"]
        assert [frame["name"] for frame in editor.stack()[:2]] == [
            "CallLLM",
            "2: BuildMessages –built→ CallLLM · send",
        ]
        editor.moved("stepOut", reason="step")
        assert editor.stack()[0]["name"] == "3: CallLLM –tools→ ExecuteTools"
        editor.moved("next", reason="step")
        assert editor.stack(startFrame=0, levels=1)[0]["name"] == "5: BuildMessages –built→ CallLLM · send"
        assert editor.ask("stackTrace", threadId=1, startFrame=2, levels=2)["totalFrames"] == 7
        assert [frame["name"][:2] for frame in editor.stack(startFrame=2, levels=2)] == ["4:", "3:"]
        assert editor.stack()[-1]["name"] == "Prepare"


def test_back_only_looks_and_forward_from_there_too(tmp_path: Path) -> None:
    asked: list[str] = []

    @tool(effect="pure")
    def look_up(what: str) -> str:
        """Look something up."""
        asked.append(what)
        return "42"

    with editing(workshop_of(tmp_path, STUMBLED, tools=[look_up])) as editor:
        lines = [{"line": line_of('on("tools"')}, {"line": line_of(ERROR)}]
        _, error = editor.begin(task="what is x?", lines=lines)["breakpoints"]
        editor.stopped()
        editor.refuses("no such frame", "restartFrame", frameId=1)
        assert editor.moved()["hitBreakpointIds"] == [error["id"]]

        def moved(command: str) -> tuple[str, str]:
            editor.ask(command, threadId=1)
            return editor.stopped()["reason"], editor.stack()[0]["name"].partition(":")[0]

        assert moved("stepBack") == ("step", "5")
        assert moved("reverseContinue") == ("breakpoint", "3")
        assert moved("stepIn") == ("step", "4")
        assert moved("next") == ("step", "5")
        assert moved("reverseContinue") == ("breakpoint", "3")
        assert moved("reverseContinue") == ("entry", "Prepare")
        editor.refuses("this is the start of the turn", "stepBack", threadId=1)
        assert moved("continue") == ("breakpoint", "3")
        assert moved("continue") == ("breakpoint", "6")
        assert asked == ["x"]  # looking ran nothing
        editor.ends()
        assert asked == ["x"]


def test_pause_and_terminate(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    @tool(effect="pure")
    def wait() -> str:
        """Wait."""
        begun.set()
        assert go.wait(PATIENCE)
        return "waited"

    with editing(workshop_of(tmp_path, [tools(call("wait")), text("done")], tools=[wait])) as editor:
        editor.begin(task="wait")
        assert begun.wait(PATIENCE)
        editor.refuses("the turn is running", "stackTrace", threadId=1)
        editor.ask("pause", threadId=1)
        go.set()
        assert editor.stopped()["reason"] == "pause"
        editor.ask("terminate")
        assert editor.event("exited") == {"exitCode": 130}
        editor.event("terminated")


def test_an_editor_that_leaves_may_have_the_turn_ended_or_left_to_be_resumed(tmp_path: Path) -> None:
    for ended in (True, False):
        workshop = workshop_of(tmp_path / str(ended), LOOKED_UP)
        with editing(workshop) as editor:
            editor.begin(task="what is x?", stopOnEntry=True)
            editor.stopped()
            editor.ask("disconnect", terminateDebuggee=ended)
            assert editor.over()
        info = workshop.recent(1)[0]
        assert (info.exit == "interrupted_before_call") is ended
    with editing(workshop_of(tmp_path / "False", LOOKED_UP)) as editor:
        editor.begin("attach")
        assert "No process runs this turn" in editor.stopped()["description"]
        assert editor.evaluate(":resume", context="repl") == "resumed"
        editor.stopped()
        assert editor.ends() == 0


# What is shown, and changed


def test_scopes_show_counters_facts_messages_requests_and_guards(tmp_path: Path) -> None:
    with waiting(tmp_path, STUMBLED, 'on("overloaded"') as editor:
        stack = editor.stack()
        frame = stack[0]["id"]
        counters = editor.values(editor.scope("Counters", frame)["variablesReference"])
        assert (counters["retries"]["value"], counters["retries"]["type"]) == ("1", "number, limit 2")
        facts = editor.values(editor.scope("Facts", frame)["variablesReference"])
        assert "retries" not in facts
        assert facts["failure_class"]["value"] == '"overloaded"'
        assert facts["turn_id"]["presentationHint"] == {"attributes": ["readOnly"]}
        guards = editor.values(editor.scope("Guards", frame)["variablesReference"])
        assert guards["not yet retried"]["value"] == "true"
        assert guards["row"]["value"] == '"ClassifyError.overloaded/1"'
        tool_frame = next(one for one in stack if one["name"].startswith("3:"))
        visit = editor.values(editor.scope("Request", tool_frame["id"])["variablesReference"])
        (name,) = [one for one in visit if one.endswith("RunTool look_up")]
        reply = editor.values(editor.values(visit[name]["variablesReference"])["reply"]["variablesReference"])
        assert reply["text"]["value"] == '"x: 42"'
        model_frame = next(one for one in stack if one["name"].startswith("2:"))
        visit = editor.values(editor.scope("Request", model_frame["id"])["variablesReference"])
        wire = editor.values(visit["on the wire"]["variablesReference"])
        body = editor.values(wire["body"]["variablesReference"])
        assert body["messages"]["type"] == "array"


def test_long_lists_are_paged_and_long_texts_cut(tmp_path: Path) -> None:
    looks = [tools(call("look_up", {"what": f"{number} {'y' * 3000}"})) for number in range(40)]
    workshop, _ = finished(tmp_path, [*looks, text("done")])
    with editing(workshop) as editor:
        editor.begin("attach")
        editor.stopped()
        frame = editor.stack()[0]["id"]
        messages = editor.scope("Messages", frame)
        assert messages["indexedVariables"] == 82, "with the answer that the last state wrote"
        page = editor.values(messages["variablesReference"], filter="indexed", start=79, count=2)
        assert list(page) == ["[79]", "[80]"]
        assert page["[80]"]["value"].startswith("tool: 39 yyy")
        assert editor.values(messages["variablesReference"], filter="named") == {}
        assert len(editor.values(messages["variablesReference"])) == 82
        row = editor.values(page["[80]"]["variablesReference"])
        assert row["content"]["value"].endswith("… (3009 characters)")
        assert row["content"]["evaluateName"] == "messages[80].content"
        assert len(editor.evaluate("messages[80].content", frame, "clipboard")) == 3007


def test_expressions_are_counters_conditions_and_paths(tmp_path: Path) -> None:
    with waiting(tmp_path, STUMBLED, 'on("overloaded"') as editor:
        stack = editor.stack()
        now, before = stack[0]["id"], stack[-1]["id"]
        said = {
            "retries": "1", "retries >= 1 and not fallbacks": "true", "retries > limits": None, "runtime.model": '"scripted"',
            "messages[-1].content": '"x: 42"', "guards.row": '"ClassifyError.overloaded/1"', 'limits["retries"]': "2",
            "nothing": None, "messages[99]": None, "__import__('os')": None, "retries.x": None, "messages[0": None,
        }  # fmt: skip
        for expression, value in said.items():
            if value is None:
                with pytest.raises(Refused):
                    editor.evaluate(expression, now)
            else:
                assert editor.evaluate(expression, now) == value, expression
        assert editor.evaluate("retries", before, "hover") == "0"
        opened = editor.ask("evaluate", expression="messages", frameId=now, context="watch")
        assert (opened["result"], opened["indexedVariables"]) == ("3 items", 3)
        assert list(editor.values(opened["variablesReference"])) == ["[0]", "[1]", "[2]"]


def test_names_are_completed(tmp_path: Path) -> None:
    with waiting(tmp_path, LOOKED_UP) as editor:

        def completed(typed: str) -> list[str]:
            return [
                one["label"]
                for one in editor.ask("completions", text=typed, column=len(typed) + 1)["targets"]
            ]

        assert completed("retr") == ["retries"]
        assert completed("retries >= 1 and ov") == ["overflows"]
        assert completed(":app") == [":approve"]
        assert "model" in completed("runtime.m")
        (target,) = editor.ask("completions", text="runtime.mod", column=12)["targets"]
        assert (target["start"], target["length"]) == (8, 3)


@pytest.mark.parametrize(
    ("scope", "way", "value", "shown"),
    [
        ("Counters", ["retries"], "2", "2"),
        ("Facts", ["limits", "retries"], "7", "7"),
        ("Facts", ["prior_content"], "said before", '"said before"'),
        ("Messages", ["[0]", "content"], "what is y?", '"what is y?"'),
    ],
)
def test_a_value_that_is_set_forks_the_turn(
    tmp_path: Path, scope: str, way: list[str], value: str, shown: str
) -> None:
    with waiting(tmp_path, STUMBLED, 'on("tools"') as editor:
        frame = editor.stack()[0]["id"]
        reference = editor.scope(scope, frame)["variablesReference"]
        for name in way[:-1]:
            reference = editor.values(reference)[name]["variablesReference"]
        before = editor.values(reference)[way[-1]]["value"]
        made = editor.ask("setVariable", variablesReference=reference, name=way[-1], value=value)
        assert made["value"] == shown
        assert editor.event("thread", reason="started")["threadId"] == 2
        assert (editor.stopped()["threadId"], before) != (1, shown)
        (said,) = (line for line in editor.outputs() if f"{way[-1]} set to {value}" in line)
        assert "stays as it is" in said
        path = editor.values(reference)[way[-1]]["evaluateName"]
        assert editor.evaluate(path, editor.stack(2)[0]["id"]) == shown
        assert editor.evaluate(path, frame) == before


def test_a_tools_result_is_edited_and_the_model_gets_it(tmp_path: Path) -> None:
    def last(body: dict[str, Any]) -> Any:
        row = body["messages"][-1]
        return LOOKED_UP[0] if row["role"] == "user" else text(f"it said: {row['content']}")

    with editing(workshop_of(tmp_path, repeat(last))) as editor:
        editor.begin(task="what is x?", lines=[{"line": line_of('on("text"')}])
        editor.stopped()
        frame = next(one["id"] for one in editor.stack() if one["name"].startswith("3:"))
        visit = editor.values(editor.scope("Request", frame)["variablesReference"])
        (name,) = [one for one in visit if "RunTool" in one]
        reply = editor.values(visit[name]["variablesReference"])["reply"]["variablesReference"]
        with pytest.raises(Refused, match="this value cannot be changed"):
            editor.ask("setVariable", variablesReference=reply, name="status", value="error")
        editor.ask("setVariable", variablesReference=reply, name="text", value="x: 43")
        assert editor.stopped()["threadId"] == 2
        editor.moved("continue", 2, threadId=2)
        editor.ask("continue", threadId=2)
        editor.event("thread", reason="exited")
        assert "it said: x: 43" in editor.outputs()


def test_values_that_cannot_be_set_are_refused_and_nothing_is_forked(tmp_path: Path) -> None:
    workshop = workshop_of(tmp_path, LOOKED_UP)
    with editing(workshop) as editor:
        editor.begin(task="what is x?", lines=[{"line": line_of('on("tools"')}])
        editor.stopped()
        frame = editor.stack()[0]["id"]
        counters = editor.scope("Counters", frame)["variablesReference"]
        facts = editor.scope("Facts", frame)["variablesReference"]
        wrong_counters, wrong_facts = (
            (("retries", "-1"), ("nope", "1")),
            (("state", '"Finalize"'), ("limits", "{")),
        )
        wrongs = [(counters, *one) for one in wrong_counters] + [(facts, *one) for one in wrong_facts]
        for reference, name, value in wrongs:
            with pytest.raises(Refused):
                editor.ask("setVariable", variablesReference=reference, name=name, value=value)
        assert len(workshop.recent()) == 1


def test_a_frame_that_is_restarted_goes_on_from_there_as_another_turn(tmp_path: Path) -> None:
    workshop, turn = finished(tmp_path, LOOKED_UP)
    with editing(workshop) as editor:
        editor.begin("attach", turn=turn)
        assert editor.stopped()["text"] == "completed: text_response"
        frame = next(one for one in editor.stack() if one["name"].startswith("2:"))
        editor.ask("restartFrame", frameId=frame["id"])
        assert editor.stopped()["threadId"] == 1  # the editor took it to be running
        assert editor.stopped()["threadId"] == 2
        assert editor.stack(2)[0]["name"] == frame["name"]
        editor.ask("continue", threadId=2)
        editor.event("thread", reason="exited", threadId=2)
        fork = workshop.recent(1)[0]
        assert (fork.parent, fork.forked_at, fork.exit) == (turn, 2, "text_response")


# Other turns


def test_a_finished_turn_is_looked_through_and_left(tmp_path: Path) -> None:
    workshop, turn = finished(tmp_path, repeat(overflow()))
    with editing(workshop, first=turn) as editor:
        editor.begin("attach")
        assert editor.stopped()["text"] == "failed: overflow_uncompressible"
        assert editor.stack()[0]["name"].endswith("overflow_uncompressible")
        editor.refuses("the turn has ended; inspect it", "next", threadId=1)
        editor.moved("stepBack")
        assert editor.evaluate(":find overflow", context="repl").startswith("moves ")
        editor.evaluate(":at 1", context="repl")
        editor.stopped()
        assert editor.stack()[0]["name"] == "1: Prepare –ready→ BuildMessages"
        assert "def test_" in editor.evaluate(":test", context="repl")
        assert ":fork [EDIT]" in editor.evaluate(":help", context="repl")
        with pytest.raises(Refused, match="no such command; given: :nope"):
            editor.evaluate(":nope", context="repl")
        editor.moved()
        editor.ends()


def test_a_turn_may_stop_once_more_at_its_end(tmp_path: Path) -> None:
    with editing(workshop_of(tmp_path, LOOKED_UP)) as editor:
        editor.begin(task="what is x?", stopAtEnd=True, trace=False)
        assert editor.stopped()["description"] == "The turn has ended: text_response"
        assert not any("Prepare" in line for line in editor.outputs())
        assert editor.moved("reverseContinue")["reason"] == "entry"


def test_turns_that_a_turn_starts_are_threads_too(tmp_path: Path) -> None:
    go = threading.Event()

    @tool(effect="pure")
    def wait() -> str:
        """Wait."""
        assert go.wait(PATIENCE)
        return "waited"

    def replies(body: dict[str, Any]) -> Any:
        first = next(row["content"] for row in body["messages"] if row["role"] == "user")
        if body["messages"][-1]["role"] == "tool":
            return text("done")
        return tools(call("delegate_task", {"goal": "find it"})) if first == "parent" else tools(call("wait"))

    workshop = workshop_of(tmp_path, repeat(replies), tools=[wait], toolsets=["delegate"])
    with editing(workshop) as editor:
        editor.begin(task="parent")
        assert editor.event("thread", reason="started", threadId=2)
        assert [one["name"].split(" · ")[0] for one in editor.ask("threads")["threads"]] == [
            "parent",
            "find it",
        ]
        go.set()
        editor.event("thread", reason="exited", threadId=2)
        editor.event("terminated")


def test_held_requests_are_answered_by_hand(tmp_path: Path) -> None:
    with waiting(tmp_path, LOOKED_UP) as editor:
        assert editor.evaluate(":hold model", context="repl") == "held back from now on: model"
        stop = editor.moved(reason="pause")
        assert "is held back" in stop["description"]
        by_hand = f':answer {asked_number(stop)} {{"text": "by hand"}}'
        assert editor.evaluate(by_hand, context="repl") == "answered by hand"
        editor.event("terminated")
        assert "by hand" in editor.outputs()


def test_a_fork_with_an_edit_is_made_in_the_console_and_threads_end_one_by_one(tmp_path: Path) -> None:
    with waiting(tmp_path, STUMBLED, 'on("tools"') as editor:
        wrongs = ':fork [1]|:fork {|:fork {"nothing": 1}|:at x|:find|:approve often|:answer x|:test'
        for wrong in wrongs.split("|"):
            with pytest.raises(Refused):
                editor.evaluate(wrong, context="repl")
        editor.evaluate(':fork {"counters": {"retries": 2}}', context="repl")
        assert editor.stopped()["threadId"] == 2
        assert editor.evaluate("retries", editor.stack(2)[0]["id"]) == "2"
        editor.ask("terminateThreads", threadIds=[1])
        assert editor.event("thread", reason="exited")["threadId"] == 1
        assert [one["id"] for one in editor.ask("threads")["threads"]] == [2]


def test_secrets_do_not_leave_for_the_editor(tmp_path: Path) -> None:
    @tool(effect="pure")
    def peek() -> str:
        """Peek."""
        return '{"api_key": "hunter2hunter2", "note": "sk-abcdefgh12345678", "word": "swordfish-7"}'

    script = [tools(call("peek", {})), text("the word is swordfish-7 and sk-abcdefgh12345678")]
    workshop, _ = finished(tmp_path, script, tools=[peek])
    with editing(workshop, secrets=("swordfish-7",)) as editor:
        editor.begin("attach")
        editor.stopped()
        for frame in editor.stack():
            for scope in editor.ask("scopes", frameId=frame["id"])["scopes"]:
                _open_all(editor, scope["variablesReference"], 4)
        assert "***" in editor.evaluate("messages[-1].content", context="clipboard")
        editor.evaluate("final_response")
        said = str(editor.messages)
        assert "swordfish" not in said
        assert "abcdefgh12345678" not in said
        assert "hunter2" not in said


def _open_all(editor: Editor, reference: int, depth: int) -> None:
    for value in editor.values(reference).values():
        if value["variablesReference"] and depth:
            _open_all(editor, value["variablesReference"], depth - 1)


@pytest.mark.slow
def test_a_long_turn_is_looked_through_quickly(tmp_path: Path) -> None:
    replies = [*[tools(call("look_up", {"what": str(number)})) for number in range(150)], text("done")]
    settings = {"max_iterations": 200, "guardrail": {"hard_stop": False}}
    workshop, _ = finished(tmp_path, replies, settings=settings)
    with editing(workshop) as editor:
        editor.begin("attach")
        editor.stopped()
        began = time.process_time()  # what others take of the processor is not counted
        for _ in range(50):
            editor.moved("stepBack")
            editor.stack(startFrame=0, levels=20)
        assert (time.process_time() - began) / 50 < 0.1


def test_an_agent_of_another_kind_of_home_is_not_needed_to_look(tmp_path: Path) -> None:
    agent_of(tmp_path, LOOKED_UP).run_conversation("hello")
    with editing(DebugSession(store_for(tmp_path, "normal"))) as editor:
        editor.begin("attach")
        editor.stopped()
        editor.refuses("this debugger only looks", "restartFrame", frameId=editor.stack()[0]["id"])


def test_what_the_command_line_opened_is_what_an_editor_gets(tmp_path: Path) -> None:
    workshop = workshop_of(tmp_path, LOOKED_UP)
    first = workshop.start("from the command line").id
    with editing(workshop, first=first) as editor:
        editor.begin("attach", cwd=str(tmp_path))
        assert editor.stopped()["reason"] == "entry"
        assert f"turn {first} runs with what the server was started with" in editor.outputs()[0]
        assert editor.ends() == 0
