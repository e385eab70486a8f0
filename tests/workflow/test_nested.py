"""Tables in tables: a state that runs another one, or several at once; what is refused, what survives, and that
no run passes the bound."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import signal
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import nested, order, parallel, review_loop
from fsm_agent import BaseTurn, Nested, Workflow
from fsm_agent.diagram import FORMATS, render, written
from fsm_agent.diagram.around import near_markdown, neighbourhood
from fsm_agent.diagram.table_json import table_from
from fsm_agent.diagram.versions.compare import compare
from fsm_agent.errors import ConfigError, TableError, TurnSuspended, UndeclaredEvent
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Counter, Inner, Line, Rung, Table, end, go, left, lines_of, on, runs
from fsm_agent.fsm.verify import verify_table
from fsm_agent.fsm.verify.reach import all_limit_names
from fsm_agent.request import NotYet
from fsm_agent.testing import ScriptedModel, repeat, text
from tests.helpers.processes import ran
from tests.helpers.sample import sampled
from tests.helpers.tables import Counting
from tests.helpers.waiting import until_so
from tests.workflow.test_when_it_goes_wrong import Stuck, acts, cancelled, shop

Cli = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]


# The examples


def test_a_shop_takes_another_item_when_one_is_sold_out(tmp_path: Path) -> None:
    visits = nested.workflow(tmp_path)
    (tmp_path / "says.json").write_text(json.dumps({"reserve": "refused"}))
    result = visits.start(nested.Visit(["DESK", "LAMP"], turn_id="v")).run()
    assert result.exit == "nothing"
    assert [step.row for step in result.steps] == ["Order.sold_out/1", "Order.sold_out/2"]
    inner = [visits.journal.info(turn) for turn in ("0.0@v", "1.0@v")]
    assert [(one.table_name, one.parent, one.exit, one.asked) for one in inner] == [
        ("order", "v", "sold_out", "DESK"),
        ("order", "v", "sold_out", "LAMP"),
    ]
    (tmp_path / "says.json").unlink()
    sold = visits.start(visits.begin("LAMP")).run().turn
    assert sold.said == ["reserve: done", "charge: done", "ship: done"]


async def test_the_chapters_of_a_book_are_written_at_once(tmp_path: Path) -> None:
    """Every writer waits until all have begun."""
    begun, all_begun = 0, asyncio.Event()

    async def wait(seconds: float) -> None:
        nonlocal begun
        begun += 1
        if begun == 3:
            all_begun.set()
        await all_begun.wait()

    result = await parallel.workflow(tmp_path, sleep=wait).start(parallel.Book(["a", "b", "c"])).arun()
    assert (result.exit, sorted(result.turn.pages)) == ("printed", ["a", "b", "c"])


def test_only_the_chapters_that_failed_are_written_again(tmp_path: Path) -> None:
    def judge(body: Any) -> Any:
        return text("What?" if "Task: odd" in str(body["messages"]) else "ACCEPT")

    book = parallel.workflow(tmp_path, reviewer=ScriptedModel(repeat(judge)))
    result = book.start(parallel.Book(["plain", "odd"], turn_id="b")).run()
    assert [step.row for step in result.steps] == ["Write.no_verdict/1", "Write.no_verdict/2"]
    assert (result.exit, list(result.turn.pages)) == ("unfinished", ["plain"])
    begun = [[one.request["begins"]["task"] for one in book.journal.effects("b", seq)] for seq in (0, 1)]
    assert begun == [["plain", "odd"], ["odd"]]
    assert book.start(parallel.Book([])).run().exit == "printed", "over an empty list the last line is taken"


# What a state runs, in small


def little(name: str, *exits: str, macros: Any = (), limit: str = "") -> Table:
    """One state, one event for each exit; ``limit`` bounds repetitions of it."""
    lines = [on(exit, end(exit, "End"), why="") for exit in exits]
    if limit:
        lines += [on("again", Rung("again", "Go", left(limit), (limit,)), end(exits[0], "End"), why="")]
    counters = (Counter(limit),) if limit else ()
    return Table(name, ("Go", "End"), "End", counters, lines_of({"Go": lines}), macros)


@dataclass
class Small(BaseTurn):
    says: list[str]
    given: list[list[str]] = field(default_factory=list)
    usual_limits: ClassVar = {"most": 2}


def say(turn: Small) -> Generator[Any, Any, str]:
    yield from ()
    return turn.says.pop(0)


LITTLE = little("little", "good", "bad", "odd")
OUTER = Table(
    "outer", ("Run", "End"), "End", (),
    lines_of({"Run": [on(exit, end(exit, "End"), why="") for exit in ("bad", "good")]}),
    (("odd", {"Run": "odd"}), ("crashed", {"Run": "bug"})),
    inner={"Run": runs(LITTLE, most="most")},
)  # fmt: skip


def outer(home: Path, begin: Callable[[Small], list[Any]] | None = None) -> Workflow[Small]:
    inner = Workflow(LITTLE, {"Go": say}, Small, {}, home=home)
    each = begin or (lambda turn: [Small(one) for one in turn.given])
    return Workflow(OUTER, {"Run": Nested(inner, begin=each)}, Small, {}, home=home)


@pytest.mark.parametrize(
    ("ends", "event"),
    [
        ([], "good"),
        (["good"], "good"),
        (["good", "good"], "good"),
        (["good", "bad"], "bad"),
        (["bad", "odd"], "odd"),  # a line that all states have comes first
    ],
)
def test_the_first_line_that_a_turn_ended_with_is_taken(ends: list[str], event: str, tmp_path: Path) -> None:
    assert outer(tmp_path).start(Small([], [[one] for one in ends])).run().exit == event


def test_other_turns_than_the_table_says_are_a_bug(tmp_path: Path) -> None:
    for begun, says in (
        ([order.Order([])], "Run began other turns; given: Order; allowed: Small"),
        ([Small([])] * 3, "Run began too many turns; given: 3; allowed: 2 (most)"),
    ):
        result = outer(tmp_path, lambda turn, begun=begun: begun).start(Small([])).run()
        assert (result.exit, result.turn.bug) == ("bug", f"ConfigError: {says}")


def test_a_bug_in_an_inner_turn_is_reported_by_the_outer_one(tmp_path: Path) -> None:
    """``little`` has no row for it, so the inner turn waits where it was; the outer one has one."""
    shop = outer(tmp_path)
    result = shop.start(Small([], [["nonsense"]], turn_id="t")).run()
    assert result.exit == "bug"
    assert "little: Go reported 'nonsense'" in result.turn.bug
    assert shop.journal.info("0.0@t").ended is None


def test_without_a_row_for_bugs_it_is_raised_and_the_inner_turn_continues_later(tmp_path: Path) -> None:
    strict = replace(OUTER, macros=OUTER.macros[:1])
    asked: list[str] = []

    def moody(turn: Small) -> Generator[Any, Any, str]:
        asked.append(turn.turn_id)
        yield from ()
        return "nonsense" if len(asked) == 1 else "good"

    def flow() -> Workflow[Small]:
        inner = Workflow(LITTLE, {"Go": moody}, Small, {}, home=tmp_path)
        return Workflow(
            strict, {"Run": Nested(inner, begin=lambda turn: [Small([])])}, Small, {}, home=tmp_path
        )

    with pytest.raises(UndeclaredEvent, match=r"little: Go failed: .*a line for 'crashed'"):
        flow().start(Small([], turn_id="t")).run()
    assert flow().resume("t").run().exit == "good"
    assert asked == ["0.0@t", "0.0@t"]


# What is refused


def shell(inner: Mapping[str, Inner], *events: str, name: str = "shell") -> Table:
    lines = lines_of({"Run": [on(event, end(event, "End"), why="") for event in events]})
    return Table(name, ("Run", "End"), "End", (), lines, inner=inner)


SHELL = shell({"Run": runs(LITTLE)}, "good", "bad", "odd")
ALL = ("good", "bad", "odd")
TAKEN = "Run runs a table of a name that is taken; given: {}; allowed: "
TAKEN += "a name that no other table in shell has, nor it itself"
SOME = "Run runs tables; given: {}; allowed: some, or one with most=LIMIT"
IN_MORE = {"Run": runs(shell({"Run": runs(SHELL)}, *ALL, name="more"))}
REFUSED: list[tuple[dict[str, Inner], tuple[str, ...], str]] = [
    ({"Run": runs(LITTLE)}, ALL[:2],
     f"Run has no line for an exit of what it runs; given: odd; allowed: {', '.join(ALL)}"),
    ({"Run": runs(LITTLE)}, (*ALL, "new"),
     f"Run has a line for what no table that it runs ends with; given: new; allowed: {', '.join(ALL)}"),
    ({"Fly": runs(LITTLE)}, ("good",), "Fly cannot run tables; given: Fly; allowed: Run"),
    ({"End": runs(LITTLE)}, ("good",), "End cannot run tables; given: End; allowed: Run"),
    ({"Run": runs()}, ("good",), SOME.format("none")),
    ({"Run": runs(LITTLE, SHELL, most="n")}, ALL, SOME.format("little, shell")),
    ({"Run": runs(SHELL)}, ALL, TAKEN.format("shell")),
    (IN_MORE, ALL, TAKEN.format("shell")),
    ({"Run": runs(LITTLE, little("little", "good"))}, ALL, TAKEN.format("little")),
]  # fmt: skip


def test_a_table_says_what_is_wrong_with_what_it_runs() -> None:
    for inner, events, says in REFUSED:
        with pytest.raises(TableError) as caught:
            shell(inner, *events)
        assert str(caught.value) == f"shell: {says}"


def test_a_table_is_proved_with_all_that_it_runs() -> None:
    loops = Table("loops", ("Go", "End"), "End", (), lines_of({"Go": [on("x", go("Go"), why=""), on("y", end("good", "End"), why="")]}))  # fmt: skip
    table = shell({"Run": runs(shell({"Run": runs(loops)}, "good", name="middle"))}, "good")
    with pytest.raises(TableError, match=r"loops: .*Go\.x"):
        Machine(table)
    assert not verify_table(table).ok


def test_a_digest_tells_what_is_run() -> None:
    inner: list[dict[str, Inner]] = [
        {}, {"Run": runs(LITTLE, most="n")}, {"Run": runs(replace(LITTLE, name="other"))},
    ]  # fmt: skip
    digests = {SHELL.digest, *(replace(SHELL, inner=one).digest for one in inner)}
    assert len(digests) == 4


def test_a_workflow_says_which_state_runs_tables(tmp_path: Path) -> None:
    empty, plain = Nested(begin=lambda turn: []), replace(SHELL, inner={})
    wrong: list[tuple[Table, Any, str]] = [
        (SHELL, say, "cannot be this; given: function; allowed: a Nested"),
        (plain, empty, "cannot be this; given: Nested; allowed: a function, or inner={...} of the table"),
        (SHELL, empty, "runs other tables; given: none; allowed: little"),
    ]
    for table, state, says in wrong:
        with pytest.raises(ConfigError) as caught:
            Workflow(table, {"Run": state}, Small, {}, home=tmp_path)
        assert str(caught.value) == f"Run of shell {says}"


def test_the_limit_of_how_many_is_one_of_the_turn(tmp_path: Path) -> None:
    inner = Workflow(order.TABLE, order.workflow(tmp_path).kind.states, order.Order, {}, home=tmp_path)
    table = Table(
        "basket", ("Buy", "Done"), "Done", (),
        lines_of({"Buy": [on(exit, end(exit, "Done"), why="") for exit in runs(order.TABLE).exits]}),
        inner={"Buy": runs(order.TABLE, most="items")},
    )  # fmt: skip
    flow = Workflow(table, {"Buy": Nested(inner, begin=lambda turn: [])}, Small, {}, home=tmp_path)
    with pytest.raises(ConfigError, match="Small has no limit for this; given: items"):
        flow.start(Small([]))


# Cancelled, interrupted, forked


def stuck_shop(home: Path, after: Any) -> Workflow[nested.Visit]:
    each = Nested(shop(home, after), begin=nested.begin, join=nested.join)
    return Workflow(nested.TABLE, {"Order": each}, nested.Visit, {}, home=home)


@pytest.mark.parametrize("again", [True, False])
async def test_a_turn_cancelled_inside_continues_inside(again: bool, tmp_path: Path) -> None:
    """In the same process: the same object, or one that is resumed."""
    shop = stuck_shop(tmp_path, stuck := Stuck("charge"))
    turn = shop.start(nested.Visit(["LAMP"], turn_id="v"))
    await cancelled(turn.arun(), stuck.reached)
    result = await (turn if again else shop.resume("v")).arun()
    assert acts(tmp_path) == ["reserve", "charge", "ship"]
    assert result.turn.said == ["reserve: done", "charge: failed", "charge: done", "ship: done"]


async def test_an_interrupt_reaches_the_turns_inside(tmp_path: Path) -> None:
    @dataclass
    class Told(parallel.Book):
        told: str = ""

        def interrupt(self, message: str | None) -> None:
            self.told = message or ""

    begun = asyncio.Event()

    async def wait(seconds: float) -> None:
        begun.set()

    inner = review_loop.workflow(home=tmp_path, sleep=wait)
    chapters = Nested(inner, begin=parallel.begin, join=parallel.join)
    turn = Workflow(parallel.TABLE, {"Write": chapters}, Told, {}, home=tmp_path).start(Told(["a", "b"]))
    running = asyncio.ensure_future(turn.arun())
    await begun.wait()
    turn.gate.signals.interrupt("enough")
    result = await running
    assert (result.exit, result.turn.told, result.turn.pages) == ("cancelled", "enough", {})


def test_an_outer_turn_is_suspended_with_an_inner_one(tmp_path: Path) -> None:
    def flow(bank: Any) -> Workflow[Basket]:
        real = partial(order.serve, tmp_path)

        async def perform(request: order.Do) -> Any:
            waits = bank and request.act == "charge" and request.items == ("LAMP",)
            return bank if waits else await real(request)

        return basket(tmp_path, perform)

    with pytest.raises(TurnSuspended):
        flow(NotYet("result", "c1", "bank")).start(Basket(["DESK", "LAMP"], turn_id="b")).run()
    assert flow(None).journal.info("1.0@b").exit == "sent"
    assert flow(None).resume("b").run().exit in ("sent", "cancelled")
    assert acts(tmp_path).count("reserve") == 2


def test_a_fork_runs_its_inner_turns_itself(tmp_path: Path) -> None:
    visits = nested.workflow(tmp_path)
    visits.start(nested.Visit(["LAMP"], turn_id="v")).run()
    (tmp_path / "says.json").write_text(json.dumps({"reserve": "refused"}))
    fork = visits.fork("v", 0).run()
    assert fork.exit == "nothing"
    assert visits.journal.info(f"0.0@{fork.turn_id}").exit == "sold_out"
    assert visits.journal.info("0.0@v").exit == "sent"


# kill -9

KILLED = """
import os, signal, sys
from pathlib import Path
from examples import order
from fsm_agent.runtime.events import RowTaken
from fsm_agent.runtime.events import EVERYWHERE
from tests.workflow import test_nested

home, left, when, perform = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], None

def count(*seen):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

if when == "row":
    EVERYWHERE.subscribe(count, RowTaken)
else:
    async def perform(request):
        if when == "before":
            count()
        reply = await order.serve(home, request)
        if when == "after":
            count()
        return reply
test_nested.basket(home, perform).start(test_nested.Basket(["DESK", "LAMP"], turn_id="b")).run()
"""
BASKET = Table(
    "basket", ("Look", "Buy", "Done"), "Done", (),
    lines_of({
        "Look": [on("seen", go("Buy"), why="")],
        "Buy": [on(exit, end(exit, "Done"), why="") for exit in sorted(runs(order.TABLE).exits)],
    }),
    inner={"Buy": runs(order.TABLE, most="items")},
)  # fmt: skip


@dataclass
class Basket(BaseTurn):
    items: list[str]
    said: list[list[str]] = field(default_factory=list)
    usual_limits: ClassVar = {"items": 5}


def look(turn: Basket) -> Generator[Any, Any, str]:
    yield from ()
    return "seen"


def basket(home: Path, perform: Any = None) -> Workflow[Basket]:
    """Two orders at once, each of one item."""

    def take(turn: Basket, ended: Any) -> None:
        turn.said = [one.said for one in ended]

    def begin(turn: Basket) -> list[order.Order]:
        return [order.Order([one]) for one in turn.items]

    each = Nested(order.workflow(home, perform), begin=begin, join=take)
    return Workflow(BASKET, {"Look": look, "Buy": each}, Basket, {}, home=home)


def stored(home: Path) -> list[tuple[Any, ...]]:
    """Every move of every turn that is on disk, with its time."""
    with contextlib.closing(sqlite3.connect(home / "sessions.db")) as c:
        return c.execute("SELECT turn, seq, row, at FROM transitions ORDER BY turn, seq").fetchall()


@pytest.mark.parametrize(
    ("point", "when"),
    sampled(
        (
            (point, when)
            for when, points in (("row", range(8)), ("before", range(6)), ("after", range(6)))
            for point in points
        ),
        "orders at once",
    ),
)
@pytest.mark.slow
def test_orders_at_once_survive_kill_9_each_where_it_was(point: int, when: str, tmp_path: Path) -> None:
    assert ran("-c", KILLED, tmp_path, str(point), when).returncode == -signal.SIGKILL
    before = stored(tmp_path)
    result = basket(tmp_path).resume("b").run()
    after = stored(tmp_path)
    assert [move for move in after if move in before] == before, "a move that was on disk was made again"
    assert {turn for turn, *_ in after} == {"b", "1.0@b", "1.1@b"}, "a branch has one turn, and keeps it"
    ledger = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    paid = [line["key"] for line in ledger if line["act"] == "charge"]
    assert len(paid) == len(set(paid)), "no customer is charged twice"
    journal = basket(tmp_path).journal
    exits = {journal.info(turn).exit for turn in ("1.0@b", "1.1@b")}
    # cancelled: killed before a charge, which is looked up, never repeated
    assert exits <= {"sent", "cancelled"}
    assert result.exit == ("cancelled" if "cancelled" in exits else "sent")
    assert [len(said) >= 3 for said in result.turn.said] == [True, True]
    assert [step.seq for step in journal.steps("b")] == [1, 2]


def test_a_branch_that_has_ended_is_not_run_again(tmp_path: Path) -> None:
    """The task running both was cancelled after one had ended and the other had sent its parcel."""
    real, reached = partial(order.serve, tmp_path), asyncio.Event()

    async def perform(request: order.Do) -> Any:
        reply = await real(request)
        if request.items == ("LAMP",) and request.act == "ship" and not reached.is_set():
            await until_so(lambda: flow.journal.info("1.0@b").ended is not None, "the end of the other")
            reached.set()
            await asyncio.Event().wait()
        return reply

    flow = basket(tmp_path, perform)

    async def go() -> Any:
        turn = flow.start(Basket(["DESK", "LAMP"], turn_id="b"))
        await cancelled(turn.arun(), reached)
        return await turn.arun()

    result = asyncio.run(go())
    assert (result.exit, result.turn.said[0]) == ("sent", ["reserve: done", "charge: done", "ship: done"])
    assert acts(tmp_path).count("ship") == 3, "one of them again, under its key"


# Bounds


@st.composite
def tables(draw: Any, name: str, depth: int) -> Table:
    """One or two states that take budgets in an order, so that every turn ends; at ``depth`` 0 no other
    tables."""
    states = ("A", "B")[: draw(st.integers(1, 2))]
    counters = ("x", "y")[: draw(st.integers(1, 2))]
    inner: dict[str, Inner] = {}
    for state in states:
        if depth and draw(st.booleans()):
            one = draw(tables(f"{name}{state}", depth - 1))
            kind = draw(st.sampled_from(["one", "two", "each"]))
            other = replace(one, name=f"{one.name}2")
            made = {"one": runs(one), "two": runs(one, other), "each": runs(one, most=f"n{state}")}
            inner[state] = made["one" if kind == "two" and one.inner else kind]
    parts = {}
    for number, state in enumerate(states):
        events = inner[state].exits if state in inner else ("e", "f")[: draw(st.integers(1, 2))]
        lines = []
        for place, event in enumerate(events):
            ladder = []
            if draw(st.booleans()):
                spent = draw(st.integers(0, len(counters) - 1))
                given_back = counters[spent + 1 :] if draw(st.booleans()) else ()
                ladder = [Rung("again", draw(st.sampled_from(states)), left(counters[spent]), (counters[spent],), given_back)]  # fmt: skip
            on_from_here = not place and number + 1 < len(states)
            last = go(states[number + 1]) if on_from_here else end(draw(st.sampled_from("pqr")), "F")
            lines.append(on(event, *ladder, last, why=""))
        parts[state] = lines
    return Table(name, (*states, "F"), "F", tuple(map(Counter, counters)), lines_of(parts), inner=inner)


def most_moves(table: Table, limits: Mapping[str, int], prefix: str = "") -> dict[str, int]:
    """The most moves, those of inner turns too, of a run to each exit: by looking at every run."""
    own = own_limits(limits, prefix)

    def visit(state: str) -> Iterator[tuple[str, int]]:
        if (inner := table.inner.get(state)) is None:
            yield from ((event, 0) for event in table.events(state))
            return
        ends = [tuple(most_moves(one, limits, f"{one.name}.").items()) for one in inner.tables]
        counts = range(own[inner.most] + 1) if inner.most else (1,)
        for count in counts:
            for combination in itertools.product(*ends * count):
                yield table.joined(state, [exit for exit, _ in combination]), sum(n for _, n in combination)

    known: dict[Any, dict[str, int]] = {}

    def onward(turn: Counting) -> dict[str, int]:
        key = (turn.state, *turn.counts.items())
        if key not in known:
            found: dict[str, int] = {}
            for event, cost in set(visit(turn.state)):
                row = next(row for row in table.by_event[turn.state, event] if row.guard.holds(turn))
                after = Counting(table, own)
                after.counts, after.state = dict(turn.counts), row.dest
                for counter in row.resets:
                    after.reset(counter)
                for counter in row.spends:
                    after.spend(counter)
                ends = {row.exit: 0} if row.exit else onward(after)
                for exit, moves in ends.items():
                    found[exit] = max(found.get(exit, 0), moves + 1 + cost)
            known[key] = found
        return known[key]

    return onward(Counting(table, own))


def own_limits(limits: Mapping[str, int], prefix: str) -> dict[str, int]:
    """Those of the table that is called so in ``limits``, under its own names."""
    named = {name: most for name, most in limits.items() if name.rpartition(".")[0] == prefix[:-1]}
    return {name[len(prefix) :]: most for name, most in named.items()}


@settings(max_examples=40, deadline=None)
@given(table=tables("T", 2), drawn=st.data())
def test_no_run_of_a_nested_table_is_longer_than_its_bound(table: Table, drawn: st.DataObject) -> None:
    limits = {name: drawn.draw(st.integers(0, 2), name) for name in all_limit_names(table)}
    report = verify_table(table, limits, small=False)
    assert report.ok
    assert report.all_moves is not None
    assert report.all_moves.value is not None
    assert max(most_moves(table, limits).values()) <= report.all_moves.value


def test_the_bound_of_the_examples_is_reached() -> None:
    ones = {"drafts": 1, "chapters": 2, "review.rounds": 1, "review.retries": 1, "review.unclears": 1}
    for table, limits, most in (
        (nested.TABLE, {"others": 1, "order.tries": 2, "order.undos": 5}, 34),
        (parallel.TABLE, ones, 2 + 2 * 2 * 10),
    ):
        report = verify_table(table, limits)
        assert report.all_moves is not None
        assert (report.all_moves.value, max(most_moves(table, limits).values())) == (most, most)


@dataclass
class Played(BaseTurn):
    """Its states report what chance says."""

    seed: int


def playing(table: Table, limits: Mapping[str, int], home: Path, prefix: str = "") -> Workflow[Played]:
    own = own_limits(limits, prefix)

    def chance(turn: Played, among: Sequence[Any]) -> Any:
        return random.Random(f"{turn.turn_id} {turn.seq} {turn.seed}").choice(among)

    def reports(turn: Played) -> Generator[Any, Any, str]:
        yield from ()
        return str(chance(turn, table.events(turn.state)))

    def state(name: str) -> Any:
        if (inner := table.inner.get(name)) is None:
            return reports
        flows = [playing(one, limits, home, f"{one.name}.") for one in inner.tables]

        def begin(turn: Played) -> list[BaseTurn]:
            count = chance(turn, range(turn.limit(inner.most) + 1)) if inner.most else 1
            return [flow.begin(str(turn.seed)) for flow in flows * count]

        return Nested(*flows, begin=begin)

    states = {name: state(name) for name in table.states if name != table.final}
    return Workflow(table, states, Played, {}, begin=lambda seed: Played(int(seed), limits=own), home=home)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("played")


def play(table: Table, drawn: st.DataObject, home: Path) -> None:
    limits = {name: drawn.draw(st.integers(0, 2), name) for name in all_limit_names(table)}
    flow = playing(table, limits, home)
    result = flow.start(flow.begin(str(drawn.draw(st.integers(0, 99), "seed")))).run()
    moves = sum(one.seq for one in flow.journal.recent(10_000) if one.id.endswith(result.turn_id))
    bound = verify_table(table, limits, small=False).all_moves
    assert bound is not None
    assert bound.value is not None
    assert len(result.steps) <= moves <= bound.value


@settings(max_examples=12, deadline=None)
@given(table=tables("T", 2), drawn=st.data())
def test_turns_that_chance_plays_keep_to_the_bound(table: Table, drawn: st.DataObject, home: Path) -> None:
    play(table, drawn, home)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(table=tables("T", 3), drawn=st.data())
def test_many_turns_that_chance_plays_keep_the_bound(table: Table, drawn: st.DataObject, home: Path) -> None:
    play(table, drawn, home)


# The command, and pictures


NAME, SETS = "examples.nested:TABLE", [f"--set={name}={most}" for name, most in nested.LIMITS.items()]


def test_verify_takes_the_maxima_of_inner_tables(cli: Cli) -> None:
    code, said, _ = cli("verify", NAME, *SETS, "--long")
    assert code == 0
    assert "moves, those of inner turns too, without caps: at most 34" in said
    assert "Table order" in said
    assert "moves, without caps: at most 16" in said
    (inner,) = json.loads(cli("verify", NAME, *SETS, "--json")[1])["inner"]
    assert (inner["table"], inner["ok"], inner["limits"]) == ("order", True, order.LIMITS)
    for wrong, says in (
        (SETS[:2], "maxima are missing; given: order.undos"),
        ([*SETS, "--set=order.wheels=4"], "table shop has no such maximum; given: order.wheels=4"),
        ([*SETS, "--set=order=4"], "table shop has no such maximum; given: order=4"),
    ):
        code, _, err = cli("verify", NAME, *wrong)
        assert code == 2
        assert says in err


def test_a_fault_of_an_inner_table_is_one_of_the_whole() -> None:
    loops = little("loops", "good", limit="n")
    endless = replace(loops, lines=(*loops.lines, Line("Go", "x", (go("Go"),))))
    report = verify_table(shell({"Run": runs(endless)}, "good"))
    assert not report.ok
    assert report.checks[3].ok
    assert "Go.x: can repeat without end" in report.render()
    assert report.render().endswith("\n\nFAILED")


@pytest.mark.parametrize(
    "table", [nested.TABLE, parallel.TABLE, replace(SHELL, inner={"Run": runs(replace(LITTLE, inner={}))})]
)
def test_pictures_show_what_a_state_runs(table: Table) -> None:
    ((state, inner),) = table.inner.items()
    (one,) = inner.tables
    drawn = {name: render(table, name) for name in FORMATS}
    for name, text_ in drawn.items():
        for row in one.rows:
            assert row.event in text_ or row.event.replace("_", " ") in text_, (name, row.id)
    ids = re.findall(r' id="([^"]*)"', drawn["svg"])
    assert len(ids) == len(set(ids))
    assert {f"state-{state}", *(f"{one.name}.state-{inside}" for inside in one.states)} <= set(ids)
    ElementTree.fromstring(drawn["svg"])
    label = inner.label.replace("_", " ")
    assert f"{state} : runs {label}" in drawn["mermaid"]
    assert f"{state} --> {one.name}__ : runs" in drawn["mermaid"]
    assert f'"{state}" -> "{one.name}.{one.initial}" [label="runs"' in drawn["dot"]
    assert f"Runs {inner.label}; the exits are the events" in drawn["markdown"]
    assert table_from(json.loads(drawn["json"]), "here") == table
    assert f"runs {label}" in written(neighbourhood(table, state), "svg")
    assert f"Runs {inner.label}" in near_markdown(table, state)


def test_a_comparison_of_versions_tells_what_is_run_now(cli: Cli) -> None:
    turned = replace(order.TABLE, counters=order.TABLE.counters[::-1])
    other = replace(nested.TABLE, inner={"Order": runs(turned)})
    (change,) = compare(nested.TABLE, other).names
    assert (change.kind, change.name, change.change) == ("inner table", "Order", "changed")
    assert change.before.startswith("order (")
    assert not compare(nested.TABLE, nested.TABLE).changed
    assert cli("diagram", "diff", NAME, NAME, *SETS)[0] == 0


def test_the_page_of_the_examples_says_what_is_so() -> None:
    page = " ".join((ROOT / "examples/README.md").read_text(encoding="utf-8").split())
    proofs = (ROOT / "examples/diagrams/parallel/book.proofs.md").read_text(encoding="utf-8")
    assert "at most 1,122" in page
    assert "| moves, those of inner turns too | without | 1,122 |" in proofs
    for name in ("nested", "parallel"):
        assert len((ROOT / f"examples/{name}.py").read_text(encoding="utf-8").splitlines()) == 40
    assert "Each has 40 lines" in page
