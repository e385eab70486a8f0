"""The debugger's core: run control, breakpoints, looking back, forks, answers by hand."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.debug import Breakpoint, Breakpoints, Debugger, DebugSession
from fsm_agent.debug.core import commands
from fsm_agent.debug.core.breakpoints import MoveFacts, at_hit, targets_of
from fsm_agent.debug.core.debugger import compose_request
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Step
from fsm_agent.support.threads import LOOP
from fsm_agent.testing import call, text, tools
from fsm_agent_states.table import TURN
from tests.debug.conftest import Desk
from tests.helpers.debugging import ended, give, next_held
from tests.helpers.waiting import PATIENCE, until, until_so

SENT = "BuildMessages.built/3"
ROUNDS = ("Prepare.ready", SENT, "CallLLM.tools", "ExecuteTools.done", SENT, "CallLLM.text")


def moves(debugger: Debugger) -> list[str]:
    return [move["row"] for move in debugger.record.moves(1, 1000)]


# Run control


@pytest.mark.behaviour("FSM-10")
def test_step_into_over_and_continue(desk: Desk) -> None:
    debugger = desk.start()
    assert (debugger.status.phase, debugger.status.state, moves(debugger)) == ("paused", "Prepare", [])
    assert (give(debugger, "step").state, debugger.status.seq) == ("BuildMessages", 1)
    assert give(debugger, "into").text == "CheckSignals done"
    assert [entry["kind"] for entry in debugger.visit(1)] == ["CheckSignals"]
    assert (give(debugger, "over").state, debugger.status.seq) == ("CallLLM", 2)
    assert give(debugger, "into").text == "CallModel done"
    assert (give(debugger, "over").state, debugger.status.seq) == ("CallLLM", 5)
    assert give(debugger, "continue").phase == "ended"
    assert moves(debugger) == [*ROUNDS]
    assert [move["row"] for move in desk.told("moved")] == [*ROUNDS]
    assert desk.told("ended") != []


def test_run_to_a_state_or_a_move(desk: Desk) -> None:
    debugger = desk.start()
    assert give(debugger, "to", breakpoint={"kind": "state", "target": "ExecuteTools"}).seq == 3
    assert give(debugger, "to", seq=5).seq == 5
    assert len(debugger.breakpoints) == 0


@pytest.mark.behaviour("INT-01b")
def test_pause_and_interrupt(desk: Desk) -> None:
    held: list[Debugger] = []

    def pausing(body: Any) -> Any:
        held[0].order("pause")
        return tools(call("look", {"at": "sky"}))

    desk.script = [pausing, text("blue")]
    held.append(desk.start())
    paused = give(held[0], "continue")
    assert (paused.phase, paused.reason, paused.state) == ("paused", "pause", "CallLLM")
    ended = give(held[0], "interrupt", message="enough")
    assert ended.phase == "ended"
    assert held[0].record.info.outcome == "interrupted"
    assert desk.ran == []


def test_breakpoints_stop_where_they_say(desk: Desk) -> None:
    debugger = desk.start()
    debugger.breakpoint("arrow", "CallLLM->ExecuteTools")
    debugger.breakpoint("exit", "completed")
    stopped = give(debugger, "continue")
    assert (stopped.reason, stopped.seq) == ("breakpoint", 3)
    assert stopped.text == "breakpoint: arrow CallLLM→ExecuteTools"
    assert give(debugger, "continue").seq == 6
    assert give(debugger, "continue").phase == "ended"


def test_a_logpoint_records_and_continues(desk: Desk) -> None:
    debugger = desk.start()
    debugger.breakpoint("state", "CallLLM", log="request {iterations} after {seq} moves, by {row}")
    assert give(debugger, "continue").phase == "ended"
    assert [note["text"] for note in desk.told("log")] == [
        "request 1 after 2 moves, by BuildMessages.built/3",
        "request 2 after 5 moves, by BuildMessages.built/3",
    ]


async def test_a_turn_that_somebody_runs_in_this_process_is_attached_to(desk: Desk) -> None:
    """It continues until it is paused, and its own caller gets its result."""
    desk.script = [*[tools(call("look", {"at": f"sky {n}"})) for n in range(200)], text("blue")]
    turn = desk.make_agent(settings={"max_iterations": 300}).start("look often")
    running = asyncio.create_task(turn.arun())
    await until_so(lambda: len(turn.steps) > 2, "three moves")
    debugger = Debugger.attach(desk.workshop.store, turn.id)
    assert debugger.status.phase == "running"
    debugger.order("pause")
    paused = await debugger.settled(PATIENCE)
    moves = len(turn.steps)
    assert (len(turn.steps), paused.seq, running.done()) == (moves, moves, False)
    debugger.order("step")
    assert (await debugger.settled(PATIENCE)).seq == moves + 1
    debugger.close()
    assert (await running).final_response == "blue"


def test_only_one_debugger_at_a_time(desk: Desk) -> None:
    debugger = desk.start()
    with pytest.raises(ConfigError, match="another debugger is attached"):
        Debugger.attach(desk.workshop.store, debugger.id)


EVERY_COMMAND: list[commands.Command] = [
    commands.PauseTurn(), commands.StepMove(), commands.StepInto(), commands.StepOver(), commands.ContinueTurn(),
    commands.RunTo(7), commands.RunTo(Breakpoint("state", "CallLLM", condition="retries >= 1")), commands.InterruptTurn(),
    commands.InterruptTurn("enough"), commands.SteerTurn("left"), commands.HoldRequests(("model", "tool")),
    commands.AnswerRequest(-1, {"deny": "no"}), commands.AnswerRequest(2, None), commands.ReleaseRequest(3),
    commands.EditRequest(4, {"model": "m"}), commands.ReplaceBreakpoints((Breakpoint("exit", "failed", id=4),)),
]  # fmt: skip


def test_a_command_is_read_as_it_was_written() -> None:
    for one in EVERY_COMMAND:
        assert commands.read_command(one.name, json.loads(json.dumps(commands.body_of(one)))) == one
    assert {one.name for one in EVERY_COMMAND} == set(commands.NAMES)


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("jump", {}, "no such order; given: jump; allowed: pause, step, into"),
        ("to", {"seq": -1}, "seq is not a number; given: -1; allowed: a whole number from 0"),
        ("to", {"breakpoint": 3}, "not a breakpoint; given: 3"),
        ("answer", {"id": "one"}, "id is not a number; given: one; allowed: a whole number"),
        ("let", {}, "id is not a number"),
        ("hold", {"kinds": "model"}, "kinds is not a list of texts; given: model"),
        ("steer", {"text": 3}, "text is not text; given: 3"),
        ("interrupt", {"message": 3}, "message is not text"),
        ("breakpoints", {"all": [3]}, "all is not a list of objects"),
        ("breakpoints", {"all": [{"kind": "state", "target": "CallLLM", "id": "x"}]}, "id is not a number"),
    ],
)
def test_a_command_that_cannot_be_read_is_refused(name: str, body: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        commands.read_command(name, body)


def test_a_command_that_cannot_be_carried_out_is_refused(desk: Desk) -> None:
    debugger = desk.start()
    for command in (
        commands.AnswerRequest(9, "yes"),
        commands.HoldRequests(("all",)),
        commands.SteerTurn(" "),
    ):
        with pytest.raises(ConfigError):
            debugger.order(command)


def test_leaving_a_turn_lets_it_be_resumed(desk: Desk) -> None:
    debugger = desk.start()
    give(debugger, "over")
    debugger.close()
    until(lambda: desk.workshop.open(debugger.id).status.phase == "idle", "its rest")
    resumed = desk.workshop.resume(debugger.id)
    assert (resumed.status.phase, resumed.status.seq) == ("paused", 2)
    assert give(resumed, "continue").phase == "ended"


# Answers by hand


@pytest.mark.behaviour("FSM-11")
def test_a_tool_is_approved_or_denied(desk: Desk) -> None:
    desk.script = [
        tools(call("paint", {"thing": "wall"})), tools(call("paint", {"thing": "door"})), text("done"),
    ]  # fmt: skip
    debugger = desk.start()
    waiting = give(debugger, "continue")
    assert waiting.phase == "waiting"
    assert [(one["kind"], one["name"], one["arguments"]) for one in waiting.held] == [
        ("approval", "paint", {"thing": "wall"})
    ]
    debugger.order("answer", {"id": waiting.held[0]["id"], "said": "once"})
    second = next_held(debugger, waiting.held[0]["id"])
    debugger.order("answer", {"id": second["id"], "said": "deny"})
    ended(debugger)
    assert desk.ran == ["paint wall"]
    said = [
        row["content"] for row in debugger.record.messages(debugger.record.count) if row["role"] == "tool"
    ]
    assert said[0] == "painted"
    assert "the user said no" in said[1]


class AtTheTerminal:
    """A person asked by the process that runs the turn. Waits for ``answers`` before replying."""

    def __init__(self) -> None:
        self.asked, self.says = threading.Event(), ""
        self.said = threading.Event()

    def approval(self, request: Any) -> str:
        self.asked.set()
        return self.says if self.said.wait(PATIENCE) else "deny"

    def answers(self, says: str) -> None:
        self.says = says
        self.said.set()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("where", "said"), [("page", "once"), ("page", "deny"), ("terminal", "once")])
def test_whoever_answers_first_decides(desk: Desk, where: str, said: str, late: bool) -> None:
    """A person is asked at the terminal as well; the rules have spoken by then, so the debugger may allow it too.
    One that comes late may, and one that leaves does not answer for the terminal."""
    terminal = AtTheTerminal()
    desk.script = [tools(call("paint", {"thing": "wall"})), text("done")]
    turn = desk.make_agent(callbacks=terminal).start("paint")
    if late:
        running = LOOP.submit(turn.arun())
        assert terminal.asked.wait(PATIENCE)
        debugger = Debugger.attach(desk.workshop.store, turn.id)
    else:
        debugger = Debugger.of(desk.workshop.store, turn)
        give(debugger, "continue")
        assert terminal.asked.wait(PATIENCE)
    held = next_held(debugger, 0, allowable=True)
    assert held["elsewhere"]
    if where == "page":
        debugger.order("answer", {"id": held["id"], "said": said})
    else:
        if late:
            debugger.close()
        terminal.answers(said)
    if late:
        assert running.result(PATIENCE).final_response == "done"
    else:
        ended(debugger)
    terminal.answers("deny")
    assert desk.ran == (["paint wall"] if said == "once" else [])


def test_nothing_is_allowed_before_the_rules_have_spoken(desk: Desk) -> None:
    """A check that takes its time is no person: until it has spoken, one can only deny."""
    checking = threading.Event()

    class Slow(AtTheTerminal):
        def before_tool(self, name: str, arguments: Any) -> Any:
            checking.set()
            self.said.wait(PATIENCE)
            return ("block", "not today")

    check = Slow()
    desk.script = [tools(call("paint", {"thing": "wall"})), text("done")]
    debugger = Debugger.of(desk.workshop.store, desk.make_agent(callbacks=check).start("paint"))
    held = give(debugger, "continue").held[0]
    assert (checking.is_set(), held["allowable"]) == (True, False)
    with pytest.raises(ConfigError, match="have not spoken yet"):
        debugger.order("answer", {"id": held["id"], "said": "once"})
    check.answers("")
    ended(debugger)
    assert desk.ran == []


def test_what_can_never_be_approved_stays_forbidden(desk: Desk) -> None:
    @tool(name="terminal", approval="ask")
    def shell(command: str) -> str:
        """Run."""
        desk.ran.append(command)
        return "ran"

    desk.script = [tools(call("terminal", {"command": "rm -rf /"})), text("done")]
    debugger = Debugger.of(desk.workshop.store, desk.make_agent(tools=[shell]).start("clean up"))
    assert give(debugger, "continue").phase == "ended"
    assert desk.ran == []


def test_the_model_and_a_tool_are_answered_by_hand(desk: Desk) -> None:
    desk.script = [text("never said")]
    debugger, held = desk.held("model", "tool")
    assert held["kind"] == "model"
    assert "what color?" in held["wire"]
    debugger.order(
        "answer", {"id": held["id"], "said": {"tool_calls": [{"name": "look", "arguments": {"at": "sea"}}]}}
    )
    tool_held = next_held(debugger, held["id"])
    assert (tool_held["kind"], tool_held["arguments"]) == ("tool", {"at": "sea"})
    debugger.order("answer", {"id": tool_held["id"], "said": "green"})
    last = next_held(debugger, tool_held["id"])
    with pytest.raises(ConfigError, match="empty"):
        debugger.order("answer", {"id": last["id"], "said": ""})
    debugger.order("answer", {"id": last["id"], "said": "The sea is green."})
    ended(debugger)
    assert desk.ran == []
    assert debugger.record.overview()["result"]["final_response"] == "The sea is green."
    assert [one["reply"]["text"] for one in debugger.record.visit(3) if one["kind"] == "RunTool"] == ["green"]


def test_an_error_of_the_provider_by_hand(desk: Desk) -> None:
    debugger, held = desk.held("model")
    debugger.breakpoint("state", "ClassifyError")
    debugger.order("answer", {"id": held["id"], "said": {"failure": "overloaded", "status": 503}})
    assert asyncio.run(debugger.settled(PATIENCE)).state == "ClassifyError"


# Looking


def test_back_only_looks_also_for_breakpoints(desk: Desk) -> None:
    debugger = desk.finished()
    cursor, breakpoints = debugger.cursor, debugger.breakpoints
    assert (cursor.at, cursor.following) == (6, True)
    assert cursor.back() == 5
    assert (cursor.at, debugger.status.seq, cursor.following) == (5, 6, False)
    assert (cursor.to(-4), cursor.to(99), cursor.following) == (0, 6, True)
    debugger.breakpoint("state", "CallLLM", condition="iterations >= 1")
    assert [cursor.back_to(breakpoints)[0] for _ in range(2)] == [5, 2]
    assert cursor.back_to(breakpoints) == (0, [])
    assert (cursor.forward_to(breakpoints) or [0])[0] == 2
    cursor.to(5)
    assert cursor.forward_to(breakpoints) is None


def test_everything_about_a_position(desk: Desk) -> None:
    debugger = desk.finished()
    record = debugger.record
    assert record.counters(2, ["iterations", "sends"]) == {"iterations": 1, "sends": 1}
    assert record.counters(3, ["iterations", "sends"]) == {"iterations": 1, "sends": 0}
    assert "failure" not in [one["field"] for one in record.changes_at(3)]
    assert "reply" in [one["field"] for one in record.changes_at(3)]
    assert [row["role"] for row in record.messages(4)] == ["user", "assistant", "tool"]
    assert record.messages(4, 2, 2)[0]["content"] == "the sky is blue"
    assert [one["kind"] for one in record.visit(2)] == ["CallModel"]
    assert record.path() == [row.partition(".")[0] for row in ROUNDS] + ["Finalize"]
    assert record.lanes(0, 6, 3, TURN.states) == [0b11 | 0b100, 0b100010, 0b10000100]
    assert record.find("the sky is blue") == [4]
    assert record.find("CallLLM.text") == [6]
    assert {(a, b): n for a, b, _, n, _ in record.count_rows()}["BuildMessages", "CallLLM"] == 2
    with pytest.raises(ConfigError, match="no position of that number"):
        record.snapshot(7)


def test_the_request_on_the_wire_is_composed_again(desk: Desk) -> None:
    debugger, held = desk.held("model")
    debugger.order("let", {"id": held["id"]})
    second = next_held(debugger, held["id"])
    debugger.order("let", {"id": second["id"]})
    ended(debugger)
    for at, sent in ((2, held), (5, second)):
        made = compose_request(desk.workshop.store, debugger.id, at)
        assert made["body"] == json.loads(sent["wire"])
    assert compose_request(desk.workshop.store, debugger.id, 3)["body"] is None


def test_snapshots_far_apart_are_the_same_as_from_the_start(desk: Desk) -> None:
    rounds = 100
    desk.script = [*[tools(call("look", {"at": f"sky {n}"})) for n in range(rounds)], text("blue")]
    agent = desk.make_agent(settings={"max_iterations": rounds + 1})
    agent.run_conversation("look often")
    record = desk.workshop.open(agent.journal.recent(1)[0].id).record
    assert record.count == 3 * rounds + 3
    for at in (300, 3, 257, 256, 301, 0, 40, 303):
        stored = agent.journal.snapshot(record.turn_id, at)
        assert record.snapshot(at) == stored.pop("counts") | stored


# Forks


def test_a_fork_continues_from_an_earlier_move_with_a_change(desk: Desk) -> None:
    debugger = desk.start()
    debugger.breakpoint("state", "Compress")
    give(debugger, "continue")
    fork = desk.workshop.fork(debugger.id, 3, {"results": {"call_1_0": "the sky is green"}})
    assert (fork.status.phase, fork.status.seq, fork.status.state) == ("paused", 3, "ExecuteTools")
    assert [one.target for one in fork.breakpoints] == ["Compress"]
    give(fork, "continue")
    assert desk.ran == ["look sky"]
    assert fork.record.messages(4)[2]["content"] == "the sky is green"
    assert [
        (one["status"], one["reply"]["text"]) for one in fork.record.visit(3) if one["kind"] == "RunTool"
    ] == [("by hand", "the sky is green")]
    assert fork.record.path()[:4] == debugger.record.path()[:4]
    assert fork.record.find("CallLLM.tools") == [3]
    assert fork.record.snapshot(2) == debugger.record.snapshot(2)
    again = desk.workshop.fork(debugger.id, 3)
    give(again, "continue")
    assert desk.ran == ["look sky"]
    assert [one["status"] for one in again.record.visit(3) if one["kind"] == "RunTool"] == ["taken over"]


def test_two_runs_are_compared(desk: Desk) -> None:
    debugger = desk.finished()
    fork = desk.workshop.fork(debugger.id, 2, {"reply": "no need to look"})
    give(fork, "continue")
    found = desk.workshop.compare(debugger.id, fork.id)
    assert (found.shared, found.said, found.parted) == (2, 3, 3)
    assert [one["status"] for one in fork.record.visit(2)] == ["by hand"]
    assert [(one.tag, one.left, one.right) for one in found.stretches] == [
        ("same", (1, 2), (1, 2)), ("only_left", (3, 5), (3, 2)), ("same", (6, 6), (3, 3)),
    ]  # fmt: skip
    again = desk.workshop.compare(debugger.id, debugger.id)
    assert (again.parted, again.said) == (None, None)


def test_a_run_goes_to_another_home_as_one_file(desk: Desk, tmp_path: Path) -> None:
    debugger = desk.finished()
    other = Desk(tmp_path / "other")
    there = other.workshop.open(other.workshop.import_(desk.workshop.export(debugger.id)))
    assert moves(there) == [*ROUNDS]
    fork = other.workshop.fork(there.id, 3, {"results": {"call_1_0": "red"}})
    assert give(fork, "continue").phase == "ended"
    other.workshop.close()


def test_without_an_agent_one_only_looks(desk: Desk) -> None:
    debugger = desk.finished()
    looking = DebugSession(desk.workshop.store)
    with pytest.raises(ConfigError, match="only looks"):
        looking.fork(debugger.id, 3)
    with pytest.raises(ConfigError, match="fork it to continue from a position"):
        looking.open(debugger.id).order("step")
    assert looking.find(debugger.id[:20]) == debugger.id
    with pytest.raises(ConfigError, match="no such turn"):
        looking.find("nothing")


# Breakpoints


def step(**values: Any) -> Step:
    made: dict[str, Any] = {
        "seq": 4, "source": "CallLLM", "event": "error", "dest": "ClassifyError", "row": "CallLLM.error",
        "guards": [], "changes": [],
        "seconds": 0.1, "exit": None,
    }  # fmt: skip
    return Step(**(made | values))


@pytest.mark.parametrize(
    ("kind", "target", "meets"),
    [
        ("state", "ClassifyError", True), ("state", "CallLLM", False), ("event", "error", True), ("event", "CallLLM.error", True),
        ("event", "Compress.outgrown", False), ("row", "CallLLM.error", True), ("arrow", "CallLLM -> ClassifyError", True),
        ("arrow", "CallLLM→ExecuteTools", False), ("exit", "failed", False),
    ],
)  # fmt: skip
def test_what_a_breakpoint_meets(kind: str, target: str, meets: bool) -> None:
    breakpoints = Breakpoints(TURN)
    breakpoints.put(Breakpoint.of({"kind": kind, "target": target}))
    assert bool(breakpoints.match(MoveFacts(step(), {}))) is meets


def test_exits_by_reason_and_by_outcome() -> None:
    breakpoints = Breakpoints(TURN)
    for target in ("overflow_uncompressible", "failed", "completed"):
        breakpoints.put(Breakpoint.of({"kind": "exit", "target": target}))
    found = breakpoints.match(MoveFacts(step(dest="Finalize", exit="overflow_uncompressible"), {}))
    assert [hit.breakpoint.target for hit in found] == ["overflow_uncompressible", "failed"]


@pytest.mark.parametrize(
    ("text", "hits"),
    [("", [1, 2, 3, 4]), ("3", [3]), (">= 3", [3, 4]), ("> 3", [4]), ("% 2", [2, 4]), ("<2", [1])],
)
def test_hit_counts(text: str, hits: list[int]) -> None:
    assert [count for count in range(1, 5) if at_hit(text)(count)] == hits


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"kind": "state", "target": "Nowhere"}, "no such state"),
        ({"kind": "place", "target": "CallLLM"}, "no such kind"),
        ({"kind": "state", "target": "CallLLM", "condition": "__import__('os')"}, "cannot be read"),
        ({"kind": "state", "target": "CallLLM", "hits": "often"}, "hit count"),
        ({"kind": "state", "target": "CallLLM", "hits": "% 0"}, "hit count"),
        ({"kind": "state", "target": "CallLLM", "log": "{password}"}, "what is not known"),
        ({"kind": "state", "target": "CallLLM", "color": "red"}, "no such part"),
    ],
)
def test_wrong_breakpoints_are_refused(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Breakpoints(TURN).put(Breakpoint.of(wanted))


def test_replacing_keeps_the_count_of_what_stays() -> None:
    breakpoints = Breakpoints(TURN)
    first = breakpoints.put(Breakpoint.of({"kind": "event", "target": "error"}))
    breakpoints.match(MoveFacts(step(), {}))
    breakpoints.replace([first, Breakpoint.of({"kind": "state", "target": "Compress"})])
    assert [(one.target, breakpoints.count(one.id)) for one in breakpoints] == [("error", 1), ("Compress", 0)]
    with pytest.raises(ConfigError):
        breakpoints.replace([Breakpoint("state", "Nowhere")])
    assert len(breakpoints) == 2


def test_every_row_and_arrow_of_the_table_can_be_stopped_at() -> None:
    breakpoints = Breakpoints(TURN)
    for kind in ("state", "event", "row", "arrow", "exit"):
        for target in targets_of(TURN, kind):
            breakpoints.put(Breakpoint.of({"kind": kind, "target": target}))
    assert len(breakpoints) > 200
