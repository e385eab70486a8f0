"""A table of one's own: the review loop in ``examples/`` gets all that the engine's turn gets, without touching the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from examples.review_loop import main as program
from examples.review_loop.requests import Ask, Rest
from examples.review_loop.review import Review
from examples.review_loop.table import TABLE
from examples.review_loop.turn import LIMITS, ReviewTurn
from fsm_agent import Agent, Step
from fsm_agent.cli import main as command
from fsm_agent.diagram.__main__ import main as written_diagrams
from fsm_agent.fsm.journal import Exchange
from fsm_agent.fsm.table import Row
from fsm_agent.fsm.turn_protocol import TurnLike
from fsm_agent.fsm.verify import search, verify_table
from fsm_agent.testing import FakeClock, Look, RowCoverage, Script, ScriptedModel, ids_of, pair_scripts, row_scripts, status, text
from fsm_agent.testing.machine import TurnMachine
from tests.test_verify_cover import exact_pairs


class Told:
    """An agent that says what it was told to say; ``None`` fails, a bug is raised."""

    def __init__(self) -> None:
        self.next: Any = ""
        self.prompts: list[str] = []

    async def arun(self, user_message: str) -> Any:
        self.prompts.append(user_message)
        if isinstance(self.next, Exception):
            raise self.next
        return FakeResult(self.next)


class FakeResult:
    def __init__(self, said: str | None) -> None:
        self.completed, self.final_response, self.error = said is not None, said, None if said else "the provider is down"


class Playing:
    """A review whose models say what makes its states report a given event."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.turn = ReviewTurn("review", "Write a line.", dict(limits))
        self.writer, self.reviewer, self.clock = Told(), Told(), FakeClock()
        self.review = Review(self.turn, self.writer, self.reviewer, self.clock)
        self.look = Look(TABLE, self.turn)
        self.texts = 0

    async def move(self, event: str) -> Row:
        self.texts += 1
        said: dict[str, Any] = {
            "written": f"text {self.texts}",
            "unchanged": self.turn.text,
            "accepted": "ACCEPT.",
            "objections": "REVISE: too short",
            "unclear": "Hm, well.",
            "failed": None,
            "crashed": RuntimeError("a bug"),
            "cancelled": "too late",
        }
        self.writer.next = self.reviewer.next = said[event]
        self.turn.cancelled = event == "cancelled"
        step = await self.review.step()
        assert step is not None
        assert step.event == event
        row = TABLE.row(step.row)
        self.look.moved(event, row)
        return row


async def play(script: Script) -> Playing:
    playing = Playing({name: script.limits[name] for name in LIMITS})
    rows = [await playing.move(row.event) for row in script.rows]
    assert tuple(rows) == script.rows
    assert await playing.review.step() is None
    assert playing.turn.exit == script.rows[-1].exit
    return playing


PAIR_LIMITS = {"rounds": 2, "retries": 2, "unclears": 1}
ROWS, PAIRS = row_scripts(TABLE), pair_scripts(TABLE, PAIR_LIMITS)


@pytest.mark.parametrize("script", ROWS, ids=ids_of(ROWS))
def test_every_row_runs_on_the_real_states(script: Script) -> None:
    asyncio.run(play(script))


def test_every_pair_of_rows_runs_on_the_real_states() -> None:
    with RowCoverage(TABLE) as coverage:
        for script in PAIRS:
            asyncio.run(play(script))
    assert coverage.missed == []
    exact = search(TABLE, PAIR_LIMITS)
    assert exact is not None
    assert {pair for script in PAIRS for pair in script.pairs} == exact_pairs(exact)


def test_a_retry_waits_longer_each_time_and_is_given_back_by_a_text() -> None:
    async def failing_twice() -> Playing:
        playing = Playing(LIMITS)
        for event in ("failed", "failed", "written", "failed"):
            await playing.move(event)
        return playing

    playing = asyncio.run(failing_twice())
    assert playing.clock.sleeps == [2.0, 4.0]
    assert playing.turn.count("retries") == 1


def test_the_journal_of_a_review_tells_every_move_and_request() -> None:
    playing = asyncio.run(play(next(script for script in PAIRS if "objections" in script.events)))
    journal = playing.review.journal
    assert [step.row for step in journal.steps] == [row.id for row in _rows(journal.steps)]
    asked = [exchange.request for exchange in journal.exchanges]
    assert all(isinstance(request, Ask | Rest) for request in asked)
    assert any("A reviewer says: too short" in request.prompt for request in asked if isinstance(request, Ask))
    assert all(isinstance(exchange, Exchange) for exchange in journal.exchanges)


def _rows(steps: list[Step]) -> list[Row]:
    return [TABLE.row(step.row) for step in steps]


class ReviewMachine(TurnMachine, table=TABLE, limits=LIMITS):
    """Random reviews on the real states."""

    def begin(self) -> TurnLike:
        self.playing = Playing(self.limits)
        return self.playing.turn

    def move(self, event: str) -> Row:
        return asyncio.run(self.playing.move(event))

    def ended(self) -> None:
        assert self.playing.turn.exit is not None
        assert sum(row.dest == "Criticise" for row in self.taken) <= 16, "the bound that verify prints"


def test_random_reviews_keep_the_invariants() -> None:
    run_state_machine_as_test(ReviewMachine, settings=settings(max_examples=20, stateful_step_count=20, deadline=None))


def test_every_review_is_proved_to_end() -> None:
    report = verify_table(TABLE, LIMITS)
    assert report.ok
    exact = search(TABLE, LIMITS)
    assert exact is not None
    assert exact.most_visits(["Criticise"]) == 16


def test_two_agents_review_until_the_text_is_accepted(tmp_path: Path) -> None:
    writer = Agent(ScriptedModel([text("one."), status(403), text("two.")]), toolsets=[], home=tmp_path / "w", clock=FakeClock())
    reviewer = Agent(ScriptedModel([text("REVISE more"), text("ACCEPT")]), toolsets=[], home=tmp_path / "r", clock=FakeClock())
    turn, clock = ReviewTurn("review", "Write a line."), FakeClock()

    async def run() -> list[str]:
        return [step.row async for step in Review(turn, writer, reviewer, clock)]

    rows = asyncio.run(run())
    writer.close()
    reviewer.close()
    assert rows == ["Draft.written", "Criticise.objections/1", "Revise.failed/1", "Revise.written", "Criticise.accepted"]
    assert (turn.exit, turn.text, clock.sleeps) == ("accepted", "two.", [2.0])


def test_the_program_steps_through_a_review(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " 2  Criticise  objections  → Revise     (rounds left: yes)" in lines
    assert lines[-1].startswith("accepted: A machine that is in exactly one")


def test_verify_and_diagram_take_the_table_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    name = "examples.review_loop.table:TABLE"
    assert command(["verify", name, "--set", "rounds=3", "--set", "retries=2", "--set", "unclears=1"]) == 0
    assert "visits of Criticise, without caps: at most 16" in capsys.readouterr().out
    for form, part in {"mermaid": "stateDiagram", "svg": "<svg", "md": "| ", "json": '"review"', "dot": "digraph"}.items():
        assert command(["diagram", name, "--format", form]) == 0
        assert part in capsys.readouterr().out


def test_the_generated_files_of_the_example_are_fresh() -> None:
    folder = Path(__file__).parents[1] / "examples" / "review_loop" / "diagrams"
    named = ["--table", "examples.review_loop.table:TABLE", "--limits", "examples.review_loop.turn:LIMITS"]
    assert written_diagrams([str(folder), "--check", *named]) == 0
    page = (folder.parent / "README.md").read_text()
    figures = {f.quantity: f for f in verify_table(TABLE, LIMITS).figures}
    assert f"at most {figures['moves'].value} moves, {figures['visits of Criticise'].value} of them into `Criticise`" in page
    assert figures["moves"].kind == figures["visits of Criticise"].kind == "exact"
