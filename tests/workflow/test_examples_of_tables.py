"""Custom tables: those in ``examples/`` get everything that the agent's turn gets, without a line of the
engine."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from examples import order, review_loop
from fsm_agent import Agent, BaseTurn, Workflow
from fsm_agent.diagram.__main__ import main as written_diagrams
from fsm_agent.errors import ConfigError, SessionBusy
from fsm_agent.fsm.machine import Machine, TurnLike
from fsm_agent.fsm.runner import drive
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify import search, verify_table
from fsm_agent.testing import (
    FakeClock,
    Footprints,
    Look,
    RowCoverage,
    Script,
    ScriptedModel,
    ids_of,
    pair_scripts,
    rehearse,
    row_scripts,
    status,
    text,
)
from fsm_agent.testing.machine import TurnMachine
from tests.fsm.test_verify_cover import exact_pairs
from tests.helpers.command_line import Cli
from tests.helpers.processes import environment, printed, ran
from tests.helpers.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


class Playing:
    """A turn of ``flow`` whose world says what makes its states report a given event."""

    def __init__(self, flow: Workflow[Any], turn: BaseTurn) -> None:
        self.flow, self.turn = flow, turn
        turn.enter(flow.kind.table)
        self.machine, self.look, self.number = Machine(flow.kind.table), Look(flow.kind.table, turn), 0

    def move(self, event: str) -> Row:
        self.number += 1
        reported = asyncio.run(self._reported(event))
        assert reported == event
        row = self.machine.advance(self.turn, reported).row
        self.turn.arrive(row)
        self.look.moved(event, row)
        return row

    async def _reported(self, event: str) -> str | None:
        async def world(request: Any) -> Any:
            return self.says(event)

        try:
            return await drive(self.flow.kind.states[self.turn.state](self.turn), world)
        except RuntimeError as error:
            self.turn.crash(error)
            return "crashed"

    def says(self, event: str) -> Any:
        if event == "crashed":
            raise RuntimeError("a bug")
        return event


class PlayingReview(Playing):
    turn: review_loop.Review

    def says(self, event: str) -> Any:
        self.turn.cancelled = event == "cancelled"
        known = {
            "written": f"text {self.number}", "unchanged": self.turn.text, "accepted": "ACCEPT.",
            "failed": "",
        }  # fmt: skip
        known |= {"objections": "REVISE: too short", "cancelled": "too late"}
        known |= {"unclear": ("REVISE", "Hm, well.")[self.number % 2]}
        return known.get(event) if event in known else super().says(event)


def playing(table: Table, limits: Mapping[str, int], home: Path) -> Playing:
    if table is order.TABLE:
        return Playing(order.workflow(home), order.Order(["LAMP"], limits=dict(limits)))
    review = review_loop.Review("Write a line.", limits=dict(limits))
    return PlayingReview(review_loop.workflow(home=home), review)


TABLES = {
    "review": (review_loop.TABLE, {"rounds": 2, "retries": 2, "unclears": 1}),
    "order": (order.TABLE, order.LIMITS),
}
ROWS = [(name, script) for name, (table, _) in TABLES.items() for script in row_scripts(table)]


def play(script: Script, table: Table, home: Path) -> None:
    made = playing(table, script.limits, home)
    assert tuple(made.move(row.event) for row in script.rows) == script.rows
    assert (made.turn.state, made.turn.exit) == (table.final, script.rows[-1].exit)


@pytest.mark.parametrize(("name", "script"), ROWS, ids=ids_of([script for _, script in ROWS]))
def test_every_row_runs_on_the_real_states(name: str, script: Script, tmp_path: Path) -> None:
    play(script, TABLES[name][0], tmp_path)


@pytest.mark.parametrize("name", TABLES)
def test_every_pair_of_rows_runs_on_the_real_states(name: str, tmp_path: Path) -> None:
    table, limits = TABLES[name]
    scripts = pair_scripts(table, limits)
    with RowCoverage(table) as coverage:
        for script in scripts:
            play(script, table, tmp_path)
    assert coverage.missed == []
    exact = search(table, limits)
    assert exact is not None
    assert {pair for script in scripts for pair in script.pairs} == exact_pairs(exact)


def made(name: str, limits: Mapping[str, int], home: Path) -> tuple[Workflow[Any], BaseTurn, Any]:
    """The example, a turn of it, and what the world says for the event that a state is to report."""
    if name == "order":
        turn = order.Order(["LAMP", "DESK"], limits=dict(limits))
        return order.workflow(home), turn, lambda event, request, turn: event
    review = review_loop.Review("Write a line.", limits=dict(limits))
    answers = PlayingReview(review_loop.workflow(home=home), review)

    def says(event: str, request: Any, turn: Any) -> Any:
        answers.number += 1
        return answers.says(event)

    return answers.flow, review, says


@pytest.mark.parametrize("name", TABLES)
def test_the_footprints_of_the_rows_are_those_that_were_read(name: str, tmp_path: Path) -> None:
    """Every pair of rows on the durable engine: requests in order, and what changed in the turn."""
    table, limits = TABLES[name]
    found = Footprints(table)

    async def all_of_them() -> None:
        for script in pair_scripts(table, limits):
            flow, turn, says = made(name, script.limits, tmp_path)
            found.add(flow.journal, (await rehearse(flow, turn, script, says)).id)

    asyncio.run(all_of_them())
    assert {row.id for row in table.rows} <= {line.split()[0] for line in found.lines()}
    found.check(Path(__file__).with_name(f"{name}.footprints"))


class ReviewMachine(TurnMachine, table=review_loop.TABLE, limits=review_loop.LIMITS):
    """Random reviews on the real states."""

    def begin(self) -> TurnLike:
        self.playing = playing(self.table, self.limits, ROOT)
        return self.playing.turn

    def move(self, event: str) -> Row:
        return self.playing.move(event)

    def ended(self) -> None:
        assert self.playing.turn.exit is not None
        assert sum(row.dest == "Criticise" for row in self.taken) <= 16, "the bound that verify prints"


class OrderMachine(ReviewMachine, table=order.TABLE, limits=order.LIMITS):
    """Random orders on the real states: what was taken is given back, or a person is notified."""

    def ended(self) -> None:
        ended, acts = self.playing.turn.exit, [row.source for row in self.taken if row.event == "done"]
        if ended in ("cancelled", "sold_out"):
            assert "Charge" not in acts or "Refund" in acts
            assert "Reserve" not in acts or "Release" in acts


@pytest.mark.parametrize("machine", [ReviewMachine, OrderMachine])
def test_random_turns_keep_the_invariants(machine: type[TurnMachine]) -> None:
    few = settings(max_examples=20, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(machine, settings=few)


def test_two_agents_review_until_the_text_is_accepted(tmp_path: Path) -> None:
    writer = ScriptedModel([text("one."), status(403), text("two.")])
    reviewer = ScriptedModel([text("REVISE more"), text("ACCEPT")])
    clock = FakeClock()
    flow = review_loop.workflow(writer, reviewer, tmp_path, clock.sleep)
    result = flow.start(review_loop.Review("Write a line.")).run()
    rows = "Draft.written Criticise.objections/1 Revise.failed/1 Revise.written Criticise.accepted"
    assert " ".join(step.row for step in result.steps) == rows
    assert (result.exit, result.outcome, result.turn.text) == ("accepted", "completed", "two.")
    assert clock.sleeps == [0, 0, 0, 2.0, 0]
    assert [info.asked for info in flow.journal.recent(table="review")] == ["Write a line."]
    asked = flow.journal.recent(table="turn")
    assert len(asked) == 5, "each question to a model is a turn of an agent, in the same home"


@pytest.mark.slow
def test_a_program_prints_how_it_went(tmp_path: Path) -> None:
    env = environment(FSM_AGENT_HOME=str(tmp_path))
    said = printed("-m", "examples.review_loop", "Say it short.", env=env, cwd=tmp_path)
    assert " 2  Criticise  objections  → Revise" in said.splitlines()
    assert said.splitlines()[-1].startswith("accepted: A machine that is in one")


# kill -9

KILLED = """
import os, signal, sys
from pathlib import Path
from examples import order

home, act, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

async def dying(request):
    if request.act == act and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    reply = await order.serve(home, request)
    if request.act == act and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return reply

order.workflow(home, dying).start(order.Order(["LAMP"], turn_id="order-1")).run()
"""


def killed(folder: Path, act: str, when: str) -> None:
    assert ran("-c", KILLED, folder, act, when).returncode == -signal.SIGKILL


def ledger(folder: Path) -> list[str]:
    path = folder / "ledger.jsonl"
    return [json.loads(line)["act"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
@pytest.mark.parametrize(
    "act",
    [pytest.param("reserve", marks=pytest.mark.slow), "charge", pytest.param("ship", marks=pytest.mark.slow)],
)
def test_an_order_survives_kill_9_and_charges_nobody_twice(act: str, when: str, tmp_path: Path) -> None:
    killed(tmp_path, act, when)
    flow = order.workflow(tmp_path)
    result = flow.resume("order-1").run()
    acts = ledger(tmp_path)
    assert acts.count("charge") == (0 if (act, when) == ("charge", "before") else 1)
    if (act, when) == ("charge", "before"):  # the outcome was unknown, so it was looked up: not charged
        assert (result.exit, acts) == ("cancelled", ["reserve", "release"])
    else:
        assert (result.exit, acts[-1]) == ("sent", "ship")
    assert [step.seq for step in flow.journal.steps("order-1")] == list(range(1, result.turn.seq + 1))
    assert flow.journal.info("order-1").outcome == result.outcome


@pytest.mark.slow
def test_only_one_process_continues_an_order(tmp_path: Path) -> None:
    """The old owner is alive but blocked: no other process takes the turn from it."""
    waits = "print('here', flush=True); sys.stdin.readline()"
    waiting = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", waits)
    run = [sys.executable, "-c", waiting, str(tmp_path), "charge", "before"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(run, env=environment(), text=True, **pipes) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline().strip() == "here"
        with pytest.raises(SessionBusy, match="running in process"):
            order.workflow(tmp_path).resume("order-1")
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.wait(PATIENCE) == 0
    assert ledger(tmp_path) == [state.lower() for state in order.FORTH]


@pytest.mark.slow
def test_the_repeated_charge_is_noticed_when_the_engine_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a charge that says nothing of its effect is done again, and the ledger shows it."""
    killed(tmp_path, "charge", "after")
    monkeypatch.setattr(order.Pay, "effect", "idempotent")
    order.workflow(tmp_path).resume("order-1").run()
    assert ledger(tmp_path).count("charge") == 2


def test_an_order_is_forked_with_other_figures(tmp_path: Path) -> None:
    flow = order.workflow(tmp_path)
    first = flow.start(order.Order(["LAMP"])).run()
    (tmp_path / "says.json").write_text(json.dumps({"ship": "failed"}))
    fork = flow.fork(first.turn_id, 2, {"counters": {"tries": 1}, "fields": {"items": ["DESK"]}}).run()
    ended = "Ship.failed/1 Ship.failed/2 Refund.done Release.done"
    assert " ".join(step.row for step in fork.steps).endswith(ended)
    assert (fork.exit, fork.turn.items, first.turn.items) == ("cancelled", ["DESK"], ["LAMP"])


# Sessions, pictures, proofs


def test_sessions_and_insights_show_them(tmp_path: Path, cli: Cli) -> None:
    flow = order.workflow(tmp_path)
    result = flow.start(order.Order(["LAMP"])).run()
    Agent(ScriptedModel([text("hello")]), toolsets=[], home=tmp_path).run_conversation("hi")
    at = ("--home", str(tmp_path))
    listed = cli("sessions", "list", *at)[1]
    assert all(word in listed for word in ("LAMP", "order", "sent"))
    assert "Charge" in cli("sessions", "show", result.turn_id, *at)[1]
    exported = cli("sessions", "export", result.turn_id, *at)[1]
    assert '"look_up"' not in exported
    assert '"act":"charge"' in exported
    assert "sent" in cli("insights", *at)[1]


def test_an_agent_leaves_the_turns_of_other_tables_alone(tmp_path: Path) -> None:
    killed(tmp_path, "charge", "before")
    agent = Agent(ScriptedModel([]), toolsets=[], home=tmp_path)
    with pytest.raises(ConfigError, match="of another table"):
        agent.resume("order-1")
    with pytest.raises(ConfigError, match="of another table"):
        agent.fork("order-1", 1)
    with pytest.raises(ConfigError, match="of another table"):
        review_loop.workflow(home=tmp_path).resume("order-1")
    assert order.workflow(tmp_path).resume("order-1").run().exit == "cancelled"


def test_verify_and_diagram_take_the_table_by_its_name(cli: Cli) -> None:
    name = "examples.review_loop:TABLE"
    said = cli("verify", name, "--long", "--set", "rounds=3", "--set", "retries=2", "--set", "unclears=1")[1]
    assert "visits of Criticise, without caps: at most 16" in said
    parts = {"mermaid": "stateDiagram", "svg": "<svg", "md": "| ", "json": '"review"', "dot": "digraph"}
    for form, part in parts.items():
        said = cli.ok("diagram", name, "--format", form)
        assert part in said


@pytest.mark.parametrize("name", ["review_loop", "order", "nested", "parallel"])
def test_the_generated_files_of_the_examples_are_fresh(name: str) -> None:
    folder = ROOT / "examples" / "diagrams" / name
    named = ["--table", f"examples.{name}:TABLE", "--limits", f"examples.{name}:LIMITS"]
    assert written_diagrams([str(folder), "--check", *named]) == 0


def test_the_page_of_the_examples_says_true_figures() -> None:
    page = (ROOT / "examples" / "README.md").read_text()
    for table, limits, state in (
        (review_loop.TABLE, review_loop.LIMITS, "Criticise"),
        (order.TABLE, order.LIMITS, "Charge"),
    ):
        figures = {f.quantity: f for f in verify_table(table, limits).figures}
        moves, visits = figures["moves"], figures[f"visits of {state}"]
        assert f"at most {moves.value} moves, {visits.value} of them into `{state}`" in page
        assert moves.kind == visits.kind == "exact"


@pytest.mark.parametrize("name", ["review_loop", "order"])
def test_an_example_is_short(name: str) -> None:
    lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 110
