"""Mistakes in a workflow: those of a first one are said in one line that names them; what the proofs assume
of states is enforced while they run, and a property that a run breaks is said."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from examples import order
from fsm_agent import BaseTurn, Nested, Workflow
from fsm_agent.errors import ConfigError, UndeclaredEvent
from fsm_agent.fsm.journal import UNKNOWN, reply_record, request_record
from fsm_agent.fsm.properties import Property, Watch, at_most, enters, eventually, exits, never
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on
from fsm_agent.request import Effect, Request
from fsm_agent.sessions.store.journal import Recorded, Recording
from fsm_agent.testing import text
from fsm_agent_states.table import TURN
from tests.helpers.store_homes import agent

PARTS = {
    "Pack": [on("packed", go("Send"), why="it is closed")],
    "Send": [on("sent", end("fine", "Over"), why="it is gone")],
}
STATES = ("Pack", "Send", "Over")
TABLE = Table("parcel", STATES, "Over", counters=(), lines=lines_of(PARTS))
ENDING = Table(
    "parcel", STATES, "Over", (), lines_of(PARTS), macros=(("crashed", {"Pack": "bug", "Send": "bug"}),)
)


@dataclass
class Weigh:
    grams: int = 1
    reply: ClassVar[Any] = int


@dataclass
class Parcel(BaseTurn):
    what: str = ""
    outcomes: ClassVar = {"fine": "completed"}


def pack(turn: Any) -> Generator[Any, Any, str]:
    yield Weigh()
    return "packed"


def send(turn: Any) -> Generator[Any, Any, str]:
    yield from ()
    return "sent"


def at_once(turn: Any) -> Any:
    return "packed"


async def waits(turn: Any) -> str:
    return "packed"


async def yields(turn: Any) -> AsyncGenerator[Any, Any]:
    yield Weigh()


class Waits:
    async def __call__(self, turn: Any) -> str:
        return "packed"


async def weigh(request: Weigh) -> int:
    return 7


def weigh_at_once(request: Weigh) -> int:
    return 7


async def weigh_in_words(request: Weigh) -> str:
    return "heavy"


def flow(home: Path, **given: Any) -> Workflow[Any]:
    parts = {"table": TABLE, "states": {"Pack": pack, "Send": send}, "turn": Parcel, "perform": weigh}
    return Workflow(**{**parts, "home": home, **given})


class Forgotten(BaseTurn):
    what: str = ""


class Inherited(Parcel):
    """Has no field of its own."""


@dataclass
class Misspelt(BaseTurn):
    outcomes: ClassVar = {"fne": "completed"}


@dataclass
class Unheard(BaseTurn):
    outcomes: ClassVar = {"fine": "complete"}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an async state": ({"states": {"Pack": waits, "Send": send}},
        "Pack of parcel cannot be async; given: waits; allowed: a generator function"),
    "an async generator": ({"states": {"Pack": yields, "Send": send}}, "Pack of parcel cannot be async"),
    "an object that is async": ({"states": {"Pack": Waits(), "Send": send}}, "Pack of parcel cannot be async"),
    "a part of an async function": (
        {"states": {"Pack": partial(waits), "Send": send}}, "Pack of parcel cannot be async"),
    "no function": ({"states": {"Pack": "pack", "Send": send}}, "Pack of parcel cannot be this; given: str"),
    "a misspelt state": (
        {"states": {"Pack": pack, "Sned": send}},
        "table parcel has no state of this name; given: Sned; allowed: Send, perhaps; all of them: Pack, Send,"),
    "a missing state": (
        {"states": {"Pack": pack}},
        "table parcel has a state without a function; given: Send; allowed: one for each of Pack, Send"),
    "a forgotten @dataclass": (
        {"turn": Forgotten},
        "Forgotten is not a dataclass itself, so its fields are not stored; given: what; allowed: @dataclass"
        " before class Forgotten"),
    "a misspelt exit": (
        {"turn": Misspelt},
        "Misspelt.outcomes has an exit that table parcel has not; given: fne; allowed: fine, perhaps"),
    "an unknown outcome": (
        {"turn": Unheard},
        "Unheard.outcomes has no such outcome for fine; given: complete; allowed: completed, failed, partial"),
    "nothing that performs": ({"perform": None}, "requests cannot be performed by this; allowed: async def"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named_when_the_workflow_is_made(mistake: str, tmp_path: Path) -> None:
    given, said = REFUSED[mistake]
    with pytest.raises(ConfigError) as refused:
        flow(tmp_path, **given)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_a_class_without_fields_of_its_own_needs_no_decorator(tmp_path: Path) -> None:
    assert flow(tmp_path, turn=Inherited).start(Inherited("a vase")).run().outcome == "completed"


NOT_ASYNC = (
    "ConfigError: what performs Weigh is not async; given: int 7; allowed: async def weigh_at_once(request)"
)
NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "a state without yield": (
        {"states": {"Pack": at_once, "Send": send}},
        "TypeError: Pack is not a generator function; given: str 'packed'; allowed: a function with a yield;"
        " `yield from ()` when it asks for nothing"),
    "a performer that is not async": ({"perform": weigh_at_once}, NOT_ASYNC),
    "one of its own that is not async": ({"perform": {Weigh: weigh_at_once}}, NOT_ASYNC),
    "a request that is not performed": (
        {"perform": {Parcel: weigh}},
        "ConfigError: no handler performs this request; given: Weigh; allowed: Parcel"),
    "a reply of another type": (
        {"perform": weigh_in_words},
        "ConfigError: the reply to Weigh cannot be stored; given: str 'heavy'; allowed: int"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", NAMED)
def test_a_mistake_that_shows_while_it_runs_is_the_bug_of_the_turn(mistake: str, tmp_path: Path) -> None:
    given, said = NAMED[mistake]
    result = flow(tmp_path, table=ENDING, **given).start(Parcel()).run()
    assert (result.exit, result.turn.bug) == ("bug", said)
    with pytest.raises(UndeclaredEvent) as raised:
        flow(tmp_path, **given).start(Parcel()).run()
    assert str(raised.value).startswith(f"parcel: Pack failed: {said} (the turn waits until that is fixed")


def test_a_function_that_gives_back_a_generator_or_a_coroutine_is_as_good(tmp_path: Path) -> None:
    made = flow(
        tmp_path,
        states={"Pack": lambda turn: pack(turn), "Send": partial(send)},
        perform=lambda request: asyncio.ensure_future(weigh(request)),
    )
    assert made.start(Parcel()).run().exit == "fine"


Mischief = Callable[[Any], object]
ROUND = Rung("another round", "Ask", left("rounds"), ("rounds",))
CALL = Rung("call", "Call", left("calls"), ("calls",))
ASK = [on("more", ROUND, end("enough", "Over"), why=""), on("call", CALL, end("nobody", "Over"), why="")]
ROUNDS = {
    "Ask": ASK,
    "Call": [on("silence", go("Ask"), why=""), on("again", CALL, end("tired", "Over"), why="")],
}


def table(*, crashed: bool = True) -> Table:
    counters = (Counter("rounds"), Counter("calls", exhaustible=True))
    macros = (("crashed", {"Ask": "bug", "Call": "bug"}),) if crashed else ()
    return Table("chat", ("Ask", "Call", "Over"), "Over", counters, lines_of(ROUNDS), macros)


@dataclass
class Chat(BaseTurn):
    words: str = "hello"
    said: list[str] = field(default_factory=list)
    usual_limits: ClassVar = {"rounds": 3, "calls": 2}


def ask(*events: Any, mischief: Mischief = lambda turn: None, after: int = 0) -> Any:
    """A state that reports these events in turn, the last one again and again, and does its mischief from the
    move ``after`` on."""

    def state(turn: Chat) -> Any:
        heard = yield "what now?"
        turn.said.append(heard)
        assert len(turn.said) < 20, "a turn of so few rounds ends before"
        if turn.seq >= after:
            mischief(turn)
        return events[min(len(turn.said), len(events)) - 1]

    return state


async def perform(request: str) -> str:
    return "continue"


def chat(home: Path, asking: Any, calling: Any = None, *, crashed: bool = True) -> Workflow[Chat]:
    states = {"Ask": asking, "Call": calling or ask("silence")}
    return Workflow(table(crashed=crashed), states, Chat, perform, home=home)


def forgets(turn: Chat) -> None:
    turn.reset("rounds")


def emptied(turn: Chat) -> None:
    turn.counts = {}


def ceded(turn: Chat) -> None:
    turn.limits = {**turn.limits, "rounds": 1}


FORBIDDEN: dict[str, tuple[Mischief, str]] = {
    "a counter of its own": (lambda turn: turn.reset("rounds"), "counter rounds from 1 to 0"),
    "one that it spends itself": (lambda turn: turn.spend("rounds"), "counter rounds from 1 to 2"),
    "all of them": (emptied, "counter rounds from 1 to nothing, counter calls from 0 to nothing"),
    "a larger limit": (lambda turn: turn.limits.update(rounds=99), "limit rounds from 3 to 99"),
    "a lower limit": (ceded, "limit rounds from 3 to 1"),
    "what may be exhausted, unspent": (lambda turn: turn.limits.update(calls=0), "limit calls from 2 to 0"),
    "its place": (lambda turn: setattr(turn, "state", "Call"), "state from 'Ask' to 'Call'"),
    "its number": (lambda turn: setattr(turn, "seq", 0), "seq from 1 to 0"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_only_rows_change_counters_limits_and_the_place(name: str, tmp_path: Path) -> None:
    mischief, said = FORBIDDEN[name]
    flow = chat(tmp_path, ask("more", mischief=mischief, after=1))
    result = flow.start(Chat(turn_id="c-1")).run()
    assert [step.row for step in result.steps] == ["Ask.more/1", "Ask.crashed"]
    assert (result.exit, result.outcome, result.stored) == ("bug", "failed", True)
    assert result.turn.bug == f"ForbiddenChange: chat: Ask changed {said}; only rows of the table do that"
    assert result.turn.counts == {"rounds": 1, "calls": 0}
    assert result.turn.limits == {"rounds": 3, "calls": 2}
    assert flow.journal.snapshot("c-1")["counts"] == {"rounds": 1, "calls": 0}
    assert [step.seq for step in flow.journal.steps("c-1")] == [1, 2]


def test_a_state_that_raises_does_not_keep_what_it_changed_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def both(turn: Chat) -> None:
        turn.reset("rounds")
        raise ValueError("dropped the cup")

    result = chat(tmp_path, ask("more", mischief=both, after=2)).start(Chat()).run()
    assert (result.turn.bug, result.turn.counts["rounds"]) == ("ValueError: dropped the cup", 2)
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("chat: Ask failed:\nTraceback")
    assert "in both" in line


def test_the_last_state_changes_nothing_either(tmp_path: Path) -> None:
    def over(turn: Chat) -> Any:
        yield from ()
        turn.reset("rounds")

    states = {"Ask": ask("more"), "Call": ask("silence"), "Over": over}
    result = Workflow(table(), states, Chat, perform, home=tmp_path).start(Chat()).run()
    assert (result.exit, result.turn.counts["rounds"]) == ("enough", 3)
    assert "Over changed counter rounds from 3 to 0" in result.turn.bug


def exhausted(turn: Chat) -> None:
    turn.limits["calls"] = turn.counts["calls"]


@pytest.mark.parametrize(
    ("lower", "exit_reason", "calls"),
    [
        (lambda turn: None, "nobody", 2),
        (exhausted, "nobody", 1),
        (lambda turn: turn.limits.update(calls=0), "bug", 1),
        (lambda turn: turn.limits.update(calls=3), "bug", 1),
    ],
)
def test_the_state_that_was_led_to_may_say_that_there_is_no_more(
    lower: Mischief, exit_reason: str, calls: int, tmp_path: Path
) -> None:
    result = chat(tmp_path, ask("call"), ask("silence", mischief=lower)).start(Chat()).run()
    assert (result.exit, result.turn.counts["calls"]) == (exit_reason, calls)


# Events


@pytest.mark.parametrize("event", ["shrug", None, "", 7, ["more"]])
def test_an_event_without_a_line_is_a_bug_that_is_named(event: Any, tmp_path: Path) -> None:
    flow = chat(tmp_path, ask("more", event))
    result = flow.start(Chat(turn_id="c-1")).run()
    assert (result.exit, [step.event for step in result.steps]) == ("bug", ["more", "crashed"])
    said = f"UndeclaredEvent: chat: Ask reported {event!r}, for which it has no line; declared events: "
    assert result.turn.bug == said + "more, call, crashed"
    assert flow.journal.snapshot("c-1")["bug"] == result.turn.bug
    assert [step.row for step in flow.journal.steps("c-1")] == ["Ask.more/1", "Ask.crashed"]


@pytest.mark.parametrize(
    ("broken", "bug"),
    [
        (ask("more", "shrug"), "Ask reported 'shrug', for which it has no line"),
        (ask("more", mischief=forgets, after=1), "Ask changed counter rounds from 1"),
        (ask("more", mischief=lambda turn: 1 // (1 - turn.seq)), "ZeroDivisionError"),
    ],
)
def test_without_a_row_for_bugs_the_bug_is_raised_and_the_turn_waits(
    broken: Any, bug: str, tmp_path: Path
) -> None:
    flow = chat(tmp_path, broken, crashed=False)
    with pytest.raises(UndeclaredEvent, match=r"^chat: Ask failed: .*a line for 'crashed'") as raised:
        flow.start(Chat(turn_id="c-1")).run()
    assert bug in str(raised.value)
    assert type(raised.value.__cause__).__name__ in str(raised.value)
    assert flow.journal.snapshot("c-1")["counts"] == {"rounds": 1, "calls": 0}
    mended = chat(tmp_path, ask("more"), crashed=False).resume("c-1").run()
    assert (mended.exit, mended.turn.counts["rounds"], mended.turn.bug) == ("enough", 3, "")


@pytest.mark.parametrize("name", ["count", "limit", "spend", "reset", "counters", "put_back"])
def test_a_class_of_turns_cannot_count_in_its_own_way(name: str, tmp_path: Path) -> None:
    generous: Any = dataclass(type("Generous", (Chat,), {name: lambda turn, *given: 0}))
    words = rf"Generous changes what the proofs .* rely on; given: {name}; allowed"
    with pytest.raises(ConfigError, match=words):
        Workflow(table(), {"Ask": ask("more"), "Call": ask("silence")}, generous, perform, home=tmp_path)


LIMITS: dict[str, tuple[Any, str]] = {
    "no mapping": (3, "usual_limits has the wrong type; given: 3; allowed: {name: whole number}"),
    "None": (None, "usual_limits has the wrong type; allowed: {name: whole number}"),
    "a text": ({"rounds": "3"}, "usual_limits['rounds'] has the wrong type; given: 3; allowed: a whole number"),
    "a truth value": ({"rounds": True}, "usual_limits['rounds'] has the wrong type; given: True; allowed: a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_limits_that_are_none_are_refused_when_they_are_given(name: str, tmp_path: Path) -> None:
    limits, words = LIMITS[name]
    given: Any = dataclass(type("Given", (Chat,), {"usual_limits": limits}))
    states = {"Ask": ask("more"), "Call": ask("silence")}
    with pytest.raises(ConfigError, match=f"^{re.escape(f'Given.{words}')}$"):
        Workflow(table(), states, given, perform, home=tmp_path)
    with pytest.raises(ConfigError, match=re.escape(words.removeprefix("usual_"))):
        chat(tmp_path, ask("more")).start(Chat(limits=limits))
    with pytest.raises(ConfigError, match=re.escape(words.replace("usual_limits", "counts"))):
        chat(tmp_path, ask("more")).start(Chat(counts=limits))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda flow: Nested(flow, begin=None), "begin of Nested has the wrong type; allowed: a func"),
        (lambda flow: Nested(flow, begin=list, join=3), "join of Nested has the wrong type; given: 3"),
        (lambda flow: Nested("chat", begin=list), "Nested runs workflows; given: chat; allowed: a Workflow"),
        (lambda flow: Workflow(table(), flow.kind.states, Chat, perform, begin=0), "begin of Workflow"),
    ],
)
def test_what_cannot_be_called_is_refused_when_it_is_given(made: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        made(chat(tmp_path, ask("more")))


@dataclass(frozen=True)
class Ask(Request):
    what: str
    reply: ClassVar[Any] = str


@dataclass(frozen=True)
class AskAnew(Ask):
    reused: ClassVar[bool] = False


@dataclass(frozen=True)
class Pay(AskAnew):
    effect: ClassVar[Effect] = "unsafe"

    def in_doubt(self) -> str:
        return "perhaps"


@pytest.mark.parametrize(
    ("request_", "found"), [(Ask("time"), "noon"), (AskAnew("time"), UNKNOWN), (Pay("time"), "noon")]
)
def test_a_recorded_reply_is_used_again_unless_declared_otherwise(request_: Ask, found: object) -> None:
    kept = Recorded(type(request_).__name__, request_record(request_), "done", reply_record(request_, "noon"))
    assert Recording({(0, 0): kept}).reply(0, 0, request_) == found


RING = Rung("ring", "Ring", left("rings"), ("rings",))
CLOSED, OPEN = (
    on("closed", RING, end("returned", "Done"), why=""),
    on("open", end("delivered", "Done"), why=""),
)
TWICE = at_most("No bell rings more than twice.", 2, enters("Ring"))
OPENED = eventually("The door opens.", exits("delivered"))
RINGS, BUGS = lines_of({"Ring": [CLOSED, OPEN]}), (("crashed", {"Ring": "bug"}),)
COUNTERS, WATCHED_STATES = (Counter("rings"),), ("Ring", "Done")
BELLS = Table("bells", WATCHED_STATES, "Done", COUNTERS, RINGS, BUGS, properties=(TWICE, OPENED))


@dataclass
class Visit(BaseTurn):
    said: list[str]
    done: list[str] = field(default_factory=list)
    usual_limits: ClassVar = {"rings": 5}
    outcomes: ClassVar = {"delivered": "completed"}


def ring(turn: Visit) -> Generator[Any, Any, str]:
    turn.done.append(turn.said[len(turn.done)])
    return turn.done[-1]
    yield


async def performed(request: Any) -> None:
    raise AssertionError


def bells(home: Path, watch: Watch = "warn", table: Table = BELLS) -> Workflow[Visit]:
    return Workflow(table, {"Ring": ring}, Visit, performed, home=home, watch=watch)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "fsm_agent.fsm.properties"]


RANG, STOPPED = ["Ring.closed/1"] * 4 + ["Ring.open"], ["Ring.closed/1"] * 2 + ["Ring.crashed"]
OFTEN = "bells: Ring.closed/1 breaks a property: No bell rings more than twice."
UNOPENED = "bells: Ring.crashed breaks a property: The door opens."


@pytest.mark.parametrize(
    ("watch", "limits", "rows", "bug", "lines"),
    [
        ("warn", 5, RANG, "", [OFTEN]),
        ("stop", 5, STOPPED, "PropertyBroken: No bell rings more than twice.", [OFTEN, UNOPENED]),
        ("stop", 0, ["Ring.crashed"], "PropertyBroken: The door opens.", None),
        ("off", 5, RANG, "", []),
    ],
    ids=["a line in the log", "stopped before the move", "what is owed at the end", "switched off"],
)  # fmt: skip
def test_what_becomes_of_a_move_that_breaks_a_property(
    watch: Watch, limits: int, rows: list[str], bug: str, lines: list[str] | None, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    said = ["closed"] * 4 + ["open"]
    result = bells(tmp_path, watch).start(Visit(said, limits={"rings": limits})).run()
    assert ([step.row for step in result.steps], result.turn.bug) == (rows, bug)
    assert (result.exit, result.outcome) == (("bug", "failed") if bug else ("delivered", "completed"))
    assert result.turn.count("rings") == rows.count("Ring.closed/1")
    assert lines is None or warned(caplog) == lines


def test_a_resumed_turn_remembers_the_moves_before(tmp_path: Path) -> None:
    flow = bells(tmp_path, "stop")
    turn = flow.start(Visit(["closed"] * 4 + ["open"], turn_id="t-1"))

    async def two_moves() -> None:
        await turn.step()
        await turn.step()
        flow.store.let_go("t-1")

    asyncio.run(two_moves())
    result = bells(tmp_path, "stop").resume("t-1").run()
    assert [step.row for step in result.steps] == ["Ring.closed/1", "Ring.closed/1", "Ring.crashed"]


def test_other_ways_of_watching_are_refused(tmp_path: Path) -> None:
    wrong: Any = "loudly"
    with pytest.raises(ConfigError, match="cannot be watched so; given: loudly; allowed: off, warn, stop"):
        bells(tmp_path, wrong)
    with pytest.raises(ConfigError, match="cannot be stopped in Ring, which has no line for crashed"):
        bells(tmp_path, "stop", replace(BELLS, macros=()))


def test_the_order_says_that_a_bug_leaves_a_charge(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The known counterexample of the example happens, and is said."""
    usual = partial(order.serve, tmp_path)

    async def performed(request: order.Do) -> Any:
        if request.act == "ship":
            raise RuntimeError("no van")
        return await usual(request)

    result = order.workflow(tmp_path, performed).start(order.Order(["LAMP"])).run()
    assert [step.row for step in result.steps] == ["Reserve.done", "Charge.done", "Ship.crashed"]
    known = next(claimed for claimed in order.TABLE.properties if claimed.known)
    assert warned(caplog) == [f"order: Ship.crashed breaks a property: {known.says}"]


def with_property(claimed: Property) -> tuple[Property, ...]:
    return (*TURN.properties, claimed)


@pytest.mark.parametrize(("watch", "reason"), [("off", "text_response"), ("stop", "local_processing_error")])
def test_an_agent_watches_its_turns_when_asked_to(
    watch: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = never("No turn is answered.", exits("text_response"))
    monkeypatch.setitem(TURN.__dict__, "properties", with_property(silent))
    result = agent([text("hello")], tmp_path, settings={"properties": watch}).start("hi").run()
    assert result.turn_exit_reason == reason


def test_properties_of_the_turn_hold_while_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watched = agent([text("hello")], tmp_path, settings={"properties": "stop"})
    assert watched.start("hi").run().turn_exit_reason == "text_response"
    assert warned(caplog) == []
