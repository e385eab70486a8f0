"""Every row of the turn's table, every pair of rows that can follow each other, and random turns, on the
real engine.

The checker makes the scripts, a driver arranges the world so that the real states report their events, and
every move of the engine is compared with the script. All invariants are checked after every move."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from fsm_agent import Agent, TurnResult, tool
from fsm_agent.composition.turn_wiring import STATES
from fsm_agent.conversation.effects import CallModel, ModelRequest, Wait, Waited
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.fsm.journal import Exchange
from fsm_agent.fsm.verify.cover import Paths
from fsm_agent.fsm.verify.goals import Aim, pair_goals
from fsm_agent.support.threads import LOOP
from fsm_agent.testing import (
    FakeClock,
    Footprints,
    PossibleScript,
    RowCoverage,
    Script,
    ScriptedServer,
    overflow,
    possible_scripts,
    status,
    text,
)
from fsm_agent.testing.invariants import Visit, a_request_is_paid_for, recovery_is_performed
from fsm_agent.testing.machine import AgentMachine, World
from fsm_agent.testing.strategies import answers_for
from fsm_agent_states.table import TURN
from tests.helpers.harness import SHOWN, assert_legal_path, assert_possible_pairs, talk
from tests.helpers.sample import sampled
from tests.helpers.shape_watch import ShapeWatch
from tests.helpers.tables import DEFAULTS
from tests.helpers.turn_driver import TOOLS, WINDOW, Driver, Interferer, settings_in
from tests.helpers.turn_facts import CONFIGS, Config, TurnFacts, more_configs
from tests.helpers.turn_pairs import BY_HAND, REASONS, why_not

LONG = talk(12, "words and more words " * 60)
GREETING = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})
FOOTPRINTS = Path(__file__).with_name("turn.footprints")


def scripts(
    given: Iterable[Config], *, pairs: bool, most_places: int
) -> Iterator[tuple[Config, PossibleScript]]:
    """Scripts that together take all rows (or pairs) that are near the start in some configuration."""
    covered: set[Aim] = set()
    for config in given:
        facts = TurnFacts(config)
        for script in possible_scripts(
            TURN, config.limits, facts, pairs=pairs, skip=covered, most_places=most_places
        ):
            covered |= {(row.id,) for row in script.rows} | set(script.pairs)
            yield config, script


def play(
    given: Iterable[tuple[Config, PossibleScript]], home: Path, footprints: Footprints | None = None
) -> tuple[RowCoverage, int]:
    """Play every script on the engine; the rows that it took, and the number of scripts."""
    played = 0

    async def all_of_them(url: str) -> None:
        nonlocal played
        for config, script in given:
            driver = Driver(script, config, home, url)
            turn, result = await driver.play()
            driver.agent.close()
            if footprints is not None:
                footprints.add(driver.agent.journal, turn.id)
            assert_legal_path(turn.steps, result)
            assert_possible_pairs(turn.steps)
            assert sum(bool(result[name]) for name in SHOWN) == 1
            played += 1

    with ScriptedServer([]) as server, RowCoverage(TURN) as coverage:
        asyncio.run(all_of_them(server.url))
    assert not server.requests, "a model with too small a window is never asked"
    return coverage, played


@pytest.mark.behaviour("FSM-06", "LOOP-01", "PREP-13b")
def test_every_row_of_the_turn_runs_on_the_engine(tmp_path: Path) -> None:
    coverage, played = play(scripts(CONFIGS, pairs=False, most_places=2_000), tmp_path)
    assert coverage.missed == []
    assert played <= 120


@pytest.mark.slow
def test_the_footprints_of_the_turn_are_those_that_were_read(tmp_path: Path) -> None:
    """Of pairs of rows too, so that what one visit leaves behind is seen in the next."""
    footprints = Footprints(TURN)
    for pairs in (False, True):
        play(scripts(CONFIGS, pairs=pairs, most_places=2_000), tmp_path, footprints)
    footprints.check(FOOTPRINTS)


SMALL: dict[str, Any] = {"model": "llamacpp:small", "context_window": 32_000}


def test_a_window_that_a_refusal_names_may_be_too_small_for_the_prompt(tmp_path: Path) -> None:
    with ScriptedServer([overflow(100), text("a summary.")]) as server:
        taken, _ = rows_of(tmp_path, server, SMALL, [], LONG)
    assert ("Compress.compressed", "BuildMessages.window_too_small") in BY_HAND & taken


def test_a_window_that_a_refusal_names_may_be_smaller_than_the_next_models(tmp_path: Path) -> None:
    """The error is classified before the window is learned from it; only then does the turn know that the
    next model is wider."""
    with ScriptedServer([overflow(8192), text("ok")]) as server:
        taken, result = rows_of(tmp_path, server, {}, [{"model": "local:large", "context_window": 20_000}])
    assert ("ClassifyError.overflow/2", "Compress.outgrown/1") in BY_HAND & taken
    assert result.final_response == "ok"


def test_and_there_may_be_no_fallback_left_to_go_to_it(tmp_path: Path) -> None:
    chain = [{"model": "local:other"}, {"model": "local:m", "context_window": 20_000}]
    with ScriptedServer([status(429), overflow(8192)]) as server:
        taken, result = rows_of(tmp_path, server, {"context_window": 20_000}, chain)
    assert ("ClassifyError.overflow/2", "Compress.outgrown/2") in BY_HAND & taken
    assert result.turn_exit_reason == "overflow_uncompressible"


def test_the_last_word_may_fit_without_the_tools_that_were_too_much(tmp_path: Path) -> None:
    def look(place: str) -> str:
        return place

    look.__doc__ = "words and more words " * 900
    options = {
        "model": "openai:m", "api_key": "sk-of-nobody", "tools": [look], "context_window": 4_000,
        "settings": {"max_iterations": 0, "compression": {"preflight_passes": 0}},
    }  # fmt: skip
    with ScriptedServer([text("all that I know")]) as server:
        taken, result = rows_of(tmp_path, server, options, [])
    assert ("BuildMessages.oversized/5", "BuildMessages.built/2") in BY_HAND & taken
    assert result.turn_exit_reason == "max_iterations_summary"


@pytest.mark.parametrize("row", ["Compress.unsummarized/3", "Compress.lost/3", "Compress.unaffordable/2"])
def test_a_window_may_be_too_small_for_a_history_that_stays_as_it_is(tmp_path: Path, row: str) -> None:
    settings = {"compression": {"without_model": False}, "max_lost_requests": 0}
    with ScriptedServer([overflow(100), status(400)]) as server:
        given = {**SMALL, "base_url": server.url, "settings": settings}
        with Agent(toolsets=[], home=tmp_path, clock=FakeClock(), **given) as agent:
            turn = agent.start("go", conversation_history=LONG)
            interferer = Interferer(lambda: None)
            interferer.checks = "unaffordable" in row
            turn.gate.attach(interferer)
            while (step := LOOP.run(turn.step())) is not None:
                interferer.lost = "lost" in row and step.dest == "Compress"
                interferer.event = "unaffordable" if interferer.checks and step.dest == "Compress" else ""
    taken = {*pairwise(step.row for step in turn.steps)}
    assert (row, "BuildMessages.window_too_small") in BY_HAND & taken


LOOKED = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
OLD_RESULT: list[dict[str, Any]] = [
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": "", "tool_calls": [LOOKED]},
    {"role": "tool", "tool_call_id": "call_1", "content": "seen " * 16_000},
    *({"role": role, "content": f"{role} {number}"} for number in range(6) for role in ("assistant", "user")),
    {"role": "assistant", "content": "well"},
]
"""80,000 characters, nearly all of them in a result that may be left out."""


@pytest.mark.parametrize(
    ("first", "refused", "window", "wider"),
    [
        ("BuildMessages.oversized/2", None, 20_000, None),
        ("ClassifyError.overflow/2", 20_000, None, None),
        ("ClassifyError.outgrown/2", 32_000, 32_000, 64_000),
    ],
)
def test_an_old_result_is_left_out_and_nobody_is_asked_for_a_summary(
    tmp_path: Path, first: str, refused: int | None, window: int | None, wider: int | None
) -> None:
    refusal = [overflow(refused)] if refused else []
    with ScriptedServer([*refusal, text("ok")]) as server:
        fallbacks = [{"model": "local:wider", "context_window": wider}] if wider else []
        taken, result = rows_of(tmp_path, server, {"context_window": window}, fallbacks, OLD_RESULT)
        assert server.completions == len(refusal) + 1
    assert (first, "Compress.compressed") in BY_HAND & taken
    assert result.final_response == "ok"


def rows_of(
    home: Path,
    server: ScriptedServer,
    options: dict[str, Any],
    fallbacks: list[dict[str, Any]],
    history: Sequence[dict[str, Any]] = GREETING,
) -> tuple[set[tuple[str, ...]], TurnResult]:
    """The pairs of rows that a turn takes, and its result."""
    chain = [{"base_url": server.url, **one} for one in fallbacks]
    given = {"model": "local:m", **options}
    agent = Agent(base_url=server.url, fallbacks=chain, toolsets=[], home=home, clock=FakeClock(), **given)
    turn = agent.start("go", conversation_history=history)
    result = turn.run()
    agent.close()
    assert_legal_path(turn.steps, result)
    return set(pairwise(step.row for step in turn.steps)), result


def pairs_of_the_table() -> set[Aim]:
    """Every two rows that can follow each other at the default limits, as far as counters go."""
    paths = Paths(TURN, DEFAULTS)
    return {goal.aim for goal in pair_goals(paths.graph, DEFAULTS) if paths.possible(goal)}


@pytest.mark.slow
def test_every_pair_of_rows_of_the_turn_runs_on_the_engine(tmp_path: Path) -> None:
    """Of the pairs that the counters allow each is in a script, or a fact is named that forbids it; no pair is
    both. A sample of the scripts is played."""
    made = list(scripts(more_configs(), pairs=True, most_places=8_000))
    play(sampled(made, "pairs of rows"), tmp_path)
    table, scripted = pairs_of_the_table(), {aim for _, script in made for aim in script.pairs}
    forbidden = {aim: why_not(TURN.row(aim[0]), TURN.row(aim[1])) for aim in table | scripted}
    reasons = Counter(reason for aim, reason in forbidden.items() if reason and aim in table)
    told = "\n".join(f"{count:5} {reason}" for reason, count in reasons.most_common())
    print(
        f"{len(table)} pairs at the default limits, {len(scripted & table)} of them in {len(made)} scripts,"
        f" {len(table - scripted)} not:\n{told}"
    )
    print(f"{len(scripted - table)} more under other limits")
    print("\n".join(map(str, sorted(aim for aim in table - scripted if not forbidden[aim]))))
    unexplained = {aim for aim in table - scripted if not forbidden[aim]}
    assert sorted(unexplained - BY_HAND) == [], "in no script and not forbidden"
    assert sorted(BY_HAND - unexplained) == [], "played by hand without need"
    assert {aim: forbidden[aim] for aim in scripted if forbidden[aim]} == {}
    assert set(reasons) == set(REASONS), "no reason without a pair"
    assert len(scripted & table) >= 600


@tool(approval="ask")
def danger(name: str) -> str:
    """Need approval."""
    return f"did it to {name}"


def world_of(config: Config) -> World:
    """A configuration of the turn in which some rows are near, and the scripts that take them."""
    limits, window = config.limits, WINDOW if config.window else None
    scripts = possible_scripts(TURN, limits, TurnFacts(config), most_places=500)
    chain = [
        window and window + 1_000 * n * (config.chain != "equal") for n in range(limits["fallbacks"] + 1)
    ]
    return World(settings_in(config), chain, limits["rekeys"] + 1, None, scripts)


class Turns(AgentMachine, tools=[*TOOLS, danger]):
    """In any world, and with the transcript's declared shapes watched."""

    def visited(self, visit: Visit) -> None:
        if len(self.visits) == 1:
            self.shapes = ShapeWatch(self.turn.gate.turn)
        if visit.row is not None:
            self.shapes.moved(visit.row.id)
        else:
            self.shapes.ended()


TestTurns = Turns.TestCase
FEW: dict[str, Any] = {"max_examples": 5, "stateful_step_count": 30, "derandomize": True}
TestTurns.settings = settings(deadline=None, suppress_health_check=list(HealthCheck), **FEW)
AT_LENGTH = settings(TestTurns.settings, stateful_step_count=100, phases=[Phase.generate])


@pytest.mark.slow
def test_sixty_agents_take_most_rows() -> None:
    """Three in each world in which some rows are near. A failure is not made shorter here, which would take
    minutes."""
    with RowCoverage(TURN) as coverage:
        for world in [world_of(config) for config in CONFIGS]:

            class Near(Turns, tools=Turns.tools, worlds=st.just(world)):
                pass

            run_state_machine_as_test(Near, settings=settings(AT_LENGTH, max_examples=3))
    print(coverage.summary())
    assert len(coverage.missed) <= 45


def visit(state: str, came: str, row: str, *exchanges: Exchange) -> Visit:
    return Visit(state, TURN.row(came), list(exchanges), TURN.row(row))


WAITED = Exchange(3, "BuildMessages", 0, Wait("exception", 1, "again"), Waited(1.0, False))
SENT = Exchange(3, "CallLLM", 0, CallModel(ModelRequest(b"{}"), 1.0, 1.0), ModelReply("hi"))


def test_a_recovery_that_is_ordered_is_performed_and_a_visit_of_call_llm_is_one_request() -> None:
    for kept in ([WAITED], []):
        one = visit("BuildMessages", "ClassifyError.server_error/1", "BuildMessages.built/2", *kept)
        with nullcontext() if kept else pytest.raises(AssertionError, match="ordered Wait"):
            recovery_is_performed(one, None)
    for requests in range(3):
        one = visit("CallLLM", "BuildMessages.built/3", "CallLLM.text", *[SENT] * requests)
        with nullcontext() if requests == 1 else pytest.raises(AssertionError, match="paid for 1"):
            a_request_is_paid_for(one, None)


def test_a_second_request_anywhere_is_seen_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = STATES["EmptyRecovery"]

    def asking(turn: Any) -> Any:
        yield CallModel(turn.call.request, 1.0, 1.0)
        return (yield from usual(turn))

    monkeypatch.setitem(STATES, "EmptyRecovery", asking)
    blanks = World({"max_iterations": 5, "empty": {"retries": 3}}, scripts=[script_of("blank", "nothing")])

    class Blank(Turns, tools=Turns.tools, worlds=st.just(blanks)):
        pass

    with pytest.raises(AssertionError, match="EmptyRecovery"):
        run_state_machine_as_test(Blank, settings=AT_LENGTH)


def script_of(*events: str) -> Script:
    """A script of which only the events count."""
    rows = tuple(next(row for row in TURN.rows if row.event == event) for event in events)
    return Script(rows, {}, (), 0)


def test_answers_for_a_script() -> None:
    events = "ready built tools bad_json built error bad_key built blank thought text"
    assert answers_for(events.split()) == ["bad json", "401", "thought", "text"]
