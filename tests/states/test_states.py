"""The eight states report what the table knows, and nothing else."""

from __future__ import annotations

import inspect
import types
from typing import get_args, get_type_hints

import pytest

from fsm_agent.composition.turn_wiring import STATES
from fsm_agent.conversation.result import ExitReason, Outcome
from fsm_agent.fsm.runner import CRASHED
from fsm_agent_states import build_messages, classify_error
from fsm_agent_states.logic.ending import TEXTS
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.logic.recover import RECOVERIES, Unrecovered
from fsm_agent_states.replies import CONTINUED, REPLIES
from fsm_agent_states.table import TURN, StateName

LEFT = [state for state in TURN.states if state != TURN.final]


def module_of(state: str) -> types.ModuleType:
    module = inspect.getmodule(STATES[state])
    assert module is not None
    return module


@pytest.mark.behaviour("FSM-05")
@pytest.mark.parametrize("state", LEFT)
def test_it_says_so_in_its_type(state: str) -> None:
    module = module_of(state)
    returned = get_type_hints(STATES[state])["return"]
    assert get_args(returned)[-1] == module.Event
    assert get_args(get_type_hints(STATES[TURN.final])["return"])[-1] is type(None), (
        "the last one reports nothing"
    )


def test_only_classify_error_says_itself_that_something_crashed() -> None:
    assert [state for state in LEFT if CRASHED in get_args(module_of(state).Event)] == ["ClassifyError"]
    assert CRASHED in get_args(classify_error.Family)


@pytest.mark.behaviour("FSM-06")
def test_a_recovery_reports_events_of_the_state_that_performs_it() -> None:
    assert set(get_args(Unrecovered)) < set(get_args(build_messages.Event))
    assert set(RECOVERIES) <= {counter.name for counter in TURN.counters}


def test_every_event_that_is_continued_has_words_for_it() -> None:
    continued = {row.event for row in TURN.rows if "continuations" in row.spends}
    assert CONTINUED.keys() == continued
    assert continued <= REPLIES.keys() <= set(TURN.events("CallLLM"))


@pytest.mark.parametrize("state", TURN.states)
def test_a_state_is_read_on_two_screens(state: str) -> None:
    assert len(inspect.getsource(module_of(state)).splitlines()) <= 130


@pytest.mark.behaviour("FSM-01")
def test_the_states_are_named_once() -> None:
    named = (get_args(StateName), STATES, LAYOUT["boxes"], LAYOUT["map"]["boxes"])
    assert all(set(names) == set(TURN.states) for names in named)


def test_every_bad_end_is_explained() -> None:
    silent = {reason for reason in ExitReason if reason.outcome in (Outcome.COMPLETED, Outcome.INTERRUPTED)}
    assert set(ExitReason) - set(TEXTS) == silent | {ExitReason.MAX_ITERATIONS_SUMMARY}
