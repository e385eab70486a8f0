"""One state from near: all its rows with their guards, its neighbours and nothing else."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from fsm_agent.diagram import written
from fsm_agent.diagram.around import around, near_json, near_markdown, neighbourhood
from fsm_agent.diagram.geometry import Rect
from fsm_agent.diagram.model import words
from fsm_agent.diagram.scene import PAD, part_width, scene_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent_states.table import TURN
from tests.diagram.test_diagram import visible_text
from tests.helpers.diagram_reading import read_strictly
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
            (line,) = (
                e for e in root.iter() if e.get("data-event") and row.id in e.get("data-rows", "").split()
            )
            shown = " ".join(
                " ".join("".join(e.itertext()) for e in line.iter() if e.tag.endswith("}text")).split()
            )
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
    places = {f"box {placed.box.state}": placed.rect for placed in picture.boxes}
    places |= {f"label {p.arrow.source} to {p.arrow.dest}": p.label for p in picture.arrows}
    places |= {f"panel {panel.title}": panel.rect for panel in picture.panels}
    assert [(a, b) for (a, p), (b, q) in combinations(places.items(), 2) if p.overlaps(q)] == []
    page = Rect(0, 0, *picture.size)
    assert [
        name for name, r in places.items() if not (page.holds((r.x, r.y)) and page.holds((r.right, r.bottom)))
    ] == []
    assert picture.size[0] <= 1_650, "readable on a screen without zoom"
    for placed in picture.boxes:
        assert all(
            placed.column + part_width(line) <= placed.rect.right - PAD + 0.01
            for lines in placed.lists
            for line in lines
        )
        assert all(placed.rect.y < y < placed.rect.bottom for y in placed.baselines)
    for arrow in picture.arrows:
        for box in picture.boxes:
            assert not any(box.rect.holds(point, -1) for point in arrow.path.points()), arrow.arrow


def test_its_mermaid_has_each_row_on_a_line() -> None:
    seen = read_strictly(written(neighbourhood(TURN, "ClassifyError"), "mermaid"))
    assert set(seen.lines) == {"ClassifyError", "BuildMessages", "CallLLM", "Compress", "Finalize"}
    assert (
        "limited – retry if no fallbacks left and retries left, spends retries" in seen.lines["ClassifyError"]
    )
    assert len(seen.lines["ClassifyError"]) >= sum(row.source == "ClassifyError" for row in TURN.rows)


def test_its_texts_have_the_rows_out_and_in() -> None:
    text = near_markdown(TURN, "Compress")
    out, _, into = text.partition("## In")
    assert [out.count(f"| `{row.id}` |") for row in TURN.rows] == [
        int(row.source == "Compress") for row in TURN.rows
    ]
    assert [into.count(f"| `{row.id}` |") for row in TURN.rows] == [
        int(row.dest == "Compress" != row.source) for row in TURN.rows
    ]
    value = json.loads(near_json(neighbourhood(TURN, "ExecuteTools"), "ExecuteTools"))
    assert [row["id"] for row in value["out"]] == [
        row.id for row in TURN.rows if row.source == "ExecuteTools"
    ]
    assert "ExecuteTools.bad_json/2" not in [row["id"] for row in value["in"]]


def test_an_unknown_state_is_refused_with_the_names_of_the_others() -> None:
    with pytest.raises(
        ConfigError, match="no such state; given: Nowhere; allowed: Start, Think, Act, Check, Done"
    ):
        neighbourhood(SMALL, "Nowhere")
