"""Requests of extensions at named points: declared, performed, journalled, and what becomes of them after a
crash, in another process, and where the extension fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest

from fsm_agent import Agent, tool
from fsm_agent.backtest.replay import make_test
from fsm_agent.conversation.effects import AskExtension, CallModel, Point
from fsm_agent.errors import ConfigError
from fsm_agent.extension import Extension, Part
from fsm_agent.fsm.journal import Exchange
from fsm_agent.hooks import Hooks
from fsm_agent.request import Effect, Request
from fsm_agent.sessions.store.export import export_session
from fsm_agent.sessions.store.importing import import_lines
from fsm_agent.testing import Look, call, text, tools
from fsm_agent_states.table import TURN
from tests.helpers.harness import MakeAgent
from tests.helpers.processes import ran
from tests.helpers.shape_watch import ShapeWatch
from tests.helpers.store_homes import declared_dead, moves, process

POINTS: tuple[Point, ...] = get_args(Point)


@dataclass(frozen=True)
class Stamped:
    number: int
    place: str = ""


@dataclass(frozen=True)
class Stamp(Request):
    reply: ClassVar[type] = Stamped
    effect: ClassVar[Effect] = "unsafe"

    at: str

    def in_doubt(self) -> Stamped:
        return Stamped(-1, "unknown")


look = tool(effect="pure", name="look")(lambda: "blue")


class Stamps(Extension):
    """Counts in a file, which no journal knows, what it performed."""

    name = "stamps"
    requests = (CallModel,)

    def __init__(self, file: Path, points: tuple[Point, ...] = POINTS) -> None:
        self.file, self.points = file, points
        self.seen: list[Any] = []

    def asks(self) -> Mapping[Point, list[Request]]:
        return {point: [Stamp(point)] for point in self.points}

    async def perform(self, request: Any, turn: Any, key: str) -> Any:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.file.write_text("".join(f"{line}\n" for line in [*lines, f"{request.at} {turn.state} {key}"]))
        return Stamped(len(lines) + 1, request.at)

    async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
        self.seen.append(self.reply_to(Stamp, turn))
        return await call_next(request)


def stamped(file: Path) -> list[str]:
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def effects(one: Agent, turn: str) -> list[Any]:
    found = (
        effect for seq in range(one.journal.info(turn).seq + 1) for effect in one.journal.effects(turn, seq)
    )
    return [effect for effect in found if effect.kind == AskExtension.__name__]


@pytest.mark.behaviour("EXT-01")
def test_it_asks_at_each_point_in_the_state_of_the_point(agent: MakeAgent, tmp_path: Path) -> None:
    stamps = Stamps(tmp_path / "stamps")
    one = agent(tools(call("look")), text("blue"), tools=[look], extensions=[stamps])
    turn = one.start("go")
    assert turn.run().final_response == "blue"
    round_of = ["BuildMessages.built", "ExecuteTools.run", "ExecuteTools.done", "BuildMessages.built"]
    assert stamped(stamps.file) == ["Prepare.ready", *round_of, "Finalize"]
    lines = [line.split() for line in stamps.file.read_text().splitlines()]
    assert all(at.startswith(state) for at, state, _ in lines)
    assert len({key for _, _, key in lines}) == 6, "a key is of one request"
    assert stamps.seen == [Stamped(2, "BuildMessages.built"), Stamped(5, "BuildMessages.built")]
    kept = effects(one, turn.id)
    assert [(one.name, one.status) for one in kept] == [("stamps Stamp", "done")] * 6
    assert [(one.request["point"], one.reply["value"]["number"]) for one in kept] == [
        (at, number) for number, (at, _, _) in enumerate(lines, 1)
    ]
    assert kept[0].request["request"] == {"is": "Stamp", "at": "Prepare.ready"}


def test_an_agent_without_such_extensions_asks_for_nothing_more(agent: MakeAgent) -> None:
    one = agent(tools(call("look")), text("blue"), tools=[look])
    turn = one.start("go")
    turn.run()
    assert (effects(one, turn.id), one.journal.snapshot(turn.id)["asks"]) == ([], [])


def test_a_debugger_and_other_layers_see_the_request(agent: MakeAgent, tmp_path: Path) -> None:
    class All(Extension):
        name = "all"
        requests = (AskExtension,)

        async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
            asked.append(f"{request.point}: {request}")
            return await call_next(request)

    class Debugger:
        async def passing(self) -> None: ...

        async def performing(self, request: Any, turn: Any, call_next: Any) -> Any:
            passed.append(type(request).__name__)
            return await call_next(request)

    asked: list[str] = []
    passed: list[str] = []
    one = agent(text("ok"), extensions=[Stamps(tmp_path / "stamps", ("Finalize",)), All()])
    turn = one.start("go")
    turn.gate.attach(Debugger())
    turn.run()
    assert asked == ["Finalize: Stamp of extension stamps"]
    assert passed.count("AskExtension") == 1


class Broken(Extension):
    """Fails at its points."""

    name = "broken"

    def __init__(self, how: str, *points: Point, ends: bool = False) -> None:
        self.how, self.points = how, points
        self.when_it_fails = "end" if ends else "continue"

    def asks(self) -> Mapping[Point, list[Request]]:
        return {point: [Stamp(point)] for point in self.points}

    async def perform(self, request: Any, turn: Any, key: str) -> Any:
        if self.how == "raises":
            raise LookupError("key sk-abcdefghijklmnopqrstuvwxyz123456 is gone")
        if self.how == "never returns":
            await asyncio.Event().wait()
        return "stamped" if self.how == "wrong type" else Stamped(1)


FAILURES = {
    "raises": "extension broken failed: LookupError: key ",
    "never returns": "extension broken took longer than 0.05 s (",
    "wrong type": "extension broken failed: ConfigError: the reply to Stamp cannot be stored; given: str 'stamped'; allowed: Stamped (",
}


@pytest.mark.behaviour("EXT-02")
@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("point", POINTS)
def test_one_that_fails_is_one_line_and_the_turn_continues(
    agent: MakeAgent, tmp_path: Path, how: str, point: Point
) -> None:
    lines: list[str] = []
    stamps = Stamps(tmp_path / "stamps", (point,))
    one = agent(
        tools(call("look")), text("done"), tools=[look], extensions=[Broken(how, point), stamps],
        callbacks={"status": lines.append}, settings={"hook_timeout": 0.05},
    )  # fmt: skip
    turn = one.start("go")
    assert turn.run().final_response == "done"
    failed = [line for line in lines if "broken" in line]
    assert len(failed) == (2 if point == "BuildMessages.built" else 1)
    for line in failed:
        assert line.startswith(FAILURES[how])
        assert line.endswith(f"(Stamp at {point}); the turn continues without it")
        assert "\n" not in line
        assert "sk-abc" not in line
    assert stamped(stamps.file) == [point] * len(failed), "others are performed"
    kept = [effect for effect in effects(one, turn.id) if effect.name.startswith("broken")]
    assert {(effect.status, effect.reply["value"]["number"]) for effect in kept} == {("unknown", -1)}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("point", POINTS[:-1])
async def test_one_whose_failure_ends_the_turn_ends_it_by_the_row_for_bugs(
    agent: MakeAgent, how: str, point: Point
) -> None:
    """Every move and every shape of the transcript is one that is proved."""
    one = agent(
        tools(call("look")), text("done"), text("again"), tools=[look],
        extensions=[Broken(how, point, ends=True)], settings={"hook_timeout": 0.05},
    )  # fmt: skip
    turn = one.start("go")
    look_at, shapes = Look(TURN, turn.gate.turn), ShapeWatch(turn.gate.turn)
    async for step in turn:
        look_at.moved(step.event, TURN.row(step.row))
        shapes.moved(step.row)
    result = await turn.arun()
    shapes.ended()
    assert (result.failed, result.turn_exit_reason) == (True, "local_processing_error")
    assert turn.steps[-1].row == f"{point.partition('.')[0]}.crashed"
    assert "extension broken " in (result.error or "")
    assert not one.store.unfinished(one.session_id)


def test_a_failure_at_the_very_end_costs_no_other_step_of_it(agent: MakeAgent) -> None:
    ended: list[str] = []

    class Ends(Broken):
        name = "ends"

        def in_turn(self, here: Any) -> Part:
            class Last(Part):
                async def closing(self) -> None:
                    ended.append("closed")

            return Last({Stamp: None})

    one = agent(text("done"), extensions=[Ends("raises", "Finalize", ends=True)])
    result = one.run_conversation("go")
    assert (result.final_response, result.completed, ended) == ("done", True, ["closed"])


def test_a_part_of_its_own_performs_it_by_its_handler(agent: MakeAgent) -> None:
    class Own(Broken):
        name = "own"

        def in_turn(self, here: Any) -> Part:
            async def stamp(request: Stamp) -> Stamped:
                done.append(f"{request.at} of {here.fence.turn_id}")
                return Stamped(7)

            return Part({Stamp: stamp})

    done: list[str] = []
    turn = agent(text("ok"), extensions=[Own("", "Finalize")]).start("go")
    turn.run()
    assert done == [f"Finalize of {turn.id}"]


def test_one_with_the_name_of_a_feature_that_asks_for_nothing_performs_its_own(
    agent: MakeAgent, tmp_path: Path
) -> None:
    named: Any = type("Named", (Stamps,), {"name": "memory"})
    one = agent(text("ok"), extensions=[named(tmp_path / "stamps", ("Finalize",))])
    assert one.chat("go") == "ok"
    assert stamped(tmp_path / "stamps") == ["Finalize"]


# What is refused when the agent is made


@dataclass(frozen=True)
class NoReply(Request):
    at: str = ""


@dataclass(frozen=True)
class NoDoubt(Request):
    reply: ClassVar[type] = Stamped
    effect: ClassVar[Effect] = "unsafe"


@dataclass(frozen=True)
class NotStored(Request):
    reply: ClassVar[type] = Stamped

    at: Callable[[], None]


def asking(asked: Any, name: str = "asking") -> Extension:
    made: type[Extension] = type("Asking", (Extension,), {"name": name, "asks": lambda self: asked})
    return made()


@pytest.mark.parametrize(
    ("extensions", "says"),
    [
        ([asking({"CallLLM.text": [Stamp("")]})], "extension asking asks at no point; given: CallLLM.text; allowed: "),
        ([asking({"Finalize": [3]})], "extension asking asks with no request; given: 3; allowed: dataclasses that"),
        ([asking({"Finalize": [NoReply()]})], "extension asking asks with no request; given: NoReply("),
        ([asking({"Finalize": Stamp("")})], "asks of extension asking failed: TypeError: 'Stamp' object is not"),
        ([asking([Stamp("")])], "asks of extension asking failed: AttributeError: "),
        ([asking({"Finalize": [NoDoubt()]})], "extension asking: NoDoubt is unsafe, and its reply after a crash"),
        ([asking({"Finalize": [NotStored(print)]})], "extension asking: request NotStored cannot be stored; given: "),
        ([asking({"Finalize": [Stamp(3)]})], "extension asking: request Stamp.at cannot be stored; given: int 3; allowed: str"),
        ([asking({"Finalize": [Stamp("a"), Stamp("a")]})], "extension asking asks twice at Finalize; given: Stamp("),
        ([asking({"Finalize": [Stamp("a")]}, "memory")], None),
        ([asking({"Finalize": [Stamp("a")]}), asking({"Finalize": [Stamp("b")]}, "other")], None),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_one_line_when_the_agent_is_made(
    extensions: Any, says: str | None
) -> None:
    if says is None:
        Agent("offline:demo", extensions=extensions).close()
        return
    with pytest.raises(ConfigError) as raised:
        Agent("offline:demo", extensions=extensions)
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)


def test_two_classes_of_one_name_are_told_apart_by_nobody() -> None:
    other: Any = dataclass(frozen=True)(type("Stamp", (Request,), {"reply": Stamped, "__annotations__": {}}))
    with pytest.raises(ConfigError, match="asks with two classes of the same name; given: Stamp"):
        Agent("offline:demo", extensions=[asking({"Finalize": [Stamp("a"), other()]})])


def test_one_that_asks_and_performs_nothing_says_so(agent: MakeAgent) -> None:
    lines: list[str] = []
    one = agent(
        text("ok"), extensions=[asking({"Finalize": [Stamp("a")]})], callbacks={"status": lines.append}
    )
    assert one.chat("go") == "ok"
    assert "extension asking failed: NotImplementedError: it asks, and has no method perform" in lines[-1]


# Other processes


def test_a_process_without_the_extension_skips_it_and_records_that(home: Path, tmp_path: Path) -> None:
    file, lines = tmp_path / "stamps", list[str]()
    script = [tools(call("look")), text("done")]
    points: tuple[Point, ...] = ("Prepare.ready", "ExecuteTools.done", "Finalize")
    one = process(home, *script, tools=[look], extensions=[Stamps(file, points)])
    begun = one.start("go")
    asyncio.run(moves(begun, 2))
    one.close()
    declared_dead(one.store)
    assert stamped(file) == ["Prepare.ready"]
    other = process(home, *script, tools=[look], callbacks={"status": lines.append})
    assert other.resume(begun.id).run().final_response == "done"
    assert stamped(file) == ["Prepare.ready"]
    missing = "Stamp of extension stamps was not performed: this agent does not have it"
    assert [line for line in lines if "stamps" in line] == [f"{missing}; the turn continues without it"] * 2
    assert [one.reply.get("problem") for one in effects(other, begun.id)] == [None, missing, missing]
    other.close()


KILLED = """
import os, sys
from pathlib import Path
from tests.agent.test_extension_points import POINTS, Stamps, look
from tests.helpers.store_homes import process
from fsm_agent.testing import call, text, tools

class Dies(Stamps):
    async def perform(self, request, turn, key):
        reply = await super().perform(request, turn, key)
        if request.at == "ExecuteTools.done":
            os.kill(os.getpid(), 9)
        return reply

home, file = map(Path, sys.argv[1:])
process(home, tools(call("look")), text("done"), tools=[look], extensions=[Dies(file)]).chat("go")
"""


@pytest.mark.behaviour("EXT-03")
@pytest.mark.parametrize("rules", [pytest.param("same", marks=pytest.mark.slow), "others"])
def test_after_a_kill_recorded_replies_are_used_and_an_unsafe_request_is_in_doubt(
    home: Path, tmp_path: Path, rules: str
) -> None:
    """The visit that is run again asks for the request to ``ExecuteTools.done`` at another place of it, where
    hooks that see calls are new."""

    class Sees(Hooks):
        def before_tool(self, context: Any, shown: Any) -> None: ...

    file, lines = tmp_path / "stamps", list[str]()
    killed = ran("-c", KILLED, home, file)
    assert killed.returncode == -9, killed.stderr
    before = ["Prepare.ready", "BuildMessages.built", "ExecuteTools.run", "ExecuteTools.done"]
    assert stamped(file) == before
    stamps = Stamps(file)
    one = process(
        home, text("done"), tools=[look], extensions=[stamps], callbacks={"status": lines.append},
        hooks=[] if rules == "same" else [Sees()],
    )  # fmt: skip
    turn = one.resume("s-1")
    assert turn.run().final_response == "done"
    assert stamped(file) == [*before, "BuildMessages.built", "Finalize"]
    numbers = [(effect.request["point"], effect.reply["value"]["number"]) for effect in effects(one, turn.id)]
    assert {("ExecuteTools.run", 3), ("ExecuteTools.done", -1)} <= set(numbers)
    doubt = (
        "Stamp of extension stamps may have taken effect, which is unknown: the process ended while it ran."
    )
    assert [line for line in lines if line.startswith(doubt)]
    one.close()


def test_a_reply_that_is_recorded_elsewhere_in_the_visit_is_used(home: Path, tmp_path: Path) -> None:
    """Killed behind ``ExecuteTools.done``, resumed where a hook sees calls before they run."""

    class Sees(Hooks):
        def before_tool(self, context: Any, shown: Any) -> None: ...

    file = tmp_path / "stamps"
    script = [tools(call("look")), text("done")]
    one = process(home, *script, tools=[look], extensions=[Stamps(file)])
    begun = one.start("go")

    async def behind_the_point() -> None:
        while not (
            isinstance(done := await begun.step_into(), Exchange) and asked_at(done, "ExecuteTools.done")
        ):
            pass

    asyncio.run(behind_the_point())
    one.close()
    declared_dead(one.store)
    other = process(home, *script[1:], tools=[look], extensions=[Stamps(file)], hooks=[Sees()])
    assert other.resume(begun.id).run().final_response == "done"
    assert stamped(file).count("ExecuteTools.done") == 1
    other.close()


def asked_at(exchange: Exchange, point: Point) -> bool:
    return any(isinstance(one, AskExtension) and one.point == point for one in exchange.requests)


def test_a_turn_that_came_in_a_file_asks_only_for_what_its_agent_declares(tmp_path: Path) -> None:
    """The author of the file may have written other requests into it."""
    file, lines = tmp_path / "stamps", list[str]()
    points: tuple[Point, ...] = ("ExecuteTools.done", "Finalize")
    script = [tools(call("look")), text("done")]
    one = process(tmp_path / "one", *script, tools=[look], extensions=[Stamps(file, points)])
    begun = one.start("go")
    asyncio.run(moves(begun, 3))
    one.close()
    declared_dead(one.store)
    written = list(export_session(one.store.database, "s-1", raw=True))
    assert sum(line.count('"at":"Finalize"') for line in written) == 1
    other = process(
        tmp_path / "other", script[1], tools=[look], extensions=[Stamps(file, points)],
        callbacks={"status": lines.append, "approval": lambda *_: "once"},
    )  # fmt: skip
    import_lines(other.store, [line.replace('"at":"Finalize"', '"at":"elsewhere"') for line in written])
    assert other.resume(begun.id).run().final_response == "done"
    assert stamped(file) == ["ExecuteTools.done"]
    differs = "Stamp of extension stamps was not performed: it came in a file, and differs"
    assert [line for line in lines if line.startswith(differs)]
    other.close()


def test_a_fork_makes_its_requests_again_under_other_keys(agent: MakeAgent, tmp_path: Path) -> None:
    stamps = Stamps(tmp_path / "stamps", ("Prepare.ready", "ExecuteTools.done"))
    one = agent(tools(call("look")), text("blue"), text("still blue"), tools=[look], extensions=[stamps])
    turn = one.start("go")
    turn.run()
    assert one.fork(turn.id, at=3).run().final_response == "still blue"
    assert stamped(stamps.file) == ["Prepare.ready", "ExecuteTools.done", "ExecuteTools.done"]
    assert len({line.split()[2] for line in stamps.file.read_text().splitlines()}) == 3


def test_a_test_that_is_made_of_its_turn_needs_no_extension(agent: MakeAgent, tmp_path: Path) -> None:
    one = agent(tools(call("look")), text("blue"), tools=[look], extensions=[Stamps(tmp_path / "stamps")])
    turn = one.start("go")
    turn.run()
    stamped_then = stamped(tmp_path / "stamps")
    names: dict[str, Any] = {}
    exec(compile(make_test(one.store, turn.id), "test_made.py", "exec"), names)
    names["test_turn"]()
    assert len(names["OTHERS"]["AskExtension"]) == len(stamped_then)
    assert stamped(tmp_path / "stamps") == stamped_then, "its replies come from the record"


def test_nothing_unsafe_is_performed_while_nothing_can_be_written_down() -> None:
    asked = AskExtension("stamps", "Finalize", "Stamp", {}, "unsafe")
    refused = asked.unwritten("the disk is full")
    assert refused is not None
    assert refused.problem.startswith("Stamp of extension stamps was not run: what is done cannot be written")
    assert replace(asked, effect="idempotent").unwritten("the disk is full") is None
