"""One move: which row is chosen, what it records, what it changes, what it refuses, and what keeps it cheap."""

from __future__ import annotations

import json
import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from fsm_agent import Agent, tool
from fsm_agent.composition.model_caller import StreamAccumulator
from fsm_agent.errors import StuckTurn, TableError, UndeclaredEvent
from fsm_agent.fsm.machine import Machine, TurnLike
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on
from fsm_agent.fsm.verify import verify_table
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import SystemClock
from fsm_agent.runtime.events import ToolProgress, Transition
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.testing import call, text, tools
from fsm_agent.testing.scripts import CountingTurn
from fsm_agent_states.table import TURN
from tests.helpers.mutants import changed, without
from tests.helpers.store_homes import process
from tests.helpers.tables import DEFAULTS

LIMITS = DEFAULTS | {"iterations": 3, "attempts": 20, "sends": 9, "fallbacks": 1, "rekeys": 1}


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(TURN)


def at(state: str, **counts: int) -> CountingTurn:
    turn = CountingTurn(TURN, LIMITS)
    turn.state = state
    turn.counts |= counts
    return turn


@pytest.mark.behaviour("FSM-02")
def test_a_run_walks_the_table(machine: Machine) -> None:
    turn: TurnLike = at("Prepare")
    events = ("ready", "built", "tools", "done", "built", "text")
    rows = [machine.advance(turn, event).row.id for event in events]
    assert rows == [
        "Prepare.ready", "BuildMessages.built/3", "CallLLM.tools", "ExecuteTools.done", "BuildMessages.built/3",
        "CallLLM.text",
    ]  # fmt: skip
    assert (turn.state, turn.seq) == ("Finalize", 6)
    assert turn.count("iterations") == 2


def test_guards_are_recorded_in_order_and_once(machine: Machine) -> None:
    """Every budget that was looked at; an unconditional row records nothing."""
    move = machine.advance(at("ClassifyError", retries=1, fallbacks=1, rebuilds=1), "unreachable")
    assert move.row.id == "ClassifyError.unreachable/3"
    assert move.guards == (("not yet retried", False), ("fallbacks left", False), ("retries left", True))
    assert move.row.guard.label == "already retried and no fallbacks left and retries left"
    move = machine.advance(at("BuildMessages", opened=1, attempts=3, sends=2), "built")
    assert move.row.rung == "send again"
    assert move.guards == (("attempts left", True), ("sends left", True), ("no block open", False))
    assert machine.advance(at("CallLLM"), "error").guards == ()


def test_choosing_leaves_the_turn_alone(machine: Machine) -> None:
    turn = at("BuildMessages")
    row, guards = machine.choose(turn, "built")
    assert row.rung == "send"
    assert guards[2:] == (("no block open", True), ("iterations left", True))
    assert turn == at("BuildMessages")


def test_a_row_resets_first_and_then_spends(machine: Machine) -> None:
    move = machine.advance(
        at("ClassifyError", retries=2, repairs=1, empties=1, summary_calls=1), "server_error"
    )
    assert move.row.rung == "fallback"
    assert move.changes == (("retries", 2, 0), ("repairs", 1, 0), ("empties", 1, 0), ("fallbacks", 0, 1))
    move = machine.advance(at("CallLLM", opened=1, sends=4, retries=1), "cut_text")
    assert move.changes == (("opened", 1, 0), ("sends", 4, 0), ("retries", 1, 0), ("continuations", 0, 1))


def test_an_undeclared_event_changes_nothing_and_names_what_is_declared(machine: Machine) -> None:
    turn, same = at("Compress", retries=1), at("Compress", retries=1)
    with pytest.raises(UndeclaredEvent) as raised:
        machine.advance(turn, "built")
    declared = "unsummarized, lost, unaffordable, compressed, unchanged, stuck, outgrown, cancelled, crashed"
    said = "turn: Compress reported 'built', for which it has no line; declared events: "
    assert str(raised.value) == said + declared
    assert turn == same
    for place, told in (
        (at("Finalize"), "declared events: none, the turn has ended"),
        (at("Nowhere"), "'Nowhere', which is not a state of the table; states: Prepare"),
    ):
        with pytest.raises(UndeclaredEvent, match=told):
            machine.advance(place, "crashed")


def test_a_wrong_table_is_refused_unless_asked_for() -> None:
    """Then a stuck turn raises and is unchanged."""
    holed = without(TURN, "CallLLM.no_summary/2")
    with pytest.raises(TableError, match=r"CallLLM\.no_summary: hole"):
        Machine(holed)
    turn = at("CallLLM", summary_calls=2)
    with pytest.raises(
        StuckTurn, match=r"no row of CallLLM\.no_summary is open \(summary calls left: False\)"
    ):
        Machine(holed, verified=False).advance(turn, "no_summary")
    assert turn == at("CallLLM", summary_calls=2)


def test_an_unverified_table_is_watched_for_overlaps() -> None:
    overlapping = changed(TURN, "ExecuteTools.bad_json/2", guard=left("invalid_tool_rounds"))
    turn = at("ExecuteTools")
    words = r"rows ExecuteTools\.bad_json/1 and ExecuteTools\.bad_json/2 are both open"
    with pytest.raises(TableError, match=words):
        Machine(overlapping, verified=False).advance(turn, "bad_json")
    assert turn == at("ExecuteTools")


def test_a_guard_that_fails_changes_nothing(machine: Machine) -> None:
    turn = at("ClassifyError")
    del turn.limits["retries"]
    with pytest.raises(KeyError, match="retries"):
        machine.advance(turn, "server_error")
    assert (turn.state, turn.seq, set(turn.counts.values())) == ("ClassifyError", 0, {0})


def test_a_truthy_comparison_counts_as_true() -> None:
    class Odd(int):
        def __lt__(self, other: object) -> bool:
            return 2

    lines = lines_of({"A": [on("x", Rung("loop", "A", left("n"), ("n",)), end("out", "E"), why="")]})
    table = Table("t", ("A", "E"), "E", (Counter("n"),), lines)
    turn = CountingTurn(table, {"n": 1})
    turn.counts["n"] = Odd()
    move = Machine(table).advance(turn, "x")
    assert (move.row.rung, move.guards) == ("loop", (("n left", True),))


def test_one_machine_serves_many_threads(machine: Machine) -> None:
    turns = [at("Prepare") for _ in range(8)]

    def run(turn: CountingTurn) -> None:
        for event in ("ready", *("built", "tools", "done") * 3, "built", "built", "summary"):
            machine.advance(turn, event)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, turns))
    assert {(turn.state, turn.seq, turn.count("iterations")) for turn in turns} == {("Finalize", 13, 3)}


@pytest.mark.behaviour("FSM-02")
def test_the_library_sees_the_same_transitions(machine: Machine) -> None:
    edges = [
        (trigger, transition.source, transition.dest, [condition.func for condition in transition.conditions])
        for trigger, event in machine.chooser.events.items()
        for transitions in event.transitions.values()
        for transition in transitions
    ]
    rows = [(row.event, row.source, row.dest, [part.label for part in row.conjuncts]) for row in TURN.rows]
    assert sorted(edges) == sorted(rows)
    assert machine.chooser.models == []


def test_names_that_the_library_uses_are_no_trap() -> None:
    first = [on("state", go("B"), why=""), on("trigger", end("x", "E"), why="")]
    lines = lines_of({"A": first, "B": [on("to_A", end("y", "E"), why="")]})
    table = Table("t", ("A", "B", "E"), "E", (), lines)
    machine, turn = Machine(table), CountingTurn(table, {})
    assert [machine.advance(turn, event).row.dest for event in ("state", "to_A")] == ["B", "E"]


def test_who_logs_everything_is_not_told_each_step_of_the_library(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert machine.advance(at("Prepare"), "ready").row.id == "Prepare.ready"
    assert [record.name for record in caplog.records if record.name.startswith("transitions")] == []


FOUR_FALLBACKS = DEFAULTS | {"fallbacks": 4}
LIKELY = ("built", "error", "limited", "overloaded", "rejected", "blank", "nothing", "ready")
LIKELY += ("failed", "compressed")
"""Events that lead from fallback to fallback."""


def event_of(turn: CountingTurn, chance: random.Random) -> str:
    declared = [event for event in TURN.events(turn.state) if event not in TURN.is_macro]
    likely = [event for event in declared if event in LIKELY]
    return chance.choice(likely if likely and chance.random() < 0.9 else declared)


def test_the_turn_is_the_one_of_the_lower_limit() -> None:
    machine, reached = Machine(TURN), set()
    for seed in range(40):
        chance, lowered = random.Random(seed), False
        turn, events, rows = CountingTurn(TURN, FOUR_FALLBACKS), [], []
        while turn.state != TURN.final:
            events.append(event_of(turn, chance))
            row = machine.advance(turn, events[-1]).row
            rows.append(row)
            if "fallbacks" in row.spends and turn.count("fallbacks") == 1 + seed % 4:
                turn.limits["fallbacks"], lowered = turn.count("fallbacks"), True
        other = CountingTurn(TURN, FOUR_FALLBACKS | {"fallbacks": turn.limits["fallbacks"]})
        assert [machine.advance(other, event).row for event in events] == rows, seed
        assert other.counters() == turn.counters(), seed
        reached |= {turn.count("fallbacks")} if lowered else set()
    assert reached == {1, 2, 3, 4}, "else nothing was compared"


@pytest.mark.slow
def test_a_lower_limit_has_no_larger_bound() -> None:
    for counter in TURN.exhaustible:
        reports = [verify_table(TURN, DEFAULTS | {counter: most}, small=False) for most in range(3)]
        values = [[figure.value for figure in report.figures] for report in reports]
        for lower, higher in pairwise(values):
            assert all(a is not None and b is not None and a <= b for a, b in zip(lower, higher, strict=True))
        assert values[0] < values[-1]


class OneByOne(SqliteDatabase):
    """Commits each job separately. A commit that no caller waits for is put off until the next job, so that
    commits can be counted."""

    group, late = 1, 60.0


@tool(concurrency="parallel", effect="pure")
async def echo(words: str) -> str:
    """Give a text back."""
    return words


SETTINGS = {"prompt": {"context_files": False}, "store": {"index": False}}


def agent(home: Path, rounds: int) -> Agent:
    script = [*(tools(call("echo", {"words": str(number)})) for number in range(rounds)), text("done")]
    settings = {"max_iterations": rounds + 1, **SETTINGS}
    store = Store(home, opened=OneByOne)
    return process(home, *script, tools=[echo], system_prompt="Be short.", store=store, settings=settings)


def test_a_round_of_pure_tools_is_one_commit(tmp_path: Path) -> None:
    """Before the model is asked again: three moves, the reply, and what the tool said."""
    commits = []
    for rounds in (2, 5):
        one = agent(tmp_path / str(rounds), rounds)
        assert one.chat("go") == "done"
        commits.append(one.store.database.commits)
    assert commits[1] - commits[0] == 3


def test_a_move_of_a_long_turn_adds_as_little_to_the_journal_as_one_of_a_short_turn(tmp_path: Path) -> None:
    """Also the 128 calls that the guardrails remember are written as what changed."""
    one = agent(tmp_path, 150)
    turn = one.start("go")
    turn.run()
    of = "SELECT length(delta) FROM transitions WHERE turn = ? ORDER BY seq"
    sizes = [size for (size,) in one.store.database.select(of, turn.id)]
    assert max(sizes[-30:-1]) - max(sizes[10:40]) < 80
    assert max(sizes[10:]) < 500


@pytest.mark.slow
def test_a_chunk_costs_the_same_in_a_long_stream() -> None:
    """Adding each piece to one long text would copy all of it for each: twenty times the cost at this
    length."""

    def cost(chunks: int) -> float:
        live = StreamAccumulator(SystemClock(), Callbacks())
        live.begin()
        began = time.process_time()
        for _ in range(chunks):
            live.text("word ")
        spent = time.process_time() - began
        live.close()
        assert live.shown == "word " * chunks
        return spent / chunks

    cost(2_000)
    assert min(cost(100_000) for _ in range(2)) < 6 * min(cost(2_000) for _ in range(5))


def test_costly_reports_are_built_only_for_an_observer() -> None:
    callbacks = Callbacks({"transition": lambda turn: None})
    assert callbacks.hears(Transition)
    assert not callbacks.hears(ToolProgress)


def test_the_journal_of_a_turn_holds_every_request_and_reply_as_before(tmp_path: Path) -> None:
    one = agent(tmp_path, 1)
    turn = one.start("go")
    turn.run()
    of = "SELECT kind, status, request, reply FROM effects WHERE turn = ? ORDER BY seq, ordinal, place"
    found = one.store.database.select(of, turn.id)
    assert [kind for kind, *_ in found].count("CallModel") == 2
    for kind, status, request, reply in found:
        assert (status, json.loads(request)["is"]) == ("done", kind)
        assert reply is not None


def test_what_turns_have_alike_is_in_the_file_once(tmp_path: Path) -> None:
    """Settings, limits, tools and prompts, and whatever is empty; the rest of a turn of one line is small."""
    store = Store(tmp_path)
    one = process(tmp_path, *[text("done")] * 80, tools=[echo], store=store, settings=SETTINGS)
    pages, parts = [], []
    for turns in (20, 60):
        for _ in range(turns):
            one.chat("hello")
        pages.append(int(store.database.select("PRAGMA page_count")[0][0]))
        parts.append(int(store.database.select("SELECT COUNT(*) FROM contents")[0][0]))
    assert (pages[1] - pages[0]) * 4096 / 60 < 6_000
    assert parts[1] - parts[0] < 5
