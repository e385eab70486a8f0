"""Tables as machines of other engines, and back: the same rows; what a table does not have is named."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from examples import nested, order, parallel, review_loop
from fsm_agent.diagram import render
from fsm_agent.diagram.scxml import as_scxml, from_scxml
from fsm_agent.diagram.statecharts import as_xstate, from_xstate
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Counter, Rung, Table, any_of, end, go, left, lines_of, on
from fsm_agent_states.table import COMPACTION, TURN
from tests.fsm.test_verify_random import random_table
from tests.helpers.command_line import Cli
from tests.helpers.diagram_tables import SMALL, SMALL_LIMITS
from tests.helpers.tables import chain, courier

OURS = [
    TURN,
    COMPACTION,
    *(one.TABLE for one in (review_loop, order, nested, parallel)),
    SMALL,
    courier(),
    chain(4),
]
ROUTES = {"scxml": (as_scxml, from_scxml), "xstate": (as_xstate, from_xstate)}
routes = pytest.mark.parametrize("language", ROUTES)
BRANCHED = Table(
    "odd names",
    ("first state", "2nd", "a.b", "Done"),
    "Done",
    (Counter("to do"), Counter("to-do"), Counter("seen", flag=True), Counter("all", cap=True)),
    lines_of({
        "first state": [
            on("go!", Rung("a <rung> & \"more\"", "2nd", any_of((left("to do"), ~left("to-do", "x"))), ("to do",)),
               end("no 'more'", "Done"), why="a < b\nand more"),
        ],
        "2nd": [on("go.on", Rung("once", "a.b", left("seen", yes="new", no="seen"), ("seen", "all"), ("to do",)), go("2nd"), why="")],
        "a.b": [on("*", end("fin", "Done"), why="")],
    }),
)  # fmt: skip
"""Names that are not identifiers, an option, a flag, a cap, wordings, and a row that resets and spends."""


def back(language: str, table: Table, limits: dict[str, int] | None = None) -> Table:
    write, read = ROUTES[language]
    return read(write(table, limits))


@routes
@pytest.mark.parametrize("table", [*OURS, BRANCHED], ids=lambda table: table.name)
def test_a_table_comes_back_with_the_same_rows(language: str, table: Table) -> None:
    again = back(language, table)
    assert {row.id: row for row in again.rows} == {row.id: row for row in table.rows}
    assert (again.name, again.counters, again.macros) == (table.name, table.counters, table.macros)
    assert table.inner or again.digest == table.digest


@routes
def test_200_random_tables_come_back(language: str) -> None:
    for seed in range(200):
        table = random_table(seed)
        assert back(language, table).digest == table.digest, seed


@routes
def test_limits_have_the_given_value_else_the_default_else_1(language: str) -> None:
    assert dict(back(language, SMALL, {"asks": 7}).default_limits()) == {"asks": 7, "acts": 1, "fixes": 1}
    known = replace(SMALL, default_limits=lambda: SMALL_LIMITS)
    assert dict(back(language, known).default_limits()) == SMALL_LIMITS
    with pytest.raises(ConfigError, match="no such limit; given: asked; allowed: asks, acts, fixes"):
        ROUTES[language][0](SMALL, {"asked": 1})


def test_the_formats_are_those_of_render() -> None:
    assert render(TURN, "scxml") == as_scxml(TURN)
    assert render(TURN, "xstate") == as_xstate(TURN)


FOREIGN = """<scxml xmlns="http://www.w3.org/2005/07/scxml" initial="Wait" xmlns:viz="http://phrogz.net/visual-scxml">
  <viz:anything/>
  <datamodel><data id="tries" expr="0"/><data id="lost" expr="0"/><data id="most" expr="4"/></datamodel>
  <state id="Wait" viz:xywh="0 0 1 1">
    <transition event="ring knock" cond="tries &lt; 3 and !(lost >= most)" target="Wait">
      <assign location="tries" expr="tries + 1"/><assign location="lost" expr="0"/>
    </transition>
    <transition event="ring" target="Away"/>
    <transition event="knock" cond="most &gt; lost || 2 &gt;= tries"><assign location="lost">lost+1</assign></transition>
    <transition event="knock" target="Away"/>
    <transition event="open" target="Home"/>
  </state>
  <final id="Home"/>
  <final id="Away"/>
</scxml>"""


def test_a_machine_that_others_wrote_becomes_a_table() -> None:
    table = from_scxml(FOREIGN)
    assert (table.states, table.final) == (("Wait", "Final"), "Final")
    assert dict(table.default_limits()) == {"most": 4, "tries": 3}
    assert [(row.id, row.guard.label, row.spends, row.resets, row.exit) for row in table.rows] == [
        ("Wait.ring/1", "tries left and lost (most) left", ("tries",), ("lost",), None),
        ("Wait.ring/2", "(no tries left or no lost (most) left)", (), (), "Away"),
        ("Wait.knock/1", "tries left and lost (most) left", ("tries",), ("lost",), None),
        ("Wait.knock/2", "(no tries left or no lost (most) left) and (lost (most) left or tries left)", ("lost",), (), None),
        ("Wait.knock/3", "no lost (most) left and no tries left", (), (), "Away"),
        ("Wait.open", "always", (), (), "Home"),
    ]  # fmt: skip


def test_numbers_that_differ_are_limits_of_their_own() -> None:
    table = from_scxml(FOREIGN.replace("2 &gt;= tries", "tries &gt; 0"))
    assert dict(table.default_limits()) == {"most": 4, "tries_3": 3, "tries_1": 1}


def scxml(inside: str, before: str = "") -> str:
    return (
        f'{before}<scxml xmlns="http://www.w3.org/2005/07/scxml" initial="A">{inside}<final id="F"/></scxml>'
    )


MORE = {
    '<state id="A"><state id="B"/></state>': "state in A",
    '<state id="A"/><parallel id="P"/>': "parallel P",
    '<state id="A"><history id="H"/></state>': "history in A",
    '<state id="A"><invoke src="x"/></state>': "invoke in A",
    '<state id="A"><onentry><log/></onentry></state>': "onentry in A",
    '<script>x</script><state id="A"/>': "script",
    '<state id="A"><transition target="F"/></state>': "a transition without event in A",
    '<state id="A"><transition event="a.*" target="F"/></state>': r"the event a\.\*",
    '<state id="A"><transition event="a b.c" target="F"/><transition event="b" target="F"/></state>': (
        "the event b for all that begin with it"
    ),
    '<state id="A"><transition event="a" target="F"><send event="b"/></transition></state>': "send in A",
    '<state id="A"><transition event="a" target="F" cond="In(\'A\')"/></state>': r"the condition In\('A'\)",
    '<state id="A"><transition event="a" target="F" cond="__import__"/></state>': "the condition __import__",
    '<state id="A"><transition event="a" target="F" cond="a b"/></state>': "the condition a b",
    f'<state id="A"><transition event="a" target="F" cond="{"(" * 300}x{")" * 300}"/></state>': r"the condition \(\(",
    '<datamodel><data id="n" expr="2"/></datamodel><state id="A"><transition event="a" target="F">'
    '<assign location="n" expr="n + 1"/></transition></state>': "n begins at 2",
    '<state id="A"><transition event="a" target="F"><assign location="n" expr="n * 2"/></transition></state>': (
        r"n = n\*2 in A"
    ),
    '<datamodel><data id="n" expr="[]"/></datamodel><state id="A"/>': r"the data n = \[\]",
}  # fmt: skip


@pytest.mark.parametrize("inside", MORE, ids=MORE.get)
def test_what_a_document_has_more_is_named_in_one_line(inside: str) -> None:
    with pytest.raises(ConfigError, match=f"has what a table does not: {MORE[inside]}") as caught:
        from_scxml(scxml(inside), "door.scxml")
    assert "given: door.scxml" in str(caught.value)
    assert "\n" not in str(caught.value)


HOSTILE = {
    "<!DOCTYPE scxml [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]>" + scxml("<state id='A'/>"): "a document type is refused",
    "<!DOCTYPE scxml SYSTEM 'file:///etc/passwd'>" + scxml("<state id='A'/>"): "a document type is refused",
    scxml("<state id='A'>"): "mismatched tag",
    "": "no element found",
    "<svg/>": "its root is svg",
    scxml("&a;"): "undefined entity",
    "<scxml>" * 100_000: "no element found",
    "x" * 2_000_001: "more than 2,000,000 characters",
    scxml("<state id='A'/>").replace('initial="A"', 'initial="Z"'): "no such initial state",
    scxml("<state id='A'><transition event='e' target='Z'/></state>"): "unknown state 'Z'",
    '<scxml><state id="A"/></scxml>': "no final state",
    "<scxml/>": "no state",
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE.get)
def test_hostile_documents_are_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError, match=HOSTILE[text]) as caught:
        from_scxml(text)
    assert time.process_time() - began < 1
    assert "\n" not in str(caught.value)


FLAT = {
    "id": "door",
    "initial": "open",
    "states": {"open": {"on": {"CLOSE": "shut", "BURN": [{"target": "gone"}]}},
               "shut": {"on": {"OPEN": {"target": "#door.open"}, "KNOCK": {}}}, "gone": {"type": "final"}},
}  # fmt: skip


def test_a_flat_machine_of_xstate_becomes_a_table() -> None:
    table = from_xstate(json.dumps(FLAT))
    assert [(row.id, row.dest, row.exit) for row in table.rows] == [
        ("open.CLOSE", "shut", None), ("open.BURN", "gone", "gone"), ("shut.OPEN", "open", None),
        ("shut.KNOCK", "shut", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"type": "parallel"}, "type parallel"),
        ({"invoke": {}}, "invoke"),
        ({"context": {"doors": 1}}, "the context doors"),
        ({"context": {"count": {"n": 1}}}, "n begins at 1"),
        ({"states": {**FLAT["states"], "open": {"states": {"a": {}}}}}, "states in open"),
        ({"states": {**FLAT["states"], "open": {"type": "history"}}}, "type history in open"),
        ({"states": {**FLAT["states"], "open": {"after": {"1": "gone"}}}}, "after in open"),
        ({"states": {**FLAT["states"], "open": {"always": "gone"}}}, "always in open"),
        ({"states": {**FLAT["states"], "open": {"entry": "lock"}}}, "entry in open"),
        ({"states": {**FLAT["states"], "open": {"on": {"*": "gone"}}}}, r"the event \* in open"),
        ({"states": {**FLAT["states"], "open": {"on": {"E": {"target": "gone", "guard": "dry"}}}}}, "the guard dry in open.E"),
        ({"states": {**FLAT["states"], "open": {"on": {"E": {"target": "gone", "actions": "ring"}}}}}, "the action ring in open.E"),
        ({"states": {**FLAT["states"], "open": {"on": {"E": {"target": ["gone", "shut"]}}}}}, "several targets in open.E"),
    ],
)  # fmt: skip
def test_what_a_machine_of_xstate_has_more_is_named(change: dict[str, object], more: str) -> None:
    with pytest.raises(ConfigError, match=f"has what a table does not: {more}"):
        from_xstate(json.dumps(FLAT | change))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"states": 3}', "[" * 100_000, '{"states": {"a": 3}, "initial": "a"}',
             '{"states": {"a": {}}}', '{"states": {"a": {"on": []}}, "initial": "a"}', '{"states": {"a": {"on": {"e": [7]}}}, "initial": "a"}',
             '{"states": {}, "initial": "a"}', '{"states": {"a": {"on": {"e": {"guard": {"type": "x", "params": {"y": 1}}}}}}, "initial": "a"}'],
)  # fmt: skip
def test_damaged_machines_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_xstate(text)
    assert "\n" not in str(caught.value)


def test_files_of_other_engines_are_tables_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, file in (("scxml", "order.scxml"), ("xstate", "order.json")):
        Path(file).write_text(cli.ok("diagram", "examples.order:TABLE", "-f", language, "--set", "undos=4"))
        assert cli.ok("diagram", file, "-f", "dot") == render(order.TABLE, "dot")
    assert "No row changed" in cli.ok("diagram", "diff", "order.json", "order.scxml")
    assert "visits of Reserve" in cli.ok("verify", "order.scxml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-f", "scxml", "--map"), "other engines get the whole table"),
        (("-f", "svg", "--set", "undos=4"), "a picture has no limits"),
        (("-f", "xstate", "--set", "undoes=4"), "the table has no such limit"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], says: str, cli: Cli) -> None:
    assert says in cli.refused("diagram", "examples.order:TABLE", *arguments)
