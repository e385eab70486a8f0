"""What the code of each state can report, the type of its events, and the lines of the table are one set.

An event without a line would end the turn as a bug; a line that nobody reports would be proved and drawn for
nothing, and would hide that a remedy is not used any more."""

from __future__ import annotations

import ast
import inspect
import linecache
from typing import Any, get_args

import pytest

from fsm_agent.composition.turn_wiring import STATES
from fsm_agent.fsm.runner import CRASHED
from fsm_agent_states import classify_error
from fsm_agent_states.table import TURN
from tests.helpers.reported_events import CannotFollow, own_nodes, reported_events

LEFT = [state for state in TURN.states if state != TURN.final]


@pytest.mark.parametrize("state", LEFT)
def test_a_state_can_report_just_what_its_type_and_the_table_say(state: str) -> None:
    """``crashed`` is reported for every state by the runner; ClassifyError does it also for bugs
    elsewhere."""
    module = inspect.getmodule(STATES[state])
    assert reported_events(STATES[TURN.final]) == set()
    written, lines = reported_events(STATES[state]), set(TURN.events(state))
    typed = set(get_args(module.Event))  # type: ignore[union-attr]  # each has one
    assert written - lines == set(), "reported, and the table has no line for it"
    assert lines - written == ({CRASHED} if state != "ClassifyError" else set()), "a line that nobody reports"
    assert written == typed


# The reader sees what is there


FAMILIES = {"teapot": "short_and_stout", "kettle": "boiled"}


def steeped(turn: Any) -> Any:
    yield "water"
    return "cold" if turn else None


def poured(turn: Any) -> Any:
    if turn.spilled:
        return poured(turn.rest)
    return "spilled"


WAYS = {"steep": steeped, "pour": poured}


def brew(turn: Any) -> Any:
    def never_asked() -> str:
        return "not of this state"

    for way, perform in WAYS.items():
        if way in turn and (event := (yield from perform(turn))):
            return event
    if turn.dry:
        return (yield from steeped(turn))
    kind = FAMILIES[turn.name] if turn.full else ValueError("leaks")
    if turn.again:
        kind = "again"
    return turn.kind or kind


def served(turn: Any) -> Any:
    yield "cup"
    kind: Any = "hot"
    if turn.late:
        kind = poured(turn) or FAMILIES[turn.name]
    if isinstance(kind, ValueError):
        return "bug"
    return kind if turn.thirsty else "left"


def named(turn: Any) -> Any:
    for kind, word in FAMILIES.items():
        if word in turn.words:
            return kind
    raise ValueError("nameless")


def test_choices_helpers_names_and_mappings_are_followed() -> None:
    assert reported_events(steeped) == {"cold"}
    assert reported_events(poured) == {"spilled"}
    assert reported_events(named) == {"teapot", "kettle"}
    assert reported_events(served) == {"hot", "spilled", "short_and_stout", "boiled", "bug", "left"}


def unpacked(turn: Any) -> Any:
    kind = "cold"
    if turn.late:
        kind, _ = turn.both
    return kind


def matched(turn: Any) -> Any:
    match turn.cup:
        case {"kind": kind}:
            return kind


def grown(turn: Any) -> Any:
    kind = "hot"
    kind += "ter"
    return kind


def handed(turn: Any, kind: str = "full") -> Any:
    return kind


@pytest.mark.parametrize(
    ("state", "words"),
    [(brew, "turn.kind"), (unpacked, "kind"), (matched, "kind"), (grown, "kind"), (handed, "kind")],
)
def test_what_cannot_be_read_is_refused(state: Any, words: str) -> None:
    with pytest.raises(CannotFollow, match=rf"{state.__name__}: {words} cannot be followed to events"):
        reported_events(state)


def test_a_report_that_is_planted_or_removed_anywhere_changes_what_is_read() -> None:
    """Every ``return`` of a text in ClassifyError and its helpers: another text is seen, and the old one
    missed."""
    source = inspect.getsource(classify_error)
    usual = reported_events(classify_error.classify_error)
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    returns = [node for one in functions for node in own_nodes(one) if isinstance(node, ast.Return)]
    texts = [node.value for node in returns if isinstance(node.value, ast.Constant)]
    assert len(texts) > 5
    for text in texts:
        kept, text.value = text.value, "planted"
        assert "planted" in _events_of(ast.unparse(tree)), kept
        text.value = kept
    assert _events_of(ast.unparse(tree)) == usual


def _events_of(source: str) -> frozenset[str]:
    """What a version of the module's code reports."""
    name = "<planted>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "planted"}
    exec(compile(source, name, "exec"), space)
    return reported_events(space["classify_error"])
