"""Diagrams say what the table says and can be read: nothing missing, nothing on top of another thing, nothing
stale."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fsm_agent.diagram import FORMATS, Layout, render
from fsm_agent.diagram.__main__ import main
from fsm_agent.diagram.geometry import text_width, wrapped
from fsm_agent.diagram.layout import automatic
from fsm_agent.diagram.model import diagram_of, words
from fsm_agent.diagram.proof import proof_lines
from fsm_agent.diagram.scene import Scene, scene_of
from fsm_agent.diagram.stale import files, stale, write
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table, end, go, lines_of, on
from fsm_agent_states.logic.layout import LAYOUT
from fsm_agent_states.table import TURN
from tests.helpers.diagram_reading import missing_rows, read_strictly, unreadable
from tests.helpers.diagram_tables import SMALL
from tests.helpers.tables import courier

BOUND = "sends ≤ blocks·(1 + overflows + retries·(1 + rebuilds)) + repairs + rekeys + fallbacks"
PROOF = ("Every turn ends.", BOUND)

TABLES: list[tuple[Table, Layout | None]] = [(TURN, LAYOUT), (TURN, None), (SMALL, None), (courier(), None)]
each_table = pytest.mark.parametrize(
    ("table", "layout"), TABLES, ids=["own layout", "automatic", "small", "parcel"]
)


@cache
def proved(name: str) -> tuple[str, ...]:
    return proof_lines({"turn": TURN, "small": SMALL, "parcel": courier()}[name])


def scene(table: Table, layout: Layout | None) -> Scene:
    diagram = diagram_of(table, layout.get("ways_out") if layout else None)
    return scene_of(diagram, layout or automatic(diagram), proved(table.name) or PROOF)


def vocabulary(table: Table) -> set[str]:
    """Every event, every named rung and every exit, in words."""
    names = {words(row.event) for row in table.rows}
    names |= {row.rung for row in table.rows if row.exit is None and not row.rung.startswith("→")}
    return names | {words(row.exit) for row in table.rows if row.exit is not None}


def visible_text(svg: str) -> str:
    """What a reader of the picture sees; tooltips and styles left out."""
    texts = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return "\n".join("".join(text.itertext()) for text in texts)


@each_table
def test_every_name_is_in_every_text(table: Table, layout: Layout | None) -> None:
    texts = {
        "svg": visible_text(render(table, "svg", layout=layout)),
        "mermaid": render(table, "mermaid", layout=layout).replace("‹it›", "<it>").replace("do, <", "do; <"),
        "dot": render(table, "dot", layout=layout),
        "markdown": words(render(table, "markdown", layout=layout)),
    }
    missing = [(form, name) for form, text in texts.items() for name in vocabulary(table) if name not in text]
    assert missing == []


@each_table
def test_every_row_can_be_found_in_the_picture(table: Table, layout: Layout | None) -> None:
    root = ET.fromstring(render(table, "svg", layout=layout))
    lines = [row for e in root.iter() if "data-event" in e.attrib for row in e.attrib["data-rows"].split()]
    spans = [e.attrib.get("data-rows", "") for e in root.iter() if e.tag.endswith("tspan")]
    rungs = {row for rows in spans for row in rows.split()}
    arrows = {e.attrib["id"]: e.attrib["data-rows"].split() for e in root.iter() if "data-source" in e.attrib}
    assert sorted(lines) == sorted(row.id for row in table.rows)
    assert rungs == set(lines)
    for row in table.rows:
        assert row.exit is not None or row.id in arrows[f"arrow-{row.source}-{row.dest}"]
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    assert {f"state-{state}" for state in table.states} <= set(ids)


def test_json_and_markdown_hold_every_row() -> None:
    form = json.loads(render(TURN, "json"))
    assert [row["id"] for row in form["rows"]] == [row.id for row in TURN.rows]
    assert [row["guard"] for row in form["rows"]] == [row.guard.label for row in TURN.rows]
    lines = [(line.source, line.event) for line in TURN.lines]
    assert [(line["state"], line["event"]) for line in form["lines"]] == lines
    assert form["digest"] == TURN.digest
    text = render(TURN, "markdown")
    assert [text.count(f"| `{row.id}` |") for row in TURN.rows] == [1] * len(TURN.rows)
    assert "| **fallback** › **retry** › ⇥ *api_retries_exhausted* |" in text
    assert "| a first \\| word |" in render(SMALL, "markdown")
    with pytest.raises(ConfigError, match="given: png; allowed: mermaid, dot, svg, markdown, json"):
        render(TURN, "png")


@each_table
def test_nothing_stands_on_another_thing_and_text_stays_inside_its_box(
    table: Table, layout: Layout | None
) -> None:
    assert unreadable(scene(table, layout)) == []


def test_no_arrow_of_the_own_layout_runs_through_a_label_or_panel() -> None:
    picture = scene(TURN, LAYOUT)
    for placed in picture.arrows:
        others = [other.label for other in picture.arrows if other is not placed]
        for rect in (*others, *(panel.rect for panel in picture.panels)):
            assert not any(rect.holds(point, 2) for point in placed.path.points()), placed.arrow


def test_the_own_layout_is_complete_and_not_too_large() -> None:
    diagram = diagram_of(TURN, LAYOUT["ways_out"])
    assert set(LAYOUT["boxes"]) == set(TURN.states)
    assert set(LAYOUT["arrows"]) == {(arrow.source, arrow.dest) for arrow in diagram.arrows}
    assert scene(TURN, LAYOUT).size == LAYOUT["size"]
    assert LAYOUT["size"][0] <= 1600
    # only its ways out are arrows, and a long list is told by another one
    ways = [(arrow.source, arrow.labels) for arrow in diagram.arrows if arrow.way_out]
    assert ways == [("CallLLM", ("text", "summary"))]
    text = visible_text(render(TURN, "svg", layout=LAYOUT))
    ladder = "one retry › fallback › retry › rebuild › ⇥ api retries exhausted"
    assert [told for told in ("compact › as built", "nudge › as thought", ladder) if told not in text] == []


def test_a_table_brings_its_layout_along_and_stays_the_same_table() -> None:
    plain = courier()
    placed = replace(plain, layout=automatic(diagram_of(plain)), default_limits=lambda: {"tries": 1})
    assert (placed, placed.digest, repr(placed)) == (plain, plain.digest, repr(plain))
    assert render(placed, "svg", layout=placed.layout) == render(plain, "svg")


def test_a_layout_may_know_less_or_more_than_the_table() -> None:
    boxes = {state: place for state, place in LAYOUT["boxes"].items() if state != "Compress"}
    partial: Layout = {**LAYOUT, "boxes": {**boxes, "Gone": (0.0, 0.0, 9.0)}, "arrows": {}}
    picture = scene(TURN, partial)
    assert [placed.box.state for placed in picture.boxes] == list(TURN.states)
    assert len(picture.arrows) == len(diagram_of(TURN, LAYOUT["ways_out"]).arrows)
    assert picture.size[1] > LAYOUT["size"][1]


def test_wrapped_lines_keep_to_their_width() -> None:
    lines = wrapped(PROOF[1], 200)
    assert " ".join(lines) == PROOF[1]
    assert all(text_width(line) <= 200 or " " not in line for line in lines)


@each_table
def test_every_rows_label_is_read_in_mermaid(table: Table, layout: Layout | None) -> None:
    assert missing_rows(table, read_strictly(render(table, "mermaid", layout=layout))) == []


def test_the_strict_reader_misses_what_mermaid_would_drop() -> None:
    text = render(TURN, "mermaid", layout=LAYOUT)
    for old, new, missed in (
        (": compress\n", ": com;press\n", ["overflow/2", "outgrown/2"]),
        ("⇥ output cap", "⇥ <output cap>", ["cap_unknown"]),
    ):
        found = missing_rows(TURN, read_strictly(text.replace(old, new)))
        assert found == [f"ClassifyError.{row}" for row in missed]


@each_table
def test_every_rows_label_and_guard_is_read_in_the_picture(table: Table, layout: Layout | None) -> None:
    """Each row has its rung or exit on the line of its event, inside the box of its state; the list of
    another event of the same box stands for it after "as". Its guard is what a pointer shows."""
    root = ET.fromstring(render(table, "svg", layout=layout))
    for row in table.rows:
        of_it = [e for e in root.iter() if row.id in e.get("data-rows", "").split()]
        lines = [e for e in of_it if e.get("data-event") == row.event]
        assert len(lines) == 1, row.id
        within = set(lines[0].iter())
        (text,) = {"".join(e.itertext()) for e in of_it if e in within and "span" in e.tag}
        rung = row.dest if row.rung == f"→ {row.dest}" else row.rung
        wanted = f"⇥ {words(row.exit)}" if row.exit else f"→ {rung}" if rung == row.dest else rung
        if text.startswith("as "):
            named = (e for e in root.iter() if words(e.get("data-event", "")) == text[3:])
            (other,) = (e for e in named if row.source in e.get("data-rows", ""))
            text = "".join(other.itertext())
            assert wanted in text, row.id
        else:
            assert text == wanted, row.id
        assert f"{row.id}: {row.rung} if {row.guard.label}" in "".join(lines[0].itertext())


@each_table
def test_texts_are_the_same_every_time_and_end_with_a_newline(table: Table, layout: Layout | None) -> None:
    for form in FORMATS:
        text = render(table, form, layout=layout)
        assert text == render(table, form, layout=layout)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert "\r" not in text


def test_the_proofs_have_a_panel_of_their_own() -> None:
    assert "Proved for every setting" not in render(TURN, "svg", layout=LAYOUT)
    text = visible_text(render(TURN, "svg", layout=LAYOUT, proof_lines=PROOF))
    assert "Proved for every setting" in text
    assert PROOF[0] in text


def test_only_what_is_proved_is_shown() -> None:
    checks, *bounds = proved("turn")
    assert "every turn ends" in checks
    assert bounds[0].startswith("visits of CallLLM ≤ ")
    again = (on("again", go("Loop"), why="for ever"), on("said", end("answered", "Done"), why="or not"))
    assert proof_lines(Table("endless", ("Loop", "Done"), "Done", (), lines_of({"Loop": again}))) == ()


@pytest.mark.behaviour("FSM-09")
def test_a_changed_or_missing_file_is_stale(tmp_path: Path) -> None:
    fresh = files(SMALL)
    pictures = [f"small.{ending}" for ending in FORMATS.values()]
    assert list(fresh) == [*pictures, "small-map.svg", "small.proofs.md"]
    assert write(tmp_path / "new", fresh) == list(fresh)
    assert stale(tmp_path / "new", fresh) == []
    (tmp_path / "new" / "small.svg").write_text("<svg/>")
    (tmp_path / "new" / "small.md").unlink()
    assert stale(tmp_path / "new", fresh) == ["small.svg", "small.md"]
    assert write(tmp_path / "new", fresh) == ["small.svg", "small.md"]


def test_the_command_writes_checks_and_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ["--table", "tests.helpers.diagram_tables:SMALL"]
    assert main(["--check", str(tmp_path), *table]) == 1
    assert "stale:" in capsys.readouterr().out
    assert main([str(tmp_path), *table]) == 0
    assert {file.name for file in tmp_path.iterdir()} == set(files(SMALL))
    assert main(["--check", str(tmp_path), *table]) == 0
    assert main([str(tmp_path), *table, "--limits", "tests.helpers.diagram_tables:SMALL_LIMITS"]) == 0
    assert "Figures are for asks 2, acts 3, fixes 1." in (tmp_path / "small.proofs.md").read_text()
    assert main([str(tmp_path), "--table", "fsm_agent_states.table:NOTHING"]) == 2
    assert main([str(tmp_path), "--table", "fsm_agent_states.table:BLOCK"]) == 2
    assert "given: fsm_agent_states.table:BLOCK" in capsys.readouterr().err
    assert main([str(tmp_path), *table, "--limits", "fsm_agent_states.table:BLOCK"]) == 2
    assert "these are no limits" in capsys.readouterr().err
    assert main([str(tmp_path), *table, "--limits", "tests.helpers.tables:DEFAULTS"]) == 2
    assert "limits are missing; given: acts, asks, fixes" in capsys.readouterr().err
