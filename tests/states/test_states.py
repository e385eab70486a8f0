"""The eight states report what the table knows, and nothing else; every field of a turn has one owner."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from fsm_agent.composition.turn_wiring import STATES
from fsm_agent.conversation.result import ExitReason, Outcome
from fsm_agent.fsm.codec import fields_of, parts_of
from fsm_agent.fsm.runner import CRASHED
from fsm_agent_states import build_messages, classify_error
from fsm_agent_states.logic.ending import TEXTS
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.logic.parts import OWNERS
from fsm_agent_states.logic.recover import RECOVERIES, Unrecovered
from fsm_agent_states.replies import CONTINUED, REPLIES
from fsm_agent_states.table import TURN, StateName
from fsm_agent_states.turn import TurnState

LEFT = [state for state in TURN.states if state != TURN.final]


def module_of(state: str) -> types.ModuleType:
    module = inspect.getmodule(STATES[state])
    assert module is not None
    return module


@pytest.mark.behaviour("FSM-05")
@pytest.mark.parametrize("state", LEFT)
def test_the_type_of_its_events_is_its_lines_in_the_table(state: str) -> None:
    """mypy holds that a state returns no other word, and row coverage that it returns each of them. The runner
    reports ``crashed`` for every state; only ClassifyError does it also for bugs elsewhere."""
    reports = get_type_hints(STATES[state])["return"]
    assert get_args(reports)[-1] == module_of(state).Event
    by_itself = set(get_args(module_of(state).Event))
    assert by_itself | {CRASHED} == set(TURN.events(state))
    assert (CRASHED in by_itself) == (state == "ClassifyError")
    assert get_args(get_type_hints(STATES[TURN.final])["return"])[-1] is type(None), "it reports nothing"
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


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "states" / "fsm_agent_states"
WALKED = [
    *FOLDER.rglob("*.py"), *(ROOT / "fsm_agent" / "composition").rglob("*.py"), ROOT / "fsm_agent" / "agent.py",
    *(ROOT / "fsm_agent" / "sessions").rglob("*.py"), *(ROOT / "fsm_agent" / "fsm").rglob("*.py"),
]  # fmt: skip
MUTATORS = frozenset({
    "append", "extend", "insert", "remove", "pop", "popitem", "clear", "add", "discard", "update", "setdefault", "sort",
    "reverse", "difference_update", "intersection_update", "symmetric_difference_update",  # of lists, sets and mappings
    "forget", "read", "note", "refuses",  # of the meter and the guardrails
})  # fmt: skip
PARTS = {part: {one.name for one in dataclasses.fields(kind)} for part, kind in parts_of(TurnState).items()}
ITS_OWN = {field.name for field in dataclasses.fields(TurnState)} - set(PARTS)
TURNS = {"turn", "state"}
"""What a turn is called."""
ENGINES = {name: {"state", "seq"} for name in ("fsm.machine", "fsm.runner")}
"""Fields that every turn of every table has, and who writes them: by a row, or as they were before a bug."""


def name_of(node: ast.expr) -> str:
    """The last name of what an attribute is looked up in: ``draft`` of ``turn.draft.held``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def fields_in(node: ast.expr) -> Iterator[tuple[str, str]]:
    """The part ("" for the turn itself) and name of each field that such an expression leads through."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            holder = name_of(node.value)
            if node.attr in PARTS.get(holder, ()):
                yield holder, node.attr
            elif isinstance(node.value, ast.Name) and holder in TURNS and node.attr in ITS_OWN:
                yield "", node.attr
        node = node.value


def writes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The part and name of every field that a module writes."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield from fields_in(node)
            case ast.Call(func=ast.Attribute(attr=called, value=holder)) if called in MUTATORS:
                yield from fields_in(holder)
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[holder, *_]):
                if (name := name_of(holder)) in {*PARTS, *TURNS}:
                    yield name if name in PARTS else "", "anything"


def renamed(tree: ast.AST) -> Iterator[str]:
    """Parts that a module gives another name, under which ``writes`` would not see them."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            both = (target, node.value)
            pairs = zip(*(one.elts if isinstance(one, ast.Tuple) else [one] for one in both), strict=False)
            for name, value in pairs:
                if isinstance(value, ast.Attribute) and value.attr in PARTS and name_of(value.value) in TURNS:
                    yield from [value.attr] if name_of(name) != value.attr else []


def module_name(path: Path) -> str:
    """``logic.recover`` for a module of the states, ``composition.services`` for one of the engine."""
    home = FOLDER if path.is_relative_to(FOLDER) else ROOT / "fsm_agent"
    return ".".join(path.relative_to(home).with_suffix("").parts)


def is_allowed(module: str, part: str, field: str) -> bool:
    if part:
        return OWNERS[part] == module
    return field in ENGINES.get(module, ())


def test_a_field_is_written_by_its_owner_alone() -> None:
    for path in WALKED:
        tree, module = ast.parse(path.read_text(encoding="utf-8")), module_name(path)
        foreign = {(part, field) for part, field in writes(tree) if not is_allowed(module, part, field)}
        assert not foreign, f"{module} should call a method of these parts, which says what happens"
        assert not list(renamed(tree)), f"{module}: a part has the same name everywhere"


def test_every_part_has_an_owner_and_every_owner_one_part() -> None:
    assert set(OWNERS) == set(PARTS)
    owners = [owner for owner in OWNERS.values() if owner is not None]
    assert len(set(owners)) == len(owners)
    for part, owner in OWNERS.items():
        if owner is not None:
            tree = ast.parse((FOLDER / f"{owner.replace('.', '/')}.py").read_text(encoding="utf-8"))
            assert part in {part for part, _ in writes(tree)}, "it writes nothing"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("turn.draft.held = ''", ("draft", "held")), ("draft.held += 'x'", ("draft", "held")),
        ("turn.draft.fragments.append('x')", ("draft", "fragments")),
        ("state.accounting.meter.muted = True", ("accounting", "meter")),
        ("turn.accounting.meter.forget()", ("accounting", "meter")),
        ("turn.accounting.usages[key] = 1", ("accounting", "usages")),
        ("call.stepped, x = 1, 2", ("call", "stepped")),
        ("del turn.tooling.unchanged_files[path]", ("tooling", "unchanged_files")),
        ("turn.limits['fallbacks'] = 0", ("", "limits")), ("turn.history.extend(rows)", ("", "history")),
        ("turn.counts['retries'] = 3", ("", "counts")), ("turn.exit = None", ("", "exit")),
        ("setattr(turn.ending, name, value)", ("ending", "anything")),
        ("for turn.setup.runtime in chain: pass", ("setup", "runtime")),
    ],
)  # fmt: skip
def test_the_walk_sees_every_way_to_write(code: str, found: tuple[str, str]) -> None:
    assert list(writes(ast.parse(code))) == [found]


def test_the_walk_sees_a_part_under_another_name_and_reading_is_free() -> None:
    assert list(renamed(ast.parse("setup, text = turn.setup, turn.draft"))) == ["draft"]
    code = "x = turn.draft.held + call.visible; turn.draft.begun.strip(); other.update(turn.limits)"
    assert not list(writes(ast.parse(code)))


def test_what_is_stored_of_a_turn_is_flat() -> None:
    """The names that journals have had since there are any: counters, the turn's own fields, and those of its
    parts."""
    names = {field.name for field in fields_of(TurnState)}
    assert not names & set(PARTS)
    assert names == {
        "counts", "unsent", "silences", "begun_at", "bug", "asks", "replies",
        "unsummarized", "turn_id", "session_id", "task_id", "user_content", "state", "seq",
        "limits", "runtime", "tools", "attended", "system_prompt", "workdir", "ephemeral_prompt", "has_memory",
        "review_due", "unnamed", "parent_session_id", "supplied_history", "request", "reply", "visible", "thoughts", "failure",
        "failure_class", "sent", "issuer", "usages", "last_prompt_tokens", "meter", "prepaid", "stepped", "repairs_done",
        "pending_repair", "output_cap", "scaffold", "forced", "focus", "auxiliary", "compacted_before",
        "compaction_blocked", "fallback_activated", "fragments", "held", "unchecked", "prior_content", "partial",
        "last_reasoning", "answer", "needs_break", "unverified", "unchanged_files", "guardrails", "compressions", "exit",
        "final_response", "response_transformed", "error", "kept_files", "interrupt_message", "pending_steer", "cleanup_errors",
        "suspected", "lessons", "has_engine", "chosen", "hint", "checks", "rejected", "admitted", "passed",
        "blocked", "handed_to", "handed_note", "agent", "handoffs", "affordable", "limit", "output", "objection",
            "trace",
    }  # fmt: skip


def test_a_turn_is_made_from_flat_names() -> None:
    runtime = next(field for field in fields_of(TurnState) if field.name == "runtime")
    assert runtime.path == "setup.runtime"
    with pytest.raises(TypeError, match="no field 'spent'"):
        TurnState.of(spent=1)
