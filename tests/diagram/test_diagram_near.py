"""One state from near: all its rows with their guards, its neighbours and nothing else."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

from fsm_agent.diagram import written
from fsm_agent.diagram.around import around, near_json, near_markdown, neighbourhood
from fsm_agent.diagram.model import words
from fsm_agent.diagram.scene import scene_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent_states.table import TURN
from tests.diagram.test_diagram import visible_text
from tests.helpers.diagram_reading import read_strictly, unreadable
from tests.helpers.diagram_tables import SMALL
from tests.helpers.tables import courier

EACH = [(table, state) for table in (TURN, SMALL, courier()) for state in table.states]
each_state = pytest.mark.parametrize(
    ("table", "state"), EACH, ids=[f"{table.name} {state}" for table, state in EACH]
)


@each_state
def test_every_row_is_there_with_its_guard(table: Table, state: str) -> None:
    diagram = neighbourhood(table, state)
    svg = written(diagram, "svg", around(diagram, state))
    root, text = ET.fromstring(svg), visible_text(svg)
    for row in table.rows:
        if row.source == state:
            lines = (e for e in root.iter() if e.get("data-event"))
            (line,) = (e for e in lines if row.id in e.get("data-rows", "").split())
            told = ("".join(e.itertext()) for e in line.iter() if e.tag.endswith("}text"))
            shown = " ".join(" ".join(told).split())
            assert row.guard.label == "always" or f"if {row.guard.label}" in shown
            assert words(row.exit) in shown if row.exit else row.rung.removeprefix("→ ") in shown
            assert all(words(counter) in text for counter in row.spends)
    arrows = {e.attrib["id"]: e.attrib["data-rows"].split() for e in root.iter() if "data-source" in e.attrib}
    expected = {row.id for row in table.rows if state in (row.source, row.dest)}
    assert {row for rows in arrows.values() for row in rows} == expected
    assert {e.get("data-state") for e in root.iter()} - {None} == {state} | {
        end for row in table.rows if row.id in expected for end in (row.source, row.dest)
    }


@each_state
def test_nothing_stands_on_another_thing(table: Table, state: str) -> None:
    diagram = neighbourhood(table, state)
    picture = scene_of(diagram, around(diagram, state))
    assert unreadable(picture) == []
    assert picture.size[0] <= 1_650, "readable on a screen without zoom"


def test_its_mermaid_has_each_row_on_a_line() -> None:
    seen = read_strictly(written(neighbourhood(TURN, "ClassifyError"), "mermaid"))
    assert set(seen.lines) == {"ClassifyError", "BuildMessages", "CallLLM", "Compress", "Finalize"}
    assert (
        "limited – retry if no fallbacks left and retries left, spends retries" in seen.lines["ClassifyError"]
    )
    assert len(seen.lines["ClassifyError"]) >= sum(row.source == "ClassifyError" for row in TURN.rows)


def test_its_texts_have_the_rows_out_and_in() -> None:
    text, rows = near_markdown(TURN, "Compress"), TURN.rows
    out, _, into = text.partition("## In")
    assert [row.id for row in rows if f"| `{row.id}` |" in out] == [
        r.id for r in rows if r.source == "Compress"
    ]
    comes = [row.id for row in rows if row.dest == "Compress" != row.source]
    assert [row.id for row in rows if f"| `{row.id}` |" in into] == comes
    assert text.count("| `") == len(set(re.findall(r"\| `[^`]+` \|", text)))
    value = json.loads(near_json(neighbourhood(TURN, "ExecuteTools"), "ExecuteTools"))
    assert [row["id"] for row in value["out"]] == [row.id for row in rows if row.source == "ExecuteTools"]
    assert "ExecuteTools.bad_json/2" not in [row["id"] for row in value["in"]]


def test_an_unknown_state_is_refused_with_the_names_of_the_others() -> None:
    others = "allowed: Start, Think, Act, Check, Done"
    with pytest.raises(ConfigError, match=f"no such state; given: Nowhere; {others}"):
        neighbourhood(SMALL, "Nowhere")
