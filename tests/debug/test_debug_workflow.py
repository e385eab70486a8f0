"""A table of the user's own under the debugger: stepped, looked back at, changed, forked, compared; here and
elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from examples import review_loop
from examples.review_loop import TABLE as REVIEW
from fsm_agent import BaseTurn, Workflow
from fsm_agent.debug import Debugger, DebugSession
from fsm_agent.debug.core.debugger import LocalEngine
from fsm_agent.debug.core.pending_request import manual_workflow
from fsm_agent.errors import ConfigError, UndeclaredEvent
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on
from tests.helpers.dap_editor import editing, workshop_of
from tests.helpers.debugging import ended, give, next_held
from tests.helpers.waiting import until

ROOT = Path(__file__).parents[2]

# A van that breaks down

AGAIN = Rung("drive again", "Drive", left("tries"), ("tries",))
LINES = {
    "Pack": [on("packed", go("Drive"), why="the parcel is closed")],
    "Drive": [
        on("arrived", end("delivered", "Done"), why="at the door"),
        on("broken", AGAIN, end("lost", "Done"), why="the van broke down"),
        on("stopped", end("stopped", "Done"), why="it was canceled"),
    ],
}
PARCEL = Table("parcel", ("Pack", "Drive", "Done"), "Done", (Counter("tries"),), lines_of(LINES))


@dataclass(frozen=True)
class Weather:
    sky: str
    degrees: int = 0


@dataclass(frozen=True)
class LookOut:
    """How is the weather? What the answer is made of is said here."""

    place: str
    reply: ClassVar[type] = Weather


@dataclass(frozen=True)
class Honk:
    """A request without a known type of answer."""

    times: int


@dataclass
class Parcel(BaseTurn):
    what: str
    sky: str = ""
    told: list[str] = field(default_factory=list)
    secret: Any = field(default=None, metadata={"stored": False})
    usual_limits: ClassVar = {"tries": 2}

    def interrupt(self, message: str | None) -> None:
        self.told.append(f"stop: {message}")


def pack(turn: Parcel) -> Generator[Any, Any, str]:
    yield Honk(1)
    return "packed"


def drive(turn: Parcel) -> Generator[Any, Any, str]:
    weather = yield LookOut("hill")
    turn.sky = weather.sky
    if turn.told:
        return "stopped"
    return "arrived" if weather.sky == "blue" else "broken"


STATES: dict[str, Any] = {"Pack": pack, "Drive": drive}
NUMBERS = itertools.count(1)


class Post:
    """Performs the requests of parcels; the sky starts gray. ``asked`` holds the requests that were really
    performed."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.skies = ["grey", "blue"]

    async def perform(self, request: Any) -> Any:
        self.asked.append(request)
        if not isinstance(request, LookOut):
            return None
        return Weather(self.skies.pop(0) if len(self.skies) > 1 else self.skies[0])

    def flow(self, home: Path) -> Workflow[Parcel]:
        return Workflow(PARCEL, STATES, Parcel, self.perform, begin=parcel, home=home)


def parcel(what: str) -> Parcel:
    return Parcel(what or "a book", turn_id=f"parcel-{next(NUMBERS)}")


class Desk:
    def __init__(self, home: Path) -> None:
        self.post = Post()
        self.flow = self.post.flow(home)
        self.store = self.flow.store
        self.workshop = DebugSession.of_workflow(self.flow)

    def start(self, text: str = "a vase") -> Debugger:
        return self.workshop.start(text)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "parcels")
    yield made
    made.workshop.close()


def test_it_is_stepped_stopped_and_looked_at(desk: Desk) -> None:
    debugger = desk.start()
    assert (debugger.status.phase, debugger.status.state, desk.post.asked) == ("paused", "Pack", [])
    assert give(debugger, "into").text == "Honk done"
    assert desk.post.asked == [Honk(1)]
    assert give(debugger, "step").state == "Drive"
    debugger.breakpoint("arrow", "Drive->Drive", condition="tries >= 1")
    met = give(debugger, "continue")
    assert (met.reason, met.seq, met.state) == ("breakpoint", 2, "Drive")
    (move,) = debugger.record.moves(2, 2)
    assert (move["row"], move["guards"]) == ("Drive.broken/1", [["tries left", True]])
    assert move["changes"] == [["tries", 0, 1]]
    (visit,) = debugger.record.visit(1)
    assert visit["request"] == {"is": "LookOut", "place": "hill"}
    assert visit["reply"] == {"is": "Weather", "sky": "grey", "degrees": 0}
    assert debugger.record.counters(2, ["tries"]) == {"tries": 1}
    facts = debugger.record.snapshot(2)
    assert (facts["what"], facts["sky"], facts["limits"]) == ("a vase", "grey", {"tries": 2})
    assert facts["tries"] == 1
    assert "secret" not in facts
    assert [one["field"] for one in debugger.record.changes_at(2)] == ["tries", "sky"]

    assert debugger.cursor.back() == 1
    assert len(desk.post.asked) == 2, "looking back asks nothing"
    assert give(debugger, "continue").phase == "ended"
    assert debugger.record.info.exit == "delivered"


def test_a_fork_continues_from_a_position_with_changes(desk: Desk) -> None:
    first = desk.start()
    give(first, "continue")
    desk.post.skies = ["grey"]
    fork = desk.workshop.fork(first.id, 1, {"counters": {"tries": 2}, "fields": {"what": "a lamp"}})
    assert (fork.status.seq, fork.status.state, fork.record.snapshot(1)["what"]) == (1, "Drive", "a lamp")
    give(fork, "continue")
    assert fork.record.info.exit == "lost", "both tries were spent already"
    assert first.record.snapshot(1)["what"] == "a vase"
    found = desk.workshop.compare(first.id, fork.id)
    assert (found.shared, found.parted) == (1, 2)
    assert [one.id for one in desk.workshop.recent()] == [fork.id, first.id]
    for edit, says in (
        ({"counters": {"wheels": 1}}, "no such counter"),
        ({"counters": {"tries": -1}}, "cannot be set so"),
        ({"fields": {"state": "Done"}}, "no such field"),
        ({"fields": {"limits": 3}}, "cannot be made again"),
        ({"reply": "x"}, "cannot be edited so"),
    ):
        with pytest.raises(ConfigError, match=says):
            desk.workshop.fork(first.id, 1, edit)
    with pytest.raises(ConfigError, match="no move of that number"):
        desk.workshop.fork(first.id, 9)


def test_requests_are_held_back_and_answered_by_hand(desk: Desk) -> None:
    debugger = desk.start()
    debugger.order("hold", {"kinds": ["request"]})
    (held,) = give(debugger, "continue").held
    assert (held["name"], held["request"], held["answerable"]) == ("Honk", {"is": "Honk", "times": 1}, False)
    with pytest.raises(ConfigError, match="in class Honk: reply: ClassVar"):
        debugger.order("answer", {"id": held["id"], "said": "honked"})
    debugger.order("let", {"id": held["id"]})
    held = next_held(debugger, held["id"])
    assert (held["name"], held["answerable"]) == ("LookOut", True)
    with pytest.raises(ConfigError, match="sky, degrees"):
        debugger.order("answer", {"id": held["id"], "said": {"wind": 3}})
    debugger.order("answer", {"id": held["id"], "said": {"sky": "blue", "degrees": 20}})
    ended(debugger)
    assert desk.post.asked == [Honk(1)]
    assert debugger.record.visit(1)[0]["reply"] == {"is": "Weather", "sky": "blue", "degrees": 20}
    with pytest.raises(ConfigError, match="this cannot be held back"):
        desk.start().order("hold", {"kinds": ["model"]})


def test_people_say_things_to_a_turn_that_can_hear(desk: Desk) -> None:
    debugger = desk.start()
    give(debugger, "interrupt", message="enough")
    assert debugger.record.info.exit == "stopped"
    assert debugger.record.snapshot(2)["told"] == ["stop: enough"]
    with pytest.raises(ConfigError, match=r"a method steer\(text\)"):
        desk.start().order("steer", {"text": "left"})


def test_a_turn_that_was_left_is_resumed_where_it_was(desk: Desk) -> None:
    debugger = desk.start()
    give(debugger, "step")
    debugger.close()
    until(lambda: desk.workshop.open(debugger.id).status.phase == "idle", "its rest")
    resumed = desk.workshop.resume(debugger.id)
    assert (resumed.status.phase, resumed.status.seq) == ("paused", 1)
    assert give(resumed, "continue").phase == "ended"
    assert resumed.record.count == 3
    with pytest.raises(ConfigError, match="the turn ended with"):
        desk.workshop.resume(debugger.id)


def test_a_run_is_exported_and_imported(desk: Desk, tmp_path: Path) -> None:
    first = desk.start()
    give(first, "continue")
    give(fork := desk.workshop.fork(first.id, 1), "continue")
    other = Desk(tmp_path / "elsewhere")
    imported = other.workshop.open(other.workshop.import_(desk.workshop.export(fork.id)))
    assert [step.row for step in imported.record.steps()] == [step.row for step in fork.record.steps()]
    assert other.workshop.fork(imported.id, 1).status.state == "Drive"
    other.workshop.close()
    with pytest.raises(ConfigError, match="row_scripts"):
        desk.workshop.test(first.id)


def test_a_program_runs_its_own_turn_and_a_debugger_finds_it(desk: Desk) -> None:
    """Stored, watched and stoppable, without a workshop."""
    turn = desk.flow.start(parcel("a chair"))

    async def run() -> list[str]:
        return [step.row async for step in turn]

    rows = asyncio.run(run())
    assert turn.result is not None
    assert (turn.result.exit, turn.result.turn.sky, rows[-1]) == ("delivered", "blue", "Drive.arrived")
    found = desk.workshop.open(turn.id)
    assert (found.status.phase, found.record.info.asked) == ("ended", "a chair")

    second = Parcel("a stool", turn_id="parcel-x")
    debugger = Debugger.of(desk.store, desk.flow.start(second))
    assert isinstance(debugger.engine, LocalEngine)
    assert give(debugger, "over").state == "Drive"
    assert second.state == "Drive", "it is the caller's own turn that moves"
    debugger.close()
    with pytest.raises(ConfigError, match="stored already"):
        desk.flow.start(Parcel("a stool", turn_id="parcel-x"), session="another").run()


def test_a_new_turn_in_the_session_abandons_the_old_one(desk: Desk) -> None:
    async def some() -> None:
        turn = desk.flow.start(Parcel("a stool", turn_id="parcel-1st"), session="stools")
        await turn.step()

    asyncio.run(some())
    second = desk.flow.start(Parcel("a stool", turn_id="parcel-2nd"), session="stools").run()
    assert second.exit == "delivered"
    assert desk.flow.journal.info("parcel-1st").exit == "abandoned"


@dataclass
class Taken(BaseTurn):
    history: list[str] = field(default_factory=list)


@dataclass
class Unstorable(BaseTurn):
    van: object = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"turn": Taken}, "a name that is taken; given: history"),
        ({"turn": Unstorable},
         r"Unstorable cannot be stored; given: Unstorable\.lock \((?:allocate_)?lock\); allowed: None, bool"),
        ({"turn": dict}, "this is not a class of turns"),
        ({"states": {"Pack": pack}}, "state without a function; given: Drive; allowed: one for each of Pack"),
    ],
)  # fmt: skip
def test_incompatible_parts_are_reported_at_construction(
    given: dict[str, Any], says: str, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"table": PARCEL, "states": STATES, "turn": Parcel, "home": tmp_path}
    with pytest.raises(ConfigError, match=says):
        Workflow(**{**parts, "perform": Post().perform, **given})


def test_invalid_arguments_of_a_turn_fail_with_one_line(desk: Desk, tmp_path: Path) -> None:
    def broken(text: str) -> Parcel:
        raise KeyError("no parcels today")

    flow = Workflow(PARCEL, STATES, Parcel, Post().perform, begin=broken, home=tmp_path)
    with pytest.raises(ConfigError, match=r"no turn could be made of this \(KeyError: 'no parcels today'\)"):
        DebugSession.of_workflow(flow).start("x")
    with pytest.raises(ConfigError, match="of another class"):
        desk.flow.start(Taken())  # that is the point
    with pytest.raises(ConfigError, match="has moved already"):
        desk.flow.start(Parcel("a cup", seq=3))
    cup = Parcel("a cup")
    with pytest.raises(UndeclaredEvent, match="crashed"):
        Workflow(PARCEL, STATES, Parcel, {LookOut: Post().perform}, home=tmp_path).start(cup).run()
    assert "no handler performs this request; given: Honk; allowed: LookOut" in cup.bug


def test_a_table_alone_is_played_by_hand(tmp_path: Path) -> None:
    workshop = DebugSession.of_workflow(manual_workflow(REVIEW, {"rounds": 1}, tmp_path))
    debugger = workshop.start("")
    held = give(debugger, "continue").held[0]
    assert (held["kind"], held["events"]) == ("event", ["written", "failed", "cancelled", "crashed"])
    with pytest.raises(ConfigError, match=r"reports no such event.*written, failed"):
        debugger.order("answer", {"id": held["id"], "said": "finished"})
    for event in ("written", "objections", "written", "objections"):
        debugger.order("answer", {"id": held["id"], "said": event})
        if event != "objections" or debugger.record.count < 3:
            held = next_held(debugger, held["id"])
    ended(debugger)
    assert debugger.record.info.exit == "rounds_spent"
    assert debugger.record.snapshot(4)["path"] == ["written", "objections", "written", "objections"]
    again = workshop.fork(debugger.id, 3)
    held = give(again, "continue").held[0]
    assert held["name"] == "Criticise"
    workshop.close()


# The command and an editor


def test_an_editor_stops_at_lines_of_ones_own_table(tmp_path: Path) -> None:
    table = ROOT / "examples" / "review_loop.py"
    line = next(
        n for n, text in enumerate(table.read_text("utf-8").splitlines(), 1) if 'on("objections"' in text
    )
    workshop = DebugSession.of_workflow(review_loop.workflow(home=tmp_path))
    with editing(workshop_of(tmp_path / "ours", []), opener=lambda options: workshop) as editor:
        editor.initialize()
        editor.event("initialized")
        started = editor.send("launch", {"table": "examples.review_loop:workflow", "task": "Say it short."})
        made = editor.ask("setBreakpoints", source={"path": str(table)}, breakpoints=[{"line": line}])
        (early,) = made["breakpoints"]
        assert not early["verified"], "the table is not known yet"
        editor.ask("setExceptionBreakpoints", filters=[])
        editor.ask("configurationDone")
        changed = editor.event("breakpoint", reason="changed")["breakpoint"]
        assert (changed["id"], changed["verified"], changed["line"]) == (early["id"], True, line)
        editor.answer(started)
        assert editor.stopped()["hitBreakpointIds"] == [early["id"]]
        top, *_ = editor.stack()
        assert top["name"] == "2: Criticise –objections→ Revise · revise"
        assert (top["source"]["path"], top["line"]) == (str(table), line)
        assert editor.evaluate("rounds >= 1", top["id"]) == "true"
        assert editor.evaluate("objections", top["id"]) == '"Which?"'
        scopes = [one["name"] for one in editor.ask("scopes", frameId=top["id"])["scopes"]]
        assert scopes == ["Counters", "Facts", "Request", "Guards"]
        counters = editor.scope("Counters", top["id"])["variablesReference"]
        assert editor.values(counters)["rounds"]["type"] == "number, limit 3"
        editor.ask("setVariable", variablesReference=counters, name="rounds", value="3")
        assert editor.stopped(reason="restart")["threadId"] == 2
        editor.moved("next", 2, threadId=2)
        assert editor.stack(2)[0]["name"].startswith("3: Revise –written→ Criticise")
        editor.ask("disconnect", terminateDebuggee=True)
